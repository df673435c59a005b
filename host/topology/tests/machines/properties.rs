//! Whatever a machine is like: what is written is read back, and no input makes the reader panic.

use crate::support::Sysfs;
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Drawing, Mark, Topology, machine, to_json};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::io::Write;

/// A machine as JSON, loaded.
fn load(json: &Value) -> Result<machine::Machine, machine::MachineError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(json.to_string().as_bytes()).unwrap();
    machine::load(&file.path().display().to_string())
}

/// Any machine: ids with holes, repeated, huge or missing, caches of any level and nodes across everything,
/// several kinds, offline CPUs.
fn machines() -> impl Strategy<Value = Topology> {
    let ids = prop_oneof![0..64u32, 0..=8191u32];
    let sockets = prop_oneof![-1..3i64, Just(8442), Just(i64::from(i32::MAX))];
    let cores = prop_oneof![-1..6i64, Just(i64::from(u32::MAX))];
    let numa = prop_oneof![-1..4i64, Just(254)];
    let row = (ids, sockets, -1..2i64, -1..3i64, cores, numa, -1..4i64, 0..4usize);
    let rows = prop::collection::vec(row, 1..40);
    let others = prop::collection::btree_set(0..80u32, 0..4);
    (rows, any::<bool>(), others, prop::collection::vec(1..=4u32, 40)).prop_map(|(rows, hybrid, others, levels)| {
        let mut cpus = std::collections::BTreeMap::new();
        for (cpu, socket, die, cluster, core, numa, llc, kind) in rows {
            // The fastest kind is always there, so that capacities mean the same after every reading.
            let kind = if cpus.is_empty() { 2 } else { kind };
            let (name, capacity) = match (hybrid, kind) {
                (true, 0) => ("e-core", 300),
                (true, 1) => ("e-core", 600),
                (true, _) => ("p-core", 1024),
                (false, 0) => ("standard", 300),
                (false, 1) => ("standard", 600),
                (false, _) => ("standard", 1024),
            };
            cpus.entry(cpu).or_insert_with(|| {
                json!({"cpu": cpu, "socket": socket, "die": die, "cluster": cluster, "coreId": core, "numa": numa,
                    "llcId": llc, "kind": name, "capacity": capacity})
            });
        }
        let offline: CpuSet = others.iter().copied().filter(|cpu| !cpus.contains_key(cpu)).collect();
        let isolated: CpuSet = others.iter().map(|cpu| cpu / 2).collect();
        let nohz_full: CpuSet = others.iter().map(|cpu| cpu / 3).collect();
        let rows: Vec<_> = cpus.into_values().collect();
        let json = json!({"cpus": rows, "offline": offline.to_string(), "isolated": isolated.to_string(),
            "nohzFull": nohz_full.to_string(),
            "numaNodes": [{"id": 9, "memoryBytes": 1 << 20}, {"id": 1, "memoryBytes": 1 << 30}],
            "pcieRoots": [{"name": "pci0000:00", "cpus": isolated.to_string()}, {"name": "pci10000:e1", "cpus": "0-40"}]});
        let mut machine = load(&json).expect("a valid description").topology;
        for (cache, level) in machine.caches.iter_mut().zip(&levels) {
            cache.level = *level;
            cache.size_bytes = u64::from(*level) << 20;
            cache.id = cache.id.filter(|_| *level != 2);
        }
        let nodes = machine.numa_nodes.len();
        for (node, seed) in machine.numa_nodes.iter_mut().zip(&levels) {
            node.distances = levels.iter().take(nodes).map(|other| 10 + seed * other).collect();
        }
        machine
    })
}

fn without_warnings(mut topology: Topology) -> Topology {
    topology.warnings.clear();
    topology
}

/// Every position points somewhere, and every group is a partition.
fn check(topology: &Topology) -> Result<(), TestCaseError> {
    let online = topology.online();
    let is_partition = |sets: Vec<&CpuSet>| {
        let all = sets.iter().fold(CpuSet::new(), |all, set| all.union(set));
        all == online && sets.iter().map(|set| set.len()).sum::<usize>() == online.len()
    };
    prop_assert!(!topology.cpus.is_empty() && !topology.kinds.is_empty());
    prop_assert!(is_partition(topology.cores.iter().collect()));
    prop_assert!(is_partition(topology.dies.iter().collect()));
    prop_assert!(is_partition(topology.sockets.iter().map(|socket| &socket.cpus).collect()));
    for cpu in &topology.cpus {
        prop_assert!(topology.cores[cpu.core].contains(cpu.id));
        prop_assert!(topology.dies[cpu.die].contains(cpu.id));
        prop_assert!(topology.sockets[cpu.socket].cpus.contains(cpu.id));
        prop_assert!(cpu.llc.is_none_or(|at| topology.caches[at].cpus.contains(cpu.id)));
        prop_assert!(cpu.numa_node.is_none_or(|at| topology.numa_nodes[at].cpus.contains(cpu.id)));
        prop_assert!(cpu.cluster.is_none_or(|at| topology.clusters[at].contains(cpu.id)));
        prop_assert!(cpu.kind < topology.kinds.len());
    }
    prop_assert!(topology.offline.is_disjoint(&online));
    for list in [&topology.cores, &topology.dies, &topology.clusters] {
        prop_assert!(list.windows(2).all(|pair| pair[0].first() < pair[1].first()), "not by lowest CPU");
    }
    Ok(())
}

proptest! {
    /// JSON holds all facts.
    #[test]
    fn json_round_trips(machine in machines(), reserved in prop::collection::btree_set(0..64u32, 0..5)) {
        check(&machine)?;
        let reserved: CpuSet = reserved.into_iter().collect();
        let loaded = load(&to_json(&machine, &reserved)).unwrap();
        prop_assert_eq!(&loaded.topology, &machine);
        prop_assert_eq!(loaded.reserved, reserved);
        prop_assert_eq!(loaded.topology.fingerprint(), machine.fingerprint());
    }

    /// Sysfs shows all facts.
    #[test]
    fn sysfs_round_trips(machine in machines()) {
        let sysfs = Sysfs::of(&machine);
        let read = sysfs.read().unwrap();
        prop_assert_eq!(&sysfs.bundled(), &read);
        prop_assert_eq!(without_warnings(read), without_warnings(machine));
    }

    /// Files that hold nonsense, or are not there, give a consistent machine or an error that names a file.
    #[test]
    fn no_sysfs_panics(
        machine in machines(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), nonsense()), 1..6),
    ) {
        let mut sysfs = Sysfs::of(&machine);
        for (at, text) in changes {
            let path = at.get(&sysfs.0.keys().cloned().collect::<Vec<_>>()).clone();
            match text {
                Some(text) => _ = sysfs.0.insert(path, text),
                None if sysfs.0.len() > 1 => _ = sysfs.0.remove(&path),
                None => {}
            }
        }
        match sysfs.read() {
            Ok(machine) => {
                check(&machine)?;
                let json = to_json(&machine, &CpuSet::new());
                prop_assert_eq!(&load(&json).unwrap().topology, &machine);
                prop_assert_eq!(&sysfs.bundled(), &machine);
                prop_assert!(!Drawing::new(&machine).mark(&machine.online(), Mark::Shared).to_string().is_empty());
            }
            Err(error) => prop_assert!(error.to_string().contains("sys"), "{}", error),
        }
    }

    /// Descriptions that are no descriptions are refused.
    #[test]
    fn no_description_panics(machine in machines(), at in any::<prop::sample::Index>(), text in "[-0-9a-z{}\\[\\]\",: ]{0,4}") {
        let mut json = to_json(&machine, &CpuSet::new()).to_string();
        let at = at.index(json.len());
        if json.is_char_boundary(at) {
            json.truncate(at + usize::from(text.len() % 2 == 0) * (json.len() - at));
            json.insert_str(at.min(json.len()), &text);
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(json.as_bytes()).unwrap();
        if let Ok(machine) = machine::load(&file.path().display().to_string()) {
            check(&machine.topology)?;
        }
    }
}

/// What a file might hold; none: there is no file.
fn nonsense() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        "[-0-9a-z,: ]{0,8}".prop_map(Some),
        (0..8192u32, 0..8192u32).prop_map(|(a, b)| Some(format!("{}-{}", a.min(b), a.max(b)))),
        any::<i64>().prop_map(|number| Some(number.to_string())),
        Just(Some("0".to_owned())),
        Just(Some("\u{fffd}\0".to_owned())),
    ]
}
