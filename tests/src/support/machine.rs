//! A machine description (one row a CPU) and the sysfs tree that a kernel would show for it.
//!
//! Shapes come from a generator or from JSON rows as in `{"cpu":0,"coreId":0,"socket":0,"numa":0,"llcId":0}`.
//! Sources: Linux `Documentation/ABI/stable/sysfs-devices-system-cpu` and `…/sysfs-devices-node`.

use super::cpus::{Cpus, list};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// One logical CPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CpuRow {
    /// The kernel's number.
    pub cpu: u32,
    /// `core_id`: unique within a socket only, on most machines.
    pub core_id: i32,
    /// `physical_package_id`.
    pub socket: i32,
    /// NUMA node; -1 = the kernel tells none.
    pub numa: i32,
    /// Level 3 cache id; -1 = there is none.
    pub llc_id: i32,
    /// `p-core` or `e-core` on a hybrid machine.
    #[serde(default)]
    pub kind: Option<String>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// Every CPU, the offline ones too.
    pub cpus: Vec<CpuRow>,
    /// CPUs that are offline.
    #[serde(default)]
    pub offline: Cpus,
    /// CPUs of `isolcpus=`.
    #[serde(default)]
    pub isolated: Cpus,
}

/// A regular machine, numbered as most servers are: all first threads, then all second ones.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Sockets.
    pub sockets: u32,
    /// NUMA nodes a socket.
    pub numa_per_socket: u32,
    /// Level 3 caches a NUMA node; 0 = none.
    pub l3_per_numa: u32,
    /// Cores a level 3 cache.
    pub cores_per_l3: u32,
    /// Threads a core.
    pub threads: u32,
}

impl Machine {
    /// The machine of a regular shape; core ids repeat in each socket, as sysfs shows them on servers.
    #[must_use]
    pub fn of(shape: Shape) -> Self {
        let caches = shape.l3_per_numa.max(1);
        let cores_per_numa = caches * shape.cores_per_l3;
        let cores = shape.sockets * shape.numa_per_socket * cores_per_numa;
        let number = |n: u32| i32::try_from(n).unwrap();
        let rows = (0..shape.threads * cores).map(|cpu| {
            let core = cpu % cores;
            let numa = core / cores_per_numa;
            CpuRow {
                cpu,
                core_id: number(core % (shape.numa_per_socket * cores_per_numa)),
                socket: number(numa / shape.numa_per_socket),
                numa: number(numa),
                llc_id: if shape.l3_per_numa == 0 { -1 } else { number(core / shape.cores_per_l3) },
                kind: None,
            }
        });
        Self { cpus: rows.collect(), ..Self::default() }
    }

    /// One socket, one NUMA node, one cache, `cores` cores with `threads` threads.
    #[must_use]
    pub fn small(cores: u32, threads: u32) -> Self {
        Self::of(Shape { sockets: 1, numa_per_socket: 1, l3_per_numa: 1, cores_per_l3: cores, threads })
    }

    /// The CPUs that are online.
    #[must_use]
    pub fn online(&self) -> Cpus {
        self.cpus.iter().map(|row| row.cpu).filter(|cpu| !self.offline.contains(cpu)).collect()
    }

    /// Online CPUs of a NUMA node.
    #[must_use]
    pub fn numa_cpus(&self, numa: i32) -> Cpus {
        self.online_rows().filter(|row| row.numa == numa).map(|row| row.cpu).collect()
    }

    /// Online CPUs of a socket.
    #[must_use]
    pub fn socket_cpus(&self, socket: i32) -> Cpus {
        self.online_rows().filter(|row| row.socket == socket).map(|row| row.cpu).collect()
    }

    /// Each core's online threads.
    #[must_use]
    pub fn cores(&self) -> Vec<Cpus> {
        let mut cores: BTreeMap<_, Cpus> = BTreeMap::new();
        for row in self.online_rows() {
            cores.entry((row.socket, row.core_id)).or_default().insert(row.cpu);
        }
        cores.into_values().collect()
    }

    fn online_rows(&self) -> impl Iterator<Item = &CpuRow> {
        self.cpus.iter().filter(|row| !self.offline.contains(&row.cpu))
    }

    fn where_same<K: PartialEq>(&self, row: &CpuRow, key: impl Fn(&CpuRow) -> K) -> String {
        list(&self.online_rows().filter(|other| key(other) == key(row)).map(|other| other.cpu).collect())
    }

    /// Writes the tree under `root` (which then is what `/sys` is on a host).
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_sysfs(&self, root: &Path) -> Result<()> {
        for (path, text) in self.files() {
            let path = root.join(path);
            let directory = path.parent().context("a file of the tree has a directory")?;
            fs::create_dir_all(directory)
                .and_then(|()| fs::write(&path, text + "\n"))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// What the kernel does to a tree that was written when exactly these CPUs are offline.
    ///
    /// # Errors
    /// When a file cannot be written or removed.
    pub fn switch_off(&self, offline: &Cpus, root: &Path) -> Result<()> {
        for cpu in offline {
            let directory = root.join(format!("devices/system/cpu/cpu{cpu}"));
            for gone in ["topology", "cache"] {
                match fs::remove_dir_all(directory.join(gone)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Self { offline: offline.clone(), ..self.clone() }.write_sysfs(root)
    }

    fn files(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        let mut put = |path: String, text: String| {
            files.insert(path, text);
        };
        let cpu_dir = "devices/system/cpu";
        let all: Cpus = self.cpus.iter().map(|row| row.cpu).collect();
        let smt = self.cores().iter().any(|threads| threads.len() > 1);
        for (name, text) in [
            ("online", list(&self.online())),
            ("offline", list(&self.offline)),
            ("present", list(&all)),
            ("possible", list(&all)),
            ("isolated", list(&self.isolated)),
            ("smt/active", if smt { "1" } else { "0" }.to_owned()),
            ("smt/control", if smt { "on" } else { "notsupported" }.to_owned()),
        ] {
            put(format!("{cpu_dir}/{name}"), text);
        }
        for row in &self.cpus {
            let dir = format!("{cpu_dir}/cpu{}", row.cpu);
            let online = !self.offline.contains(&row.cpu);
            if row.cpu != 0 {
                put(format!("{dir}/online"), u32::from(online).to_string());
            }
            if !online {
                continue; // an offline CPU keeps no topology and no cache directory
            }
            let siblings = self.where_same(row, |r| (r.socket, r.core_id));
            let package = self.where_same(row, |r| r.socket);
            for (name, text) in [
                ("topology/physical_package_id", row.socket.to_string()),
                ("topology/core_id", row.core_id.to_string()),
                ("topology/die_id", "0".to_owned()),
                ("topology/cluster_id", "65535".to_owned()),
                ("topology/thread_siblings_list", siblings.clone()),
                ("topology/core_cpus_list", siblings.clone()),
                ("topology/core_siblings_list", package.clone()),
                ("topology/package_cpus_list", package),
                ("cache/index0/level", "1".to_owned()),
                ("cache/index0/type", "Data".to_owned()),
                ("cache/index0/size", "32K".to_owned()),
                ("cache/index0/id", row.core_id.to_string()),
                ("cache/index0/shared_cpu_list", siblings),
            ] {
                put(format!("{dir}/{name}"), text);
            }
            if row.llc_id >= 0 {
                for (name, text) in [
                    ("level", "3".to_owned()),
                    ("type", "Unified".to_owned()),
                    ("size", "32768K".to_owned()),
                    ("id", row.llc_id.to_string()),
                    ("shared_cpu_list", self.where_same(row, |r| (r.socket, r.llc_id))),
                ] {
                    put(format!("{dir}/cache/index3/{name}"), text);
                }
            }
            if row.numa >= 0 {
                put(format!("{dir}/node{}/cpulist", row.numa), list(&self.numa_cpus(row.numa)));
            }
        }
        let nodes: BTreeSet<i32> = self.online_rows().map(|row| row.numa).filter(|numa| *numa >= 0).collect();
        let socket_of = |numa: i32| self.online_rows().find(|row| row.numa == numa).map(|row| row.socket);
        for &node in &nodes {
            let dir = format!("devices/system/node/node{node}");
            let distance = |other: i32| match other {
                other if other == node => "10",
                other if socket_of(other) == socket_of(node) => "12",
                _ => "21",
            };
            let distances: Vec<_> = nodes.iter().map(|other| distance(*other)).collect();
            put(format!("{dir}/cpulist"), list(&self.numa_cpus(node)));
            put(format!("{dir}/distance"), distances.join(" "));
            put(format!("{dir}/meminfo"), format!("Node {node} MemTotal:       16777216 kB"));
        }
        if !nodes.is_empty() {
            let nodes: Cpus = nodes.iter().map(|node| u32::try_from(*node).unwrap()).collect();
            put("devices/system/node/online".to_owned(), list(&nodes));
        }
        for (kind, name) in [("p-core", "cpu_core"), ("e-core", "cpu_atom")] {
            let of_kind = self.online_rows().filter(|row| row.kind.as_deref() == Some(kind));
            let of_kind: Cpus = of_kind.map(|row| row.cpu).collect();
            if !of_kind.is_empty() {
                put(format!("devices/{name}/cpus"), list(&of_kind));
            }
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::super::cpus::cpus;
    use super::*;

    #[test]
    fn a_two_socket_server_is_numbered_threads_last_with_repeating_core_ids() {
        let machine = Machine::of(Shape {
            sockets: 2,
            numa_per_socket: 1,
            l3_per_numa: 2,
            cores_per_l3: 4,
            threads: 2,
        });
        assert_eq!(machine.online().len(), 32);
        assert_eq!(machine.numa_cpus(1), cpus("8-15,24-31"));
        let files = machine.files();
        let sys = |name: &str| files[&format!("devices/system/{name}")].clone();
        assert_eq!(sys("cpu/cpu9/topology/core_id"), "1");
        assert_eq!(sys("cpu/cpu9/topology/thread_siblings_list"), "9,25");
        assert_eq!(sys("cpu/cpu25/cache/index3/shared_cpu_list"), "8-11,24-27");
        assert_eq!(sys("node/node0/distance"), "10 21");
    }

    #[test]
    fn an_offline_cpu_keeps_only_its_switch() {
        let machine = Machine { offline: cpus("3"), ..Machine::small(4, 1) };
        let files = machine.files();
        assert_eq!(files["devices/system/cpu/cpu3/online"], "0");
        assert!(!files.contains_key("devices/system/cpu/cpu3/topology/core_id"));
        assert_eq!(files["devices/system/node/node0/cpulist"], "0-2");
    }
}
