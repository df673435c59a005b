//! What calls of the built-in strategies cost on large machines, in fuel: about one unit an instruction, and the same
//! on every node. The largest machine that Linux knows is served within the default limit, and twice the CPUs cost
//! about twice as much.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu::config::{DeviceMode, GroupBy, LimitsConfig, StrategyConfig};
use dracpu::device;
use dracpu::strategy::{Catalogue, Limits, Loaded, Request, State};
use dracpu_cpuset::CpuSet;
use dracpu_tests::support::large;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Twice the CPUs may cost so much more, in tenths.
const MOST_GROWTH: u64 = 24;

fn options(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// The most fuel of opening the strategy and of one claim, over states and sizes.
fn cost(loaded: &Loaded, cpus: u32, by: GroupBy, of_claim: &Value) -> [u64; 2] {
    let topology = large::machine(cpus).unwrap();
    let reserved = CpuSet::from([0]);
    let groups = device::groups(&topology, DeviceMode::Grouped(by), &reserved);
    let mut opened = loaded.open(&topology, &reserved, &groups, &Map::new()).unwrap();
    let open = opened.last_fuel();
    let all = topology.online().difference(&reserved);
    // As after a while: of every core in three the first thread is held.
    let worn: CpuSet = all.iter().filter(|cpu| *cpu % 3 > 0 || *cpu > cpus / 2).collect();
    let mut allocate = 0;
    for free in [all, worn] {
        let in_group = u32::try_from(free.intersection_len(&groups[0].cpus)).unwrap();
        for count in [1, 2, 7, in_group / 3, in_group / 2 + 1, in_group] {
            let request = Request {
                name: "cpus".to_owned(),
                group: 0,
                count: count.max(1),
                cpuset: None,
                options: options(of_claim),
                pcie_roots: Vec::new(),
            };
            let state = State { free: free.clone(), others: Vec::new() };
            let decision = opened.decide(&[request], &state).unwrap();
            assert_eq!(decision.grants[0].cpus.len(), usize::try_from(count.max(1)).unwrap());
            allocate = allocate.max(opened.last_fuel());
        }
    }
    [open, allocate]
}

#[test]
fn the_largest_machine_is_served_within_the_default_fuel_and_the_cost_grows_as_the_cpus_do() {
    // Fuel is what is asked here: on a busy machine a call may wait for longer than a claim would.
    let limits = LimitsConfig { deadline: Some(Duration::from_secs(60)), ..LimitsConfig::default() };
    let entries = ["packed", "llc-first"].map(|name| StrategyConfig {
        name: name.to_owned(),
        path: None,
        digest: None,
        limits,
        options: Map::new(),
    });
    let catalogue = Catalogue::new(&entries).unwrap();
    for (strategy, of_claim) in [
        ("packed", json!({})),
        ("packed", json!({ "prefer-align-cpus-by-uncorecache": false })),
        ("packed", json!({ "distribute-cpus-across-cores": true })),
        ("llc-first", json!({})),
    ] {
        let loaded = catalogue.load(strategy).unwrap();
        for by in [GroupBy::NumaNode, GroupBy::Machine, GroupBy::Llc] {
            let costs: Vec<[u64; 2]> =
                [1024, 2048, 4096, 8192].map(|cpus| cost(&loaded, cpus, by, &of_claim)).into();
            let what = format!("{strategy} by {}, {of_claim}: open and allocate {costs:?}", by.name());
            println!("{what}");
            for (call, name) in ["open", "allocate"].iter().enumerate() {
                let most = costs[3][call];
                assert!(most < Limits::default().fuel, "{name}: {what}");
                // Caches as devices become more with the CPUs, and each is a set as wide as the machine.
                for twice in costs.windows(2).filter(|_| by != GroupBy::Llc) {
                    assert!(twice[1][call] * 10 <= twice[0][call] * MOST_GROWTH, "{name}: {what}");
                }
            }
        }
    }
}
