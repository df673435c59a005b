//! How the devices are, for the kubelet: both versions of the service over one stream of reports.
//!
//! A report is a lease: the kubelet shows a device as Unknown when it is not reported again in time
//! (`pkg/kubelet/cm/dra/healthinfo.go`). So every report has all devices, and goes out at once, on each
//! change, and twice within a lease. A stream is pulled by its connection: it has no task and no queue, and
//! is gone with it.

use crate::clock::Clock;
use crate::driver::{DeviceHealth, DevicesHealth};
use dracpu_proto::{health_v1, health_v1alpha1};
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Between two reports of the same: half of a lease.
const RESEND: Duration = Duration::from_secs(10);
/// How long a report holds, in seconds.
const LEASE_SECONDS: i64 = 20;
/// What a device without trouble is told to be.
const HEALTHY: &str = "device initialized";

/// Tells any number of kubelets how the devices are.
#[derive(Clone)]
pub(super) struct HealthReports {
    devices: watch::Receiver<DevicesHealth>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
}

impl HealthReports {
    /// Reports what `devices` holds, until `stop`: streams that stay open would keep a server from ending.
    pub(super) fn new(
        devices: watch::Receiver<DevicesHealth>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Self {
        Self { devices, clock, stop }
    }

    /// One subscriber's reports.
    fn reports(&self) -> impl Stream<Item = DevicesHealth> + Send + 'static {
        stream::unfold((self.clone(), true), |(mut reports, first)| async move {
            if !first {
                reports.due().await?;
            }
            let report = reports.devices.borrow_and_update().clone();
            Some((report, (reports, false)))
        })
    }

    /// Waits for the next report; none when there is no more.
    async fn due(&mut self) -> Option<()> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            changed = self.devices.changed() => changed.ok(),
            () = self.clock.sleep(RESEND) => Some(()),
        }
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The service in one version of the API. The versions do not differ.
macro_rules! serve_version {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_resource_health_server::DraResourceHealth for HealthReports {
            type NodeWatchResourcesStream =
                BoxStream<'static, Result<$version::NodeWatchResourcesResponse, Status>>;

            async fn node_watch_resources(
                &self,
                _: Request<$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                tracing::debug!("the kubelet watches how the devices are");
                let report = |health: DevicesHealth| {
                    let last_updated_time = now();
                    let device = |DeviceHealth { pool, device, trouble }: &DeviceHealth| {
                        let health = match trouble {
                            None => $version::HealthStatus::Healthy,
                            Some(_) => $version::HealthStatus::Unhealthy,
                        };
                        $version::DeviceHealth {
                            device: Some($version::DeviceIdentifier {
                                pool_name: pool.clone(),
                                device_name: device.clone(),
                            }),
                            health: health.into(),
                            last_updated_time,
                            health_check_timeout_seconds: LEASE_SECONDS,
                            message: trouble.as_deref().unwrap_or(HEALTHY).to_owned(),
                        }
                    };
                    let devices = health.iter().map(device).collect();
                    Ok($version::NodeWatchResourcesResponse { devices })
                };
                Ok(Response::new(self.reports().map(report).boxed()))
            }
        }
    };
}

serve_version!(health_v1);
serve_version!(health_v1alpha1);
