//! Hands back what is needed rarely: most of the daemon's memory is the program itself, and much of that reads
//! configuration, compiles components and sets up connections, once.
//!
//! The kernel maps a program's file piece by piece as it is used, with the neighbourhood of each piece (`fault_around_bytes`),
//! and takes nothing back while memory is plenty. What is unmapped here stays in the page cache for as long as the kernel
//! likes; what is used again is mapped again at its next use, in microseconds and without reading the disk.

use rustix::mm::{Advice, madvise};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Unmaps what this process has mapped of its own program and never writes to. Returns how many bytes of addresses that
/// are.
///
/// # Errors
/// When `/proc` does not say what is mapped, or the kernel refuses.
pub(crate) fn unmap_program() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let mut bytes = 0;
    for range in unwritten(&fs::read_to_string("/proc/self/smaps")?, &program) {
        bytes += range.len();
        unmap(range)?;
    }
    Ok(bytes)
}

#[allow(unsafe_code, reason = "the call takes an address")]
fn unmap(range: Range<usize>) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: the range is a whole mapping of a file, not writable and without a page of its own: whatever is read there
    // next is the same bytes from the file.
    unsafe { madvise(start, range.len(), Advice::LinuxDontNeed) }?;
    Ok(())
}

/// The mappings of a file that can't be written to and have no page that differs from the file (as relocated data has,
/// which is made read-only later). In the form of proc_pid_smaps(5).
fn unwritten(smaps: &str, file: &Path) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(key) = first.strip_suffix(':') {
            // The last of the keys that are looked at here.
            if key == "Anonymous"
                && words.next() == Some("0")
                && let Some(range) = mapping.take()
            {
                ranges.push(range);
            }
            continue;
        }
        let permissions = words.next().unwrap_or_default();
        let path = words.nth(3).map(Path::new);
        mapping = addresses(first)
            .filter(|_| permissions.starts_with('r') && !permissions.contains('w') && path == Some(file));
    }
    ranges
}

/// `55d0c000-55d0d000`.
fn addresses(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 r--p 00000000 fe:00 12  /dracpu
Rss:                3000 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
7f0000400000-7f0000c00000 r-xp 00400000 fe:00 12  /dracpu
Rss:                7000 kB
Anonymous:             0 kB
7f0000c00000-7f0000d00000 r--p 00c00000 fe:00 12  /dracpu
Rss:                1000 kB
Anonymous:          1000 kB
7f0000d00000-7f0000d10000 rw-p 00d00000 fe:00 12  /dracpu
Anonymous:             0 kB
7f0000d10000-7f0000d20000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000d20000-7f0000d30000 r-xp 00000000 fe:00 13  /cache/strategy
Anonymous:             0 kB
7f0000d30000-7f0000d40000 r-xp 00000000 00:00 0  [vdso]
Anonymous:             0 kB
";

    #[test]
    fn only_what_equals_the_file_and_stays_so_is_unmapped() {
        let ranges = unwritten(SMAPS, Path::new("/dracpu"));
        assert_eq!(ranges, [0x7f00_0000_0000..0x7f00_0040_0000, 0x7f00_0040_0000..0x7f00_00c0_0000]);
    }

    #[test]
    fn the_program_runs_on_and_has_less_of_itself_in_memory() {
        let of_files = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let before = of_files();
        let bytes = unmap_program().unwrap();
        assert!(bytes > 0);
        assert!(of_files() < before, "{} kB of {before} kB", of_files());
    }
}
