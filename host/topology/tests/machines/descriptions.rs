//! Machines that files describe: JSON, `gatherinfo`'s YAML, tables, archives, examples.

use crate::support::{Sysfs, codes, lists};
use dracpu_cpuset::CpuSet;
use dracpu_topology::machine::{self, Machine, MachineError};
use dracpu_topology::{Drawing, Overlay, examples, machines, to_json};
use std::io::Write;
use std::path::Path;

fn load(content: &[u8]) -> Result<Machine, MachineError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    machine::load(&file.path().display().to_string())
}

fn loaded(text: &str) -> Machine {
    load(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn fault(text: &str) -> String {
    match load(text.as_bytes()) {
        Err(MachineError::Described { fault, .. }) => fault,
        other => panic!("{text}: {other:?}"),
    }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_handwritten_machine_needs_five_numbers_for_each_cpu() {
    let machine = loaded(
        r#"{"schema":"dracpu.topology/v1","cpus":[
            {"cpu":3,"coreId":0,"socket":1,"numa":8,"llcId":0},
            {"cpu":0,"coreId":0,"socket":0,"numa":0,"llcId":0},
            {"cpu":1,"coreId":0,"socket":0,"numa":0,"llcId":-1},
            {"cpu":2,"coreId":0,"socket":1,"numa":-1,"llcId":0}]}"#,
    );
    let topology = machine.topology;
    assert_eq!(lists(&topology.cores), ["0-1", "2-3"]);
    assert_eq!(lists(topology.caches.iter().map(|cache| &cache.cpus)), ["0", "2-3"]);
    assert_eq!(topology.sockets.iter().map(|socket| socket.id).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(topology.cpu(2).unwrap().numa_node, None);
    assert_eq!(topology.cpu(1).unwrap().llc, None);
    assert_eq!((topology.kinds[0].name.as_str(), topology.kinds[0].capacity), ("standard", 1024));
    assert!(machine.reserved.is_empty());
    assert_eq!(codes(&topology), ["cpu-without-node"]);
}

#[test]
fn cores_follow_from_socket_die_cluster_and_core_id() {
    let row =
        |cpu: u32, more: &str| format!(r#"{{"cpu":{cpu},"coreId":0,"socket":0,"numa":0,"llcId":0{more}}}"#);
    let cpus =
        [row(0, ""), row(1, r#","die":1"#), row(2, r#","cluster":3"#), row(3, r#","die":1"#)].join(",");
    let topology = loaded(&format!(r#"{{"cpus":[{cpus}]}}"#)).topology;
    assert_eq!(lists(&topology.cores), ["0", "1,3", "2"]);
    let unknown = loaded(r#"{"cpus":[{"cpu":0,"socket":0},{"cpu":1,"socket":0}]}"#).topology;
    assert_eq!(unknown.cores.len(), 2, "without a core id, every CPU is a core");
}

#[test]
fn everything_else_of_a_description_is_kept() {
    let machine = loaded(
        r#"{"cpus":[{"cpu":0,"coreId":0,"socket":0,"kind":"p-core","capacity":1024,"llc":"0"},
                    {"cpu":1,"coreId":1,"socket":0,"kind":"e-core","capacity":600}],
            "offline":"5","isolated":"1","nohzFull":"1,5","reserved":"0",
            "numaNodes":[{"id":0,"cpus":"0-1","memoryBytes":5,"distances":[10,30]},{"id":4,"distances":[30,10]}],
            "caches":[{"level":2,"id":7,"cpus":"0","sizeBytes":4096}],
            "pcieRoots":[{"name":"pci0000:00","cpus":"0-1"}],
            "warnings":[{"code":"no-package-id","message":"as recorded"},{"code":"new","message":"unheard of"}]}"#,
    );
    let topology = &machine.topology;
    assert_eq!(
        (topology.offline.to_string(), topology.isolated.to_string()),
        ("5".to_owned(), "1".to_owned())
    );
    assert_eq!(topology.nohz_full, CpuSet::from([1, 5]));
    assert_eq!(machine.reserved, CpuSet::from([0]));
    assert_eq!(
        topology.kinds.iter().map(|kind| kind.name.as_str()).collect::<Vec<_>>(),
        ["p-core", "e-core"]
    );
    assert_eq!(lists(topology.numa_nodes.iter().map(|node| &node.cpus)), ["0-1", ""]);
    assert_eq!(topology.numa_nodes[0].distances, [10, 30]);
    let cache = &topology.caches[0];
    assert_eq!((cache.level, cache.id, cache.size_bytes), (2, Some(7), 4096));
    assert_eq!(topology.pcie_roots[0].cpus.len(), 2);
    assert_eq!(codes(topology), ["no-package-id", "described"]);

    let json = to_json(topology, &machine.reserved);
    assert_eq!(json["cpus"][0]["l3"], serde_json::Value::Null, "an L2 is a last level, but no L3");
    assert_eq!(json["cpus"][0]["llc"], "0");
    assert_eq!(json["cpus"][1]["llc"], serde_json::Value::Null);
    assert_eq!(json["reserved"], "0");
}

#[test]
fn json_is_the_documented_shape() {
    let machine = machine::load("hybrid").unwrap();
    let json = to_json(&machine.topology, &CpuSet::new());
    let keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "schema",
            "online",
            "offline",
            "isolated",
            "nohzFull",
            "reserved",
            "threadsPerCore",
            "cpus",
            "numaNodes",
            "caches",
            "pcieRoots",
            "warnings"
        ]
    );
    assert_eq!(
        json["cpus"][1],
        serde_json::json!({"cpu": 1, "siblings": "0-1", "socket": 0, "numa": 0, "l3": "0-31", "kind": "p-core",
            "core": 0, "thread": 1, "coreId": 0, "die": 0, "cluster": 0, "llc": "0-31", "llcId": 0,
            "capacity": 1024})
    );
    assert_eq!(
        json["caches"][0],
        serde_json::json!({"level": 3, "id": 0, "cpus": "0-31", "sizeBytes": 37_748_736})
    );
}

#[test]
fn contradictions_of_a_description_are_warnings() {
    let machine = |rest: &str| {
        loaded(&format!(
            r#"{{"cpus":[{{"cpu":0,"socket":0,"numa":1,"llc":"0-1"}},{{"cpu":1,"socket":0,"numa":0,"llc":"0-1"}}],{rest}}}"#
        ))
        .topology
    };
    for (rest, expected) in [
        (r#""numaNodes":[{"id":0,"cpus":"1"},{"id":1,"cpus":"0"}]"#, &[][..]),
        (r#""numaNodes":[{"id":0,"cpus":"0-1"}]"#, &["cpu-in-several-nodes"]),
        (r#""numaNodes":[{"id":0,"cpus":"0-1"},{"id":1,"cpus":"0"}]"#, &["cpu-in-several-nodes"]),
        (r#""numaNodes":[{"id":0,"cpus":"1,7"}]"#, &["node-of-offline-cpu"]),
        (r#""numaNodes":[{"id":0,"memoryBytes":1},{"id":0,"memoryBytes":2}]"#, &["node-twice"]),
        (r#""numaNodes":[{"id":0,"distances":[10,20,30]}]"#, &["no-distances"]),
        (r#""caches":[{"level":3,"cpus":"0-1"},{"level":2,"cpus":"0"}]"#, &[]),
        (r#""caches":[{"level":3,"cpus":"0-1,8"}]"#, &[]),
        (r#""caches":[{"level":3,"cpus":"0-1"},{"level":3,"cpus":"1"}]"#, &["caches-disagree"]),
        (r#""caches":[{"level":3,"cpus":"0"}]"#, &["caches-disagree"]),
        (
            r#""pcieRoots":[{"name":"pci0000:00","cpus":"0"},{"name":"pci0000:00","cpus":"1"}]"#,
            &["pcie-root-twice"],
        ),
    ] {
        let machine = machine(rest);
        assert_eq!(codes(&machine), expected, "{rest}");
        let node = |cpu: usize| machine.cpus[cpu].numa_node.map(|at| machine.numa_nodes[at].id);
        let lowest = if expected == ["cpu-in-several-nodes"] { Some(0) } else { Some(1) };
        assert_eq!((node(0), node(1)), (lowest, Some(0)), "{rest}");
        assert!(machine.numa_nodes[0].memory_bytes < 2, "the first description of a node counts");
        assert!(machine.pcie_roots.iter().all(|root| root.cpus.len() == 2));
        let again = loaded(&to_json(&machine, &CpuSet::new()).to_string()).topology;
        assert_eq!(again, machine, "{rest}");
    }
    let siblings = r#"{"cpus":[{"cpu":0,"core":0,"siblings":"0"},{"cpu":1,"core":0,"siblings":"1"}]}"#;
    let machine = loaded(siblings).topology;
    assert_eq!(
        (lists(&machine.cores), codes(&machine)[0]),
        (vec!["0".into(), "1".into()], "siblings-disagree")
    );
}

#[test]
fn control_characters_never_reach_the_terminal() {
    for text in [
        r#"{"cpus":[{"cpu":0,"kind":"p\u001b[2J"}]}"#,
        r#"{"cpus":[{"cpu":0}],"pcieRoots":[{"name":"pci\u009b1","cpus":"0"}]}"#,
        r#"{"cpus":[{"cpu":0}],"\u001b[31mred":1}"#,
        r#"{"cpus":[{"cpu":0}],"offline":"\u001b[31m"}"#,
        r#"{"schema":"\u0007","cpus":[]}"#,
        "cpuDetails:\n  cpus:\n  - {cpuID: 1, coreType: \"\\e[2J\"}\n",
        "\u{1b}[31m: [",
    ] {
        let fault = fault(text);
        assert!(!fault.contains(char::is_control) && fault.contains('\\'), "{text}: {fault:?}");
    }
    let warned = r#"{"cpus":[{"cpu":0}],"warnings":[{"code":"new","message":"\u001b[2J"}]}"#;
    let drawing = Drawing::new(&loaded(warned).topology).to_string();
    assert!(!drawing.contains('\x1b') && drawing.contains(r"\u{1b}[2J"), "{drawing}");

    let mut sysfs = Sysfs::default();
    sysfs.cpu("online", "\x1b[2J");
    let error = sysfs.read().unwrap_err().to_string();
    assert!(error.contains(r"\u{1b}[2J") && !error.contains('\x1b'), "{error}");
}

#[test]
fn mistakes_in_a_description_are_named() {
    for (text, expected) in [
        (r#"{"cpus":[]}"#, "no cpus"),
        (r#"{"cpus":[{"cpu":0},{"cpu":0}]}"#, "cpu 0 is described twice"),
        (r#"{"cpus":[{"cpu":8192}]}"#, "8191"),
        (r#"{"schema":"dracpu.topology/v9","cpus":[{"cpu":0}]}"#, "dracpu.topology/v9"),
        (r#"{"cpus":[{"cpu":0,"coreID":1}]}"#, "coreID"),
        (r#"{"cpu":[]}"#, "cpu"),
        (r#"{"cpus":[{"cpu":0}],"offline":"0"}"#, "cpu 0 is in offline"),
        (r#"{"cpus":[{"cpu":0}],"online":"0-1"}"#, "online is `0-1`"),
        (r#"{"cpus":[{"cpu":0}],"isolated":"a"}"#, "isolated is `a`"),
        (r#"{"cpus":[{"cpu":0,"siblings":"0;1"}]}"#, "siblings is `0;1`"),
        (r#"{"cpus":[{"cpu":0}]"#, "EOF"),
        ("{}", "missing field `cpus`"),
        ("", "no JSON, and as YAML of gatherinfo"),
        ("some text", "no JSON, and as YAML of gatherinfo"),
        ("cpus: []", "cpuDetails"),
        ("cpuDetails:\n  cpus: []\n", "empty"),
    ] {
        let fault = fault(text);
        assert!(fault.contains(expected), "{text}: {fault}");
    }
    assert!(matches!(load(&[0xff, 0xfe, 0x00]), Err(MachineError::Described { .. })));
    assert!(matches!(load(&[0x1f, 0x8b, 0x00]), Err(MachineError::Described { .. })));
}

#[test]
fn a_gatherinfo_document_is_a_machine() {
    let machine = loaded(
        "---\ntoolVersion: v1.2.3\nlayoutVersion: v1\ncpuDetails:\n  topology:\n    numCPUs: 4\n  cpus:\n  - cpuID: 0\n    \
         coreID: 0\n    socketID: 0\n    clusterID: -1\n    numaNodeID: 0\n    numaNodeCPUSet: 0-3\n    sibling: 2\n    \
         coreType: p-core\n    uncoreCacheID: 5\n  - {cpuID: 1, coreID: 1, socketID: 0, clusterID: 65535, numaNodeID: 0, \
         sibling: -1, coreType: e-core, uncoreCacheID: 5}\n  - {cpuID: 2, coreID: 0, socketID: 0, numaNodeID: 0, \
         sibling: 0, coreType: p-core, uncoreCacheID: 5}\n  - {cpuID: 3, coreID: 9, socketID: 0, numaNodeID: -1, \
         sibling: -1, coreType: e-core, uncoreCacheID: -1}\ndriverConfig: null\n",
    );
    let topology = machine.topology;
    assert_eq!(lists(&topology.cores), ["0,2", "1", "3"]);
    assert_eq!(lists(topology.caches.iter().map(|cache| &cache.cpus)), ["0-2"]);
    assert_eq!(topology.caches[0].id, Some(5));
    assert_eq!(topology.numa_nodes[0].cpus.to_string(), "0-2");
    assert_eq!(topology.cpu(3).unwrap().core_id, Some(9));
    // CPU 3 says that it is in no node.
    let of_nodes: Vec<&str> = topology
        .warnings
        .iter()
        .filter(|found| found.code == "nodes-disagree")
        .map(|found| &*found.message)
        .collect();
    assert!(matches!(of_nodes[..], [message] if message.starts_with("CPU 0: ")), "{of_nodes:?}");
}

#[test]
fn gatherinfo_siblings_may_be_more_than_two() {
    let by_lowest = "cpuDetails:\n  cpus:\n  - {cpuID: 1, sibling: 3}\n  - {cpuID: 3, sibling: 1}\n  - {cpuID: 5, \
                     sibling: 1}\n  - {cpuID: 7, sibling: -1}\n";
    assert_eq!(lists(&loaded(by_lowest).topology.cores), ["1,3,5", "7"]);
    let rows =
        [1, 3, 5].map(|cpu| format!("  - cpuID: {cpu}\n    sibling: 1\n    siblings: 1,3,5\n")).concat();
    assert_eq!(lists(&loaded(&format!("cpuDetails:\n  cpus:\n{rows}")).topology.cores), ["1,3,5"]);
    for key in ["siblings", "numaNodeCPUSet"] {
        let why = fault(&format!("cpuDetails:\n  cpus:\n  - {{cpuID: 1, {key}: 1;3}}\n"));
        assert!(why.contains(&format!("{key} of cpuID 1 is `1;3`")), "{why}");
    }
}

#[test]
fn a_table_holds_a_machine_a_line() {
    let table = concat!(
        r#"{"id":"a","category":"ref","cpus":[[0,0,0,0,-1],[1,0,1,0,-1]]}"#,
        "\n\n",
        r#"{"id":"b","cpus":[[4,0,0,3,1],[0,0,0,3,1],[1,1,0,3,2]]}"#,
        "\n",
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("machines.jsonl");
    for content in [table.as_bytes().to_vec(), gzip(table.as_bytes())] {
        std::fs::write(&path, content).unwrap();
        let machines = machines::read_jsonl(&path).unwrap();
        assert_eq!(machines.len(), 2);
        assert_eq!(lists(&machines["a"].cores), ["0", "1"]);
        assert!(machines["a"].caches.is_empty());
        assert_eq!(lists(&machines["b"].cores), ["0,4", "1"]);
        assert_eq!(lists(machines["b"].caches.iter().map(|cache| &cache.cpus)), ["0,4", "1"]);
        assert_eq!(machines["b"].numa_nodes[0].id, 3);
    }
    assert_eq!(loaded(table.lines().next().unwrap()).topology.cpus.len(), 2);

    for (line, expected) in [
        (r#"{"id":"a","cpus":[]}"#, "line 1"),
        (r#"{"id":"a","cpus":[[0,0,0,0,0],[0,0,0,0,0]]}"#, "cpu 0"),
        (
            "{\"id\":\"a\",\"cpus\":[[0,0,0,0,0]]}\n{\"id\":\"a\",\"cpus\":[[0,0,0,0,0]]}",
            "`a` is there twice",
        ),
        ("nonsense", "line 1"),
    ] {
        std::fs::write(&path, line).unwrap();
        let error = machines::read_jsonl(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

/// An archive of the files, each with this before its path.
fn archive(sysfs: &Sysfs, before: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |path: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(content.len()).unwrap());
        header.set_mode(0o444);
        builder.append_data(&mut header, path, content).unwrap();
    };
    for (path, text) in &sysfs.0 {
        add(&format!("{before}{}", path.trim_start_matches("/sys/")), text.as_bytes());
    }
    add("unrelated", b"file");
    gzip(&builder.into_inner().unwrap())
}

#[test]
fn an_archive_of_a_sysfs_tree_is_read_in_memory() {
    let machine = machine::load("holes").unwrap().topology;
    let sysfs = Sysfs::of(&machine);
    for before in ["", "./", "sys/", "./sys/", "bundle/sys/", "bundle/"] {
        let unpacked = load(&archive(&sysfs, before)).unwrap_or_else(|error| panic!("{before}: {error}"));
        assert_eq!(unpacked.topology, sysfs.read().unwrap(), "{before}");
    }
    let error = load(&archive(&Sysfs::default(), "")).unwrap_err().to_string();
    assert!(error.contains("no devices/system/cpu"), "{error}");
}

#[test]
fn links_and_directories_of_an_archive_count() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |kind: tar::EntryType, path: &str, target: &str, content: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(u64::try_from(content.len()).unwrap());
        header.set_mode(0o755);
        match target {
            "" => builder.append_data(&mut header, path, content.as_bytes()).unwrap(),
            target => builder.append_link(&mut header, path, target).unwrap(),
        }
    };
    let cpu = "sys/devices/system/cpu";
    add(tar::EntryType::Directory, &format!("{cpu}/cpu0/"), "", "");
    add(tar::EntryType::Directory, &format!("{cpu}/cpu1/"), "", "");
    add(tar::EntryType::Directory, "sys/devices/system/node/node1/", "", "");
    add(tar::EntryType::Regular, "sys/devices/system/node/node0/cpulist", "", "0-1");
    add(tar::EntryType::Link, &format!("{cpu}/present"), "sys/devices/system/node/node0/cpulist", "");
    add(tar::EntryType::Symlink, &format!("{cpu}/possible"), "present", "");
    let machine = load(&gzip(&builder.into_inner().unwrap())).unwrap().topology;
    assert_eq!((machine.online().to_string(), machine.offline.len()), ("0-1".to_owned(), 0));
    assert_eq!(lists(machine.numa_nodes.iter().map(|node| &node.cpus)), ["0-1", ""]);
}

#[test]
fn a_file_too_large_for_sysfs_is_refused_by_name() {
    let mut sysfs = Sysfs::of(&machine::load("small").unwrap().topology);
    sysfs.cpu("isolated", " ".repeat(2 << 20));
    let error = load(&archive(&sysfs, "sys/")).unwrap_err().to_string();
    assert!(error.contains("devices/system/cpu/isolated"), "{error}");
}

#[test]
fn an_archive_that_is_damaged_or_hostile_is_refused() {
    let sysfs = Sysfs::of(&machine::load("small").unwrap().topology);
    let whole = archive(&sysfs, "sys/");
    assert!(load(&whole).is_ok());
    let last = whole.len() - 1;
    for (at, what) in [(last - 7, "checksum"), (last, "length")] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        let error = load(&damaged).unwrap_err().to_string();
        assert!(error.contains("not a readable .tar.gz"), "{what}: {error}");
    }
    let error = load(&whole[..last - 7]).unwrap_err().to_string();
    assert!(error.contains("not a readable .tar.gz"), "{error}");

    let mut builder = tar::Builder::new(Vec::new());
    let long = "a/".repeat(10_000);
    builder.append_data(&mut tar::Header::new_gnu(), &long, &b""[..]).unwrap();
    let error = load(&gzip(&builder.into_inner().unwrap())).unwrap_err().to_string();
    assert!(error.contains("a name in the archive has 20001 bytes"), "{error}");
}

#[test]
fn an_overlay_goes_over_archives_but_not_over_descriptions() {
    let sysfs = Sysfs::of(&machine::load("small").unwrap().topology);
    let overlay = Overlay::parse("/sys/devices/system/cpu/online: 0-3\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.tar.gz");
    std::fs::write(&path, archive(&sysfs, "sys/")).unwrap();
    let machine = machine::load_with(&path.display().to_string(), &overlay).unwrap();
    assert_eq!(machine.topology.cpus.len(), 4);
    let error = machine::load_with("small", &overlay).unwrap_err();
    assert!(matches!(error, MachineError::OverlayWithoutSysfs { .. }), "{error}");
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let error = machine::load("no-such-machine").unwrap_err();
    assert!(matches!(error, MachineError::NoSuchMachine { .. }));
    let text = error.to_string();
    assert!(examples().iter().all(|example| text.contains(example.name)), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let error = machine::load(&dir.path().display().to_string()).unwrap_err().to_string();
    assert!(error.contains("devices/system/cpu"), "{error}");
    assert!(machine::host(Path::new("/nonexistent"), &Overlay::default()).is_err());
}

#[test]
fn examples_are_as_they_say() {
    for example in examples() {
        let machine = machine::load(example.name).unwrap().topology;
        let count = machine.cpus.len();
        assert!(example.description().starts_with(&format!("{count} CPUs: ")), "{}: {count}", example.name);
        let expected: &[&str] = if example.name == "arm-big-little" { &["no-numa"] } else { &[] };
        assert_eq!(codes(&machine), expected, "{}", example.name);
        // Their sysfs says the same, but for what the reader warns of.
        let mut read = Sysfs::of(&machine).read().unwrap();
        read.warnings.clone_from(&machine.warnings);
        assert_eq!(read, machine, "{}", example.name);
    }
}

#[test]
fn every_machine_of_the_project_is_an_example_and_a_file_to_load() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/machines");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let (file, example) = (machine::load(path.to_str().unwrap()).unwrap(), machine::load(&name).unwrap());
        assert_eq!(file.topology, example.topology, "{name}");
        names.push(name);
    }
    let mut examples: Vec<_> = examples().iter().map(|example| example.name).collect();
    names.sort();
    examples.sort_unstable();
    assert_eq!(names, examples);
}
