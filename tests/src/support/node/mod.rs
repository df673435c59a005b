//! A whole node: machine, API server, kubelet, runtime, and the real daemon among them.
//!
//! Reading order: this file (the parts and their lives), `pods` (claims and pods), `ask` (the command line), `ledger`
//! (assertions on the driver's books).

mod ask;
mod ledger;
mod pods;

pub use ask::Answer;
pub use pods::{ContainerAsk, Pod};

use super::api_server::{ApiServer, Gates, Resource};
use super::clock::Clock;
use super::daemon::{Daemon, DaemonArgs, Process, compiled_strategies};
use super::kubelet::{Device, Kubelet, KubeletConfig, KubeletVersion};
use super::machine::Machine;
use super::runtime::{RegisterOrder, Runtime, RuntimeConfig, RuntimeVersion};
use super::scheduler::DRIVER;
use super::wait::{SOON, poll};
use anyhow::{Context, Result};
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
    /// What the daemon is launched by ([`DaemonArgs::launcher`]).
    pub launcher: Vec<String>,
    /// Further environment variables of the daemon.
    pub envs: Vec<(String, String)>,
    /// How long the kubelet keeps the slices of a driver that is gone.
    pub slice_grace: Duration,
    /// The cache directory is this node's own, `cache` in its directory, not one for all nodes.
    pub own_cache: bool,
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
            launcher: Vec::new(),
            envs: Vec::new(),
            slice_grace: Duration::from_secs(30),
            own_cache: false,
        }
    }

    /// The same with other keys of the configuration file.
    #[must_use]
    pub fn with_config(mut self, config: Value) -> Self {
        self.config = config;
        self
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
            clock: Clock::machine(),
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

    /// Writes the configuration file as `config` has it by now.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_config(&self) -> Result<()> {
        Ok(std::fs::write(self.path("config.yaml"), self.config.config.to_string())?) // JSON is YAML
    }

    /// The arguments that lead the daemon to this node.
    ///
    /// # Errors
    /// When the configuration file cannot be written.
    pub fn daemon_args(&self) -> Result<DaemonArgs> {
        self.write_config()?;
        let file = self.path("config.yaml");
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let cache = if self.config.own_cache { self.path("cache") } else { compiled_strategies()? };
        let mut args = vec![
            flag("config", &file),
            flag("kubeconfig", &self.path("kubeconfig")),
            flag("kubelet-root-dir", &self.path("k")),
            flag("sysfs-root", &self.path("sys")),
            flag("nri-socket", &self.path("nri/nri.sock")),
            flag("cdi-dir", &self.cdi_dir()),
            flag("cache-dir", &cache),
        ];
        args.extend(self.config.flags.iter().cloned());
        let mut envs = vec![("NODE_NAME".to_owned(), NODE.to_owned())];
        envs.extend(self.config.envs.iter().cloned());
        Ok(DaemonArgs { args, launcher: self.config.launcher.clone(), envs, log: self.path("dracpu.log") })
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

    /// Takes a daemon that was started otherwise as the node's.
    pub async fn adopt_daemon(&self, daemon: Daemon) {
        *self.daemon.lock().await = Some(daemon);
    }

    /// The daemon's process id.
    pub async fn daemon_pid(&self) -> Option<u32> {
        self.daemon_process().await.ok()?.pid()
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

    /// Waits until kubelet and runtime are connected to this daemon, which may be unready otherwise. The
    /// daemon's own word comes first: the kubelet may still hold a killed daemon's registration, whose DRA
    /// socket has the same path.
    ///
    /// # Errors
    /// When they are not, soon.
    pub async fn wait_connected(&self) -> Result<()> {
        let heard = || async {
            let (_, words) = self.get("/readyz").await?;
            let waiting =
                words.lines().any(|line| line.starts_with("registration") || line.starts_with("nri"));
            anyhow::ensure!(!waiting, "{words}");
            Ok(())
        };
        poll("connection of kubelet and runtime", SOON, heard).await?;
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

    /// Waits for the daemon's own end, and for kubelet and runtime to notice.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn wait_daemon_end(&self) -> Result<ExitStatus> {
        let mut daemon = self.daemon.lock().await.take().context("no daemon runs")?;
        let status = daemon.wait_exit(SOON).await?;
        self.kubelet.wait_disconnected(DRIVER, SOON).await?;
        self.runtime.wait_plugin_gone(PLUGIN, SOON).await?;
        Ok(status)
    }

    /// Killed, started, serving again.
    ///
    /// # Errors
    /// When it does not serve again.
    pub async fn crash_and_restart(&self) -> Result<()> {
        self.kill_daemon().await?;
        self.start_daemon().await
    }

    /// Sends the daemon a signal.
    ///
    /// # Errors
    /// When no daemon runs.
    pub async fn signal_daemon(&self, signal: rustix::process::Signal) -> Result<()> {
        self.daemon_process().await?.signal(signal)
    }

    /// The daemon's process.
    ///
    /// # Errors
    /// When no daemon was started.
    pub async fn daemon_process(&self) -> Result<Process> {
        Ok(self.daemon.lock().await.as_ref().context("no daemon runs")?.process())
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

    /// The last lines of the daemons' log, those of daemons that have ended too.
    ///
    /// # Errors
    /// When there is none.
    pub fn last_lines(&self) -> Result<String> {
        let log = std::fs::read_to_string(self.path("dracpu.log"))?;
        let lines: Vec<&str> = log.lines().collect();
        Ok(lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    /// The daemon's lines so far.
    pub async fn daemon_lines(&self) -> Vec<String> {
        self.daemon.lock().await.as_ref().map(Daemon::lines).unwrap_or_default()
    }
}
