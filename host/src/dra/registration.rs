//! How the kubelet learns of this driver: it finds the registration socket, asks who is there, and says
//! how the registration ended. On each change of the kubelet's life it asks anew.
//!
//! Source: kubelet, `pkg/kubelet/pluginmanager` (order GetInfo, then NotifyRegistrationStatus; a refusal
//! is retried with growing pauses, from GetInfo on).

use crate::DRIVER_NAME;
use crate::http::Health;
use crate::readiness::{Part, Readiness};
use dracpu_proto::registration::registration_server::Registration;
use dracpu_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// Names of the services on the DRA socket, in order of preference: the kubelet takes the first of a kind
/// that it knows. 1.34 and newer know v1, 1.32 and newer v1beta1; 1.37 and newer v1 of health, 1.34 and newer
/// v1alpha1.
const SERVICES: [&str; 4] =
    ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// Answers the kubelet's questions and keeps the verdict for readiness.
#[derive(Debug)]
pub struct Registrar {
    endpoint: String,
    readiness: Arc<Readiness>,
    health: Arc<Health>,
    registrations: watch::Sender<u64>,
}

impl Registrar {
    /// `endpoint` is the absolute path of the DRA socket, on the host.
    #[must_use]
    pub fn new(endpoint: String, readiness: Arc<Readiness>, health: Arc<Health>) -> Self {
        Self { endpoint, readiness, health, registrations: watch::Sender::new(0) }
    }

    /// How often the kubelet has accepted this driver: once in each of the kubelet's lives, at least.
    #[must_use]
    pub fn registrations(&self) -> watch::Receiver<u64> {
        self.registrations.subscribe()
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        tracing::debug!("the kubelet asks who is there");
        self.readiness.not_ready(
            Part::Registration,
            "the kubelet has contacted this driver and not yet said whether it accepts it",
        );
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    /// The kubelet wants no error in return, whatever it said: it would only log it.
    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("registered with the kubelet");
            self.readiness.ready(Part::Registration);
            self.health.registered();
            self.registrations.send_modify(|times| *times += 1);
        } else {
            tracing::warn!(reason = %error, "the kubelet refused the registration, it will try again");
            self.readiness
                .not_ready(Part::Registration, format!("the kubelet refused the registration: {error}"));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
