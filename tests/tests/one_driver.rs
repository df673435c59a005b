//! The daemon and `dracpu simulate` run the same driver: a rule that is broken there is broken in both.

use anyhow::{Context, Result};
use dracpu_tests::support::daemon::dracpu_bin;
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{Node, NodeConfig};
use dracpu_tests::support::scheduler::Ask;
use serde_json::{Value, json};
use std::process::Command;

const NUMA0: &str = "cpudevnuma000";
/// Takes the floor under the shared pool away, in builds with debug assertions.
const BREAK: &str = "DRACPU_NO_FLOOR";

/// Whether the daemon gives a claim the last shared CPU.
async fn daemon_gives_all(broken: bool) -> Result<bool> {
    let mut config = NodeConfig::new(Machine::small(4, 1));
    if broken {
        config.envs.push((BREAK.to_owned(), "1".to_owned()));
    }
    let node = Node::start(config).await?;
    let all = node.allocate("all", &[Ask::of("r", NUMA0, 4)]).await?;
    Ok(node.prepare(&all).await.is_ok())
}

/// Whether `dracpu simulate` does.
fn simulate_gives_all(broken: bool) -> Result<bool> {
    let directory = tempfile::tempdir()?;
    let (machine, story) = (directory.path().join("machine.json"), directory.path().join("story.jsonl"));
    let cpu = |id: u32| json!({"cpu": id, "coreId": id, "socket": 0, "numa": 0, "llcId": 0});
    let cpus: Vec<Value> = (0..4).map(cpu).collect();
    std::fs::write(&machine, json!({"schema": "dracpu.topology/v1", "cpus": cpus}).to_string())?;
    let request = json!({"name": "r", "device": NUMA0, "cpus": "4"});
    std::fs::write(&story, json!({"op": "prepare", "claim": "all", "requests": [request]}).to_string())?;
    let mut command = Command::new(dracpu_bin()?);
    command.arg("simulate").arg("--machine").arg(&machine).args(["-o", "json"]).arg(&story);
    if broken {
        command.env(BREAK, "1");
    }
    let output = command.output()?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    answer["ok"].as_bool().context("an answer says whether it is ok")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_broken_in_the_driver_is_broken_in_the_daemon_and_in_simulate() -> Result<()> {
    assert_eq!((daemon_gives_all(false).await?, simulate_gives_all(false)?), (false, false));
    assert_eq!((daemon_gives_all(true).await?, simulate_gives_all(true)?), (true, true));
    Ok(())
}
