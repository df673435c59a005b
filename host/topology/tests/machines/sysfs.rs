//! What is read from sysfs: exact on odd machines, with a named fall-back and a warning where files are
//! missing or contradict each other, and an error that names the file where they hold nonsense.

use crate::support::{Sysfs, codes, lists};
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Bundle, CpuKind, Overlay, ReadError, Topology, machine, read};
use rustix::fs::{CWD, FileType, Mode};

/// One socket, one NUMA node, 8 CPUs, siblings (0,4) (1,5) (2,6) (3,7).
fn eight() -> Sysfs {
    let mut sysfs = Sysfs::default();
    for name in ["online", "present", "possible"] {
        sysfs.cpu(name, "0-7");
    }
    sysfs.cpu("isolated", "");
    sysfs.cpu("offline", "");
    for cpu in 0..8 {
        let siblings = format!("{},{}", cpu % 4, cpu % 4 + 4);
        for (name, text) in [
            ("physical_package_id", "0".to_owned()),
            ("core_id", (cpu % 4).to_string()),
            ("die_id", "0".to_owned()),
            ("cluster_id", "65535".to_owned()),
            ("thread_siblings_list", siblings.clone()),
            ("core_cpus_list", siblings.clone()),
        ] {
            sysfs.cpu(&format!("cpu{cpu}/topology/{name}"), text);
        }
        sysfs.cache(
            cpu,
            0,
            &[("level", "1"), ("type", "Data"), ("size", "32K"), ("shared_cpu_list", &siblings)],
        );
        sysfs.cache(
            cpu,
            3,
            &[
                ("level", "3"),
                ("type", "Unified"),
                ("id", "0"),
                ("size", "16384K"),
                ("shared_cpu_list", "0-7"),
            ],
        );
    }
    sysfs.set("devices/system/node/node0/cpulist", "0-7");
    sysfs.set("devices/system/node/node0/distance", "10");
    sysfs.set("devices/system/node/node0/meminfo", "Node 0 MemTotal:       1048576 kB");
    sysfs
}

fn changed(change: impl FnOnce(&mut Sysfs)) -> Topology {
    let mut sysfs = eight();
    change(&mut sysfs);
    sysfs.read().expect("a readable machine")
}

fn refused(path: &str, text: &str) -> String {
    let mut sysfs = eight();
    sysfs.set(path, text);
    let error = sysfs.read().expect_err(&format!("{path} with {text:?} is accepted"));
    assert!(matches!(error, ReadError::Malformed { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn an_ordinary_machine_is_read_without_a_warning() {
    let machine = changed(|_| {});
    assert_eq!(lists(&machine.cores), ["0,4", "1,5", "2,6", "3,7"]);
    assert_eq!(machine.sockets.len(), 1);
    assert_eq!((machine.sockets[0].id, machine.dies.len(), machine.clusters.len()), (0, 1, 0));
    assert_eq!(machine.threads_per_core(), 2);
    let cpu = machine.cpu(5).unwrap();
    assert_eq!((cpu.core, cpu.core_id, cpu.thread, cpu.cluster), (1, Some(1), 1, None));
    let cache = &machine.caches[0];
    assert_eq!((cache.level, cache.id, cache.size_bytes, cache.cpus.len()), (3, Some(0), 16 << 20, 8));
    let node = &machine.numa_nodes[0];
    assert_eq!((node.id, node.memory_bytes, node.distances.as_slice()), (0, 1 << 30, [10].as_slice()));
    assert_eq!(machine.kinds, [CpuKind::default()]);
    assert_eq!(machine.warnings, []);
}

#[test]
fn a_directory_is_read_like_any_other_source() {
    let dir = tempfile::tempdir().unwrap();
    eight().write(&dir.path().join("sys"));
    let from_files = read(&dir.path().join("sys"), &Overlay::default()).unwrap();
    assert_eq!(from_files, eight().read().unwrap());
    // Both the sysfs root and the directory that holds `sys` are a machine.
    for root in [dir.path().to_owned(), dir.path().join("sys")] {
        assert_eq!(machine::load(&root.display().to_string()).unwrap().topology, from_files);
    }
}

#[test]
fn an_overlay_changes_and_adds_files_of_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut sysfs = eight();
    sysfs.cpu("online", "0-3");
    sysfs.write(dir.path());
    let overlay = Overlay::parse(concat!(
        "/sys/devices/system/cpu/isolated: 2-3\n",
        "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list: 0-1\n",
        "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list: 0-1\n",
        "/sys/devices/system/node/node3/cpulist: ''\n",
        "/sys/devices/system/node/node3/meminfo: 'Node 3 MemTotal: 8 kB'\n",
        "/sys/devices/pci0000:40/pci_bus/0000:40/cpulistaffinity: 0-1\n",
    ))
    .unwrap();
    let machine = read(dir.path(), &overlay).unwrap();
    assert_eq!(lists(&machine.cores), ["0-1", "2", "3"]);
    assert_eq!(machine.isolated, CpuSet::from([2, 3]));
    assert_eq!(machine.numa_nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(machine.numa_nodes[1].memory_bytes, 8192);
    assert_eq!(machine.pcie_roots[0].name, "pci0000:40");
}

#[test]
fn an_offline_cpu_has_no_topology_and_leaves_a_core_of_one_thread() {
    let machine = changed(|sysfs| {
        sysfs.cpu("online", "0-4,6-7");
        sysfs.cpu("offline", "5,8-31");
        sysfs.remove("cpu5/topology");
        sysfs.remove("cpu5/cache");
        sysfs.cpu("cpu5/online", "0");
    });
    assert_eq!(lists(&machine.cores), ["0,4", "1", "2,6", "3,7"]);
    assert_eq!(machine.offline, CpuSet::from([5]));
    assert_eq!(machine.caches[0].cpus.to_string(), "0-4,6-7");
    assert!(machine.cpu(5).is_none());
    assert_eq!(codes(&machine), ["node-of-offline-cpu"]);
}

#[test]
fn cpus_that_are_only_possible_are_not_there() {
    let machine = changed(|sysfs| {
        sysfs.cpu("possible", "0-255");
        sysfs.cpu("offline", "8-255");
    });
    assert_eq!((machine.online().len(), machine.offline.len()), (8, 0));
    assert_eq!(machine.warnings, []);

    let contradicting = changed(|sysfs| sysfs.cpu("present", "0-3,9"));
    assert_eq!((contradicting.online().len(), contradicting.offline.to_string()), (8, "9".to_owned()));
    assert_eq!(codes(&contradicting), ["not-present"]);
}

#[test]
fn cpus_without_a_tick_are_named() {
    let nohz_full = |text: &str| changed(|sysfs| sysfs.cpu("nohz_full", text)).nohz_full.to_string();
    assert_eq!(nohz_full("2-3,6"), "2-3,6");
    assert_eq!(nohz_full("  (null)"), "", "what old kernels print");
    assert_eq!(nohz_full(""), "");
    assert!(changed(|_| {}).nohz_full.is_empty(), "no file");
}

#[test]
fn without_the_online_file_directories_say_which_cpus_are_online() {
    let machine = changed(|sysfs| {
        sysfs.remove("cpu/online");
        sysfs.cpu("cpu7/online", "0");
    });
    assert_eq!(machine.online().to_string(), "0-6");
    assert_eq!(machine.offline.to_string(), "7");
    assert!(codes(&machine).contains(&"no-online-file"));

    let machine = changed(|sysfs| sysfs.0.retain(|path, _| path.ends_with("cpu/present")));
    assert_eq!(machine.online().to_string(), "0-7");
    assert_eq!(machine.cores.len(), 8);
    assert_eq!(codes(&machine), ["no-online-file", "no-topology", "no-cache", "no-numa"]);
}

#[test]
fn a_tree_without_cpus_is_an_error() {
    let mut sysfs = Sysfs::default();
    assert!(matches!(sysfs.read(), Err(ReadError::NoCpus { .. })));
    sysfs.cpu("online", "");
    assert!(matches!(sysfs.read(), Err(ReadError::NoCpus { .. })));
}

#[test]
fn a_missing_or_negative_package_is_one_socket() {
    let machine = changed(|sysfs| sysfs.remove("physical_package_id"));
    assert_eq!(machine.sockets.iter().map(|socket| socket.id).collect::<Vec<_>>(), [-1]);
    assert_eq!(machine.cores.len(), 4);
    assert_eq!(codes(&machine), ["no-package-id"]);

    let machine = changed(|sysfs| {
        for cpu in 0..8 {
            sysfs.cpu(&format!("cpu{cpu}/topology/physical_package_id"), "-1");
        }
    });
    assert_eq!((machine.sockets.len(), machine.sockets[0].id), (1, -1));
    assert_eq!(codes(&machine), ["no-package-id"]);
}

#[test]
fn huge_and_odd_ids_are_kept_or_left_out_but_never_merge_cores() {
    let machine = changed(|sysfs| {
        for cpu in 0..8 {
            sysfs.cpu(&format!("cpu{cpu}/topology/physical_package_id"), "2147483647");
            sysfs.cpu(&format!("cpu{cpu}/topology/core_id"), if cpu % 4 == 0 { "-1" } else { "99999999999" });
        }
    });
    assert_eq!(machine.sockets[0].id, 2_147_483_647);
    assert_eq!(machine.cores.len(), 4);
    assert_eq!(machine.cpu(0).unwrap().core_id, None);
    assert_eq!(codes(&machine), ["core-id-out-of-range"]);
}

#[test]
fn core_ids_may_repeat_on_every_socket() {
    let sockets = changed(|sysfs| {
        sysfs.remove("_list");
        for cpu in 0..8 {
            sysfs.cpu(&format!("cpu{cpu}/topology/physical_package_id"), cpu / 4);
        }
    });
    assert_eq!(sockets.sockets.len(), 2);
    assert_eq!(sockets.cores.len(), 8);
    assert_eq!(sockets.threads_per_core(), 1);
    assert!(codes(&sockets).contains(&"no-siblings"));
}

#[test]
fn without_sibling_lists_maps_or_ids_tell_the_cores() {
    let no_lists = |sysfs: &mut Sysfs| {
        sysfs.remove("thread_siblings_list");
        sysfs.remove("core_cpus_list");
    };
    let by_ids = changed(no_lists);
    assert_eq!(lists(&by_ids.cores), ["0,4", "1,5", "2,6", "3,7"]);
    assert_eq!(codes(&by_ids), ["no-siblings"]);

    let by_new_name = changed(|sysfs| sysfs.remove("thread_siblings_list"));
    assert_eq!((by_new_name.cores.len(), codes(&by_new_name).len()), (4, 0));

    let by_map = changed(|sysfs| {
        no_lists(sysfs);
        for cpu in 0..8 {
            sysfs.cpu(&format!("cpu{cpu}/topology/thread_siblings"), format!("{:08x}", 0x11 << (cpu % 4)));
        }
    });
    assert_eq!((by_map.cores.len(), codes(&by_map).len()), (4, 0));

    let alone = changed(|sysfs| sysfs.remove("/topology/"));
    assert_eq!(alone.cores.len(), 8);
    assert_eq!(codes(&alone), ["no-topology"]);
}

#[test]
fn contradicting_siblings_follow_the_lowest_cpu_with_a_warning() {
    let machine = changed(|sysfs| {
        sysfs.cpu("cpu0/topology/thread_siblings_list", "0-1,4");
        sysfs.cpu("cpu7/topology/thread_siblings_list", "7");
    });
    assert_eq!(lists(&machine.cores), ["0-1,4", "2,6", "3,7", "5"]);
    let warning = &machine.warnings[0];
    assert_eq!(warning.code, "siblings-disagree");
    assert!(warning.message.contains("CPUs 1,4-5,7"), "{}", warning.message);
}

#[test]
fn any_number_of_threads_makes_a_core() {
    let machine = changed(|sysfs| {
        for cpu in 0..8 {
            let core = if cpu < 6 { "0-5" } else { "6-7" };
            sysfs.cpu(&format!("cpu{cpu}/topology/thread_siblings_list"), core);
        }
    });
    assert_eq!(lists(&machine.cores), ["0-5", "6-7"]);
    assert_eq!(machine.threads_per_core(), 6);
    assert_eq!(machine.cpu(5).unwrap().thread, 5);

    for (cores, threads) in
        [("0-7", 8), ("0-3 4-7", 4), ("0,3,6 1,4,7 2,5", 3), ("0-3 4-5 6 7", 4), ("0 1 2 3 4 5 6 7", 1)]
    {
        let sets: Vec<CpuSet> = cores.split(' ').map(|core| core.parse().unwrap()).collect();
        let machine = changed(|sysfs| {
            for (set, cpu) in sets.iter().flat_map(|set| set.iter().map(move |cpu| (set, cpu))) {
                sysfs.cpu(&format!("cpu{cpu}/topology/thread_siblings_list"), set);
            }
        });
        assert_eq!((&machine.cores, machine.threads_per_core()), (&sets, threads), "{cores}");
        assert_eq!(machine.warnings, []);
    }
}

#[test]
fn clusters_and_dies_are_kept_apart_by_socket() {
    let machine = changed(|sysfs| {
        for cpu in 0..8 {
            sysfs.cpu(&format!("cpu{cpu}/topology/physical_package_id"), cpu % 4 / 2);
            sysfs.cpu(&format!("cpu{cpu}/topology/die_id"), cpu % 2);
            sysfs.cpu(&format!("cpu{cpu}/topology/cluster_id"), ["0", "-1", "1", "65535"][cpu % 4]);
        }
    });
    assert_eq!(lists(&machine.dies), ["0,4", "1,5", "2,6", "3,7"]);
    assert_eq!(lists(&machine.clusters), ["0,4", "2,6"]);
    assert_eq!(machine.cpu(1).unwrap().cluster, None);
}

#[test]
fn the_last_level_cache_is_the_highest_that_a_cpu_has() {
    let machine = changed(|sysfs| {
        for cpu in 4..8 {
            sysfs.remove(&format!("cpu{cpu}/cache/index3"));
            sysfs.cache(cpu, 2, &[("level", "2"), ("shared_cpu_list", if cpu < 6 { "4-5" } else { "6-7" })]);
        }
        for cpu in 0..4 {
            sysfs.cache(cpu, 3, &[("shared_cpu_list", "0-3")]);
        }
    });
    let found: Vec<_> = machine.caches.iter().map(|cache| (cache.level, cache.cpus.to_string())).collect();
    assert_eq!(found, [(3, "0-3".to_owned()), (2, "4-5".to_owned()), (2, "6-7".to_owned())]);
    assert_eq!(machine.caches[1].id, None);
    assert_eq!(machine.warnings, []);

    let none = changed(|sysfs| sysfs.remove("/cache/"));
    assert!(none.caches.is_empty() && none.cpus.iter().all(|cpu| cpu.llc.is_none()));
    assert_eq!(codes(&none), ["no-cache"]);
}

#[test]
fn caches_are_told_apart_by_their_cpus_not_by_ids() {
    let machine = changed(|sysfs| {
        for cpu in 0..8 {
            let list = if cpu % 4 < 2 { "0-1,4-5" } else { "2-3,6-7" };
            sysfs.cache(cpu, 3, &[("shared_cpu_list", list)]);
        }
    });
    assert_eq!(lists(machine.caches.iter().map(|cache| &cache.cpus)), ["0-1,4-5", "2-3,6-7"]);
    assert_eq!(machine.caches.iter().map(|cache| cache.id).collect::<Vec<_>>(), [Some(0), Some(0)]);

    let contradicting = changed(|sysfs| sysfs.cache(7, 3, &[("shared_cpu_list", "7")]));
    assert_eq!(contradicting.caches.len(), 1);
    assert_eq!(codes(&contradicting), ["caches-disagree"]);

    let nobodys = changed(|sysfs| {
        for cpu in 0..8 {
            sysfs.cache(cpu, 3, &[("shared_cpu_list", "")]);
        }
    });
    assert_eq!(nobodys.caches.iter().map(|cache| cache.level).collect::<Vec<_>>(), [1, 1, 1, 1]);
}

#[test]
fn numa_nodes_may_be_sparse_or_without_cpus_or_without_memory() {
    let machine = changed(|sysfs| {
        sysfs.set("devices/system/node/node0/cpulist", "0-3");
        sysfs.set("devices/system/node/node0/distance", "10 20 40");
        sysfs.set("devices/system/node/node8/cpulist", "4-7");
        sysfs.set("devices/system/node/node8/distance", "20 10 40");
        sysfs.set("devices/system/node/node8/meminfo", "Node 8 MemTotal: 0 kB");
        sysfs.set("devices/system/node/node250/cpulist", "");
        sysfs.set("devices/system/node/node250/distance", "40 40 10");
        sysfs.set("devices/system/node/node250/meminfo", "Node 250 MemTotal: 4 kB");
    });
    assert_eq!(machine.numa_nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 8, 250]);
    assert_eq!(lists(machine.numa_nodes.iter().map(|node| &node.cpus)), ["0-3", "4-7", ""]);
    assert_eq!(machine.numa_nodes[2].memory_bytes, 4096);
    assert_eq!(machine.cpu(7).unwrap().numa_node, Some(1));
    assert_eq!(machine.warnings, []);
}

#[test]
fn missing_numa_files_are_replaced_by_what_is_there() {
    let none = changed(|sysfs| sysfs.remove("/node/"));
    assert!(none.numa_nodes.is_empty() && none.cpus.iter().all(|cpu| cpu.numa_node.is_none()));
    assert_eq!(codes(&none), ["no-numa"]);

    let by_map = changed(|sysfs| {
        sysfs.remove("cpulist");
        sysfs.set("devices/system/node/node0/cpumap", "000000ff");
    });
    assert_eq!((by_map.numa_nodes[0].cpus.len(), codes(&by_map).len()), (8, 0));

    let by_links = changed(|sysfs| {
        sysfs.remove("cpulist");
        for cpu in 0..7 {
            sysfs.set(&format!("devices/system/node/node0/cpu{cpu}/x"), "");
        }
        sysfs.cpu("cpu7/node0/x", "");
    });
    assert_eq!(by_links.numa_nodes[0].cpus.len(), 8);
    assert_eq!(codes(&by_links), ["no-cpulist"]);

    let twice = changed(|sysfs| {
        sysfs.set("devices/system/node/node1/cpulist", "6-7");
        sysfs.set("devices/system/node/node0/cpulist", "0-6");
    });
    assert_eq!(lists(twice.numa_nodes.iter().map(|node| &node.cpus)), ["0-6", "7"]);
    assert_eq!(codes(&twice), ["cpu-in-several-nodes", "no-memory-size", "no-distances"]);

    let outside = changed(|sysfs| sysfs.set("devices/system/node/node0/cpulist", "0-6"));
    assert_eq!(outside.cpu(7).unwrap().numa_node, None);
    assert_eq!(codes(&outside), ["cpu-without-node"]);
}

#[test]
fn hybrid_kinds_come_from_the_performance_monitors() {
    let machine = changed(|sysfs| {
        sysfs.set("devices/cpu_core/cpus", "0-1,4-5");
        sysfs.set("devices/cpu_atom/cpus", "2-3,6");
        sysfs.set("devices/cpu_lowpower/cpus", "7");
        for cpu in 0..8 {
            let frequency = [4_800_000, 4_800_000, 3_600_000, 3_600_000][cpu % 4];
            sysfs.cpu(&format!("cpu{cpu}/cpufreq/cpuinfo_max_freq"), frequency);
        }
        sysfs.cpu("cpu7/cpufreq/cpuinfo_max_freq", 2_400_000);
    });
    let kinds: Vec<_> = machine.kinds.iter().map(|kind| (kind.name.as_str(), kind.capacity)).collect();
    assert_eq!(kinds, [("p-core", 1024), ("e-core", 768), ("e-core", 512)]);
    let of: Vec<_> = machine.cpus.iter().map(|cpu| cpu.kind).collect();
    assert_eq!(of, [0, 0, 1, 1, 0, 0, 1, 2]);
    assert_eq!(machine.warnings, []);
}

#[test]
fn low_power_cores_among_the_efficiency_cores_are_those_outside_the_l3() {
    let machine = |of_low_power: u32| {
        changed(|sysfs| {
            sysfs.set("devices/cpu_core/cpus", "0-1,4-5");
            sysfs.set("devices/cpu_atom/cpus", "2-3,6-7");
            for cpu in 0..8 {
                let fast = [4_800_000, 4_800_000, 3_600_000, 3_600_000][cpu % 4];
                let frequency = if cpu >= 6 { of_low_power } else { fast };
                sysfs.cpu(&format!("cpu{cpu}/cpufreq/cpuinfo_max_freq"), frequency);
                if cpu >= 6 {
                    sysfs.remove(&format!("cpu{cpu}/cache/index3"));
                }
            }
        })
    };
    let kinds = |machine: &Topology| machine.kinds.iter().map(|kind| kind.capacity).collect::<Vec<_>>();
    let slower = machine(2_400_000);
    assert_eq!((kinds(&slower), slower.cpu(6).unwrap().kind), (vec![1024, 768, 512], 2));
    assert!(slower.kinds[1..].iter().all(|kind| kind.name == "e-core"));
    assert_eq!(kinds(&machine(3_600_000)), [1024, 768], "not slower: not a kind of their own");
}

#[test]
fn capacities_alone_make_several_standard_kinds() {
    let machine = changed(|sysfs| {
        for cpu in 0..8 {
            sysfs.cpu(&format!("cpu{cpu}/cpu_capacity"), [250, 250, 620, 1000][cpu % 4]);
        }
    });
    let kinds: Vec<_> = machine.kinds.iter().map(|kind| (kind.name.as_str(), kind.capacity)).collect();
    assert_eq!(kinds, [("standard", 1024), ("standard", 634), ("standard", 256)]);
}

#[test]
fn pcie_roots_name_their_cpus() {
    let machine = changed(|sysfs| {
        sysfs.set("devices/pci0000:40/pci_bus/0000:40/cpulistaffinity", "4-7");
        sysfs.set("devices/pci0000:00/pci_bus/0000:00/cpulistaffinity", "0-3,9");
        sysfs.set("devices/pci10000:00/pci_bus/10000:00/cpulistaffinity", "");
        sysfs.set("devices/pci_express/cpulistaffinity", "0");
        sysfs.set("devices/pci10001:00/pci_bus/10001:00/cpuaffinity", "00000081");
    });
    let roots: Vec<_> =
        machine.pcie_roots.iter().map(|root| (root.name.as_str(), root.cpus.to_string())).collect();
    let expected =
        [("pci0000:00", "0-3"), ("pci0000:40", "4-7"), ("pci10000:00", ""), ("pci10001:00", "0,7")];
    assert_eq!(roots, expected.map(|(name, cpus)| (name, cpus.to_owned())));
}

#[test]
fn nonsense_in_a_file_is_an_error_that_names_file_and_value() {
    for (path, text) in [
        ("devices/system/cpu/online", "0-x"),
        ("devices/system/cpu/online", "0-8192"),
        ("devices/system/cpu/isolated", "3-1"),
        ("devices/system/cpu/nohz_full", "1-"),
        ("devices/system/cpu/present", "a"),
        ("devices/system/cpu/cpu3/topology/cluster_id", "12x"),
        ("devices/system/cpu/cpu3/topology/physical_package_id", "zero"),
        ("devices/system/cpu/cpu3/topology/core_id", "1.5"),
        ("devices/system/cpu/cpu3/topology/die_id", "9999999999999999999999"),
        ("devices/system/cpu/cpu3/topology/thread_siblings_list", "3,,7"),
        ("devices/system/cpu/cpu3/cache/index3/shared_cpu_list", "?"),
        ("devices/system/cpu/cpu3/cache/index3/level", "three"),
        ("devices/system/cpu/cpu3/cache/index3/size", "16384X"),
        ("devices/system/node/node0/cpulist", "0;1"),
        ("devices/system/node/node0/distance", "10 far"),
        ("devices/cpu_core/cpus", "all"),
        ("devices/pci0000:00/pci_bus/0000:00/cpulistaffinity", "*"),
    ] {
        let error = refused(path, text);
        assert!(error.contains(path) && error.contains(text), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    eight().write(dir.path());
    let path = dir.path().join("devices/system/cpu/isolated");
    let pipe = || rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let large = || std::fs::File::create(&path).unwrap().set_len((1 << 20) + 1).unwrap();
    let cases: [(&dyn Fn(), &str); 4] = [
        (&|| std::fs::create_dir(&path).unwrap(), "a directory"),
        (&pipe, "a named pipe"),
        (&|| std::os::unix::fs::symlink("/dev/zero", &path).unwrap(), "a device"),
        (&large, "more than 1048576 bytes"),
    ];
    for (put, words) in cases {
        std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path)).unwrap();
        put();
        let error = read(dir.path(), &Overlay::default()).unwrap_err();
        let ReadError::Io { path: named, source } = &error else { panic!("{error:?}") };
        assert_eq!(*named, path.display().to_string());
        assert!(source.to_string().contains(words), "{source}");
    }
}

#[test]
fn a_bundle_is_the_same_machine_elsewhere() {
    type Change = fn(&mut Sysfs);
    let odd: [(&str, Change); 7] = [
        ("as it is", |_| {}),
        ("a CPU is offline", |sysfs| {
            sysfs.cpu("online", "0-6");
            sysfs.remove("cpu7/topology");
        }),
        ("no list of CPUs that are online", |sysfs| sysfs.remove("cpu/online")),
        ("no list of CPUs that are there", |sysfs| sysfs.remove("cpu/present")),
        ("links instead of lists", |sysfs| {
            sysfs.remove("node0/cpulist");
            for cpu in 0..7 {
                sysfs.set(&format!("devices/system/node/node0/cpu{cpu}/x"), "");
            }
            sysfs.cpu("cpu7/node0/x", "");
        }),
        ("a node with nothing in it", |sysfs| sysfs.set("devices/system/node/node4/x", "")),
        ("hybrid, with PCIe roots", |sysfs| {
            sysfs.set("devices/cpu_atom/cpus", "2-3");
            sysfs.set("devices/pci0000:40/pci_bus/0000:40/cpulistaffinity", "4-7");
            sysfs.cpu("cpu0/acpi_cppc/highest_perf", "100");
        }),
    ];
    for (what, change) in odd {
        let mut sysfs = eight();
        change(&mut sysfs);
        assert_eq!(sysfs.bundled(), sysfs.read().unwrap(), "{what}");
    }
}

#[test]
fn a_bundle_holds_what_was_read_with_the_overlay_in_place() {
    let dir = tempfile::tempdir().unwrap();
    eight().write(dir.path());
    std::fs::write(dir.path().join("devices/system/cpu/unrelated"), "secret").unwrap();
    let overlay = Overlay::parse("/sys/devices/system/cpu/isolated: 2-3\n").unwrap();
    let bundle = Bundle::read(dir.path(), &overlay).unwrap();
    let packed = bundle.pack(&[]).unwrap();
    assert_eq!(packed, Bundle::read(dir.path(), &overlay).unwrap().pack(&[]).unwrap(), "the same bytes");
    let path = dir.path().join("bundle.tar.gz");
    std::fs::write(&path, &packed).unwrap();
    let loaded = machine::load(&path.display().to_string()).unwrap().topology;
    assert_eq!((loaded.isolated.to_string(), &loaded), ("2-3".to_owned(), &bundle.topology));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut text).unwrap();
    assert!(text.contains("cpu3/topology/core_id") && !text.contains("secret"));
}
