//! What the host sees of a strategy: the component's functions, called natively.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_strategy_sdk::bindings::exports::dracpu::strategy::policy as wit;
use dracpu_strategy_sdk::testkit::MachineSpec;
use dracpu_strategy_sdk::{
    Attribute, CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Machine, Offer, Request, State,
    Strategy, deny, guest, guest::Opened,
};
use std::cell::OnceCell;

/// Gives the lowest CPUs, blocks the highest.
struct Lowest {
    machine: Machine,
}

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    shared: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { shared: true }
    }
}

impl Strategy for Lowest {
    type Options = Options;

    fn describe() -> Description {
        Description {
            name: "lowest",
            version: "1.2.3",
            summary: "The lowest CPUs.",
            options_schema: r#"{"type":"object"}"#,
            explicit_cpuset: ExplicitCpuset::Accepted,
            publishes: &["dra.cpu/cpuIDs"],
            needs: &["other-claims"],
        }
    }

    fn open(machine: Machine, options: Options) -> Result<(Self, Vec<Offer>), Denial> {
        if !options.shared {
            return Err(deny!(Invalid, "shared is false"));
        }
        let attributes = vec![("example.com/a".to_owned(), Attribute::Bool(true))];
        Ok((Self { machine }, vec![Offer { attributes, ..Offer::of(4) }]))
    }

    fn allocate(&self, requests: &[Request<Options>], now: &State) -> Result<Decision, Denial> {
        let mut grants = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let free =
                now.free.intersection(&self.machine.group(request.group).map_err(|d| d.of_request(at))?.cpus);
            let cpus: CpuSet = free.iter().take(request.count as usize).collect();
            grants.push(Grant { cpus, blocked: now.free.last().into_iter().collect(), mems: vec![0] });
        }
        let shared = requests.iter().all(|request| request.options.shared);
        Ok(Decision { grants, join_shared_pool: shared, why: format!("{} others", now.others.len()) })
    }
}

fn request(group: u32, options: &str) -> wit::Request {
    wit::Request {
        name: "r".to_owned(),
        group,
        count: 2,
        cpuset: Some(vec![0b110]),
        options: options.to_owned(),
        pcie_roots: Vec::new(),
        extra: vec![("new".to_owned(), "unknown".to_owned())],
    }
}

fn state(free: Vec<u64>) -> wit::State {
    wit::State { free, others: Vec::new(), extra: Vec::new() }
}

fn opened() -> OnceCell<Opened<Lowest>> {
    let cell = OnceCell::new();
    let offers = guest::open(&cell, MachineSpec::even(1, 1, 2, 2).topology(), "{}").unwrap();
    assert_eq!((offers[0].capacity, offers[0].step), (4, 1));
    assert_eq!(offers[0].attributes, [("example.com/a".to_owned(), wit_attribute())]);
    cell
}

fn wit_attribute() -> dracpu_strategy_sdk::bindings::dracpu::strategy::types::Attribute {
    dracpu_strategy_sdk::bindings::dracpu::strategy::types::Attribute::Truth(true)
}

fn invalid(answer: Result<wit::Decision, wit::Denial>) -> (Option<u32>, String) {
    let denial = answer.unwrap_err();
    assert_eq!(denial.reason, dracpu_strategy_sdk::bindings::dracpu::strategy::types::Reason::Invalid);
    (denial.request, denial.message)
}

#[test]
fn the_description_is_passed_on() {
    let description = guest::describe::<Lowest>();
    assert_eq!((description.name.as_str(), description.version.as_str()), ("lowest", "1.2.3"));
    assert_eq!(description.publishes, ["dra.cpu/cpuIDs"]);
    assert_eq!(description.needs, ["other-claims"]);
}

#[test]
fn sets_positions_and_flags_are_passed_on() {
    let answer = guest::allocate(&opened(), vec![request(0, "{}")], state(vec![0b1110])).unwrap();
    assert_eq!(answer.grants[0].cpus, [0b110]);
    assert_eq!(answer.grants[0].blocked, [0b1000]);
    assert_eq!(answer.grants[0].mems, [0]);
    assert!(answer.join_shared_pool);
    let none =
        guest::allocate(&opened(), vec![request(0, r#"{"shared":false}"#)], state(Vec::new())).unwrap();
    assert_eq!(none.grants[0].cpus, [0u64; 0]);
    assert!(!none.join_shared_pool);
}

#[test]
fn each_request_counts_on_its_own_options_whatever_the_node_has() {
    let cell = opened();
    let shared = |options| {
        guest::allocate(&cell, vec![request(0, options)], state(vec![0b1110])).unwrap().join_shared_pool
    };
    assert!(shared("{}")); // as the node's
    assert!(shared("{ }"));
    assert!(!shared(r#"{ "shared": false }"#));
}

#[test]
fn calls_out_of_order_are_denied() {
    let closed = OnceCell::<Opened<Lowest>>::new();
    assert!(invalid(guest::allocate(&closed, Vec::new(), state(Vec::new()))).1.contains("before open"));
    let denial = guest::open(&opened(), MachineSpec::even(1, 1, 1, 1).topology(), "{}").unwrap_err();
    assert!(denial.message.contains("second time"), "{}", denial.message);
}

#[test]
fn a_denied_open_leaves_the_instance_closed() {
    let cell = OnceCell::<Opened<Lowest>>::new();
    let spec = MachineSpec::even(1, 1, 2, 2);
    assert!(guest::open(&cell, spec.topology(), r#"{"shared":false}"#).is_err());
    assert!(invalid(guest::allocate(&cell, Vec::new(), state(Vec::new()))).1.contains("before open"));
}

#[test]
fn input_that_breaks_the_contract_is_denied_by_name() {
    let cell = opened();
    let ask =
        |request| invalid(guest::allocate(&cell, vec![self::request(0, "{}"), request], state(vec![0b1111])));
    for (bad, words) in [
        (request(7, "{}"), "group 7 of 1"),
        (request(0, "{"), "cannot be read"),
        (request(0, "[true]"), "not a JSON object"),
        (request(0, r#"{"other":1}"#), "unknown field `other`"),
        (wit::Request { cpuset: Some(vec![1; 129]), ..request(0, "{}") }, "a CPU above 8191"),
    ] {
        let (request, message) = ask(bad);
        assert_eq!(request, Some(1));
        assert!(message.contains(words), "{message}");
    }
    let (_, message) = invalid(guest::allocate(&cell, vec![request(0, "{}")], state(vec![1; 129])));
    assert!(message.contains("the free set holds a CPU above 8191"), "{message}");
}

#[test]
fn a_topology_that_contradicts_itself_is_denied_by_name() {
    let spec = MachineSpec::even(1, 1, 2, 2);
    type Break = fn(&mut wit::Topology);
    let breaks: [(Break, &str); 6] = [
        (|topology| topology.cpus[1].socket = 3, "CPU 1 names socket 3, the topology has 1"),
        (|topology| topology.cpus[1].llc = Some(9), "CPU 1 names cache 9, the topology has 1"),
        (|topology| topology.cpus[2].core = u32::MAX, "CPU 2 names core"),
        (|topology| topology.cpus.swap(0, 1), "CPU 0 is out of order"),
        (|topology| topology.cpus[3].id = 8192, "CPU 8192 is out of order, or above 8191"),
        (|topology| topology.groups[0].cpus = vec![1; 129], "cpudevmachine holds a CPU above 8191"),
    ];
    for (make_wrong, words) in breaks {
        let mut topology = spec.topology();
        make_wrong(&mut topology);
        let denial = guest::open(&OnceCell::<Opened<Lowest>>::new(), topology, "{}").unwrap_err();
        assert!(denial.message.contains(words), "{}", denial.message);
    }
}
