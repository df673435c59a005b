use super::claim::Claim;
use futures::future::BoxFuture;
use std::collections::BTreeSet;

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
