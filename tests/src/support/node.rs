//! A whole node: machine, API server, kubelet, runtime, and the real daemon among them.
//!
//! A pod is run as scheduler, kubelet and runtime run it: allocation, prepare, sandbox, containers.

use super::api_server::{ApiServer, Gates, Resource};
use super::cdi_reader::Spec;
use super::cpus::{Cpus, list, parse};
use super::daemon::{Daemon, DaemonArgs};
use super::kubelet::{ClaimRef, Device, Kubelet, KubeletConfig, KubeletVersion};
use super::machine::Machine;
use super::runtime::{ContainerSpec, PodSpec, RegisterOrder, Runtime, RuntimeConfig, RuntimeVersion};
use super::scheduler::{self, Ask, DRIVER};
use super::wait::{SOON, poll};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// The node's name.
pub const NODE: &str = "node-a";
/// The driver as the runtime names it.
pub const PLUGIN: &str = "00-dra.cpu";

/// What a node is made of.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its CPUs.
    pub machine: Machine,
    /// Which kubelet.
    pub kubelet: KubeletVersion,
    /// Which runtime.
    pub runtime: RuntimeVersion,
    /// When the runtime answers RegisterPlugin.
    pub order: RegisterOrder,
    /// Which API server.
    pub gates: Gates,
    /// Keys of the driver's configuration file.
    pub config: Value,
    /// Further arguments of the daemon.
    pub flags: Vec<String>,
    /// Further environment variables of the daemon.
    pub envs: Vec<(String, String)>,
    /// How long the kubelet keeps the slices of a driver that is gone.
    pub slice_grace: Duration,
}

impl NodeConfig {
    /// The newest of everything, with a machine and nothing else.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            kubelet: KubeletVersion::Current,
            runtime: RuntimeVersion::Containerd24,
            order: RegisterOrder::ConfigureFirst,
            gates: Gates::defaults_of(36),
            config: json!({}),
            flags: Vec::new(),
            envs: Vec::new(),
            slice_grace: Duration::from_secs(30),
        }
    }

    /// The same with other keys of the configuration file.
    #[must_use]
    pub fn with_config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }
}

/// A container of a pod.
#[derive(Debug, Clone, Default)]
pub struct ContainerAsk {
    /// Its name.
    pub name: String,
    /// Names of the claims that it uses.
    pub claims: Vec<String>,
    /// Variables of the pod spec.
    pub env: Vec<String>,
}

impl ContainerAsk {
    /// A container with claims.
    #[must_use]
    pub fn new(name: &str, claims: &[&ClaimRef]) -> Self {
        let claims = claims.iter().map(|claim| claim.name.clone()).collect();
        Self { name: name.to_owned(), claims, env: Vec::new() }
    }
}

/// A pod that runs, in whole or in part.
#[derive(Debug, Clone)]
pub struct Pod {
    /// The pod object's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The sandbox.
    pub sandbox: String,
    /// What it uses.
    pub claims: Vec<ClaimRef>,
    /// By name: the container's id, or why it could not be created.
    pub containers: BTreeMap<String, Result<String, String>>,
    asks: Vec<ContainerAsk>,
}

impl Pod {
    /// A container's id.
    ///
    /// # Panics
    /// When it was not created.
    #[must_use]
    pub fn id(&self, container: &str) -> String {
        self.containers[container].clone().unwrap()
    }
}

/// The node; everything ends when it is dropped.
pub struct Node {
    /// How it was made.
    pub config: NodeConfig,
    /// The API server.
    pub api: Arc<ApiServer>,
    /// The kubelet.
    pub kubelet: Kubelet,
    /// The runtime.
    pub runtime: Runtime,
    daemon: tokio::sync::Mutex<Option<Daemon>>,
    prepared: Mutex<BTreeMap<String, Vec<Device>>>,
    directory: TempDir,
}

impl Node {
    /// A node with the daemon up, registered and synchronized.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start(config: NodeConfig) -> Result<Self> {
        let node = Self::without_daemon(config).await?;
        node.start_daemon().await?;
        Ok(node)
    }

    /// A node on which no driver runs yet.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn without_daemon(config: NodeConfig) -> Result<Self> {
        // socket paths must fit 107 bytes, so not wherever TMPDIR leads
        let directory = tempfile::Builder::new().prefix("dn").tempdir_in("/tmp")?;
        let path = |name: &str| directory.path().join(name);
        config.machine.write_sysfs(&path("sys"))?;
        std::fs::create_dir_all(path("cdi"))?;
        let api = Arc::new(ApiServer::start(config.gates).await?);
        api.write_kubeconfig(&path("kubeconfig"))?;
        api.confine_slices_to(NODE);
        api.put(Resource::Nodes, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}));
        api.put(
            Resource::DeviceClasses,
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
                   "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.cpu'"}}]}}),
        );
        let kubelet = Kubelet::start(KubeletConfig {
            root: path("k"),
            node: NODE.to_owned(),
            version: config.kubelet,
            api: Arc::clone(&api),
            slice_grace: config.slice_grace,
        })?;
        let socket = path("nri").join("nri.sock");
        let runtime = RuntimeConfig::new(socket, path("cdi"), config.runtime, config.machine.online());
        let runtime = Runtime::start(RuntimeConfig { order: config.order, ..runtime })?;
        let (daemon, prepared) = (tokio::sync::Mutex::new(None), Mutex::default());
        Ok(Self { config, api, kubelet, runtime, daemon, prepared, directory })
    }

    /// A path inside the node's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where claim specs are.
    #[must_use]
    pub fn cdi_dir(&self) -> PathBuf {
        self.path("cdi")
    }

    // ---- the daemon

    /// The arguments that lead the daemon to this node.
    ///
    /// # Errors
    /// When the configuration file cannot be written.
    pub fn daemon_args(&self) -> Result<DaemonArgs> {
        let file = self.path("config.yaml");
        std::fs::write(&file, self.config.config.to_string())?; // JSON is YAML
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut args = vec![
            flag("config", &file),
            flag("kubeconfig", &self.path("kubeconfig")),
            flag("kubelet-root-dir", &self.path("k")),
            flag("sysfs-root", &self.path("sys")),
            flag("nri-socket", &self.path("nri/nri.sock")),
            flag("cdi-dir", &self.cdi_dir()),
            format!("--hostname-override={NODE}"),
        ];
        args.extend(self.config.flags.iter().cloned());
        Ok(DaemonArgs { args, envs: self.config.envs.clone(), log: self.path("dracpu.log") })
    }

    /// Starts the daemon and waits until it serves.
    ///
    /// # Errors
    /// When it does not.
    pub async fn start_daemon(&self) -> Result<()> {
        self.launch_daemon().await?;
        self.wait_serving().await
    }

    /// Starts the daemon and waits for nothing.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn launch_daemon(&self) -> Result<()> {
        let daemon = Daemon::spawn(&self.daemon_args()?)?;
        *self.daemon.lock().await = Some(daemon);
        Ok(())
    }

    /// Waits until the daemon is ready by its own word, by the kubelet's and by the runtime's.
    ///
    /// # Errors
    /// When it is not, soon.
    pub async fn wait_serving(&self) -> Result<()> {
        let mut daemon = self.daemon.lock().await;
        daemon.as_mut().context("no daemon runs")?.wait_ready(SOON).await?;
        self.kubelet.wait_registered(DRIVER, SOON).await?;
        self.runtime.wait_plugin(PLUGIN, SOON).await
    }

    /// SIGKILL; returns when kubelet and runtime have noticed.
    ///
    /// # Errors
    /// When no daemon runs.
    pub async fn kill_daemon(&self) -> Result<()> {
        self.daemon.lock().await.take().context("no daemon runs")?.kill().await?;
        self.kubelet.wait_disconnected(DRIVER, SOON).await?;
        self.runtime.wait_plugin_gone(PLUGIN, SOON).await
    }

    /// SIGTERM; its exit status.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn terminate_daemon(&self) -> Result<ExitStatus> {
        let daemon = self.daemon.lock().await.take().context("no daemon runs")?;
        daemon.terminate(SOON).await
    }

    /// Killed, started, serving again.
    ///
    /// # Errors
    /// When it does not serve again.
    pub async fn crash_and_restart(&self) -> Result<()> {
        self.kill_daemon().await?;
        self.start_daemon().await
    }

    /// A metric's value.
    ///
    /// # Errors
    /// When there is no such series.
    pub async fn metric(&self, series: &str) -> Result<f64> {
        self.daemon.lock().await.as_ref().context("no daemon runs")?.metric(series).await
    }

    /// An answer of the daemon's HTTP server.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        self.daemon.lock().await.as_ref().context("no daemon runs")?.get(path).await
    }

    /// The daemon's lines so far.
    pub async fn daemon_lines(&self) -> Vec<String> {
        self.daemon.lock().await.as_ref().map(Daemon::lines).unwrap_or_default()
    }

    // ---- claims and pods

    /// The published devices; waits for a complete pool.
    ///
    /// # Errors
    /// When there is none, soon.
    pub async fn devices(&self) -> Result<BTreeMap<String, Value>> {
        poll("complete pool", SOON, || async { scheduler::pool(&self.api, NODE) }).await
    }

    /// Lets the scheduler allocate a claim.
    ///
    /// # Errors
    /// When no published device fits.
    pub async fn allocate(&self, name: &str, asks: &[Ask]) -> Result<ClaimRef> {
        self.devices().await?;
        scheduler::allocate(&self.api, NODE, name, asks)
    }

    /// An allocated claim of one request, as it is told: `cpus` is any text for the quantity.
    #[must_use]
    pub fn write_claim(&self, name: &str, device: &str, cpus: &str, config: &[Value]) -> ClaimRef {
        let result = json!({"request": "r", "driver": DRIVER, "pool": NODE, "device": device,
                            "consumedCapacity": {scheduler::CAPACITY: cpus}});
        scheduler::write_claim(&self.api, name, None, &[result], config)
    }

    /// NodePrepareResources for one claim, as for a pod that uses only it.
    ///
    /// # Errors
    /// The driver's refusal, as the kubelet would show it.
    pub async fn prepare(&self, claim: &ClaimRef) -> Result<Vec<Device>> {
        let mut answers = self.kubelet.prepare(DRIVER, std::slice::from_ref(claim)).await?;
        let answer = answers.remove(&claim.uid).context("an answer for the claim")?;
        let devices = answer.map_err(|why| anyhow!("{why}"))?;
        self.prepared.lock().unwrap().insert(claim.uid.clone(), devices.clone());
        Ok(devices)
    }

    /// NodeUnprepareResources for one claim.
    ///
    /// # Errors
    /// The driver's refusal.
    pub async fn unprepare(&self, claim: &ClaimRef) -> Result<()> {
        let mut answers = self.kubelet.unprepare(DRIVER, std::slice::from_ref(claim)).await?;
        let answer = answers.remove(&claim.uid).context("an answer for the claim")?;
        answer.map_err(|why| anyhow!("{why}"))?;
        self.prepared.lock().unwrap().remove(&claim.uid);
        Ok(())
    }

    /// Runs a pod. A container that cannot be created does not stop the others.
    ///
    /// # Errors
    /// When a claim cannot be prepared, or the sandbox cannot be run.
    pub async fn run_pod(
        &self,
        name: &str,
        claims: &[&ClaimRef],
        containers: &[ContainerAsk],
    ) -> Result<Pod> {
        let uid = self.write_pod(name, claims, containers);
        let missing: Vec<ClaimRef> = {
            let prepared = self.prepared.lock().unwrap();
            claims
                .iter()
                .filter(|claim| !prepared.contains_key(&claim.uid))
                .map(|claim| (*claim).clone())
                .collect()
        };
        if !missing.is_empty() {
            let answers = self.kubelet.prepare(DRIVER, &missing).await?;
            for (claim, answer) in answers {
                match answer {
                    Ok(devices) => self.prepared.lock().unwrap().insert(claim, devices),
                    Err(why) => bail!("FailedPrepareDynamicResources: {why}"),
                };
            }
        }
        let spec = PodSpec {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            uid: uid.clone(),
            annotations: BTreeMap::new(),
        };
        let sandbox = self.runtime.run_pod_sandbox(spec).await?;
        let mut pod = Pod {
            name: name.to_owned(),
            uid,
            sandbox,
            claims: claims.iter().map(|claim| (*claim).clone()).collect(),
            containers: BTreeMap::new(),
            asks: containers.to_vec(),
        };
        for ask in containers {
            self.begin_container(&mut pod, &ask.name).await?;
        }
        Ok(pod)
    }

    /// Creates and starts a container of a pod: at first, after a refusal, or after its end.
    ///
    /// # Errors
    /// When the pod has no such container. A refusal is kept in the pod.
    pub async fn begin_container(&self, pod: &mut Pod, name: &str) -> Result<()> {
        let ask = pod.asks.iter().find(|ask| ask.name == name).context("a container of the pod")?;
        let mut cdi_devices = Vec::new();
        for claim in pod.claims.iter().filter(|claim| ask.claims.contains(&claim.name)) {
            let prepared = self.prepared.lock().unwrap();
            let devices = prepared.get(&claim.uid).context("the claim is prepared")?;
            cdi_devices.extend(devices.iter().flat_map(|device| device.cdi_device_ids.clone()));
        }
        let spec =
            ContainerSpec { name: name.to_owned(), env: ask.env.clone(), cdi_devices, ..Default::default() };
        let created = async {
            let id = self.runtime.create_container(&pod.sandbox, &spec).await?;
            self.runtime.start_container(&id).await?;
            anyhow::Ok(id)
        };
        let outcome = created.await.map_err(|error| format!("{error:#}"));
        pod.containers.insert(name.to_owned(), outcome);
        Ok(())
    }

    /// Ends a container and begins it anew, as the kubelet does; the old one is removed afterwards.
    ///
    /// # Errors
    /// When the container does not run.
    pub async fn restart_container(&self, pod: &mut Pod, name: &str) -> Result<()> {
        let old = pod.id(name);
        self.runtime.stop_container(&old).await?;
        self.begin_container(pod, name).await?;
        self.runtime.remove_container(&old).await
    }

    /// Ends a pod: containers, sandbox, unprepare, objects.
    ///
    /// # Errors
    /// When a claim cannot be unprepared.
    pub async fn terminate_pod(&self, pod: &Pod) -> Result<()> {
        self.runtime.remove_pod_sandbox(&pod.sandbox).await?;
        if !pod.claims.is_empty() {
            let answers = self.kubelet.unprepare(DRIVER, &pod.claims).await?;
            for (claim, answer) in answers {
                answer.map_err(|why| anyhow!("claim {claim}: {why}"))?;
                self.prepared.lock().unwrap().remove(&claim);
            }
        }
        for claim in &pod.claims {
            self.api.delete(Resource::ResourceClaims, &claim.namespace, &claim.name);
        }
        self.api.delete(Resource::Pods, "default", &pod.name);
        Ok(())
    }

    fn write_pod(&self, name: &str, claims: &[&ClaimRef], containers: &[ContainerAsk]) -> String {
        let containers: Vec<_> = containers
            .iter()
            .map(|ask| {
                let claims: Vec<_> = ask.claims.iter().map(|claim| json!({"name": claim})).collect();
                json!({"name": ask.name, "image": "app", "resources": {"claims": claims}})
            })
            .collect();
        let used: Vec<_> =
            claims.iter().map(|claim| json!({"name": claim.name, "resourceClaimName": claim.name})).collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name},
            "spec": {"nodeName": NODE, "resourceClaims": used, "containers": containers},
        });
        let uid = self.api.put(Resource::Pods, pod)["metadata"]["uid"].as_str().unwrap().to_owned();
        for claim in claims {
            let Some(mut object) = self.api.get(Resource::ResourceClaims, &claim.namespace, &claim.name)
            else {
                continue;
            };
            object["status"]["reservedFor"] = json!([{"resource": "pods", "name": name, "uid": uid}]);
            self.api.put(Resource::ResourceClaims, object);
        }
        uid
    }

    // ---- the ledger, seen from outside

    /// What the claim specs on disk say: by claim UID, its CPUs.
    ///
    /// # Errors
    /// When a spec is not as runtimes want it, or not as the contract says.
    pub fn recorded(&self) -> Result<BTreeMap<String, Cpus>> {
        let mut recorded = BTreeMap::new();
        for entry in std::fs::read_dir(self.cdi_dir())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_owned();
            let Some(uid) =
                name.strip_prefix("dra.k8s.io-cpu_claim-").and_then(|rest| rest.strip_suffix(".json"))
            else {
                continue;
            };
            let spec = Spec::read(&path, self.config.runtime.newest_cdi())?;
            ensure!(spec.kind == "dra.k8s.io/cpu", "{name}: kind {}", spec.kind);
            let [device] = spec.devices.as_slice() else { bail!("{name}: not one device") };
            ensure!(device.name == format!("claim-{uid}"), "{name}: device {}", device.name);
            let key = format!("DRA_CPUSET_{uid}=");
            let value = device.container_edits.env.iter().find_map(|entry| entry.strip_prefix(&key));
            recorded.insert(uid.to_owned(), parse(value.with_context(|| format!("{name}: no {key}…"))?)?);
        }
        Ok(recorded)
    }

    /// Asserts, from outside, that the driver's books are these: claims with their CPUs (disjoint), the
    /// metrics that count them, and that each container runs where it should. Returns the shared pool.
    ///
    /// # Errors
    /// With the first thing that is not so.
    pub async fn ledger_is(&self, claims: &[(&ClaimRef, &Cpus)]) -> Result<Cpus> {
        let recorded = self.recorded()?;
        let wanted: BTreeMap<_, _> =
            claims.iter().map(|(claim, cpus)| (claim.uid.clone(), (*cpus).clone())).collect();
        ensure!(recorded == wanted, "recorded claims are {recorded:?}, not {wanted:?}");
        let all: Vec<u32> = recorded.values().flatten().copied().collect();
        let distinct: Cpus = all.iter().copied().collect();
        ensure!(all.len() == distinct.len(), "claims overlap: {recorded:?}");
        let reserved = parse(self.config.config["reservedCPUs"].as_str().unwrap_or(""))?;
        ensure!(distinct.is_disjoint(&reserved), "claims hold reserved CPUs: {recorded:?}");
        let online = self.config.machine.online();
        let taken: Cpus = reserved.union(&self.config.machine.isolated).copied().collect();
        let shared: Cpus =
            online.iter().filter(|cpu| !distinct.contains(cpu) && !taken.contains(cpu)).copied().collect();
        #[expect(clippy::cast_precision_loss, reason = "counts of CPUs and claims are small")]
        for (series, count) in [
            ("dra_cpu_allocated_cpus", distinct.len() as f64),
            ("dra_cpu_resource_claims_active", recorded.len() as f64),
        ] {
            let is = self.metric(series).await?;
            ensure!((is - count).abs() < 0.5, "{series} is {is}, not {count}");
        }
        for (id, container) in self.runtime.containers() {
            if container.state == super::runtime::ContainerState::Exited {
                continue;
            }
            let uids =
                container.cdi_devices.iter().filter_map(|name| name.strip_prefix("dra.k8s.io/cpu=claim-"));
            let own: Cpus = uids.flat_map(|uid| recorded.get(uid).cloned().unwrap_or_default()).collect();
            let mask = self.runtime.effective_cpus(&id);
            let wanted = if own.is_empty() { &shared } else { &own };
            ensure!(
                mask == *wanted,
                "container {} runs on {}, not {}",
                container.name,
                list(&mask),
                list(wanted)
            );
        }
        Ok(shared)
    }
}
