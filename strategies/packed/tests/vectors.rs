//! Every case of `tests/vectors`: what the algorithm must choose, on 273 machines.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_strategy_packed::Layout;
use dracpu_strategy_packed::algorithm::{Placement, packed};
use dracpu_strategy_packed::distributed::{SearchBudget, distributed};
use dracpu_strategy_sdk::CpuSet;
use dracpu_strategy_sdk::testkit::{CpuRow, MachineSpec};
use std::collections::HashMap;

#[path = "../../../tests/vectors/reader.rs"]
mod reader;
use reader::{Answer, Case, Machine, lines};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors");

fn layout(machine: &Machine) -> Layout {
    Layout::of(&MachineSpec::of_rows(machine.cpus.iter().copied().map(CpuRow::from)).build())
}

#[test]
fn every_case_gets_the_expected_cpus() {
    let layouts: HashMap<String, Layout> = lines(VECTORS, "topologies.jsonl.gz")
        .map(|machine: Machine| (machine.id.clone(), layout(&machine)))
        .collect();
    let (mut unflagged, mut corrected, mut only_valid, mut most_steps) = (0, 0, 0, 0);
    let mut differences = Vec::new();
    for case in lines::<Case>(VECTORS, "cases.jsonl.gz") {
        let layout = &layouts[&case.topology];
        let available: CpuSet = case.available.parse().unwrap();
        let placement = if case.strategy == "spread" { Placement::Spread } else { Placement::Packed };
        let mut budget = SearchBudget::default();
        let answer = if case.function == "packed" {
            packed(layout, &available, case.n, placement, case.prefer_l3)
        } else {
            distributed(layout, &available, case.n, case.group, placement, &mut budget)
        };
        let answer = answer.inspect(|cpus| assert!(cpus.len() == case.n && cpus.is_subset(&available)));
        let Some(expected) = case.expected() else {
            only_valid += 1;
            assert!(answer.is_some());
            continue;
        };
        *(if case.known_defect { &mut corrected } else { &mut unflagged }) += 1;
        most_steps = most_steps.max(SearchBudget::default().steps() - budget.steps());
        let answer = answer.map_or(Answer::NotEnough, |cpus| Answer::Cpus(cpus.to_string()));
        if answer != expected {
            differences.push(format!(
                "{} {} {} l3 {} group {} n {} of {}: {answer:?} for {expected:?}",
                case.topology,
                case.function,
                case.strategy,
                case.prefer_l3,
                case.group,
                case.n,
                case.available,
            ));
        }
    }
    println!(
        "{unflagged} unflagged, {corrected} corrected, {only_valid} only valid; at most {most_steps} steps"
    );
    for difference in differences.iter().take(5) {
        println!("{difference}");
    }
    assert_eq!(differences.len(), 0);
    assert_eq!((unflagged, corrected, only_valid), (44_477, 3_870, 1));
}
