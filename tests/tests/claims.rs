//! Claims from allocation to a pinned container and back, over the sockets; each story ends with what the
//! books hold.

use anyhow::Result;
use dracpu_tests::support::api_server::{Resource, Verb};
use dracpu_tests::support::cpus::{Cpus, cpus, list};
use dracpu_tests::support::kubelet::{ClaimRef, DraApi, KubeletVersion};
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::runtime::{CpuChange, RegisterOrder, RuntimeVersion};
use dracpu_tests::support::scheduler::{self, Ask, CAPACITY, DRIVER};
use serde_json::json;

/// Two sockets of eight cores with two threads; CPUs 0-7,16-23 and 8-15,24-31.
fn server() -> NodeConfig {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    NodeConfig::new(Machine::of(shape))
}

const NUMA0: &str = "cpudevnuma000";
const NUMA1: &str = "cpudevnuma001";

/// The claim's CPUs as they are recorded.
fn cpus_of(node: &Node, claim: &ClaimRef) -> Result<Cpus> {
    node.record_of(&claim.uid)
}

async fn plain_pod(node: &Node, name: &str) -> Result<String> {
    Ok(node.run_pod(name, &[], &[ContainerAsk::new("app", &[])]).await?.id("app"))
}

fn whole_cores(node: &Node, cpus: &Cpus) -> bool {
    node.config.machine.cores().iter().all(|core| core.is_subset(cpus) || core.is_disjoint(cpus))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_prepared_pinned_and_returned_with_old_and_new_kubelets_and_runtimes() -> Result<()> {
    for (kubelet, runtime, order, api) in [
        (KubeletVersion::Current, RuntimeVersion::Containerd24, RegisterOrder::AnswerLast, DraApi::V1),
        (KubeletVersion::V133, RuntimeVersion::Containerd21, RegisterOrder::AnswerFirst, DraApi::V1Beta1),
    ] {
        let node = Node::start(NodeConfig { kubelet, runtime, order, ..server() }).await?;
        assert_eq!(node.kubelet.plugins().borrow().drivers[DRIVER].api, api);
        let plain = plain_pod(&node, "plain").await?;
        let claim = node.allocate("a", &[Ask::of("r", NUMA0, 4)]).await?;
        let pod = node.run_pod("pinned", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
        let own = cpus_of(&node, &claim)?;
        assert_eq!(own.len(), 4);
        assert!(own.is_subset(&node.config.machine.numa_cpus(0)) && whole_cores(&node, &own), "{own:?}");
        assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
        let shared = node.ledger_is(&[(&claim, &own)]).await?;
        assert!(node.ledger_is(&[]).await.is_err(), "the look at the books is no formality");
        assert_eq!(node.runtime.effective_cpus(&plain), shared, "shrunk in the same hook");
        node.terminate_pod(&pod).await?;
        assert!(node.recorded()?.is_empty());
        if runtime == RuntimeVersion::Containerd21 {
            assert_eq!(node.runtime.effective_cpus(&plain), shared, "it would bear no update now");
            assert_eq!(node.metric("dra_cpu_shared_pool_pending").await?.to_string(), "1");
            plain_pod(&node, "next").await?; // the pool grows with the next hook's answer
        }
        assert_eq!(node.ledger_is(&[]).await?, node.config.machine.online());
        assert_eq!(node.metric("dra_cpu_shared_pool_pending").await?.to_string(), "0");
        assert!(node.runtime.oddities().is_empty(), "{:?}", node.runtime.oddities());
        assert!(node.api.warnings().is_empty(), "{:?}", node.api.warnings());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_prepare_answers_the_same_and_asks_nobody() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA1, 2)]).await?;
    let first = node.prepare(&claim).await?;
    let own = cpus_of(&node, &claim)?;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].request_names, ["r"]);
    assert_eq!((first[0].pool_name.as_str(), first[0].device_name.as_str()), (NODE, NUMA1));
    assert_eq!(first[0].cdi_device_ids[0], format!("dra.k8s.io/cpu=claim-{}", claim.uid));
    let gets = node.api.count(Verb::Get, Resource::ResourceClaims);
    // a lost spec is written again
    std::fs::remove_file(node.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{}.json", claim.uid)))?;
    for _ in 0..2 {
        assert_eq!(node.prepare(&claim).await?, first);
    }
    assert_eq!(node.api.count(Verb::Get, Resource::ResourceClaims), gets);
    node.ledger_is(&[(&claim, &own)]).await?;
    for _ in 0..2 {
        node.unprepare(&claim).await?;
    }
    node.ledger_is(&[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_claim_does_not_spoil_its_batch() -> Result<()> {
    let node = Node::start(server()).await?;
    node.devices().await?;
    let good = [node.write_claim("a", NUMA0, "2", &[]), node.write_claim("c", NUMA0, "2", &[])];
    let bad = node.write_claim("b", NUMA0, "500m", &[]);
    let gone =
        ClaimRef { namespace: "default".to_owned(), name: "nowhere".to_owned(), uid: "u-gone".to_owned() };
    let replaced = ClaimRef { uid: "u-old".to_owned(), ..good[0].clone() };
    let batch = [good[0].clone(), bad.clone(), gone.clone(), good[1].clone(), replaced.clone()];
    let answers = node.kubelet.prepare(DRIVER, &batch).await?;
    for claim in &good {
        assert!(answers[&claim.uid].is_ok(), "{answers:?}");
    }
    let error = |claim: &ClaimRef| answers[&claim.uid].clone().unwrap_err();
    assert!(error(&bad).contains("500m"), "{}", error(&bad));
    assert!(error(&gone).contains("nowhere"), "{}", error(&gone));
    assert!(error(&replaced).contains("u-old"), "{}", error(&replaced));
    let own = [cpus_of(&node, &good[0])?, cpus_of(&node, &good[1])?];
    node.ledger_is(&[(&good[0], &own[0]), (&good[1], &own[1])]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn several_results_of_one_claim_are_disjoint_and_its_container_gets_their_union() -> Result<()> {
    let node = Node::start(server()).await?;
    let asks = [Ask::of("r1", NUMA0, 4), Ask::of("r2", NUMA0, 4), Ask::of("r3", NUMA1, 2)];
    let claim = node.allocate("a", &asks).await?;
    let devices = node.prepare(&claim).await?;
    let named: Vec<_> =
        devices.iter().map(|device| (&device.request_names[0], &device.device_name)).collect();
    assert_eq!(named.len(), 3, "{named:?}");
    let shares: std::collections::BTreeSet<_> =
        devices.iter().map(|device| device.share_id.clone()).collect();
    assert!(shares.len() == 3 && !shares.contains(&None), "each result has its own share: {shares:?}");
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = cpus_of(&node, &claim)?;
    assert_eq!(own.intersection(&node.config.machine.numa_cpus(0)).count(), 8);
    assert_eq!(own.intersection(&node.config.machine.numa_cpus(1)).count(), 2);
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_with_two_claims_gets_both() -> Result<()> {
    let node = Node::start(server()).await?;
    let a = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
    let b = node.allocate("b", &[Ask::of("r", NUMA1, 4)]).await?;
    let pod = node.run_pod("p", &[&a, &b], &[ContainerAsk::new("app", &[&a, &b])]).await?;
    let (of_a, of_b) = (cpus_of(&node, &a)?, cpus_of(&node, &b)?);
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), of_a.union(&of_b).copied().collect());
    node.ledger_is(&[(&a, &of_a), (&b, &of_b)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_container_on_a_claim_is_refused_by_name_until_the_first_has_ended() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
    let both = [ContainerAsk::new("first", &[&claim]), ContainerAsk::new("second", &[&claim])];
    let mut pod = node.run_pod("p", &[&claim], &both).await?;
    let own = cpus_of(&node, &claim)?;
    let refusal = pod.containers["second"].clone().unwrap_err();
    assert!(refusal.contains("first"), "the owner is named: {refusal}");
    let foreign = node.run_pod("q", &[&claim], &[ContainerAsk::new("thief", &[&claim])]).await?;
    let refusal = foreign.containers["thief"].clone().unwrap_err();
    assert!(refusal.contains("first"), "the owner is named: {refusal}");
    node.ledger_is(&[(&claim, &own)]).await?;
    node.runtime.stop_container(&pod.id("first")).await?;
    node.begin_container(&mut pod, "second").await?;
    assert_eq!(node.runtime.effective_cpus(&pod.id("second")), own, "as an app after its init container");
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_container_gets_the_same_cpus_and_a_late_end_of_the_old_one_changes_nothing() -> Result<()>
{
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
    let mut pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = cpus_of(&node, &claim)?;
    let old = pod.id("app");
    node.restart_container(&mut pod, "app").await?;
    assert_ne!(pod.id("app"), old);
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), own);
    let plain = plain_pod(&node, "plain").await?;
    assert!(node.runtime.effective_cpus(&plain).is_disjoint(&own));
    node.ledger_is(&[(&claim, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_larger_than_its_group_is_refused_with_the_numbers() -> Result<()> {
    let node = Node::start(server()).await?;
    node.devices().await?;
    let small = node.write_claim("small", NUMA0, "2", &[]);
    node.prepare(&small).await?;
    let own = cpus_of(&node, &small)?;
    for (name, wanted) in [("large", "17"), ("rest", "15"), ("huge", "1k")] {
        let claim = node.write_claim(name, NUMA0, wanted, &[]);
        let refusal = format!("{:#}", node.prepare(&claim).await.unwrap_err());
        assert!(refusal.contains(NUMA0), "{refusal}");
        let wanted = if wanted == "1k" { "1000" } else { wanted };
        assert!(refusal.contains(wanted), "{refusal}");
        assert!(refusal.contains("14"), "14 are free: {refusal}");
    }
    node.ledger_is(&[(&small, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn individual_mode_gives_exactly_the_cpus_that_the_scheduler_chose() -> Result<()> {
    let config = json!({"cpuDeviceMode": "individual", "reservedCPUs": "0"});
    let node = Node::start(NodeConfig::new(Machine::small(4, 2)).with_config(config)).await?;
    let devices = node.devices().await?;
    assert_eq!(devices.len(), 7);
    let id = |name: &str| devices[name]["attributes"]["dra.cpu/cpuID"]["int"].as_u64().unwrap();
    let claim = node.allocate("a", &[Ask::of("r1", "cpudev002", 0), Ask::of("r2", "cpudev003", 0)]).await?;
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let wanted: Cpus =
        ["cpudev002", "cpudev003"].iter().map(|name| u32::try_from(id(name)).unwrap()).collect();
    assert_eq!(node.runtime.effective_cpus(&pod.id("app")), wanted);
    // the same device again, as a scheduler's race could give it away
    let result = json!({"request": "r", "driver": DRIVER, "pool": NODE, "device": "cpudev002"});
    let other = scheduler::write_claim(&node.api, "b", None, &[result], &[]);
    let refusal = format!("{:#}", node.prepare(&other).await.unwrap_err());
    assert!(refusal.contains(&claim.uid) || refusal.contains("cpudev002"), "{refusal}");
    node.ledger_is(&[(&claim, &wanted)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_results_of_this_driver_count_and_a_claim_with_none_is_an_empty_success() -> Result<()> {
    let node = Node::start(server()).await?;
    node.devices().await?;
    let foreign = json!({"request": "gpu", "driver": "gpu.example.org", "pool": NODE, "device": "gpu0"});
    let ours = json!({"request": "cpus/small", "driver": DRIVER, "pool": NODE, "device": NUMA0,
                      "consumedCapacity": {CAPACITY: "2"}});
    let none = scheduler::write_claim(&node.api, "none", None, std::slice::from_ref(&foreign), &[]);
    let mixed = scheduler::write_claim(&node.api, "mixed", None, &[foreign, ours], &[]);
    assert!(node.prepare(&none).await?.is_empty());
    let devices = node.prepare(&mixed).await?;
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].request_names, ["cpus"], "without the subrequest");
    let own = cpus_of(&node, &mixed)?;
    assert_eq!(own.len(), 2);
    node.ledger_is(&[(&mixed, &own)]).await?;
    node.unprepare(&none).await?;
    node.ledger_is(&[(&mixed, &own)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_variable_is_refused_and_costs_nobody_a_cpu() -> Result<()> {
    for runtime in [RuntimeVersion::Containerd24, RuntimeVersion::Containerd21] {
        let node = Node::start(NodeConfig { runtime, ..server() }).await?;
        let claim = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
        node.prepare(&claim).await?;
        let own = cpus_of(&node, &claim)?;
        let uid = &claim.uid;
        for (env, with_claim) in [
            ("DRA_CPUSET_made-up=0-7".to_owned(), false),
            ("DRA_CPUSET_made-up=nonsense".to_owned(), false),
            (format!("DRA_CPUSET_{uid}=0-31"), false),
            ("DRA_CPUSET_made-up=0-7".to_owned(), true),
        ] {
            let claims: &[&ClaimRef] = if with_claim { &[&claim] } else { &[] };
            let ask = ContainerAsk { env: vec![env.clone()], ..ContainerAsk::new("forger", claims) };
            let pod = node.run_pod("forger", claims, &[ask]).await?;
            let refusal = pod.containers["forger"].clone().expect_err(&env);
            let named = env.trim_start_matches("DRA_CPUSET_").split('=').next().unwrap();
            assert!(refusal.contains(named), "the claim of the variable is named: {refusal}");
            node.ledger_is(&[(&claim, &own)]).await?;
        }
        let own_name =
            ContainerAsk { env: vec!["DRA_CPUSETS=x".to_owned()], ..ContainerAsk::new("fine", &[]) };
        assert!(node.run_pod("fine", &[], &[own_name]).await?.containers["fine"].is_ok());
        node.ledger_is(&[(&claim, &own)]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resize_by_the_kubelet_does_not_move_a_mask() -> Result<()> {
    let node = Node::start(server()).await?;
    let claim = node.allocate("a", &[Ask::of("r", NUMA0, 2)]).await?;
    let pinned = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?.id("app");
    let plain = plain_pod(&node, "plain").await?;
    let own = cpus_of(&node, &claim)?;
    for id in [&pinned, &plain] {
        let asked = CpuChange { cpus: "0-31".to_owned(), shares: Some(700), ..CpuChange::default() };
        node.runtime.update_container(id, asked).await?;
        assert_eq!(node.runtime.container(id).shares, 700, "the rest of the resize holds");
        node.ledger_is(&[(&claim, &own)]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_may_not_take_the_last_shared_cpu_and_reserved_ones_are_nobodys() -> Result<()> {
    let node =
        Node::start(NodeConfig::new(Machine::small(4, 1)).with_config(json!({"reservedCPUs": "0"}))).await?;
    let devices = node.devices().await?;
    assert_eq!(devices[NUMA0]["capacity"][CAPACITY]["value"], "3", "the floor is not taken off the capacity");
    let all = node.allocate("all", &[Ask::of("r", NUMA0, 3)]).await?;
    let refusal = format!("{:#}", node.prepare(&all).await.unwrap_err());
    assert!(refusal.contains("minSharedCPUs"), "{refusal}");
    node.ledger_is(&[]).await?;
    node.api.delete(Resource::ResourceClaims, "default", "all");
    let most = node.allocate("most", &[Ask::of("r", NUMA0, 2)]).await?;
    let pod = node
        .run_pod("p", &[&most], &[ContainerAsk::new("app", &[&most]), ContainerAsk::new("side", &[])])
        .await?;
    let own = cpus_of(&node, &most)?;
    let shared = node.ledger_is(&[(&most, &own)]).await?;
    assert_eq!((shared.len(), shared.contains(&0)), (1, false), "{}", list(&shared));
    assert_eq!(node.runtime.effective_cpus(&pod.id("side")), shared);
    assert_eq!(own.union(&shared).copied().collect::<Cpus>(), cpus("1-3"));
    Ok(())
}
