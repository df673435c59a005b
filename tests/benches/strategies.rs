//! The built-in strategies as the daemon runs them: loaded as components, kept open, asked claim by claim.
//!
//! First the calls of `tests/vectors/bench.jsonl.gz`: the component beside the same functions run natively, and
//! beside the CPU time that the original took for them on another machine. `component` has the host's own work in it:
//! conversion, and the verification of the answer. Then large machines: opening, and a claim. `make bench`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its table"
)]

use criterion::Criterion;
use dracpu::config::{DeviceMode, GroupBy};
use dracpu::device;
use dracpu::strategy::{Catalogue, Loaded, Opened, Request, State};
use dracpu_cpuset::CpuSet;
use dracpu_strategy_packed::Packed;
use dracpu_strategy_sdk::bindings::exports::dracpu::strategy::policy as wit;
use dracpu_strategy_sdk::guest;
use dracpu_strategy_sdk::testkit::{CpuRow, MachineSpec};
use dracpu_tests::support::large;
use dracpu_topology::{Topology, machine};
use serde_json::{Map, Value, json};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Write as _;

#[path = "../vectors/timing.rs"]
mod timing;
use timing::{Call, Machine, Table, machines};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors");

fn main() {
    let mut criterion = timing::criterion().configure_from_args();
    let catalogue = Catalogue::new(&[]).unwrap();
    golden(&mut criterion, &catalogue.load("packed").unwrap());
    for strategy in ["packed", "llc-first"] {
        largest(&mut criterion, strategy, &catalogue.load(strategy).unwrap());
    }
    criterion.final_summary();
}

/// The options of `packed` that stand for a call; none when none do.
fn options(call: &Call) -> Option<Map<String, Value>> {
    let options = match (call.function.as_str(), call.group) {
        ("packed", _) if call.prefer_l3 => json!({}),
        ("packed", _) => json!({ "prefer-align-cpus-by-uncorecache": false }),
        _ if call.state == "empty" => {
            json!({ "distribute-cpus-across-numa": true, "full-pcpus-only": true })
        }
        _ => return None, // whole cores are asked, and the original takes halves too
    };
    options.as_object().cloned()
}

fn golden(criterion: &mut Criterion, loaded: &Loaded) {
    let mut table = Table::new(&["native", "component"]);
    for machine in machines(VECTORS) {
        let topology = topology(&machine);
        // As the kubelet has them: the node's.
        let mut by_options = BTreeMap::new();
        for call in &machine.calls {
            let Some(options) = options(call) else { continue };
            let text = Value::Object(options.clone()).to_string();
            let (opened, native) = by_options.entry(text.clone()).or_insert_with(|| {
                (open(loaded, &topology, GroupBy::Machine, &options), native(&machine, &text))
            });
            let free: CpuSet = call.available.parse().unwrap();
            let request = request(call.n);
            let record = wit::Request {
                name: request.name.clone(),
                group: 0,
                count: request.count,
                cpuset: None,
                options: text,
                pcie_roots: Vec::new(),
                extra: Vec::new(),
            };
            let state = State { free, others: Vec::new() };
            let requests = [request];
            let mut as_component = || opened.decide(&requests, &state).unwrap();
            assert_eq!(as_component().grants.first().unwrap().cpus.to_string(), call.result);
            let natively = || {
                let now =
                    wit::State { free: state.free.words().to_vec(), others: Vec::new(), extra: Vec::new() };
                guest::allocate(native, vec![record.clone()], now).unwrap()
            };
            assert_eq!(
                natively().grants.first().unwrap().cpus,
                as_component().grants.first().unwrap().cpus.words()
            );
            table.measure(
                criterion,
                &machine,
                call,
                &mut [&mut || _ = black_box(natively()), &mut || _ = black_box(as_component())],
            );
        }
    }
    table.print();
}

/// Twice the CPUs should take about twice as long.
fn largest(criterion: &mut Criterion, name: &str, loaded: &Loaded) {
    for cpus in [1024, 2048, 4096, 8192] {
        let topology = large::machine(cpus).unwrap();
        let mut times = Vec::new();
        times.extend(timing::time(criterion, &format!("{name}, {cpus} CPUs/open"), || {
            open(loaded, &topology, GroupBy::NumaNode, &Map::new())
        }));
        for by in [GroupBy::NumaNode, GroupBy::Machine] {
            let mut opened = open(loaded, &topology, by, &Map::new());
            let free: CpuSet = topology.online().iter().filter(|cpu| cpu % 3 > 0).collect();
            let size = free.intersection_len(&groups(&topology, by).first().unwrap().cpus) / 2;
            let (requests, state) = ([request(size)], State { free, others: Vec::new() });
            let what = format!("{name}, {cpus} CPUs/{size} CPUs of a {}", by.name());
            times.extend(timing::time(criterion, &what, || opened.decide(&requests, &state).unwrap()));
        }
        if let [open, node, machine] = times.as_slice() {
            println!(
                "{name}, {cpus} CPUs: open {:.2} ms, half of a NUMA node {:.3} ms, half of the machine {:.3} ms\n",
                open / 1e6,
                node / 1e6,
                machine / 1e6
            );
        }
    }
}

fn request(count: usize) -> Request {
    Request {
        name: "cpus".to_owned(),
        group: 0,
        count: u32::try_from(count).unwrap(),
        cpuset: None,
        options: Map::new(),
        pcie_roots: Vec::new(),
    }
}

fn groups(topology: &Topology, by: GroupBy) -> Vec<device::Group> {
    device::groups(topology, DeviceMode::Grouped(by), &CpuSet::new())
}

fn open(loaded: &Loaded, topology: &Topology, by: GroupBy, options: &Map<String, Value>) -> Opened {
    loaded.open(topology, &CpuSet::new(), &groups(topology, by), options).unwrap()
}

/// The host's view of a machine of the vectors.
fn topology(machine: &Machine) -> Topology {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let line = json!({ "id": "bench", "cpus": machine.rows });
    file.write_all(line.to_string().as_bytes()).unwrap();
    machine::load(file.path().to_str().unwrap()).unwrap().topology
}

/// The strategy without WebAssembly, opened on the same machine.
fn native(machine: &Machine, options: &str) -> OnceCell<guest::Opened<Packed>> {
    let cell = OnceCell::new();
    let rows = machine.rows.iter().copied().map(CpuRow::from);
    guest::open(&cell, MachineSpec::of_rows(rows).topology(), options).unwrap();
    cell
}
