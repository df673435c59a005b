//! What the node reports of a claim: to its containers, and to whoever looks at the claim object.

use anyhow::{Result, ensure};
use dracpu_tests::support::api_server::{Resource, Verb};
use dracpu_tests::support::cpus::{Cpus, list};
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::scheduler::{Ask, DRIVER};
use dracpu_tests::support::wait::{SOON, look, poll};
use serde_json::{Value, json};
use std::time::SystemTime;

const NUMA0: &str = "cpudevnuma000";
const NUMA1: &str = "cpudevnuma001";

/// Two sockets of eight cores with two threads; CPUs 0-7,16-23 and 8-15,24-31.
fn server() -> NodeConfig {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    NodeConfig::new(Machine::of(shape))
}

/// What a container of the claim reads where its workload looks: of a request, the device, and its attributes.
fn read(node: &Node, container: &str, claim: &str, request: &str) -> Result<Value> {
    let record = node.runtime.container(container);
    let path =
        format!("/var/run/kubernetes.io/dra-device-attributes/{claim}/{request}/dra.cpu-metadata.json");
    let mount = record.mounts.iter().find(|mount| mount.container_path == path);
    let mount = mount.ok_or_else(|| anyhow::anyhow!("no mount at {path}: {:?}", record.mounts))?;
    ensure!(mount.options == ["ro", "bind"], "{mount:?}");
    let text = std::fs::read_to_string(&mount.host_path)?;
    let document: Value = serde_json::from_str(&text)?; // one document, so this is the whole stream
    Ok(document)
}

fn ints(cpus: &Cpus) -> Value {
    json!({"ints": cpus})
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_read_what_devices_and_cpus_they_have_and_where() -> Result<()> {
    let node = Node::start(server()).await?;
    let published = node.devices().await?;
    let direct = node.allocate("direct", &[Ask::of("near", NUMA0, 4), Ask::of("far", NUMA1, 2)]).await?;
    let made = node.allocate("pod-cpus-x7f", &[Ask::of("r", NUMA1, 2)]).await?;
    node.api.change(Resource::ResourceClaims, "default", &made.name, |object| {
        object["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": "cpus"});
    });
    let claims = [&direct, &made];
    let pod = node.run_pod("p", &claims, &[ContainerAsk::new("app", &claims)]).await?;
    let id = pod.id("app");

    let all = node.record_of(&direct.uid)?;
    for (request, device, socket) in [("near", NUMA0, 0), ("far", NUMA1, 1)] {
        let document = read(&node, &id, "resourceclaims/direct", request)?;
        assert_eq!(document["apiVersion"], "metadata.resource.k8s.io/v1beta1");
        assert_eq!(document["kind"], "DeviceMetadata");
        let expected = json!({"name": "direct", "namespace": "default", "uid": direct.uid, "generation": 1});
        assert_eq!(document["metadata"], expected);
        assert_eq!(document.get("podClaimName"), None);
        let told = &document["requests"][0];
        assert_eq!((&told["name"], told["devices"].as_array().map(Vec::len)), (&json!(request), Some(1)));
        let told = &told["devices"][0];
        assert_eq!(
            [&told["driver"], &told["pool"], &told["name"]],
            [&json!(DRIVER), &json!(NODE), &json!(device)]
        );
        let own: Cpus = all.intersection(&node.config.machine.numa_cpus(socket)).copied().collect();
        let attributes = &told["attributes"];
        for (name, value) in published[device]["attributes"].as_object().unwrap() {
            assert_eq!(&attributes[name], value, "{name}");
        }
        assert_eq!(attributes["dra.cpu/allocatedNumCPUs"], json!({"int": own.len()}));
        assert_eq!(attributes["dra.cpu/allocatedCPUs"], ints(&own));
        // siblings are 16 apart here, so a core's lowest CPU is below that
        let cores: Vec<u32> = own.iter().map(|cpu| cpu % 16).collect();
        assert_eq!(attributes["dra.cpu/allocatedCores"], json!({"ints": cores}));
        assert_eq!(attributes["dra.cpu/allocatedSockets"], json!({"ints": vec![socket; own.len()]}));
        assert_eq!(attributes["dra.cpu/allocatedNUMANodes"], json!({"ints": vec![socket; own.len()]}));
    }
    let document = read(&node, &id, "resourceclaimtemplates/cpus", "r")?;
    assert_eq!(document["podClaimName"], "cpus");
    assert_eq!(
        document["requests"][0]["devices"][0]["attributes"]["dra.cpu/allocatedCPUs"],
        ints(&node.record_of(&made.uid)?)
    );
    assert!(node.runtime.oddities().is_empty(), "{:?}", node.runtime.oddities());

    node.terminate_pod(&pod).await?;
    for directory in [node.cdi_dir(), node.path("k/plugins/dra.cpu/dra-device-metadata")] {
        assert_eq!(std::fs::read_dir(&directory)?.count(), 0, "{}", directory.display());
    }
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_outlives_a_crash_and_that_of_claims_that_went_meanwhile_does_not() -> Result<()> {
    let node = Node::start(server()).await?;
    let stays = node.allocate("stays", &[Ask::of("r", NUMA0, 2)]).await?;
    let goes = node.allocate("goes", &[Ask::of("r", NUMA0, 2)]).await?;
    let mut pod = node.run_pod("p", &[&stays], &[ContainerAsk::new("app", &[&stays])]).await?;
    node.prepare(&goes).await?;
    let own = node.record_of(&stays.uid)?;
    node.kill_daemon().await?;
    std::fs::remove_file(node.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{}.json", goes.uid)))?;
    node.start_daemon().await?;
    let metadata = node.path("k/plugins/dra.cpu/dra-device-metadata");
    let left: Vec<_> = std::fs::read_dir(&metadata)?.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["default_stays"]);
    node.restart_container(&mut pod, "app").await?;
    read(&node, &pod.id("app"), "resourceclaims/stays", "r")?;
    node.ledger_is(&[(&stays, &own)]).await?;
    Ok(())
}

/// `status.devices` of a claim, once there is one.
async fn status(node: &Node, claim: &ClaimRef) -> Result<Vec<Value>> {
    let devices = || {
        let object = node.api.get(Resource::ResourceClaims, &claim.namespace, &claim.name)?;
        object["status"]["devices"].as_array().cloned()
    };
    look("claim status", SOON, &mut node.api.revisions(), devices).await
}

fn patches(node: &Node) -> usize {
    node.api.count(Verb::Patch, Resource::ResourceClaims)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_shows_its_cpus_in_its_status_written_once_in_the_drivers_name() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("near", NUMA0, 4), Ask::of("far", NUMA1, 2)]).await?;
    node.prepare(&claim).await?;
    let all = node.record_of(&claim.uid)?;
    let devices = status(&node, &claim).await?;
    assert_eq!(devices.len(), 2);
    let results = node.api.get(Resource::ResourceClaims, "default", "a").unwrap();
    let results = &results["status"]["allocation"]["devices"]["results"];
    for (n, (device, socket)) in [(NUMA0, 0), (NUMA1, 1)].into_iter().enumerate() {
        let own: Cpus = all.intersection(&node.config.machine.numa_cpus(socket)).copied().collect();
        let entry = &devices[n];
        assert_eq!([&entry["driver"], &entry["pool"], &entry["device"]], [DRIVER, NODE, device]);
        assert_eq!(entry["shareID"], results[n]["shareID"]);
        assert_eq!(entry["data"], json!({"cpus": list(&own), "strategy": "packed"}));
        let condition = &entry["conditions"][0];
        assert_eq!([&condition["type"], &condition["status"]], ["Ready", "True"]);
    }
    let object = node.api.get(Resource::ResourceClaims, "default", "a").unwrap();
    assert_eq!(object["metadata"]["managedFields"][0]["manager"], DRIVER);

    assert_eq!(patches(&node), 1);
    node.prepare(&claim).await?; // answered from the record
    node.crash_and_restart().await?;
    let again = || async {
        ensure!(patches(&node) == 2, "{} patches", patches(&node));
        Ok(())
    };
    poll("another write after the start", SOON, again).await?;
    let now = node.api.get(Resource::ResourceClaims, "default", "a").unwrap();
    assert_eq!(now, object, "the same, so no change");
    let other = node.allocate("b", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&other).await?;
    status(&node, &other).await?;
    assert_eq!(patches(&node), 3, "nothing but the new claim's");
    node.ledger_is(&[(&claim, &all), (&other, &node.record_of(&other.uid)?)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_cannot_be_written_keeps_no_claim_back_and_is_written_later() -> Result<()> {
    let node = Node::start(server()).await?;
    node.api.allow_claim_status(false);
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let twice = || async {
        ensure!(patches(&node) >= 2, "{} patches", patches(&node));
        Ok(())
    };
    poll("a second try", SOON, twice).await?;
    let lines = node.daemon_lines().await;
    let said: Vec<_> =
        lines.iter().filter(|line| line.contains("status of a claim is not written")).collect();
    assert!(said.len() == 1 && said[0].contains("roles of the chart"), "{said:?}");
    node.api.allow_claim_status(true);
    assert_eq!(status(&node, &claim).await?[0]["data"]["cpus"], list(&node.record_of(&claim.uid)?));

    let gone = node.allocate("gone", &[Ask::of("r", NUMA0, 2)]).await?;
    node.api.refuse(Verb::Patch, Resource::ResourceClaims, 503, Some(1));
    node.prepare(&gone).await?;
    let refused = || async {
        let refused = node.api.seen().iter().any(|seen| seen.verb == Verb::Patch && seen.code == 503);
        ensure!(refused);
        Ok(())
    };
    poll("a refused write", SOON, refused).await?;
    node.unprepare(&gone).await?;
    node.api.delete(Resource::ResourceClaims, "default", "gone");
    let next = node.allocate("next", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&next).await?;
    status(&node, &next).await?;
    assert_eq!(node.get("/readyz").await?.0, 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_status_is_written_where_the_configuration_says_so() -> Result<()> {
    let node = Node::start(server().with_config(json!({"claimStatus": false}))).await?;
    node.api.allow_claim_status(false);
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&claim).await?;
    node.terminate_daemon().await?; // whatever was about to be written has been
    assert_eq!(patches(&node), 0);
    Ok(())
}

/// The events of a reason.
fn events(node: &Node, reason: &str) -> Vec<Value> {
    let all = node.api.list(Resource::Events).into_iter();
    all.filter(|event| event["reason"] == reason).collect()
}

/// Waits for an event of a reason about an object.
async fn event(node: &Node, reason: &str, about: &str) -> Result<Value> {
    let what = format!("event {reason} about {about}");
    look(&what, SOON, &mut node.api.revisions(), || {
        events(node, reason).into_iter().find(|event| event["regarding"]["name"] == about)
    })
    .await
}

fn event_writes(node: &Node) -> usize {
    node.api.count(Verb::Create, Resource::Events) + node.api.count(Verb::Patch, Resource::Events)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_claim_has_one_event_with_what_it_asks_for_what_is_free_and_a_remedy() -> Result<()> {
    let node = Node::start(server()).await?;
    let first = node.allocate("first", &[Ask::of("r", NUMA0, 10)]).await?;
    node.prepare(&first).await?;
    let big = node.write_claim("big", NUMA0, "8", &[]);
    let words = [
        "claim default/big",
        "request r asks for 8 CPUs of device cpudevnuma000, 6 of 16 are free",
        "wait until other claims end",
        &format!("by claim {}", first.uid),
    ];
    for _ in 0..5 {
        let why = node.prepare(&big).await.unwrap_err().to_string();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
    let told = event(&node, "CPUsNotPrepared", "big").await?;
    let note = told["note"].as_str().unwrap();
    assert!(words.iter().all(|word| note.contains(word)), "{note}");
    let regarding = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "namespace": "default",
                           "name": "big", "uid": big.uid});
    assert_eq!(told["regarding"], regarding);
    assert_eq!([&told["type"], &told["reportingInstance"]], ["Warning", NODE]);
    node.prepare(&big).await.unwrap_err();
    node.terminate_daemon().await?; // whatever was about to be written has been
    assert_eq!(event_writes(&node), 1, "a minute is not over");
    assert!(node.api.warnings().is_empty(), "{:?}", node.api.warnings());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_cannot_be_written_keep_nothing_back_and_are_logged_once() -> Result<()> {
    let node = Node::start(server()).await?;
    node.api.allow_events(false);
    for name in ["a", "b", "c"] {
        node.prepare(&node.write_claim(name, NUMA0, "99", &[])).await.unwrap_err();
    }
    let refused = || async {
        ensure!(node.api.count(Verb::Create, Resource::Events) >= 3);
        Ok(())
    };
    poll("three refused events", SOON, refused).await?;
    let claim = node.allocate("fine", &[Ask::of("r", NUMA1, 2)]).await?;
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let lines = node.daemon_lines().await;
    let said: Vec<_> = lines.iter().filter(|line| line.contains("is not written yet")).collect();
    assert!(said.len() == 1 && said[0].contains("roles of the chart"), "{said:?}");
    assert_eq!(node.get("/readyz").await?.0, 200);

    node.api.allow_events(true);
    node.api.refuse(Verb::Create, Resource::Events, 503, Some(1));
    node.prepare(&node.write_claim("d", NUMA0, "99", &[])).await.unwrap_err();
    event(&node, "CPUsNotPrepared", "d").await?;
    let written = || async {
        ensure!(node.metric("dra_cpu_events_total{result=\"written\"}").await? >= 1.0);
        Ok(())
    };
    poll("a written event", SOON, written).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_told_of_variables_that_are_not_believed_and_of_limits_that_stop_its_claim() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
    let limited = ContainerAsk { quota: Some((200_000, 100_000)), ..ContainerAsk::new("app", &[&claim]) };
    let pod = node.run_pod("limited", &[&claim], &[limited]).await?;
    let told = event(&node, "CPUsThrottled", "limited").await?;
    let note = told["note"].as_str().unwrap();
    assert!(note.contains("container app can be throttled") && note.contains("its CPU limit is 2"), "{note}");
    assert_eq!([&told["regarding"]["kind"], &told["regarding"]["uid"]], ["Pod", pod.uid.as_str()]);

    let forged = |name: &str| ContainerAsk {
        env: vec![format!("DRA_CPUSET_{}=0-7", claim.uid)],
        ..ContainerAsk::new(name, &[])
    };
    let thief = node.run_pod("thief", &[], &[forged("app")]).await?;
    assert!(thief.containers["app"].is_err());
    let told = event(&node, "ClaimNotBelieved", "thief").await?;
    assert!(told["note"].as_str().unwrap().contains("container app is not created"), "{told}");

    node.kill_daemon().await?;
    let made_meanwhile = node.run_pod("meanwhile", &[], &[forged("app")]).await?;
    node.start_daemon().await?;
    let told = event(&node, "ClaimNotBelieved", "meanwhile").await?;
    assert_eq!(told["regarding"]["uid"], made_meanwhile.uid.as_str());
    let own = node.record_of(&claim.uid)?;
    assert!(node.runtime.effective_cpus(&made_meanwhile.id("app")).is_disjoint(&own));
    assert!(node.api.warnings().is_empty(), "{:?}", node.api.warnings());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn time_on_cpus_of_others_claims_is_counted_when_the_driver_is_back() -> Result<()> {
    const OVERLAP: &str = "dra_cpu_overlap_seconds_total";
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    node.run_pod("before", &[], &[ContainerAsk::new("app", &[])]).await?;
    assert_eq!(node.metric(OVERLAP).await?, 0.0);
    node.kill_daemon().await?;
    let away = SystemTime::now();
    let meanwhile = node.run_pod("meanwhile", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
    assert!(!node.runtime.effective_cpus(&meanwhile).is_disjoint(&node.record_of(&claim.uid)?));
    node.start_daemon().await?;
    let counted = node.metric(OVERLAP).await?;
    let most = away.elapsed()?.as_secs_f64();
    assert!(counted > 0.0 && counted <= most, "{counted} of {most} s, of one container");
    assert_eq!(node.metric(OVERLAP).await?, counted, "it is over");
    assert!(node.runtime.effective_cpus(&meanwhile).is_disjoint(&node.record_of(&claim.uid)?));
    Ok(())
}
