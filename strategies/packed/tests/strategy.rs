//! The strategy as the host sees it: requests and options in, grants or denials out.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_strategy_packed::Packed;
use dracpu_strategy_sdk::testkit::{self, CpuRow, MachineSpec};
use dracpu_strategy_sdk::{CpuSet, Decision, Denial, Machine, Offer, Reason, State, Strategy};
use std::time::{Duration, Instant};

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// Four cores of two threads: (0,4) (1,5) (2,6) (3,7).
fn small() -> MachineSpec {
    MachineSpec::even(1, 1, 4, 2)
}

/// One NUMA node; cores given as lists of threads.
fn cores(lists: &[&str]) -> MachineSpec {
    let row = |(core_id, cpu)| CpuRow { cpu, core_id, socket: 0, numa: 0, l3: Some(0) };
    MachineSpec::of_rows((0..).zip(lists).flat_map(|(core, list)| {
        let cpus: Vec<u32> = cpus(list).iter().collect();
        cpus.into_iter().map(move |cpu| row((core, cpu)))
    }))
}

/// Asks for several requests of the first group at once.
fn ask_all(machine: &Machine, free: &str, options: &str, counts: &[u32]) -> Result<Decision, Denial> {
    let (strategy, _) = testkit::open::<Packed>(machine.clone(), "{}")?;
    let requests = counts
        .iter()
        .map(|count| testkit::request::<Packed>(*count, options))
        .collect::<Result<Vec<_>, _>>()?;
    let state = State { free: cpus(free), others: Vec::new() };
    let decision = strategy.allocate(&requests, &state)?;
    testkit::check_decision(machine, &requests, &state, &decision).unwrap();
    Ok(decision)
}

fn ask(machine: &Machine, free: &str, options: &str, count: u32) -> Result<CpuSet, Denial> {
    ask_all(machine, free, options, &[count]).map(|decision| decision.grants[0].cpus.clone())
}

fn refusal(machine: &Machine, free: &str, options: &str, count: u32) -> (Reason, String) {
    let denial = ask(machine, free, options, count).unwrap_err();
    assert_eq!(denial.request, Some(0));
    (denial.reason, denial.message)
}

const WHOLE: &str = r#"{"full-pcpus-only":true}"#;
const NUMA: &str = r#"{"distribute-cpus-across-numa":true,"prefer-align-cpus-by-uncorecache":false}"#;

#[test]
fn a_core_with_a_reserved_or_taken_thread_is_no_whole_core() {
    let p_cores: Vec<String> = (0..8).map(|core| format!("{}-{}", 2 * core, 2 * core + 1)).collect();
    let e_cores: Vec<String> = (16..28).map(|cpu| cpu.to_string()).collect();
    let all: Vec<&str> = p_cores.iter().chain(&e_cores).map(String::as_str).collect();
    let machine = cores(&all).reserved(cpus("0")).build();
    assert!(ask(&machine, "1-27", "{}", 2).unwrap().is_subset(&cpus("2-27")));
    assert!(ask(&machine, "1,3-27", "{}", 2).unwrap().is_subset(&cpus("4-27")));
    assert_eq!(ask(&machine, "1-27", "{}", 26).unwrap(), cpus("2-27"));
    assert_eq!(ask(&machine, "1-15", "{}", 4).unwrap().intersection_len(&cpus("1")), 0);
}

#[test]
fn requests_of_one_claim_see_what_earlier_ones_took() {
    let machine = MachineSpec::even(1, 1, 8, 2).build();
    let decision = ask_all(&machine, "0-15", "{}", &[4, 4]).unwrap();
    assert_eq!(decision.grants[0].cpus, cpus("0-1,8-9"));
    assert_eq!(decision.grants[1].cpus, cpus("2-3,10-11"));
    assert_eq!(
        decision.why,
        "r: 4 CPUs packed into 2 cores of 1 NUMA node; r: 4 CPUs packed into 2 cores of 1 NUMA node"
    );
    let denial = ask_all(&machine, "0-15", "{}", &[10, 7]).unwrap_err();
    assert_eq!((denial.reason, denial.request), (Reason::NotEnough, Some(1)));
}

#[test]
fn too_many_are_refused_with_the_numbers() {
    let machine = small().build();
    assert_eq!(
        refusal(&machine, "0-2", "{}", 4),
        (
            Reason::NotEnough,
            "4 CPUs asked of cpudevmachine, 3 free; ask for at most 3, or wait until other claims end"
                .to_owned()
        )
    );
}

#[test]
fn nothing_asked_is_nothing_given() {
    assert_eq!(ask(&small().build(), "0-7", "{}", 0), Ok(CpuSet::new()));
    assert_eq!(ask(&small().build(), "", WHOLE, 0), Ok(CpuSet::new()));
}

#[test]
fn whole_cores_only_never_halves_a_core() {
    let machine = small().build();
    let (reason, message) = refusal(&machine, "0-7", WHOLE, 3);
    assert_eq!(reason, Reason::Invalid);
    assert!(message.contains("a multiple of 2, such as 2"), "{message}");
    assert_eq!(ask(&machine, "0-5", WHOLE, 4).unwrap(), cpus("0-1,4-5"));
    let (reason, message) = refusal(&machine, "0-5", WHOLE, 6);
    assert_eq!(reason, Reason::NoFit);
    assert!(message.contains("6 CPUs free, 4 of them on cores that are free with all threads"), "{message}");
}

#[test]
fn on_mixed_cores_whole_cores_are_found_where_there_are_some() {
    let machine = cores(&["0-1", "2-3", "4", "5-7"]).build();
    assert_eq!(ask(&machine, "0-7", WHOLE, 1).unwrap(), cpus("4"));
    assert_eq!(ask(&machine, "0,2-7", WHOLE, 5).unwrap(), cpus("2-3,5-7"));
    assert_eq!(ask(&machine, "1-7", WHOLE, 3).map(|cpus| machine.whole_cores(&cpus).len()), Ok(3));
    assert_eq!(ask(&machine, "0-3,5-7", WHOLE, 7).unwrap(), cpus("0-3,5-7"));
    let (reason, message) = refusal(&machine, "0-3", WHOLE, 3);
    assert_eq!(reason, Reason::NoFit);
    assert!(message.contains("do not add up"), "{message}");
}

#[test]
fn offers_count_what_claims_can_hold() {
    let offers = |spec: &MachineSpec, options| {
        let (_, offers) = testkit::open::<Packed>(spec.build(), options).unwrap();
        offers.iter().map(|Offer { capacity, step, .. }| (*capacity, *step)).collect::<Vec<_>>()
    };
    let reserved = small().reserved(cpus("1"));
    assert_eq!(offers(&reserved, "{}"), [(7, 1)]);
    assert_eq!(offers(&reserved, WHOLE), [(6, 2)]);
    assert_eq!(offers(&cores(&["0-1", "2"]), WHOLE), [(3, 1)]);
    let isolated = small().isolated(cpus("2-3,6"));
    assert_eq!(offers(&isolated, "{}"), [(5, 1)]);
    assert_eq!(offers(&isolated, WHOLE), [(4, 2)]);
    assert_eq!(offers(&isolated, r#"{"isolated":"include"}"#), [(8, 1)]);
    assert_eq!(offers(&isolated, r#"{"isolated":"only"}"#), [(3, 1)]);
}

#[test]
fn isolated_cpus_are_for_those_who_ask() {
    let machine = MachineSpec::even(1, 1, 8, 1).isolated(cpus("4-7")).build();
    assert!(ask(&machine, "0-7", "{}", 3).unwrap().is_subset(&cpus("0-3")));
    assert_eq!(ask(&machine, "0-7", r#"{"isolated":"only"}"#, 2).unwrap(), cpus("4-5"));
    assert_eq!(ask(&machine, "0-7", r#"{"isolated":"include"}"#, 8).unwrap(), cpus("0-7"));
    let (reason, message) = refusal(&machine, "3-7", "{}", 2);
    assert_eq!(reason, Reason::NotEnough);
    assert!(message.contains("1 free without isolated ones"), "{message}");
    assert!(message.contains("set the option isolated to include"), "{message}");
}

#[test]
fn cpus_near_the_matched_pcie_root_come_first() {
    let machine = MachineSpec::even(1, 1, 8, 1)
        .pcie_root("pci0000:00", cpus("0-3"))
        .pcie_root("pci0000:40", cpus("4-7"))
        .build();
    let (strategy, _) = testkit::open::<Packed>(machine, "{}").unwrap();
    let cases: [(&str, u32, &[usize], &str, &str); 5] = [
        ("0-7", 2, &[1], "4-5", "all local to the claim's PCIe root"),
        ("0-7", 2, &[0], "0-1", "all local"),
        ("0-7", 6, &[1], "0-5", "too few are free near"),
        ("0-7", 3, &[0, 1], "0-2", "all local"),
        ("0-3,7", 2, &[1], "0-1", "too few are free near"),
    ];
    for (free, count, roots, expected, why) in cases {
        let mut request = testkit::request::<Packed>(count, "{}").unwrap();
        request.pcie_roots = roots.to_vec();
        let state = State { free: cpus(free), others: Vec::new() };
        let decision = strategy.allocate(&[request], &state).unwrap();
        assert_eq!(decision.grants[0].cpus, cpus(expected), "{count} of {free}");
        assert!(decision.why.contains(why), "{}", decision.why);
    }
}

#[test]
fn what_no_single_numa_node_has_comes_from_several() {
    let machine = MachineSpec::even(1, 2, 8, 1).build();
    assert_eq!(ask(&machine, "0-3,8-11", "{}", 8).unwrap(), cpus("0-3,8-11"));
    assert_eq!(ask(&machine, "0-3,8-11", NUMA, 8).unwrap(), cpus("0-3,8-11"));
    assert_eq!(ask(&machine, "0-5,8-13", NUMA, 8).unwrap().intersection_len(&cpus("0-7")), 4);
    assert_eq!(refusal(&machine, "0-3,8-11", NUMA, 9).0, Reason::NotEnough);
}

#[test]
fn empty_numa_nodes_do_not_count() {
    let spec = MachineSpec::even(2, 1, 8, 1);
    let many = (2..34).fold(spec, MachineSpec::empty_numa_node).build();
    assert_eq!(ask(&many, "0-15", NUMA, 8).unwrap(), cpus("0-7"));
    assert_eq!(ask(&many, "0-5,8-13", NUMA, 8).unwrap(), cpus("0-3,8-11"));
}

#[test]
fn sixty_four_numa_nodes_are_split_evenly_and_soon() {
    let machine = MachineSpec::even(2, 32, 2, 2).build();
    let half_used: CpuSet = (0..256).filter(|cpu| cpu % 5 != 0).collect();
    for free in ["0-255".to_owned(), half_used.to_string()] {
        for count in [1, 7, 64, 65, 100, 129, 200] {
            let started = Instant::now();
            let given = ask(&machine, &free, NUMA, count).unwrap();
            assert!(started.elapsed() < Duration::from_secs(5), "{count}: {:?}", started.elapsed());
            let touched = machine.numa_nodes.iter().map(|node| node.cpus.intersection_len(&given));
            let sizes: Vec<usize> = touched.filter(|size| *size > 0).collect();
            let spread = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
            assert!(spread <= 1, "{count}: {sizes:?}");
        }
    }
}

#[test]
fn machines_without_caches_or_numa_work() {
    let row = |cpu| CpuRow { cpu, core_id: cpu, socket: -1, numa: 0, l3: None };
    let machine = MachineSpec::of_rows((0..4).map(row)).build();
    for options in ["{}", NUMA, WHOLE, r#"{"distribute-cpus-across-cores":true}"#] {
        assert_eq!(ask(&machine, "1-3", options, 2).unwrap(), cpus("1-2"));
    }
}

#[test]
fn bad_options_are_refused_at_open_too() {
    let both = r#"{"distribute-cpus-across-numa":true,"distribute-cpus-across-cores":true}"#;
    for options in [both, r#"{"align-by-socket":true}"#, r#"{"isolated":"some"}"#, "[]", ""] {
        let denial = testkit::open::<Packed>(small().build(), options).map(|_| ()).unwrap_err();
        assert_eq!(denial.reason, Reason::Invalid, "{options}");
    }
}

#[test]
fn on_any_machine_the_answer_is_valid_and_the_same_again() {
    let spread = r#"{"distribute-cpus-across-cores":true}"#;
    let both = r#"{"distribute-cpus-across-numa":true,"full-pcpus-only":true}"#;
    let isolated = r#"{"isolated":"only"}"#;
    let options =
        ["{}", r#"{"prefer-align-cpus-by-uncorecache":false}"#, spread, NUMA, WHOLE, both, isolated];
    testkit::check_strategy::<Packed>(0..400, &options).unwrap();
}
