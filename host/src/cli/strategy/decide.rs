//! Questions to a strategy, one a line, each answered in a line before the next is read. The component is
//! asked as the daemon asks it; nothing is held between questions.

mod machines;
mod question;

use self::machines::Machines;
use self::question::Question;
use super::{Failure, catalogue, extended};
use crate::device::Group;
use crate::strategy::{Decision, Fault, Loaded, Opened, StrategyError};
use anyhow::Context as _;
use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::process::ExitCode;

/// Ask a strategy for decisions: questions in, answers out, as JSON Lines
///
/// A question: {"id":"1","available":"0-7","requests":[{"name":"r","count":2,"group":"0-7"}]}. `available`
/// are the free CPUs; `group` is a CPU list or a device name, left out it is every CPU; `options` are the
/// claim's. The answer has `grants`, or `denied`, or `fault`; `error` when the question itself is wrong, and
/// then the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    echo '{\"id\":\"1\",\"available\":\"0-7\",\"requests\":[{\"name\":\"r\",\"count\":2}]}' |\n  \
    dracpu strategy decide --strategy packed")]
pub(super) struct Args {
    /// Name of a built-in strategy, or a component file
    #[arg(long, value_name = "NAME|FILE")]
    strategy: String,
    /// Machine of the questions: a sysfs directory or .tar.gz of one, a file written by `topology -o json` or
    /// `gatherinfo`, or an example of `topology --list` [default: this host]
    #[arg(long, value_name = "WHAT", conflicts_with = "machines")]
    machine: Option<String>,
    /// Machines that questions choose from by `topology`: a directory of them, or JSON Lines with one a line
    #[arg(long, value_name = "DIR|F.jsonl[.gz]")]
    machines: Option<String>,
    /// The node's options
    #[arg(long, value_name = "JSON", default_value = "{}")]
    options: String,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options: Map<String, Value> = serde_json::from_str(&args.options)
        .with_context(|| format!("--options {}: not a JSON object", args.options))
        .map_err(Failure::Usage)?;
    let loaded = super::load(&catalogue(&[])?, &args.strategy)?;
    let machines =
        Machines::open(args.machine.as_deref(), args.machines.as_deref()).map_err(Failure::Usage)?;
    let mut desk = Desk { loaded, options, machines, opened: HashMap::new() };
    desk.serve(std::io::stdin().lock(), std::io::stdout().lock())
}

/// Strategies opened so far, by machine and groups: opening costs more than asking.
type OpenedByGroups = HashMap<(String, Vec<(String, CpuSet)>), Opened>;

/// So many are kept open; each has an instance with memory of its own.
const MOST_OPENED: usize = 64;

struct Desk {
    loaded: Loaded,
    options: Map<String, Value>,
    machines: Machines,
    opened: OpenedByGroups,
}

impl Desk {
    fn serve(&mut self, questions: impl BufRead, mut answers: impl Write) -> Result<ExitCode, Failure> {
        let mut code = ExitCode::SUCCESS;
        for line in questions.split(b'\n') {
            let line = line.context("cannot read standard input").map_err(Failure::Failed)?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let answer = self.answer(&line);
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
            Err(error) => json!({ "id": question::id_of(line), "error": format!("not a question: {error}") }),
            Ok(question) => self
                .decide(&question)
                .unwrap_or_else(|error| json!({ "id": question.id, "error": format!("{error:#}") })),
        }
    }

    fn decide(&mut self, question: &Question) -> anyhow::Result<Value> {
        let machine = self.machines.of(question.topology.as_deref())?;
        let asked = question.asked(machine)?;
        let key = (
            machine.name.clone(),
            asked.groups.iter().map(|group| (group.device.clone(), group.cpus.clone())).collect(),
        );
        let mut opened = match self.opened.remove(&key) {
            Some(opened) => opened,
            None => {
                if self.opened.len() >= MOST_OPENED {
                    self.opened.clear();
                }
                match self.loaded.open(&machine.topology, &machine.reserved, &asked.groups, &self.options) {
                    Ok(opened) => opened,
                    Err(error) => return Ok(not_decided(question, &error)),
                }
            }
        };
        let answer = match opened.decide(&asked.requests, &asked.state) {
            Ok(decision) => decided(question, &decision, opened.last_fuel()),
            Err(error) => not_decided(question, &error),
        };
        self.opened.insert(key, opened);
        Ok(answer)
    }
}

/// The groups, requests and state of a question, for one machine.
struct Asked {
    groups: Vec<Group>,
    requests: Vec<crate::strategy::Request>,
    state: crate::strategy::State,
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
