//! The command line on this node.

use super::Node;
use crate::support::daemon::run_dracpu;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What a verb answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its exit code.
    pub code: i32,
    /// What it wrote for the asker.
    pub stdout: String,
    /// What it said beside.
    pub stderr: String,
}

impl Node {
    /// Runs a verb that asks this node's daemon.
    ///
    /// # Errors
    /// When it cannot be run, or was ended by a signal.
    pub async fn dracpu(&self, args: &[&str]) -> Result<Answer> {
        let root = format!("--kubelet-root-dir={}", self.path("k").display());
        let args: Vec<&str> = args.iter().copied().chain([root.as_str()]).collect();
        let output = run_dracpu(&args, self.directory.path()).await?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().with_context(|| format!("{}", output.status))?;
        Ok(Answer { code, stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    /// The same for a verb that succeeds with one JSON object.
    ///
    /// # Errors
    /// When it does not.
    pub async fn dracpu_json(&self, args: &[&str]) -> Result<Value> {
        let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
        let answer = self.dracpu(&args).await?;
        ensure!(answer.code == 0, "{answer:?}");
        serde_json::from_str(&answer.stdout).with_context(|| answer.stdout.clone())
    }
}
