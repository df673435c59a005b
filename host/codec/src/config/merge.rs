//! Flags over file, with defaults under both, and the rules that need more than one value.

use super::file::FileConfig;
use super::{Config, ConfigFlags, DeviceMode, GroupBy, MinSharedCpus, ReservedCpus, Selection, values};
use crate::words::quoted;
use dracpu_cpuset::CpuSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest path of a unix socket: `sun_path` has 108 bytes, one of them for the NUL (unix(7)).
const MAX_SOCKET_PATH: usize = 107;
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CPUS: u64 = dracpu_cpuset::MAX_CPU_ID as u64 + 1;

/// What messages call the variable with the node's name.
const NODE_NAME: &str = "the variable NODE_NAME";

/// What the process sees around it.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The variable `NODE_NAME`, which the chart sets through the downward API.
    pub node_name: Option<OsString>,
    /// The name of the host.
    pub host_name: String,
}

impl Surroundings {
    /// Reads the environment and the host's name.
    pub(super) fn read() -> Self {
        Self {
            node_name: std::env::var_os("NODE_NAME"),
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }
}

/// A value with the name under which somebody set it.
struct Given {
    value: String,
    from: &'static str,
}

/// The flag's value, else the key's.
fn given(
    flag: Option<&String>,
    flag_name: &'static str,
    key: Option<String>,
    key_name: &'static str,
) -> Option<Given> {
    match flag {
        Some(value) => Some(Given { value: value.clone(), from: flag_name }),
        None => key.map(|value| Given { value, from: key_name }),
    }
}

/// Merges and checks. Every mistake goes to `problems`; with a mistake in a value of its own there is no
/// configuration to return.
pub(super) fn merge(
    flags: &ConfigFlags,
    file: FileConfig,
    around: &Surroundings,
    problems: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Option<Config> {
    let ignored = without_effect(&file);
    let device_mode =
        given(flags.cpu_device_mode.as_ref(), "--cpu-device-mode", file.cpu_device_mode, "cpuDeviceMode");
    let group_by = given(flags.group_by.as_ref(), "--group-by", file.group_by, "groupBy");
    let mode = mode(device_mode.as_ref(), group_by.as_ref(), problems, warnings);
    if mode == Some(DeviceMode::Individual) {
        warnings.extend(ignored);
    }
    let allocator = allocator(mode, file.allocator, problems, warnings);
    let allowed_strategies = allowed(file.allowed_strategies, problems);

    let reserved = given(flags.reserved_cpus.as_ref(), "--reserved-cpus", file.reserved_cpus, "reservedCPUs");
    let reserved_cpus = reserved_cpus(reserved.as_ref(), file.reserved_cpu_count, problems);
    let min_shared_cpus = match file.min_shared_cpus {
        None => MinSharedCpus::Default,
        Some(cpus) => MinSharedCpus::Explicit(count(cpus, "minSharedCPUs", problems)),
    };
    let remove_cfs_quota = match file.cfs_quota.as_deref() {
        None | Some("keep") => false,
        Some("remove") => true,
        Some(other) => {
            problems.push(format!("`cfsQuota`: `{}` is not known; write keep or remove", quoted(other)));
            false
        }
    };

    let name = given(
        flags.hostname_override.as_ref(),
        "--hostname-override",
        file.hostname_override,
        "hostnameOverride",
    );
    let node_name = node_name(name, around, problems);
    let bind = flags.bind_address.as_deref().unwrap_or(":8080");
    let bind_address = values::bind_address(bind);
    if bind_address.is_none() {
        let bind = quoted(bind);
        problems.push(format!("--bind-address: `{bind}` is not HOST:PORT; write :8080 or 127.0.0.1:8080"));
    }
    let lock_timeout = match flags.lock_timeout.as_deref() {
        None => LOCK_TIMEOUT,
        Some(text) => values::duration(text).unwrap_or_else(|| {
            let text = quoted(text);
            problems.push(format!("--lock-timeout: `{text}` is not a duration; write 30s or 1m30s"));
            LOCK_TIMEOUT
        }),
    };

    let path = |flag: &Option<PathBuf>, default: &str| flag.clone().unwrap_or_else(|| default.into());
    let kubelet_root_dir = path(&flags.kubelet_root_dir, "/var/lib/kubelet");
    let file_path = |key: Option<String>| key.filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = Config {
        mode: mode?,
        selection: Selection {
            allocator,
            strategies: file.strategies,
            strategy_options: file.strategy_options,
            allowed_strategies,
        },
        reserved_cpus,
        min_shared_cpus,
        remove_cfs_quota,
        node_name,
        kubeconfig: over(flags.kubeconfig.as_ref(), file_path(file.kubeconfig)),
        sysfs_overlay: over(flags.sysfs_overlay.as_ref(), file_path(file.sysfs_overlay)),
        publish_node_allocatable_resource_mapping: file
            .publish_node_allocatable_resource_mapping
            .unwrap_or(false),
        claim_status: file.claim_status.unwrap_or(true),
        bind_address: bind_address?,
        expose_pcie_roots: flags.expose_pcie_roots.unwrap_or(false),
        cache_dir: flags
            .cache_dir
            .clone()
            .unwrap_or_else(|| super::plugin_dir(&kubelet_root_dir).join("cache")),
        kubelet_root_dir,
        sysfs_root: path(&flags.sysfs_root, "/sys"),
        nri_socket: path(&flags.nri_socket, "/var/run/nri/nri.sock"),
        cdi_dir: path(&flags.cdi_dir, "/var/run/cdi"),
        lock_timeout,
    };
    check_paths(&config, problems);
    Some(config)
}

/// The flag's path over the key's; an empty one takes the key's away.
fn over(flag: Option<&PathBuf>, key: Option<PathBuf>) -> Option<PathBuf> {
    match flag {
        Some(path) => Some(path.clone()).filter(|path| !path.as_os_str().is_empty()),
        None => key,
    }
}

fn mode(
    device_mode: Option<&Given>,
    group_by: Option<&Given>,
    problems: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Option<DeviceMode> {
    let group = match group_by {
        None => Some(GroupBy::NumaNode),
        Some(given) => {
            let named = GroupBy::ALL.into_iter().find(|by| by.name() == given.value);
            if named.is_none() {
                problems.push(format!(
                    "{}: `{}` is not known; write numanode, socket, llc or machine",
                    given.from,
                    quoted(&given.value)
                ));
            }
            named
        }
    };
    match device_mode {
        None => group.map(DeviceMode::Grouped),
        Some(given) => match given.value.as_str() {
            "grouped" => group.map(DeviceMode::Grouped),
            "individual" => {
                if let Some(ignored) = group_by {
                    warnings
                        .push(format!("{} has no effect while {} is individual", ignored.from, given.from));
                }
                Some(DeviceMode::Individual)
            }
            other => {
                let other = quoted(other);
                problems.push(format!("{}: `{other}` is not known; write grouped or individual", given.from));
                None
            }
        },
    }
}

/// What to say of a file of individual mode: what that does not do, where no strategy is asked.
fn without_effect(file: &FileConfig) -> Vec<String> {
    let keys = [
        ("allocator", file.allocator.is_some()),
        ("strategies", !file.strategies.is_empty()),
        ("strategyOptions", !file.strategy_options.is_empty()),
        ("allowedStrategies", !file.allowed_strategies.is_empty()),
    ];
    let keys: Vec<&str> = keys.into_iter().filter(|(_, set)| *set).map(|(key, _)| key).collect();
    let verb = if keys.len() == 1 { "has" } else { "have" };
    let strategy = (!keys.is_empty()).then(|| {
        format!(
            "{} {verb} no effect while cpuDeviceMode is individual: no strategy is asked",
            keys.join(", ")
        )
    });
    let floor = file.min_shared_cpus.is_some().then(|| {
        "minSharedCPUs is not taken off what is published while cpuDeviceMode is individual: a claim that would \
         leave fewer CPUs is refused when it is prepared"
            .to_owned()
    });
    strategy.into_iter().chain(floor).collect()
}

fn allocator(
    mode: Option<DeviceMode>,
    allocator: Option<String>,
    problems: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> String {
    let machine = mode == Some(DeviceMode::Grouped(GroupBy::Machine));
    match allocator {
        None if machine => {
            warnings.push(format!(
                "groupBy is machine and no allocator is set: `{}` is used, claims must name their CPUs",
                values::EXTERNAL
            ));
            values::EXTERNAL.to_owned()
        }
        None => values::PACKED.to_owned(),
        Some(name) if name == values::PACKED_ALIAS => {
            if machine {
                problems.push(format!(
                    "allocator: `{name}` does not serve groupBy machine; name another strategy or group by numanode or socket"
                ));
            }
            values::PACKED.to_owned()
        }
        Some(name) => {
            if !crate::strategy::description::is_dns_label(&name) {
                problems.push(format!(
                    "allocator: `{}` is not the name of a strategy (`dracpu strategy list` shows them)",
                    quoted(&name)
                ));
            }
            name
        }
    }
}

/// What claims may name, as strategies call themselves.
fn allowed(names: Vec<String>, problems: &mut Vec<String>) -> Vec<String> {
    let mut allowed: Vec<String> = Vec::new();
    for name in names {
        if !crate::strategy::description::is_dns_label(&name) {
            problems.push(format!(
                "`allowedStrategies`: `{}` is not the name of a strategy (`dracpu strategy list` shows them)",
                quoted(&name)
            ));
        }
        let name = values::strategy_name(name);
        if !allowed.contains(&name) {
            allowed.push(name);
        }
    }
    allowed
}

fn reserved_cpus(given: Option<&Given>, number: Option<u64>, problems: &mut Vec<String>) -> ReservedCpus {
    let list = given.map(|given| {
        given.value.parse().unwrap_or_else(|error| {
            let value = quoted(&given.value);
            problems.push(format!("{}: `{value}` is not a CPU list such as 0-1,8: {error}", given.from));
            CpuSet::new()
        })
    });
    match (list, number) {
        (list, None) => ReservedCpus::List(list.unwrap_or_default()),
        // A chart's empty value is no list.
        (list, Some(number)) => {
            if let Some(given) = given.filter(|_| list.is_some_and(|list| !list.is_empty())) {
                problems.push(format!("{} and reservedCPUCount exclude each other; remove one", given.from));
            }
            ReservedCpus::Count(count(number, "reservedCPUCount", problems))
        }
    }
}

/// A number of CPUs that a machine can have.
fn count(number: u64, key: &str, problems: &mut Vec<String>) -> u32 {
    if number > MAX_CPUS {
        problems.push(format!("`{key}`: {number} is more than the {MAX_CPUS} CPUs that Linux can have"));
    }
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The name as the API server knows this node: trimmed and lower-cased, as the kubelet does.
fn node_name(given: Option<Given>, around: &Surroundings, problems: &mut Vec<String>) -> String {
    let host = Given { value: around.host_name.clone(), from: "the name of this host" };
    // What is no text gets its replacement characters, with which it is no name.
    let variable = around.node_name.as_ref().map(|value| value.to_string_lossy().into_owned());
    let variable = variable.map(|value| Given { value, from: NODE_NAME });
    let named =
        [given, variable].into_iter().flatten().find(|given| !given.value.trim().is_empty()).unwrap_or(host);
    let name = named.value.trim().to_lowercase();
    if !values::is_dns_subdomain(&name) {
        let is_text = around.node_name.as_ref().is_none_or(|value| value.to_str().is_some());
        let fault = match named.from {
            NODE_NAME if !is_text => "is not UTF-8, so it cannot be",
            _ => "cannot be",
        };
        let from = named.from;
        problems
            .push(format!("{from}: `{}` {fault} the name of a node; set hostnameOverride", quoted(&name)));
    }
    name
}

fn check_paths(config: &Config, problems: &mut Vec<String>) {
    let root = &config.kubelet_root_dir;
    if !root.is_absolute() {
        problems.push(format!("--kubelet-root-dir must be absolute: `{}`", root.display()));
    }
    let length = |path: &Path| path.as_os_str().as_bytes().len();
    let sockets = [
        (config.registration_socket(), "--kubelet-root-dir"),
        (config.dra_socket(), "--kubelet-root-dir"),
        (config.live_socket(), "--kubelet-root-dir"),
        (config.nri_socket.clone(), "--nri-socket"),
    ];
    let longest = sockets.iter().max_by_key(|(path, _)| length(path));
    if let Some((path, flag)) = longest.filter(|(path, _)| length(path) > MAX_SOCKET_PATH) {
        problems.push(format!(
            "the socket path {} is {} bytes over the limit of {MAX_SOCKET_PATH}; choose a shorter {flag}",
            path.display(),
            length(path) - MAX_SOCKET_PATH,
        ));
    }
}
