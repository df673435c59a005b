//! Claims that name their CPUs, good and bad.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_strategy_external::External;
use dracpu_strategy_sdk::testkit::{self, Claim, CpuRow, MachineSpec, cpus, free};
use dracpu_strategy_sdk::{Decision, Denial, Machine, Reason};
use std::collections::BTreeSet;

/// Two NUMA nodes of four CPUs; CPU 3 offline, CPU 0 reserved, CPU 7 isolated.
fn machine() -> Machine {
    let row = |cpu| CpuRow { cpu, core_id: cpu, socket: 0, numa: cpu / 4, l3: None };
    MachineSpec::of_rows((0..8).map(row))
        .offline(&cpus("3"))
        .reserved(cpus("0"))
        .isolated(cpus("7"))
        .group("cpudevnuma000", cpus("1-2"))
        .group("cpudevnuma001", cpus("4-7"))
        .build()
}

fn claim() -> Claim {
    Claim::with("{}")
}

fn decide(claim: &Claim, now: &str) -> Result<Decision, Denial> {
    claim.decide::<External>(&machine(), "{}", &free(now))
}

#[test]
fn the_named_cpus_are_given_isolated_ones_too() {
    let claim = claim().request(2).of_group(1).cpuset(cpus("6-7")).request(1).cpuset(cpus("2"));
    let decision = decide(&claim, "1-2,4-7").unwrap();
    assert_eq!(decision.grants[0].cpus, cpus("6-7"));
    assert_eq!(decision.why, "CPUs 2,6-7 as the claim names them");
}

#[test]
fn isolated_cpus_are_in_no_capacity() {
    let (_, offers) = testkit::open::<External>(machine(), "{}").unwrap();
    assert_eq!(offers.iter().map(|offer| offer.capacity).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn each_fault_has_a_sentence_of_its_own_that_names_the_cpus() {
    let cases = [
        (0, 3, Some("4-5"), Reason::Invalid, "cpuset 4-5 has 2 CPUs, but the request consumes 3"),
        (0, 1, None, Reason::Invalid, "consumes 1 of cpudevnuma000 but the claim names no CPUs"),
        (0, 1, Some("0"), Reason::Invalid, "CPU 0 is reserved for the system"),
        (0, 1, Some("3"), Reason::Invalid, "CPU 3 is offline on this node"),
        (0, 2, Some("98-99"), Reason::Invalid, "this node has no CPUs 98-99"),
        (0, 1, Some("5"), Reason::Invalid, "CPU 5 is outside the allocated device cpudevnuma000"),
        (
            0,
            1,
            Some("2"),
            Reason::NoFit,
            "CPU 2 is already held by another claim; pick from 1 of cpudevnuma000",
        ),
        (
            1,
            2,
            Some("4-5"),
            Reason::Invalid,
            "overlaps the cpuset of another request of the same claim (CPU 4)",
        ),
    ];
    let mut sentences = BTreeSet::new();
    for (group, count, cpuset, reason, words) in cases {
        let mut claim = claim().request(1).of_group(1).cpuset(cpus("4")).request(count).of_group(group);
        if let Some(list) = cpuset {
            claim = claim.cpuset(cpus(list));
        }
        let denial = decide(&claim, "1,4-7").unwrap_err();
        assert_eq!((denial.reason, denial.request), (reason, Some(1)), "{}", denial.message);
        assert!(denial.message.contains(words), "{}", denial.message);
        sentences.insert(denial.message);
    }
    assert_eq!(sentences.len(), 8);
}

#[test]
fn nothing_asked_is_nothing_given() {
    let decision = decide(&claim().request(0), "").unwrap();
    assert!(decision.grants[0].cpus.is_empty());
}

#[test]
fn on_any_machine_the_answer_is_valid_and_the_same_again() {
    testkit::check_strategy::<External>(0..300, &["{}"]).unwrap();
}
