//! The way to the daemon of this node.

use super::{Failure, process};
use crate::config::ConfigFlags;
use crate::live::{Client, LiveError};
use std::path::{Path, PathBuf};

/// Where the daemon is
#[derive(Debug, clap::Args)]
pub(super) struct Daemon {
    /// The kubelet's directory, as the daemon knows it [default: that of the daemon that can be seen to run here, else
    /// /var/lib/kubelet]
    #[arg(long, value_name = "DIR")]
    kubelet_root_dir: Option<PathBuf>,
}

impl Daemon {
    /// A client for it; asks nobody yet.
    ///
    /// # Errors
    /// Bad usage when the directory is none.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        client(self.kubelet_root_dir.clone())
    }
}

/// A client for the daemon under this directory of the kubelet's, or the one that can be seen to run.
///
/// # Errors
/// Bad usage when the directory is none.
pub(super) fn client(kubelet_root_dir: Option<PathBuf>) -> Result<Client, Failure> {
    let seen = || process::running(Path::new("/proc")).find_map(|driver| driver.flags.kubelet_root_dir);
    let kubelet_root_dir = kubelet_root_dir.or_else(seen);
    let config = ConfigFlags { kubelet_root_dir, ..ConfigFlags::default() }.load()?;
    Ok(Client::new(config.live_socket()))
}

impl From<LiveError> for Failure {
    fn from(error: LiveError) -> Self {
        Self::Failed(error.into())
    }
}
