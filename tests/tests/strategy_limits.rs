//! A component for every limit and every lie (`tests/guests`): each fails the one question that it
//! misbehaves at, in words of its own; the next question to the same strategy is answered.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod guests;

use dracpu::config::{DeviceMode, GroupBy, LimitsConfig, StrategyConfig};
use dracpu::device::{self, Group};
use dracpu::strategy::{Catalogue, Fault, Lie, Loaded, Opened, Request, Source, State, StrategyError};
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Topology, machine};
use guests::GUESTS;
use serde_json::Map;
use std::path::Path;
use std::time::{Duration, Instant};

/// Guests misbehave when they are asked for so many CPUs.
const UNLUCKY: u32 = 13;

/// A node with reserved CPUs: what a strategy is opened with.
struct Node {
    topology: Topology,
    reserved: CpuSet,
    groups: Vec<Group>,
}

impl Node {
    fn new() -> Self {
        let topology = machine::load("amd-ccd").unwrap().topology;
        let reserved = CpuSet::from([1]);
        let groups = device::groups(&topology, DeviceMode::Grouped(GroupBy::NumaNode), &reserved);
        Self { topology, reserved, groups }
    }

    /// The state when another claim holds the lowest CPU of the first group.
    fn state(&self) -> State {
        let mut free = self.topology.online().difference(&self.reserved);
        assert!(free.remove(self.held()));
        State { free, others: Vec::new() }
    }

    fn held(&self) -> u32 {
        self.groups[0].cpus.first().unwrap()
    }

    fn open(&self, guest: &str, limits: LimitsConfig) -> Opened {
        load(guest, limits).open(&self.topology, &self.reserved, &self.groups, &Map::new()).unwrap()
    }
}

fn load(guest: &str, limits: LimitsConfig) -> Loaded {
    let directory = tempfile::tempdir().unwrap();
    let config = configured(directory.path(), guest, limits);
    Catalogue::with_built_in([], &[config]).unwrap().load(guest).unwrap()
}

/// An entry of `strategies` for a guest, whose file lies in the directory.
fn configured(directory: &Path, guest: &str, limits: LimitsConfig) -> StrategyConfig {
    let path = directory.join(guest).with_extension("wasm");
    std::fs::write(&path, &GUESTS[guest]).unwrap();
    StrategyConfig { name: guest.to_owned(), path: Some(path), digest: None, limits, options: Map::new() }
}

fn request(name: &str, count: u32) -> Request {
    Request {
        name: name.to_owned(),
        group: 0,
        count,
        cpuset: None,
        options: Map::new(),
        pcie_roots: Vec::new(),
    }
}

/// Asks once unluckily, then twice as everybody does; the claims in between must not notice.
fn misbehaves_once(guest: &str, limits: LimitsConfig) -> StrategyError {
    let node = Node::new();
    let state = node.state();
    let mut opened = node.open(guest, limits);
    // What hand-written guests can answer.
    let count = if guest == "many-memories" { 0 } else { 4 };
    let before = opened.decide(&[request("a", count)], &state).unwrap();
    let error = opened.decide(&[request("unlucky", UNLUCKY), request("b", 1)], &state).unwrap_err();
    let after = opened.decide(&[request("a", count)], &state).unwrap();
    assert_eq!(before, after, "{guest}: a fault changed the next answer");
    assert_eq!(state, node.state(), "{guest}: the state given was touched");
    let text = error.to_string();
    assert!(text.starts_with(&format!("strategy {guest} 1.0.0 (sha256:")), "{text}");
    error
}

fn lie(guest: &str) -> Lie {
    let error = misbehaves_once(guest, LimitsConfig::default());
    assert_eq!(error.kind(), "bad-answer");
    match *error.fault {
        Fault::BadAnswer(lie) => lie,
        fault => panic!("{guest}: {fault}"),
    }
}

#[test]
fn an_honest_guest_is_believed() {
    let node = Node::new();
    let mut opened = node.open("honest", LimitsConfig::default());
    let decision = opened.decide(&[request("a", UNLUCKY), request("b", 2)], &node.state()).unwrap();
    assert_eq!(decision.grants[0].cpus.len(), 13);
    assert!(decision.grants[0].cpus.is_disjoint(&decision.grants[1].cpus));
    assert!((1..1_000_000).contains(&opened.last_fuel()), "{}", opened.last_fuel());
    assert_eq!(opened.offers().len(), node.groups.len());
}

#[test]
fn an_endless_loop_runs_out_of_fuel() {
    let error = misbehaves_once("endless-loop", LimitsConfig::default());
    assert_eq!(error.kind(), "out-of-fuel");
    assert!(error.to_string().contains("used up the 100000000 units of fuel"), "{error}");
}

#[test]
fn an_endless_loop_with_plenty_of_fuel_meets_the_deadline() {
    let started = Instant::now();
    let limits = LimitsConfig {
        fuel: Some(u64::MAX),
        deadline: Some(Duration::from_millis(500)),
        ..LimitsConfig::default()
    };
    let error = misbehaves_once("endless-loop", limits);
    assert_eq!(error.kind(), "deadline");
    assert!(error.to_string().contains("did not answer within 500ms"), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(500));
}

#[test]
fn a_memory_bomb_runs_out_of_memory() {
    let error = misbehaves_once("memory-bomb", LimitsConfig::default());
    assert_eq!(error.kind(), "memory");
    assert!(error.to_string().contains("67108864 are allowed"), "{error}");
}

#[test]
fn many_small_memories_are_counted_together() {
    let error = misbehaves_once("many-memories", LimitsConfig::default());
    assert_eq!(error.kind(), "memory");
}

#[test]
fn a_huge_answer_is_not_taken_over() {
    let error = misbehaves_once("huge-answer", LimitsConfig::default());
    assert_eq!(error.kind(), "bad-answer");
    assert!(error.to_string().contains("more than the 1048576 bytes of `limits.transferBytes`"), "{error}");
}

#[test]
fn a_deep_recursion_ends_with_the_stack() {
    let error = misbehaves_once("deep-recursion", LimitsConfig::default());
    assert_eq!(error.kind(), "trap");
    assert!(error.to_string().contains("crashed: wasm trap: call stack exhausted"), "{error}");
}

#[test]
fn a_panic_is_told_with_the_guests_last_words() {
    let error = misbehaves_once("panics", LimitsConfig::default());
    assert_eq!(error.kind(), "trap");
    let text = error.to_string();
    assert!(text.contains("crashed: wasm trap: wasm `unreachable` instruction executed"), "{text}");
    assert!(text.ends_with("its last log line: about to panic\\u{1b}[2J"), "{text}");
}

#[test]
fn a_crash_in_describe_is_a_load_error_and_the_next_strategy_loads() {
    let directory = tempfile::tempdir().unwrap();
    let bad = configured(directory.path(), "trap-in-describe", LimitsConfig::default());
    let good = configured(directory.path(), "honest", LimitsConfig::default());
    let catalogue = Catalogue::with_built_in([], &[bad, good]).unwrap();
    let text = catalogue.load("trap-in-describe").unwrap_err().to_string();
    assert!(text.starts_with("strategy trap-in-describe: "), "{text}");
    assert!(text.contains("cannot describe itself") && text.contains("unreachable"), "{text}");
    assert_eq!(catalogue.load("honest").unwrap().description().name, "honest");
}

#[test]
fn an_instance_that_wears_out_is_replaced_within_the_claim() {
    let node = Node::new();
    let state = node.state();
    let mut opened = node.open("ages", LimitsConfig::default());
    for _ in 0..3 {
        let decision = opened.decide(&[request("unlucky", UNLUCKY)], &state).unwrap();
        assert_eq!(decision.grants[0].cpus.len(), 13);
    }
}

#[test]
fn too_few_cpus_are_refused() {
    assert!(
        matches!(lie("too-few"), Lie::TooFew { request, asked: 13, cpus } if request == "unlucky" && cpus.len() == 12)
    );
}

#[test]
fn too_many_cpus_are_refused() {
    assert!(
        matches!(lie("too-many"), Lie::TooMany { request, asked: 13, cpus } if request == "unlucky" && cpus.len() == 14)
    );
}

#[test]
fn cpus_of_a_foreign_group_are_refused() {
    let foreign = Node::new().groups.last().unwrap().cpus.last().unwrap();
    let Lie::ForeignGroup { group, cpus, .. } = lie("foreign-group") else { panic!("another lie") };
    assert_eq!((group.as_str(), cpus), ("cpudevnuma000", CpuSet::from([foreign])));
}

#[test]
fn taken_cpus_are_refused() {
    let Lie::Taken { cpus, .. } = lie("taken") else { panic!("another lie") };
    assert_eq!(cpus, CpuSet::from([Node::new().held()]));
}

#[test]
fn reserved_cpus_are_refused() {
    let Lie::Reserved { cpus, .. } = lie("reserved") else { panic!("another lie") };
    assert_eq!(cpus, Node::new().reserved);
}

#[test]
fn cpus_given_twice_within_the_claim_are_refused() {
    // Each grant has the right size, so that the overlap alone is wrong.
    let node = Node::new();
    let mut opened = node.open("overlap", LimitsConfig::default());
    let twice = [request("unlucky", UNLUCKY), request("b", UNLUCKY)];
    let error = opened.decide(&twice, &node.state()).unwrap_err();
    assert!(
        matches!(*error.fault, Fault::BadAnswer(Lie::Overlap { ref cpus, .. }) if cpus.len() == 13),
        "{error}"
    );
    assert_eq!(opened.decide(&[request("a", 4)], &node.state()).unwrap().grants.len(), 1);
}

#[test]
fn a_request_answered_twice_is_refused() {
    assert_eq!(lie("duplicate-request"), Lie::GrantCount { asked: 2, given: 3 });
}

#[test]
fn files_that_are_no_components_are_refused_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let load = |bytes: &[u8], limits: LimitsConfig, digest: Option<&str>| {
        let path = directory.path().join("s.wasm");
        std::fs::write(&path, bytes).unwrap();
        let digest = digest.map(str::to_owned);
        let config = StrategyConfig {
            name: "honest".to_owned(),
            path: Some(path),
            digest,
            limits,
            options: Map::new(),
        };
        Catalogue::with_built_in([], &[config]).unwrap().load("honest").map(|_| ()).unwrap_err().to_string()
    };
    let none = LimitsConfig::default();
    let module = wat::parse_str("(module)").unwrap();
    assert!(load(&module, none, None).contains("wasm-tools component new"));
    assert!(load(b"\x7fELF", none, None).contains("not a valid WebAssembly component"));
    assert!(
        load(&wat::parse_str("(component)").unwrap(), none, None)
            .contains("does not fit this host's strategy interface")
    );
    let newer = r#"(component (import "dracpu:strategy/log@0.2.0" (instance (export "write" (func)))))"#;
    let said = load(&wat::parse_str(newer).unwrap(), none, None);
    assert!(said.contains("it is built for dracpu:strategy/log@0.2.0; build it with the SDK"), "{said}");
    let foreign = wat::parse_str(r#"(component (import "wasi:filesystem/types@0.2.0" (instance)))"#).unwrap();
    assert!(load(&foreign, none, None).contains("imports `wasi:filesystem/types@0.2.0`"));
    // What the Rust standard library imports is no fault of the guest's; that it exports nothing is.
    let standard = r#"(component (import "wasi:io/error@0.2.6" (instance (export "error" (type (sub resource)))))
        (import "wasi:cli/exit@0.2.6" (instance (export "exit" (func (param "status" (result)))))))"#;
    assert!(load(&wat::parse_str(standard).unwrap(), none, None).contains("does not fit this host's"));
    let small = LimitsConfig { component_bytes: Some(1000), ..none };
    assert!(load(&GUESTS["honest"], small, None).contains("1000 are allowed"));
    assert!(load(&GUESTS["honest"], none, Some("sha256:00")).contains("the configuration demands sha256:00"));
    assert!(load(&GUESTS["panics"], none, None).contains("calls itself `panics`"));
}

#[test]
fn a_built_in_strategy_that_was_taken_away_fails_by_name() {
    let catalogue = Catalogue::with_built_in([("honest", GUESTS["honest"].clone().into())], &[]).unwrap();
    assert_eq!(catalogue.load("honest").unwrap().description().version, "1.0.0");
    let text = catalogue.load("packed").unwrap_err().to_string();
    assert!(text.starts_with("strategy packed: there is none of this name"), "{text}");
    assert!(text.contains("have honest"), "{text}");
}

#[test]
fn a_configured_strategy_takes_the_place_of_a_built_in_one_of_the_same_name() {
    let directory = tempfile::tempdir().unwrap();
    let config = configured(directory.path(), "honest", LimitsConfig::default());
    let source = Source::File(config.path.clone().unwrap());
    let built_in = [("honest", b"damaged".to_vec().into())];
    let catalogue = Catalogue::with_built_in(built_in, &[config]).unwrap();
    assert_eq!(catalogue.list().collect::<Vec<_>>(), [("honest", source.clone())]);
    assert_eq!(catalogue.load("honest").unwrap().source(), &source);
}

#[test]
fn a_machine_that_cannot_run_an_instance_is_not_said_of_the_strategy() {
    let dracpu = dracpu_tests::support::daemon::dracpu_bin().unwrap();
    let run = |verb: &str| {
        // Less address space than one memory of an instance reserves.
        let script = format!("ulimit -v 4000000; exec \"$0\" {verb} </dev/null");
        std::process::Command::new("bash").args(["-c", &script]).arg(&dracpu).output().unwrap()
    };
    for (verb, code) in [
        ("strategy inspect packed", 1),
        ("strategy decide --strategy packed --machine two-socket", 1),
        ("slices --machine two-socket", 64),
    ] {
        let output = run(verb);
        let words = [output.stdout, output.stderr].concat();
        let words = String::from_utf8_lossy(&words);
        assert_eq!(output.status.code(), Some(code), "{verb}: {words}");
        assert!(words.contains("this host cannot run an instance of it: mmap failed"), "{verb}: {words}");
        assert!(words.contains("ulimit -v") && !words.contains("transferBytes"), "{verb}: {words}");
    }
}

#[test]
fn an_even_split_over_sixty_four_numa_nodes_stays_within_the_default_limits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nodes.yaml");
    std::fs::write(&path, "shape: socket:2 numa:32(4G) l3:1(16M) core:4 thread:2\n").unwrap();
    let topology = machine::load(path.to_str().unwrap()).unwrap().topology;
    assert_eq!(topology.numa_nodes.len(), 64);
    let groups = device::groups(&topology, DeviceMode::Grouped(GroupBy::Machine), &CpuSet::new());
    let packed = Catalogue::new(&[]).unwrap().load("packed").unwrap();
    let mut opened = packed.open(&topology, &CpuSet::new(), &groups, &Map::new()).unwrap();
    let online = topology.online();
    let taken: [fn(u32) -> bool; 3] = [|_| false, |cpu| cpu % 5 == 0, |cpu| cpu * cpu % 31 < 9];
    let mut most_fuel = 0;
    for taken in taken {
        let free: CpuSet = online.iter().filter(|cpu| !taken(*cpu)).collect();
        let state = State { free: free.clone(), others: Vec::new() };
        for whole_cores in [false, true] {
            for count in [2, 8, 30, 64, 66, 100, 130, 200, 298] {
                let options =
                    serde_json::json!({"distribute-cpus-across-numa": true, "full-pcpus-only": whole_cores});
                let options = options.as_object().unwrap().clone();
                let asked = Request { options, ..request("r", count) };
                match opened.decide(&[asked], &state) {
                    Ok(decision) => {
                        assert_eq!(decision.grants[0].cpus.len(), usize::try_from(count).unwrap())
                    }
                    Err(error) => assert_eq!(error.kind(), "denied", "{error}"),
                }
                most_fuel = most_fuel.max(opened.last_fuel());
            }
        }
    }
    assert!(most_fuel < 50_000_000, "{most_fuel} leaves too little of the 10^8 for larger machines");
}
