//! The driver's configuration: file < flags, checked as a whole, with every mistake in one message.
//!
//! Reading order: this file (the types), `file` (the YAML), `flags` (the command line), `merge` (one over
//! the other, checked), `values` (how single values are written), `go_flags` (Go's flag syntax).

mod file;
pub mod flags;
pub mod go_flags;
mod merge;
mod values;

#[cfg(test)]
mod tests;

pub use file::parse;
pub use flags::ConfigFlags;
pub use merge::Surroundings;
pub use values::{BUILT_IN, strategy_name};

use crate::DRIVER_NAME;
use crate::words::listed;
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No configuration is larger: a ConfigMap, which it mostly comes from, is not.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The effective configuration: the file with explicit flags over it, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `cpuDeviceMode` and `groupBy`.
    pub mode: DeviceMode,
    /// Which strategies decide.
    pub selection: Selection,
    /// `reservedCPUs` or `reservedCPUCount`: never given out, never shared.
    pub reserved_cpus: ReservedCpus,
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
    /// `claimStatus`: write the CPUs of a claim into its status.
    pub claim_status: bool,
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
    /// `--cache-dir`.
    pub cache_dir: PathBuf,
    /// `--lock-timeout`.
    pub lock_timeout: Duration,
}

/// Which strategies decide. All that a running daemon takes over from a changed configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// `allocator`: the name of the active strategy (`cpumanager` is read as `packed`).
    pub allocator: String,
    /// `strategies`: components beside the built-in ones, and settings of those.
    pub strategies: Vec<StrategyConfig>,
    /// `strategyOptions`: options of the active strategy, over its entry's.
    pub strategy_options: Map<String, Value>,
    /// `allowedStrategies`: what claims and their classes may name beside the active one.
    pub allowed_strategies: Vec<String>,
}

impl Selection {
    /// The strategies that can be asked: the active one first, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let others = self.allowed_strategies.iter().filter(|name| **name != self.allocator);
        [&self.allocator].into_iter().chain(others).map(String::as_str)
    }

    /// The node's options of a strategy: `strategyOptions` are the active one's.
    #[must_use]
    pub fn options_of(&self, name: &str) -> Map<String, Value> {
        if name == self.allocator { self.strategy_options.clone() } else { Map::new() }
    }
}

impl Config {
    /// The socket on which the kubelet asks who this driver is. The `@` makes gRPC servers in Rust accept
    /// what the kubelet derives from the path as `:authority`: everything before it counts as user info,
    /// in which a percent sign is legal.
    #[must_use]
    pub fn registration_socket(&self) -> PathBuf {
        self.registry_dir().join(format!("{DRIVER_NAME}@reg.sock"))
    }

    /// The directory in which the kubelet looks for registration sockets. The kubelet creates it.
    #[must_use]
    pub fn registry_dir(&self) -> PathBuf {
        self.kubelet_root_dir.join("plugins_registry")
    }

    /// The driver's own directory under the kubelet's.
    #[must_use]
    pub fn plugin_dir(&self) -> PathBuf {
        plugin_dir(&self.kubelet_root_dir)
    }

    /// The socket on which the kubelet asks for claims to be prepared and unprepared.
    #[must_use]
    pub fn dra_socket(&self) -> PathBuf {
        self.plugin_dir().join("dra@dra.sock")
    }

    /// The socket on which the node's own command line asks what the driver knows.
    #[must_use]
    pub fn live_socket(&self) -> PathBuf {
        self.plugin_dir().join("dracpu.sock")
    }

    /// The socket on which the kubelet tells what it manages itself. The kubelet makes it.
    #[must_use]
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.kubelet_root_dir.join("pod-resources/kubelet.sock")
    }

    /// The file whose lock makes a driver the only one on its node.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.plugin_dir().join("dracpu.lock")
    }

    /// Chooses the CPUs of `reservedCPUCount` once, so that they stay the same whatever goes offline later, and adds
    /// those that the machine's own description reserves.
    pub fn settle_reserved(&mut self, topology: &Topology, described: &CpuSet) {
        self.reserved_cpus = ReservedCpus::List(self.reserved_cpus.on(topology).union(described));
    }

    /// The effective values by file key (by flag where there is no key), for the log.
    #[must_use]
    pub fn describe(&self) -> Value {
        let (mode, group_by) = match self.mode {
            DeviceMode::Individual => ("individual", None),
            DeviceMode::Grouped(group_by) => ("grouped", Some(group_by.name())),
        };
        let Selection { allocator, strategies, strategy_options, allowed_strategies } = &self.selection;
        let strategies: Vec<_> = strategies.iter().map(StrategyConfig::describe).collect();
        json!({
            "cpuDeviceMode": mode,
            "groupBy": group_by,
            "allocator": allocator,
            "strategies": strategies,
            "strategyOptions": strategy_options,
            "allowedStrategies": allowed_strategies,
            "reservedCPUs": match &self.reserved_cpus {
                ReservedCpus::List(cpus) => json!(cpus.to_string()),
                ReservedCpus::Count(_) => Value::Null,
            },
            "reservedCPUCount": match self.reserved_cpus {
                ReservedCpus::List(_) => Value::Null,
                ReservedCpus::Count(count) => json!(count),
            },
            "minSharedCPUs": match self.min_shared_cpus {
                MinSharedCpus::Default => json!("default"),
                MinSharedCpus::Explicit(cpus) => json!(cpus),
            },
            "cfsQuota": if self.remove_cfs_quota { "remove" } else { "keep" },
            "nodeName": self.node_name,
            "kubeconfig": self.kubeconfig,
            "sysfsOverlay": self.sysfs_overlay,
            "publishNodeAllocatableResourceMapping": self.publish_node_allocatable_resource_mapping,
            "claimStatus": self.claim_status,
            "--bind-address": self.bind_address.to_string(),
            "--expose-pcie-roots": self.expose_pcie_roots,
            "--kubelet-root-dir": self.kubelet_root_dir,
            "--sysfs-root": self.sysfs_root,
            "--nri-socket": self.nri_socket,
            "--cdi-dir": self.cdi_dir,
            "--cache-dir": self.cache_dir,
            "--lock-timeout": format!("{:?}", self.lock_timeout),
        })
    }
}

fn plugin_dir(kubelet_root_dir: &Path) -> PathBuf {
    kubelet_root_dir.join("plugins").join(DRIVER_NAME)
}

impl StrategyConfig {
    fn describe(&self) -> Value {
        let LimitsConfig { fuel, deadline, memory_bytes, transfer_bytes, component_bytes } = self.limits;
        let limits = [
            ("fuel", fuel),
            ("deadlineMillis", deadline.and_then(|deadline| u64::try_from(deadline.as_millis()).ok())),
            ("memoryBytes", memory_bytes),
            ("transferBytes", transfer_bytes),
            ("componentBytes", component_bytes),
        ];
        let limits: Map<_, _> =
            limits.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect();
        json!({"name": self.name, "path": self.path, "digest": self.digest, "limits": limits, "options": self.options})
    }
}

/// Why there is no configuration. Both are for the operator to mend: exit code 64.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable {
        /// The file that `--config` names.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The configuration says something that cannot be honoured.
    #[error("configuration refused: {}", listed(problems))]
    Refused {
        /// Every mistake that was found, each a clause with the key and the value.
        problems: Vec<String>,
    },
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
    /// A last-level cache.
    Llc,
    /// The whole machine.
    Machine,
}

impl GroupBy {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::NumaNode, Self::Socket, Self::Llc, Self::Machine];

    /// As in the configuration: `numanode`, `socket`, `llc`, `machine`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NumaNode => "numanode",
            Self::Socket => "socket",
            Self::Llc => "llc",
            Self::Machine => "machine",
        }
    }
}

/// Which CPUs are kept for the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservedCpus {
    /// These.
    List(CpuSet),
    /// So many: whole cores, lowest first.
    Count(u32),
}

impl ReservedCpus {
    /// The CPUs on this machine. A count takes whole cores in the order of their lowest CPUs, and of the last
    /// core the lowest threads that are still missing; never CPUs that the kernel isolates. All there are when
    /// the machine has fewer.
    #[must_use]
    pub fn on(&self, topology: &Topology) -> CpuSet {
        match self {
            Self::List(cpus) => cpus.clone(),
            Self::Count(count) => {
                let usable = topology.cores.iter().map(|core| core.difference(&topology.isolated));
                let mut cores: Vec<CpuSet> = usable.filter(|core| !core.is_empty()).collect();
                cores.sort_by_key(CpuSet::first);
                cores.iter().flatten().take(usize::try_from(*count).unwrap_or(usize::MAX)).collect()
            }
        }
    }
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
    /// The component file; none = the built-in component of this name.
    pub path: Option<PathBuf>,
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
