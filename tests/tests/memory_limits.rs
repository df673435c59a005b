//! What a container's memory limit does to strategies: the daemon in a memory cgroup of its own, which these tests make
//! and remove.
//!
//! For `make test-languages`, which names a component in Python (`DRACPU_PYTHON_COMPONENT`) and a release build
//! (`DRACPU_BIN`), as root. Without them the tests say that they were skipped.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use anyhow::{Context as _, Result, ensure};
use dracpu_tests::support::cpus::{Cpus, cpus};
use dracpu_tests::support::daemon::dracpu_bin;
use dracpu_tests::support::guests::HIGHEST_FIRST;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{Node, NodeConfig};
use dracpu_tests::support::scheduler::cpu_config;
use dracpu_tests::support::wait::poll;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NUMA0: &str = "cpudevnuma000";
const RUST: &str = "highest-first";
const PYTHON: &str = "spread-over-caches";

/// A component of an interpreted language takes most of a minute of a CPU.
const COMPILED: Duration = Duration::from_secs(900);

/// The component; none where the tests are to be skipped.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("DRACPU_PYTHON_COMPONENT").map(PathBuf::from);
    if python.is_none() {
        eprintln!("skipped: DRACPU_PYTHON_COMPONENT names no component; `make test-languages` does");
    }
    python
}

/// A memory cgroup, with a limit.
struct Cgroup {
    directory: PathBuf,
    /// The file that tells the most that was used.
    peak: &'static str,
}

impl Cgroup {
    fn new(name: &str, limit_bytes: u64) -> Result<Self> {
        let name = format!("dracpu-test-{}-{name}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let (directory, limit, peak) = if root.join("cgroup.controllers").is_file() {
            std::fs::write(root.join("cgroup.subtree_control"), "+memory")?;
            (root.join(name), "memory.max", "memory.peak")
        } else {
            (root.join("memory").join(name), "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        };
        std::fs::create_dir(&directory).context("a memory cgroup cannot be made: run this as root")?;
        let cgroup = Self { directory, peak };
        std::fs::write(cgroup.directory.join(limit), limit_bytes.to_string())?;
        Ok(cgroup)
    }

    fn processes(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// The words that launch a program in this cgroup.
    fn launcher(&self) -> Vec<String> {
        let script = "echo $$ >\"$0\" && exec \"$@\"";
        ["sh", "-c", script, self.processes().to_str().unwrap()].map(str::to_owned).to_vec()
    }

    fn peak_mib(&self) -> u64 {
        let peak = std::fs::read_to_string(self.directory.join(self.peak)).unwrap_or_default();
        peak.trim().parse::<u64>().unwrap_or_default() >> 20
    }
}

impl Drop for Cgroup {
    /// Ends what is left in it, such as a compiler whose daemon has ended, and removes it.
    fn drop(&mut self) {
        let given_up = Instant::now() + Duration::from_secs(30);
        while std::fs::remove_dir(&self.directory).is_err() && Instant::now() < given_up {
            let left = std::fs::read_to_string(self.processes()).unwrap_or_default();
            for pid in left.lines().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?)) {
                let _has_ended = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            std::thread::yield_now();
        }
    }
}

/// A node whose daemon has so much memory, a strategy in Rust and one in Python, and an empty cache. Its own strategy is
/// a built-in one.
async fn node(python: &Path, cgroup: &Cgroup) -> Result<Node> {
    let shape = Shape { sockets: 1, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    let mut node = Node::without_daemon(NodeConfig::new(Machine::of(shape))).await?;
    let rust = node.path("rust.wasm");
    std::fs::write(&rust, HIGHEST_FIRST)?;
    node.config.config = json!({
        "allowedStrategies": [RUST, PYTHON],
        "strategies": [{"name": RUST, "path": rust}, {"name": PYTHON, "path": python}],
    });
    // An empty one.
    node.config.flags = vec![format!("--cache-dir={}", node.path("cache").display())];
    // The machine is made up, the cgroups are not.
    std::fs::create_dir_all(node.path("sys/fs"))?;
    std::os::unix::fs::symlink("/sys/fs/cgroup", node.path("sys/fs/cgroup"))?;
    node.config.launcher = cgroup.launcher();
    node.start_daemon().await?;
    Ok(node)
}

/// What a claim of two CPUs gets, and gives back.
async fn given(node: &Node, strategy: Option<&str>) -> Result<Cpus> {
    let config = strategy.map(|name| cpu_config("FromClaim", &[], &json!({"strategy": name})));
    let claim = node.write_claim("claim", NUMA0, "2", config.as_slice());
    node.prepare(&claim).await?;
    let cpus = node.record_of(&claim.uid)?;
    node.unprepare(&claim).await?;
    Ok(cpus)
}

/// `dracpu strategy list` in the daemon's container.
fn list(node: &Node) -> Result<String> {
    let flag = |name: &str, place: &str| format!("--{name}={}", node.path(place).display());
    let mut words = node.config.launcher.iter();
    let output = std::process::Command::new(words.next().unwrap())
        .args(words)
        .arg(dracpu_bin()?)
        .args(["strategy", "list"])
        .args([flag("config", "config.yaml"), flag("sysfs-root", "sys"), flag("cache-dir", "cache")])
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.stdout.is_empty(), "strategy list: {}: {stderr}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The number of MiB in "needs about N MiB".
fn needed_mib(words: &str) -> u64 {
    let (_, rest) = words.split_once("cannot compile: needs about ").unwrap_or_else(|| panic!("{words}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_128_mib_rust_is_loaded_python_is_refused_and_the_node_goes_on() -> Result<()> {
    let Some(python) = python() else { return Ok(()) };
    let cgroup = Cgroup::new("128", 128 << 20)?;
    let node = node(&python, &cgroup).await?;
    let daemon = node.daemon_pid().await;
    let said = || async {
        let (status, body) = node.get("/readyz").await?;
        ensure!(status == 200 && body.contains("cannot compile: needs about"), "{status} {body}");
        Ok(body)
    };
    let body = poll("that it cannot be compiled", COMPILED, said).await?;
    assert!(body.contains(&format!("strategy {PYTHON}")), "{body}");
    let refused = format!("{:#}", given(&node, Some(PYTHON)).await.unwrap_err());
    assert!(refused.contains("resources.limits.memory"), "{refused}");
    let listed = list(&node)?;
    for words in [&body, &refused, &listed] {
        assert!((129..512).contains(&needed_mib(words)), "{words}");
    }

    assert_eq!(given(&node, None).await?, cpus("0,8"));
    assert_eq!(given(&node, Some(RUST)).await?, cpus("7,15"));
    assert_eq!(node.daemon_pid().await, daemon);
    node.ledger_is(&[]).await?;
    eprintln!("128 MiB: {} MiB used at most; {}", cgroup.peak_mib(), listed.lines().last().unwrap());
    node.terminate_daemon().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_512_mib_python_becomes_ready_and_others_do_not_wait_for_it() -> Result<()> {
    let Some(python) = python() else { return Ok(()) };
    let cgroup = Cgroup::new("512", 512 << 20)?;
    let node = node(&python, &cgroup).await?;
    assert_eq!(given(&node, None).await?, cpus("0,8"));
    assert_eq!(given(&node, Some(RUST)).await?, cpus("7,15"));
    // One CPU of each cache.
    let given_by_python = || given(&node, Some(PYTHON));
    assert_eq!(poll("the strategy in Python", COMPILED, given_by_python).await?, cpus("0,4"));
    let (status, body) = node.get("/readyz").await?;
    assert_eq!((status, body.as_str()), (200, "ready\n"));
    assert!(!list(&node)?.contains("cannot compile"));
    node.ledger_is(&[]).await?;
    eprintln!("512 MiB: {} MiB used at most", cgroup.peak_mib());
    node.terminate_daemon().await?;
    Ok(())
}
