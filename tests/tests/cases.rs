//! The list of faults met elsewhere (`docs/dev/cases.md`) against what there is, and the cases that have no scenario.

use anyhow::{Context, Result, ensure};
use dracpu_tests::support::api_server::{Resource, Seen, Verb};
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::scheduler::Ask;
use dracpu_tests::support::wait::{SOON, poll};
use std::collections::BTreeSet;
use std::path::Path;

const NUMA0: &str = "cpudevnuma000";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a directory of the repository")
}

fn text(path: &str) -> Result<String> {
    std::fs::read_to_string(repository().join(path)).with_context(|| path.to_owned())
}

/// Whether a proof of the list is there: a scenario, `file::test`, or `file: words`.
fn exists(id: &str, proof: &str) -> Result<()> {
    let proof = proof.trim().trim_matches('`');
    if proof == "scenario" {
        return text(&format!("tests/scenarios/{id}.json")).map(|_| ());
    }
    if let Some((file, test)) = proof.split_once("::") {
        let found = text(file)?.lines().any(|line| line.contains(&format!("fn {test}(")));
        ensure!(found, "{file} has no test {test}");
        return Ok(());
    }
    let (file, words) = proof.split_once(": ").with_context(|| format!("`{proof}` names no proof"))?;
    ensure!(text(file)?.contains(words), "{file} does not say `{words}`");
    Ok(())
}

#[test]
fn every_case_of_the_list_is_proven_and_every_scenario_is_in_it() -> Result<()> {
    let list = text("docs/dev/cases.md")?;
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() == 5 && cells[1].len() == 3)
        .filter(|cells| cells[1] != "---")
        .collect();
    let waiting = list.lines().find(|line| line.starts_with("Waiting for ")).unwrap_or_default();
    for row in &rows {
        let (id, proofs) = (row[1], row[3]);
        if proofs == "waits" {
            ensure!(waiting.contains(id), "{id} waits, and is not in the last sentence");
            continue;
        }
        for proof in proofs.split(", ") {
            exists(id, proof).with_context(|| id.to_owned())?;
        }
    }
    let listed: BTreeSet<&str> = rows.iter().map(|row| row[1]).collect();
    ensure!(listed.len() == rows.len(), "an id stands twice");
    for entry in std::fs::read_dir(repository().join("tests/scenarios"))? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        let id = name.trim_end_matches(".json");
        ensure!(listed.contains(id), "the scenario {id} is not in the list");
    }
    Ok(())
}

#[test]
fn a_proof_that_is_not_there_is_noticed() {
    for proof in [
        "`tests/tests/cases.rs::no_such_test`",
        "`tests/tests/no_such_file.rs::a_test`",
        "`docs/dev/cases.md: words that nobody wrote`",
        "nothing",
    ] {
        assert!(exists("A01", proof).is_err(), "{proof}");
    }
    assert!(exists("A00", "scenario").is_err());
}

fn small() -> NodeConfig {
    NodeConfig::new(Machine::small(8, 2))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_allocated_while_the_driver_was_away_is_prepared_and_its_slice_is_the_same_object()
-> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let before = node.api.list(Resource::ResourceSlices);
    node.kill_daemon().await?;
    let claim = node.allocate("late", &[Ask::of("r", NUMA0, 4)]).await?;
    node.start_daemon().await?;
    node.prepare(&claim).await?;
    let own = node.record_of(&claim.uid)?;
    ensure!(node.api.list(Resource::ResourceSlices) == before, "neither written nor made anew");
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_asks_for_its_own_objects_alone() -> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let claim = node.write_claim("c", NUMA0, "2", &[]);
    let _nobody_asks = node.write_claim("of-nobody-here", NUMA0, "2", &[]);
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    node.crash_and_restart().await?;
    // Its start is over when it watches again.
    let watches = || async {
        let watches = node.api.count(Verb::Watch, Resource::ResourceSlices);
        ensure!(watches > 1, "{watches} watches");
        Ok(())
    };
    poll("second watch", SOON, watches).await?;
    let seen = node.api.seen();
    let of = |verb, resource| {
        let asked = seen.iter().filter(|seen| (seen.verb, seen.resource) == (verb, resource));
        asked.map(|seen| seen.name.as_str()).collect::<Vec<_>>()
    };
    ensure!(
        of(Verb::Get, Resource::ResourceClaims) == ["c"],
        "one GET for each new claim, none for a recorded one"
    );
    ensure!(of(Verb::Get, Resource::Nodes).iter().all(|name| *name == NODE));
    let broad = |seen: &&Seen| {
        matches!(seen.verb, Verb::List | Verb::Watch) && seen.resource != Resource::ResourceSlices
    };
    ensure!(!seen.iter().any(|seen| broad(&seen)), "lists or watches what is not its own: {seen:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_defaults_logs_neither_errors_nor_warnings() -> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let claim = node.write_claim("c", NUMA0, "2", &[]);
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    node.terminate_pod(&pod).await?;
    node.terminate_daemon().await?;
    node.start_daemon().await?;
    for line in node.daemon_lines().await {
        ensure!(!line.contains("ERROR") && !line.contains("WARN"), "{line}");
    }
    Ok(())
}
