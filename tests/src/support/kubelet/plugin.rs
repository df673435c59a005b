//! Prepare and unprepare, and the checks that a kubelet makes on the answers.

use super::{CallError, DraApi, Kubelet};
use anyhow::{Context, Result, ensure};
use dracpu_proto::{dra_v1, dra_v1beta1};
use std::collections::BTreeMap;
use std::time::Duration;

const CALL: Duration = Duration::from_secs(45);

/// A claim as the kubelet names it to a driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRef {
    /// The claim object's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A prepared device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The requests that it serves; empty = all of the claim.
    pub request_names: Vec<String>,
    /// As in the allocation.
    pub pool_name: String,
    /// As in the allocation.
    pub device_name: String,
    /// What the runtime is to inject.
    pub cdi_device_ids: Vec<String>,
    /// The share (v1 only).
    pub share_id: Option<String>,
}

/// A driver's answer: by claim UID, what it prepared or why not.
pub type Answers<T> = BTreeMap<String, Result<T, String>>;

impl Kubelet {
    /// Asks a driver to prepare the claims of a pod, in one call.
    ///
    /// # Errors
    /// When the driver is not there, refuses the call as a whole, or answers what a kubelet would not
    /// accept. Errors of single claims are in the answers.
    pub async fn prepare(&self, driver: &str, claims: &[ClaimRef]) -> Result<Answers<Vec<Device>>> {
        let (connection, api) = self.connection(driver)?;
        let answers: Answers<Vec<Device>> = match api {
            DraApi::V1 => {
                let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
                let claims = claims.iter().map(ClaimRef::v1).collect();
                let request = dra_v1::NodePrepareResourcesRequest { claims };
                let answer: Result<dra_v1::NodePrepareResourcesResponse, CallError> =
                    connection.call(path, &request, CALL).await;
                let claims = answer.context("NodePrepareResources failed")?.claims.into_iter();
                claims
                    .map(|(uid, one)| (uid, outcome(one.error, one.devices.into_iter().map(device_v1))))
                    .collect()
            }
            DraApi::V1Beta1 => {
                let path = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";
                let claims = claims.iter().map(ClaimRef::v1beta1).collect();
                let request = dra_v1beta1::NodePrepareResourcesRequest { claims };
                let answer: Result<dra_v1beta1::NodePrepareResourcesResponse, CallError> =
                    connection.call(path, &request, CALL).await;
                let claims = answer.context("NodePrepareResources failed")?.claims.into_iter();
                claims
                    .map(|(uid, one)| (uid, outcome(one.error, one.devices.into_iter().map(device_v1beta1))))
                    .collect()
            }
        };
        check_uids(claims, answers.keys())?;
        for (uid, devices) in &answers {
            for device in devices.iter().flatten() {
                ensure!(
                    !device.pool_name.is_empty() && !device.device_name.is_empty(),
                    "claim {uid}: a device without pool or device name: {device:?}"
                );
                for id in &device.cdi_device_ids {
                    super::super::cdi_reader::QualifiedName::parse(id)
                        .with_context(|| format!("claim {uid}: CDI device id `{id}`"))?;
                }
            }
        }
        Ok(answers)
    }

    /// Asks a driver to unprepare claims, in one call.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub async fn unprepare(&self, driver: &str, claims: &[ClaimRef]) -> Result<Answers<()>> {
        let (connection, api) = self.connection(driver)?;
        let answers: Answers<()> = match api {
            DraApi::V1 => {
                let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
                let claims = claims.iter().map(ClaimRef::v1).collect();
                let request = dra_v1::NodeUnprepareResourcesRequest { claims };
                let answer: Result<dra_v1::NodeUnprepareResourcesResponse, CallError> =
                    connection.call(path, &request, CALL).await;
                let claims = answer.context("NodeUnprepareResources failed")?.claims.into_iter();
                claims
                    .map(|(uid, one)| (uid, outcome(one.error, std::iter::empty::<()>()).map(|_| ())))
                    .collect()
            }
            DraApi::V1Beta1 => {
                let path = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources";
                let claims = claims.iter().map(ClaimRef::v1beta1).collect();
                let request = dra_v1beta1::NodeUnprepareResourcesRequest { claims };
                let answer: Result<dra_v1beta1::NodeUnprepareResourcesResponse, CallError> =
                    connection.call(path, &request, CALL).await;
                let claims = answer.context("NodeUnprepareResources failed")?.claims.into_iter();
                claims
                    .map(|(uid, one)| (uid, outcome(one.error, std::iter::empty::<()>()).map(|_| ())))
                    .collect()
            }
        };
        check_uids(claims, answers.keys())?;
        Ok(answers)
    }
}

/// Each asked claim is answered, and no other.
fn check_uids<'a>(asked: &[ClaimRef], answered: impl Iterator<Item = &'a String> + Clone) -> Result<()> {
    for uid in answered.clone() {
        ensure!(
            asked.iter().any(|claim| claim.uid == *uid),
            "the driver returned an answer for claim {uid}, which was not asked"
        );
    }
    let skipped = asked.iter().filter(|claim| !answered.clone().any(|uid| *uid == claim.uid)).count();
    ensure!(skipped == 0, "the driver skipped {skipped} ResourceClaims");
    Ok(())
}

fn outcome<T>(error: String, devices: impl Iterator<Item = T>) -> Result<Vec<T>, String> {
    if error.is_empty() { Ok(devices.collect()) } else { Err(error) }
}

fn device_v1(device: dra_v1::Device) -> Device {
    Device {
        request_names: device.request_names,
        pool_name: device.pool_name,
        device_name: device.device_name,
        cdi_device_ids: device.cdi_device_ids,
        share_id: device.share_id,
    }
}

fn device_v1beta1(device: dra_v1beta1::Device) -> Device {
    Device {
        request_names: device.request_names,
        pool_name: device.pool_name,
        device_name: device.device_name,
        cdi_device_ids: device.cdi_device_ids,
        share_id: None,
    }
}

impl ClaimRef {
    fn v1(&self) -> dra_v1::Claim {
        let Self { namespace, name, uid } = self.clone();
        dra_v1::Claim { namespace, name, uid }
    }

    fn v1beta1(&self) -> dra_v1beta1::Claim {
        let Self { namespace, name, uid } = self.clone();
        dra_v1beta1::Claim { namespace, name, uid }
    }
}
