//! A registration socket's life: found, asked, validated, told; then its DRA socket is kept connected
//! until the registration socket goes away.

use super::grpc::{CallError, Connection};
use super::health::{HealthApi, watch_devices};
use super::{Dialing, DraApi, Plugins, Registered, Shared};
use anyhow::{Context, Result, bail, ensure};
use dracpu_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const DIAL: Duration = Duration::from_secs(10);
const GET_INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Tells a socket file from another one of the same name.
type Identity = (u64, u64, i64, i64);

/// Sockets below `directory`, its sub-directories too, whose names do not start with a dot.
fn sockets(directory: &Path, found: &mut BTreeMap<PathBuf, Identity>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let Ok(facts) = fs::symlink_metadata(&path) else { continue };
        if facts.is_dir() {
            sockets(&path, found);
        } else if facts.file_type().is_socket() {
            found.insert(path, (facts.dev(), facts.ino(), facts.ctime(), facts.ctime_nsec()));
        }
    }
}

/// Follows the registration directory until stopped; by then all that it started has ended.
pub(super) async fn watch_sockets(shared: Arc<Shared>, stop: CancellationToken) {
    let mut lives = JoinSet::new();
    let mut known: BTreeMap<PathBuf, (Identity, tokio::task::AbortHandle)> = BTreeMap::new();
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = look.tick() => {}
        }
        let mut present = BTreeMap::new();
        sockets(&shared.config.root.join("plugins_registry"), &mut present);
        let changed: Vec<_> = known
            .iter()
            .filter(|(path, (identity, _))| present.get(*path) != Some(identity))
            .map(|(path, _)| path.clone())
            .collect();
        for path in changed {
            if let Some((_, life)) = known.remove(&path) {
                life.abort();
            }
            shared.plugins.send_modify(|plugins| {
                plugins.refusals.remove(&path);
            });
        }
        // an aborted life deregisters in its destructor: wait for it before the next one may register
        while lives.len() > known.len() {
            lives.join_next().await;
        }
        for (path, identity) in present {
            known
                .entry(path.clone())
                .or_insert_with(|| (identity, lives.spawn(live(Arc::clone(&shared), path, stop.clone()))));
        }
    }
    lives.shutdown().await;
}

/// Registers with back-off until it succeeds; then never returns.
async fn live(shared: Arc<Shared>, socket: PathBuf, stop: CancellationToken) {
    let mut retry = FIRST_RETRY;
    let mut registration = loop {
        match register(&shared, &socket, &stop).await {
            Ok(registration) => break registration,
            Err(refusal) => shared.plugins.send_modify(|plugins| {
                plugins.refusals.insert(socket.clone(), format!("{refusal:#}"));
            }),
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(LAST_RETRY);
    };
    registration.keep_connected().await;
}

/// GetInfo, validation, registration, notification.
async fn register(shared: &Arc<Shared>, socket: &Path, stop: &CancellationToken) -> Result<Registration> {
    let connection =
        Connection::dial(socket, Dialing::BarePath, DIAL).await.context("failed to dial device plugin")?;
    let info: PluginInfo = connection
        .call("/pluginregistration.Registration/GetInfo", &InfoRequest {}, GET_INFO)
        .await
        .context("failed to get plugin info using RPC GetInfo")?;
    let valid = validate(shared, socket, &info);
    let status = match &valid {
        Ok(_) => RegistrationStatus { plugin_registered: true, error: String::new() },
        Err(refusal) => RegistrationStatus { plugin_registered: false, error: format!("{refusal:#}") },
    };
    // registered first, notified then: an early prepare call must not be lost
    let health = HealthApi::agreed(shared.config.version, &info.supported_versions);
    let registration = valid.map(|(endpoint, api)| {
        let (shared, stop) = (Arc::clone(shared), stop.clone());
        Registration::new(shared, info.name.clone(), endpoint, (api, health), stop)
    });
    let told: Result<RegistrationStatusResponse, CallError> =
        connection.call("/pluginregistration.Registration/NotifyRegistrationStatus", &status, NOTIFY).await;
    let registration = registration?;
    told.context("RegisterPlugin error -- failed to notify")?;
    Ok(registration)
}

fn validate(shared: &Shared, socket: &Path, info: &PluginInfo) -> Result<(PathBuf, DraApi)> {
    ensure!(info.r#type == "DRAPlugin", "no handler registered for plugin type: {}", info.r#type);
    let word = |word: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !word.is_empty() && word.bytes().all(inner) && !word.starts_with('-') && !word.ends_with('-')
    };
    ensure!(
        info.name.len() <= 63 && info.name.split('.').all(word),
        "the driver name `{}` is not a DNS subdomain of at most 63 characters",
        info.name
    );
    let endpoint = if info.endpoint.is_empty() { socket } else { Path::new(&info.endpoint) };
    ensure!(endpoint.is_absolute(), "the endpoint `{}` is not an absolute path", endpoint.display());
    let known = shared.config.version.known();
    let agreed = info
        .supported_versions
        .iter()
        .find_map(|version| known.iter().find(|(name, _)| name == version).map(|(_, api)| *api));
    let Some(api) = agreed else {
        bail!("none of the versions supported by the driver ({:?}) is known here", info.supported_versions);
    };
    let plugins = shared.plugins.borrow();
    if plugins.drivers.get(&info.name).is_some_and(|driver| driver.endpoint == endpoint) {
        bail!("endpoint already registered: {}", endpoint.display());
    }
    Ok((endpoint.to_owned(), api))
}

/// A registered driver; deregistered on drop.
struct Registration {
    shared: Arc<Shared>,
    driver: String,
    endpoint: PathBuf,
    health: Option<HealthApi>,
    /// The end of this kubelet's life.
    stop: CancellationToken,
}

impl Registration {
    fn new(
        shared: Arc<Shared>,
        driver: String,
        endpoint: PathBuf,
        (api, health): (DraApi, Option<HealthApi>),
        stop: CancellationToken,
    ) -> Self {
        shared.plugins.send_modify(|plugins| {
            let registrations = plugins.registrations.entry(driver.clone()).or_default();
            *registrations += 1;
            let registered = Registered {
                endpoint: endpoint.clone(),
                api,
                connected: false,
                registrations: *registrations,
            };
            plugins.drivers.insert(driver.clone(), registered);
        });
        Self { shared, driver, endpoint, health, stop }
    }

    fn set_connected(&self, connected: bool) {
        self.shared.plugins.send_modify(|plugins| {
            if let Some(driver) = plugins.drivers.get_mut(&self.driver) {
                driver.connected = connected;
            }
        });
    }

    /// Dials the DRA socket again and again; starts the slices' grace period at each loss.
    async fn keep_connected(&mut self) {
        let dialing = self.shared.config.version.dra_dialing();
        loop {
            if let Ok(connection) = Connection::dial(&self.endpoint, dialing, DIAL).await {
                let connection = Arc::new(connection);
                let shared = &self.shared;
                shared.connections.lock().unwrap().insert(self.driver.clone(), Arc::clone(&connection));
                self.set_connected(true);
                let health = self.health.map(|api| {
                    watch_devices(Arc::clone(shared), self.driver.clone(), Arc::clone(&connection), api)
                });
                tokio::select! {
                    () = connection.closed() => {}
                    () = async {
                        if let Some(health) = health {
                            health.await;
                        }
                        std::future::pending::<()>().await;
                    } => {}
                }
                self.lost();
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn lost(&self) {
        self.shared.connections.lock().unwrap().remove(&self.driver);
        self.shared.health.send_modify(|reports| reports.forget(&self.driver));
        self.set_connected(false);
        if !self.stop.is_cancelled() {
            delete_slices_later(Arc::clone(&self.shared), self.driver.clone(), self.stop.clone());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.lost();
        self.shared.plugins.send_modify(|plugins| {
            plugins.drivers.remove(&self.driver);
        });
    }
}

/// After the grace period, unless the driver is connected again by then, or this kubelet is not.
fn delete_slices_later(shared: Arc<Shared>, driver: String, stop: CancellationToken) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let mut plugins = shared.plugins.subscribe();
        let connected =
            |plugins: &Plugins| plugins.drivers.get(&driver).is_some_and(|driver| driver.connected);
        tokio::select! {
            _ = plugins.wait_for(connected) => {}
            () = stop.cancelled() => {}
            () = tokio::time::sleep(shared.config.slice_grace) => {
                shared.config.api.delete_slices(&shared.config.node, Some(&driver));
            }
        }
    });
}
