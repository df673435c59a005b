//! The way to the daemon of this node.

use super::{Failure, process};
use crate::config::{Config, ConfigFlags};
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

    /// Where it has its files, as far as can be told without asking it.
    ///
    /// # Errors
    /// Bad usage when the directory is none.
    pub(super) fn config(&self) -> Result<Config, Failure> {
        config(self.kubelet_root_dir.clone())
    }
}

/// A client for the daemon under this directory of the kubelet's, or the one that can be seen to run.
///
/// # Errors
/// Bad usage when the directory is none.
pub(super) fn client(kubelet_root_dir: Option<PathBuf>) -> Result<Client, Failure> {
    Ok(Client::new(config(kubelet_root_dir)?.live_socket()))
}

fn config(kubelet_root_dir: Option<PathBuf>) -> Result<Config, Failure> {
    let is_asked = |flags: &ConfigFlags| match &kubelet_root_dir {
        Some(asked) => flags.kubelet_root_dir.as_ref() == Some(asked),
        None => flags.kubelet_root_dir.is_some(),
    };
    let seen =
        process::running(Path::new("/proc")).map(|driver| driver.flags).find(is_asked).unwrap_or_default();
    let kubelet_root_dir = kubelet_root_dir.or(seen.kubelet_root_dir);
    Ok(ConfigFlags { kubelet_root_dir, cdi_dir: seen.cdi_dir, ..ConfigFlags::default() }.load()?)
}

impl From<LiveError> for Failure {
    fn from(error: LiveError) -> Self {
        Self::Failed(error.into())
    }
}
