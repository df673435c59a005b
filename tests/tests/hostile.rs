//! Neighbours that lie, plant things or talk nonsense: each costs at most the one claim that it is about.

use anyhow::{Context, Result, ensure};
use dracpu_tests::support::api_server::{Resource, Verb};
use dracpu_tests::support::cpus::list;
use dracpu_tests::support::daemon::Daemon;
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::wait::{SOON, poll};
use futures::future::try_join_all;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;

const NUMA0: &str = "cpudevnuma000";

fn small() -> NodeConfig {
    NodeConfig::new(Machine::small(8, 2))
}

/// What no API server should answer.
fn nonsense() -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    [
        "",
        "null",
        "[]",
        "{}",
        "<html>502 Bad Gateway</html>",
        "{\"items\":",
        "\u{0}\u{1}\u{2}",
        "{\"kind\":\"Status\",\"status\":\"Failure\"}",
        "{\"items\":[{\"metadata\":{},\"spec\":{\"pool\":7}}],\"metadata\":{}}",
        "{\"type\":\"ADDED\"}\n{\"type\":\"EXPLODED\",\"object\":{}}\n",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([deep, "x".repeat(8 << 20), " ".repeat(20 << 20)])
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_the_api_server_talks_nonsense_about_are_refused_and_prepared_once_it_does_not()
-> Result<()> {
    let node = Node::start(small()).await?;
    node.devices().await?;
    let old = node.write_claim("old", NUMA0, "2", &[]);
    let answer = node.prepare(&old).await?;
    let own = node.record_of(&old.uid)?;
    let claim = node.write_claim("c", NUMA0, "2", &[]);
    let good = node.api.get(Resource::ResourceClaims, "default", "c").context("the claim")?;
    let mut bodies = nonsense();
    let change = |pointer: &str, value: Value| {
        let mut object = good.clone();
        *object.pointer_mut(pointer).unwrap() = value;
        object.to_string()
    };
    let results = "/status/allocation/devices/results";
    bodies.extend([
        change("/metadata/uid", json!("another")),
        change("/metadata/uid", Value::Null),
        change("/status/allocation", json!("none")),
        change(results, json!({"0": 1})),
        change(&format!("{results}/0/device"), json!("../../../etc")),
        change(&format!("{results}/0/request"), json!("../../../../up")),
        change(&format!("{results}/0/request"), json!("")),
        change(&format!("{results}/0/request"), json!("r/../../up")),
        change(&format!("{results}/0/pool"), json!("node-b")),
        change(&format!("{results}/0/consumedCapacity"), json!({"dra.cpu/cpu": 2.5})),
        change(&format!("{results}/0/consumedCapacity"), json!({"dra.cpu/cpu": "99999999999999999999"})),
    ]);
    let codes = |body| [200, 502].map(|code| (code, body));
    for (code, body) in bodies.iter().flat_map(codes) {
        node.api.answer_with(Verb::Get, Resource::ResourceClaims, code, body);
        let shown: String = body.chars().take(200).collect();
        let refusal = node.prepare(&claim).await.err().with_context(|| shown.clone())?.to_string();
        ensure!(refusal.len() < 4096, "{shown}: the kubelet gets {} bytes", refusal.len());
        node.ledger_is(&[(&old, &own)]).await.context(shown)?;
        ensure!(node.prepare(&old).await? == answer, "a recorded claim asks nobody");
        node.api.refuse_nothing();
    }
    node.prepare(&claim).await?;
    let given = node.record_of(&claim.uid)?;
    node.ledger_is(&[(&old, &own), (&claim, &given)]).await?;
    Ok(())
}

/// Some nonsense for one sort of request, one after the other, on a node of its own: pauses grow with each failure.
async fn outlives(verb: Verb, resource: Resource, bodies: &[String]) -> Result<()> {
    let node = Node::start(small()).await?;
    let devices = node.devices().await?;
    for (at, body) in bodies.iter().enumerate() {
        let asked = node.api.count(verb, resource);
        node.api.answer_with(verb, resource, if at % 2 == 0 { 200 } else { 502 }, body);
        node.api.end_watches();
        node.api.delete_slices(NODE, None);
        let reached = || async {
            ensure!(node.api.count(verb, resource) > asked, "not asked again");
            Ok(())
        };
        poll("request that gets nonsense", SOON, reached).await?;
        node.api.refuse_nothing();
        let shown: String = body.chars().take(60).collect();
        ensure!(
            node.devices().await.with_context(|| format!("{verb:?} {shown}"))? == devices,
            "{verb:?} {shown}"
        );
    }
    for line in node.daemon_lines().await {
        ensure!(
            line.len() < 8192,
            "a log line repeats it all: {}…",
            line.chars().take(300).collect::<String>()
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_are_published_once_the_api_server_has_stopped_talking_nonsense() -> Result<()> {
    let nonsense = nonsense();
    let slices = Resource::ResourceSlices;
    let sorts = [(Verb::Get, Resource::Nodes), (Verb::List, slices), (Verb::Watch, slices)];
    let nodes = sorts
        .into_iter()
        .flat_map(|(verb, resource)| nonsense.chunks(3).map(move |some| outlives(verb, resource, some)));
    try_join_all(nodes).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_forge_variables_get_nobodys_cpus() -> Result<()> {
    let node = Node::start(small()).await?;
    let victim = node.write_claim("victim", NUMA0, "4", &[]);
    let mine = node.write_claim("mine", NUMA0, "2", &[]);
    node.prepare(&mine).await?;
    let of_mine = node.record_of(&mine.uid)?;
    let pod = node.run_pod("v", &[&victim], &[ContainerAsk::new("app", &[&victim])]).await?;
    let of_victim = node.record_of(&victim.uid)?;
    let name = |uid: &str| format!("DRA_CPUSET_{uid}");
    let (victims, mines) = (name(&victim.uid), name(&mine.uid));
    let all = list(&of_victim);
    for (what, env) in [
        ("a claim that is another pod's, as it is", vec![format!("{victims}={all}")]),
        ("the same, more of it", vec![format!("{victims}=0-15")]),
        ("a made-up claim", vec![format!("{}=0-7", name("made-up"))]),
        ("no list", vec![format!("{mines}=all of them")]),
        ("nothing", vec![format!("{mines}=")]),
        ("an id that no machine has", vec![format!("{mines}=4294967295")]),
        ("its own and a wrong one", vec![format!("{mines}={}", list(&of_mine)), format!("{mines}=0-15")]),
        ("the wrong one first", vec![format!("{mines}=0-15"), format!("{mines}={}", list(&of_mine))]),
        ("no value", vec![mines.clone()]),
    ] {
        let ask = ContainerAsk { env: env.clone(), ..ContainerAsk::new("app", &[]) };
        let forger = node.run_pod("forger", &[], &[ask]).await?;
        if let Ok(id) = &forger.containers["app"] {
            let cpus = node.runtime.effective_cpus(id);
            ensure!(what == "no value", "{what}: was created, on {}", list(&cpus));
            ensure!(cpus.is_disjoint(&of_victim) && cpus.is_disjoint(&of_mine), "runs on {}", list(&cpus));
        }
        ensure!(node.runtime.effective_cpus(&pod.id("app")) == of_victim, "{what}");
    }
    node.ledger_is(&[(&victim, &of_victim), (&mine, &of_mine)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_planted_in_the_drivers_directories_leads_nowhere() -> Result<()> {
    let node = Node::without_daemon(small()).await?;
    let precious = node.path("precious");
    std::fs::write(&precious, "precious")?;
    let own = node.path("k/plugins/dra.cpu");
    std::fs::create_dir_all(&own)?;
    symlink(&precious, own.join("dracpu.lock"))?;
    let mut daemon = Daemon::spawn(&node.daemon_args()?)?;
    let status = daemon.wait_exit(SOON).await?;
    let words = daemon.lines().join("\n");
    ensure!(status.code() == Some(1), "{status}: {words}");
    ensure!(words.contains("dracpu.lock") && words.contains("symbolic link"), "{words}");
    std::fs::remove_file(own.join("dracpu.lock"))?;

    symlink(&precious, node.path("k/plugins_registry/dra.cpu@reg.sock"))?;
    symlink("/no/such/socket", own.join("dra@dra.sock"))?;
    symlink(&precious, node.cdi_dir().join("dra.k8s.io-cpu_claim-planted.json"))?;
    node.start_daemon().await?;
    let planted = dracpu_tests::support::scheduler::write_claim(
        &node.api,
        "planted",
        Some("planted"),
        &[json!({"request": "r", "driver": "dra.cpu", "pool": NODE, "device": NUMA0,
                 "consumedCapacity": {"dra.cpu/cpu": "2"}})],
        &[],
    );
    node.prepare(&planted).await?;
    let given = node.record_of("planted")?;
    node.ledger_is(&[(&planted, &given)]).await?;
    node.unprepare(&planted).await?;
    ensure!(std::fs::read_to_string(&precious)? == "precious");
    node.ledger_is(&[]).await?;
    Ok(())
}
