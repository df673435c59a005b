use super::claim::{Claim, ClaimRef};
use dracpu_cpuset::CpuSet;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::time::SystemTime;

/// What the driver asks the API server. Never from a container hook.
pub trait Api: Send + Sync {
    /// The claim object of this name.
    ///
    /// # Errors
    /// [`ApiError`], within a bounded time.
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Claim, ApiError>>;

    /// The claims that a pod uses; none once it has ended. [`ApiError::NotFound`] when there is no pod with
    /// this UID.
    ///
    /// # Errors
    /// [`ApiError`], within a bounded time.
    fn claims_of_pod<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        uid: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Claim>, ApiError>>;

    /// The PCIe roots that another driver gives a device of this node in its slices
    /// (`resource.kubernetes.io/pcieRoot`); none for a device that is not there, or has no such attribute.
    ///
    /// # Errors
    /// [`ApiError`], within a bounded time.
    fn pcie_roots<'a>(
        &'a self,
        node: &'a str,
        driver: &'a str,
        pool: &'a str,
        device: &'a str,
    ) -> BoxFuture<'a, Result<BTreeSet<String>, ApiError>>;

    /// Writes what a claim has here into its object's status, in this driver's name. Once more the same is no
    /// change. [`ApiError::NotFound`] when there is no such object.
    ///
    /// # Errors
    /// [`ApiError`], within a bounded time.
    fn write_status<'a>(&'a self, status: &'a ClaimStatus) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// What a claim has on this node, for its object's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimStatus {
    /// Whose status.
    pub claim: ClaimRef,
    /// When its record was written.
    pub prepared_at: SystemTime,
    /// Who decided; none where the scheduler chose the CPUs, or nobody knows.
    pub strategy: Option<String>,
    /// One for each of its results.
    pub devices: Vec<DeviceStatus>,
}

/// What a claim has of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// As in the allocation result.
    pub pool: String,
    /// As in the allocation result.
    pub device: String,
    /// As in the allocation result.
    pub share_id: Option<String>,
    /// Its CPUs of this device.
    pub cpus: CpuSet,
    /// CPUs that nobody may use while the claim lives.
    pub blocked: CpuSet,
}

/// Why the API server did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// There is no such object.
    #[error("the API server knows no such object")]
    NotFound,
    /// No answer; another try may help.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// A refusal, or an object that this driver does not understand.
    #[error("the API server's answer cannot be used: {0}")]
    Other(String),
}
