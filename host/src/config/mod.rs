//! The driver's configuration: file < flags, checked as a whole, with every mistake in one message.
//!
//! Reading order: this file (the types), then `file`, `flags`.

use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The effective configuration: the file with explicit flags over it, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `cpuDeviceMode` and `groupBy`.
    pub mode: DeviceMode,
    /// `allocator`: the name of the active strategy (`cpumanager` is read as `packed`).
    pub allocator: String,
    /// `strategies`: components beside the built-in ones.
    pub strategies: Vec<StrategyConfig>,
    /// `strategyOptions`: options of the active strategy, over its entry's.
    pub strategy_options: Map<String, Value>,
    /// `reservedCPUs`: never given out, never shared.
    pub reserved_cpus: CpuSet,
    /// `minSharedCPUs`: the least that claims must leave to the shared pool.
    pub min_shared_cpus: MinSharedCpus,
    /// `cfsQuota: remove`: take the CFS quota off containers with a claim.
    pub remove_cfs_quota: bool,
    /// `hostnameOverride`, else `NODE_NAME`, else the host's name; trimmed, lower-cased.
    pub node_name: String,
    /// `kubeconfig`; none = in-cluster.
    pub kubeconfig: Option<PathBuf>,
    /// `sysfsOverlay`: a file whose content goes over sysfs.
    pub sysfs_overlay: Option<PathBuf>,
    /// `publishNodeAllocatableResourceMapping`.
    pub publish_node_allocatable_resource_mapping: bool,
    /// `--bind-address`.
    pub bind_address: SocketAddr,
    /// `--expose-pcie-roots`.
    pub expose_pcie_roots: bool,
    /// `--kubelet-root-dir`.
    pub kubelet_root_dir: PathBuf,
    /// `--sysfs-root`.
    pub sysfs_root: PathBuf,
    /// `--nri-socket`.
    pub nri_socket: PathBuf,
    /// `--cdi-dir`.
    pub cdi_dir: PathBuf,
    /// `--lock-timeout`.
    pub lock_timeout: Duration,
}

/// What a published device stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceMode {
    /// A device per logical CPU; the scheduler chooses them.
    Individual,
    /// A device per group of CPUs; the strategy chooses within it.
    Grouped(GroupBy),
}

/// What makes a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBy {
    /// A NUMA node.
    NumaNode,
    /// A socket.
    Socket,
    /// The whole machine.
    Machine,
}

/// The floor of the shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinSharedCpus {
    /// Not configured: 1, not taken off the published capacity.
    Default,
    /// Configured: also taken off the published capacity, largest group first.
    Explicit(u32),
}

/// An entry of `strategies`.
#[derive(Debug, Clone, PartialEq)]
pub struct StrategyConfig {
    /// What `allocator` and claims call it; must be what the component calls itself.
    pub name: String,
    /// The component file.
    pub path: PathBuf,
    /// `sha256:…` that the file must have.
    pub digest: Option<String>,
    /// Limits; those left out are the defaults.
    pub limits: LimitsConfig,
    /// Options, under `strategyOptions` and those of class and claim.
    pub options: Map<String, Value>,
}

/// `limits` of a strategy; what is none has the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitsConfig {
    /// `fuel`: work of one call.
    pub fuel: Option<u64>,
    /// `deadlineMillis`: wall-clock time of one call.
    pub deadline: Option<Duration>,
    /// `memoryBytes`: linear memory, summed over all of an instance.
    pub memory_bytes: Option<u64>,
    /// `transferBytes`: data that one call may hand over.
    pub transfer_bytes: Option<u64>,
    /// `componentBytes`: size of the component file.
    pub component_bytes: Option<u64>,
}
