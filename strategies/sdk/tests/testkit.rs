//! What an author's test is written with.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_strategy_sdk::testkit::{Claim, ISOLATIONS, MachineSpec, cpus, every_wish, free};
use dracpu_strategy_sdk::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Machine, NoOptions, Offer, Reason, Request, State,
    Strategy, Wishes,
};
use std::panic::catch_unwind;

/// Gives each request the CPUs that it names.
struct Trusting;

impl Strategy for Trusting {
    type Options = NoOptions;

    fn describe() -> Description {
        Description {
            name: "trusting",
            version: "1.0.0",
            summary: "What is asked for.",
            options_schema: r#"{"type":"object"}"#,
            explicit_cpuset: ExplicitCpuset::Required,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, _: NoOptions) -> Result<(Self, Vec<Offer>), Denial> {
        Ok((Self, machine.groups.iter().map(|group| Offer::of_all(&group.cpus)).collect()))
    }

    fn allocate(&self, requests: &[Request<NoOptions>], _: &State) -> Result<Decision, Denial> {
        let grants =
            requests.iter().map(|request| request.cpuset.clone().unwrap_or_default().into()).collect();
        Ok(Decision { grants, join_shared_pool: false, why: String::new() })
    }
}

#[test]
fn what_is_said_of_a_request_is_of_the_last_one() {
    let claim = Claim::with("{}").request(1).request(2).of_group(1).cpuset(cpus("6-7")).near(&[0]);
    let [first, second] = &claim.requests::<NoOptions>().unwrap()[..] else { panic!("{claim:?}") };
    assert_eq!((&*first.name, first.count, first.group, &first.cpuset), ("r1", 1, 0, &None));
    assert_eq!((&*second.name, second.count, second.group), ("r2", 2, 1));
    assert_eq!((second.cpuset.clone(), &*second.pcie_roots), (Some([6, 7].into()), &[0][..]));
    let denial = Claim::with(r#"{"odd":1}"#).request(1).requests::<NoOptions>().unwrap_err();
    assert_eq!(denial.reason, Reason::Invalid);
}

#[test]
fn an_answer_that_the_host_would_refuse_ends_the_test() {
    let machine = MachineSpec::even(1, 1, 4, 1).build();
    let decide = |count, list: &str| {
        let claim = Claim::with("{}").request(count).cpuset(cpus(list));
        claim.decide::<Trusting>(&machine, "{}", &free("0-2")).unwrap().grants[0].cpus.clone()
    };
    assert_eq!(decide(2, "1-2"), CpuSet::from([1, 2]));
    for (count, list, words) in [(2, "1", "1 CPUs (1) for 2 asked"), (1, "3", "3 are given but not free")] {
        let said = catch_unwind(|| decide(count, list)).unwrap_err();
        let said = said.downcast::<String>().unwrap();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn shared_options_are_what_they_are_called() {
    let wishes = |text: &str| serde_json::from_str::<Wishes>(text).unwrap();
    let all = every_wish(&["", r#","own":true"#]);
    assert!(all.len() == 144 && all.iter().filter(|text| text.ends_with(r#","own":true}"#)).count() == 72);
    let ways: Vec<_> = ISOLATIONS
        .iter()
        .map(|way| wishes(&format!("{{{way}}}")))
        .map(|wishes| (wishes.isolate as usize, wishes.threads as usize))
        .collect();
    assert_eq!(ways, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
}
