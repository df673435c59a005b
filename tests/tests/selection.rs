//! Which strategy decides: named by the node, a class or a claim; other ones taken over without a restart.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod guests;

use anyhow::{Context as _, Result, ensure};
use dracpu::strategy::{Cache, Catalogue, LoadError, digest};
use dracpu_tests::support::cpus::{Cpus, cpus};
use dracpu_tests::support::daemon::dracpu_bin;
use dracpu_tests::support::guests::{HIGHEST_FIRST, padded};
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use dracpu_tests::support::scheduler::cpu_config;
use dracpu_tests::support::wait::{SOON, poll};
use guests::GUESTS;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const NUMA0: &str = "cpudevnuma000";
const HIGHEST: &str = "highest-first";

/// Eight cores of two threads: CPUs 0-15.
fn machine() -> Machine {
    Machine::of(Shape { sockets: 1, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 })
}

/// Where the node's own component file is.
fn component(node: &Node) -> PathBuf {
    node.path("own.wasm")
}

/// A node whose file is written before the daemon starts.
async fn node(bytes: &[u8], config: impl Fn(&Node) -> Value) -> Result<Node> {
    let mut node = Node::without_daemon(NodeConfig::new(machine())).await?;
    std::fs::write(component(&node), bytes)?;
    node.config.config = config(&node);
    node.start_daemon().await?;
    Ok(node)
}

fn entry(node: &Node, name: &str) -> Value {
    json!({"name": name, "path": component(node)})
}

fn named(source: &str, strategy: &str) -> Value {
    cpu_config(source, &[], &json!({"strategy": strategy}))
}

/// Takes the place of a file as a careful writer does.
fn replace(node: &Node, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    let (new, old) = (node.path("new"), node.path(name));
    std::fs::write(&new, bytes)?;
    Ok(std::fs::rename(new, old)?)
}

async fn ready_says(node: &Node, words: &str) -> Result<String> {
    let asked = || async {
        let (status, body) = node.get("/readyz").await?;
        ensure!(status == 200 && body.contains(words), "{status} {body}");
        Ok(body)
    };
    poll(words, SOON, asked).await
}

/// Strategy and digest in the record of a claim.
fn decided_by(node: &Node, claim: &ClaimRef) -> Result<(String, String)> {
    let file = node.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{}.json", claim.uid));
    let spec: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let record: Value =
        serde_json::from_str(spec["devices"][0]["annotations"]["dra.cpu/record"].as_str().unwrap())?;
    let text = |key: &str| record["strategy"][key].as_str().unwrap().to_owned();
    Ok((text("name"), text("digest")))
}

async fn given(node: &Node, name: &str, config: &[Value]) -> Result<(ClaimRef, Cpus)> {
    let claim = node.write_claim(name, NUMA0, "2", config);
    node.prepare(&claim).await?;
    let cpus = node.record_of(&claim.uid)?;
    Ok((claim, cpus))
}

#[tokio::test(flavor = "multi_thread")]
async fn classes_and_claims_name_a_strategy_that_the_node_allows() -> Result<()> {
    let node = node(
        HIGHEST_FIRST,
        |node| json!({"allowedStrategies": [HIGHEST, "external"], "strategies": [entry(node, HIGHEST)]}),
    )
    .await?;
    let (own, lowest) = given(&node, "own", &[]).await?;
    assert_eq!(lowest, cpus("0,8"));
    assert_eq!(decided_by(&node, &own)?.0, "packed");
    let (class, highest) = given(&node, "class", &[named("FromClass", HIGHEST)]).await?;
    assert_eq!(highest, cpus("7,15"));
    assert_eq!(decided_by(&node, &class)?, (HIGHEST.to_owned(), digest(HIGHEST_FIRST)));
    // The claim's word goes over the class's.
    let both = [named("FromClass", HIGHEST), named("FromClaim", "packed")];
    assert_eq!(given(&node, "both", &both).await?.1, cpus("1,9"));
    let chosen = cpu_config("FromClaim", &[], &json!({"strategy": "external", "cpuset": "4-5"}));
    assert_eq!(given(&node, "chosen", &[chosen]).await?.1, cpus("4-5"));
    // What an allowed strategy needs to have published is.
    assert_eq!(node.devices().await?[NUMA0]["attributes"]["dra.cpu/cpuIDs"]["string"], "0-15");

    let refused = given(&node, "no", &[named("FromClaim", "llc-first")]).await.unwrap_err();
    let words = format!("{refused:#}");
    assert!(words.contains("strategy `llc-first` is not allowed on this node"), "{words}");
    assert!(words.contains("packed, highest-first, external"), "{words}");
    let options =
        cpu_config("FromClaim", &[], &json!({"strategy": HIGHEST, "options": {"full-pcpus-only": true}}));
    let words = format!("{:#}", given(&node, "odd", &[options]).await.unwrap_err());
    assert!(words.contains(HIGHEST) && words.contains("full-pcpus-only"), "{words}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_is_taken_over_and_claims_alive_are_not_touched() -> Result<()> {
    let node = node(HIGHEST_FIRST, |_| json!({"allocator": "packed"})).await?;
    let (first, lowest) = given(&node, "first", &[]).await?;
    let pod = node.run_pod("p", &[&first], &[ContainerAsk::new("app", &[&first])]).await?;
    let config = json!({"allocator": HIGHEST, "strategies": [entry(&node, HIGHEST)], "reservedCPUs": "1"});
    replace(&node, "config.yaml", config.to_string())?;
    let body = ready_says(&node, "needs a restart").await?;
    assert_eq!(body, "ready\nstrategy: needs a restart: reservedCPUs\n");
    assert_eq!(given(&node, "second", &[]).await?.1, cpus("7,15"));
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), lowest);
    assert_eq!(node.prepare(&first).await?.len(), 1);
    assert_eq!(decided_by(&node, &first)?.0, "packed");
    let info = format!("dra_cpu_strategy_info{{name=\"{HIGHEST}\"");
    let (_, metrics) = node.get("/metrics").await?;
    assert!(metrics.lines().any(|line| line.starts_with(&info) && line.ends_with(" 1")), "{metrics}");
    assert!(!metrics.contains("dra_cpu_strategy_info{name=\"packed\""), "{metrics}");
    let listed = used(&node).await?;
    assert_eq!(listed, (HIGHEST.to_owned(), digest(HIGHEST_FIRST)));
    Ok(())
}

/// Name and digest of the strategy that `strategy list` calls the node's active one.
async fn used(node: &Node) -> Result<(String, String)> {
    let answer = node.dracpu_json(&["strategy", "list"]).await?;
    let strategies = answer["strategies"].as_array().unwrap();
    let active = strategies.iter().find(|strategy| strategy["active"] == true).unwrap();
    let text = |key: &str| active[key].as_str().unwrap().to_owned();
    Ok((text("name"), text("digest")))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_leaves_the_old_in_place_and_is_seen() -> Result<()> {
    let node = node(
        HIGHEST_FIRST,
        |node| json!({"allocator": HIGHEST, "strategies": [entry(node, HIGHEST)], "strategyOptions": {}}),
    )
    .await?;
    let mut failures = 0.0;
    let good = std::fs::read(node.path("config.yaml"))?;
    let other_options =
        json!({"allocator": HIGHEST, "strategies": [entry(&node, HIGHEST)], "strategyOptions": {"x": 1}});
    let other_digest = json!({"allocator": HIGHEST,
                              "strategies": [{"name": HIGHEST, "path": component(&node),
                                              "digest": format!("sha256:{}", "0".repeat(64))}]});
    let module = b"\0asm\x01\0\0\0".to_vec();
    for (file, content, words) in [
        ("own.wasm", module, "a core WebAssembly module"),
        ("own.wasm", b"\x7fELF".to_vec(), "not a valid WebAssembly component"),
        ("own.wasm", GUESTS["trap-in-describe"].clone(), "cannot describe itself"),
        ("own.wasm", GUESTS["honest"].clone(), "calls itself `honest`"),
        ("own.wasm", vec![0; 33 << 20], "33554432 are allowed"),
        ("config.yaml", b"allocator: nobody".to_vec(), "strategy nobody: there is none of this name"),
        ("config.yaml", b"allocatr: packed".to_vec(), "did you mean `allocator`"),
        ("config.yaml", other_options.to_string().into_bytes(), "`x` (set to 1) is no option"),
        ("config.yaml", other_digest.to_string().into_bytes(), "the configuration demands sha256:0000"),
    ] {
        replace(&node, file, content)?;
        let body = ready_says(&node, words).await?;
        assert!(body.starts_with("ready\nstrategy: not reloaded: "), "{body}");
        assert_eq!(used(&node).await?, (HIGHEST.to_owned(), digest(HIGHEST_FIRST)));
        failures += 1.0;
        assert_eq!(given(&node, "new", &[]).await?.1, cpus("7,15"), "{words}");
        node.unprepare(&ClaimRef { uid: "uid-new".to_owned(), ..node.write_claim("new", NUMA0, "2", &[]) })
            .await?;
        replace(&node, "own.wasm", HIGHEST_FIRST)?;
        replace(&node, "config.yaml", &good)?;
        let settled = || async {
            let (_, body) = node.get("/readyz").await?;
            ensure!(body == "ready\n", "{body}");
            Ok(())
        };
        poll("the good ones again", SOON, settled).await?;
    }
    let (_, metrics) = node.get("/metrics").await?;
    let load = metrics
        .lines()
        .filter(|line| line.starts_with("dra_cpu_strategy_failures_total") && line.contains("load"));
    let counted: f64 = load.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert!(counted >= failures, "{metrics}");
    assert!(node.daemon_lines().await.iter().any(|line| line.contains("not reloaded: ")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_strategies_fail_only_the_claims_that_name_them() -> Result<()> {
    let node = node(HIGHEST_FIRST, |_| json!({})).await?;
    let hostile = ["taken", "endless-loop", "memory-bomb", "huge-answer", "panics"];
    let entries: Vec<Value> = hostile
        .iter()
        .map(|name| {
            let path = node.path(name);
            std::fs::write(&path, &GUESTS[*name]).unwrap();
            json!({"name": name, "path": path})
        })
        .collect();
    let config = json!({"allowedStrategies": hostile, "strategies": entries});
    replace(&node, "config.yaml", config.to_string())?;
    let reloaded = || async {
        ensure!(node.daemon_lines().await.iter().any(|line| line.contains("strategies reloaded")), "not yet");
        Ok(())
    };
    poll("reload", SOON, reloaded).await?;
    for name in hostile {
        let claim = node.write_claim("unlucky", NUMA0, "13", &[named("FromClaim", name)]);
        let words = format!("{:#}", node.prepare(&claim).await.expect_err(name));
        assert!(words.contains(&format!("strategy {name} 1.0.0")), "{words}");
    }
    let (claim, lowest) = given(&node, "own", &[]).await?;
    node.ledger_is(&[(&claim, &lowest)]).await?;
    Ok(())
}

/// As ConfigMap volumes do: the files are links through `..data`, which is swapped. SIGHUP looks at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_swapped_configmap_and_a_hangup_are_followed() -> Result<()> {
    let mut node = Node::without_daemon(NodeConfig::new(machine())).await?;
    let mount = node.path("mount");
    let version = |name: &str, bytes: &[u8]| -> Result<()> {
        std::fs::create_dir_all(mount.join(name))?;
        std::fs::write(mount.join(name).join("own.wasm"), bytes)?;
        std::os::unix::fs::symlink(name, mount.join("..data_tmp"))?;
        Ok(std::fs::rename(mount.join("..data_tmp"), mount.join("..data"))?)
    };
    version("..1", HIGHEST_FIRST)?;
    std::os::unix::fs::symlink("..data/own.wasm", mount.join("own.wasm"))?;
    let entry = json!({"name": HIGHEST, "path": mount.join("own.wasm")});
    node.config.config = json!({"allocator": HIGHEST, "strategies": [entry]});
    node.start_daemon().await?;
    let second = padded(HIGHEST_FIRST, 10);
    version("..2", &second)?;
    let active = |wanted: String| {
        let node = &node;
        move || {
            let wanted = wanted.clone();
            async move {
                let (_, metrics) = node.get("/metrics").await?;
                ensure!(metrics.contains(&format!("digest=\"{wanted}\"")), "another one is active");
                Ok(())
            }
        }
    };
    poll("the second version", SOON, active(digest(&second))).await?;
    let before = node.daemon_lines().await.len();
    node.signal_daemon(rustix::process::Signal::HUP).await?;
    let reloaded = || async {
        let lines = node.daemon_lines().await;
        ensure!(lines[before..].iter().any(|line| line.contains("strategies reloaded")), "not yet");
        Ok(())
    };
    poll("reload", SOON, reloaded).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_during_swaps_are_decided_by_one_of_the_versions_each() -> Result<()> {
    const PREPARES: usize = 1000;
    const SWAPS: usize = 100;
    let versions: Vec<Vec<u8>> = (1..=2).map(|version| padded(HIGHEST_FIRST, version)).collect();
    let digests: BTreeSet<String> = versions.iter().map(|bytes| digest(bytes)).collect();
    let node = node(&versions[0], |node| json!({"allocator": HIGHEST, "strategies": [entry(node, HIGHEST)]}))
        .await?;
    let node = Arc::new(node);
    let done = Arc::new(AtomicBool::new(false));
    let swapping = tokio::spawn({
        let (node, done) = (Arc::clone(&node), Arc::clone(&done));
        async move {
            let mut swaps = 0;
            while swaps < SWAPS || !done.load(Ordering::Relaxed) {
                replace(&node, "own.wasm", &versions[swaps % 2])?;
                let before = node.daemon_lines().await.len();
                node.signal_daemon(rustix::process::Signal::HUP).await?;
                let reloaded = || async {
                    let lines = node.daemon_lines().await;
                    ensure!(
                        lines[before..].iter().any(|line| line.contains("strategies reloaded")),
                        "not yet"
                    );
                    Ok(())
                };
                poll("reload", SOON, reloaded).await?;
                swaps += 1;
            }
            anyhow::Ok(swaps)
        }
    });
    let mut deciders: BTreeMap<String, usize> = BTreeMap::new();
    let mut prepares = 0;
    while prepares < PREPARES || !swapping.is_finished() {
        let (claim, held) = given(&node, &format!("c{prepares}"), &[]).await?;
        assert_eq!(held, cpus("7,15"));
        *deciders.entry(decided_by(&node, &claim)?.1).or_default() += 1;
        node.unprepare(&claim).await?;
        prepares += 1;
        done.store(prepares >= PREPARES, Ordering::Relaxed);
    }
    assert!(swapping.await?? >= SWAPS);
    assert_eq!(deciders.keys().cloned().collect::<BTreeSet<_>>(), digests, "{deciders:?}");
    node.ledger_is(&[]).await?;
    Ok(())
}

/// Larger than what a start waits for.
const LARGE: usize = 2 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_large_component_is_compiled_by_a_child_and_kept() -> Result<()> {
    let large = padded(HIGHEST_FIRST, LARGE);
    let mut node = Node::without_daemon(NodeConfig::new(machine())).await?;
    std::fs::write(component(&node), &large)?;
    node.config.config = json!({"allocator": HIGHEST, "strategies": [entry(&node, HIGHEST)]});
    node.config.flags = vec![format!("--cache-dir={}", node.path("cache").display())];
    node.start_daemon().await?;
    assert_eq!(given(&node, "a", &[]).await?.1, cpus("7,15"));
    let cached = || -> Result<Vec<String>> {
        let entries = std::fs::read_dir(node.path("cache"))?;
        Ok(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
    };
    let of_large = digest(&large).trim_start_matches("sha256:").to_owned();
    let [only] = &cached()?[..] else { panic!("{:?}", cached()) };
    assert!(only.starts_with(&of_large) && only.ends_with(".cwasm"), "{only}");
    let first = only.clone();
    // From the cache there is nothing to wait for; what was damaged is compiled again.
    node.crash_and_restart().await?;
    assert_eq!(cached()?, std::slice::from_ref(&first));
    std::fs::write(node.path("cache").join(&first), b"garbage")?;
    node.crash_and_restart().await?;
    assert_eq!(given(&node, "b", &[]).await?.1, cpus("6,14"));
    Ok(())
}

/// A component of this many kilobytes that takes the compiler minutes and gigabytes: branches among many variables,
/// each of which could come from anywhere.
fn slow_to_compile(kilobytes: usize) -> Vec<u8> {
    const VARIABLES: usize = 4000;
    let mut draw = 1_u32;
    let mut any = move || {
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(draw >> 8).unwrap() % VARIABLES
    };
    // Each block has some 18 bytes.
    let blocks = (0..kilobytes * 1024 / 18).map(|_| {
        let (from, to, more) = (any(), any(), any());
        format!(
            "block local.get {from} br_if 0 local.get {more} local.get {from} i32.add local.set {to} end "
        )
    });
    let variables = "i32 ".repeat(VARIABLES);
    let blocks: String = blocks.collect();
    wat::parse_str(format!("(component (core module (func (local {variables}) {blocks})))")).unwrap()
}

/// A file of memory limits, as a container's cgroup has them: the tests run in some cgroup, here it has a limit.
fn limit_memory(node: &Node, bytes: &str) -> Result<()> {
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let cgroup = node.path("sys/fs/cgroup").join(own);
    std::fs::create_dir_all(&cgroup)?;
    std::fs::write(cgroup.join("memory.current"), "0")?;
    Ok(std::fs::write(cgroup.join("memory.max"), bytes)?)
}

async fn node_that_compiles(bytes: &[u8], limit: &str) -> Result<Node> {
    let mut node = Node::without_daemon(NodeConfig::new(machine())).await?;
    std::fs::write(component(&node), bytes)?;
    node.config.config = json!({"allowedStrategies": [HIGHEST], "strategies": [entry(&node, HIGHEST)]});
    node.config.flags = vec![format!("--cache-dir={}", node.path("cache").display())];
    limit_memory(&node, limit)?;
    node.start_daemon().await?;
    Ok(node)
}

#[tokio::test(flavor = "multi_thread")]
async fn too_little_memory_to_compile_is_said_and_everything_else_goes_on() -> Result<()> {
    for bytes in [HIGHEST_FIRST.to_vec(), padded(HIGHEST_FIRST, LARGE)] {
        let node = node_that_compiles(&bytes, &(1 << 20).to_string()).await?;
        let body = ready_says(&node, "cannot compile: needs about").await?;
        assert!(body.contains("MiB of memory, 1 MiB are left"), "{body}");
        assert_eq!(given(&node, "own", &[]).await?.1, cpus("0,8"));
        let words = format!("{:#}", given(&node, "large", &[named("FromClaim", HIGHEST)]).await.unwrap_err());
        assert!(
            words.contains("cannot compile: needs about") && words.contains("resources.limits.memory"),
            "{words}"
        );

        limit_memory(&node, "max")?;
        node.signal_daemon(rustix::process::Signal::HUP).await?;
        let given = || async { Ok(given(&node, "large", &[named("FromClaim", HIGHEST)]).await?.1) };
        assert_eq!(poll("the large one", SOON, given).await?, cpus("7,15"));
    }
    Ok(())
}

/// A hundred kilobytes that would take 300 MB: the daemon, which is no larger than its container may be, goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_component_that_takes_much_memory_to_compile_is_refused_by_what_it_took() -> Result<()> {
    let node = node_that_compiles(&slow_to_compile(100), &(48 << 20).to_string()).await?;
    ready_says(&node, "cannot compile: needs more of memory, 48 MiB are left").await?;
    assert_eq!(given(&node, "own", &[]).await?.1, cpus("0,8"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_taken_over_while_another_strategy_compiles_for_minutes() -> Result<()> {
    let node = node(&slow_to_compile(300), |_| json!({})).await?;
    let slow = json!({"allowedStrategies": [HIGHEST], "strategies": [entry(&node, HIGHEST)]});
    replace(&node, "config.yaml", slow.to_string())?;
    let body = ready_says(&node, "still compiling").await?;
    assert_eq!(body, format!("ready\nstrategy: still compiling: `{HIGHEST}`\n"));
    let words = format!("{:#}", given(&node, "slow", &[named("FromClaim", HIGHEST)]).await.unwrap_err());
    assert!(words.contains("still compiling; claims that need it are refused until it is done"), "{words}");
    compiler(&node).await?;

    replace(&node, "config.yaml", r#"{"allocator": "llc-first"}"#)?;
    let taken_over = || async {
        let (_, metrics) = node.get("/metrics").await?;
        ensure!(metrics.contains("dra_cpu_strategy_info{name=\"llc-first\""), "not yet");
        let (_, body) = node.get("/readyz").await?;
        ensure!(body == "ready\n", "{body}");
        Ok(())
    };
    poll("llc-first", SOON, taken_over).await?;
    assert!(compilers(&node).await?.is_empty(), "it was called off");

    // A compiler has no use without its daemon.
    replace(&node, "config.yaml", slow.to_string())?;
    ready_says(&node, "still compiling").await?;
    let compiler = compiler(&node).await?;
    node.kill_daemon().await?;
    let gone = || async {
        ensure!(!std::path::Path::new(&format!("/proc/{}/exe", compiler)).exists(), "still there");
        Ok(())
    };
    poll("the end of the compiler", SOON, gone).await
}

/// The process id of the daemon's only child.
async fn compiler(node: &Node) -> Result<u32> {
    let asked = || async {
        let children = compilers(node).await?;
        ensure!(children.len() == 1, "{children:?}");
        Ok(children[0])
    };
    poll("a compiler", SOON, asked).await
}

/// Process ids of the daemon's children.
async fn compilers(node: &Node) -> Result<Vec<u32>> {
    let daemon = node.daemon_process().await?.pid().context("it runs")?;
    let children = std::fs::read_dir("/proc")?.filter_map(|entry| {
        let process: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // Whoever ends meanwhile is none.
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        status.contains(&format!("\nPPid:\t{daemon}\n")).then_some(process)
    });
    Ok(children.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_compiling_is_completed_though_the_configuration_has_become_unreadable() -> Result<()> {
    let node = node_that_compiles(&padded(HIGHEST_FIRST, LARGE), "max").await?;
    replace(&node, "config.yaml", "allocator: [")?;
    node.signal_daemon(rustix::process::Signal::HUP).await?;
    ready_says(&node, "not reloaded").await?;
    let given = || async { Ok(given(&node, "large", &[named("FromClaim", HIGHEST)]).await?.1) };
    assert_eq!(poll("the large one", SOON, given).await?, cpus("7,15"));
    // The mistake is still there.
    ready_says(&node, "not reloaded").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_a_restart_changes_nothing_before() -> Result<()> {
    let node = node(HIGHEST_FIRST, |_| json!({})).await?;
    // The default of `allocator` is another one there.
    replace(&node, "config.yaml", r#"{"groupBy": "machine"}"#)?;
    assert_eq!(ready_says(&node, "restart").await?, "ready\nstrategy: needs a restart: groupBy\n");
    let (claim, lowest) = given(&node, "a", &[]).await?;
    assert_eq!((decided_by(&node, &claim)?.0.as_str(), lowest), ("packed", cpus("0,8")));
    Ok(())
}

/// `dracpu simulate`, event by event.
struct Story {
    _process: Child,
    events: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Story {
    fn on(machine: &str) -> Result<Self> {
        let mut process = Command::new(dracpu_bin()?)
            .args(["simulate", "-", "-o", "json", "--machine", machine])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let events = process.stdin.take().context("stdin")?;
        let answers = BufReader::new(process.stdout.take().context("stdout")?).lines();
        Ok(Self { _process: process, events, answers })
    }

    async fn play(&mut self, event: Value) -> Result<Value> {
        self.events.write_all(format!("{event}\n").as_bytes()).await?;
        Ok(serde_json::from_str(&self.answers.next_line().await?.context("an answer")?)?)
    }
}

/// Prepares a claim for so many CPUs, by these parameters of its own.
fn prepare(claim: &str, cpus: u32, parameters: &Value) -> Value {
    let config = json!([{"source": "FromClaim", "requests": ["r"], "cpuConfig": parameters}]);
    let config = if parameters.is_null() { Value::Null } else { config };
    let request = json!({"name": "r", "device": NUMA0, "cpus": cpus.to_string()});
    json!({"op": "prepare", "claim": claim, "requests": [request], "config": config})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_story_reloads_as_the_daemon_does() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let own = directory.path().join("own.wasm");
    std::fs::write(&own, HIGHEST_FIRST)?;
    let entry = json!({"name": HIGHEST, "path": own});
    let config = json!({"op": "config", "set": {"allocator": HIGHEST, "strategies": [entry]}});
    let mut story = Story::on("desktop-smt")?;
    for (event, key, answer) in [
        (json!({"op": "reload", "set": {"groupBy": "machine"}}), "needsRestart", json!(["groupBy"])),
        // Still `packed`, though a driver that starts so would have another default.
        (prepare("a", 2, &Value::Null), "cpus", json!("0-1")),
        (json!({"op": "reload", "set": {"groupBy": null}}), "ok", json!(true)),
        (config, "ok", json!(true)),
        (prepare("b", 2, &Value::Null), "cpus", json!("14-15")),
    ] {
        let said = story.play(event).await?;
        assert_eq!(said[key], answer, "{said}");
    }
    std::fs::write(&own, "no wasm")?;
    let said = story.play(json!({"op": "reload", "set": {}})).await?;
    assert!(said["error"].as_str().unwrap().contains("does not begin as WebAssembly does"), "{said}");
    Ok(())
}

/// 16 CPUs, two threads a core: 0-1, 2-3 and so on.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_by_an_allowed_strategy_takes_nothing_that_the_nodes_offers() -> Result<()> {
    let isolating = json!([{"name": "llc-first", "options": {"isolate": "core"}}]);
    let node = json!({"allocator": "packed", "allowedStrategies": ["llc-first"], "strategies": isolating});
    let whole = json!({"allocator": "llc-first", "strategyOptions": {"isolate": "core"},
                       "allowedStrategies": ["external"]});
    for (node, parameters, refused, served) in [
        // One CPU, and its sibling kept idle, which `packed` counts.
        (&node, json!({"strategy": "llc-first"}), 1, Some(2)),
        // Two halves of cores, where devices offer whole ones.
        (&whole, json!({"strategy": "external", "cpuset": "0,2"}), 2, None),
    ] {
        let mut story = Story::on("desktop-smt")?;
        story.play(json!({"op": "config", "set": node})).await?;
        let said = story.play(prepare("a", refused, &parameters)).await?;
        let words = said["error"].as_str().with_context(|| said.to_string())?;
        assert!(words.contains("that are still on offer"), "{words}");
        if let Some(count) = served {
            let said = story.play(prepare("b", count, &parameters)).await?;
            assert_eq!(said["cpus"], "0-1", "{said}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_is_no_file_is_refused_and_the_next_one_is_read() -> Result<()> {
    let node = node(HIGHEST_FIRST, |_| json!({})).await?;
    let pipe = node.path("pipe");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)?;
    std::fs::rename(&pipe, node.path("config.yaml"))?;
    ready_says(&node, "it is a named pipe, not a regular file").await?;
    replace(&node, "config.yaml", r#"{"allocator": "nobody"}"#)?;
    ready_says(&node, "strategy nobody: there is none of this name").await?;
    // A failure is counted for who decides.
    let (_, metrics) = node.get("/metrics").await?;
    let failed =
        |name: &str| format!("dra_cpu_strategy_failures_total{{strategy=\"{name}\",kind=\"load\"}} 1");
    assert!(metrics.contains(&failed("packed")) && metrics.contains(&failed("nobody")), "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_strategy_that_cannot_be_loaded_at_the_start_is_seen() -> Result<()> {
    // Beside one that takes longer than a start waits, so that something is taken over later.
    let mut node = Node::without_daemon(NodeConfig::new(machine())).await?;
    let slow = node.path("slow.wasm");
    std::fs::write(component(&node), b"no wasm")?;
    std::fs::write(&slow, padded(&GUESTS["honest"], LARGE))?;
    let entries = [entry(&node, HIGHEST), json!({"name": "honest", "path": slow})];
    node.config.config = json!({"allowedStrategies": [HIGHEST, "honest"], "strategies": entries});
    node.config.flags = vec![format!("--cache-dir={}", node.path("cache").display())];
    node.start_daemon().await?;
    let compiled = || async { given(&node, "slow", &[named("FromClaim", "honest")]).await };
    let (claim, _) = poll("the slow one", SOON, compiled).await?;
    node.unprepare(&claim).await?;
    let body = ready_says(&node, "the file does not begin as WebAssembly does").await?;
    assert!(body.starts_with(&format!("ready\nstrategy: strategy {HIGHEST}: ")), "{body}");
    let (_, metrics) = node.get("/metrics").await?;
    let failed = format!("dra_cpu_strategy_failures_total{{strategy=\"{HIGHEST}\",kind=\"load\"}} 1");
    assert!(metrics.contains(&failed), "{metrics}");
    assert_eq!(given(&node, "own", &[]).await?.1, cpus("0,8"));
    Ok(())
}

#[test]
fn what_takes_long_is_left_to_who_can_wait() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.wasm");
    std::fs::write(&path, padded(HIGHEST_FIRST, LARGE)).unwrap();
    let config = dracpu::config::StrategyConfig {
        name: HIGHEST.to_owned(),
        path: Some(path),
        digest: None,
        limits: dracpu::config::LimitsConfig::default(),
        options: serde_json::Map::new(),
    };
    let cache = Cache::create(&directory.path().join("cache")).unwrap();
    let catalogue = Catalogue::new(&[config]).unwrap().in_program(Some(cache), directory.path());
    let soon = || std::time::Instant::now() + std::time::Duration::from_secs(60);
    let error: LoadError = catalogue.load_until(HIGHEST, soon()).unwrap_err();
    assert!(error.is_compiling() && error.to_string().contains("still compiling"), "{error}");
    assert!(catalogue.load_until("packed", soon()).is_ok());
}
