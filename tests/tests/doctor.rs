//! `dracpu doctor` on a node that is well, and on nodes with a fault each: the fault is found, by the check that is for it, and
//! nothing else is called failed.

use anyhow::{Context, Result, ensure};
use dracpu_tests::support::api_server::{Gates, Presence, Resource};
use dracpu_tests::support::cpus::{Cpus, cpus, list};
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig};
use dracpu_tests::support::wait::{SOON, poll};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const NUMA0: &str = "cpudevnuma000";

const IDS: [&str; 19] = [
    "kubelet-cpu-manager",
    "registration",
    "node-name",
    "nri-version",
    "nri-connected",
    "cdi-dir",
    "cdi-version",
    "records",
    "overlap",
    "stranded",
    "orphans",
    "masks",
    "slices",
    "feature-gates",
    "attribute-limits",
    "cfs-quota",
    "reserved-match",
    "strategy",
    "lock",
];

/// What the host shows of its processes and cgroups, in the kernel's own forms.
struct Host {
    proc: PathBuf,
    cgroup: PathBuf,
}

impl Host {
    fn of(node: &Node) -> Result<Self> {
        let host = Self { proc: node.path("proc"), cgroup: node.path("cgroup") };
        for directory in [&host.proc, &host.cgroup, &node.path("etc")] {
            fs::create_dir_all(directory)?;
        }
        host.kubelet("cgroupDriver: systemd\ncpuManagerPolicy: none\n")?;
        Ok(host)
    }

    fn kubelet(&self, config: &str) -> Result<()> {
        let process = self.proc.join("100");
        fs::create_dir_all(process.join("root"))?;
        fs::write(process.join("comm"), "kubelet\n")?;
        fs::write(process.join("cmdline"), "kubelet\0--config=/kubelet.yaml\0")?;
        fs::write(process.join("cgroup"), "0::/system.slice/kubelet.service\n")?;
        fs::write(process.join("root/kubelet.yaml"), config)?;
        Ok(())
    }

    /// The process of a container, and the quotas of its cgroup and of its pod's.
    fn container(&self, pid: u32, id: &str, may_run_on: &Cpus, quotas: [&str; 2]) -> Result<()> {
        let pod = format!("kubepods.slice/kubepods-pod{pid}.slice");
        let path = format!("{pod}/cri-containerd-{id}.scope");
        for (cgroup, quota) in [&path, &pod].into_iter().zip(quotas) {
            fs::create_dir_all(self.cgroup.join(cgroup))?;
            fs::write(self.cgroup.join(cgroup).join("cpu.max"), format!("{quota} 100000\n"))?;
        }
        let process = self.proc.join(pid.to_string());
        fs::create_dir_all(&process)?;
        fs::write(process.join("comm"), "app\n")?;
        fs::write(process.join("cgroup"), format!("0::/{path}\n"))?;
        let allowed = list(may_run_on);
        fs::write(
            process.join("status"),
            format!("Name:\tapp\nState:\tS (sleeping)\nCpus_allowed_list:\t{allowed}\n"),
        )?;
        Ok(())
    }

    /// Result and message of each check, and the exit code.
    async fn doctor(&self, node: &Node) -> Result<(i32, BTreeMap<String, (String, String)>)> {
        let root = |name: &str, directory: &Path| format!("--{name}-root={}", directory.display());
        let roots = [root("proc", &self.proc), root("cgroup", &self.cgroup), root("etc", &node.path("etc"))];
        let args: Vec<&str> =
            ["doctor", "-o", "json"].into_iter().chain(roots.iter().map(String::as_str)).collect();
        let answer = node.dracpu(&args).await?;
        let document: Value = serde_json::from_str(&answer.stdout).with_context(|| format!("{answer:?}"))?;
        ensure!(document["schema"] == "dracpu.doctor/v1", "{document}");
        let checks = document["checks"].as_array().context("a list of checks")?;
        let ids: Vec<&str> = checks.iter().filter_map(|check| check["id"].as_str()).collect();
        ensure!(ids == IDS, "{ids:?}");
        for check in checks {
            let remedy = check["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty());
            ensure!(remedy == (check["result"] != "ok"), "whatever is not ok has a remedy: {check}");
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of = |check: &Value| (text(&check["id"]), (text(&check["result"]), text(&check["message"])));
        Ok((answer.code, checks.iter().map(of).collect()))
    }

    /// Exactly these checks are not ok, with these results and these words.
    async fn finds(&self, node: &Node, expected: &[(&str, &str, &str)]) -> Result<()> {
        let (code, checks) = self.doctor(node).await?;
        for id in IDS {
            let (result, message) = &checks[id];
            let wanted = expected.iter().find(|(of, ..)| *of == id);
            let (wanted, words) = wanted.map_or(("ok", ""), |(_, result, words)| (*result, *words));
            ensure!(result == wanted && message.contains(words), "{id} is {result}: {message}");
        }
        let failed = expected.iter().any(|(_, result, _)| *result == "failed");
        ensure!(code == i32::from(failed), "exit code {code}");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_well_passes_every_check_and_each_fault_is_found_by_its_own() -> Result<()> {
    let node = Node::start(NodeConfig::new(Machine::small(8, 2))).await?;
    let host = Host::of(&node)?;
    let claim = node.write_claim("c", NUMA0, "2", &[]);
    let pod = node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    let shared = node.run_pod("shared", &[], &[ContainerAsk::new("app", &[])]).await?;
    let (own, rest) = (node.record_of(&claim.uid)?, node.runtime.effective_cpus(&shared.id("app")));
    let well = || {
        host.container(201, &pod.id("app"), &own, ["max", "max"])?;
        host.container(202, &shared.id("app"), &rest, ["max", "max"])
    };
    well()?;
    let healthy = || async { host.finds(&node, &[]).await };
    poll("a node that is well", SOON, healthy).await?; // its slices may still be on their way
    let nobody = format!("--proc-root={}", node.path("nobody").display());
    for root in ["proc", "cgroup", "etc"] {
        let nowhere = format!("--{root}-root={}", node.path("nowhere").display());
        let answer = node.dracpu(&["doctor", &nowhere]).await?;
        ensure!(answer.code == 64, "{answer:?}");
        ensure!(answer.stderr.contains(&format!("--{root}-root")), "{answer:?}");
    }
    fs::create_dir_all(node.path("nobody"))?;
    let answer = node.dracpu(&["doctor", &nobody]).await?;
    ensure!(answer.stdout.starts_with("kubelet-cpu-manager  ok       "), "{answer:?}");
    ensure!(
        answer.stdout.contains("masks                unknown  "),
        "nobody runs where this looks: {answer:?}"
    );

    // A container of another pod on the claim's CPUs, and one that a CPU limit throttles.
    host.container(202, &shared.id("app"), &node.config.machine.online(), ["max", "max"])?;
    let everywhere = list(&node.config.machine.online());
    let outside = format!("app of pod default/shared: process 202 (app) may run on CPUs {everywhere}");
    host.finds(&node, &[("masks", "failed", &outside)]).await?;
    well()?;
    host.container(201, &pod.id("app"), &own, ["max", "150000"])?;
    host.finds(&node, &[("cfs-quota", "warning", "2 CPUs by claims")]).await?;
    well()?;

    host.kubelet("reservedSystemCPUs: 0-1\n")?;
    host.finds(&node, &[("reserved-match", "warning", "keeps CPUs 0-1 for the system")]).await?;
    host.kubelet("featureGates: {DRAConsumableCapacity: false}\n")?;
    host.finds(&node, &[("feature-gates", "failed", "DRAConsumableCapacity=false")]).await?;
    host.kubelet("{}\n")?;

    // Somebody defines the claim's device too; somebody deletes its record, or damages it.
    let record = fs::read_dir(node.cdi_dir())?.flatten().map(|entry| entry.path());
    let record = record
        .into_iter()
        .find(|path| path.to_string_lossy().contains("dra.k8s.io-cpu_claim-"))
        .context("a record")?;
    let text = fs::read(&record)?;
    let second = node.cdi_dir().join("second.json");
    fs::write(&second, &text)?;
    host.finds(&node, &[("cdi-dir", "failed", "second.json defines dra.k8s.io/cpu=claim-")]).await?;
    fs::remove_file(&second)?;
    fs::remove_file(&record)?;
    host.finds(&node, &[("records", "failed", &claim.uid)]).await?;
    fs::write(&record, &text[..text.len() / 2])?;
    host.finds(&node, &[("records", "failed", "it is not a CDI spec")]).await?;
    fs::write(&record, &text)?;
    host.finds(&node, &[]).await?;

    // A runtime that looks elsewhere for specs.
    let runtime = node.path("etc/containerd/config.toml");
    fs::create_dir_all(node.path("etc/containerd"))?;
    fs::write(
        &runtime,
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  cdi_spec_dirs = ['/srv/cdi']\n",
    )?;
    host.finds(&node, &[("cdi-dir", "failed", "read specs from /srv/cdi, not from")]).await?;
    fs::write(&runtime, format!("cdi_spec_dirs = ['/etc/cdi', '{}']\n", node.cdi_dir().display()))?;
    host.finds(&node, &[("cdi-dir", "ok", "and the runtime reads it")]).await?;

    // No API server, while there is nothing to be published.
    node.api.set_presence(Presence::Refusing).await?;
    let cut_off = || async {
        let why = "Connection refused";
        host.finds(
            &node,
            &[("slices", "failed", why), ("node-name", "unknown", why), ("orphans", "unknown", why)],
        )
        .await
    };
    poll("checks that know of no API server", SOON, cut_off).await?;
    node.api.set_presence(Presence::Here).await?;
    poll("a node that is well again", SOON, healthy).await?;
    // One that takes connections and says nothing, as behind a network that drops all.
    node.api.set_presence(Presence::Hanging).await?;
    let why = "the API server gave no answer within 10 s";
    host.finds(
        &node,
        &[("slices", "failed", why), ("node-name", "unknown", why), ("orphans", "unknown", why)],
    )
    .await?;
    node.api.set_presence(Presence::Here).await?;
    poll("a node that is well again", SOON, healthy).await?;

    // The kubelet's own CPU manager; then no runtime; then no driver.
    node.kubelet.manage_cpus(cpus("0-7"));
    node.kubelet.restart().await;
    node.wait_connected().await?;
    host.finds(&node, &[("kubelet-cpu-manager", "failed", "policy static, CPUs 0-7")]).await?;
    node.kubelet.manage_cpus(Cpus::new());
    node.kubelet.restart().await;
    node.wait_serving().await?;
    node.runtime.stop().await;
    let unconnected = || async { host.finds(&node, &[("nri-connected", "failed", "")]).await };
    poll("a check that fails without the runtime", SOON, unconnected).await?;
    node.terminate_daemon().await?;
    let (code, checks) = host.doctor(&node).await?;
    ensure!(code == 1 && checks["lock"].0 == "failed", "{checks:?}");
    ensure!(checks["lock"].1.starts_with("no driver runs on this node"), "{checks:?}");
    let others =
        checks.iter().filter(|(id, _)| !["lock", "kubelet-cpu-manager", "cdi-dir"].contains(&id.as_str()));
    for (id, (result, message)) in others {
        ensure!(result == "unknown", "{id} is {result}: {message}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_the_feature_gate_is_seen_by_what_it_drops() -> Result<()> {
    let gates = Gates { consumable_capacity: false, ..Gates::defaults_of(36) };
    let node = Node::start(NodeConfig { gates, ..NodeConfig::new(Machine::small(8, 2)) }).await?;
    let host = Host::of(&node)?;
    node.devices().await?;
    let found = || async { host.finds(&node, &[("feature-gates", "failed", "DRAConsumableCapacity")]).await };
    poll("the check of the gate", SOON, found).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_no_node_has_and_an_older_runtime_are_told() -> Result<()> {
    use dracpu_tests::support::runtime::RuntimeVersion;
    let runtime = RuntimeVersion::Containerd21;
    let node = Node::without_daemon(NodeConfig { runtime, ..NodeConfig::new(Machine::small(8, 2)) }).await?;
    node.api.delete(Resource::Nodes, "", NODE);
    node.launch_daemon().await?;
    node.wait_connected().await?;
    let host = Host::of(&node)?;
    let unpublished = "nothing has been published yet";
    let found = || async {
        host.finds(
            &node,
            &[
                ("node-name", "failed", "knows no node `node-a`"),
                ("slices", "failed", "knows no node"),
                ("orphans", "unknown", "knows no node"),
                ("feature-gates", "unknown", unpublished),
                ("nri-version", "warning", "containerd 2.1.9+unknown, NRI 0.8.0"),
            ],
        )
        .await
    };
    poll("the checks of name and runtime", SOON, found).await
}
