//! Random stories on `dracpu simulate`, each step held against a model of the node that knows nothing of the driver.
//!
//! `STORIES` is how many are told (each on the next machine), `SEED` the first one's; a story that breaks a rule is
//! shrunk, and printed as a script that `dracpu simulate` plays.

use anyhow::Result;
use dracpu_cpuset::CpuSet;
use dracpu_model::configuration::CONFIGURATIONS;
use dracpu_model::event::Event;
use dracpu_model::machine::Machine;
use dracpu_model::rules::Rule;
use dracpu_model::run::{Failure, Stage, Told, new_node, play_seed, tell_events};
use dracpu_model::seen::Seen;
use dracpu_model::simulate::Simulate;
use dracpu_model::truth::Truth;
use dracpu_tests::support::daemon::{compiled_strategies as cache, dracpu_bin};
use dracpu_tests::support::process_clock::ProcessClock;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Machines that stories are told on: small and large, with and without SMT, regular and not.
const MACHINES: [&str; 10] = [
    "small",
    "desktop-smt",
    "two-socket",
    "holes",
    "hybrid",
    "mixed-threads",
    "smt4",
    "amd-ccd",
    "vm-sockets",
    "restarting-ids",
];

/// Operations of the longest story.
const LONGEST: usize = 80;

fn number(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// A stage on which clocks jump, too.
struct Timed {
    stage: Simulate,
    clock: ProcessClock,
}

impl Timed {
    fn start(truth: &Truth, envs: &[(&str, &str)]) -> Result<Self> {
        let clock = ProcessClock::new()?;
        let own = clock.envs();
        let own = own.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let envs: Vec<_> = own.chain(envs.iter().copied()).collect();
        let stage = Simulate::start(&dracpu_bin()?, &cache()?, truth, &envs)?;
        Ok(Self { stage, clock })
    }
}

impl Stage for Timed {
    fn play(&mut self, event: &Event) -> Result<Seen> {
        let Event::Clock { day, forward } = event else { return self.stage.play(event) };
        self.clock.jump(*day, *forward)?;
        self.stage.play(&Event::State {})
    }

    fn events(&self, event: Event, truth: &Truth) -> Vec<Event> {
        self.stage.events(event, truth)
    }

    fn script(&self, event: &Event) -> Vec<Event> {
        self.stage.script(event)
    }
}

/// Each story on the next machine; when each of them has had one, with the next configuration.
fn play(seed: u64, machines: &[Machine], envs: &[(&str, &str)]) -> Result<Told, Box<Failure>> {
    let count = u64::try_from(machines.len()).unwrap();
    let machine = &machines[usize::try_from(seed % count).unwrap()];
    let which = seed / count % u64::from(CONFIGURATIONS);
    let truth = new_node(machine, u8::try_from(which).unwrap());
    play_seed(seed, LONGEST, &truth, || Ok(Box::new(Timed::start(&truth, envs)?)))
}

#[test]
fn no_story_breaks_a_rule() {
    let (first, count) = (number("SEED", 1), number("STORIES", 200));
    let machines = MACHINES.map(Machine::named);
    let next = AtomicU64::new(first);
    let (events, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let began = Instant::now();
    let work = || {
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return failures;
            }
            match play(seed, &machines, &[]) {
                Ok(told) => {
                    events.fetch_add(told.script.len(), Ordering::Relaxed);
                    done.fetch_add(told.done, Ordering::Relaxed);
                }
                Err(failure) => {
                    println!("{failure}\n");
                    failures.push(format!("seed {}: {}", failure.seed, failure.violation));
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let (events, done) = (events.into_inner(), done.into_inner());
    println!(
        "seeds {first} to {}: {events} events, {done} of them done, in {:?}",
        first + count - 1,
        began.elapsed()
    );
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(count < 40 || done > 1000, "the stories do nothing: {done} of {events} events");
}

/// What is made of what can be seen.
type Lie = fn(&mut Seen);

/// A stage that lies once.
struct Lying {
    stage: Simulate,
    at: usize,
    lie: Lie,
}

impl Stage for Lying {
    fn play(&mut self, event: &Event) -> Result<Seen> {
        let mut seen = self.stage.play(event)?;
        if self.at == 0 {
            (self.lie)(&mut seen);
        }
        self.at = self.at.wrapping_sub(1);
        Ok(seen)
    }
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn books(seen: &mut Seen) -> &mut dracpu_model::seen::Books {
    seen.books.as_mut().unwrap()
}

fn file(seen: &mut Seen) -> &mut String {
    seen.files.get_mut("dra.k8s.io-cpu_claim-A.json").unwrap()
}

/// Two claims of two CPUs each, the first one with a container, and a container without; on 8 CPUs without SMT.
fn quiet_story() -> Vec<Event> {
    let prepare = |claim: &str, count: &str| json!({"op": "prepare", "claim": claim, "requests": [{"name": "r", "device": "cpudevnuma000", "cpus": count}]});
    let events = [
        /* 0 */ json!({"op": "create", "container": "s", "pod": "q"}),
        /* 1 */ prepare("A", "2"),
        /* 2 */ json!({"op": "create", "container": "a", "pod": "p", "claims": ["A"]}),
        /* 3 */ prepare("B", "2"),
        /* 4 */ json!({"op": "prepare", "claim": "A"}),
        /* 5 */ json!({"op": "create", "container": "other", "pod": "r", "claims": ["A"]}),
        /* 6 */
        json!({"op": "create", "container": "forger", "pod": "r", "env": ["DRA_CPUSET_B=2-3"]}),
        /* 7 */
        json!({"op": "prepare", "claim": "C", "requests": [{"name": "r", "device": "cpudevnuma000", "cpus": "0"}]}),
        /* 8 */ json!({"op": "update", "container": "a", "cpuset": "0-7"}),
        /* 9 */ json!({"op": "unprepare", "claim": "B"}),
        /* 10 */
        json!({"op": "prepare", "claim": "D", "requests": [{"name": "r", "device": "cpudevnuma000", "cpus": "6"}]}),
        /* 11 */ json!({"op": "crash"}),
        /* 12 */ json!({"op": "sync", "containers": ["a", "s"]}),
    ];
    events.map(|event| serde_json::from_value(event).unwrap()).to_vec()
}

/// Each rule: an event of the quiet story, and what it looks like when the rule is broken there.
fn lies() -> Vec<(Rule, usize, Lie)> {
    vec![
        (Rule::OneOwner, 3, |seen| {
            seen.answer.cpus = Some(cpus("0-1"));
        }),
        (Rule::AsAsked, 1, |seen| seen.answer.cpus = Some(cpus("0-2"))),
        (Rule::AsAsked, 1, |seen| seen.answer.cpus = Some(cpus("8-9"))),
        (Rule::WrongClaim, 7, |seen| {
            seen.answer.refused = None;
            seen.answer.cpus = Some(cpus("4"));
        }),
        (Rule::Floor, 10, |seen| {
            seen.answer.refused = None;
            seen.answer.cpus = Some(cpus("2-7"));
        }),
        (Rule::SameAnswer, 4, |seen| seen.answer.cpus = Some(cpus("4-5"))),
        (Rule::Forgotten, 11, |seen| drop(books(seen).claims.remove("A"))),
        (Rule::Forgotten, 4, |seen| seen.answer.refused = Some("not now".to_owned())),
        (Rule::Leaked, 9, |seen| drop(books(seen).claims.insert("B".to_owned(), cpus("2-3")))),
        (Rule::Recorded, 1, |seen| seen.files.clear()),
        (Rule::Recorded, 3, |seen| *file(seen) = file(seen).replace("=0-1", "=0-2")),
        (Rule::Recorded, 3, |seen| {
            *file(seen) = file(seen).replace(r#"\"cpus\":\"0-1\""#, r#"\"cpus\":\"0\""#)
        }),
        (Rule::RecordLeft, 9, |seen| {
            let text = file(seen).clone();
            seen.files.insert("dra.k8s.io-cpu_claim-B.json".to_owned(), text);
        }),
        (Rule::SharedPool, 3, |seen| books(seen).shared = cpus("2-7")),
        (Rule::SharedPool, 9, |seen| books(seen).shared = cpus("4-7")),
        (Rule::Mask, 0, |seen| seen.answer.cpus = Some(cpus("0-8"))),
        (Rule::Mask, 2, |seen| drop(seen.answer.updates.insert("s".to_owned(), cpus("1-7")))),
        (Rule::Mask, 2, |seen| drop(seen.answer.updates.insert("s".to_owned(), CpuSet::new()))),
        (Rule::Mask, 8, |seen| seen.answer.cpus = Some(cpus("0-7"))),
        (Rule::MaskWhole, 9, |seen| {
            seen.answer.updates.clear();
            seen.later.clear();
        }),
        (Rule::OneContainer, 5, |seen| {
            seen.answer.refused = None;
            seen.answer.cpus = Some(cpus("0-1"));
        }),
        (Rule::Forged, 6, |seen| {
            seen.answer.refused = None;
            seen.answer.cpus = Some(cpus("2-3"));
        }),
        (Rule::Needless, 0, |seen| seen.answer.refused = Some("no".to_owned())),
        (Rule::Needless, 3, |seen| seen.answer.refused = Some("no".to_owned())),
        (Rule::Needless, 9, |seen| seen.answer.refused = Some("no".to_owned())),
        (Rule::Unchanged, 5, |seen| books(seen).shared = cpus("7")),
        (Rule::Unchanged, 6, |seen| drop(seen.files.pop_first())),
        (Rule::Capacity, 3, |seen| seen.capacity = [("cpudevnuma000".to_owned(), 3)].into()),
        (Rule::Told, 3, |seen| books(seen).unhealthy = ["A".to_owned()].into()),
        (Rule::Told, 3, |seen| books(seen).conflicted = ["A".to_owned()].into()),
    ]
}

#[test]
fn a_driver_that_breaks_a_rule_is_found_out_by_the_rules_name() -> Result<()> {
    let binary = dracpu_bin()?;
    let truth = new_node(&Machine::named("small"), 0);
    let start = || Simulate::start(&binary, &cache()?, &truth, &[]);
    let honest = tell_events(truth.clone(), &mut start()?, &quiet_story())?;
    assert_eq!(honest.violation, None);
    let mut broken = BTreeMap::new();
    for (rule, at, lie) in lies() {
        let mut stage = Lying { stage: start()?, at, lie };
        let told = tell_events(truth.clone(), &mut stage, &quiet_story())?;
        let found = told.violation.map(|violation| violation.rule);
        assert_eq!((found, told.script.len()), (Some(rule), at + 1), "a lie about {rule} at event {at}");
        broken.insert(rule, ());
    }
    let unbroken: Vec<_> = Rule::ALL.iter().filter(|rule| !broken.contains_key(rule)).collect();
    assert!(unbroken.is_empty(), "rules that no lie breaks: {unbroken:?}");
    Ok(())
}

/// A build with debug assertions can be told to break the rule of the floor.
#[test]
fn a_driver_that_breaks_a_rule_gives_a_short_script_that_shows_it_again() -> Result<()> {
    let machines = [Machine::named("small")];
    let broken = [("DRACPU_NO_FLOOR", "1")];
    let failure = (1..200).find_map(|seed| play(seed, &machines, &broken).err());
    let failure = failure.expect("a story takes all CPUs sooner or later");
    assert_eq!(failure.violation.rule, Rule::Floor, "{failure}");
    assert!(failure.script.len() <= 12, "{failure}");
    // What is printed is what `dracpu simulate` plays.
    let printed = failure.to_string();
    let script: Vec<Event> = printed
        .lines()
        .filter(|line| line.starts_with("{\"op\""))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    assert_eq!(script, failure.script);
    let mut truth = new_node(&machines[0], 0);
    truth.config = serde_json::from_str(&failure.config)?;
    truth.number_anew();
    let mut again = Simulate::start(&dracpu_bin()?, &cache()?, &truth, &broken)?;
    let events: Vec<Event> = script.into_iter().filter(|event| *event != Event::State {}).collect();
    let told = tell_events(truth, &mut again, &events)?;
    assert_eq!(told.violation, Some(failure.violation));
    Ok(())
}
