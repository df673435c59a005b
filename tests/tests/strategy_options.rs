//! Options of the built-in strategies on a whole node: what each one changes in the masks of containers, in
//! those of everybody else, and in what the scheduler is told; and that without it nothing changes.

use anyhow::Result;
use dracpu_tests::support::cpus::{cpus, list};
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use dracpu_tests::support::scheduler::{Ask, CAPACITY, cpu_config};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const DEVICE: &str = "cpudevmachine";

/// Eight two-threaded cores, (0,8) to (7,15), in two L3 caches: CPUs 0-3,8-11 and 4-7,12-15.
fn two_caches() -> Machine {
    Machine::of(Shape { sockets: 1, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 })
}

/// The same cores in two NUMA nodes.
fn two_nodes() -> Machine {
    Machine::of(Shape { sockets: 1, numa_per_socket: 2, l3_per_numa: 1, cores_per_l3: 4, threads: 2 })
}

/// The same cores; those of the second cache are isolated by the kernel.
fn isolated() -> Machine {
    Machine { isolated: cpus("4-7,12-15"), ..two_caches() }
}

/// The same cores; those of the first cache are efficient ones.
fn hybrid() -> Machine {
    let mut machine = two_caches();
    for row in &mut machine.cpus {
        row.kind = Some(if row.llc_id == 0 { "e-core" } else { "p-core" }.to_owned());
    }
    machine
}

/// What a node does with claims of these sizes, the last of which is looked at.
struct Seen {
    /// CPUs and, behind a `@`, memory nodes of its container; or a part of the refusal.
    claim: &'static str,
    /// CPUs of a container without a claim.
    shared: &'static str,
    /// Published capacity and step.
    offer: (u32, u32),
}

struct Case {
    allocator: &'static str,
    options: Value,
    machine: fn() -> Machine,
    sizes: &'static [u32],
    with: Seen,
    without: Seen,
}

fn seen(claim: &'static str, shared: &'static str, offer: (u32, u32)) -> Seen {
    Seen { claim, shared, offer }
}

fn cases() -> Vec<Case> {
    let case = |allocator, options, machine, sizes, with, without| Case {
        allocator,
        options,
        machine,
        sizes,
        with,
        without,
    };
    let mut cases = vec![
        // The kubelet's.
        case(
            "packed",
            json!({"full-pcpus-only": true}),
            two_caches,
            &[3],
            seen("0-1,8-9", "2-7,10-15", (16, 2)),
            seen("0-1,8", "2-7,9-15", (16, 1)),
        ),
        case(
            "packed",
            json!({"distribute-cpus-across-cores": true}),
            two_caches,
            &[3],
            seen("0-2", "3-15", (16, 1)),
            seen("0-1,8", "2-7,9-15", (16, 1)),
        ),
        case(
            "packed",
            json!({"distribute-cpus-across-numa": true}),
            two_nodes,
            &[10],
            seen("0-2,4-6,8-9,12-13", "3,7,10-11,14-15", (16, 1)),
            seen("0-4,8-12", "5-7,13-15", (16, 1)),
        ),
        case(
            "packed",
            json!({"prefer-align-cpus-by-uncorecache": false}),
            two_caches,
            &[6, 4],
            seen("3-4,11-12", "5-7,13-15", (16, 1)),
            seen("4-5,12-13", "3,6-7,11,14-15", (16, 1)),
        ),
        // llc-first's own.
        case(
            "llc-first",
            json!({"align": "required"}),
            two_caches,
            &[6, 5, 4],
            seen("align: required", "3,7,11,14-15", (16, 1)),
            seen("3,7,11,15", "14", (16, 1)),
        ),
        // What both take.
        case(
            "packed",
            json!({"kind": "p-core"}),
            hybrid,
            &[3],
            seen("4-5,12", "0-3,6-11,13-15", (8, 1)),
            seen("0-1,8", "2-7,9-15", (16, 1)),
        ),
        // Which takes the fastest kind of its own accord.
        case(
            "llc-first",
            json!({"kind": "e-core"}),
            hybrid,
            &[3],
            seen("0-1,8", "2-7,9-15", (8, 1)),
            seen("4-5,12", "0-3,6-11,13-15", (16, 1)),
        ),
    ];
    // What both take, with the same outcome.
    for allocator in ["packed", "llc-first"] {
        let plain = |claim, shared| seen(claim, shared, (16, 1));
        cases.extend([
            case(
                allocator,
                json!({"isolate": "core"}),
                two_caches,
                &[3],
                seen("0-1,8-9", "2-7,10-15", (16, 2)),
                plain("0-1,8", "2-7,9-15"),
            ),
            case(
                allocator,
                json!({"isolate": "cache"}),
                two_caches,
                &[3],
                seen("0-3,8-11", "4-7,12-15", (16, 8)),
                plain("0-1,8", "2-7,9-15"),
            ),
            case(
                allocator,
                json!({"threads": "one"}),
                two_caches,
                &[3],
                seen("0-2", "3-7,11-15", (8, 1)),
                plain("0-1,8", "2-7,9-15"),
            ),
            case(
                allocator,
                json!({"threads": "one", "isolate": "cache"}),
                two_caches,
                &[3],
                seen("0-3", "4-7,12-15", (8, 4)),
                plain("0-1,8", "2-7,9-15"),
            ),
            case(
                allocator,
                json!({"isolated": "only"}),
                isolated,
                &[3],
                seen("4-5,12", "0-3,8-11", (8, 1)),
                seen("0-1,8", "2-3,9-11", (8, 1)),
            ),
            case(
                allocator,
                json!({"isolated": "include"}),
                isolated,
                &[6, 6],
                seen("4-6,12-14", "3,11", (16, 1)),
                seen("no device fits", "3,11", (8, 1)),
            ),
            case(
                allocator,
                json!({"mixed": true}),
                two_caches,
                &[3],
                plain("0-15", "2-7,9-15"),
                plain("0-1,8", "2-7,9-15"),
            ),
            case(
                allocator,
                json!({"memory": "local"}),
                two_nodes,
                &[8, 3],
                plain("4-5,12@1", "6-7,13-15"),
                plain("4-5,12", "6-7,13-15"),
            ),
        ]);
    }
    cases
}

/// What came out; in the terms of [`Seen`].
struct Found {
    claim: Result<String, String>,
    shared: String,
    offer: (String, String),
}

/// Lets the scheduler allocate the claims, runs a pod with each and one without, and looks at the last.
async fn look(case: &Case, options: &Value) -> Result<Found> {
    let config = json!({"allocator": case.allocator, "groupBy": "machine", "strategyOptions": options});
    let node = Node::start(NodeConfig::new((case.machine)()).with_config(config)).await?;
    let plain = node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
    let capacity = node.devices().await?[DEVICE]["capacity"][CAPACITY].clone();
    let step = capacity["requestPolicy"]["validRange"]["step"].as_str().unwrap_or("1").to_owned();
    let mut claim = Err("none asked".to_owned());
    for (at, size) in case.sizes.iter().enumerate() {
        let name = format!("claim-{at}");
        let pod = async {
            let claim = node.allocate(&name, &[Ask::of("r", DEVICE, *size)]).await?;
            node.run_pod(&name, &[&claim], &[ContainerAsk::new("app", &[&claim])]).await
        };
        let mask = |id: &str| {
            let mems = node.runtime.container(id).mems;
            let memory = if mems.is_empty() { String::new() } else { format!("@{mems}") };
            format!("{}{memory}", list(&node.runtime.effective_cpus(id)))
        };
        claim = pod.await.map(|pod| mask(&pod.id("app"))).map_err(|refusal| format!("{refusal:#}"));
    }
    let shared = list(&node.runtime.effective_cpus(&plain));
    Ok(Found { claim, shared, offer: (capacity["value"].as_str().unwrap().to_owned(), step) })
}

fn check(what: &str, found: &Found, expected: &Seen) {
    let (capacity, step) = expected.offer;
    assert_eq!(found.offer, (capacity.to_string(), step.to_string()), "{what}: offer");
    match &found.claim {
        Ok(mask) => assert_eq!(mask, expected.claim, "{what}"),
        Err(refusal) => assert!(refusal.contains(expected.claim), "{what}: {refusal}"),
    }
    assert_eq!(found.shared, expected.shared, "{what}: shared");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_option_of_a_node_changes_what_it_says_and_nothing_without_it() -> Result<()> {
    let mut without: BTreeMap<String, Found> = BTreeMap::new();
    for case in cases() {
        let Case { allocator, options, sizes, .. } = &case;
        let what = format!("{allocator} {sizes:?}");
        check(&format!("{what} with {options}"), &look(&case, options).await?, &case.with);
        // Many cases are the same without their option.
        let same = format!("{what} {:?}", (case.machine)());
        if !without.contains_key(&same) {
            without.insert(same.clone(), look(&case, &json!({})).await?);
        }
        check(&format!("{what} without {options}"), &without[&same], &case.without);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_siblings_and_neighbours_in_the_cache_are_nobodys_until_the_claim_ends() -> Result<()> {
    for allocator in ["packed", "llc-first"] {
        for (options, own, shared) in [
            (json!({"isolate": "core"}), "0-1,8", "2-7,10-15"),
            (json!({"isolate": "cache"}), "0-1,8", "4-7,12-15"),
            (json!({"threads": "one"}), "0-2", "3-7,11-15"),
        ] {
            let config = json!({"allocator": allocator, "groupBy": "machine", "strategyOptions": options});
            let node = Node::start(NodeConfig::new(two_caches()).with_config(config)).await?;
            node.devices().await?;
            let plain = node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
            // Three, as no scheduler that heeds the step would allocate.
            let claim = node.write_claim("odd", DEVICE, "3", &[]);
            let pod = node.run_pod("odd", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
            assert_eq!(list(&node.runtime.effective_cpus(&pod.id("app"))), own, "{options}");
            assert_eq!(list(&node.runtime.effective_cpus(&plain)), shared, "{options}");
            node.crash_and_restart().await?;
            let next = node.run_pod("next", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");
            assert_eq!(list(&node.runtime.effective_cpus(&next)), shared, "{options}: after a crash");
            node.terminate_pod(&pod).await?;
            assert_eq!(node.ledger_is(&[]).await?, node.config.machine.online(), "{options}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_what_costs_the_node_nothing_and_is_told_the_remedy_else() -> Result<()> {
    for allocator in ["packed", "llc-first"] {
        let config = json!({"allocator": allocator, "groupBy": "machine"});
        let node = Node::start(NodeConfig::new(two_caches()).with_config(config)).await?;
        node.devices().await?;
        for (options, count, outcome) in [
            (json!({"isolate": "core"}), "2", Ok("0,8")),
            (json!({"isolate": "cache"}), "8", Ok("0-3,8-11")),
            (json!({"mixed": true}), "2", Ok("0,8")),
            (json!({"kind": "standard"}), "2", Ok("0,8")),
            (json!({"isolate": "core"}), "3", Err("set isolate: core in the node's strategyOptions")),
            (json!({"isolate": "cache"}), "4", Err("set isolate: cache in the node's strategyOptions")),
            (json!({"threads": "one"}), "2", Err("set threads: one in the node's strategyOptions")),
            (json!({"isolated": "only"}), "2", Err("in the node's strategyOptions")),
            (json!({"kind": "p-core"}), "2", Err("whose kinds of cores are standard")),
        ] {
            let entry = cpu_config("FromClaim", &[], &json!({"options": options}));
            let claim = node.write_claim("a", DEVICE, count, &[entry]);
            match (node.prepare(&claim).await, outcome) {
                (Ok(_), Ok(own)) => {
                    assert_eq!(list(&node.record_of(&claim.uid)?), own, "{options}");
                    node.unprepare(&claim).await?;
                }
                (Err(refusal), Err(words)) => {
                    assert!(format!("{refusal:#}").contains(words), "{options}: {refusal:#}");
                }
                (answer, _) => panic!("{allocator} {options} {count}: {answer:?}"),
            }
            assert!(node.recorded()?.is_empty());
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shared_part_of_a_mixed_claim_follows_the_pool() -> Result<()> {
    let config = json!({"groupBy": "machine", "allocator": "packed", "strategyOptions": {"mixed": true}});
    let node = Node::start(NodeConfig::new(Machine::small(8, 1)).with_config(config)).await?;
    let a = node.allocate("a", &[Ask::of("r", DEVICE, 2)]).await?;
    let first = node.run_pod("a", &[&a], &[ContainerAsk::new("app", &[&a])]).await?;
    assert_eq!(list(&node.runtime.effective_cpus(&first.id("app"))), "0-7");
    assert_eq!(list(&node.record_of(&a.uid)?), "0-1", "the variable names the exclusive ones");
    let b = node.allocate("b", &[Ask::of("r", DEVICE, 2)]).await?;
    let second = node.run_pod("b", &[&b], &[ContainerAsk::new("app", &[&b])]).await?;
    assert_eq!(list(&node.runtime.effective_cpus(&first.id("app"))), "0-1,4-7");
    assert_eq!(list(&node.runtime.effective_cpus(&second.id("app"))), "2-7");
    Ok(())
}
