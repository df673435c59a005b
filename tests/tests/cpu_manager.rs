//! The kubelet's own CPU manager beside the driver: noticed, said with what to do, and gone once it is off.

use anyhow::{Result, ensure};
use dracpu_tests::support::cpus::{Cpus, cpus};
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use dracpu_tests::support::scheduler::DRIVER;
use dracpu_tests::support::wait::{SOON, poll};

const NUMA0: &str = "cpudevnuma000";

async fn ready_with(node: &Node, status: u16, words: &str) -> Result<()> {
    let look = || async {
        let (found, text) = node.get("/readyz").await?;
        ensure!(found == status && text.contains(words), "{found} {text}");
        Ok(())
    };
    poll("the state of readiness", SOON, look).await
}

async fn lines_about(node: &Node, words: &str) -> usize {
    node.daemon_lines().await.iter().filter(|line| line.contains(words)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_static_policy_makes_the_node_unready_with_a_remedy_until_a_kubelet_without_it_starts()
-> Result<()> {
    let node = Node::without_daemon(NodeConfig::new(Machine::small(8, 2))).await?;
    node.kubelet.manage_cpus(cpus("1-7"));
    node.kubelet.restart().await;
    node.launch_daemon().await?;
    let manager = "kubelet CPU manager: the kubelet's own CPU manager is on (policy static, CPUs 1-7)";
    ready_with(&node, 503, manager).await?;
    let remedy = format!("delete {} and restart the kubelet", node.path("k/cpu_manager_state").display());
    ready_with(&node, 503, &remedy).await?;
    ensure!(lines_about(&node, "policy static").await == 1, "said once");

    // Pods that are there go on, new ones too: whom the driver refused would run nowhere.
    node.wait_connected().await?;
    let claim = node.write_claim("c", NUMA0, "2", &[]);
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let own = node.record_of(&claim.uid)?;

    node.kubelet.manage_cpus(Cpus::new());
    node.kubelet.restart().await;
    ready_with(&node, 200, "ready").await?;
    node.ledger_is(&[(&claim, &own)]).await?;

    // And the other way round.
    node.kubelet.manage_cpus(cpus("0-7"));
    node.kubelet.restart().await;
    ready_with(&node, 503, "CPUs 0-7").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_does_not_tell_is_no_problem_and_said_once() -> Result<()> {
    let node = Node::without_daemon(NodeConfig::new(Machine::small(8, 2))).await?;
    let (socket, aside) = (node.path("k/pod-resources/kubelet.sock"), node.path("k/pod-resources/aside"));
    std::fs::rename(&socket, &aside)?;
    node.start_daemon().await?;
    let said = || async {
        let lines = lines_about(&node, "not known yet whether the kubelet's own CPU manager is off").await;
        ensure!(lines == 1, "{lines} lines");
        Ok(())
    };
    poll("the line about the kubelet's silence", SOON, said).await?;
    // The kubelet restarts, and its socket is there from then on.
    node.kubelet.manage_cpus(cpus("1-7"));
    node.kubelet.restart().await;
    node.kubelet.wait_registered(DRIVER, SOON).await?;
    ready_with(&node, 503, "policy static").await?;
    said().await
}
