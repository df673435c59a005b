//! The processes of containers, found by their cgroups. Source: proc(5); how runtimes name cgroups: `CONTAINER`,
//! `cri-containerd-CONTAINER.scope`, `crio-CONTAINER.scope`, and beside the latter `crio-conmon-CONTAINER.scope`.

use super::limits::{Limit, limits};
use super::{Host, Seen};
use crate::live::ContainerReport;
use dracpu_cpuset::CpuSet;
use std::collections::BTreeMap;
use std::path::Path;

/// The containers that have processes here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Containers {
    /// By the runtime's id.
    pub(in super::super) seen: BTreeMap<String, Container>,
    /// The one that this process is in.
    pub(in super::super) own: Option<String>,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Container {
    /// Its processes, at least one.
    pub(in super::super) processes: Vec<Process>,
    /// CFS quotas on it and on what it is in, the innermost first; none are looked for without a claim.
    pub(in super::super) limits: Seen<Vec<Limit>>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Process {
    pub(in super::super) pid: u32,
    /// The name of its program.
    pub(in super::super) name: String,
    /// Where its first thread may run.
    pub(in super::super) allowed: CpuSet,
    /// Where any of its threads may run.
    pub(in super::super) threads: CpuSet,
}

/// A line of `/proc/PID/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    /// Of version 1, comma separated; empty in version 2.
    pub(super) controllers: String,
    /// From the hierarchy's root.
    pub(super) path: String,
}

impl Containers {
    /// Of these containers, those that have processes.
    pub(super) fn look(host: &Host, known: &[ContainerReport]) -> Self {
        let of =
            |memberships: &[Membership]| known.iter().find(|container| is_in(memberships, &container.id));
        let own = std::fs::read_to_string(host.proc.join("self/cgroup")).unwrap_or_default();
        let own = of(&memberships(&own)).map(|container| container.id.clone());
        let mut seen: BTreeMap<String, Container> = BTreeMap::new();
        for pid in pids(&host.proc) {
            let Ok(text) = std::fs::read_to_string(host.proc.join(format!("{pid}/cgroup"))) else { continue };
            let memberships = memberships(&text);
            let Some(container) = of(&memberships) else { continue };
            let Some(process) = process(&host.proc, pid) else { continue };
            let seen = seen.entry(container.id.clone()).or_insert_with(|| Container {
                processes: Vec::new(),
                limits: match container.claims.is_empty() {
                    true => Ok(Vec::new()),
                    false => limits(&host.cgroup, &memberships),
                },
            });
            seen.processes.push(process);
        }
        Self { seen, own }
    }
}

/// Process ids, ascending.
pub(super) fn pids(proc: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// The name of a process's program.
pub(super) fn name(proc: &Path, pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(proc.join(format!("{pid}/comm"))).ok()?;
    Some(name.trim_end().to_owned())
}

/// A process that lives; none of one that has ended meanwhile.
fn process(proc: &Path, pid: u32) -> Option<Process> {
    let directory = proc.join(pid.to_string());
    let allowed = allowed(&directory)?;
    let mut threads = allowed.clone();
    for thread in std::fs::read_dir(directory.join("task")).into_iter().flatten().flatten() {
        if let Some(allowed) = self::allowed(&thread.path()) {
            threads.extend_from(&allowed);
        }
    }
    Some(Process { pid, name: name(proc, pid)?, allowed, threads })
}

/// Where a thread may run. What has ended and is not yet reaped runs nowhere.
fn allowed(thread: &Path) -> Option<CpuSet> {
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    if field("State").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return None;
    }
    field("Cpus_allowed_list")?.parse().ok()
}

fn memberships(text: &str) -> Vec<Membership> {
    let line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1).map(str::to_owned);
        Some(Membership { controllers: fields.next()?, path: fields.next()? })
    };
    text.lines().filter_map(line).collect()
}

fn is_in(memberships: &[Membership], container: &str) -> bool {
    let names = memberships.iter().flat_map(|membership| membership.path.split('/'));
    names.map(|name| name.strip_suffix(".scope").unwrap_or(name)).any(|name| {
        // `crio-conmon-CONTAINER` and `libpod-conmon-CONTAINER` have the monitor of the container, which is not in it.
        let of_it = |before: &str| before.ends_with('-') && !before.ends_with("-conmon-");
        name.strip_suffix(container).is_some_and(|before| before.is_empty() || of_it(before))
    })
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;
    use crate::live::PodReport;
    use std::fs;

    /// A container that the daemon knows, with this mask.
    pub(in super::super::super) fn known(id: &str, claims: &[&str], wanted: &str) -> ContainerReport {
        let pod = PodReport {
            namespace: "default".into(),
            name: format!("pod-of-{id}"),
            uid: format!("uid-of-{id}"),
        };
        ContainerReport {
            id: id.to_owned(),
            name: "app".to_owned(),
            pod,
            claims: claims.iter().map(ToString::to_string).collect(),
            unproven: Vec::new(),
            wanted: Some(wanted.parse().unwrap()),
            mask: None,
            differs: false,
            started: true,
            stopped: false,
        }
    }

    /// An empty host.
    pub(in super::super::super) fn host() -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let host = Host { proc: at("proc"), cgroup: at("cgroup"), etc: at("etc") };
        for directory in [&host.proc, &host.cgroup, &host.etc] {
            fs::create_dir(directory).unwrap();
        }
        (dir, host)
    }

    /// A process as `/proc` shows it; `threads` are the CPU lists of all its threads, the first one's first.
    pub(in super::super::super) fn run(host: &Host, pid: &str, cgroup: &str, state: &str, threads: &[&str]) {
        let process = host.proc.join(pid);
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("comm"), "app\n").unwrap();
        fs::write(process.join("cgroup"), cgroup).unwrap();
        let status = |cpus: &str| {
            format!(
                "Name:\tapp\nUmask:\t0022\nState:\t{state}\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0\n"
            )
        };
        fs::write(process.join("status"), status(threads[0])).unwrap();
        for (n, cpus) in threads.iter().enumerate() {
            let thread = process.join("task").join(n.to_string());
            fs::create_dir_all(&thread).unwrap();
            fs::write(thread.join("status"), status(cpus)).unwrap();
        }
    }

    const RUNS: &str = "S (sleeping)";

    #[test]
    fn processes_are_found_by_the_cgroup_of_their_container_in_both_versions() {
        let (_dir, host) = host();
        let (a, b, c) = ("aa11", "bb22", "cc33");
        run(
            &host,
            "10",
            &format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{a}.scope\n"),
            RUNS,
            &["0-3", "0-7"],
        );
        run(
            &host,
            "11",
            &format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{a}.scope/inner\n"),
            RUNS,
            &["2"],
        );
        run(
            &host,
            "12",
            &format!("5:cpuset:/kubepods/pod2/{b}\n3:cpu,cpuacct:/kubepods/pod2/{b}\n"),
            RUNS,
            &["0-7"],
        );
        run(&host, "13", &format!("0::/kubepods.slice/crio-{c}.scope\n"), "Z (zombie)", &["0-7"]);
        run(&host, "14", "0::/system.slice/kubelet.service\n", RUNS, &["0-7"]);
        run(&host, "15", &format!("0::/x{a}\n"), RUNS, &["0-7"]);
        run(&host, "16", &format!("0::/kubepods.slice/crio-conmon-{a}.scope\n"), RUNS, &["0-7"]);
        run(&host, "17", &format!("0::/kubepods.slice/libpod-conmon-{c}.scope\n"), RUNS, &["0-7"]);
        fs::create_dir(host.proc.join("self")).unwrap();
        fs::write(host.proc.join("self/cgroup"), format!("0::/../cri-containerd-{b}.scope\n")).unwrap();
        let containers =
            Containers::look(&host, &[known(a, &[], "0-3"), known(b, &[], "0-3"), known(c, &[], "0-3")]);
        assert_eq!(containers.own.as_deref(), Some(b));
        assert_eq!(containers.seen.keys().map(String::as_str).collect::<Vec<_>>(), [a, b]);
        let processes = &containers.seen[a].processes;
        assert_eq!(processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [10, 11]);
        assert_eq!(processes[0].allowed.to_string(), "0-3");
        assert_eq!(processes[0].threads.to_string(), "0-7");
        assert_eq!(processes[0].name, "app");
    }
}
