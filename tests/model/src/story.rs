//! Stories drawn at random. An operation is small and names no circumstances, so that any part of a story is one,
//! too; which events it stands for follows from the node as it is by then.

use crate::configuration::{config, of_strategies};
use crate::event::{Damage, Described, Event, NewClaim, NewContainer, Prepare, Synced, What};
use crate::truth::{Hold, Truth};
use crate::wish::{Wish, wish};
use dracpu_cpuset::CpuSet;
use proptest::collection::vec;
use proptest::prelude::*;

/// Claims that a story has.
const CLAIMS: u8 = 7;
/// Containers that a story has, two to a pod.
const CONTAINERS: u8 = 8;

/// One operation.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as the events that they become")]
pub enum Op {
    Prepare(u8, Wish),
    Batch {
        claims: Vec<(u8, Wish)>,
        parallel: bool,
    },
    Unprepare(u8),
    Delete(u8),
    Release(u8),
    Create {
        container: u8,
        claims: Vec<u8>,
        forge: Forge,
    },
    Update {
        container: u8,
        asked: Option<u8>,
    },
    Start(u8),
    Stop(u8),
    Remove(u8),
    /// Stopped, made again, with what it had.
    Restart(u8),
    /// Each bit a container that the runtime shows, and perhaps one that nobody has seen being made.
    Sync {
        shown: u8,
        stranger: Option<(u8, Vec<u8>, Forge)>,
    },
    Offline(Vec<u8>),
    Online,
    Crash,
    /// The driver dies, and the runtime connects to the next one.
    CrashAndSync,
    /// Whether the records are still there.
    Reboot(bool),
    Config(u8),
    /// What a configuration says of strategies, taken over without a restart.
    Reload(u8),
    Fail(What, bool),
    Spec(u8, Damage),
    Runtime(u8),
    /// The kubelet starts anew, and asks again for all that pods have.
    Kubelet,
    /// Which jump of the clocks.
    Clock(u8),
}

/// What a pod sets itself.
#[derive(Debug, Clone, Copy)]
pub enum Forge {
    /// Nothing.
    Nothing,
    /// Nothing of ours.
    Others,
    /// What a claim has, which it was not given.
    Truly(u8),
    /// What a claim does not have.
    Falsely(u8),
    /// A claim that never was.
    Unknown,
    /// What is no CPU list.
    Malformed,
}

/// A story.
pub fn story(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(op(), longest / 3..longest)
}

fn claim() -> impl Strategy<Value = u8> {
    0..CLAIMS
}

fn container() -> impl Strategy<Value = u8> {
    0..CONTAINERS
}

fn forge() -> impl Strategy<Value = Forge> {
    prop_oneof![
        20 => Just(Forge::Nothing),
        1 => Just(Forge::Others),
        1 => claim().prop_map(Forge::Truly),
        1 => claim().prop_map(Forge::Falsely),
        1 => Just(Forge::Unknown),
        1 => Just(Forge::Malformed),
    ]
}

fn few_claims() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => Just(vec![]), 6 => vec(claim(), 1), 1 => vec(claim(), 2..4)]
}

fn op() -> impl Strategy<Value = Op> {
    let what = prop_oneof![Just(What::CdiWrite), Just(What::CdiRemove), Just(What::Api)];
    let damage =
        prop_oneof![Just(Damage::Truncate), Just(Damage::Garble), Just(Damage::Newer), Just(Damage::Remove)];
    prop_oneof![
        24 => (claim(), wish()).prop_map(|(claim, wish)| Op::Prepare(claim, wish)),
        4 => (vec((claim(), wish()), 1..4), any::<bool>())
            .prop_map(|(claims, parallel)| Op::Batch { claims, parallel }),
        12 => claim().prop_map(Op::Unprepare),
        3 => claim().prop_map(Op::Delete),
        3 => claim().prop_map(Op::Release),
        24 => (container(), few_claims(), forge())
            .prop_map(|(container, claims, forge)| Op::Create { container, claims, forge }),
        4 => (container(), proptest::option::of(any::<u8>()))
            .prop_map(|(container, asked)| Op::Update { container, asked }),
        4 => container().prop_map(Op::Start),
        6 => container().prop_map(Op::Stop),
        6 => container().prop_map(Op::Remove),
        4 => container().prop_map(Op::Restart),
        4 => (any::<u8>(), proptest::option::weighted(0.3, (container(), few_claims(), forge())))
            .prop_map(|(shown, stranger)| Op::Sync { shown, stranger }),
        3 => vec(any::<u8>(), 1..4).prop_map(Op::Offline),
        3 => Just(Op::Online),
        4 => Just(Op::Crash),
        6 => Just(Op::CrashAndSync),
        1 => any::<bool>().prop_map(Op::Reboot),
        4 => any::<u8>().prop_map(Op::Config),
        2 => any::<u8>().prop_map(Op::Reload),
        6 => (what, proptest::bool::weighted(0.4)).prop_map(|(what, on)| Op::Fail(what, on)),
        3 => (claim(), damage).prop_map(|(claim, how)| Op::Spec(claim, how)),
        2 => any::<u8>().prop_map(Op::Runtime),
        2 => Just(Op::Kubelet),
        2 => any::<u8>().prop_map(Op::Clock),
    ]
}

pub(crate) fn uid(claim: u8) -> String {
    char::from(b'A' + claim).to_string()
}

fn name(container: u8) -> String {
    format!("c{container}")
}

fn pod(container: u8) -> String {
    format!("p{}", container / 2)
}

impl Op {
    /// The events that it stands for on this node; none where it means nothing.
    #[must_use]
    pub fn events(&self, truth: &Truth) -> Vec<Event> {
        let runs = |container: &u8| truth.containers.contains_key(&name(*container));
        match self {
            Self::Prepare(claim, wish) => {
                vec![Event::Prepare(Prepare { one: Some(wish.of(*claim, truth)), ..Prepare::default() })]
            }
            Self::Batch { claims, parallel } => {
                let mut all: Vec<NewClaim> = Vec::new();
                for claim in claims.iter().map(|(claim, wish)| wish.of(*claim, truth)) {
                    if all.iter().all(|other| other.claim != claim.claim) {
                        all.push(claim);
                    }
                }
                vec![Event::Prepare(Prepare { one: None, claims: Some(all), parallel: *parallel })]
            }
            Self::Unprepare(claim) => vec![Event::Unprepare { claim: uid(*claim) }],
            Self::Delete(claim) => {
                let there = truth.claims.get(&uid(*claim)).is_some_and(|claim| claim.object.is_some());
                there.then(|| Event::Delete { claim: uid(*claim) }).into_iter().collect()
            }
            Self::Release(claim) => vec![Event::Release { claim: uid(*claim) }],
            Self::Create { container, claims, forge } => {
                vec![Event::Create(made(*container, claims, *forge, truth))]
            }
            Self::Update { container, asked } if runs(container) => {
                let cpuset = asked.map(|asked| {
                    let some = truth.machine.cpus.iter().filter(|cpu| (cpu ^ u32::from(asked)) % 3 > 0);
                    some.collect::<CpuSet>().to_string()
                });
                vec![Event::Update { container: name(*container), cpuset }]
            }
            Self::Start(container) if runs(container) => vec![Event::Start { container: name(*container) }],
            Self::Stop(container) if runs(container) => vec![Event::Stop { container: name(*container) }],
            Self::Remove(container) if runs(container) => vec![Event::Remove { container: name(*container) }],
            Self::Restart(container) if runs(container) => {
                let old = &truth.containers[&name(*container)];
                let again = NewContainer {
                    container: name(*container),
                    pod: pod(*container),
                    claims: old.given.iter().cloned().collect(),
                    env: Vec::new(),
                };
                vec![Event::Stop { container: name(*container) }, Event::Create(again)]
            }
            Self::Update { .. } | Self::Start(_) | Self::Stop(_) | Self::Remove(_) | Self::Restart(_) => {
                vec![]
            }
            Self::Sync { shown, stranger } => {
                let shown = |at: &u8| shown & (1 << at) != 0;
                vec![synced(truth, shown, stranger.as_ref())]
            }
            Self::Offline(picks) => offline(truth, picks).into_iter().collect(),
            Self::Online => {
                let any = !truth.offline.is_empty();
                any.then(|| Event::Online { cpus: truth.offline.to_string() }).into_iter().collect()
            }
            Self::Crash => vec![Event::Crash {}],
            Self::CrashAndSync => vec![Event::Crash {}, synced(truth, |_| true, None)],
            // What a node does that cannot even start is another story.
            Self::Reboot(_) if truth.nothing_shared() => vec![],
            Self::Reboot(records) => vec![Event::Reboot { records: *records }],
            Self::Config(which) => vec![Event::Config { set: config(truth, *which) }],
            Self::Reload(which) => vec![Event::Reload { set: of_strategies(config(truth, *which)) }],
            Self::Fail(what, on) => vec![Event::Fail { what: *what, on: *on }],
            Self::Spec(claim, how) => vec![Event::Spec { claim: uid(*claim), how: *how }],
            Self::Runtime(which) => {
                let nri = ["0.11.0", "0.12.0", "0.12.1", "0.12.3"][usize::from(which % 4)].to_owned();
                vec![Event::Runtime { nri }, synced(truth, |_| true, None)]
            }
            Self::Kubelet => {
                let held = truth.claims.values().filter(|claim| claim.cpus().is_some());
                let again = held.filter(|claim| claim.object.is_some());
                let again =
                    again.map(|claim| NewClaim { claim: claim.last.claim.clone(), ..NewClaim::default() });
                let claims = Some(again.collect());
                vec![Event::Kubelet {}, Event::Prepare(Prepare { claims, ..Prepare::default() })]
            }
            Self::Clock(which) => vec![jump(*which)],
        }
    }
}

/// A correction, a leap of hours or years, and what a machine sees that has slept.
fn jump(which: u8) -> Event {
    const YEAR: i64 = 366 * 24 * 3600;
    let (day, forward) = match which % 6 {
        0 => (-1, 0),
        1 => (3600, 0),
        2 => (-YEAR, 0),
        3 => (30 * YEAR, 0),
        4 => (600, 600),
        _ => (-3600, 24 * 3600),
    };
    Event::Clock { day, forward }
}

fn made(container: u8, claims: &[u8], forge: Forge, truth: &Truth) -> NewContainer {
    let mut given: Vec<String> = Vec::new();
    for claim in claims.iter().map(|claim| uid(*claim)) {
        if !given.contains(&claim) {
            given.push(claim);
        }
    }
    let says = |claim: u8, cpus: &str| vec![format!("DRA_CPUSET_{}={cpus}", uid(claim))];
    let env = match forge {
        Forge::Nothing => vec![],
        Forge::Others => vec!["DRA_CPUSETS=0-3".to_owned(), "A=b".to_owned()],
        Forge::Truly(claim) => {
            let cpus = truth.claims.get(&uid(claim)).and_then(|claim| claim.cpus());
            cpus.map(|cpus| says(claim, &cpus.to_string())).unwrap_or_default()
        }
        Forge::Falsely(claim) => says(claim, "0-1"),
        Forge::Unknown => vec!["DRA_CPUSET_nobody=0-3".to_owned()],
        Forge::Malformed => vec!["DRA_CPUSET_A=x".to_owned()],
    };
    NewContainer { container: name(container), pod: pod(container), claims: given, env }
}

fn synced(truth: &Truth, shown: impl Fn(&u8) -> bool, stranger: Option<&(u8, Vec<u8>, Forge)>) -> Event {
    let there = |at: &u8| truth.containers.contains_key(&name(*at));
    let mut containers: Vec<Synced> = (0..CONTAINERS)
        .filter(|at| there(at) && shown(at))
        .filter(|at| stranger.is_none_or(|(stranger, ..)| stranger != at))
        .map(|at| Synced::Named(name(at)))
        .collect();
    if let Some((container, claims, forge)) = stranger {
        let recorded = |claim: &&u8| {
            truth
                .claims
                .get(&uid(**claim))
                .is_some_and(|claim| matches!(&claim.hold, Hold::Held(held) if held.damage.is_none()))
        };
        let claims: Vec<u8> = claims.iter().filter(recorded).copied().collect();
        let container = made(*container, &claims, *forge, truth);
        containers
            .push(Synced::Described(Described { container, cpuset: Some(truth.machine.cpus.to_string()) }));
    }
    Event::Sync { containers }
}

fn offline(truth: &Truth, picks: &[u8]) -> Option<Event> {
    let running: Vec<u32> = truth.online().iter().collect();
    let picked: CpuSet = picks.iter().map(|pick| running[usize::from(*pick) % running.len()]).collect();
    let left = truth.allocatable().difference(&truth.machine.isolated).difference(&picked).len();
    (left > truth.floor()).then(|| Event::Offline { cpus: picked.to_string() })
}
