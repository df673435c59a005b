//! What can be seen of the node from here. Gathers and judges nothing; what cannot be seen says why.
//!
//! Reading order: this file (all facts together), `kubelet` (its configuration), `cdi` (the directory of specs), `runtime` (where
//! the container runtime looks for specs), `processes` (those of containers), `limits` (CFS quotas).

mod cdi;
#[cfg(test)]
pub(super) mod fixtures;
mod kubelet;
mod limits;
mod processes;
mod runtime;

pub(super) use cdi::{CdiDirectory, OtherFile};
pub(super) use kubelet::Kubelet;
pub(super) use limits::Limit;
pub(super) use processes::{Container, Containers, Process};
pub(super) use runtime::{RuntimeConfig, Said};

use crate::config::Config;
use crate::dra::{self, CpuManager, NodeLock, PodResourcesError};
use crate::live::{Client, LiveError, NodeReport};
use crate::words::chain;
use anyhow::Context as _;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The most that is read of a configuration file of others.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// Something that may not be visible from here, and why not.
pub(super) type Seen<T> = Result<T, String>;

/// Where the host shows itself; in a container it is the container that does.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// `/proc`
    pub(super) proc: PathBuf,
    /// `/sys/fs/cgroup`
    pub(super) cgroup: PathBuf,
    /// `/etc`
    pub(super) etc: PathBuf,
}

/// The facts.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The kubelet's directory.
    pub(super) kubelet_root_dir: PathBuf,
    /// What the daemon says.
    pub(super) daemon: Seen<NodeReport>,
    /// It answers to others than this user.
    pub(super) root_only: bool,
    /// UIDs of the claims that the daemon held before its files were looked at.
    pub(super) held_before: BTreeSet<String>,
    /// Who holds the node's lock.
    pub(super) lock: Seen<Lock>,
    /// What the kubelet's own CPU manager does.
    pub(super) cpu_manager: Seen<CpuManager>,
    /// The kubelet's socket is there, and nobody serves it.
    pub(super) kubelet_refuses: bool,
    /// The kubelet's configuration.
    pub(super) kubelet: Seen<Kubelet>,
    /// The directory of CDI specs.
    pub(super) cdi: CdiDirectory,
    /// Where the runtime looks for specs; none where its configuration cannot be seen.
    pub(super) runtime: Option<RuntimeConfig>,
    /// The processes of the containers that the daemon knows.
    pub(super) containers: Containers,
}

/// The node's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lock {
    /// Nobody holds it.
    Free,
    /// Somebody does, who says who it is.
    Held(String),
}

impl Facts {
    /// Looks at everything. Blocking.
    ///
    /// # Errors
    /// When this process cannot wait for an answer.
    pub(super) fn gather(config: &Config, host: &Host) -> anyhow::Result<Self> {
        let waiting = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let waiting = waiting.context("cannot wait for answers")?;
        let client = Client::new(config.live_socket());
        let before = client.node_afresh();
        let answers = before.is_ok();
        let held_before =
            before.iter().flat_map(|report| &report.claims).map(|claim| claim.uid.clone()).collect();
        let told = before
            .as_ref()
            .ok()
            .and_then(|report| report.config.get("--cdi-dir")?.as_str().map(PathBuf::from));
        let cdi = CdiDirectory::look(told.as_deref().unwrap_or(&config.cdi_dir));
        let daemon = if answers { client.node() } else { before };
        let root_only = matches!(daemon, Err(LiveError::NotAllowed { .. }));
        let daemon = daemon.map_err(|error| chain(&error));
        let runtime = daemon.as_ref().ok().and_then(|report| report.nri.runtime.as_ref());
        let runtime = RuntimeConfig::look(&host.etc, runtime.map(|runtime| runtime.name.as_str()));
        let kubelet = Kubelet::look(&host.proc);
        let (cpu_manager, kubelet_refuses) = waiting.block_on(cpu_manager(config, kubelet.as_ref().ok()));
        Ok(Self {
            root_only,
            kubelet_refuses,
            kubelet_root_dir: config.kubelet_root_dir.clone(),
            lock: lock(&config.lock_file()),
            cpu_manager,
            runtime,
            containers: Containers::look(
                host,
                daemon.as_ref().map(|report| &*report.containers).unwrap_or_default(),
            ),
            held_before,
            kubelet,
            daemon,
            cdi,
        })
    }
}

fn lock(file: &Path) -> Seen<Lock> {
    match NodeLock::holder(file) {
        Ok(None) => Ok(Lock::Free),
        Ok(Some(holder)) => Ok(Lock::Held(holder)),
        Err(error) => Err(format!("{} cannot be looked at: {error}", file.display())),
    }
}

/// By the kubelet's own word, else by what it keeps of its state, else by its configuration; and whether nobody serves its socket.
async fn cpu_manager(config: &Config, kubelet: Option<&Kubelet>) -> (Seen<CpuManager>, bool) {
    let socket = config.pod_resources_socket();
    let error = match dra::cpu_manager(&socket).await {
        Ok(answer) => return (Ok(answer), false),
        Err(error) => error,
    };
    let refuses =
        matches!(&error, PodResourcesError::Unreachable(why) if why.kind() == ErrorKind::ConnectionRefused);
    let policy = kubelet::kept_policy(&config.kubelet_root_dir);
    let policy = policy.or_else(|| kubelet.and_then(|kubelet| kubelet.cpu_manager_policy.clone()));
    let manager = match policy.as_deref() {
        Some("none") => Ok(CpuManager::Idle),
        Some(_) => Ok(CpuManager::Manages(None)),
        None => Err(format!("the kubelet does not answer at {}: {}", socket.display(), chain(&error))),
    };
    (manager, refuses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigFlags;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_that_a_kubelet_left_behind_refuses_and_one_that_is_not_there_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let config = ConfigFlags {
            kubelet_root_dir: Some(dir.path().to_owned()),
            hostname_override: Some("node".to_owned()),
            ..ConfigFlags::default()
        };
        let config = config.load().unwrap();
        let socket = config.pod_resources_socket();
        let waiting = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let look = || waiting.block_on(cpu_manager(&config, None));
        assert!(matches!(look(), (Err(_), false)));
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        assert!(matches!(look(), (Err(_), true)));
    }
}
