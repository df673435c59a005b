//! Many claims and many containers: nothing waits for what it need not wait for.

use anyhow::{Context, Result};
use dracpu_tests::support::api_server::{Resource, Verb};
use dracpu_tests::support::cpus::Cpus;
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use dracpu_tests::support::runtime::ContainerSpec;
use dracpu_tests::support::scheduler::DRIVER;
use dracpu_tests::support::wait::{self, SOON};
use futures::future::join_all;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const NUMA0: &str = "cpudevnuma000";

fn large() -> Machine {
    Machine::of(Shape { sockets: 1, numa_per_socket: 1, l3_per_numa: 8, cores_per_l3: 8, threads: 2 })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_claims_at_once_wait_for_no_limiter_and_share_no_cpu() -> Result<()> {
    let node = Node::start(NodeConfig::new(large())).await?;
    node.devices().await?;
    let claims: Vec<_> = (0..100).map(|n| node.write_claim(&format!("c{n}"), NUMA0, "1", &[])).collect();
    // the API server answers no GET before all of them are there
    node.api.hold_claim_gets_until(claims.len());
    let calls = claims.iter().map(|claim| node.kubelet.prepare(DRIVER, std::slice::from_ref(claim)));
    for (claim, answers) in claims.iter().zip(join_all(calls).await) {
        let answers = answers?;
        assert!(answers[&claim.uid].is_ok(), "{answers:?}");
    }
    assert_eq!(node.api.claim_gets().borrow().peak, claims.len());
    let recorded = node.recorded()?;
    let wanted: Vec<(&ClaimRef, &Cpus)> = claims.iter().map(|claim| (claim, &recorded[&claim.uid])).collect();
    node.ledger_is(&wanted).await?;
    node.kill_daemon().await?;
    node.start_daemon().await?;
    node.ledger_is(&wanted).await?;
    let calls = claims.iter().map(|claim| node.kubelet.unprepare(DRIVER, std::slice::from_ref(claim)));
    for answers in join_all(calls).await {
        assert!(answers?.values().all(Result::is_ok));
    }
    node.ledger_is(&[]).await?;
    Ok(())
}

/// The test guests of this workspace, by name, as component files in a directory.
fn guests(directory: &Path) -> Result<BTreeMap<String, std::path::PathBuf>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
    let guests = dracpu_guest_build::Guests {
        workspace,
        target_directory: &dracpu_guest_build::guests_directory(&std::env::current_exe()?)?,
        packages: &["dracpu-test-guests"],
        examples: true,
    };
    let mut files = BTreeMap::new();
    for (name, component) in guests.build()?.components {
        let path = directory.join(format!("{name}.wasm"));
        std::fs::write(&path, component)?;
        files.insert(name.replace('_', "-"), path);
    }
    Ok(files)
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_answer_while_a_strategy_is_stalled_and_500_containers_run() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let guest = guests(directory.path())?["endless-loop"].clone();
    let stalling = json!({
        "allocator": "endless-loop",
        "strategies": [{"name": "endless-loop", "path": guest,
                        "limits": {"fuel": 1_000_000_000_000_000_000_u64, "deadlineMillis": 2000}}],
    });
    let node = Node::start(NodeConfig::new(large()).with_config(stalling)).await?;
    let small = node.write_claim("small", NUMA0, "2", &[]);
    let asks: Vec<_> = (0..500).map(|n| ContainerAsk::new(&format!("c{n}"), &[])).collect();
    let pod = node.run_pod("crowd", &[], &asks).await?;
    node.prepare(&small).await?;
    let gets = node.api.count(Verb::Get, Resource::ResourceClaims);
    let unlucky = node.write_claim("unlucky", NUMA0, "13", &[]);
    let stalled = node.prepare(&unlucky);
    let meanwhile = async {
        let asked = || (node.api.count(Verb::Get, Resource::ResourceClaims) > gets).then_some(());
        wait::look("claim GET", SOON, &mut node.api.requests(), asked).await?;
        let began = std::time::Instant::now();
        let pinned = node.run_pod("pinned", &[&small], &[ContainerAsk::new("app", &[&small])]).await?;
        for n in 0..20 {
            let spec = ContainerSpec { name: format!("late{n}"), ..ContainerSpec::default() };
            node.runtime.create_container(&pod.sandbox, &spec).await?;
        }
        node.runtime.stop_container(&pinned.id("app")).await?;
        anyhow::Ok((pinned, began.elapsed()))
    };
    let (stalled, meanwhile) = tokio::join!(stalled, meanwhile);
    let refusal = format!("{:#}", stalled.unwrap_err());
    assert!(refusal.contains("endless-loop"), "{refusal}");
    let (_, took) = meanwhile?;
    assert!(took < Duration::from_secs(2), "all of it happened during the stall, not after it: {took:?}");
    let mut creations: Vec<_> = node
        .runtime
        .calls()
        .into_iter()
        .filter(|call| call.method == "CreateContainer")
        .map(|call| call.took)
        .collect();
    let late = creations.split_off(500);
    assert_eq!(late.len(), 21);
    let slow: Vec<_> = late.iter().filter(|took| **took >= Duration::from_millis(50)).collect();
    assert!(slow.is_empty(), "{slow:?} of {late:?}");
    let own = node.recorded()?[&small.uid].clone();
    node.ledger_is(&[(&small, &own)]).await?;
    Ok(())
}
