//! Facts for tests of checks.

use super::processes::tests::known;
use super::{CdiDirectory, Container, Containers, Facts, Kubelet, Lock, Process};
use crate::dra::CpuManager;
use crate::driver::ClaimState;
use crate::live::fixtures;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A node that is well, seen from the host: a claim `u-1` of two CPUs, whose container `c-1` runs.
pub(in super::super) fn well() -> Facts {
    let mut report = fixtures::node(vec![fixtures::claim("u-1", "web", ClaimState::Bound, "0-1", "")]);
    let mut container = known("c-1", &["u-1"], "0-1");
    container.pod.name = "of-web".to_owned();
    report.containers.push(container);
    let cpus: dracpu_cpuset::CpuSet = "0-1".parse().unwrap();
    let process = Process { pid: 42, name: "app".to_owned(), allowed: cpus.clone(), threads: cpus };
    let container = Container { processes: vec![process], limits: Ok(Vec::new()) };
    Facts {
        kubelet_root_dir: PathBuf::from("/var/lib/kubelet"),
        lock: Ok(Lock::Held(format!("pid {}", report.driver.pid))),
        daemon: Ok(report),
        root_only: false,
        kubelet_refuses: false,
        held_before: BTreeSet::from(["u-1".to_owned()]),
        cpu_manager: Ok(CpuManager::Idle),
        kubelet: Ok(Kubelet::default()),
        cdi: CdiDirectory {
            records: BTreeSet::from(["u-1".to_owned()]),
            versions: BTreeMap::from([("0.6.0".to_owned(), PathBuf::from("/var/run/cdi/u-1.json"))]),
            writable: Ok(true),
            ..no_directory()
        },
        runtime: None,
        containers: Containers { seen: BTreeMap::from([("c-1".to_owned(), container)]), own: None },
    }
}

/// Nothing can be seen, and no driver runs.
pub(in super::super) fn nothing() -> Facts {
    let unseen = || "not here".to_owned();
    Facts {
        kubelet_root_dir: PathBuf::from("/var/lib/kubelet"),
        lock: Ok(Lock::Free),
        daemon: Err(unseen()),
        root_only: false,
        kubelet_refuses: false,
        held_before: BTreeSet::new(),
        cpu_manager: Err(unseen()),
        kubelet: Err(unseen()),
        cdi: no_directory(),
        runtime: None,
        containers: Containers::default(),
    }
}

fn no_directory() -> CdiDirectory {
    CdiDirectory {
        path: PathBuf::from("/var/run/cdi"),
        writable: Err("not here".to_owned()),
        records: BTreeSet::new(),
        damaged: BTreeMap::new(),
        versions: BTreeMap::new(),
        others: Vec::new(),
    }
}
