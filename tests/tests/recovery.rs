//! What an operator, an older driver or a slow machine leaves behind is taken over, held or put right.

use anyhow::{Context, Result, ensure};
use dracpu_tests::support::api_server::{Resource, Verb};
use dracpu_tests::support::cpus::{Cpus, cpus, list};
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig, PLUGIN};
use dracpu_tests::support::process_clock::ProcessClock;
use dracpu_tests::support::runtime::RuntimeVersion;
use dracpu_tests::support::scheduler::{Ask, CAPACITY, DRIVER};
use dracpu_tests::support::wait::{self, SOON, poll};
use serde_json::json;

const NUMA0: &str = "cpudevnuma000";

fn server() -> NodeConfig {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    NodeConfig::new(Machine::of(shape))
}

/// A spec as the Go driver writes it: a newer version, no record.
fn write_plain_spec(node: &Node, uid: &str, cpus: &str) -> Result<()> {
    let spec = json!({
        "cdiVersion": "0.8.0", "kind": "dra.k8s.io/cpu",
        "devices": [{"name": format!("claim-{uid}"),
                     "containerEdits": {"env": [format!("DRA_CPUSET_{uid}={cpus}")]}}],
    });
    std::fs::write(node.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{uid}.json")), spec.to_string())?;
    Ok(())
}

fn claim(uid: &str) -> ClaimRef {
    ClaimRef { namespace: "default".to_owned(), name: format!("of-{uid}"), uid: uid.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_the_go_driver_are_taken_over_with_their_running_containers() -> Result<()> {
    let node = Node::without_daemon(server()).await?;
    let result = json!({"request": "r", "driver": DRIVER, "pool": "node-a", "device": NUMA0,
                        "consumedCapacity": {CAPACITY: "4"}});
    let old = dracpu_tests::support::scheduler::write_claim(&node.api, "old", None, &[result], &[]);
    write_plain_spec(&node, &old.uid, "0-1,16-17")?;
    let id = format!("dra.k8s.io/cpu=claim-{}", old.uid);
    let mut pod = node.run_pod_with_cdi("p", &old, std::slice::from_ref(&id)).await?;
    node.start_daemon().await?;
    let own = cpus("0-1,16-17");
    node.ledger_is(&[(&old, &own)]).await?;
    node.restart_container(&mut pod, "app").await?;
    let answer = node.prepare(&old).await?;
    assert_eq!(
        (answer.len(), &answer[0].cdi_device_ids[0]),
        (1, &id),
        "asked again, as after a kubelet restart"
    );
    node.ledger_is(&[(&old, &own)]).await?;
    node.unprepare(&old).await?;
    node.runtime.remove_pod_sandbox(&pod.sandbox).await?;
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_records_are_both_kept_out_of_every_pool_until_both_are_gone() -> Result<()> {
    let node = Node::without_daemon(server()).await?;
    write_plain_spec(&node, "u1", "1-2")?;
    write_plain_spec(&node, "u2", "2-3")?;
    node.start_daemon().await?;
    assert!(node.metric("dra_cpu_conflicted_cpus").await? >= 1.0);
    let plain = node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
    assert!(node.runtime.effective_cpus(&plain).is_disjoint(&cpus("1-3")));
    node.unprepare(&claim("u1")).await?;
    node.run_pod("next", &[], &[ContainerAsk::new("app", &[])]).await?;
    assert!(node.runtime.effective_cpus(&plain).is_disjoint(&cpus("2-3")));
    node.unprepare(&claim("u2")).await?;
    node.run_pod("last", &[], &[ContainerAsk::new("app", &[])]).await?;
    assert_eq!(node.metric("dra_cpu_conflicted_cpus").await?, 0.0);
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_record_was_wiped_is_held_and_proven_by_the_api_server() -> Result<()> {
    let node = Node::start(server()).await?;
    let lost = node.allocate("lost", &[Ask::of("r", NUMA0, 4)]).await?;
    let pod = node.run_pod("p", &[&lost], &[ContainerAsk::new("app", &[&lost])]).await?;
    let own = node.record_of(&lost.uid)?;
    node.kill_daemon().await?;
    for entry in std::fs::read_dir(node.cdi_dir())? {
        std::fs::remove_file(entry?.path())?;
    }
    let forged =
        ContainerAsk { env: vec!["DRA_CPUSET_made-up=8-15".to_owned()], ..ContainerAsk::new("app", &[]) };
    let forger = node.run_pod("forger", &[], &[forged]).await?.id("app");
    node.start_daemon().await?;
    let proven = || async {
        ensure!(node.record_of(&lost.uid)? == own);
        Ok(())
    };
    poll("record", SOON, proven).await?;
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own, "never touched");
    // the answers of the API server come into force with a hook
    let settled = || async {
        let other = node.run_pod("other", &[], &[ContainerAsk::new("app", &[])]).await?;
        node.runtime.remove_pod_sandbox(&other.sandbox).await?;
        node.ledger_is(&[(&lost, &own)]).await
    };
    poll("settled books", SOON, settled).await?;
    assert!(node.runtime.effective_cpus(&forger).is_disjoint(&own));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_claim_gets_no_cpus_of_a_container_that_the_runtime_tells_of_later() -> Result<()> {
    let node = Node::start(server()).await?;
    let lost = node.allocate("lost", &[Ask::of("r", NUMA0, 4)]).await?;
    let pod = node.run_pod("p", &[&lost], &[ContainerAsk::new("app", &[&lost])]).await?;
    let own = node.record_of(&lost.uid)?;
    let next = node.allocate("next", &[Ask::of("r", NUMA0, 4)]).await?;
    node.kill_daemon().await?;
    for entry in std::fs::read_dir(node.cdi_dir())? {
        std::fs::remove_file(entry?.path())?;
    }
    node.runtime.stop().await;
    node.launch_daemon().await?;
    node.kubelet.wait_registered(DRIVER, SOON).await?;
    let gets = node.api.count(Verb::Get, Resource::ResourceClaims);
    let later = async {
        let asked = || (node.api.count(Verb::Get, Resource::ResourceClaims) > gets).then_some(());
        wait::look("claim GET", SOON, &mut node.api.requests(), asked).await?;
        node.runtime.begin()
    };
    let (prepared, begun) = tokio::join!(node.prepare(&next), later);
    begun?;
    prepared?;
    let given = node.record_of(&next.uid)?;
    ensure!(given.is_disjoint(&own), "{} and {}", list(&given), list(&own));
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_strategy_leaves_old_claims_as_they_are() -> Result<()> {
    let mut node = Node::start(server()).await?;
    let old = node.allocate("old", &[Ask::of("r", NUMA0, 4)]).await?;
    let answer = node.prepare(&old).await?;
    let own = node.record_of(&old.uid)?;
    node.terminate_daemon().await?;
    node.config.config = json!({"allocator": "llc-first"});
    node.start_daemon().await?;
    assert_eq!(node.prepare(&old).await?, answer);
    let new = node.allocate("new", &[Ask::of("r", NUMA0, 8)]).await?;
    node.prepare(&new).await?;
    let of_new = node.record_of(&new.uid)?;
    let one_cache = [cpus("0-3,16-19"), cpus("4-7,20-23")].contains(&of_new);
    assert!(one_cache, "eight CPUs fit in the other cache: {}", list(&of_new));
    node.ledger_is(&[(&old, &own), (&new, &of_new)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_on_cpus_that_became_reserved_is_stranded_and_still_pinned() -> Result<()> {
    let mut node = Node::start(server()).await?;
    let old = node.allocate("old", &[Ask::of("r", NUMA0, 4)]).await?;
    let pod = node.run_pod("p", &[&old], &[ContainerAsk::new("app", &[&old])]).await?;
    let own = node.record_of(&old.uid)?;
    let reserved: Cpus = own.iter().copied().take(1).collect();
    node.terminate_daemon().await?;
    node.config.config = json!({"reservedCPUs": list(&reserved)});
    node.start_daemon().await?;
    assert!(node.metric("dra_cpu_stranded_cpus").await? >= 1.0);
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
    let capacity = || async {
        let devices = node.devices().await?;
        ensure!(devices[NUMA0]["capacity"][CAPACITY]["value"] == "15", "{}", devices[NUMA0]);
        Ok(())
    };
    poll("capacity of the new set", SOON, capacity).await?;
    let plain = node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
    assert!(node.runtime.effective_cpus(&plain).is_disjoint(&own));
    node.terminate_pod(&pod).await?;
    node.run_pod("next", &[], &[ContainerAsk::new("app", &[])]).await?;
    assert_eq!(node.metric("dra_cpu_stranded_cpus").await?, 0.0);
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_comes_too_late_refuses_the_container_where_it_can_and_is_repaired_where_not()
-> Result<()> {
    for runtime in [RuntimeVersion::Containerd24, RuntimeVersion::Containerd21] {
        let node = Node::start(NodeConfig { runtime, ..server() }).await?;
        let old = node.allocate("old", &[Ask::of("r", NUMA0, 4)]).await?;
        node.prepare(&old).await?;
        let own = node.record_of(&old.uid)?;
        node.signal_daemon(rustix::process::Signal::STOP).await?;
        let mut pod = node.run_pod("p", &[], &[ContainerAsk::new("app", &[])]).await?;
        node.signal_daemon(rustix::process::Signal::CONT).await?;
        match (runtime, &pod.containers["app"]) {
            (RuntimeVersion::Containerd24, Err(refusal)) => {
                assert!(refusal.contains("validator"), "{refusal}")
            }
            (RuntimeVersion::Containerd21, Ok(_)) => {}
            (_, outcome) => panic!("{runtime:?}: {outcome:?}"),
        }
        node.runtime.wait_plugin(PLUGIN, SOON).await.context("reconnects")?;
        node.wait_serving().await?;
        if pod.containers["app"].is_err() {
            node.begin_container(&mut pod, "app").await?;
        }
        node.ledger_is(&[(&old, &own)]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_lost_under_a_running_daemon_are_back_within_five_minutes() -> Result<()> {
    let mut clock = ProcessClock::new()?;
    let node = Node::start(NodeConfig { envs: clock.envs(), ..server() }).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    let mut pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = node.record_of(&claim.uid)?;
    for entry in std::fs::read_dir(node.cdi_dir())? {
        std::fs::remove_file(entry?.path())?;
    }
    clock.jump(0, 301)?;
    node.get("/healthz").await?; // wakes the daemon, which else sleeps as long as it meant to
    let back = || async { node.ledger_is(&[(&claim, &own)]).await };
    poll("the record", SOON, back).await?;
    node.restart_container(&mut pod, "app").await?;
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
    node.crash_and_restart().await?;
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_kubelet_drops_is_finished_once() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    node.api.hold_claim_gets_until(2);
    let mut gets = node.api.claim_gets();
    tokio::select! {
        outcome = node.prepare(&claim) => panic!("the API server holds it back: {outcome:?}"),
        held = wait::until("held GET", SOON, &mut gets, |gets| gets.in_flight == 1) => { held?; }
    }
    let answer = node.prepare(&claim).await?; // the second GET lets both go
    let own = node.record_of(&claim.uid)?;
    assert_eq!(node.prepare(&claim).await?, answer);
    node.ledger_is(&[(&claim, &own)]).await?;
    node.unprepare(&claim).await?;
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_claim_of_an_old_name_is_another_claim() -> Result<()> {
    let node = Node::start(server()).await?;
    let first = node.allocate("same", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&first).await?;
    node.api.delete(Resource::ResourceClaims, "default", "same");
    let second = node.allocate("same", &[Ask::of("r", NUMA0, 2)]).await?;
    assert_ne!(first.uid, second.uid);
    node.unprepare(&first).await?; // its object is gone
    node.prepare(&second).await?;
    let own = node.record_of(&second.uid)?;
    node.ledger_is(&[(&second, &own)]).await?;
    Ok(())
}
