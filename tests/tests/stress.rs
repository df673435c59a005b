//! Everything at once: claims and containers that come and go, calls that are dropped, a slow API server, a strategy
//! that stalls, a runtime and a kubelet that restart, reloads. In the end every claim is whole, nobody's CPU is
//! another's, and the node can be emptied.

mod guests;

use anyhow::{Context, Result, bail, ensure};
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::load::{Load, Mostly, Trouble};
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig, PLUGIN};
use dracpu_tests::support::random::Random;
use dracpu_tests::support::runtime::RuntimeVersion;
use dracpu_tests::support::scheduler::{DRIVER, cpu_config};
use dracpu_tests::support::wait::{self, SOON, poll};
use serde_json::json;
use std::cell::Cell;
use std::time::Duration;
use tempfile::TempDir;

const DEVICES: [&str; 2] = ["cpudevnuma000", "cpudevnuma001"];
const BATCHES: usize = 40;
const RESTARTS: usize = 4;
/// What a dropped call gets before it is dropped.
const PATIENCE: Duration = Duration::from_millis(4);

/// A node, and the directory that its stalling strategy is in.
async fn stressed(runtime: RuntimeVersion) -> Result<(TempDir, Node)> {
    let directory = tempfile::tempdir()?;
    let guest = directory.path().join("endless-loop.wasm");
    std::fs::write(&guest, &guests::GUESTS["endless-loop"])?;
    let shape = Shape { sockets: 1, numa_per_socket: 2, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    let config = NodeConfig::new(Machine::of(shape)).with_config(json!({
        "reservedCPUs": "0,16", "allocator": "packed", "allowedStrategies": ["endless-loop"],
        "strategies": [{"name": "endless-loop", "path": guest,
                        "limits": {"fuel": 1_000_000_000_000_000_000_u64, "deadlineMillis": 50}}],
    }));
    Ok((directory, Node::start(NodeConfig { runtime, ..config }).await?))
}

/// Runs until the load is done.
async fn until<T>(over: &Cell<bool>, mut step: impl AsyncFnMut() -> Result<T>) -> Result<usize> {
    let mut steps = 0;
    while !over.get() {
        step().await?;
        steps += 1;
        tokio::task::yield_now().await;
    }
    Ok(steps)
}

/// Claims whose calls are dropped at random moments, in both directions.
async fn dropped_calls(node: &Node, claims: &[ClaimRef], random: &mut Random) -> Result<()> {
    let claim = std::slice::from_ref(random.pick(claims));
    let (patience, other) = (random.shorter_than(PATIENCE), random.shorter_than(PATIENCE));
    // some are answered in time, some find no connection: all of that may be
    let _whatever = tokio::join!(
        tokio::time::timeout(patience, node.kubelet.prepare(DRIVER, claim)),
        tokio::time::timeout(other, node.kubelet.unprepare(DRIVER, claim)),
    );
    Ok(())
}

/// A claim that makes its strategy stall, while the allocation lock is held.
async fn stalled_strategy(node: &Node, random: &mut Random) -> Result<()> {
    tokio::time::sleep(random.shorter_than(4 * PATIENCE)).await;
    let stalling = cpu_config("FromClaim", &[], &json!({"strategy": "endless-loop"}));
    let claim = node.write_claim("stalling", DEVICES[1], "13", &[stalling]);
    match node.prepare(&claim).await {
        Ok(devices) => bail!("the strategy never answers, and the claim has {devices:?}"),
        Err(_refused_or_no_connection) => Ok(()),
    }
}

/// Holds the answers to claim GETs back for a moment.
async fn slow_api_server(node: &Node, random: &mut Random) -> Result<()> {
    node.api.hold_claim_gets_until(usize::MAX);
    tokio::time::sleep(random.shorter_than(4 * PATIENCE)).await;
    node.api.hold_claim_gets_until(0);
    tokio::time::sleep(random.shorter_than(4 * PATIENCE)).await;
    Ok(())
}

async fn restarts(node: &Node) -> Result<()> {
    for n in 0..RESTARTS {
        node.runtime.restart().await?;
        if n % 2 == 0 {
            node.kubelet.restart().await;
            node.kubelet.wait_registered(DRIVER, SOON).await?;
        }
        node.signal_daemon(rustix::process::Signal::HUP).await?;
        node.runtime.wait_plugin(PLUGIN, SOON).await?;
    }
    Ok(())
}

async fn everything_at_once(runtime: RuntimeVersion, seed: u64) -> Result<()> {
    let (_directory, node) = stressed(runtime).await?;
    let mut load = Load::new(&DEVICES, Random::new(seed));
    let mut random = [seed + 1, seed + 2, seed + 3].map(Random::new);
    let [drops, slowness, stalling] = &mut random;
    let dropped: Vec<ClaimRef> =
        (0..2).map(|n| node.write_claim(&format!("dropped{n}"), DEVICES[1], "1", &[])).collect();
    let over = Cell::new(false);
    let loaded = async {
        for _ in 0..BATCHES {
            for trouble in load.batch(&node, Mostly::Anything).await {
                match trouble {
                    Trouble::Fault(error) => return Err(error),
                    // kubelet and runtime restart; what was in doubt is settled by a later batch
                    Trouble::NoAnswer(_) => {}
                }
            }
        }
        over.set(true);
        Ok(())
    };
    let all = async {
        tokio::try_join!(
            async { loaded.await.inspect_err(|_| over.set(true)) },
            until(&over, async || dropped_calls(&node, &dropped, drops).await),
            until(&over, async || stalled_strategy(&node, stalling).await),
            until(&over, async || slow_api_server(&node, slowness).await),
            restarts(&node),
        )
    };
    let ((), drops, stalls, slow, ()) =
        tokio::time::timeout(2 * SOON, all).await.context("a dead-lock?")??;
    ensure!(drops > 0 && stalls > 0 && slow > 0, "{drops} {stalls} {slow}");

    node.api.hold_claim_gets_until(0);
    node.wait_serving().await?;
    for claim in &dropped {
        node.prepare(claim).await.context("a claim whose calls were dropped")?;
        node.unprepare(claim).await?;
    }
    // claims without an answer are settled
    while load.books.0.values().any(|entry| entry.is_in_doubt()) {
        let trouble = load.batch(&node, Mostly::Anything).await;
        ensure!(trouble.is_empty(), "with nobody else about: {trouble:?}");
    }
    // where masks are due with the next hook, here is one
    node.run_pod("last", &[], &[ContainerAsk::new("app", &[])]).await?;
    load.books.check(&node).await.with_context(|| format!("{runtime:?}"))?;
    node.crash_and_restart().await?;
    load.books.check(&node).await.with_context(|| format!("{runtime:?}, started again"))?;
    load.end_all(&node).await?;
    load.books.check(&node).await.context("with nothing left")?;
    // what the driver pushes where it must not would have dead-locked the runtime
    if runtime == RuntimeVersion::Containerd21 {
        ensure!(!node.runtime.oddities().iter().any(|odd| odd.contains("UpdateContainers")), "pushed");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_can_go_on_at_once_leaves_every_claim_whole_on_a_new_runtime() -> Result<()> {
    everything_at_once(RuntimeVersion::Containerd24, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_can_go_on_at_once_leaves_every_claim_whole_on_an_old_runtime() -> Result<()> {
    everything_at_once(RuntimeVersion::Containerd21, 2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_runtime_is_never_sent_masks_outside_of_hooks() -> Result<()> {
    let config = NodeConfig::new(Machine::small(8, 1));
    let node = Node::start(NodeConfig { runtime: RuntimeVersion::Containerd21, ..config }).await?;
    let plain = node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?;
    let claim = node.write_claim("a", DEVICES[0], "2", &[]);
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = node.record_of(&claim.uid)?;
    node.terminate_pod(&pod).await?;
    // the CPUs are free, and the container that could have them waits for a hook
    let waiting = || async {
        ensure!(node.metric("dra_cpu_shared_pool_pending").await? == 1.0);
        Ok(())
    };
    poll("a container that waits", SOON, waiting).await?;
    assert!(node.runtime.effective_cpus(&plain.id("app")).is_disjoint(&own));
    let mut changes = node.runtime.changes();
    node.run_pod("next", &[], &[ContainerAsk::new("app", &[])]).await?;
    let widened = || node.runtime.effective_cpus(&plain.id("app")).is_superset(&own).then_some(());
    wait::look("the wider mask", SOON, &mut changes, widened).await?;
    node.ledger_is(&[]).await?;
    Ok(())
}
