//! Files that cannot be written or removed, by real means: a claim is refused in words that say what to do, nothing
//! leaks, and the same call works when the fault has ended. Faults at each single step are in the driver's own tests.

use anyhow::{Context, Result, ensure};
use dracpu_tests::support::books::no_leftovers;
use dracpu_tests::support::cpus::Cpus;
use dracpu_tests::support::guests::{HIGHEST_FIRST, padded};
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use dracpu_tests::support::own_mounts::{Mount, in_own_mounts};
use dracpu_tests::support::wait::SOON;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

const DEVICE: &str = "cpudevnuma000";

fn small() -> NodeConfig {
    NodeConfig::new(Machine::small(8, 1))
}

fn claim(node: &Node, name: &str) -> ClaimRef {
    node.write_claim(name, DEVICE, "2", &[])
}

/// A claim that was prepared before the fault, with its CPUs.
async fn prepared(node: &Node, name: &str) -> Result<(ClaimRef, Cpus)> {
    let claim = claim(node, name);
    node.prepare(&claim).await?;
    let cpus = node.record_of(&claim.uid)?;
    Ok((claim, cpus))
}

/// Prepare is refused with these words, as often as it is tried, and changes nothing.
async fn prepare_is_refused(
    node: &Node,
    claim: &ClaimRef,
    before: &[(&ClaimRef, &Cpus)],
    words: &[&str],
) -> Result<()> {
    for _ in 0..2 {
        let refusal = match node.prepare(claim).await {
            Ok(devices) => anyhow::bail!("prepared: {devices:?}"),
            Err(refusal) => format!("{refusal:#}"),
        };
        for words in words {
            ensure!(refusal.contains(words), "no `{words}` in: {refusal}");
        }
        node.ledger_is(before).await?;
    }
    Ok(())
}

async fn unprepare_is_refused(
    node: &Node,
    claim: &ClaimRef,
    before: &[(&ClaimRef, &Cpus)],
    words: &[&str],
) -> Result<()> {
    for _ in 0..2 {
        let refusal = format!("{:#}", node.unprepare(claim).await.err().context("unprepared")?);
        for words in words.iter().chain(&["the CPUs stay booked"]) {
            ensure!(refusal.contains(words), "no `{words}` in: {refusal}");
        }
        node.ledger_is(before).await?;
    }
    Ok(())
}

/// The fault has ended: the claims can be prepared and unprepared, and nothing is left of it.
async fn all_is_well_again(node: &Node, new: &ClaimRef, old: &ClaimRef) -> Result<()> {
    node.prepare(new).await?;
    let of_new = node.record_of(&new.uid)?;
    if node.recorded()?.contains_key(&old.uid) {
        node.unprepare(old).await?;
    }
    node.ledger_is(&[(new, &of_new)]).await?;
    node.crash_and_restart().await?;
    node.ledger_is(&[(new, &of_new)]).await?;
    node.unprepare(new).await?;
    node.ledger_is(&[]).await?;
    no_leftovers(node)
}

#[test]
fn a_full_disk_refuses_new_claims_and_nothing_else() -> Result<()> {
    in_own_mounts("a_full_disk_refuses_new_claims_and_nothing_else", async || {
        for inodes in [false, true] {
            let node = Node::without_daemon(small()).await?;
            let disk = Mount::tiny(&node.cdi_dir(), 64 << 10, 16)?;
            node.start_daemon().await?;
            let (old, of_old) = prepared(&node, "old").await?;
            let filler = if inodes { disk.use_all_inodes()? } else { disk.fill()? };
            let new = claim(&node, "new");
            let words =
                ["no CPU was given out; make room on its file system, see `df` and `df -i`", "No space left"];
            prepare_is_refused(&node, &new, &[(&old, &of_old)], &words).await?;
            // what is there works, over a start too
            node.crash_and_restart().await?;
            let pod = node.run_pod("p", &[&old], &[ContainerAsk::new("app", &[&old])]).await?;
            assert_eq!(node.runtime.effective_cpus(&pod.id("app")), of_old);
            node.terminate_pod(&pod).await?;
            node.ledger_is(&[]).await?;
            match filler.is_dir() {
                true => std::fs::remove_dir_all(filler)?,
                false => std::fs::remove_file(filler)?,
            }
            all_is_well_again(&node, &new, &old).await?;
        }
        Ok(())
    })
}

#[test]
fn a_read_only_directory_keeps_every_claim_as_it_is() -> Result<()> {
    in_own_mounts("a_read_only_directory_keeps_every_claim_as_it_is", async || {
        for bound in [false, true] {
            let node = Node::without_daemon(small()).await?;
            std::fs::create_dir_all(node.path("behind"))?;
            let disk = match bound {
                true => Mount::bind(&node.path("behind"), &node.cdi_dir())?,
                false => Mount::tiny(&node.cdi_dir(), 1 << 20, 100)?,
            };
            let read_only = |yes| if bound { disk.read_only(yes) } else { disk.file_system_read_only(yes) };
            node.start_daemon().await?;
            let (old, of_old) = prepared(&node, "old").await?;
            let new = claim(&node, "new");
            read_only(true)?;
            let words = ["mount its file system for writing", "Read-only file system"];
            for _ in 0..2 {
                prepare_is_refused(&node, &new, &[(&old, &of_old)], &words).await?;
                unprepare_is_refused(&node, &old, &[(&old, &of_old)], &words).await?;
                node.prepare(&old).await.context("from the record")?;
                node.crash_and_restart().await?;
            }
            read_only(false)?;
            all_is_well_again(&node, &new, &old).await?;
        }
        Ok(())
    })
}

#[test]
fn a_directory_that_was_deleted_behind_its_mount_is_said_to_be_gone() -> Result<()> {
    in_own_mounts("a_directory_that_was_deleted_behind_its_mount_is_said_to_be_gone", async || {
        let node = Node::without_daemon(small()).await?;
        std::fs::create_dir_all(node.path("host/cdi"))?;
        let bound = Mount::bind(&node.path("host/cdi"), &node.cdi_dir())?;
        node.start_daemon().await?;
        std::fs::remove_dir(node.path("host/cdi"))?;
        let new = claim(&node, "new");
        prepare_is_refused(&node, &new, &[], &["taken away from under the driver, restart the driver's pod"])
            .await?;
        node.kill_daemon().await?;
        drop(bound);
        std::fs::create_dir_all(node.path("host/cdi"))?;
        let _bound = Mount::bind(&node.path("host/cdi"), &node.cdi_dir())?;
        node.start_daemon().await?;
        all_is_well_again(&node, &new, &claim(&node, "other")).await
    })
}

#[test]
fn a_full_or_read_only_cache_is_no_cache_and_nothing_worse() -> Result<()> {
    in_own_mounts("a_full_or_read_only_cache_is_no_cache_and_nothing_worse", async || {
        let directory = tempfile::tempdir()?;
        let component = directory.path().join("large.wasm");
        // larger than what the daemon compiles in its own process
        std::fs::write(&component, padded(HIGHEST_FIRST, 2 << 20))?;
        let large = json!({"allocator": "highest-first", "strategies": [{"name": "highest-first", "path": component}]});
        for (config, words) in [(json!({}), "cannot be kept"), (large, "cannot be kept")] {
            let node =
                Node::without_daemon(NodeConfig { own_cache: true, ..small() }.with_config(config)).await?;
            let disk = Mount::tiny(&node.path("cache"), 64 << 10, 16)?;
            let filler = disk.fill()?;
            node.start_daemon().await?;
            let (claim, cpus) = prepared(&node, "a").await?;
            node.ledger_is(&[(&claim, &cpus)]).await?;
            let said = node.daemon_lines().await.into_iter().any(|line| line.contains(words));
            ensure!(said, "{:?}", node.daemon_lines().await);
            node.kill_daemon().await?;
            std::fs::remove_file(filler)?;
            drop(disk);
            // filled, then read-only: what is there is used
            let disk = Mount::tiny(&node.path("cache"), 64 << 20, 16)?;
            node.start_daemon().await?;
            node.kill_daemon().await?;
            disk.file_system_read_only(true)?;
            let cached = std::fs::read_dir(node.path("cache"))?.count();
            ensure!(cached == 1, "{cached} files in the cache");
            node.start_daemon().await?;
            node.ledger_is(&[(&claim, &cpus)]).await?;
            let lines = node.daemon_lines().await;
            let complaint = lines.iter().find(|line| line.contains("compiled strateg"));
            ensure!(complaint.is_none(), "{complaint:?}");
        }
        Ok(())
    })
}

#[test]
fn a_full_disk_under_the_lock_and_the_sockets_keeps_the_driver_up_or_is_named() -> Result<()> {
    in_own_mounts("a_full_disk_under_the_lock_and_the_sockets_keeps_the_driver_up_or_is_named", async || {
        let node = Node::without_daemon(small()).await?;
        let disk = Mount::tiny(&node.path("k/plugins"), 64 << 10, 16)?;
        let filler = disk.fill()?;
        node.start_daemon().await.context("nothing needs to be written there but names")?;
        let words = ["device metadata", "no CPU was given out; make room", "No space left"];
        prepare_is_refused(&node, &claim(&node, "a"), &[], &words).await?;
        std::fs::remove_file(&filler)?;
        let (claim, cpus) = prepared(&node, "b").await?;
        let filler = disk.fill()?;
        node.prepare(&claim).await.context("its files are there")?;
        node.crash_and_restart().await?;
        node.ledger_is(&[(&claim, &cpus)]).await?;
        // the socket of the next one needs an inode: that of the killed one is gone by then
        node.kill_daemon().await?;
        std::fs::remove_file(&filler)?;
        std::fs::remove_file(node.path("k/plugins/dra.cpu/dra@dra.sock"))?;
        let filler = disk.use_all_inodes()?;
        node.launch_daemon().await?;
        let status = node.wait_daemon_end().await?;
        ensure!(status.code() == Some(1), "{status}");
        let lines = node.last_lines()?;
        ensure!(
            lines.contains("dra@dra.sock") && lines.contains("inodes") && lines.contains("No space left"),
            "{lines}"
        );
        std::fs::remove_dir_all(filler)?;
        node.start_daemon().await?;
        node.ledger_is(&[(&claim, &cpus)]).await?;
        node.unprepare(&claim).await?;
        node.ledger_is(&[]).await?;
        Ok(())
    })
}

/// The daemon's limit on file sizes; none is no limit.
async fn limit_file_size(node: &Node, bytes: Option<u64>) -> Result<()> {
    let pid = node.daemon_pid().await.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_ends_short_is_refused_and_does_not_end_the_daemon() -> Result<()> {
    let node = Node::start(small()).await?;
    let (old, of_old) = prepared(&node, "old").await?;
    let new = claim(&node, "new");
    for bytes in [0, 1, 100] {
        limit_file_size(&node, Some(bytes)).await?;
        let words = ["no CPU was given out; raise the driver's limit on file sizes", "File too large"];
        prepare_is_refused(&node, &new, &[(&old, &of_old)], &words).await?;
        no_leftovers(&node)?;
    }
    limit_file_size(&node, None).await?;
    all_is_well_again(&node, &new, &old).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_goes_is_made_again_and_one_that_comes_back_makes_no_second_owner() -> Result<()> {
    let node = Node::start(small()).await?;
    let (old, of_old) = prepared(&node, "old").await?;
    let away = node.path("away");
    std::fs::rename(node.cdi_dir(), &away)?;
    node.prepare(&old).await.context("its record is written again")?;
    let (new, of_new) = prepared(&node, "new").await?;
    node.ledger_is(&[(&old, &of_old), (&new, &of_new)]).await?;
    node.unprepare(&old).await?;
    let (third, of_third) = prepared(&node, "third").await?;
    node.ledger_is(&[(&new, &of_new), (&third, &of_third)]).await?;
    std::fs::remove_dir_all(node.cdi_dir())?;
    node.unprepare(&third).await.context("there is nothing to remove")?;
    // as it was at first: the record of a claim that was unprepared since, and none of the one that is there
    std::fs::rename(&away, node.cdi_dir())?;
    node.prepare(&new).await?;
    node.crash_and_restart().await?;
    node.ledger_is(&[(&old, &of_old), (&new, &of_new)]).await?;
    node.unprepare(&old).await?;
    node.ledger_is(&[(&new, &of_new)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_in_the_place_of_the_directory_keeps_every_claim_as_it_is() -> Result<()> {
    let node = Node::start(small()).await?;
    let (old, _) = prepared(&node, "old").await?;
    let new = claim(&node, "new");
    std::fs::rename(node.cdi_dir(), node.path("away"))?;
    std::fs::write(node.cdi_dir(), "")?;
    let refusal = format!("{:#}", node.prepare(&new).await.unwrap_err());
    assert!(refusal.contains("no CPU was given out; look at its file system"), "{refusal}");
    let refusal = format!("{:#}", node.unprepare(&old).await.unwrap_err());
    assert!(refusal.contains("the CPUs stay booked; look at its file system"), "{refusal}");
    assert_eq!(node.metric("dra_cpu_allocated_cpus").await?, 2.0);
    std::fs::remove_file(node.cdi_dir())?;
    std::fs::rename(node.path("away"), node.cdi_dir())?;
    all_is_well_again(&node, &new, &old).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_its_records_says_so_and_gives_out_nothing() -> Result<()> {
    let node = Node::without_daemon(small()).await?;
    std::fs::remove_dir(node.cdi_dir())?;
    std::fs::write(node.cdi_dir(), "")?;
    node.launch_daemon().await?;
    let status = node.wait_daemon_end().await?;
    assert_eq!(status.code(), Some(1), "{status}");
    let lines = node.last_lines()?;
    assert!(lines.contains("which CPUs were given out is not known"), "{lines}");
    std::fs::remove_file(node.cdi_dir())?;
    node.start_daemon().await?;
    tokio::time::timeout(SOON, node.devices()).await??;
    Ok(())
}
