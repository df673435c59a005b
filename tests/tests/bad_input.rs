//! Whatever is wrong outside: a clear refusal, nothing booked, nothing lost.

use anyhow::{Context, Result};
use dracpu_tests::support::cpus::Cpus;
use dracpu_tests::support::daemon::Daemon;
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::scheduler::{self, CAPACITY, DRIVER, cpu_config};
use dracpu_tests::support::wait::SOON;
use serde_json::{Value, json};

const NUMA0: &str = "cpudevnuma000";

fn small() -> NodeConfig {
    NodeConfig::new(Machine::small(4, 2))
}

fn cpus_of(node: &Node, claim: &ClaimRef) -> Result<Cpus> {
    node.record_of(&claim.uid)
}

fn result_with(capacity: Value) -> Value {
    json!({"request": "r", "driver": DRIVER, "pool": NODE, "device": NUMA0, "consumedCapacity": capacity})
}

#[tokio::test(flavor = "multi_thread")]
async fn only_positive_whole_quantities_are_cpus() -> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let huge = format!("1{}", "0".repeat(30));
    for quantity in [
        None,
        Some("0"),
        Some("-1"),
        Some("500m"),
        Some("1500m"),
        Some("1e3m"),
        Some(""),
        Some(huge.as_str()),
    ] {
        let capacity = quantity.map_or_else(|| json!({}), |text| json!({CAPACITY: text}));
        let claim = scheduler::write_claim(&node.api, "c", None, &[result_with(capacity)], &[]);
        let refusal = format!("{:#}", node.prepare(&claim).await.expect_err(quantity.unwrap_or("absent")));
        assert!(refusal.contains(NUMA0), "the device is named: {refusal}");
        assert!(quantity.is_none_or(|text| refusal.contains(text)), "the value is named: {refusal}");
        node.ledger_is(&[]).await?;
    }
    for (quantity, count) in [("1000m", 1), ("2", 2)] {
        let claim = node.write_claim("c", NUMA0, quantity, &[]);
        node.prepare(&claim).await?;
        let own = cpus_of(&node, &claim)?;
        assert_eq!(own.len(), count, "{quantity}");
        node.ledger_is(&[(&claim, &own)]).await?;
        node.unprepare(&claim).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn allocations_that_are_not_this_nodes_are_refused() -> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let result = |change: Value| {
        let mut result = result_with(json!({CAPACITY: "2"}));
        result.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        result
    };
    for (change, named) in [
        (json!({"pool": "node-b"}), "node-b"),
        (json!({"device": "cpudevnuma007"}), "cpudevnuma007"),
        (json!({"adminAccess": true}), "dminAccess"),
    ] {
        let claim = scheduler::write_claim(&node.api, "c", None, &[result(change)], &[]);
        let refusal = format!("{:#}", node.prepare(&claim).await.expect_err(named));
        assert!(refusal.contains(named), "{refusal}");
    }
    let not_allocated = json!({"metadata": {"namespace": "default", "name": "fresh"}, "spec": {}});
    let stored = node.api.put(dracpu_tests::support::api_server::Resource::ResourceClaims, not_allocated);
    let uid = stored["metadata"]["uid"].as_str().unwrap().to_owned();
    let claim = ClaimRef { namespace: "default".to_owned(), name: "fresh".to_owned(), uid };
    let refusal = format!("{:#}", node.prepare(&claim).await.unwrap_err());
    assert!(refusal.contains("allocat"), "{refusal}");
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn opaque_parameters_that_cannot_be_honoured_are_refused_each_in_its_own_words() -> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let opaque = |parameters: Value| json!({"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}});
    let mut refusals = std::collections::BTreeSet::new();
    let cases = [
        cpu_config("FromClaim", &[], &json!({"cpuset": "2-3"})), // packed chooses for itself
        cpu_config("FromClass", &[], &json!({"cpuset": "2-3"})),
        cpu_config("FromClaim", &[], &json!({"cpusets": "2-3"})),
        cpu_config("FromClaim", &["nobody"], &json!({"cpuset": "2-3"})),
        opaque(json!({"apiVersion": "v2", "cpuConfig": {}})),
        opaque(json!("text")),
        opaque(json!({"apiVersion": "v1alpha1", "cpuConfig": {"options": ["list"]}})),
        cpu_config("FromClaim", &[], &json!({"strategy": "no-such-strategy"})),
    ];
    for config in cases.iter().filter(|config| config["requests"] != json!(["nobody"])) {
        let claim = node.write_claim("c", NUMA0, "2", std::slice::from_ref(config));
        let refusal = format!("{:#}", node.prepare(&claim).await.err().with_context(|| config.to_string())?);
        assert!(refusals.insert(refusal.clone()), "not its own words: {refusal}");
        node.ledger_is(&[]).await?;
    }
    // parameters for another driver, or for no request of the claim, concern nobody here
    let mut foreign = opaque(json!({"whatever": 1}));
    foreign["opaque"]["driver"] = "gpu.example.org".into();
    let claim = node.write_claim("c", NUMA0, "2", &[foreign]);
    node.prepare(&claim).await?;
    let own = cpus_of(&node, &claim)?;
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_and_broken_files_beside_the_records_do_no_harm() -> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let claim = node.write_claim("c", NUMA0, "2", &[]);
    node.prepare(&claim).await?;
    let own = cpus_of(&node, &claim)?;
    let record = node.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{}.json", claim.uid));
    let text = std::fs::read_to_string(&record)?;
    node.kill_daemon().await?;
    let foreign = [
        ("gpu.example.org-gpu.json", "{\"cdiVersion\":\"9.9.9\"}".to_owned()),
        ("dra.k8s.io-cpu_other.json", "{}".to_owned()),
        ("spec.123.tmp", "half".to_owned()),
        ("notes.txt", "hello".to_owned()),
    ];
    let broken = [
        ("dra.k8s.io-cpu_claim-truncated.json", text[..text.len() / 2].to_owned()),
        ("dra.k8s.io-cpu_claim-empty.json", String::new()),
        ("dra.k8s.io-cpu_claim-kind.json", text.replace("dra.k8s.io/cpu", "dra.k8s.io/gpu")),
        ("dra.k8s.io-cpu_claim-name.json", text.clone()), // its device is another claim's
    ];
    for (name, text) in foreign.iter().chain(&broken) {
        std::fs::write(node.cdi_dir().join(name), text)?;
    }
    node.start_daemon().await?;
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[])]).await?;
    let shared = node.runtime.effective_cpus(&pod.id("app"));
    assert!(shared.is_disjoint(&own) && !shared.is_empty());
    for (name, text) in &foreign {
        assert_eq!(std::fs::read_to_string(node.cdi_dir().join(name))?, *text, "{name} is not ours");
    }
    for (name, _) in &broken {
        let uid = name.trim_start_matches("dra.k8s.io-cpu_claim-").trim_end_matches(".json");
        let again = scheduler::write_claim(
            &node.api,
            &format!("again-{uid}"),
            Some(uid),
            &[result_with(json!({CAPACITY: "1"}))],
            &[],
        );
        node.prepare(&again).await.with_context(|| (*name).to_owned())?;
        assert_eq!(cpus_of(&node, &again)?.len(), 1);
        node.unprepare(&again).await?;
    }
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

/// Starts the daemon with a configuration that cannot be, and returns its exit code and words.
async fn refused_start(node: &mut Node, config: Value) -> Result<(Option<i32>, String)> {
    node.config.config = config;
    let mut daemon = Daemon::spawn(&node.daemon_args()?)?;
    let status = daemon.wait_exit(SOON).await?;
    Ok((status.code(), daemon.lines().join("\n")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_ends_the_start_with_64_and_all_mistakes_at_once() -> Result<()> {
    let mut node = Node::without_daemon(small()).await?;
    for (config, named) in [
        (
            json!({"reservedCpus": "0", "groupby": "socket"}),
            vec!["reservedCpus", "reservedCPUs", "groupby", "groupBy"],
        ),
        (json!({"reservedCPUs": "0-x"}), vec!["reservedCPUs", "0-x"]),
        (json!({"reservedCPUs": "7-3"}), vec!["reservedCPUs", "7-3"]),
        (json!({"cpuDeviceMode": "pairs"}), vec!["pairs", "grouped"]),
        (json!({"apiVersion": "v9"}), vec!["v9", "v1alpha1"]),
        (json!({"bindAddress": ":1"}), vec!["bindAddress", "--bind-address"]),
    ] {
        let (code, words) = refused_start(&mut node, config.clone()).await?;
        assert_eq!(code, Some(64), "{config}: {words}");
        for name in named {
            assert!(words.contains(name), "{config} lacks {name}: {words}");
        }
    }
    node.config.config = json!({});
    node.start_daemon().await?;
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strategy_that_cannot_be_used_is_named_and_recorded_claims_live_on() -> Result<()> {
    let mut node = Node::start(small()).await?;
    node.devices().await?;
    let claim = node.write_claim("old", NUMA0, "2", &[]);
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = cpus_of(&node, &claim)?;
    for (config, named) in [
        (json!({"allocator": "no-such"}), "no-such"),
        (json!({"strategyOptions": {"full-pcpus": true}}), "full-pcpus"),
        (json!({"allocator": "x", "strategies": [{"name": "x", "path": "/dev/null"}]}), "/dev/null"),
    ] {
        node.kill_daemon().await?;
        node.config.config = config;
        node.launch_daemon().await?;
        node.wait_connected().await?;
        let (status, reason) = node.get("/readyz").await?;
        assert_eq!(status, 503, "{reason}");
        assert!(reason.contains(named), "{reason}");
        node.prepare(&claim).await?;
        let refusal =
            format!("{:#}", node.prepare(&node.write_claim("new", NUMA0, "2", &[])).await.unwrap_err());
        assert!(refusal.contains(named), "{refusal}");
        node.ledger_is(&[(&claim, &own)]).await?;
    }
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_be_read_ends_the_start_and_names_the_file() -> Result<()> {
    let mut node = Node::without_daemon(small()).await?;
    let online = node.path("sys/devices/system/cpu/online");
    let good = std::fs::read_to_string(&online)?;
    for text in ["0-x\n", "7-0\n", "99999999\n"] {
        std::fs::write(&online, text)?;
        let (code, words) = refused_start(&mut node, json!({})).await?;
        assert_eq!(code, Some(1), "{text:?}: {words}");
        assert!(words.contains("cpu/online"), "{words}");
    }
    std::fs::write(&online, good)?;
    node.start_daemon().await?;
    node.ledger_is(&[]).await?;
    Ok(())
}
