//! CFS quotas. Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`) and
//! `Documentation/scheduler/sched-bwc.rst` (`cpu.cfs_quota_us`).

use super::Seen;
use super::processes::Membership;
use std::path::{Path, PathBuf};

/// A finite quota.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Limit {
    /// The cgroup that has it, from the hierarchy's root.
    pub(in super::super) cgroup: String,
    /// So much time …
    pub(in super::super) quota_us: u64,
    /// … in each of these.
    pub(in super::super) period_us: u64,
}

/// Where quotas stand.
enum Files {
    V1,
    V2,
}

/// The quotas on a process's cgroup and on all that it is in, the innermost first.
pub(super) fn limits(root: &Path, memberships: &[Membership]) -> Seen<Vec<Limit>> {
    let has_cpu = |membership: &&Membership| membership.controllers.split(',').any(|name| name == "cpu");
    let (files, path, hierarchies) = match memberships.iter().find(has_cpu) {
        Some(membership) => {
            let hierarchies = [root.join(&membership.controllers), root.join("cpu")];
            (Files::V1, &membership.path, hierarchies)
        }
        None => {
            let membership = memberships.iter().find(|membership| membership.controllers.is_empty());
            let membership = membership.ok_or("its process is in no cgroup of the CPU controller")?;
            (Files::V2, &membership.path, [root.to_owned(), root.join("unified")])
        }
    };
    let path = path.trim_matches('/');
    if path.split('/').any(|name| name == "..") {
        return Err(format!("its cgroup {path} is outside of what is seen here"));
    }
    let hierarchy = hierarchies.into_iter().find(|hierarchy| hierarchy.join(path).is_dir());
    let hierarchy = hierarchy.ok_or_else(|| format!("its cgroup {path} is not below {}", root.display()))?;
    let ancestors = Path::new(path).ancestors().filter(|cgroup| !cgroup.as_os_str().is_empty());
    let limit = |cgroup: &Path| {
        let (quota_us, period_us) = quota(&files, &hierarchy.join(cgroup))?;
        Some(Limit { cgroup: format!("/{}", cgroup.display()), quota_us, period_us })
    };
    Ok(ancestors.filter_map(limit).collect())
}

fn quota(files: &Files, cgroup: &Path) -> Option<(u64, u64)> {
    let read = |name: &str| std::fs::read_to_string(PathBuf::from(cgroup).join(name)).ok();
    match files {
        Files::V2 => {
            let text = read("cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            Some((quota.parse().ok()?, period.parse().ok()?))
        }
        // Without a quota it is -1.
        Files::V1 => Some((
            read("cpu.cfs_quota_us")?.trim().parse().ok()?,
            read("cpu.cfs_period_us")?.trim().parse().ok()?,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn memberships(text: &[(&str, &str)]) -> Vec<Membership> {
        text.iter()
            .map(|(controllers, path)| Membership {
                controllers: (*controllers).into(),
                path: (*path).into(),
            })
            .collect()
    }

    fn write(directory: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(directory).unwrap();
        for (name, text) in files {
            fs::write(directory.join(name), text).unwrap();
        }
    }

    fn limit(cgroup: &str, quota_us: u64) -> Limit {
        Limit { cgroup: cgroup.to_owned(), quota_us, period_us: 100_000 }
    }

    #[test]
    fn quotas_of_version_2_are_found_on_the_container_and_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("kubepods.slice/pod.slice");
        write(&dir.path().join("kubepods.slice"), &[("cpu.max", "max 100000\n")]);
        write(&pod, &[("cpu.max", "250000 100000\n")]);
        write(&pod.join("c.scope"), &[("cpu.max", "200000 100000\n")]);
        let found = limits(dir.path(), &memberships(&[("", "/kubepods.slice/pod.slice/c.scope")])).unwrap();
        let expected = [
            limit("/kubepods.slice/pod.slice/c.scope", 200_000),
            limit("/kubepods.slice/pod.slice", 250_000),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn quotas_of_version_1_stand_in_the_hierarchy_of_the_cpu_controller() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("cpu,cpuacct/kubepods/pod");
        write(&pod, &[("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n")]);
        write(&pod.join("c"), &[("cpu.cfs_quota_us", "150000\n"), ("cpu.cfs_period_us", "100000\n")]);
        let of =
            memberships(&[("cpuset", "/kubepods/pod/c"), ("cpu,cpuacct", "/kubepods/pod/c"), ("", "/x")]);
        assert_eq!(limits(dir.path(), &of).unwrap(), [limit("/kubepods/pod/c", 150_000)]);
    }

    #[test]
    fn a_cgroup_that_is_not_seen_here_has_no_known_quota() {
        let dir = tempfile::tempdir().unwrap();
        for of in [&[("", "/../c.scope")][..], &[("", "/kubepods/c")], &[("pids", "/c")]] {
            assert!(limits(dir.path(), &memberships(of)).is_err(), "{of:?}");
        }
    }
}
