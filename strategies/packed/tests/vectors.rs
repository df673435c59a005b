//! Every case of `tests/vectors`: what the algorithm must choose, on 273 machines.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_strategy_packed::Layout;
use dracpu_strategy_packed::algorithm::{Placement, packed};
use dracpu_strategy_packed::distributed::{SearchBudget, distributed};
use dracpu_strategy_sdk::CpuSet;
use dracpu_strategy_sdk::testkit::{CpuRow, MachineSpec};
use flate2::read::GzDecoder;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

#[derive(Deserialize)]
struct Topology {
    id: String,
    cpus: Vec<(u32, u32, i64, u32, i64)>,
}

#[derive(Deserialize)]
struct Case {
    topology: String,
    function: String,
    strategy: String,
    #[serde(default)]
    prefer_l3: bool,
    #[serde(default)]
    group: usize,
    available: String,
    n: usize,
    result: Option<String>,
    error: Option<String>,
    corrected: Option<String>,
    #[serde(default)]
    known_defect: bool,
}

impl Case {
    /// The expected CPUs; none when the call must fail.
    fn expected(&self) -> Option<&str> {
        if self.known_defect { self.corrected.as_deref() } else { self.result.as_deref() }
    }
}

fn lines<T: for<'a> Deserialize<'a>>(name: &str) -> impl Iterator<Item = T> {
    let path = format!("{}/../../tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    let lines = BufReader::new(GzDecoder::new(File::open(path).unwrap())).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

fn layout(topology: &Topology) -> Layout {
    let row = |&(cpu, core_id, socket, numa, l3): &(u32, u32, i64, u32, i64)| CpuRow {
        cpu,
        core_id,
        socket,
        numa,
        l3: u32::try_from(l3).ok(),
    };
    Layout::of(&MachineSpec::of_rows(topology.cpus.iter().map(row)).build())
}

#[test]
fn every_case_gets_the_expected_cpus() {
    let layouts: HashMap<String, Layout> = lines::<Topology>("topologies.jsonl.gz")
        .map(|topology| (topology.id.clone(), layout(&topology)))
        .collect();
    let (mut unflagged, mut corrected, mut only_valid, mut most_steps) = (0, 0, 0, 0);
    let mut differences = Vec::new();
    for case in lines::<Case>("cases.jsonl.gz") {
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
        if case.error.as_deref() == Some("too_slow") {
            only_valid += 1;
            assert!(answer.is_some());
            continue;
        }
        *(if case.known_defect { &mut corrected } else { &mut unflagged }) += 1;
        most_steps = most_steps.max(SearchBudget::default().steps() - budget.steps());
        let answer = answer.map(|cpus| cpus.to_string());
        if answer.as_deref() != case.expected() {
            differences.push(format!(
                "{} {} {} l3 {} group {} n {} of {}: {answer:?} for {:?}",
                case.topology,
                case.function,
                case.strategy,
                case.prefer_l3,
                case.group,
                case.n,
                case.available,
                case.expected(),
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
