//! The external allocator: the claim itself says which CPUs, and each way of being wrong has its words.

use anyhow::Result;
use dracpu_tests::support::cpus::{Cpus, cpus};
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::scheduler::{self, CAPACITY, DRIVER, cpu_config};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const NUMA0: &str = "cpudevnuma000";

async fn node() -> Result<Node> {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 1, cores_per_l3: 4, threads: 2 };
    let machine = Machine { offline: cpus("11"), ..Machine::of(shape) };
    let node = Node::start(
        NodeConfig::new(machine).with_config(json!({"allocator": "external", "reservedCPUs": "0"})),
    )
    .await?;
    node.devices().await?;
    Ok(node)
}

fn cpuset(text: &str) -> Value {
    cpu_config("FromClaim", &["r"], &json!({"cpuset": text}))
}

fn two_requests(node: &Node, name: &str, config: &[Value]) -> ClaimRef {
    let result = |request: &str| {
        json!({"request": request, "driver": DRIVER, "pool": NODE, "device": NUMA0,
               "consumedCapacity": {CAPACITY: "2"}})
    };
    scheduler::write_claim(&node.api, name, None, &[result("r1"), result("r2")], config)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claims_own_cpus_are_pinned_and_the_devices_say_what_there_is() -> Result<()> {
    let node = node().await?;
    let devices = node.devices().await?;
    let attributes = &devices[NUMA0]["attributes"];
    assert_eq!(attributes["dra.cpu/cpuIDs"]["string"], "1-3,8-10", "without reserved and offline ones");
    assert!(!attributes["dra.cpu/smtLayout"]["string"].is_null());
    let claim = node.write_claim("a", NUMA0, "2", &[cpuset("2,10")]);
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), cpus("2,10"));
    // no request named = all requests
    let other = node.write_claim("b", NUMA0, "2", &[cpu_config("FromClaim", &[], &json!({"cpuset": "1,9"}))]);
    node.prepare(&other).await?;
    node.ledger_is(&[(&claim, &cpus("2,10")), (&other, &cpus("1,9"))]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_of_being_wrong_has_its_own_words_and_books_nothing() -> Result<()> {
    let node = node().await?;
    let held = node.write_claim("held", NUMA0, "1", &[cpuset("3")]);
    node.prepare(&held).await?;
    let mut words: BTreeSet<String> = BTreeSet::new();
    for (what, count, config) in [
        ("missing", "2", vec![]),
        ("size", "2", vec![cpuset("1-2,8")]),
        ("reserved", "2", vec![cpuset("0-1")]),
        ("offline", "2", vec![cpuset("2,11")]),
        ("unknown", "2", vec![cpuset("2,99")]),
        ("another group", "2", vec![cpuset("2,4")]),
        ("held", "2", vec![cpuset("2-3")]),
        ("not a list", "2", vec![cpuset("two")]),
        ("empty", "2", vec![cpuset("")]),
        ("twice", "2", vec![cpuset("1-2"), cpuset("8-9")]),
        ("from a class", "2", vec![cpu_config("FromClass", &[], &json!({"cpuset": "1-2"}))]),
    ] {
        let claim = node.write_claim("bad", NUMA0, count, &config);
        let refusal = format!("{:#}", node.prepare(&claim).await.expect_err(what));
        let plain = refusal.replace(&claim.uid, "UID");
        let digits_aside: String = plain.chars().filter(|c| !c.is_ascii_digit()).collect();
        assert!(words.insert(digits_aside), "{what} is worded as another fault: {refusal}");
        node.ledger_is(&[(&held, &cpus("3"))]).await?;
    }
    let refusal = format!(
        "{:#}",
        node.prepare(&node.write_claim("bad", NUMA0, "2", &[cpuset("2-3")])).await.unwrap_err()
    );
    assert!(refusal.contains(&held.uid), "the holder is named: {refusal}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_requests_need_a_cpuset_each_and_may_not_overlap() -> Result<()> {
    let node = node().await?;
    let each = |request: &str, text: &str| cpu_config("FromClaim", &[request], &json!({"cpuset": text}));
    let both = two_requests(&node, "both", &[cpu_config("FromClaim", &[], &json!({"cpuset": "1-2"}))]);
    let refusal = format!("{:#}", node.prepare(&both).await.unwrap_err());
    assert!(
        refusal.contains("2 results of the claim (r1, r2)"),
        "one cpuset for two is ambiguous: {refusal}"
    );
    let one = two_requests(&node, "one", &[each("r1", "1-2")]);
    let refusal = format!("{:#}", node.prepare(&one).await.unwrap_err());
    assert!(refusal.contains("request r2") && refusal.contains("needs the CPUs named"), "{refusal}");
    let overlap = two_requests(&node, "overlap", &[each("r1", "1-2"), each("r2", "2-3")]);
    assert!(node.prepare(&overlap).await.is_err());
    node.ledger_is(&[]).await?;
    let good = two_requests(&node, "good", &[each("r1", "1-2"), each("r2", "8-9")]);
    node.prepare(&good).await?;
    let own: Cpus = cpus("1-2,8-9");
    node.ledger_is(&[(&good, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_name_cpus_of_any_grouping_and_of_several_devices() -> Result<()> {
    // (grouping, devices with good CPUs of theirs, a device with CPUs of another one)
    for (group_by, devices, foreign) in [
        ("numanode", [("cpudevnuma000", "1,9"), ("cpudevnuma001", "5-6")], Some(("cpudevnuma001", "2-3"))),
        (
            "socket",
            [("cpudevsocket000", "1,9"), ("cpudevsocket001", "5-6")],
            Some(("cpudevsocket001", "2,5")),
        ),
        ("llc", [("cpudevllc000", "1,9"), ("cpudevllc001", "5-6")], Some(("cpudevllc000", "2,7"))),
        ("machine", [("cpudevmachine", "1,9"), ("cpudevmachine", "2,5")], None),
    ] {
        let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 1, cores_per_l3: 4, threads: 2 };
        let config = json!({"allocator": "external", "groupBy": group_by});
        let node = Node::start(NodeConfig::new(Machine::of(shape)).with_config(config)).await?;
        node.devices().await?;
        let result = |request: &str, device: &str| {
            json!({"request": request, "driver": DRIVER, "pool": NODE, "device": device,
                   "consumedCapacity": {CAPACITY: "2"}})
        };
        let entry = |request: &str, text: &str| cpu_config("FromClaim", &[request], &json!({"cpuset": text}));
        let [(first, of_first), (second, of_second)] = devices;
        // An entry without a cpuset is for all requests, whatever else they have.
        let all = cpu_config("FromClass", &[], &json!({"strategy": "external"}));
        let both = scheduler::write_claim(
            &node.api,
            "both",
            None,
            &[result("r1", first), result("r2", second)],
            &[all, entry("r1", of_first), entry("r2", of_second)],
        );
        let pod = node.run_pod("p", &[&both], &[ContainerAsk::new("app", &[&both])]).await?;
        let own: Cpus = cpus(of_first).union(&cpus(of_second)).copied().collect();
        assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own, "{group_by}");
        if let Some((device, text)) = foreign {
            let bad =
                scheduler::write_claim(&node.api, "bad", None, &[result("r", device)], &[entry("r", text)]);
            let refusal = format!("{:#}", node.prepare(&bad).await.unwrap_err());
            assert!(refusal.contains(&format!("outside the allocated device {device}")), "{refusal}");
        }
        node.ledger_is(&[(&both, &own)]).await?;
    }
    Ok(())
}
