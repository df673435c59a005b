//! Long runs: memory, file descriptors and latency stay what they are, however many claims come and go.
//!
//! Short by default. `SOAK_CLAIMS` is how many claims `dracpu simulate` is told of, `SOAK_CLAIMS_ON_SOCKETS` how many the
//! daemon; `make soak-claims` tells a million and 20,000, and then looks at the latency, too.

#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

use anyhow::{Context as _, Result, ensure};
use dracpu_model::machine::Machine as Model;
use dracpu_model::run::new_node;
use dracpu_model::simulate::Simulate;
use dracpu_tests::support::daemon::compiled_strategies as cache;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a process takes at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    resident_kib: u64,
    files: usize,
}

impl Sample {
    fn of(pid: u32) -> Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let resident_kib = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(Self { resident_kib, files: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() })
    }
}

/// A tenth of a run.
#[derive(Debug, Clone, Copy)]
struct Tenth {
    at_its_end: Sample,
    median: Duration,
}

/// Runs `round` so often, and looks at the process after each tenth.
async fn tenths(
    pid: u32,
    rounds: usize,
    mut round: impl AsyncFnMut(usize) -> Result<()>,
) -> Result<Vec<Tenth>> {
    let mut tenths = Vec::new();
    for tenth in 0..10 {
        let mut took = Vec::new();
        for at in rounds * tenth / 10..rounds * (tenth + 1) / 10 {
            let began = Instant::now();
            round(at).await?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        tenths.push(Tenth { at_its_end: Sample::of(pid)?, median: took[took.len() / 2] });
    }
    eprintln!("{tenths:#?}");
    Ok(tenths)
}

/// The last tenth is as the first one. Short runs say nothing of time, and a page more or less is no leak.
fn is_flat(tenths: &[Tenth], long: bool) -> Result<()> {
    let (first, last) = (tenths[0], tenths[9]);
    let slack = if long { 0 } else { 2048 };
    let most = first.at_its_end.resident_kib * 105 / 100 + slack;
    ensure!(last.at_its_end.resident_kib <= most, "memory grows: {first:?} to {last:?}");
    // A connection may be open for the moment; one for each claim would be many.
    ensure!(
        last.at_its_end.files <= first.at_its_end.files + 4,
        "file descriptors stay open: {first:?} to {last:?}"
    );
    ensure!(!long || last.median * 2 <= first.median * 3, "it gets slower: {first:?} to {last:?}");
    Ok(())
}

fn number(variable: &str, default: usize) -> (usize, bool) {
    match std::env::var(variable) {
        Ok(text) => (text.parse().expect("a number"), true),
        Err(_) => (default, false),
    }
}

#[tokio::test]
async fn claims_come_and_go_in_simulation_and_nothing_grows() -> Result<()> {
    let (rounds, long) = number("SOAK_CLAIMS", 1000);
    let truth = new_node(&Model::named("two-socket"), 0);
    let binary = dracpu_tests::support::daemon::dracpu_bin()?;
    let mut node = Simulate::start(&binary, &cache()?, &truth, &[])?;
    let pid = node.pid();
    let mut ask = |event: Value| -> Result<Value> {
        let answer = node.ask(&serde_json::from_value(event)?)?;
        ensure!(answer["ok"] == true, "{answer}");
        Ok(answer)
    };
    let round = async |at: usize| -> Result<()> {
        let (claim, device) = (format!("claim-{at}"), format!("cpudevnuma{:03}", at % 2));
        let cpus = (at % 7 + 1).to_string();
        let requests = json!([{"name": "r", "device": device, "cpus": cpus}]);
        let prepared = ask(json!({"op": "prepare", "claim": claim, "requests": requests}))?;
        let created = ask(json!({"op": "create", "container": "app", "pod": "p", "claims": [claim]}))?;
        ensure!(created["cpus"] == prepared["cpus"], "{prepared} and {created}");
        ask(json!({"op": "stop", "container": "app"}))?;
        ask(json!({"op": "remove", "container": "app"}))?;
        let after = ask(json!({"op": "unprepare", "claim": claim}))?;
        ensure!(after["claims"] == json!({}) && after["shared"] == "0-63", "{after}");
        ask(json!({"op": "delete", "claim": claim}))?;
        Ok(())
    };
    is_flat(&tenths(pid, rounds, round).await?, long)
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_come_and_go_over_sockets_and_nothing_grows() -> Result<()> {
    let (rounds, long) = number("SOAK_CLAIMS_ON_SOCKETS", 200);
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    let node = Node::start(NodeConfig::new(Machine::of(shape))).await?;
    node.devices().await?;
    let pid = node.daemon_pid().await.context("the daemon runs")?;
    let round = async |at: usize| -> Result<()> {
        let name = format!("c{at}");
        let claim =
            node.write_claim(&name, &format!("cpudevnuma{:03}", at % 2), &(at % 7 + 1).to_string(), &[]);
        let pod = node.run_pod(&name, &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
        ensure!(pod.containers["app"].is_ok(), "{:?}", pod.containers);
        node.terminate_pod(&pod).await
    };
    let tenths = tenths(pid, rounds, round).await?;
    node.ledger_is(&[]).await?;
    is_flat(&tenths, long)
}
