//! The plugin service: both versions of the kubelet's API over one implementation.
//!
//! Every claim is its own operation with its own result: one that fails spoils no other, and every claim
//! that was asked for is in the answer, since the kubelet fails the pod for one that is not. The kubelet
//! may drop a call at any moment; the operations go on in the driver's own tasks.

use super::convert;
use crate::driver::{ClaimRef, Prepared};
use crate::http::metrics::{ClaimOperation, Metrics};
use dracpu_cpuset::CpuSet;
use dracpu_proto::{dra_v1, dra_v1beta1};
use futures::future::{BoxFuture, join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// What the driver does with a claim.
pub trait Claims: Send + Sync + 'static {
    /// Prepares a claim; again with the same answer if it is prepared. Goes on when the future is dropped.
    fn prepare(self: Arc<Self>, claim: ClaimRef) -> BoxFuture<'static, Result<Prepared, Refusal>>;

    /// Unprepares a claim, also one that nobody knows. Goes on when the future is dropped.
    fn unprepare(self: Arc<Self>, claim: ClaimRef) -> BoxFuture<'static, Result<(), Refusal>>;
}

/// Why a claim cannot be prepared or unprepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What the kubelet shows in the pod's events.
    pub message: String,
    /// The strategy at fault and the kind of its failure, if one was.
    pub strategy_failure: Option<(String, &'static str)>,
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

    async fn prepare(&self, claims: impl Iterator<Item = ClaimRef>) -> BTreeMap<String, Result<Prepared, String>> {
        each(claims, |claim| async move {
            let timer = self.metrics.claim_operation(ClaimOperation::Prepare);
            let result = self.claims.clone().prepare(claim.clone()).await;
            timer.finish(result.is_ok());
            match result {
                Ok(prepared) => {
                    let cpus = cpus(&prepared);
                    self.metrics.claim_cpus(cpus.len());
                    tracing::info!(claim_uid = %claim.uid, namespace = %claim.namespace, claim = %claim.name, %cpus, "claim is prepared");
                    Ok(prepared)
                }
                Err(refusal) => Err(self.refused("prepared", &claim, refusal)),
            }
        })
        .await
    }

    async fn unprepare(&self, claims: impl Iterator<Item = ClaimRef>) -> BTreeMap<String, Result<(), String>> {
        each(claims, |claim| async move {
            let timer = self.metrics.claim_operation(ClaimOperation::Unprepare);
            let result = self.claims.clone().unprepare(claim.clone()).await;
            timer.finish(result.is_ok());
            match result {
                Ok(()) => {
                    tracing::info!(claim_uid = %claim.uid, namespace = %claim.namespace, claim = %claim.name, "claim is unprepared");
                    Ok(())
                }
                Err(refusal) => Err(self.refused("unprepared", &claim, refusal)),
            }
        })
        .await
    }

    /// Logs and counts a refusal; gives the text for the kubelet.
    fn refused(&self, what: &str, claim: &ClaimRef, refusal: Refusal) -> String {
        let ClaimRef { uid, namespace, name } = claim;
        let error = refusal.message;
        tracing::warn!(claim_uid = %uid, %namespace, claim = %name, %error, "claim is not {what}");
        if let Some((strategy, kind)) = refusal.strategy_failure {
            self.metrics.strategy_failure(&strategy, kind);
        }
        format!("claim {namespace}/{name} ({uid}): {error}")
    }
}

/// Runs an operation on each claim, side by side; the results are by UID. A claim that is asked for twice is
/// asked for once.
async fn each<T, F: Future<Output = T>>(
    claims: impl Iterator<Item = ClaimRef>,
    operation: impl Fn(ClaimRef) -> F,
) -> BTreeMap<String, T> {
    let claims: BTreeMap<String, ClaimRef> = claims.map(|claim| (claim.uid.clone(), claim)).collect();
    let results = claims.into_iter().map(|(uid, claim)| {
        let result = operation(claim);
        async move { (uid, result.await) }
    });
    join_all(results).await.into_iter().collect()
}

fn cpus(prepared: &Prepared) -> CpuSet {
    let mut all = CpuSet::new();
    for device in &prepared.devices {
        all.extend_from(&device.cpus);
    }
    all
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
                let claims = request.into_inner().claims.into_iter().map(ClaimRef::from);
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
                let claims = request.into_inner().claims.into_iter().map(ClaimRef::from);
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
