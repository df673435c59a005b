//! The calls of `bench.jsonl.gz` beside it, and a table of how long they took. Included by path in the benchmarks of
//! the algorithm and of the component.

#[path = "lines.rs"]
mod files;
use files::{Row, lines};

use criterion::Criterion;
use serde::Deserialize;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A line: a machine, or a call on the machine above it.
#[derive(Deserialize)]
struct Line {
    topology: Option<Vec<Row>>,
    cpus: usize,
    #[serde(flatten)]
    call: Option<Call>,
}

/// A call, its answer, and what the original took for it on another machine.
#[derive(Clone, Deserialize)]
pub(crate) struct Call {
    pub(crate) state: String,
    pub(crate) function: String,
    pub(crate) strategy: String,
    #[serde(default)]
    pub(crate) prefer_l3: bool,
    #[serde(default)]
    pub(crate) group: usize,
    pub(crate) n: usize,
    pub(crate) available: String,
    pub(crate) result: String,
    go_median_cpu_ns: f64,
}

impl Call {
    fn name(&self) -> String {
        let l3 = if self.prefer_l3 { " l3" } else { "" };
        format!("{} {} {}{l3} {}", self.state, self.function, self.strategy, self.n)
    }
}

/// A machine of the file with the calls on it.
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) rows: Vec<Row>,
    pub(crate) calls: Vec<Call>,
}

/// All of the file.
pub(crate) fn machines(directory: &str) -> Vec<Machine> {
    let mut machines: Vec<Machine> = Vec::new();
    for line in lines::<Line>(directory, "bench.jsonl.gz") {
        match (line.topology, line.call) {
            (Some(rows), _) => machines.push(Machine { cpus: line.cpus, rows, calls: Vec::new() }),
            (None, call) => machines.last_mut().unwrap().calls.push(call.unwrap()),
        }
    }
    machines
}

/// Criterion with so little of each measurement that a hundred of them take a minute or two. The samples are short:
/// on a machine that does other work too most of them are undisturbed.
pub(crate) fn criterion() -> Criterion {
    let criterion = Criterion::default().sample_size(40);
    criterion.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(200))
}

/// Measures a call; the median of its times in nanoseconds. None when the measurement was not asked for.
pub(crate) fn time<T>(criterion: &mut Criterion, name: &str, mut call: impl FnMut() -> T) -> Option<f64> {
    let mut times = Vec::new();
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|rounds| {
            let started = Instant::now();
            for _ in 0..rounds {
                black_box(call());
            }
            let elapsed = started.elapsed();
            times.push(elapsed.as_secs_f64() * 1e9 / rounds as f64);
            elapsed
        });
    });
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// What was measured, side by side with the original's CPU time.
#[derive(Default)]
pub(crate) struct Table {
    columns: Vec<&'static str>,
    rows: Vec<(String, Vec<f64>, f64)>,
}

impl Table {
    pub(crate) fn new(columns: &[&'static str]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Measures a call in each column's way, each of which is told by its name.
    pub(crate) fn measure(
        &mut self,
        criterion: &mut Criterion,
        machine: &Machine,
        call: &Call,
        ways: &mut [&mut dyn FnMut()],
    ) {
        let what = format!("{} CPUs, {}", machine.cpus, call.name());
        let mut times = Vec::new();
        for (column, way) in self.columns.clone().into_iter().zip(ways) {
            times.extend(time(criterion, &format!("{what}/{column}"), way));
        }
        if times.len() == self.columns.len() {
            self.rows.push((what, times, call.go_median_cpu_ns));
        }
    }

    /// Prints it: microseconds, each later column over the first one, and the original over the last one.
    pub(crate) fn print(&self) {
        let mut heads: Vec<String> = self.columns.iter().map(|column| format!("{column} µs")).collect();
        heads.push("Go µs".to_owned());
        let [first, last] = [self.columns.first().unwrap(), self.columns.last().unwrap()];
        heads.extend(self.columns.iter().skip(1).map(|column| format!("{column}/{first}")));
        heads.push(format!("Go/{last}"));
        println!("\n{:44}{}", "", heads.iter().map(|head| format!("{head:>16}")).collect::<String>());
        let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); self.columns.len()];
        for (what, times, go) in &self.rows {
            let mut line = format!("{what:44}");
            for value in times.iter().chain([go]) {
                line += &format!("{:16.2}", value / 1e3);
            }
            let over_first = times.iter().skip(1).map(|time| time / times[0]);
            for (ratio, all) in over_first.chain([go / times[times.len() - 1]]).zip(&mut ratios) {
                line += &format!("{ratio:16.1}");
                all.push(ratio);
            }
            println!("{line}");
        }
        for (head, all) in heads.iter().skip(self.columns.len() + 1).zip(&mut ratios) {
            all.sort_by(f64::total_cmp);
            if let [least, .., most] = all.as_slice() {
                println!("{head}: median {:.1}, from {least:.1} to {most:.1}", all[all.len() / 2]);
            }
        }
    }
}
