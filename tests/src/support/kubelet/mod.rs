//! The kubelet, as far as a DRA driver meets it: it finds registration sockets, registers, prepares and
//! unprepares, and removes the slices of drivers that are gone.
//!
//! Reading order: this file (the handle), `registration` (a socket's life), `plugin` (prepare and
//! unprepare), `health` (how devices are), `pod_resources` (what it manages itself), `grpc` (calls), `authority` (what grpc-go puts on the wire).
//!
//! Sources: `pkg/kubelet/pluginmanager` and `pkg/kubelet/cm/dra` of Kubernetes 1.35 to 1.37.

mod authority;
mod grpc;
mod health;
mod plugin;
mod pod_resources;
mod registration;

pub use authority::{Dialing, authority};
pub use grpc::{CallError, Connection};
pub use health::{Health, Reports};
pub use plugin::{Answers, ClaimRef, Device};

use super::api_server::ApiServer;
use super::clock::Clock;
use super::cpus::Cpus;
use super::wait;
use anyhow::{Context, Result, bail};
use registration::watch_sockets;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A DRA API version, as `supported_versions` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraApi {
    /// `v1.DRAPlugin`
    V1,
    /// `v1beta1.DRAPlugin`
    V1Beta1,
}

/// Which kubelet to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletVersion {
    /// 1.37: knows both API versions and both of health; the DRA socket as `unix:` target.
    Current,
    /// 1.36: the same, but asks every driver for health v1alpha1.
    V136,
    /// 1.33: knows v1beta1 only; the bare path for both sockets.
    V133,
}

impl KubeletVersion {
    fn known(self) -> &'static [(&'static str, DraApi)] {
        match self {
            Self::Current | Self::V136 => {
                &[("v1.DRAPlugin", DraApi::V1), ("v1beta1.DRAPlugin", DraApi::V1Beta1)]
            }
            Self::V133 => &[("v1beta1.DRAPlugin", DraApi::V1Beta1)],
        }
    }

    fn dra_dialing(self) -> Dialing {
        match self {
            Self::Current | Self::V136 => Dialing::UnixScheme,
            Self::V133 => Dialing::BarePath,
        }
    }
}

/// What a kubelet is started with.
pub struct KubeletConfig {
    /// Its root directory.
    pub root: PathBuf,
    /// The node's name.
    pub node: String,
    /// Which kubelet to be.
    pub version: KubeletVersion,
    /// Where the slices are.
    pub api: Arc<ApiServer>,
    /// How long a driver may be gone before its slices are deleted: 30 s in life.
    pub slice_grace: Duration,
    /// What leases of health are measured by.
    pub clock: Clock,
}

/// A driver that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The path that its GetInfo gave.
    pub endpoint: PathBuf,
    /// The version that was agreed on.
    pub api: DraApi,
    /// Whether the connection to the DRA socket stands.
    pub connected: bool,
    /// Rises with each registration of this driver.
    pub registrations: u32,
}

/// What is known of drivers by now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plugins {
    /// By driver name.
    pub drivers: BTreeMap<String, Registered>,
    /// Why the last attempt on a socket failed, by path.
    pub refusals: BTreeMap<PathBuf, String>,
    /// How many registrations each driver had, those undone too.
    registrations: BTreeMap<String, u32>,
}

/// What the tasks share.
struct Shared {
    config: KubeletConfig,
    plugins: watch::Sender<Plugins>,
    connections: Mutex<BTreeMap<String, Arc<Connection>>>,
    health: watch::Sender<Reports>,
    /// What the CPU manager of the next kubelet has: nothing with the policy `none`.
    managed: Mutex<Cpus>,
}

/// A kubelet; ends when dropped.
pub struct Kubelet {
    shared: Arc<Shared>,
    running: Mutex<Option<(CancellationToken, [JoinHandle<()>; 2])>>,
}

impl Kubelet {
    /// Makes the directories and starts.
    ///
    /// # Errors
    /// When a directory cannot be made.
    pub fn start(config: KubeletConfig) -> Result<Self> {
        for directory in ["plugins_registry", "plugins"] {
            let path = config.root.join(directory);
            std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let plugins = watch::channel(Plugins::default()).0;
        let health = watch::channel(Reports::default()).0;
        let shared = Arc::new(Shared {
            config,
            plugins,
            connections: Mutex::default(),
            health,
            managed: Mutex::default(),
        });
        let kubelet = Self { shared, running: Mutex::new(None) };
        kubelet.begin();
        Ok(kubelet)
    }

    /// From the next start on, the policy of its CPU manager: `static` with these CPUs, `none` without any.
    pub fn manage_cpus(&self, cpus: Cpus) {
        *self.shared.managed.lock().unwrap() = cpus;
    }

    /// Starts again after [`Self::stop`]: deletes all slices of the node, serves what it manages, then looks for sockets.
    ///
    /// # Panics
    /// When the socket for what it manages cannot be made in its own directory.
    pub fn begin(&self) {
        let config = &self.shared.config;
        config.api.delete_slices(&config.node, None);
        let stop = CancellationToken::new();
        let managed = self.shared.managed.lock().unwrap().clone();
        let told = pod_resources::serve(&config.root, managed, stop.clone()).unwrap();
        let sockets = tokio::spawn(watch_sockets(Arc::clone(&self.shared), stop.clone()));
        *self.running.lock().unwrap() = Some((stop, [told, sockets]));
    }

    /// Ends as a killed process does: connections close, nothing is told to anyone.
    pub async fn stop(&self) {
        let running = self.running.lock().unwrap().take();
        if let Some((stop, tasks)) = running {
            stop.cancel();
            for task in tasks {
                task.await.expect("the kubelet's tasks do not panic");
            }
        }
        self.shared.connections.lock().unwrap().clear();
        self.shared.plugins.send_modify(|plugins| {
            plugins.drivers.clear();
            plugins.refusals.clear();
        });
    }

    /// A restart, as an update of the kubelet makes.
    pub async fn restart(&self) {
        self.stop().await;
        self.begin();
    }

    /// Registered drivers and refused sockets.
    #[must_use]
    pub fn plugins(&self) -> watch::Receiver<Plugins> {
        self.shared.plugins.subscribe()
    }

    /// Waits until the driver is registered and connected.
    ///
    /// # Errors
    /// When it is not within `limit`; with the reason of the last refusal.
    pub async fn wait_registered(&self, driver: &str, limit: Duration) -> Result<Registered> {
        let is = |plugins: &Plugins| plugins.drivers.get(driver).is_some_and(|driver| driver.connected);
        let plugins =
            wait::until(&format!("registration of {driver}"), limit, &mut self.plugins(), is).await?;
        Ok(plugins.drivers[driver].clone())
    }

    /// Waits until the driver is not connected.
    ///
    /// # Errors
    /// When it still is after `limit`.
    pub async fn wait_disconnected(&self, driver: &str, limit: Duration) -> Result<()> {
        let is = |plugins: &Plugins| plugins.drivers.get(driver).is_none_or(|driver| !driver.connected);
        wait::until(&format!("disconnection of {driver}"), limit, &mut self.plugins(), is).await?;
        Ok(())
    }

    /// The connection to a driver's DRA socket and the version to speak on it.
    fn connection(&self, driver: &str) -> Result<(Arc<Connection>, DraApi)> {
        let plugins = self.shared.plugins.borrow();
        let Some(registered) = plugins.drivers.get(driver) else {
            bail!("DRA driver {driver} is not registered");
        };
        let connection = self.shared.connections.lock().unwrap().get(driver).cloned();
        let connection = connection.with_context(|| format!("DRA driver {driver} is not connected"))?;
        Ok((connection, registered.api))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some((stop, _)) = self.running.lock().unwrap().take() {
            stop.cancel();
        }
    }
}
