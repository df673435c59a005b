//! The container runtime as NRI plugins meet it: containerd's NRI adaptation and CRI service, without
//! containers. Every container is a record with an environment and a CPU mask.
//!
//! Reading order: this file (the handle), `containers` (what there is), `cri` (a kubelet's calls),
//! `hooks` (what plugins are asked then), `adjust` (merging the answers), `session` (a plugin's
//! connection), `ttrpc`, `mux`.
//!
//! Sources: `containerd/nri` at 0.8 and 0.12, containerd 2.1 and 2.4 (sources, and measured).

mod adjust;
mod containers;
mod cri;
mod hooks;
mod mux;
mod session;
mod ttrpc;

pub use adjust::CpuChange;
pub use containers::{ContainerRecord, ContainerSpec, ContainerState, PodSpec};

use super::cpus::Cpus;
use super::wait;
use anyhow::{Context, Result};
use session::{Plugin, accept_plugins};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Which runtime to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeVersion {
    /// containerd 2.1.9, NRI 0.8.
    Containerd21,
    /// containerd 2.4.2, NRI 0.12.3.
    Containerd24,
}

impl RuntimeVersion {
    fn nri_minor(self) -> u32 {
        match self {
            Self::Containerd21 => 8,
            Self::Containerd24 => 12,
        }
    }

    /// As Configure and Register tell it; 0.8 has no such field.
    fn nri_version(self) -> &'static str {
        match self {
            Self::Containerd21 => "",
            Self::Containerd24 => "v0.12.3",
        }
    }

    fn runtime_version(self) -> &'static str {
        match self {
            Self::Containerd21 => "2.1.9+unknown",
            Self::Containerd24 => "2.4.2+unknown",
        }
    }

    fn valid_events(self) -> i32 {
        match self {
            Self::Containerd21 => 0x7ff,
            Self::Containerd24 => 0x3fff,
        }
    }

    /// The newest CDI version that it reads.
    #[must_use]
    pub fn newest_cdi(self) -> &'static str {
        match self {
            Self::Containerd21 => "1.0.0",
            Self::Containerd24 => "1.1.0",
        }
    }
}

/// When the answer to RegisterPlugin comes. All three occur in life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterOrder {
    /// Before Configure.
    AnswerFirst,
    /// Between Configure and Synchronize.
    ConfigureFirst,
    /// After Synchronize.
    AnswerLast,
}

/// What a runtime is started with.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// The NRI socket.
    pub socket: PathBuf,
    /// CDI directories, the one with priority last.
    pub cdi_dirs: Vec<PathBuf>,
    /// Which runtime to be.
    pub version: RuntimeVersion,
    /// When the answer to RegisterPlugin comes.
    pub order: RegisterOrder,
    /// CPUs of the machine.
    pub online: Cpus,
    /// 5 s in life.
    pub registration_timeout: Duration,
    /// 2 s in life: for each hook, and for a whole Synchronize.
    pub request_timeout: Duration,
}

impl RuntimeConfig {
    /// A runtime with the limits of life.
    #[must_use]
    pub fn new(socket: PathBuf, cdi_dir: PathBuf, version: RuntimeVersion, online: Cpus) -> Self {
        Self {
            socket,
            cdi_dirs: vec![cdi_dir],
            version,
            order: RegisterOrder::ConfigureFirst,
            online,
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
        }
    }
}

/// A call to a plugin, when it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookCall {
    /// `<index>-<name>`
    pub plugin: String,
    /// The method, or for StateChange the event's name.
    pub method: String,
    /// The container; empty for pods and Synchronize.
    pub container: String,
    /// How long the plugin took.
    pub took: Duration,
    /// Masks that it set: its adjustment under the container's id, its updates under theirs.
    pub masks: Vec<(String, String)>,
    /// Its refusal, or why the connection was closed.
    pub failure: Option<String>,
}

#[derive(Default)]
struct State {
    plugins: Vec<Arc<Plugin>>,
    pods: BTreeMap<String, PodSpec>,
    pods_of_this_run: BTreeSet<String>,
    containers: BTreeMap<String, ContainerRecord>,
    made: u64,
    calls: Vec<HookCall>,
    oddities: Vec<String>,
    refusals: Vec<String>,
    sync_parts: usize,
    failing_updates: Vec<String>,
    dead_locked: bool,
}

struct Shared {
    config: RuntimeConfig,
    /// That of the configuration, until another one was installed.
    version: Mutex<RuntimeVersion>,
    state: Mutex<State>,
    /// One hook at a time over the whole runtime; Synchronize and UpdateContainers too.
    hooks: tokio::sync::Mutex<()>,
    changes: watch::Sender<u64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn version(&self) -> RuntimeVersion {
        *self.version.lock().unwrap()
    }

    /// Waits until no hook runs, and keeps others out.
    async fn alone(&self) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        let alone = self.hooks.lock().await;
        // no answer ever comes in life; here the caller is told, or its test would hang
        anyhow::ensure!(
            !self.state().dead_locked,
            "the runtime is dead-locked for good: NRI before 0.12.1 was sent UpdateContainers"
        );
        Ok(alone)
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    fn odd(&self, what: String) {
        self.state().oddities.push(what);
    }
}

/// A runtime; ends when dropped.
pub struct Runtime {
    shared: Arc<Shared>,
    accepting: Mutex<Option<CancellationToken>>,
}

impl Runtime {
    /// Creates the socket and takes plugins.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(config: RuntimeConfig) -> Result<Self> {
        let shared = Arc::new(Shared {
            version: Mutex::new(config.version),
            config,
            state: Mutex::new(State { sync_parts: 1, ..State::default() }),
            hooks: tokio::sync::Mutex::new(()),
            changes: watch::channel(0).0,
        });
        let runtime = Self { shared, accepting: Mutex::new(None) };
        runtime.begin()?;
        Ok(runtime)
    }

    /// Starts again after [`Self::stop`]: the socket is made anew, containers are as they were.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn begin(&self) -> Result<()> {
        let socket = &self.shared.config.socket;
        if let Err(error) = std::fs::remove_file(socket) {
            let absent = error.kind() == std::io::ErrorKind::NotFound;
            anyhow::ensure!(absent, "cannot remove {}: {error}", socket.display());
        }
        if let Some(directory) = socket.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let listener =
            UnixListener::bind(socket).with_context(|| format!("cannot bind {}", socket.display()))?;
        let stop = CancellationToken::new();
        tokio::spawn(accept_plugins(Arc::clone(&self.shared), listener, stop.clone()));
        *self.accepting.lock().unwrap() = Some(stop);
        Ok(())
    }

    /// Ends as SIGTERM or SIGKILL end it: plugins see EOF, the socket file stays, containers run on.
    pub async fn stop(&self) {
        let accepting = self.accepting.lock().unwrap().take();
        if let Some(stop) = accepting {
            stop.cancel();
        }
        let plugins = {
            let mut state = self.shared.state();
            state.pods_of_this_run.clear();
            state.dead_locked = false;
            std::mem::take(&mut state.plugins)
        };
        for plugin in plugins {
            plugin.close("the runtime stops").await;
        }
        self.shared.changed();
    }

    /// Another version is installed; from the next [`Self::begin`] on it runs.
    pub fn install(&self, version: RuntimeVersion) {
        *self.shared.version.lock().unwrap() = version;
    }

    /// The machine has rebooted after [`Self::stop`]: pods and containers are gone, and nobody was told.
    pub fn forget_all(&self) {
        let mut state = self.shared.state();
        state.pods.clear();
        state.containers.clear();
    }

    /// A restart.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub async fn restart(&self) -> Result<()> {
        self.stop().await;
        self.begin()
    }

    // ---- switches

    /// Sends the next Synchronize in so many parts.
    pub fn synchronize_in_parts(&self, parts: usize) {
        self.shared.state().sync_parts = parts;
    }

    /// Lets updates of a container fail, as a runtime's call to runc can.
    pub fn fail_updates_of(&self, container: &str) {
        self.shared.state().failing_updates.push(container.to_owned());
    }

    /// Lets a container have run since then.
    pub fn set_started(&self, id: &str, since: SystemTime) {
        if let Some(container) = self.shared.state().containers.get_mut(id) {
            container.started = Some(since);
        }
    }

    // ---- what is so

    /// All containers, by id.
    #[must_use]
    pub fn containers(&self) -> BTreeMap<String, ContainerRecord> {
        self.shared.state().containers.clone()
    }

    /// One container.
    ///
    /// # Panics
    /// When there is none of that id.
    #[must_use]
    pub fn container(&self, id: &str) -> ContainerRecord {
        self.shared.state().containers[id].clone()
    }

    /// The CPUs on which a container may run now.
    ///
    /// # Panics
    /// When there is none of that id.
    #[must_use]
    pub fn effective_cpus(&self, id: &str) -> Cpus {
        self.container(id).effective(&self.shared.config.online)
    }

    /// Names (`<index>-<name>`) and event masks of the plugins that are synchronized.
    #[must_use]
    pub fn plugins(&self) -> BTreeMap<String, i32> {
        let state = self.shared.state();
        let live = state.plugins.iter().filter(|plugin| plugin.is_open());
        live.map(|plugin| (plugin.name.clone(), plugin.events)).collect()
    }

    /// All calls to plugins so far.
    #[must_use]
    pub fn calls(&self) -> Vec<HookCall> {
        self.shared.state().calls.clone()
    }

    /// What plugins sent that a runtime swallows, and that a driver should not send.
    #[must_use]
    pub fn oddities(&self) -> Vec<String> {
        self.shared.state().oddities.clone()
    }

    /// Why connections were closed or registrations refused.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        self.shared.state().refusals.clone()
    }

    /// A number that rises with every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Waits until a plugin is synchronized.
    ///
    /// # Errors
    /// After `limit`, with the refusals so far.
    pub async fn wait_plugin(&self, name: &str, limit: Duration) -> Result<()> {
        let what = format!("NRI plugin {name}");
        wait::look(&what, limit, &mut self.changes(), || self.plugins().contains_key(name).then_some(()))
            .await
            .with_context(|| format!("refusals: {:?}", self.refusals()))
    }

    /// Waits until a plugin is gone.
    ///
    /// # Errors
    /// After `limit`.
    pub async fn wait_plugin_gone(&self, name: &str, limit: Duration) -> Result<()> {
        let what = format!("end of NRI plugin {name}");
        wait::look(&what, limit, &mut self.changes(), || (!self.plugins().contains_key(name)).then_some(()))
            .await
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(stop) = self.accepting.lock().unwrap().take() {
            stop.cancel();
        }
        for plugin in self.shared.state().plugins.drain(..) {
            plugin.abandon();
        }
    }
}
