//! The kubelet's side: registration, and the plugin service that prepares and unprepares claims, in both
//! versions of the API; and what the driver reads of claim and pod objects from the API server, and writes to claims.
//!
//! Translates and calls the driver; decides nothing, stores nothing.
//!
//! Reading order: `lock` and `sockets` (one driver on the node, and where it is reached), `registration`,
//! `cpu_manager` (what the kubelet does with CPUs itself), `service` (the calls), `health` (the devices), `convert` (objects
//! and answers), `claim_status`, `api` (the API server).

mod api;
mod claim_status;
mod convert;
mod cpu_manager;
mod health;
mod kubeconfig;
mod lock;
mod registration;
mod service;
mod sockets;

pub use api::{Access, KubeApi, KubeError, access};
pub use cpu_manager::{CpuManager, PodResourcesError, cpu_manager, watch_cpu_manager};
pub use lock::{LockError, NodeLock};
pub use registration::Registrar;
pub use service::{Claims, Plugin, Refusal, Results};
pub use sockets::{SocketError, clear_the_way, prepare_directories};
pub(crate) use sockets::{SocketFile, clear};

use crate::cdi::{Probe, Step};
use crate::clock::Clock;
use crate::config::Config;
use crate::driver::DevicesHealth;
use dracpu_proto::dra_v1::dra_plugin_server::DraPluginServer as V1Server;
use dracpu_proto::dra_v1beta1::dra_plugin_server::DraPluginServer as V1beta1Server;
use dracpu_proto::health_v1::dra_resource_health_server::DraResourceHealthServer as HealthV1Server;
use dracpu_proto::health_v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthV1alpha1Server;
use dracpu_proto::registration::registration_server::RegistrationServer;
use health::HealthReports;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

/// Why the kubelet is not served any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A server failed.
    #[error("the {socket} socket is not served any more")]
    Server {
        /// Which one.
        socket: &'static str,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
}

/// How the devices are, and whose time it is told by.
pub struct Reported {
    /// What is reported.
    pub devices: watch::Receiver<DevicesHealth>,
    /// When it is reported again.
    pub clock: Arc<dyn Clock>,
}

/// Serves the kubelet until `stop`, then finishes the calls that run; reports of how the devices are end at once. The DRA socket listens before the
/// registration socket appears, since the kubelet may call at once; both are gone afterwards.
///
/// # Errors
/// [`ServeError`] when it cannot begin, or ends by itself.
pub async fn serve(
    config: Config,
    plugin: Plugin,
    reported: Reported,
    registrar: Registrar,
    probe: Arc<dyn Probe>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let (dra, dra_file) = SocketFile::bind(config.dra_socket())?;
    probe.reached(Step::DraBound);
    let (registration, registration_file) = SocketFile::bind(config.registration_socket())?;
    probe.reached(Step::RegistrationBound);
    tracing::info!(
        registration = %config.registration_socket().display(),
        dra = %config.dra_socket().display(),
        "serving the kubelet"
    );
    let health = HealthReports::new(reported.devices, reported.clock, stop.clone());
    let dra = async {
        let _removed_at_the_end = dra_file;
        Server::builder()
            .add_service(V1Server::new(plugin.clone()))
            .add_service(V1beta1Server::new(plugin))
            .add_service(HealthV1Server::new(health.clone()))
            .add_service(HealthV1alpha1Server::new(health))
            .serve_with_incoming_shutdown(UnixListenerStream::new(dra), stop.clone().cancelled_owned())
            .await
            .map_err(|source| ServeError::Server { socket: "DRA", source })
    };
    let registration = async {
        let _removed_at_the_end = registration_file;
        Server::builder()
            .add_service(RegistrationServer::new(registrar))
            .serve_with_incoming_shutdown(
                UnixListenerStream::new(registration),
                stop.clone().cancelled_owned(),
            )
            .await
            .map_err(|source| ServeError::Server { socket: "registration", source })
    };
    tokio::try_join!(dra, registration).map(|_both| ())
}

#[cfg(test)]
mod tests;
