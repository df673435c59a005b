//! CPUs that go offline and come back while claims and containers live.

use anyhow::{Result, ensure};
use dracpu_tests::support::cpus::cpus;
use dracpu_tests::support::kubelet::{ClaimRef, Health, KubeletVersion};
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::scheduler::{Ask, DRIVER};
use dracpu_tests::support::wait::{SOON, poll};

const DEVICE: &str = "cpudevnuma000";

fn set_offline(node: &Node, machine: &Machine, offline: &str) -> Result<()> {
    machine.switch_off(&cpus(offline), &node.path("sys"))
}

async fn capacity_is(node: &Node, expected: &str) -> Result<()> {
    let look = || async {
        let devices = node.devices().await?;
        let found = &devices[DEVICE]["capacity"]["dra.cpu/cpu"]["value"];
        ensure!(found == expected, "capacity {found}");
        Ok(())
    };
    poll("the published capacity", SOON, look).await
}

async fn mask_is(node: &Node, container: &str, expected: &str) -> Result<()> {
    let look = || async {
        let found = node.runtime.effective_cpus(container);
        ensure!(found == cpus(expected), "{found:?}");
        Ok(())
    };
    poll("a container's CPUs", SOON, look).await
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_masks_and_new_claims_follow_the_online_cpus_and_claims_keep_theirs() -> Result<()> {
    let machine = Machine::small(8, 1);
    let node = Node::start(NodeConfig::new(machine.clone())).await?;
    let claim = node.allocate("a", &[Ask::of("r", DEVICE, 2)]).await?;
    let pod = node.run_pod("pinned", &[&claim], &[ContainerAsk::new("main", &[&claim])]).await?;
    let plain = node.run_pod("plain", &[], &[ContainerAsk::new("main", &[])]).await?;
    mask_is(&node, &pod.id("main"), "0-1").await?;
    mask_is(&node, &plain.id("main"), "2-7").await?;

    set_offline(&node, &machine, "1,7")?;
    capacity_is(&node, "6").await?;
    mask_is(&node, &pod.id("main"), "0").await?;
    mask_is(&node, &plain.id("main"), "2-6").await?;
    assert_eq!(node.record_of(&claim.uid)?, cpus("0-1"));
    let more = node.allocate("b", &[Ask::of("r", DEVICE, 4)]).await?;
    node.prepare(&more).await?;
    assert_eq!(node.record_of(&more.uid)?, cpus("2-5"));

    set_offline(&node, &machine, "")?;
    capacity_is(&node, "8").await?;
    mask_is(&node, &pod.id("main"), "0-1").await?;
    mask_is(&node, &plain.id("main"), "6-7").await?;
    let slices = node.api.list(dracpu_tests::support::api_server::Resource::ResourceSlices);
    assert_eq!(slices[0]["metadata"]["generation"], 3, "one write for each change: {slices:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_see_that_a_cpu_of_a_claim_is_offline_and_whose_it_is_until_it_is_back() -> Result<()> {
    for kubelet in [KubeletVersion::Current, KubeletVersion::V136] {
        let machine = Machine::small(8, 1);
        let node = Node::start(NodeConfig { kubelet, ..NodeConfig::new(machine.clone()) }).await?;
        let hit = node.allocate("hit", &[Ask::of("r", DEVICE, 2)]).await?;
        let neighbour = node.allocate("neighbour", &[Ask::of("r", DEVICE, 2)]).await?;
        for claim in [&hit, &neighbour] {
            node.prepare(claim).await?;
        }
        assert_eq!(node.record_of(&hit.uid)?, cpus("0-1"));
        let shown = |claim: &ClaimRef| node.resource_health(claim);
        let id = |claim: &ClaimRef| format!("dra.k8s.io/cpu=claim-{}", claim.uid);
        let well = (Health::Healthy, "device initialized".to_owned());
        node.kubelet.wait_health(DRIVER, NODE, DEVICE, Health::Healthy, SOON).await?;
        assert_eq!(shown(&hit), [(id(&hit), well.clone())].into());

        set_offline(&node, &machine, "1")?;
        let text = node.kubelet.wait_health(DRIVER, NODE, DEVICE, Health::Unhealthy, SOON).await?;
        assert_eq!(
            text,
            "offline: CPU 1 of claim default/hit; claims that are not named have all their CPUs"
        );
        for claim in [&hit, &neighbour] {
            assert_eq!(
                shown(claim),
                [(id(claim), (Health::Unhealthy, text.clone()))].into(),
                "they share it"
            );
        }

        set_offline(&node, &machine, "")?;
        node.kubelet.wait_health(DRIVER, NODE, DEVICE, Health::Healthy, SOON).await?;
        assert_eq!(shown(&neighbour), [(id(&neighbour), well)].into());

        set_offline(&node, &machine, "1")?;
        node.kubelet.wait_health(DRIVER, NODE, DEVICE, Health::Unhealthy, SOON).await?;
        node.unprepare(&hit).await?;
        node.kubelet.wait_health(DRIVER, NODE, DEVICE, Health::Healthy, SOON).await?;
    }
    Ok(())
}
