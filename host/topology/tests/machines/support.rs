//! Machines as sysfs files. The files are held in an overlay over an empty directory, so that no test
//! writes thousands of files.

use dracpu_cpuset::CpuSet;
use dracpu_topology::{Bundle, Cpu, Overlay, ReadError, Topology, machine, read};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Sysfs files by absolute path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sysfs(pub(crate) BTreeMap<String, String>);

impl Sysfs {
    /// What the kernel would show of this machine.
    pub(crate) fn of(topology: &Topology) -> Self {
        let mut sysfs = Self::default();
        let online = topology.online();
        sysfs.cpu("online", &online);
        sysfs.cpu("offline", &topology.offline);
        sysfs.cpu("present", online.union(&topology.offline));
        sysfs.cpu("possible", "0-8191");
        sysfs.cpu("isolated", &topology.isolated);
        sysfs.cpu("nohz_full", &topology.nohz_full);
        for cpu in &topology.cpus {
            let id = cpu.id;
            sysfs.cpu(&format!("cpu{id}/online"), 1);
            let core = &topology.cores[cpu.core];
            let topology_files = [
                ("physical_package_id", topology.sockets[cpu.socket].id.to_string()),
                ("core_id", cpu.core_id.map_or("-1".to_owned(), |id| id.to_string())),
                ("die_id", cpu.die.to_string()),
                ("cluster_id", cpu.cluster.map_or("65535".to_owned(), |id| id.to_string())),
                ("thread_siblings_list", core.to_string()),
            ];
            for (name, text) in topology_files {
                sysfs.cpu(&format!("cpu{id}/topology/{name}"), text);
            }
            if let Some(cache) = cpu.llc.map(|at| &topology.caches[at]) {
                sysfs.cache(
                    id,
                    0,
                    &[("level", "1"), ("type", "Instruction"), ("shared_cpu_list", &id.to_string())],
                );
                sysfs.cache(
                    id,
                    1,
                    &[
                        ("level", &cache.level.to_string()),
                        ("type", "Unified"),
                        ("id", &cache.id.map_or(String::new(), |id| id.to_string())),
                        ("size", &format!("{}K", cache.size_bytes / 1024)),
                        ("shared_cpu_list", &cache.cpus.to_string()),
                    ],
                );
            }
            sysfs.cpu(&format!("cpu{id}/cpu_capacity"), topology.kinds[cpu.kind].capacity);
        }
        // E-cores of a second kind are the low-power ones.
        let second = topology.kinds.iter().filter(|kind| kind.name == "e-core").nth(1);
        for (name, low_power, monitor) in
            [("p-core", false, "cpu_core"), ("e-core", false, "cpu_atom"), ("e-core", true, "cpu_lowpower")]
        {
            let of_kind = |cpu: &&Cpu| {
                let kind = &topology.kinds[cpu.kind];
                kind.name == name && (Some(kind) == second) == low_power
            };
            let cpus: CpuSet = topology.cpus.iter().filter(of_kind).map(|cpu| cpu.id).collect();
            if !cpus.is_empty() {
                sysfs.set(&format!("devices/{monitor}/cpus"), cpus);
            }
        }
        for node in &topology.numa_nodes {
            let dir = format!("devices/system/node/node{}", node.id);
            sysfs.set(&format!("{dir}/cpulist"), &node.cpus);
            let memory = node.memory_bytes / 1024;
            sysfs.set(&format!("{dir}/meminfo"), format!("Node {} MemTotal: {memory} kB", node.id));
            let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
            sysfs.set(&format!("{dir}/distance"), distances.join(" "));
        }
        for root in &topology.pcie_roots {
            let bus = root.name.trim_start_matches("pci");
            sysfs.set(&format!("devices/{}/pci_bus/{bus}/cpulistaffinity", root.name), &root.cpus);
        }
        sysfs
    }

    /// Sets a file below `/sys`.
    pub(crate) fn set(&mut self, path: &str, text: impl ToString) {
        self.0.insert(format!("/sys/{path}"), format!("{}\n", text.to_string()));
    }

    /// Sets a file below `/sys/devices/system/cpu`.
    pub(crate) fn cpu(&mut self, path: &str, text: impl ToString) {
        self.set(&format!("devices/system/cpu/{path}"), text);
    }

    /// Sets the files of a cache of a CPU.
    pub(crate) fn cache(&mut self, cpu: u32, index: u32, files: &[(&str, &str)]) {
        for (name, text) in files {
            self.cpu(&format!("cpu{cpu}/cache/index{index}/{name}"), text);
        }
    }

    /// Takes away every file whose path contains the text.
    pub(crate) fn remove(&mut self, part: &str) {
        self.0.retain(|path, _| !path.contains(part));
    }

    /// Reads the machine.
    pub(crate) fn read(&self) -> Result<Topology, ReadError> {
        let overlay = Overlay::from_files(self.0.clone()).expect("paths below /sys");
        read(Path::new("/nonexistent-sysfs"), &overlay)
    }

    /// Reads the machine, takes its files elsewhere, and reads it there.
    pub(crate) fn bundled(&self) -> Topology {
        let overlay = Overlay::from_files(self.0.clone()).expect("paths below /sys");
        let bundle = Bundle::read(Path::new("/nonexistent-sysfs"), &overlay).expect("a readable machine");
        let mut file = tempfile::NamedTempFile::new().expect("a file can be made");
        file.write_all(&bundle.pack(&[("gatherinfo.yaml", "---")]).expect("it can be packed"))
            .expect("written");
        machine::load(&file.path().display().to_string()).expect("a machine").topology
    }

    /// Writes the files below a directory that stands for `/sys`.
    pub(crate) fn write(&self, root: &Path) {
        for (path, text) in &self.0 {
            let path = root.join(path.trim_start_matches("/sys/"));
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory can be made");
            std::fs::write(path, text).expect("a file can be written");
        }
    }
}

/// The codes of the machine's warnings.
pub(crate) fn codes(topology: &Topology) -> Vec<&'static str> {
    topology.warnings.iter().map(|warning| warning.code).collect()
}

/// The sets of CPUs in the kernel's list format.
pub(crate) fn lists<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> Vec<String> {
    sets.into_iter().map(CpuSet::to_string).collect()
}
