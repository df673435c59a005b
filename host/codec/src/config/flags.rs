//! The flags that configure the driver, for the daemon and for every verb that looks at a configuration.

use super::merge::{Surroundings, merge};
use super::{Config, ConfigError, DeviceMode, MAX_CONFIG_BYTES, Selection, file, values};
use clap::builder::{OsStringValueParser, TypedValueParser};
use dracpu_topology::read_regular;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The configuration file and the flags over it. Flags that are not given leave the file's value.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub struct ConfigFlags {
    /// Configuration file (YAML); flags that are given win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Verbosity of the log: 0-3 info, 4-5 debug, 6 and up trace
    #[arg(long = "v", value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub verbosity: i32,

    /// Accepted for compatibility; has no effect
    #[arg(long, value_name = "PATTERN", hide = true)]
    pub vmodule: Option<String>,

    /// Address of /healthz, /readyz and /metrics [default: :8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub bind_address: Option<String>,

    /// Kubeconfig file of the API server [default: the pod's service account]
    #[arg(long, value_name = "FILE", value_parser = possibly_empty())]
    pub kubeconfig: Option<PathBuf>,

    /// The kubelet's directory [default: /var/lib/kubelet]
    #[arg(long, value_name = "DIR")]
    pub kubelet_root_dir: Option<PathBuf>,

    /// Publish the PCIe roots that are local to each device
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = values::go_bool)]
    pub expose_pcie_roots: Option<bool>,

    /// Where sysfs is mounted [default: /sys]
    #[arg(long, value_name = "DIR")]
    pub sysfs_root: Option<PathBuf>,

    /// Socket of the container runtime's NRI [default: /var/run/nri/nri.sock]
    #[arg(long, value_name = "FILE")]
    pub nri_socket: Option<PathBuf>,

    /// Directory of CDI spec files [default: /var/run/cdi]
    #[arg(long, value_name = "DIR")]
    pub cdi_dir: Option<PathBuf>,

    /// Directory of compiled strategies, the daemon's own [default: plugins/dra.cpu/cache in the kubelet's]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,

    /// How long to wait for another instance on this node to end, e.g. 1m30s [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub lock_timeout: Option<String>,

    /// Deprecated: cpuDeviceMode in the file; grouped or individual
    #[arg(long, value_name = "MODE")]
    pub cpu_device_mode: Option<String>,

    /// Deprecated: groupBy in the file; numanode, socket, llc or machine
    #[arg(long, value_name = "GROUP")]
    pub group_by: Option<String>,

    /// Deprecated: reservedCPUs in the file; a CPU list such as 0-1,8
    #[arg(long, value_name = "CPUS")]
    pub reserved_cpus: Option<String>,

    /// Deprecated: hostnameOverride in the file; the name of this node
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,

    /// Deprecated: sysfsOverlay in the file; a YAML file whose content goes over sysfs
    #[arg(long, value_name = "FILE", value_parser = possibly_empty())]
    pub sysfs_overlay: Option<PathBuf>,
}

/// What a file of any kind holds, a pipe's too. Of a device only so much is read.
fn any_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|size| size > MAX_CONFIG_BYTES) {
        return Err(io::Error::other(format!("it is larger than {MAX_CONFIG_BYTES} bytes")));
    }
    Ok(bytes)
}

/// A path, or nothing (as in `--kubeconfig=`) to take away what the file says.
fn possibly_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl ConfigFlags {
    /// The effective configuration: file, flags, environment (`NODE_NAME`) and host name, checked. What is
    /// accepted but better said otherwise is logged as a warning.
    ///
    /// # Errors
    /// [`ConfigError`] with every mistake in one message.
    pub fn load(&self) -> Result<Config, ConfigError> {
        self.load_with(&Map::new())
    }

    /// As [`load`](Self::load), with `changes` in place of the same keys of the file; null takes a key away.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(&self, changes: &Map<String, Value>) -> Result<Config, ConfigError> {
        self.logged(self.keys(any_file, changes)?)
    }

    /// As [`load_with`](Self::load_with), for a daemon that runs in this mode, which is not changed: the configuration,
    /// and which strategies decide as long as the mode stays. Waits for no named pipe.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_again(
        &self,
        running: DeviceMode,
        changes: &Map<String, Value>,
    ) -> Result<(Config, Selection), ConfigError> {
        let mut keys = self.keys(|path| read_regular(path, MAX_CONFIG_BYTES), changes)?;
        let config = self.logged(keys.clone())?;
        if config.mode == running {
            let selection = config.selection.clone();
            return Ok((config, selection));
        }
        // What is active where no key names it is the mode's.
        let device_mode = match running {
            DeviceMode::Individual => "individual",
            DeviceMode::Grouped(by) => {
                keys.insert("groupBy".to_owned(), by.name().into());
                "grouped"
            }
        };
        keys.insert("cpuDeviceMode".to_owned(), device_mode.into());
        let (as_it_runs, _) = self.over(keys, &Surroundings::read())?;
        Ok((config, as_it_runs.selection))
    }

    /// The keys of the file with changes over them.
    fn keys(
        &self,
        read: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
        changes: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError> {
        let text = match &self.config {
            None => String::new(),
            Some(path) => read(path)
                .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
                .map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?,
        };
        let mut keys = file::parse(&text)?;
        for (key, value) in changes {
            if value.is_null() {
                keys.shift_remove(key);
            } else {
                keys.insert(key.clone(), value.clone());
            }
        }
        Ok(keys)
    }

    fn logged(&self, keys: Map<String, Value>) -> Result<Config, ConfigError> {
        let (config, warnings) = self.over(keys, &Surroundings::read())?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    /// The flags over the keys of a file. Pure. Also gives the warnings.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn over(
        &self,
        keys: Map<String, Value>,
        around: &Surroundings,
    ) -> Result<(Config, Vec<String>), ConfigError> {
        let mut problems = Vec::new();
        let mut warnings = self.warnings();
        let file = file::read(keys, &mut problems);
        let config = merge(self, file, around, &mut problems, &mut warnings);
        match config {
            Some(config) if problems.is_empty() => Ok((config, warnings)),
            _ => Err(ConfigError::Refused { problems }),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let deprecated = [
            (self.cpu_device_mode.is_some(), "--cpu-device-mode", "cpuDeviceMode"),
            (self.group_by.is_some(), "--group-by", "groupBy"),
            (self.reserved_cpus.is_some(), "--reserved-cpus", "reservedCPUs"),
            (self.hostname_override.is_some(), "--hostname-override", "hostnameOverride"),
            (self.sysfs_overlay.is_some(), "--sysfs-overlay", "sysfsOverlay"),
        ];
        let mut warnings: Vec<_> = deprecated
            .into_iter()
            .filter(|(given, _, _)| *given)
            .map(|(_, flag, key)| format!("{flag} is deprecated; set `{key}` in the configuration file"))
            .collect();
        if self.vmodule.is_some() {
            warnings.push("--vmodule has no effect; use --v".to_owned());
        }
        warnings
    }
}
