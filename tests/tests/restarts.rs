//! Whoever restarts, and whenever: one owner for each CPU, and no answered claim forgotten.

use anyhow::{Context, Result};
use dracpu_tests::support::api_server::{Presence, Resource, Verb};
use dracpu_tests::support::cpus::{Cpus, cpus};
use dracpu_tests::support::daemon::Daemon;
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::scheduler::{Ask, DRIVER};
use dracpu_tests::support::wait::{SOON, poll};
use std::time::{Duration, Instant};

const NUMA0: &str = "cpudevnuma000";

fn server() -> NodeConfig {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    NodeConfig::new(Machine::of(shape))
}

fn cpus_of(node: &Node, claim: &ClaimRef) -> Result<Cpus> {
    node.record_of(&claim.uid)
}

/// Starts the daemon so that it dies at a step of a claim operation.
async fn start_dying_at(node: &mut Node, step: &str) -> Result<()> {
    node.config.envs = vec![("DRACPU_CRASH_AT".to_owned(), step.to_owned())];
    let started = node.start_daemon().await;
    node.config.envs.clear();
    started
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_step_of_prepare_leaves_one_owner_a_cpu_and_a_repeatable_answer() -> Result<()> {
    let mut node = Node::start(server()).await?;
    let old = node.allocate("old", &[Ask::of("r", NUMA0, 4)]).await?;
    let running = node.run_pod("old", &[&old], &[ContainerAsk::new("app", &[&old])]).await?;
    let of_old = cpus_of(&node, &old)?;
    node.kill_daemon().await?;
    for step in [
        "ClaimRead",
        "Decided",
        "Booked",
        "MetadataTempWritten",
        "MetadataRenamed",
        "MetadataSpecTempWritten",
        "MetadataSpecRenamed",
        "TempCreated",
        "TempWritten",
        "TempSynced",
        "Renamed",
        "WriteSynced",
        "Answering",
    ] {
        start_dying_at(&mut node, step).await?;
        let claim =
            node.allocate(&format!("new-at-{}", step.to_lowercase()), &[Ask::of("r", NUMA0, 2)]).await?;
        let lost = node.prepare(&claim).await;
        assert!(lost.is_err(), "{step}: the daemon died before the answer");
        node.wait_daemon_end().await.context(step)?;
        let recorded = node.recorded()?;
        node.start_daemon().await.context(step)?;
        assert_eq!(recorded[&old.uid], of_old, "{step}");
        node.ledger_is(&recorded_claims(&recorded, &[&old, &claim])).await.context(step)?;
        let answer = node.prepare(&claim).await.context(step)?;
        let own = cpus_of(&node, &claim)?;
        assert!(
            recorded.get(&claim.uid).is_none_or(|before| *before == own),
            "{step}: what was durable stays"
        );
        assert_eq!(node.prepare(&claim).await?, answer, "{step}");
        node.ledger_is(&[(&old, &of_old), (&claim, &own)]).await.context(step)?;
        let leftovers: Vec<_> = std::fs::read_dir(node.cdi_dir())?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .filter(|name| !name.to_string_lossy().ends_with(".json"))
            .collect();
        assert!(leftovers.is_empty(), "{step}: {leftovers:?}");
        node.unprepare(&claim).await?;
        node.api.delete(Resource::ResourceClaims, "default", &claim.name);
        node.kill_daemon().await?;
    }
    assert_eq!(node.runtime.effective_cpus(&running.id("app")), of_old);
    Ok(())
}

/// Those of the claims that are recorded, with their CPUs.
fn recorded_claims<'a>(
    recorded: &'a std::collections::BTreeMap<String, Cpus>,
    claims: &[&'a ClaimRef],
) -> Vec<(&'a ClaimRef, &'a Cpus)> {
    claims.iter().filter_map(|claim| Some((*claim, recorded.get(&claim.uid)?))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_step_of_unprepare_leaves_a_claim_that_can_be_unprepared_again() -> Result<()> {
    let mut node = Node::start(server()).await?;
    let old = node.allocate("old", &[Ask::of("r", NUMA0, 4)]).await?;
    node.prepare(&old).await?;
    let of_old = cpus_of(&node, &old)?;
    node.kill_daemon().await?;
    for step in ["Removing", "MetadataUnmounted", "MetadataRemoved", "Unlinked", "RemovalSynced", "Released"]
    {
        start_dying_at(&mut node, step).await?;
        let claim = node.allocate("going", &[Ask::of("r", NUMA0, 2)]).await?;
        node.prepare(&claim).await?;
        let lost = node.unprepare(&claim).await;
        assert!(lost.is_err(), "{step}: the daemon died before the answer");
        node.wait_daemon_end().await.context(step)?;
        node.start_daemon().await.context(step)?;
        let recorded = node.recorded()?;
        node.ledger_is(&recorded_claims(&recorded, &[&old, &claim])).await.context(step)?;
        node.unprepare(&claim).await.context(step)?;
        node.ledger_is(&[(&old, &of_old)]).await.context(step)?;
        node.api.delete(Resource::ResourceClaims, "default", "going");
        node.kill_daemon().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_while_the_daemon_was_away_is_put_right_when_it_is_back() -> Result<()> {
    let node = Node::start(server()).await?;
    let running = node.allocate("running", &[Ask::of("r", NUMA0, 4)]).await?;
    let waiting = node.allocate("waiting", &[Ask::of("r", NUMA0, 2)]).await?;
    let mut pod = node.run_pod("p", &[&running], &[ContainerAsk::new("app", &[&running])]).await?;
    node.prepare(&waiting).await?; // prepared, and no container yet
    let (of_running, of_waiting) = (cpus_of(&node, &running)?, cpus_of(&node, &waiting)?);
    let slices = node.api.list(Resource::ResourceSlices);
    node.kill_daemon().await?;
    let late = node.run_pod("late", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
    assert_eq!(node.runtime.effective_cpus(&late), cpus("0-31"), "nobody was there to confine it");
    node.runtime.stop_container(&pod.id("app")).await?;
    node.start_daemon().await?;
    node.ledger_is(&[(&running, &of_running), (&waiting, &of_waiting)]).await?;
    node.begin_container(&mut pod, "app").await?;
    let claimed = node.run_pod("w", &[&waiting], &[ContainerAsk::new("app", &[&waiting])]).await?;
    assert_eq!(node.runtime.effective_cpus(&claimed.id("app")), of_waiting);
    node.ledger_is(&[(&running, &of_running), (&waiting, &of_waiting)]).await?;
    assert_eq!(node.api.list(Resource::ResourceSlices), slices, "not even rewritten");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_restart_keeps_claims_whose_containers_it_lost() -> Result<()> {
    let node = Node::start(server()).await?;
    let a = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    let b = node.allocate("b", &[Ask::of("r", NUMA0, 2)]).await?;
    let mut kept = node.run_pod("kept", &[&a], &[ContainerAsk::new("app", &[&a])]).await?;
    let mut lost = node.run_pod("lost", &[&b], &[ContainerAsk::new("app", &[&b])]).await?;
    let (of_a, of_b) = (cpus_of(&node, &a)?, cpus_of(&node, &b)?);
    node.runtime.stop().await;
    let unready = || async {
        let (status, reason) = node.get("/readyz").await?;
        anyhow::ensure!(status == 503 && reason.contains("nri"), "{status} {reason}");
        Ok(())
    };
    poll("word of the lost runtime", SOON, unready).await?;
    node.runtime.lose_container(&lost.id("app"));
    node.runtime.synchronize_in_parts(2);
    node.runtime.begin()?;
    let again = Instant::now();
    node.wait_serving().await?;
    assert!(again.elapsed() < Duration::from_secs(5), "reconnects at once, took {:?}", again.elapsed());
    node.ledger_is(&[(&a, &of_a), (&b, &of_b)]).await?;
    node.begin_container(&mut lost, "app").await?;
    node.restart_container(&mut kept, "app").await?;
    let shared = node.ledger_is(&[(&a, &of_a), (&b, &of_b)]).await?;
    let plain = node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
    assert_eq!(node.runtime.effective_cpus(&plain), shared);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_restart_brings_the_slices_back_and_prepares_alike() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    let before = node.prepare(&claim).await?;
    let own = cpus_of(&node, &claim)?;
    let devices = node.devices().await?;
    node.kubelet.restart().await;
    let registered = node.kubelet.wait_registered(DRIVER, SOON).await?;
    assert_eq!(registered.registrations, 2);
    assert_eq!(node.devices().await?, devices, "published again");
    assert_eq!(node.prepare(&claim).await?, before);
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_api_server_recorded_claims_work_and_new_ones_are_refused_soon() -> Result<()> {
    let node = Node::start(server()).await?;
    let old = node.allocate("old", &[Ask::of("r", NUMA0, 4)]).await?;
    let new = node.allocate("new", &[Ask::of("r", NUMA0, 2)]).await?;
    let answer = node.prepare(&old).await?;
    let own = cpus_of(&node, &old)?;
    for away in [Presence::Refusing, Presence::Hanging] {
        node.kill_daemon().await?;
        node.api.set_presence(away).await?;
        node.launch_daemon().await?;
        node.wait_connected().await?;
        assert_eq!(node.prepare(&old).await?, answer);
        let asked = Instant::now();
        let refusal = format!("{:#}", node.prepare(&new).await.unwrap_err());
        assert!(asked.elapsed() < Duration::from_secs(15), "took {:?}", asked.elapsed());
        assert!(refusal.to_lowercase().contains("api server"), "{refusal}");
        node.ledger_is(&[(&old, &own)]).await?;
        node.api.set_presence(Presence::Here).await?;
        node.api.delete_slices(NODE, None);
        node.devices().await.context("published once the API server is back")?;
    }
    node.prepare(&new).await?;
    let of_new = cpus_of(&node, &new)?;
    node.ledger_is(&[(&old, &own), (&new, &of_new)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_daemon_leaves_slices_and_records_and_no_sockets() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = cpus_of(&node, &claim)?;
    let status = node.terminate_daemon().await?;
    assert_eq!(status.code(), Some(0), "{status}");
    for socket in ["k/plugins_registry/dra.cpu@reg.sock", "k/plugins/dra.cpu/dra@dra.sock"] {
        assert!(!node.path(socket).exists(), "{socket}");
    }
    assert_eq!(node.recorded()?[&claim.uid], own);
    assert!(!node.api.list(Resource::ResourceSlices).is_empty());
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
    node.start_daemon().await?;
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_waits_and_gives_up_naming_the_holder() -> Result<()> {
    let node = Node::start(server()).await?;
    let mut args = node.daemon_args()?;
    args.args.push("--lock-timeout=1s".to_owned());
    let began = Instant::now();
    let mut second = Daemon::spawn(&args)?;
    let status = second.wait_exit(SOON).await?;
    assert_eq!(status.code(), Some(75), "{:?}", second.lines());
    assert!(began.elapsed() >= Duration::from_secs(1), "it waited");
    let lines = second.lines().join("\n");
    let holder = node.get("/healthz").await?;
    assert_eq!(holder.0, 200, "the first one serves on");
    let pid = node.daemon_pid().await.context("the first one runs")?.to_string();
    assert!(lines.contains(&pid), "the holder {pid} is named: {lines}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_daemon_follows_a_killed_one_with_full_state() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = cpus_of(&node, &claim)?;
    let second = Daemon::spawn(&node.daemon_args()?)?;
    node.kill_daemon().await?;
    node.adopt_daemon(second).await;
    node.wait_serving().await?;
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steady_state_is_silent() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = cpus_of(&node, &claim)?;
    node.ledger_is(&[(&claim, &own)]).await?;
    let patches = || node.api.count(Verb::Patch, Resource::ResourceClaims);
    let written = || async {
        anyhow::ensure!(patches() == 1, "{} patches", patches());
        Ok(())
    };
    poll("the claim's status", SOON, written).await?;
    let writes = || {
        let slices = [Verb::Create, Verb::Update, Verb::Delete];
        (slices.map(|verb| node.api.count(verb, Resource::ResourceSlices)), patches())
    };
    let before = (writes(), node.runtime.calls().len(), node.daemon_lines().await.len());
    // what could wake it: a watch that ends, one that expires, a bookmark
    let watches = node.api.count(Verb::Watch, Resource::ResourceSlices);
    node.api.send_bookmarks();
    node.api.end_watches();
    let again = || async {
        let now = node.api.count(Verb::Watch, Resource::ResourceSlices);
        anyhow::ensure!(now > watches, "{now} watches");
        Ok(())
    };
    poll("another watch", SOON, again).await?;
    assert_eq!((writes(), node.runtime.calls().len(), node.daemon_lines().await.len()), before);
    Ok(())
}
