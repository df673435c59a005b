//! How good `llc-first` is: measured against `packed`, the exact online optimum and a clairvoyant, and held against
//! what is demanded. Prints the figures, and ends with an error when a demand does not hold. `make llc-acceptance`;
//! with the argument `quick` a first look, whose means are too rough to end with an error.
//!
//! Reading order: `machines`, `load` (what comes and goes), `churn` (plays that to a strategy and measures),
//! `suite` (all of it), `online` and `clairvoyant` (how good a rule can be), `demands` (the table).

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a program that fails by panicking, on small machines, and prints its table"
)]

mod churn;
mod clairvoyant;
mod demands;
mod load;
mod machines;
mod online;
mod suite;

use churn::Player;
use demands::{Above, Demand};
use dracpu_strategy_llc_first::LlcFirst;
use load::{Load, Mix, Scheduler};
use std::process::ExitCode;
use suite::{Cell, Checks, Effort};

fn main() -> ExitCode {
    let quick = std::env::args().any(|arg| arg == "quick");
    let effort = match quick {
        true => Effort { seeds: 2, claims: 1500, before: 500 },
        false => Effort { seeds: 4, claims: 6000, before: 1000 },
    };
    println!(
        "{} seeds of {} claims, after {} that are not counted",
        effort.seeds, effort.claims, effort.before
    );
    let outcomes = above_optimum(quick);
    let above = above_clairvoyant(effort);
    let mut checks = Checks::default();
    let cells = suite::play_suite(effort, &mut checks);
    let first_fit = suite::play_first_fit(effort, &mut checks);
    print_cells("devices at random", &cells);
    print_cells("first fit", &first_fit);

    let mut exact = demands::of_checks(&checks);
    exact.push(demands::of_optimum(&outcomes));
    let mut sampled = demands::of_clairvoyant(&above);
    sampled.extend(demands::of_suite(&cells));
    sampled.extend(demands::of_first_fit(&first_fit));
    println!("\ndemand | measured | holds");
    for Demand { what, measured, holds } in exact.iter().chain(&sampled) {
        println!("{what} | {measured} | {}", if *holds { "yes" } else { "NO" });
    }
    let hold = |demands: &[Demand]| demands.iter().all(|demand| demand.holds);
    match hold(&exact) && (quick || hold(&sampled)) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Caches per claim by the idle machine's, caches wholly free, cores shared by 100 claims, NUMA nodes by the idle
/// machine's, claims in more caches than on the idle machine.
fn print_cells(title: &str, cells: &[Cell]) {
    println!("\n{title}: plain packed, packed, llc-first");
    println!(
        "machine           by        mix     load  caches             free caches        shared cores    nodes              spread"
    );
    for cell in cells {
        let all = [&cell.plain, &cell.packed, &cell.llc_first];
        let [caches, nodes] = [all.map(|of| of.excess()), all.map(|of| of.nodes_excess())];
        let free = all.map(|of| of.per_claim(of.whole_caches));
        let cores = all.map(|of| 100.0 * of.per_claim(of.shared_cores));
        let spread = all.map(|of| 100.0 * of.per_claim(of.unaligned));
        println!(
            "{:17} {:9} {:7} {:2} %  {:.3} {:.3} {:.3}  {:5.2} {:5.2} {:5.2}  {:4.1} {:4.1} {:4.1}  {:.3} {:.3} {:.3}  {:4.1} {:4.1} {:4.1} %",
            cell.name,
            format!("{:?}", cell.group_by),
            cell.mix.name(),
            cell.percent,
            caches[0],
            caches[1],
            caches[2],
            free[0],
            free[1],
            free[2],
            cores[0],
            cores[1],
            cores[2],
            nodes[0],
            nodes[1],
            nodes[2],
            spread[0],
            spread[1],
            spread[2],
        );
    }
}

/// On machines without simultaneous multithreading, since the search knows no cores.
fn above_clairvoyant(effort: Effort) -> Vec<Above> {
    let mut above = Vec::new();
    println!("\nby the idle machine: llc-first, a clairvoyant");
    for (caches, cpus) in [(16, 8), (8, 16), (12, 16)] {
        let server = machines::plain(caches, cpus);
        let player = Player::<LlcFirst>::new(&server, "{}");
        for (mix, percent) in [(Mix::General, 80), (Mix::Even, 80), (Mix::General, 90), (Mix::Even, 90)] {
            let (mut ours, mut best) = (churn::Measures::default(), 0);
            for seed in 0..effort.seeds {
                let load = Load { mix, percent, scheduler: Scheduler::Random };
                let events = load.events(&[caches * cpus], seed, effort.before + effort.claims);
                ours.add(player.play(&server, &events, effort.before, &mut |_, _| ()));
                best += clairvoyant::fewest_found(&events, caches as usize, cpus as u8, effort.before);
            }
            let ideal = ours.ideal_caches as f64;
            println!(
                "{caches} caches of {cpus} CPUs, {}, {percent} %: {:.4} {:.4}",
                mix.name(),
                ours.excess(),
                best as f64 / ideal
            );
            above.push((percent, ours.caches as f64 / best as f64));
        }
    }
    above
}

fn above_optimum(quick: bool) -> Vec<online::Outcome> {
    println!("\nby the idle machine: llc-first, the exact online optimum");
    let mut outcomes = Vec::new();
    for model in &online::MODELS {
        let loads = &model.loads[..if quick { 1 } else { model.loads.len() }];
        for outcome in online::solve(&online::Model { loads, ..*model }) {
            println!(
                "{} caches of {} CPUs, {} CPUs in use at most, {} packings: {:.4} {:.4}",
                model.caches, model.cpus, outcome.load, outcome.packings, outcome.strategy, outcome.optimum
            );
            outcomes.push(outcome);
        }
    }
    outcomes
}
