//! Slices as the scheduler needs them, whatever the API server does meanwhile.

use anyhow::Result;
use dracpu_tests::support::api_server::{Gates, Resource, Verb};
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{NODE, Node, NodeConfig};
use dracpu_tests::support::wait::{SOON, poll};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn server() -> NodeConfig {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    NodeConfig::new(Machine::of(shape))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_devices_are_those_of_the_contract_and_the_slice_belongs_to_the_node() -> Result<()> {
    let node = Node::start(server().with_config(json!({"reservedCPUs": "0,16"}))).await?;
    let devices = node.devices().await?;
    let device = &devices["cpudevnuma000"];
    assert_eq!(device["allowMultipleAllocations"], true);
    assert_eq!(device["capacity"]["dra.cpu/cpu"]["value"], "14");
    assert_eq!(
        device["attributes"],
        json!({
            "resource.kubernetes.io/numaNode": {"int": 0}, "dra.cpu/socketID": {"int": 0},
            "dra.cpu/numCPUs": {"int": 14}, "dra.cpu/smtEnabled": {"bool": true},
            "dra.cpu/numaNodeID": {"int": 0}, "dra.net/numaNode": {"int": 0},
        })
    );
    assert_eq!(devices["cpudevnuma001"]["capacity"]["dra.cpu/cpu"]["value"], "16");
    let slices = node.api.list(Resource::ResourceSlices);
    let [slice] = slices.as_slice() else { panic!("one slice: {slices:?}") };
    let owner = &slice["metadata"]["ownerReferences"][0];
    let uid = &node.api.get(Resource::Nodes, "", NODE).unwrap()["metadata"]["uid"];
    assert_eq!((&owner["kind"], &owner["uid"], &owner["controller"]), (&json!("Node"), uid, &json!(true)));
    assert_eq!(slice["spec"]["pool"], json!({"name": NODE, "generation": 1, "resourceSliceCount": 1}));
    let name = slice["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with(&format!("00000-dra.cpu-{NODE}-")), "{name}");
    assert!(node.api.warnings().is_empty(), "{:?}", node.api.warnings());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_slice_is_back_at_once_and_refusals_are_outlived() -> Result<()> {
    let node = Node::start(server()).await?;
    let before = node.devices().await?;
    for code in [None, Some(503), Some(409), Some(429)] {
        if let Some(code) = code {
            node.api.refuse(Verb::Create, Resource::ResourceSlices, code, Some(2));
        }
        let deleted = Instant::now();
        node.api.delete_slices(NODE, None);
        assert_eq!(node.devices().await?, before, "{code:?}");
        assert!(code.is_some() || deleted.elapsed() < Duration::from_secs(2), "took {:?}", deleted.elapsed());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_watch_is_begun_anew_and_still_sees_a_deletion() -> Result<()> {
    let node = Node::start(server()).await?;
    let before = node.devices().await?;
    let watches = node.api.count(Verb::Watch, Resource::ResourceSlices);
    node.api.compact();
    let again = || async {
        let now = node.api.count(Verb::Watch, Resource::ResourceSlices);
        anyhow::ensure!(now > watches, "{now} watches");
        Ok(())
    };
    poll("another watch", SOON, again).await?;
    node.api.delete_slices(NODE, None);
    assert_eq!(node.devices().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_fields_are_reported_once_and_never_fought_over() -> Result<()> {
    let node = Node::start(NodeConfig { gates: Gates::defaults_of(35), ..server() }).await?;
    let devices = node.devices().await?;
    assert!(
        devices["cpudevnuma000"]["allowMultipleAllocations"].is_null(),
        "the feature is off on this server"
    );
    let reported = || async {
        let lines = node.daemon_lines().await;
        let about = lines.iter().filter(|line| line.contains("allowMultipleAllocations")).count();
        anyhow::ensure!(about > 0, "not reported");
        Ok(about)
    };
    assert_eq!(poll("report", SOON, reported).await?, 1);
    let writes = || {
        [Verb::Create, Verb::Update, Verb::Delete].map(|verb| node.api.count(verb, Resource::ResourceSlices))
    };
    let before = writes();
    let watches = node.api.count(Verb::Watch, Resource::ResourceSlices);
    for round in 1..=3 {
        node.api.compact();
        let again = || async {
            let now = node.api.count(Verb::Watch, Resource::ResourceSlices);
            anyhow::ensure!(now >= watches + round, "{now} watches");
            Ok(())
        };
        poll("another watch", SOON, again).await?;
    }
    assert_eq!(writes(), before);
    assert_eq!(poll("report", SOON, reported).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_cpus_one_by_one_are_three_slices_of_one_pool() -> Result<()> {
    let config = json!({"cpuDeviceMode": "individual"});
    let node = Node::start(NodeConfig::new(Machine::small(150, 2)).with_config(config)).await?;
    let devices = node.devices().await?;
    assert_eq!(devices.len(), 300);
    let slices = node.api.list(Resource::ResourceSlices);
    let sizes: Vec<_> =
        slices.iter().map(|slice| slice["spec"]["devices"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(sizes, [128, 128, 44], "in the order of their names");
    // siblings are numbered next to each other
    let cpu = |name: &str| devices[name]["attributes"]["dra.cpu/cpuID"]["int"].clone();
    assert_eq!((cpu("cpudev000"), cpu("cpudev001")), (json!(0), json!(150)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn other_groups_have_their_names_and_attributes() -> Result<()> {
    for (group, names, attributes) in [
        (
            "socket",
            vec!["cpudevsocket000", "cpudevsocket001"],
            vec!["dra.cpu/numCPUs", "dra.cpu/smtEnabled", "dra.cpu/socketID"],
        ),
        ("machine", vec!["cpudevmachine"], vec!["dra.cpu/numCPUs", "dra.cpu/smtEnabled"]),
    ] {
        let mut config = json!({"groupBy": group});
        if group == "machine" {
            config["allocator"] = "packed".into();
        }
        let node = Node::start(server().with_config(config)).await?;
        let devices = node.devices().await?;
        assert_eq!(devices.keys().collect::<Vec<_>>(), names);
        let mut found: Vec<_> =
            devices[names[0]]["attributes"].as_object().unwrap().keys().cloned().collect();
        found.sort();
        assert_eq!(found, attributes, "{group}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_name_that_the_api_server_does_not_know_is_shown_by_readiness() -> Result<()> {
    let node = Node::without_daemon(server()).await?;
    node.api.delete(Resource::Nodes, "", NODE);
    node.launch_daemon().await?;
    let shown = || async {
        let (status, reason) = node.get("/readyz").await?;
        anyhow::ensure!(status == 503 && reason.contains(NODE), "{status} {reason}");
        Ok(())
    };
    poll("reason", SOON, shown).await?;
    assert!(node.api.list(Resource::ResourceSlices).is_empty(), "no slice without its owner");
    node.api.put(Resource::Nodes, json!({"metadata": {"name": NODE}}));
    let devices: std::collections::BTreeMap<String, Value> = node.devices().await?;
    assert!(!devices.is_empty());
    node.wait_serving().await
}
