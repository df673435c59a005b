//! Tries to make a strategy lie. It is asked as the daemon asks it and its answers are verified by the same
//! rules; what is added is that each question is asked of a fresh instance and of one that has answered
//! others, in two orders, and that all must answer the same.

mod trial;

use self::trial::{Trial, Violation};
use super::cases::{self, Cases};
use super::machines::Machines;
use super::{Failure, Output, catalogue_of};
use crate::config::flags::ConfigFlags;
use crate::config::{Config, GroupBy};
use crate::words::counted;
use dracpu_topology::machine::Machine;
use serde_json::json;
use std::process::ExitCode;

/// Try to make a strategy lie
///
/// Asks thousands of questions under the real limits: on the machines that ship with this program and on drawn
/// ones, each in every grouping, idle and partly held, with the options of its schema. Every answer must keep the
/// rules of the interface, and an instance that has answered others must answer as a fresh one does. Each
/// violation is a line on standard output that `dracpu strategy decide` asks again as it is. The summary goes to
/// standard error, with what breaks no rule but may not be meant: a machine that it refuses, a claim that it refuses
/// though it offers as much. Exits with 1 when a rule is broken.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu strategy check ./mine.wasm\n  \
    dracpu strategy check ./mine.wasm > lies.jsonl || dracpu strategy decide --strategy ./mine.wasm < lies.jsonl\n  \
    dracpu strategy check packed --machines my-machines/ --cases 1000 --seed 7\n  \
    dracpu strategy check mine --config=config.yaml")]
pub(super) struct Args {
    /// Component file, or the name of a strategy that is built in or configured
    #[arg(value_name = "FILE|NAME")]
    what: String,
    /// Machines to try: a directory of them, or JSON Lines with one a line [default: the examples of
    /// `topology --list` and drawn ones]
    #[arg(long, value_name = "DIR|F.jsonl[.gz]")]
    machines: Option<String>,
    /// Questions to ask, each three times
    #[arg(long, value_name = "N", default_value_t = 12_000, value_parser = clap::value_parser!(u32).range(1..))]
    cases: u32,
    /// What questions and machines are drawn from: the same seed asks the same
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    config: ConfigFlags,
    /// Form of the summary
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Questions about one machine in one grouping, with one set of node options: at most so many.
const BATCH: usize = 60;
/// Where questions are few, only the first machine is asked so many in one grouping, to see what an instance keeps; the
/// rest are spread over so many machines in their groupings.
const SETTINGS: usize = 60;

/// A strategy that breaks rules breaks them again and again.
const MOST_VIOLATIONS: usize = 20;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let machines = given(args.machines.as_deref(), &config)?;
    let loaded = super::load(&catalogue_of(&config)?, &args.what)?;
    let mut trial = Trial::new(loaded.clone());
    let mut broken = 0;
    let stopped = ask(&mut trial, machines, args, |violation| {
        broken += 1;
        let line = violation.line(broken);
        crate::cli::print(&format!("{line}\n"))?;
        Ok(broken < MOST_VIOLATIONS)
    })?;
    let remarks = trial.remarks();
    let summary = json!({
        "schema": "dracpu.check/v1",
        "strategy": loaded.description().name,
        "version": loaded.description().version,
        "digest": loaded.digest(),
        "seed": args.seed,
        "machines": trial.counts.machines,
        "settings": trial.counts.settings,
        "refusedSettings": trial.counts.refused_settings,
        "questions": trial.counts.questions,
        "granted": trial.counts.granted,
        "denied": trial.counts.denied,
        "violations": broken,
        "stopped": stopped,
        "remarks": remarks,
    });
    match args.output {
        Output::Json => eprintln!("{summary}"),
        Output::Text => eprint!("{}", text(&trial, args, &remarks, broken, stopped)),
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The machines that were named, as far as they have a CPU to give.
fn given(many: Option<&str>, config: &Config) -> Result<Vec<Machine>, Failure> {
    if many.is_none() {
        return Ok(Vec::new());
    }
    let mut machines = Machines::open(None, many, config)?.all().map_err(Failure::Usage)?;
    machines.retain(|machine| cases::settings(machine).next().is_some());
    match machines.is_empty() {
        false => Ok(machines),
        true => Err(Failure::Usage(anyhow::anyhow!(
            "--machines has no machine with a CPU to give: name a place that has some"
        ))),
    }
}

/// Asks as many questions as wanted, in batches; says whether it stopped before, because `found` had enough.
fn ask(
    trial: &mut Trial,
    given: Vec<Machine>,
    args: &Args,
    mut found: impl FnMut(&Violation) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let loaded = trial.loaded().clone();
    let mut cases = Cases::new(&loaded, args.seed);
    let mut left = usize::try_from(args.cases).unwrap_or(usize::MAX);
    let mut batch = BATCH;
    let settings = if given.is_empty() { SETTINGS } else { given.len() * GroupBy::ALL.len() };
    let spread = left.div_ceil(settings).min(BATCH);
    let mut shipped = cases::shipped();
    for turn in 0.. {
        // Given machines again and again; else shipped and drawn ones by turns.
        let machine = match given.is_empty() {
            false => given.get(turn % given.len()).cloned(),
            true => (turn % 2 == 0).then(|| shipped.next()).flatten().or_else(|| cases.machine()),
        };
        let Some(machine) = machine else { continue };
        trial.counts.machines += usize::from(given.is_empty() || turn < given.len());
        for setting in cases::settings(&machine) {
            let node_options = cases.options();
            let questions = cases.questions(&setting, left.min(batch));
            left -= questions.len();
            batch = spread;
            for violation in trial.batch(&setting, node_options, &questions, cases.draw())? {
                if !found(&violation)? {
                    return Ok(true);
                }
            }
            if left == 0 {
                return Ok(false);
            }
        }
    }
    Ok(false)
}

fn text(trial: &Trial, args: &Args, remarks: &[String], broken: usize, stopped: bool) -> String {
    let counts = &trial.counts;
    let mut text = format!(
        "{}: {} on {} in {}, each asked of a fresh and of a used instance: {} granted, {} denied\n",
        trial.loaded().identity(),
        counted(counts.questions, "question"),
        counted(counts.machines, "machine"),
        counted(counts.settings, "setting"),
        counts.granted,
        counts.denied,
    );
    if counts.granted == 0 {
        text += "it never granted anything, so that little was tried: is it meant to refuse all of this?\n";
    }
    for remark in remarks {
        text += &format!("note: {remark}\n");
    }
    if broken == 0 {
        return text + "no rule was broken\n";
    }
    let config = args.config.config.as_ref().map(|file| format!(" --config={}", file.display()));
    let machines = args.machines.as_ref().map(|machines| format!(" --machines {machines}"));
    let same = format!("{}{}", config.unwrap_or_default(), machines.unwrap_or_default());
    text +=
        &format!("{}{}\n", counted(broken, "violation"), if stopped { ", and stopped there" } else { "" });
    text + &format!(
        "to ask the questions again, as they were printed:\n  \
         dracpu strategy check {what}{same} --cases {} --seed {} 2>/dev/null |\n    \
         dracpu strategy decide --strategy {what}{same}\n",
        args.cases,
        args.seed,
        what = args.what,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(cases: u32) -> Args {
        Args {
            what: "packed".to_owned(),
            machines: None,
            cases,
            seed: 5,
            config: ConfigFlags::default(),
            output: Output::Text,
        }
    }

    #[test]
    fn a_built_in_strategy_breaks_no_rule() {
        let mut trial = Trial::new(super::super::catalogue(&[]).unwrap().load("packed").unwrap());
        let stopped = ask(&mut trial, Vec::new(), &args(500), |violation| panic!("{}", violation.line(1)));
        assert!(!stopped.unwrap());
        assert_eq!(trial.counts.questions, 500);
        assert!(trial.counts.granted > 100 && trial.counts.denied > 20, "{:?}", trial.counts);
    }

    #[test]
    fn given_machines_are_asked_again_and_again() {
        let mut trial = Trial::new(super::super::catalogue(&[]).unwrap().load("packed").unwrap());
        let given = cases::shipped().take(1).collect();
        ask(&mut trial, given, &args(500), |violation| panic!("{}", violation.line(1))).unwrap();
        assert_eq!((trial.counts.machines, trial.counts.questions), (1, 500));
        let text = text(&trial, &args(500), &[], 0, false);
        assert!(text.ends_with("no rule was broken\n"), "{text}");
    }

    #[test]
    fn few_questions_are_of_many_machines() {
        let mut trial = Trial::new(super::super::catalogue(&[]).unwrap().load("packed").unwrap());
        ask(&mut trial, Vec::new(), &args(300), |violation| panic!("{}", violation.line(1))).unwrap();
        assert_eq!(trial.counts.questions, 300);
        assert!(trial.counts.machines >= 10, "{:?}", trial.counts);
    }
}
