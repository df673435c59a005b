//! How much memory this process may still take: what its cgroups have left (Linux `admin-guide/cgroup-v2.rst`).

use std::path::Path;

/// Bytes that are left under the tightest limit above this process; none where no limit is known, as in cgroup v1.
/// `cgroups` is where cgroup v2 is mounted.
pub(super) fn left(cgroups: &Path) -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let deepest = cgroups.join(own.trim_start_matches('/'));
    deepest.ancestors().take_while(|dir| dir.starts_with(cgroups)).filter_map(left_in).min()
}

/// File pages that nobody uses can be dropped at once, so they are no use of memory.
fn left_in(cgroup: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(cgroup.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let unused = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(unused.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts_less_what_is_in_use() {
        let root = tempfile::tempdir().unwrap();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return };
        let deepest = root.path().join(own).join("inner");
        std::fs::create_dir_all(&deepest).unwrap();
        assert_eq!(left(root.path()), None);
        let write = |dir: &Path, name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        write(root.path(), "memory.max", "max\n");
        write(root.path(), "memory.current", "5\n");
        assert_eq!(left(root.path()), None);
        let own = root.path().join(own);
        write(&own, "memory.max", "1000\n");
        write(&own, "memory.current", "900\n");
        assert_eq!(left(root.path()), Some(100));
        write(&own, "memory.stat", "anon 1\ninactive_file 300\nactive_file 7\n");
        assert_eq!(left(root.path()), Some(400));
        write(&own, "memory.max", "50\n");
        assert_eq!(left(root.path()), Some(0));
    }
}
