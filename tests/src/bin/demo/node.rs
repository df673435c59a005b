//! The embedded node as a child process, spoken to in JSON lines.

use anyhow::{Context, Result, bail};
use dracpu_cpuset::CpuSet;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) struct EmbeddedNode {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    directory: PathBuf,
}

impl EmbeddedNode {
    /// Starts the process; it lies beside this one.
    pub(crate) fn start() -> Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("embedded-node");
        let mut child = Command::new(&binary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}: build it with `make demo`", binary.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("the node's output")?);
        Ok(Self { child, input, output, directory: PathBuf::new() })
    }

    /// Where the node keeps its files, known once it is up.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A command that must succeed.
    pub(crate) fn ask(&mut self, command: &Value) -> Result<Value> {
        let answer = self.exchange(command)?;
        if answer["ok"] != true {
            bail!("{command}: {}", answer["error"].as_str().unwrap_or("refused without a reason"));
        }
        if let Some(directory) = answer["directory"].as_str() {
            self.directory = directory.into();
        }
        Ok(answer)
    }

    /// A command that must be refused; the reason.
    pub(crate) fn refusal(&mut self, command: &Value) -> Result<String> {
        let answer = self.exchange(command)?;
        if answer["ok"] == true {
            bail!("{command} was not refused");
        }
        Ok(answer["error"].as_str().unwrap_or_default().to_owned())
    }

    /// Runs a pod with one container, `main`.
    pub(crate) fn run_pod(&mut self, pod: &str, claims: &[&str], env: &[&str]) -> Result<Value> {
        let container = json!({"name": "main", "claims": claims, "env": env});
        self.ask(&json!({"op": "pod", "pod": pod, "claims": claims, "containers": [container]}))
    }

    fn exchange(&mut self, command: &Value) -> Result<Value> {
        let input = self.input.as_mut().context("the node's input")?;
        writeln!(input, "{command}").context("the embedded node is gone")?;
        input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("no answer to {command}: {line:?}"))
    }
}

impl Drop for EmbeddedNode {
    /// The node ends, with the daemon, when its input does.
    fn drop(&mut self) {
        drop(self.input.take());
        let _gone = self.child.wait();
    }
}

/// A CPU list of an answer.
pub(crate) fn cpus_in(value: &Value) -> Result<CpuSet> {
    let text = value.as_str().with_context(|| format!("a CPU list was expected, found {value}"))?;
    Ok(text.parse()?)
}

/// The claims of a `state` answer with their CPUs.
pub(crate) fn claims_in(state: &Value) -> Result<BTreeMap<String, CpuSet>> {
    let claims = state["claims"].as_object().context("the claims of the node")?;
    claims.iter().map(|(name, cpus)| Ok((name.clone(), cpus_in(cpus)?))).collect()
}
