//! How much memory this process may still take: what its cgroups have left (Linux `admin-guide/cgroup-v2.rst`,
//! `admin-guide/cgroup-v1/memory.rst`).

use std::path::{Path, PathBuf};

/// Bytes that are left under the tightest limit above this process; none where there is no limit. `cgroups` is where
/// cgroups are mounted.
pub(super) fn left(cgroups: &Path) -> Option<u64> {
    left_for(&std::fs::read_to_string("/proc/self/cgroup").ok()?, cgroups)
}

/// As [`left`], for a process whose `/proc/PID/cgroup` says so.
fn left_for(cgroups_of_process: &str, cgroups: &Path) -> Option<u64> {
    cgroups_of_process
        .lines()
        .filter_map(|line| Hierarchy::of(line, cgroups))
        .filter_map(|own| own.left())
        .min()
}

/// The cgroups above a process that may limit its memory.
struct Hierarchy {
    root: PathBuf,
    /// The process's own cgroup, from the root on.
    path: PathBuf,
    files: &'static Files,
}

/// What the two versions of cgroups call the same.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The key of `memory.stat` for file pages that nobody uses, in this cgroup and those below.
    unused: &'static str,
}

const V2: Files = Files { limit: "memory.max", used: "memory.current", unused: "inactive_file" };
const V1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", unused: "total_inactive_file" };
/// What version 1 says where there is no limit is about this much, or more.
const NO_LIMIT: u64 = 1 << 62;

impl Hierarchy {
    /// That of a line of `/proc/PID/cgroup`: `0::/path`, or `4:memory:/path` in version 1.
    fn of(line: &str, cgroups: &Path) -> Option<Self> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/').into());
        match controllers {
            "" => Some(Self { root: cgroups.to_owned(), path, files: &V2 }),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                Some(Self { root: cgroups.join("memory"), path, files: &V1 })
            }
            _ => None,
        }
    }

    fn left(&self) -> Option<u64> {
        self.path.ancestors().filter_map(|path| self.files.left(&self.root.join(path))).min()
    }
}

impl Files {
    /// File pages that nobody uses can be dropped at once, so they are no use of memory.
    fn left(&self, cgroup: &Path) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(cgroup.join(name)).ok();
        let limit: u64 = read(self.limit)?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)?;
        let used: u64 = read(self.used)?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let mut unused = stat.lines().filter_map(|line| line.split_once(' '));
        let unused = unused.find_map(|(key, pages)| (key == self.unused).then(|| pages.parse().ok())?);
        Some(limit.saturating_sub(used.saturating_sub(unused.unwrap_or(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts_less_what_is_in_use() {
        for (line, mount, files, no_limit) in [
            ("0::/pods/own", ".", &V2, "max"),
            ("4:cpuset,memory:/pods/own", "memory", &V1, "9223372036854771712"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let mount = root.path().join(mount);
            let pods = mount.join("pods");
            std::fs::create_dir_all(pods.join("own/not-above-the-process")).unwrap();
            let left = || left_for(&format!("9:name=systemd:/\n{line}\n1:cpu:/elsewhere\n"), root.path());
            let write = |dir: &Path, name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
            assert_eq!(left(), None, "{line}");
            write(&mount, files.limit, &format!("{no_limit}\n"));
            write(&mount, files.used, "5\n");
            assert_eq!(left(), None, "{line}");
            write(&pods, files.limit, "1000\n");
            write(&pods, files.used, "900\n");
            assert_eq!(left(), Some(100), "{line}");
            write(&pods, "memory.stat", &format!("anon 1\n{} 300\nactive_file 7\n", files.unused));
            assert_eq!(left(), Some(400), "{line}");
            write(&pods.join("own/not-above-the-process"), files.limit, "1\n");
            write(&pods.join("own/not-above-the-process"), files.used, "0\n");
            assert_eq!(left(), Some(400), "{line}");
            write(&pods, files.limit, "50\n");
            assert_eq!(left(), Some(0), "{line}");
        }
    }

    #[test]
    fn in_a_cgroup_namespace_the_own_cgroup_is_the_mount() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("memory.max"), "1000").unwrap();
        std::fs::write(root.path().join("memory.current"), "1").unwrap();
        assert_eq!(left_for("0::/", root.path()), Some(999));
    }
}
