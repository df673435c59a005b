//! `dracpu gatherinfo`: the machine and the running driver's configuration, for a bug report.
//!
//! Names of keys are those of the Go driver's tool; `siblings` is added where a core has more than two
//! threads. -1 stands for "none".

use super::Failure;
use super::process::DriverProcess;
use crate::config::{ConfigFlags, MAX_CONFIG_BYTES};
use anyhow::Context as _;
use dracpu_topology::{Bundle, Overlay, Topology, read_regular};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is said of the running driver's effective configuration: what tools read of the Go driver's.
const EFFECTIVE_KEYS: [&str; 5] =
    ["cpuDeviceMode", "groupBy", "reservedCPUs", "sysfsOverlay", "publishNodeAllocatableResourceMapping"];

/// Write the machine's CPUs and the running driver's configuration to a file, for a bug report
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dracpu gatherinfo --output-dir /tmp\n  dracpu gatherinfo --stdout > node.yaml\n  \
                        dracpu gatherinfo --bundle node.tar.gz\n\n\
                        Each of these files is a machine for other verbs: dracpu topology --machine node.tar.gz"
)]
pub(super) struct Args {
    /// Where the file goes [default: the current directory]
    #[arg(long, value_name = "DIR", conflicts_with = "stdout")]
    output_dir: Option<PathBuf>,

    /// Write to standard output
    #[arg(long)]
    stdout: bool,

    /// Write a .tar.gz instead: the same, and the files of sysfs that describe the machine, as they are read
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stdout", "output_dir"])]
    bundle: Option<PathBuf>,

    /// Read files of sysfs from here instead, as the driver does with the same option
    #[arg(long, value_name = "FILE")]
    sysfs_overlay: Option<PathBuf>,

    /// Where sysfs is mounted
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    sysfs_root: PathBuf,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let overlay = super::machine::overlay(args.sysfs_overlay.as_deref())?;
    gather(&args, &overlay).map_err(Failure::Failed).and_then(|answer| super::print(&answer))
}

/// Gathers, and writes unless it goes to standard output; what is to be printed there.
fn gather(args: &Args, overlay: &Overlay) -> anyhow::Result<String> {
    let bundle = Bundle::read(&args.sysfs_root, overlay)?;
    let document = document(&bundle.topology, running_driver(Path::new("/proc")))?;
    if args.stdout {
        return Ok(document);
    }
    let (path, content) = match &args.bundle {
        Some(path) => (path.clone(), bundle.pack(&[("gatherinfo.yaml", &document)])?),
        None => {
            let time = Timestamp::now().strftime("%Y%m%d-%H%M%S");
            let name = format!("dracpu-gatherinfo-{time}-{}.yaml", std::process::id());
            (args.output_dir.as_deref().unwrap_or(Path::new(".")).join(name), document.into_bytes())
        }
    };
    // A command line can hold what is nobody else's business.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(&content));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("{}\n", path.display()))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    tool_version: ToolVersion,
    layout_version: &'static str,
    cpu_details: CpuDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_config: Option<DriverConfig>,
}

#[derive(Debug, Serialize)]
struct ToolVersion {
    version: &'static str,
    #[serde(rename = "vcsRevision", skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct CpuDetails {
    topology: Counts,
    cpus: Vec<CpuInfo>,
}

#[derive(Debug, Serialize)]
struct Counts {
    #[serde(rename = "numCPUs")]
    cpus: usize,
    #[serde(rename = "numCores")]
    cores: usize,
    #[serde(rename = "numUncoreCache")]
    caches: usize,
    #[serde(rename = "numSockets")]
    sockets: usize,
    #[serde(rename = "numNUMANodes")]
    numa_nodes: usize,
    #[serde(rename = "smtEnabled")]
    smt: bool,
}

#[derive(Debug, Serialize)]
struct CpuInfo {
    #[serde(rename = "cpuID")]
    cpu: u32,
    #[serde(rename = "coreID")]
    core: i64,
    #[serde(rename = "socketID")]
    socket: i64,
    #[serde(rename = "clusterID")]
    cluster: i64,
    #[serde(rename = "numaNodeID")]
    numa_node: i64,
    #[serde(rename = "numaNodeCPUSet")]
    numa_node_cpus: String,
    sibling: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    siblings: Option<String>,
    #[serde(rename = "coreType")]
    core_type: String,
    #[serde(rename = "uncoreCacheID")]
    cache: i64,
}

/// What a running driver was started with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DriverConfig {
    pid: u32,
    command_line: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config_file: Option<PathBuf>,
    /// The file's text, or why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<String>,
    /// File and flags together, by [`EFFECTIVE_KEYS`]; empty when they are no valid configuration here.
    #[serde(flatten)]
    effective: Map<String, Value>,
}

fn document(topology: &Topology, driver_config: Option<DriverConfig>) -> anyhow::Result<String> {
    let document = Document {
        tool_version: ToolVersion {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("DRACPU_COMMIT"),
        },
        layout_version: "v1",
        cpu_details: CpuDetails { topology: counts(topology), cpus: cpus(topology) },
        driver_config,
    };
    Ok(format!("---\n{}", serde_saphyr::to_string(&serde_json::to_value(document)?)?))
}

fn counts(topology: &Topology) -> Counts {
    Counts {
        cpus: topology.cpus.len(),
        cores: topology.cores.len(),
        caches: topology.caches.iter().filter(|cache| cache.level == 3).count(),
        sockets: topology.sockets.len(),
        numa_nodes: topology.numa_nodes.len(),
        smt: topology.threads_per_core() > 1,
    }
}

fn cpus(topology: &Topology) -> Vec<CpuInfo> {
    let id = |id: Option<u32>| id.map_or(-1, i64::from);
    let position = |at: Option<usize>| at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1);
    let row = |cpu: &dracpu_topology::Cpu| {
        let siblings = topology.cores.get(cpu.core);
        let node = cpu.numa_node.and_then(|at| topology.numa_nodes.get(at));
        // Caches without a number are known by their lowest CPU.
        let cache = cpu.llc.and_then(|at| topology.caches.get(at)).filter(|cache| cache.level == 3);
        CpuInfo {
            cpu: cpu.id,
            core: id(cpu.core_id),
            socket: topology.sockets.get(cpu.socket).map_or(-1, |socket| socket.id),
            cluster: position(cpu.cluster),
            numa_node: id(node.map(|node| node.id)),
            numa_node_cpus: node.map(|node| node.cpus.to_string()).unwrap_or_default(),
            sibling: id(siblings.and_then(|core| core.iter().find(|sibling| *sibling != cpu.id))),
            siblings: siblings.filter(|core| core.len() > 2).map(ToString::to_string),
            core_type: topology.kinds.get(cpu.kind).map(|kind| kind.name.clone()).unwrap_or_default(),
            cache: id(cache.and_then(|cache| cache.id.or_else(|| cache.cpus.first()))),
        }
    };
    topology.cpus.iter().map(row).collect()
}

/// The driver that runs on this host, if it can be seen from here.
fn running_driver(proc: &Path) -> Option<DriverConfig> {
    super::process::running(proc).next().map(|process| driver_config(proc, process))
}

/// What a driver's process was started with.
fn driver_config(proc: &Path, DriverProcess { pid, arguments, mut flags }: DriverProcess) -> DriverConfig {
    let process = proc.join(pid.to_string());
    let config_file = flags.config.take();
    // As the process sees it: it may live in a container.
    flags.config = config_file.as_ref().map(|file| match file.strip_prefix("/") {
        Ok(file) => process.join("root").join(file),
        Err(_) => process.join("cwd").join(file),
    });
    let text = flags.config.as_ref().map(|file| read_regular(file, MAX_CONFIG_BYTES));
    // Of flags that are unknown here, or a file that cannot be read, nothing is claimed.
    let known = super::parse(arguments.clone()).is_ok() && !matches!(text, Some(Err(_)));
    let effective = if known { effective(&flags) } else { Map::new() };
    let config = text.map(|text| match text {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("cannot be read: {error}"),
    });
    let command_line = arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    DriverConfig { pid, command_line, config_file, config, effective }
}

/// The values of [`EFFECTIVE_KEYS`] that are set.
fn effective(flags: &ConfigFlags) -> Map<String, Value> {
    let Ok(config) = flags.load() else { return Map::new() };
    let described = config.describe();
    let value = |key: &str| described.get(key).filter(|value| !value.is_null()).cloned();
    EFFECTIVE_KEYS.into_iter().filter_map(|key| Some((key.to_owned(), value(key)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_topology::machine;
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt as _;

    fn two_socket() -> Topology {
        machine::load("two-socket").unwrap().topology
    }

    #[test]
    fn document_is_a_machine_again() {
        let topology = two_socket();
        let text = document(&topology, None).unwrap();
        assert!(text.starts_with("---\ntoolVersion:\n  version: "), "{text}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.yaml");
        std::fs::write(&path, text).unwrap();
        let again = machine::load(path.to_str().unwrap()).unwrap().topology;
        assert_eq!(again.cores, topology.cores);
        let sets =
            |topology: &Topology| topology.caches.iter().map(|cache| cache.cpus.clone()).collect::<Vec<_>>();
        assert_eq!(sets(&again), sets(&topology));
        assert_eq!(again.sockets, topology.sockets);
        assert_eq!(again.numa_nodes.len(), topology.numa_nodes.len());
    }

    #[test]
    fn facts_have_the_names_that_tools_read() {
        let topology = two_socket();
        let value: serde_json::Value = serde_saphyr::from_str(&document(&topology, None).unwrap()).unwrap();
        assert_eq!(value["layoutVersion"], "v1");
        assert!(value.get("driverConfig").is_none());
        let counts = &value["cpuDetails"]["topology"];
        assert_eq!(counts["numCPUs"], topology.cpus.len());
        assert_eq!(counts["numNUMANodes"], topology.numa_nodes.len());
        assert_eq!(counts["smtEnabled"], true);
        let cpu = &value["cpuDetails"]["cpus"][0];
        for key in [
            "cpuID",
            "coreID",
            "socketID",
            "clusterID",
            "numaNodeID",
            "numaNodeCPUSet",
            "sibling",
            "coreType",
            "uncoreCacheID",
        ] {
            assert!(cpu.get(key).is_some(), "{key} in {cpu}");
        }
        assert!(cpu.get("siblings").is_none());
    }

    /// A directory that looks like `/proc` with one process.
    fn proc(comm: &str, cmdline: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("4000000");
        std::fs::create_dir_all(process.join("root/etc")).unwrap();
        std::fs::create_dir(dir.path().join("self")).unwrap();
        std::fs::write(process.join("comm"), format!("{comm}\n")).unwrap();
        std::fs::write(process.join("cmdline"), cmdline).unwrap();
        std::fs::write(process.join("root/etc/config.yaml"), "allocator: packed\n").unwrap();
        dir
    }

    #[test]
    fn running_driver_is_found_by_its_name() {
        let dir = proc("dracpu", "/dracpu\0-v=4\0--config=/etc/config.yaml\0");
        let found = running_driver(dir.path()).unwrap();
        assert_eq!((found.pid, found.command_line.len()), (4_000_000, 3));
        assert_eq!(found.config.as_deref(), Some("allocator: packed\n"));
        assert_eq!(found.effective["cpuDeviceMode"], "grouped");
        assert_eq!(found.effective["groupBy"], "numanode");

        let dir = proc("dracpu", "/dracpu\0run\0--config\0/etc/missing.yaml\0");
        let found = running_driver(dir.path()).unwrap();
        assert!(found.config.unwrap().starts_with("cannot be read: "));
        assert!(found.effective.is_empty());

        // A newer driver's flags may be unknown here.
        let dir = proc("dracpu", "/dracpu\0--from-the-future\0");
        let found = running_driver(dir.path()).unwrap();
        assert!(found.config_file.is_none() && found.effective.is_empty());
    }

    #[test]
    fn other_processes_are_not_the_driver() {
        for (comm, cmdline) in [("bash", "dracpu\0"), ("dracpu", "dracpu\0gatherinfo\0"), ("dracpu", "")] {
            assert!(running_driver(proc(comm, cmdline).path()).is_none(), "{comm} {cmdline:?}");
        }
    }

    fn to_files_in(dir: &Path, sysfs_root: &Path) -> Args {
        Args {
            output_dir: Some(dir.to_owned()),
            stdout: false,
            bundle: None,
            sysfs_overlay: None,
            sysfs_root: sysfs_root.to_owned(),
        }
    }

    #[test]
    fn file_is_private_and_named_after_time_and_process() {
        let dir = tempfile::tempdir().unwrap();
        let sysfs = tempfile::tempdir().unwrap();
        gather(&to_files_in(dir.path(), sysfs.path()), &Overlay::default()).unwrap_err();
        let path = gather(&to_files_in(dir.path(), Path::new("/sys")), &Overlay::default()).unwrap();
        let path = Path::new(path.trim_end());
        let name = path.file_name().unwrap().to_str().unwrap();
        let parts: Vec<&str> = name.strip_suffix(".yaml").unwrap().split('-').collect();
        let [_, _, date, time, pid] = &parts[..] else { panic!("{name}") };
        assert_eq!((date.len(), time.len(), *pid), (8, 6, std::process::id().to_string().as_str()));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn bundle_is_private_and_the_same_machine_with_the_overlay_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.tar.gz");
        let args = Args { bundle: Some(path.clone()), ..to_files_in(dir.path(), Path::new("/sys")) };
        let overlay = Overlay::parse("/sys/devices/system/cpu/isolated: 0\n").unwrap();
        assert_eq!(gather(&args, &overlay).unwrap(), format!("{}\n", path.display()));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let loaded = machine::load(path.to_str().unwrap()).unwrap().topology;
        assert_eq!(loaded, machine::host(Path::new("/sys"), &overlay).unwrap().topology);
        assert_eq!(loaded.isolated.to_string(), "0");
        let error = gather(&args, &overlay).unwrap_err();
        assert!(format!("{error:#}").contains("File exists"), "{error:#}");
    }

    #[test]
    fn stdout_excludes_a_directory() {
        let args = ["dracpu", "gatherinfo", "--stdout", "--output-dir=/tmp"].map(OsString::from);
        assert!(super::super::parse(args).is_err());
        let args = ["dracpu", "gatherinfo", "--stdout", "--bundle=node.tar.gz"].map(OsString::from);
        assert!(super::super::parse(args).is_err());
    }
}
