//! How the kubelet learns how devices are: a stream of reports from each driver. A report is a lease.
//!
//! Source: `pkg/kubelet/cm/dra` of Kubernetes 1.36 and 1.37 (`healthinfo.go`, `plugin/dra_plugin.go`).

use super::super::clock::Clock;
use super::super::wait;
use super::grpc::{CallError, Connection, Messages};
use super::{Kubelet, KubeletVersion, Shared};
use anyhow::Result;
use dracpu_proto::{health_v1, health_v1alpha1};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const REOPEN: Duration = Duration::from_secs(5);
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const UNIMPLEMENTED: i32 = 12;
const LONGEST_MESSAGE: usize = 1024;

/// How a device is, as pods' status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// The driver says so, and said so lately.
    Healthy,
    /// The same.
    Unhealthy,
    /// It has said nothing, or not lately.
    Unknown,
}

/// A version of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthApi {
    V1,
    V1Alpha1,
}

impl HealthApi {
    /// The version that a kubelet speaks with a driver that offers these services.
    pub(super) fn agreed(version: KubeletVersion, offered: &[String]) -> Option<Self> {
        let offers = |name: &str| offered.iter().any(|offered| offered == name);
        match version {
            KubeletVersion::Current if offers("v1.DRAResourceHealth") => Some(Self::V1),
            KubeletVersion::Current if offers("v1alpha1.DRAResourceHealth") => Some(Self::V1Alpha1),
            KubeletVersion::Current | KubeletVersion::V133 => None,
            KubeletVersion::V136 => Some(Self::V1Alpha1), // asks whoever registers
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    health: Health,
    message: String,
    until: Duration,
}

/// What drivers have reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reports {
    /// By driver: how many reports there were, over all streams.
    pub count: BTreeMap<String, u32>,
    /// By driver: how many streams were opened, or refused.
    pub streams: BTreeMap<String, u32>,
    /// By driver, pool and device.
    leases: BTreeMap<String, BTreeMap<(String, String), Lease>>,
}

impl Reports {
    pub(super) fn forget(&mut self, driver: &str) {
        self.leases.remove(driver);
    }

    /// Devices that are not in a report keep their state until their lease ends.
    fn merge(&mut self, driver: &str, report: health_v1::NodeWatchResourcesResponse, now: Duration) {
        *self.count.entry(driver.to_owned()).or_default() += 1;
        let leases = self.leases.entry(driver.to_owned()).or_default();
        for device in report.devices {
            let Some(id) = &device.device else { continue };
            let key = (id.pool_name.clone(), id.device_name.clone());
            let health = match device.health() {
                health_v1::HealthStatus::Healthy => Health::Healthy,
                health_v1::HealthStatus::Unhealthy => Health::Unhealthy,
                health_v1::HealthStatus::Unknown => Health::Unknown,
            };
            let lease = u64::try_from(device.health_check_timeout_seconds).ok().filter(|lease| *lease > 0);
            let lease = lease.map_or(DEFAULT_LEASE, Duration::from_secs);
            let mut message = device.message;
            if message.chars().count() > LONGEST_MESSAGE {
                message = message.chars().take(LONGEST_MESSAGE - 3).chain("...".chars()).collect();
            }
            leases.insert(key, Lease { health, message, until: now + lease });
        }
    }
}

/// Keeps a stream open until the connection ends or the driver does not have the service.
pub(super) async fn watch_devices(
    shared: Arc<Shared>,
    driver: String,
    connection: Arc<Connection>,
    api: HealthApi,
) {
    let clock = &shared.config.clock;
    loop {
        shared.health.send_modify(|reports| *reports.streams.entry(driver.clone()).or_default() += 1);
        let ended = match api {
            HealthApi::V1 => {
                let messages = connection.open(
                    "/v1.DRAResourceHealth/NodeWatchResources",
                    &health_v1::NodeWatchResourcesRequest {},
                );
                follow(&shared.health, clock, &driver, messages.await, |report| report).await
            }
            HealthApi::V1Alpha1 => {
                let messages = connection.open(
                    "/v1alpha1.DRAResourceHealth/NodeWatchResources",
                    &health_v1alpha1::NodeWatchResourcesRequest {},
                );
                follow(&shared.health, clock, &driver, messages.await, newer).await
            }
        };
        shared.health.send_modify(|reports| reports.forget(&driver));
        let unimplemented = matches!(ended, Err(CallError::Status { code: UNIMPLEMENTED, .. }));
        if unimplemented && shared.config.version == KubeletVersion::Current {
            return;
        }
        clock.sleep(REOPEN).await;
    }
}

async fn follow<M: prost::Message + Default>(
    reports: &watch::Sender<Reports>,
    clock: &Clock,
    driver: &str,
    messages: Result<Messages<M>, CallError>,
    read: impl Fn(M) -> health_v1::NodeWatchResourcesResponse,
) -> Result<(), CallError> {
    let mut messages = messages?;
    while let Some(report) = messages.next().await? {
        reports.send_modify(|reports| reports.merge(driver, read(report), clock.now()));
    }
    Ok(())
}

/// The versions differ in nothing but their names.
fn newer(report: health_v1alpha1::NodeWatchResourcesResponse) -> health_v1::NodeWatchResourcesResponse {
    let device = |device: health_v1alpha1::DeviceHealth| health_v1::DeviceHealth {
        device: device
            .device
            .map(|id| health_v1::DeviceIdentifier { pool_name: id.pool_name, device_name: id.device_name }),
        health: device.health,
        last_updated_time: device.last_updated_time,
        health_check_timeout_seconds: device.health_check_timeout_seconds,
        message: device.message,
    };
    let devices = report.devices.into_iter().map(device).collect();
    health_v1::NodeWatchResourcesResponse { devices }
}

impl Kubelet {
    /// What drivers have reported of their devices.
    #[must_use]
    pub fn reports(&self) -> watch::Receiver<Reports> {
        self.shared.health.subscribe()
    }

    /// How a device is at this moment, and the driver's words.
    #[must_use]
    pub fn device_health(&self, driver: &str, pool: &str, device: &str) -> (Health, String) {
        let reports = self.shared.health.borrow();
        let leases = reports.leases.get(driver);
        let lease = leases.and_then(|leases| leases.get(&(pool.to_owned(), device.to_owned())));
        match lease.filter(|lease| self.shared.config.clock.now() < lease.until) {
            Some(lease) => (lease.health, lease.message.clone()),
            None => (Health::Unknown, String::new()),
        }
    }

    /// Waits until a device is so, and returns the driver's words.
    ///
    /// # Errors
    /// When it is not within `limit`.
    pub async fn wait_health(
        &self,
        driver: &str,
        pool: &str,
        device: &str,
        health: Health,
        limit: Duration,
    ) -> Result<String> {
        let look = || Some(self.device_health(driver, pool, device)).filter(|(is, _)| *is == health);
        let what = format!("{health:?} of device {device}");
        Ok(wait::look(&what, limit, &mut self.reports(), look).await?.1)
    }
}
