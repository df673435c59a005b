//! Times the algorithm on `tests/vectors/bench.jsonl.gz` and sets it beside the original's figures, which
//! were taken on another machine: compare ratios between lines, not lines. `make bench`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its table"
)]

use dracpu_strategy_packed::Layout;
use dracpu_strategy_packed::algorithm::{Placement, packed};
use dracpu_strategy_packed::distributed::{SearchBudget, distributed};
use dracpu_strategy_sdk::CpuSet;
use dracpu_strategy_sdk::testkit::{CpuRow, MachineSpec};
use flate2::read::GzDecoder;
use serde_json::Value;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::time::Instant;

fn main() {
    // Cargo passes `--bench` for a measurement; a test run only tries each call once.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { 200 } else { 1 };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/bench.jsonl.gz");
    let mut layout = None;
    for line in BufReader::new(GzDecoder::new(File::open(path).unwrap())).lines() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(rows) = line["topology"].as_array() {
            println!("{} CPUs: {}", line["cpus"], line["shape"].as_str().unwrap());
            layout = Some(Layout::of(&MachineSpec::of_rows(rows.iter().map(row)).build()));
            continue;
        }
        time(layout.as_ref().unwrap(), &line, rounds);
    }
}

fn row(row: &Value) -> CpuRow {
    let number = |at: usize| row[at].as_i64().unwrap();
    let small = |at: usize| u32::try_from(number(at)).unwrap();
    CpuRow {
        cpu: small(0),
        core_id: small(1),
        socket: number(2),
        numa: small(3),
        l3: u32::try_from(number(4)).ok(),
    }
}

fn time(layout: &Layout, line: &Value, rounds: usize) {
    let text = |key: &str| line[key].as_str().unwrap_or_default();
    let number = |key: &str| usize::try_from(line[key].as_u64().unwrap_or_default()).unwrap();
    let available: CpuSet = text("available").parse().unwrap();
    let placement = if text("strategy") == "spread" { Placement::Spread } else { Placement::Packed };
    let (count, group, prefer_l3) = (number("n"), number("group"), line["prefer_l3"] == true);
    let call = || match text("function") {
        "packed" => packed(layout, &available, count, placement, prefer_l3),
        _ => distributed(layout, &available, count, group, placement, &mut SearchBudget::default()),
    };
    assert_eq!(call().unwrap().to_string(), text("result"));
    let mut nanoseconds: Vec<u128> = (0..rounds)
        .map(|_| {
            let started = Instant::now();
            black_box(call());
            started.elapsed().as_nanos()
        })
        .collect();
    nanoseconds.sort_unstable();
    println!(
        "  {:5} {:11} {:6} l3 {prefer_l3:5} group {group} n {count:4}: {:8} ns, original {:8} ns",
        text("state"),
        text("function"),
        text("strategy"),
        nanoseconds[rounds / 2],
        number("go_median_ns"),
    );
}
