//! What a strategy's calls cost, against the limits.

use super::cases::{self, Cases, Setting};
use super::machines::Machines;
use super::{Failure, Output, aligned, catalogue_of};
use crate::config::flags::ConfigFlags;
use crate::strategy::{Limits, Loaded, Opened};
use dracpu_topology::machine::Machine;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure what a strategy costs: time, fuel and memory of its calls
///
/// Opens it on each machine in every grouping, and asks questions as `strategy check` draws them. Time is that of
/// the call as the daemon makes it, with conversion and verification; fuel is about one per instruction, the same
/// on every node; memory is all that the instance holds then. The last line is the most of all against the limit.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu strategy bench ./mine.wasm\n  \
    dracpu strategy bench packed --machine many-core -o json\n  \
    dracpu strategy bench mine --config=config.yaml")]
pub(super) struct Args {
    /// Component file, or the name of a strategy that is built in or configured
    #[arg(value_name = "FILE|NAME")]
    what: String,
    /// One machine: a sysfs directory or .tar.gz of one, a file written by `topology -o json` or `gatherinfo`, or
    /// an example of `topology --list` [default: every example]
    #[arg(long, value_name = "WHAT", conflicts_with = "machines")]
    machine: Option<String>,
    /// Machines: a directory of them, or JSON Lines with one a line
    #[arg(long, value_name = "DIR|F.jsonl[.gz]")]
    machines: Option<String>,
    #[command(flatten)]
    config: ConfigFlags,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Questions about a machine in one grouping.
const QUESTIONS: usize = 100;
/// The strategy is opened so often for a machine in one grouping.
const OPENINGS: usize = 5;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let (one, many) = (args.machine.as_deref(), args.machines.as_deref());
    let machines = match one.or(many) {
        None => cases::shipped().collect(),
        Some(_) => Machines::open(one, many, &config)?.all().map_err(Failure::Usage)?,
    };
    let loaded = super::load(&catalogue_of(&config)?, &args.what)?;
    let rows = machines.iter().map(|machine| measure(&loaded, machine)).collect::<Result<Vec<_>, _>>()?;
    let answer = match args.output {
        Output::Text => text(&rows, loaded.limits()),
        Output::Json => format!("{:#}\n", json(&loaded, &rows)),
    };
    crate::cli::print(&answer)
}

/// What one kind of call cost.
#[derive(Debug, Default, Clone)]
struct Calls {
    times: Vec<Duration>,
    fuel: Vec<u64>,
}

impl Calls {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = call();
        self.times.push(started.elapsed());
        answer
    }

    fn extend(&mut self, other: &Self) {
        self.times.extend(&other.times);
        self.fuel.extend(&other.fuel);
    }

    /// The middle one and the longest.
    fn time_of_most(&self) -> (Duration, Duration) {
        (middle(&self.times), self.times.iter().copied().max().unwrap_or_default())
    }

    fn fuel_of_most(&self) -> (u64, u64) {
        (middle(&self.fuel), self.fuel.iter().copied().max().unwrap_or_default())
    }
}

fn middle<T: Ord + Copy + Default>(values: &[T]) -> T {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The cost on one machine.
#[derive(Debug, Default, Clone)]
struct Row {
    machine: String,
    cpus: usize,
    open: Calls,
    allocate: Calls,
    memory_bytes: u64,
}

fn measure(loaded: &Loaded, machine: &Machine) -> Result<Row, Failure> {
    let mut row = Row { machine: machine.name.clone(), cpus: machine.topology.cpus.len(), ..Row::default() };
    let mut cases = Cases::new(loaded, 1);
    for setting in cases::settings(machine) {
        let Some(mut opened) = open(loaded, &setting, &mut row)? else { continue };
        for question in cases.questions(&setting, QUESTIONS) {
            let asked = question.asked(machine).map_err(Failure::Failed)?;
            let answer = row.allocate.time(|| opened.decide(&asked.requests, &asked.state));
            row.allocate.fuel.push(opened.last_fuel());
            match answer {
                Err(error) if !error.is_refusal() => return Err(broken(&error, machine)),
                _ => row.memory_bytes = row.memory_bytes.max(opened.memory_bytes().unwrap_or_default()),
            }
        }
    }
    Ok(row)
}

/// Opens the strategy a few times; none when it refuses.
fn open(loaded: &Loaded, setting: &Setting, row: &mut Row) -> Result<Option<Opened>, Failure> {
    let machine = &setting.machine;
    let mut last = None;
    for _ in 0..OPENINGS {
        let open = || loaded.open(&machine.topology, &machine.reserved, &setting.groups, &Map::new());
        match row.open.time(open) {
            Ok(opened) => {
                row.open.fuel.push(opened.last_fuel());
                last = Some(opened);
            }
            Err(error) if error.is_refusal() => return Ok(None),
            Err(error) => return Err(broken(&error, machine)),
        }
    }
    Ok(last)
}

fn broken(error: &crate::strategy::StrategyError, machine: &Machine) -> Failure {
    Failure::Failed(anyhow::anyhow!(
        "on the machine {}: {error}; `dracpu strategy check` shows the questions that it fails",
        machine.name
    ))
}

/// Everything in one row.
fn most(rows: &[Row]) -> Row {
    let mut all = Row { machine: "all".to_owned(), ..Row::default() };
    for row in rows {
        all.cpus = all.cpus.max(row.cpus);
        all.open.extend(&row.open);
        all.allocate.extend(&row.allocate);
        all.memory_bytes = all.memory_bytes.max(row.memory_bytes);
    }
    all
}

fn text(rows: &[Row], limits: &Limits) -> String {
    let mut lines = vec![
        ["MACHINE", "CPUS", "OPEN", "FUEL", "ALLOCATE", "MOST", "FUEL", "MOST", "MEMORY"].map(str::to_owned),
    ];
    lines.extend(rows.iter().map(cells));
    let all = most(rows);
    lines.push(cells(&all));
    let (open, allocate) = (&all.open, &all.allocate);
    let deadline = limits.deadline;
    let blank = String::new;
    lines.push([
        "of the limit".to_owned(),
        blank(),
        share(open.time_of_most().1.as_micros(), deadline.as_micros()),
        share(u128::from(open.fuel_of_most().1), u128::from(limits.fuel)),
        blank(),
        share(allocate.time_of_most().1.as_micros(), deadline.as_micros()),
        blank(),
        share(u128::from(allocate.fuel_of_most().1), u128::from(limits.fuel)),
        share(u128::from(all.memory_bytes), u128::from(limits.memory_bytes)),
    ]);
    aligned(&lines)
}

fn cells(row: &Row) -> [String; 9] {
    let (open, allocate) = (&row.open, &row.allocate);
    [
        row.machine.clone(),
        row.cpus.to_string(),
        micros(open.time_of_most().0),
        open.fuel_of_most().1.to_string(),
        micros(allocate.time_of_most().0),
        micros(allocate.time_of_most().1),
        allocate.fuel_of_most().0.to_string(),
        allocate.fuel_of_most().1.to_string(),
        format!("{} KiB", row.memory_bytes / 1024),
    ]
}

fn micros(time: Duration) -> String {
    let nanos = time.as_nanos();
    format!("{}.{} µs", nanos / 1000, nanos / 100 % 10)
}

fn share(used: u128, limit: u128) -> String {
    let per_mille = used.saturating_mul(1000).checked_div(limit).unwrap_or_default();
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

fn json(loaded: &Loaded, rows: &[Row]) -> Value {
    let limits = loaded.limits();
    let object = |row: &Row| {
        json!({
            "machine": row.machine,
            "cpus": row.cpus,
            "open": calls(&row.open),
            "allocate": calls(&row.allocate),
            "memoryBytes": row.memory_bytes,
        })
    };
    json!({
        "schema": "dracpu.bench/v1",
        "strategy": loaded.description().name,
        "version": loaded.description().version,
        "digest": loaded.digest(),
        "limits": {
            "fuel": limits.fuel,
            "deadlineNanos": nanos(limits.deadline),
            "memoryBytes": limits.memory_bytes,
        },
        "machines": rows.iter().map(object).collect::<Vec<_>>(),
        "all": object(&most(rows)),
    })
}

fn calls(calls: &Calls) -> Value {
    let ((nanos_middle, nanos_most), (fuel, fuel_most)) = (calls.time_of_most(), calls.fuel_of_most());
    json!({
        "calls": calls.times.len(),
        "nanos": { "median": nanos(nanos_middle), "max": nanos(nanos_most) },
        "fuel": { "median": fuel, "max": fuel_most },
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_told_for_each_machine_and_against_the_limits() {
        let loaded = super::super::catalogue(&[]).unwrap().load("packed").unwrap();
        let rows: Vec<Row> =
            cases::shipped().take(2).map(|machine| measure(&loaded, &machine).unwrap()).collect();
        let text = text(&rows, loaded.limits());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[1].starts_with("small ") && lines[3].starts_with("all "), "{text}");
        assert!(lines[4].starts_with("of the limit") && lines[4].ends_with(" %"), "{text}");
        let answer = json(&loaded, &rows);
        assert_eq!(
            (&answer["schema"], &answer["machines"][0]["machine"]),
            (&json!("dracpu.bench/v1"), &json!("small"))
        );
        for call in ["open", "allocate"] {
            let (most, limit) = (&answer["all"][call]["fuel"]["max"], &answer["limits"]["fuel"]);
            assert!((1..limit.as_u64().unwrap()).contains(&most.as_u64().unwrap()), "{call}: {most}");
        }
        assert!(answer["all"]["memoryBytes"].as_u64().unwrap() > 65_536);
    }

    #[test]
    fn shares_have_one_decimal() {
        assert_eq!(
            (share(1, 3), share(2000, 1000), share(1, 0)),
            ("33.3 %".into(), "200.0 %".into(), "0.0 %".into())
        );
    }
}
