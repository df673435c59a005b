use super::Version;
use std::sync::{Mutex, PoisonError};

/// A container runtime, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// `containerd`, `cri-o`.
    pub name: String,
    /// As it writes it.
    pub version: String,
    /// Of its NRI; none when nothing tells.
    pub nri: Option<Version>,
}

/// The runtime that was connected last, for who asks. Whether it is connected still is told by the readiness.
#[derive(Debug, Default)]
pub struct Peer(Mutex<Option<Runtime>>);

impl Peer {
    /// A runtime has said who it is.
    pub(super) fn is(&self, runtime: Runtime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
    }

    /// Who it is; none before the first.
    #[must_use]
    pub fn runtime(&self) -> Option<Runtime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
