//! Questions to a strategy, one a line, each answered in a line before the next is read. The component is
//! asked as the daemon asks it; nothing is held between questions.

use super::machines::Machines;
use super::question::{self, Question};
use super::{Failure, catalogue_of, extended};
use crate::config::flags::ConfigFlags;
use crate::config::strategy_name;
use crate::config::{Config, DeviceMode, GroupBy};
use crate::device;
use crate::strategy::{Decision, Fault, Loaded, Opened, StrategyError};
use crate::words::{quoted, sentence};
use anyhow::Context as _;
use dracpu_cpuset::CpuSet;
use dracpu_topology::machine::Machine;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{BufRead, Read as _, Write};
use std::process::ExitCode;

/// Ask a strategy for decisions: questions in, answers out, as JSON Lines
///
/// A question: {"id":"1","available":"0-7","requests":[{"name":"r","count":2,"group":"0-7"}]}. `available`
/// are the free CPUs; `group` is a CPU list or a device name, left out it is every CPU; `options` are the
/// claim's, and a request's own lie over them; `topology` names the machine where there are several. `groupBy` opens the strategy with every device
/// of a grouping, `nodeOptions` stand in for --options, and the questions of `before` are asked first, of the
/// same fresh instance: so are the lines that `strategy check` writes. The answer has `grants`, or `denied`, or `fault`; `error` when the question itself is wrong, and
/// then the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    echo '{\"id\":\"1\",\"available\":\"0-7\",\"requests\":[{\"name\":\"r\",\"count\":2}]}' |\n  \
    dracpu strategy decide --strategy packed\n\n\
    With --config=config.yaml the name may be one of that file, with its digest, limits and options.")]
pub(super) struct Args {
    /// Name of a strategy that is built in or configured, or a component file
    #[arg(long, value_name = "NAME|FILE")]
    strategy: String,
    /// Machine of the questions: a sysfs directory or .tar.gz of one, a file written by `topology -o json` or
    /// `gatherinfo`, an example of `topology --list`, or random-N, drawn from the number N [default: that of the last
    /// two that the question's `topology` names, else this host]
    #[arg(long, value_name = "WHAT", conflicts_with = "machines")]
    machine: Option<String>,
    /// Machines that questions choose from by `topology`: a directory of them, or JSON Lines with one a line
    #[arg(long, value_name = "DIR|F.jsonl[.gz]")]
    machines: Option<String>,
    /// The node's options [default: strategyOptions of the configuration when its allocator is this strategy]
    #[arg(long, value_name = "JSON")]
    options: Option<String>,
    #[command(flatten)]
    config: ConfigFlags,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let options = node_options(args, &config).map_err(Failure::Usage)?;
    let loaded = super::load(&catalogue_of(&config)?, &args.strategy)?;
    let machines = Machines::open(args.machine.as_deref(), args.machines.as_deref(), &config)?;
    check(&loaded, &options, &machines).map_err(|error| Failure::Usage(error.into()))?;
    let mut desk = Desk { loaded, options, machines, opened: HashMap::new() };
    desk.serve(std::io::stdin().lock(), std::io::stdout().lock())
}

fn node_options(args: &Args, config: &Config) -> anyhow::Result<Map<String, Value>> {
    match &args.options {
        Some(text) => serde_json::from_str(text)
            .with_context(|| format!("--options {}: not a JSON object", quoted(text))),
        None => Ok(config.selection.options_of(&strategy_name(args.strategy.clone()))),
    }
}

/// So many machines are tried with the node's options before they are taken for the mistake.
const MOST_TRIED: usize = 8;

/// The longest line that is read as a question.
const MOST_BYTES_OF_A_LINE: u64 = 16 << 20;

/// Refuses options that the strategy refuses on every machine, however its CPUs are grouped.
fn check(loaded: &Loaded, options: &Map<String, Value>, machines: &Machines) -> Result<(), StrategyError> {
    let mut first = None;
    for machine in machines.some(MOST_TRIED) {
        for by in GroupBy::ALL {
            let Machine { topology, reserved, .. } = &*machine;
            let groups = device::groups(topology, DeviceMode::Grouped(by), reserved);
            match loaded.open(topology, reserved, &groups, options) {
                Err(error) if error.is_refusal() => first = first.or(Some(error)),
                // Any other fault is the answer to the question that meets it.
                _ => return Ok(()),
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// Strategies opened so far, by machine, groups and the node's options: opening costs more than asking.
type OpenedByKey = HashMap<(String, Vec<(String, CpuSet)>, String), Opened>;

/// So many are kept open; each has an instance with memory of its own.
const MOST_OPENED: usize = 64;

struct Desk {
    loaded: Loaded,
    options: Map<String, Value>,
    machines: Machines,
    opened: OpenedByKey,
}

impl Desk {
    fn serve(&mut self, mut questions: impl BufRead, mut answers: impl Write) -> Result<ExitCode, Failure> {
        let mut code = ExitCode::SUCCESS;
        while let Some(line) = next_line(&mut questions, MOST_BYTES_OF_A_LINE)
            .context("cannot read standard input")
            .map_err(Failure::Failed)?
        {
            let answer = match line {
                Line::Whole(line) if line.trim_ascii().is_empty() => continue,
                Line::Whole(line) => self.answer(&line),
                Line::TooLong => {
                    let error =
                        format!("the line has more than {MOST_BYTES_OF_A_LINE} bytes, no question has");
                    json!({ "id": null, "error": error })
                }
            };
            if answer.get("error").is_some() {
                code = ExitCode::FAILURE;
            }
            match writeln!(answers, "{answer}").and_then(|()| answers.flush()) {
                Ok(()) => {}
                // Nobody reads on: no failure of ours.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(code),
                Err(error) => {
                    return Err(Failure::Failed(
                        anyhow::Error::new(error).context("cannot write to standard output"),
                    ));
                }
            }
        }
        Ok(code)
    }

    fn answer(&mut self, line: &[u8]) -> Value {
        match serde_json::from_slice::<Question>(line) {
            Err(error) => {
                let error = format!("not a question: {}", sentence(&error.to_string()));
                json!({ "id": question::id_of(line), "error": error })
            }
            Ok(question) => self
                .decide(&question)
                .unwrap_or_else(|error| json!({ "id": question.id, "error": format!("{error:#}") })),
        }
    }

    fn decide(&mut self, question: &Question) -> anyhow::Result<Value> {
        let machine = self.machines.of(question.topology.as_deref())?;
        let asked = question.asked(machine)?;
        let options = question.node_options.as_ref().unwrap_or(&self.options);
        let key = (
            machine.name.clone(),
            asked.groups.iter().map(|group| (group.device.clone(), group.cpus.clone())).collect(),
            Value::Object(options.clone()).to_string(),
        );
        let mut opened = match self.opened.remove(&key) {
            Some(opened) => opened,
            None => {
                if self.opened.len() >= MOST_OPENED {
                    self.opened.clear();
                }
                match self.loaded.open(&machine.topology, &machine.reserved, &asked.groups, options) {
                    Ok(opened) => opened,
                    Err(error) => return Ok(not_decided(question, &error)),
                }
            }
        };
        let answer = match question.before {
            None => opened.decide(&asked.requests, &asked.state),
            Some(_) => {
                opened.start_afresh();
                for (requests, state) in &asked.before {
                    let _not_asked_for = opened.decide_once(requests, state);
                }
                opened.decide_once(&asked.requests, &asked.state)
            }
        };
        let answer = match answer {
            Ok(decision) => decided(question, &decision, opened.last_fuel()),
            Err(error) => not_decided(question, &error),
        };
        self.opened.insert(key, opened);
        Ok(answer)
    }
}

/// A line of the input.
enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// The next line, of which no more than `limit` bytes are kept; none at the end.
fn next_line(input: &mut impl BufRead, limit: u64) -> std::io::Result<Option<Line>> {
    let mut line = Vec::new();
    if input.take(limit.saturating_add(1)).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') || u64::try_from(line.len()).is_ok_and(|length| length <= limit) {
        return Ok(Some(Line::Whole(line)));
    }
    input.skip_until(b'\n')?;
    Ok(Some(Line::TooLong))
}

fn decided(question: &Question, decision: &Decision, fuel: u64) -> Value {
    let grants: Vec<Value> = question
        .requests
        .iter()
        .zip(&decision.grants)
        .map(|(request, grant)| {
            let mems: CpuSet = grant.mems.iter().copied().collect(); // the kernel writes both the same way
            json!({
                "name": request.name,
                "cpus": grant.cpus.to_string(),
                "blocked": grant.blocked.to_string(),
                "mems": mems.to_string(),
            })
        })
        .collect();
    let answer = json!({ "id": question.id, "grants": grants, "why": decision.why, "fuel": fuel });
    if decision.join_shared_pool { extended(answer, json!({ "joinSharedPool": true })) } else { answer }
}

/// A refusal, by the strategy or by the host for it, or a fault.
fn not_decided(question: &Question, error: &StrategyError) -> Value {
    let id = &question.id;
    match &*error.fault {
        Fault::Denied(denial) => {
            let request =
                denial.request.and_then(|at| question.requests.get(at)).map(|request| &request.name);
            let reason = denial.reason.to_string();
            json!({ "id": id, "denied": { "reason": reason, "request": request, "message": denial.message } })
        }
        Fault::Options(_) | Fault::Cpuset(_) => {
            json!({ "id": id, "denied": { "reason": "invalid", "request": null, "message": error.to_string() } })
        }
        _ => json!({ "id": id, "fault": { "kind": error.kind(), "message": error.to_string() } }),
    }
}

#[cfg(test)]
mod tests;
