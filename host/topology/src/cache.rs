use crate::error::ReadError;
use crate::facts::Cache;
use crate::read::CPU;
use crate::tree::Tree;
use dracpu_cpuset::CpuSet;

/// The last-level cache of a CPU: level 3 where it has one, else the highest level that it has. Instruction
/// caches do not count, nor does one that names no online CPU (some kernels show caches of nobody).
///
/// Source: Linux `Documentation/ABI/testing/sysfs-devices-system-cpu`, `cache/index*`.
pub(crate) fn last_level(tree: &Tree<'_>, cpu: u32, online: &CpuSet) -> Result<Option<Cache>, ReadError> {
    let caches = format!("{CPU}/cpu{cpu}/cache");
    let mut best: Option<(u32, String, CpuSet)> = None;
    for index in tree.numbered(&caches, "index")? {
        let dir = format!("{caches}/index{index}");
        let level = tree.number(&format!("{dir}/level"))?.and_then(|level| u32::try_from(level).ok());
        let Some(level) = level.filter(|level| best.as_ref().is_none_or(|best| is_later(*level, best.0)))
        else {
            continue;
        };
        if tree.text(&format!("{dir}/type"))?.is_some_and(|kind| kind == "Instruction") {
            continue;
        }
        let shared = tree.first_cpu_set(&dir, &["shared_cpu_list"], &["shared_cpu_map"])?;
        let shared = shared.map(|cpus| cpus.intersection(online)).filter(|cpus| !cpus.is_empty());
        best = shared.map(|cpus| (level, dir, cpus)).or(best);
    }
    let Some((level, dir, cpus)) = best else { return Ok(None) };
    // An id is a number or not there; the odd driver prints -1.
    let id = tree.number(&format!("{dir}/id"))?.and_then(|id| u32::try_from(id).ok());
    let size_path = format!("{dir}/size");
    let size_bytes = match tree.text(&size_path)?.filter(|size| !size.is_empty()) {
        None => 0,
        Some(text) => {
            size(&text).ok_or_else(|| tree.malformed(&size_path, &text, "not a size like 16384K"))?
        }
    };
    Ok(Some(Cache { level, id, size_bytes, cpus }))
}

/// Whether a level counts before another: 3 before all, else the higher.
pub(crate) fn is_later(level: u32, than: u32) -> bool {
    than != 3 && (level == 3 || level > than)
}

/// A size in bytes, with the unit K, M, G or T.
pub(crate) fn size(text: &str) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let factor: u64 = match unit.trim() {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    };
    text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(size("16384K"), Some(16 << 20));
        assert_eq!(size("32M"), Some(32 << 20));
        assert_eq!(size("512"), Some(512));
        for text in ["K", "-1K", "16X", "99999999999999999999K", "18446744073709551615G"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn an_l3_is_the_last_level_also_with_an_l4() {
        assert!(is_later(3, 2) && is_later(2, 1) && is_later(4, 2) && is_later(3, 4));
        assert!(!is_later(4, 3) && !is_later(1, 2) && !is_later(3, 3) && !is_later(2, 2));
    }
}
