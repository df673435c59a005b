//! What is demanded, and whether the figures hold.

use crate::churn::Measures;
use crate::load::Mix;
use crate::machines::{Family, GroupBy};
use crate::online::Outcome;
use crate::suite::{Cell, Checks, LOADS};

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Demand {
    pub(crate) what: &'static str,
    pub(crate) measured: String,
    pub(crate) holds: bool,
}

/// How many caches it takes by what a clairvoyant takes, at a load in percent.
pub(crate) type Above = (u32, f64);

pub(crate) fn of_checks(checks: &Checks) -> Vec<Demand> {
    let Checks { decisions, not_fewest, even, split, whole_only, shared, refused, wrong } = checks;
    vec![
        Demand {
            what: "as few caches as the free CPUs allow, on every decision",
            measured: format!("{not_fewest} of {decisions} not"),
            holds: *not_fewest == 0 && *decisions > 0,
        },
        Demand {
            what: "claims of whole cores split none where that costs no cache",
            measured: format!(
                "{split} of {even} did; {shared} cores shared in {whole_only} claims among their like"
            ),
            holds: split + shared == 0 && *even > 0 && *whole_only > 0,
        },
        Demand {
            what: "align: preferred refuses nothing, required what takes more caches than when idle",
            measured: format!(
                "{wrong} wrong of {decisions}; required refused {}",
                percent(*refused, *decisions)
            ),
            holds: *wrong == 0 && *refused > 0,
        },
    ]
}

pub(crate) fn of_optimum(outcomes: &[Outcome]) -> Demand {
    let above = outcomes.iter().map(|outcome| outcome.strategy / outcome.optimum);
    Demand {
        what: "at most 1.0 % above the exact online optimum, on each small machine",
        measured: more(above.clone()),
        holds: above.clone().all(|above| above <= 1.010),
    }
}

pub(crate) fn of_clairvoyant(above: &[Above]) -> Vec<Demand> {
    let at = |percent, most: f64, what| {
        let above = above.iter().filter(move |(load, _)| *load == percent).map(|(_, above)| *above);
        Demand { what, measured: more(above.clone()), holds: above.clone().all(|above| above <= most) }
    };
    vec![
        at(80, 1.03, "at most 3 % above a clairvoyant, 80 % load"),
        // The search comes within 0.4 % of the idle machine here, so this is nearly a bound against that.
        at(90, 1.085, "at most 8.5 % above a clairvoyant, 90 % load"),
    ]
}

pub(crate) fn of_suite(cells: &[Cell]) -> Vec<Demand> {
    let split = |percent| {
        let all = cells.iter().filter(move |cell| cell.percent == percent);
        all.filter(|cell| cell.family != Family::Snc).collect::<Vec<_>>()
    };
    let [at_60, at_80, at_90] = LOADS.map(split);
    let nps1: Vec<&Cell> = at_80.iter().copied().filter(|cell| cell.family == Family::Nps1).collect();
    let against_plain = |cell: &Cell| cell.llc_first.excess() / cell.plain.excess();
    let mut demands = vec![Demand {
        what: "against packed without prefer-align-cpus-by-uncorecache, NPS1 sockets, 80 %: \
               33 % fewer caches in each cell, 38 % on average",
        measured: format!(
            "{}, {}",
            fewer(nps1.iter().map(|cell| against_plain(cell))),
            mean_fewer(&nps1, |cell| &cell.plain)
        ),
        holds: nps1.iter().all(|cell| against_plain(cell) <= 0.67)
            && ratio(&nps1, |cell| &cell.plain) <= 0.62,
    }];
    let excess = |cells: &[&Cell]| {
        (mean(cells, |cell| cell.llc_first.excess()) - 1.0) / (mean(cells, |cell| cell.packed.excess()) - 1.0)
    };
    for (cells, mean_at_most, excess_at_most, what) in [
        (&at_80, 0.97, 0.62, "against packed, 80 %: 3 % fewer caches on average, 38 % less above the ideal"),
        (&at_90, 0.92, 0.55, "against packed, 90 %: 8 % fewer caches on average, 45 % less above the ideal"),
    ] {
        let (ratio, excess) = (ratio(cells, |cell| &cell.packed), excess(cells));
        demands.push(Demand {
            what,
            measured: format!("{}, {:.1} %", mean_fewer(cells, |cell| &cell.packed), (1.0 - excess) * 100.0),
            holds: ratio <= mean_at_most && excess <= excess_at_most,
        });
    }
    let worst = cells.iter().map(against_packed).fold(0.0, f64::max);
    demands.push(Demand {
        what: "against packed, no cell more than 0.5 % worse",
        measured: format!("worst {:+.2} %", (worst - 1.0) * 100.0),
        holds: worst <= 1.005,
    });
    demands.push(of_whole_caches(cells, &at_80, &at_90));
    demands.extend(of_nodes(cells));
    demands.push(of_cores(&at_60, &at_80, &at_90));
    demands
}

pub(crate) fn of_first_fit(cells: &[Cell]) -> Vec<Demand> {
    let of = |mixes: &[Mix]| {
        let cells = cells.iter().filter(|cell| mixes.contains(&cell.mix));
        cells.map(against_packed).collect::<Vec<_>>()
    };
    let (mostly_small, uniform) = (of(&[Mix::General, Mix::Even]), of(&[Mix::Uniform]));
    vec![
        Demand {
            what: "first fit, Rome and Milan NPS1, mostly small claims: 6 % fewer caches than packed in each cell",
            measured: fewer(mostly_small.iter().copied()),
            holds: mostly_small.iter().all(|ratio| *ratio <= 0.94),
        },
        // Half of these claims are as large as one or more of Rome's caches, so that packed is near the optimum too.
        Demand {
            what: "first fit, Rome and Milan NPS1, sizes alike: fewer caches than packed in each cell",
            measured: fewer(uniform.iter().copied()),
            holds: uniform.iter().all(|ratio| *ratio < 1.0),
        },
    ]
}

fn against_packed(cell: &Cell) -> f64 {
    cell.llc_first.excess() / cell.packed.excess()
}

fn of_whole_caches(cells: &[Cell], at_80: &[&Cell], at_90: &[&Cell]) -> Demand {
    let whole = |measures: &Measures| measures.per_claim(measures.whole_caches);
    let of = |cells: &[&Cell]| {
        mean(cells, |cell| whole(&cell.llc_first)) / mean(cells, |cell| whole(&cell.packed))
    };
    let split = cells.iter().filter(|cell| cell.family != Family::Snc);
    let least = split.map(|cell| whole(&cell.llc_first) / whole(&cell.packed)).fold(f64::INFINITY, f64::min);
    Demand {
        what: "caches wholly free, of those of packed: 0.98 in each cell, on average 1.10 at 80 %, 1.15 at 90 %",
        measured: format!("least {least:.3}; {:.2}, {:.2}", of(at_80), of(at_90)),
        holds: least >= 0.98 && of(at_80) >= 1.10 && of(at_90) >= 1.15,
    }
}

fn of_nodes(cells: &[Cell]) -> Vec<Demand> {
    let at = |percent, most, what| {
        let wide = cells.iter().filter(|cell| cell.family == Family::Nps4 && cell.percent == percent);
        let wide: Vec<&Cell> = wide.filter(|cell| cell.group_by != GroupBy::NumaNode).collect();
        let ours = mean(&wide, |cell| cell.llc_first.nodes_excess());
        let packed = mean(&wide, |cell| cell.packed.nodes_excess());
        Demand {
            what,
            measured: format!("{ours:.3}, packed {packed:.3}"),
            holds: ours <= most && ours <= 0.9 * packed,
        }
    };
    vec![
        at(
            80,
            1.10,
            "NUMA nodes by the idle machine's, NPS4 sockets and machines, 80 %: 1.10, a tenth below packed",
        ),
        at(90, 1.20, "the same, 90 %: 1.20, a tenth below packed"),
    ]
}

fn of_cores(at_60: &[&Cell], at_80: &[&Cell], at_90: &[&Cell]) -> Demand {
    let of = |cells: &[&Cell]| {
        let shared = |measures: &Measures| measures.per_claim(measures.shared_cores);
        mean(cells, |cell| shared(&cell.llc_first)) / mean(cells, |cell| shared(&cell.packed))
    };
    Demand {
        what: "cores shared by claims, of those of packed: at most 1.25 on average, 80 % and 90 %",
        measured: format!("{:.2}, {:.2}; {:.2} at 60 %", of(at_80), of(at_90), of(at_60)),
        holds: of(at_80) <= 1.25 && of(at_90) <= 1.25,
    }
}

fn mean(cells: &[&Cell], of: impl Fn(&Cell) -> f64) -> f64 {
    cells.iter().map(|cell| of(cell)).sum::<f64>() / cells.len() as f64
}

/// Means by means: what a fleet of such machines sees.
fn ratio(cells: &[&Cell], other: fn(&Cell) -> &Measures) -> f64 {
    mean(cells, |cell| cell.llc_first.excess()) / mean(cells, |cell| other(cell).excess())
}

fn mean_fewer(cells: &[&Cell], other: fn(&Cell) -> &Measures) -> String {
    format!("{:.1} % on average", (1.0 - ratio(cells, other)) * 100.0)
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
}

fn more(factors: impl Iterator<Item = f64>) -> String {
    let (least, most) = range(factors.map(|factor| (factor - 1.0) * 100.0));
    format!("{least:.2} to {most:.2} %")
}

fn fewer(factors: impl Iterator<Item = f64>) -> String {
    let (least, most) = range(factors.map(|factor| (1.0 - factor) * 100.0));
    format!("{least:.1} to {most:.1} %")
}

fn percent(part: usize, all: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / all as f64)
}
