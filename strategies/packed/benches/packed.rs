//! The algorithm on `tests/vectors/bench.jsonl.gz`, beside the CPU time that the original took for the same calls on
//! another machine. `make bench`.

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
use std::hint::black_box;

#[path = "../../../tests/vectors/timing.rs"]
mod timing;
use timing::{Call, Machine, Table, machines};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors");

fn main() {
    let mut criterion = timing::criterion().configure_from_args();
    let mut table = Table::new(&["native"]);
    for machine in machines(VECTORS) {
        let layout = layout(&machine);
        for call in &machine.calls {
            let available: CpuSet = call.available.parse().unwrap();
            assert_eq!(answer(&layout, call, &available).unwrap().to_string(), call.result);
            let mut native = || {
                black_box(answer(&layout, call, &available));
            };
            table.measure(&mut criterion, &machine, call, &mut [&mut native]);
        }
    }
    table.print();
    criterion.final_summary();
}

fn layout(machine: &Machine) -> Layout {
    Layout::of(&MachineSpec::of_rows(machine.rows.iter().copied().map(CpuRow::from)).build())
}

fn answer(layout: &Layout, call: &Call, available: &CpuSet) -> Option<CpuSet> {
    let placement = if call.strategy == "spread" { Placement::Spread } else { Placement::Packed };
    match call.function.as_str() {
        "packed" => packed(layout, available, call.n, placement, call.prefer_l3),
        _ => distributed(layout, available, call.n, call.group, placement, &mut SearchBudget::default()),
    }
}
