//! The plugin service: both versions of the kubelet's API over one implementation.
//!
//! Every claim is its own operation with its own result: one that fails spoils no other, and every claim
//! that was asked for is in the answer, since the kubelet fails the pod for one that is not. The kubelet
//! may drop a call at any moment; the operations go on in the driver's own tasks.

use super::convert;
use crate::driver::{ClaimRef, Driver, PrepareError, Prepared, UnprepareError};
use crate::http::metrics::{ClaimOperation, Metrics};
use crate::words::quoted;
use dracpu_proto::{dra_v1, dra_v1beta1};
use futures::future::BoxFuture;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// What the driver does with claims. Each claim has a result of its own, and every claim has one.
pub trait Claims: Send + Sync + 'static {
    /// Prepares claims; again with the same answer what is prepared. Goes on when the future is dropped.
    fn prepare(self: Arc<Self>, claims: Vec<ClaimRef>) -> BoxFuture<'static, Results<Prepared>>;

    /// Unprepares claims, also those that nobody knows. Goes on when the future is dropped.
    fn unprepare(self: Arc<Self>, claims: Vec<ClaimRef>) -> BoxFuture<'static, Results<()>>;
}

/// What became of each claim.
pub type Results<T> = Vec<(ClaimRef, Result<T, Refusal>)>;

/// Why a claim cannot be prepared or unprepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What the kubelet shows in the pod's events.
    pub message: String,
    /// The strategy at fault and the kind of its failure, if one was.
    pub strategy_failure: Option<(String, &'static str)>,
}

impl Claims for Driver {
    fn prepare(self: Arc<Self>, claims: Vec<ClaimRef>) -> BoxFuture<'static, Results<Prepared>> {
        Box::pin(async move {
            let answers = Driver::prepare(&self, claims).await.into_iter();
            answers.map(|(claim, answer)| (claim, answer.map_err(Refusal::from))).collect()
        })
    }

    fn unprepare(self: Arc<Self>, claims: Vec<ClaimRef>) -> BoxFuture<'static, Results<()>> {
        Box::pin(async move {
            let answers = Driver::unprepare(&self, claims).await.into_iter();
            answers.map(|(claim, answer)| (claim, answer.map_err(Refusal::from))).collect()
        })
    }
}

impl From<PrepareError> for Refusal {
    fn from(error: PrepareError) -> Self {
        let strategy_failure = match &error {
            PrepareError::Undecided { undecided, .. } => Some((undecided.strategy.clone(), undecided.kind)),
            _ => None,
        };
        Self { message: format!("{:#}", anyhow::Error::new(error)), strategy_failure }
    }
}

impl From<UnprepareError> for Refusal {
    fn from(error: UnprepareError) -> Self {
        Self { message: format!("{:#}", anyhow::Error::new(error)), strategy_failure: None }
    }
}

/// Serves the kubelet.
#[derive(Clone)]
pub struct Plugin {
    claims: Arc<dyn Claims>,
    metrics: Arc<Metrics>,
}

impl Plugin {
    /// A plugin that asks `claims`.
    #[must_use]
    pub fn new(claims: Arc<dyn Claims>, metrics: Arc<Metrics>) -> Self {
        Self { claims, metrics }
    }

    async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<(String, Result<Prepared, String>)> {
        let answers = self.timed(ClaimOperation::Prepare, claims, Claims::prepare).await;
        for prepared in answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()) {
            let cpus: usize = prepared.devices.iter().map(|device| device.cpus.len()).sum();
            self.metrics.claim_cpus(cpus);
        }
        answers
    }

    async fn unprepare(&self, claims: Vec<ClaimRef>) -> Vec<(String, Result<(), String>)> {
        self.timed(ClaimOperation::Unprepare, claims, Claims::unprepare).await
    }

    /// Runs an operation on the claims of a call and observes it; answers by UID. When the kubelet drops the
    /// call, the timers are dropped with it.
    async fn timed<T>(
        &self,
        operation: ClaimOperation,
        mut claims: Vec<ClaimRef>,
        run: impl FnOnce(Arc<dyn Claims>, Vec<ClaimRef>) -> BoxFuture<'static, Results<T>>,
    ) -> Vec<(String, Result<T, String>)> {
        let mut asked = HashSet::new();
        claims.retain(|claim| asked.insert(claim.uid.clone()));
        let mut timers: HashMap<_, _> =
            asked.into_iter().map(|uid| (uid, self.metrics.claim_operation(operation))).collect();
        let answers = run(self.claims.clone(), claims).await.into_iter();
        let answers = answers.map(|(claim, answer)| {
            if let Some(timer) = timers.remove(&claim.uid) {
                timer.finish(answer.is_ok());
            }
            let answer = answer.map_err(|refusal| self.refused(operation, &claim, refusal));
            (claim.uid, answer)
        });
        answers.collect()
    }

    /// Logs and counts a refusal; gives the text for the kubelet.
    fn refused(&self, operation: ClaimOperation, claim: &ClaimRef, refusal: Refusal) -> String {
        let ClaimRef { uid, namespace, name } = claim;
        let error = refusal.message;
        tracing::warn!(claim_uid = %uid, %namespace, claim = %name, op = operation.name(), "refused: {error}");
        if let Some((strategy, kind)) = refusal.strategy_failure {
            self.metrics.strategy_failure(&strategy, kind);
        }
        match uid.as_str() {
            "" => format!("claim {namespace}/{name}: {error}"),
            uid => format!("claim {namespace}/{name} ({}): {error}", quoted(uid)),
        }
    }
}

/// The service in one version of the API. The versions differ in `Device` alone.
macro_rules! serve_version {
    ($version:ident, |$device:ident, $request:ident| $converted:expr) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Plugin {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter().map(ClaimRef::from).collect();
                let answer = |result: Result<Prepared, String>| match result {
                    Ok(prepared) => {
                        let device = |$device: crate::driver::PreparedDevice| {
                            let $request = convert::base_request(&$device);
                            $converted
                        };
                        let devices = prepared.devices.into_iter().map(device).collect();
                        $version::NodePrepareResourceResponse { devices, error: String::new() }
                    }
                    Err(error) => $version::NodePrepareResourceResponse { devices: Vec::new(), error },
                };
                let claims = self.prepare(claims).await.into_iter();
                let claims = claims.map(|(uid, result)| (uid, answer(result))).collect();
                Ok(Response::new($version::NodePrepareResourcesResponse { claims }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter().map(ClaimRef::from).collect();
                let answer = |result: Result<(), String>| $version::NodeUnprepareResourceResponse {
                    error: result.err().unwrap_or_default(),
                };
                let claims = self.unprepare(claims).await.into_iter();
                let claims = claims.map(|(uid, result)| (uid, answer(result))).collect();
                Ok(Response::new($version::NodeUnprepareResourcesResponse { claims }))
            }
        }

        impl From<$version::Claim> for ClaimRef {
            fn from(claim: $version::Claim) -> Self {
                Self { uid: claim.uid, namespace: claim.namespace, name: claim.name }
            }
        }
    };
}

serve_version!(dra_v1, |device, request| dra_v1::Device {
    request_names: vec![request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi_device_ids,
    share_id: device.share_id,
});

serve_version!(dra_v1beta1, |device, request| dra_v1beta1::Device {
    request_names: vec![request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi_device_ids,
});
