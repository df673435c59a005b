//! CPU lists.

use crate::{Target, allocated, is_short, text};
use dracpu_cpuset::{CpuSet, MAX_CPU_ID, StridedList};
use std::collections::BTreeSet;

pub(crate) const LISTS: Target = Target {
    name: "cpu_lists",
    check,
    fixed_kib: 64 << 10,
    per_byte: 256,
    words: &[
        "0-3",
        "8191",
        "8192",
        "0-8191",
        "0-8191:1/2",
        "5-9:2/4",
        ",",
        "-",
        ":",
        "/",
        " ",
        "\n",
        "0",
        "64",
        "63",
    ],
};

/// Lists, one a line.
fn check(input: &[u8]) {
    let mut last = (CpuSet::new(), BTreeSet::new());
    for line in text(input).split('\n').take(20) {
        let (parsed, allocated) = allocated(|| line.parse::<CpuSet>());
        assert!(allocated <= 4096, "a list of {} bytes took {allocated}", line.len());
        // The model takes its time.
        if line.len() > 1000 {
            continue;
        }
        let set = match parsed {
            Ok(set) => set,
            Err(error) => {
                is_short(&error);
                assert!(model(line).is_none(), "refused: {line}");
                continue;
            }
        };
        let cpus = model(line).unwrap_or_else(|| panic!("taken: {line}"));
        assert_eq!(set.iter().collect::<BTreeSet<_>>(), cpus);
        assert_eq!(
            (set.len(), set.first(), set.last()),
            (cpus.len(), cpus.first().copied(), cpus.last().copied())
        );
        let plain = set.to_string();
        assert_eq!(plain.parse(), Ok(set.clone()));
        let strided = StridedList(&set).to_string();
        assert!(strided.len() <= plain.len());
        assert_eq!(strided.parse(), Ok(set.clone()));
        assert_eq!(CpuSet::from_words(set.words().to_vec()), Some(set.clone()));
        assert_ne!(set.words().last(), Some(&0));
        algebra(&set, &cpus, &last);
        last = (set, cpus);
    }
}

fn algebra(set: &CpuSet, cpus: &BTreeSet<u32>, (other, others): &(CpuSet, BTreeSet<u32>)) {
    let collected = |set: CpuSet| set.iter().collect::<BTreeSet<_>>();
    assert_eq!(collected(set.union(other)), cpus | others);
    assert_eq!(collected(set.intersection(other)), cpus & others);
    assert_eq!(collected(set.difference(other)), cpus - others);
    assert_eq!(set.is_subset(other), cpus.is_subset(others));
    assert_eq!(set.is_disjoint(other), cpus.is_disjoint(others));
    // Equal sets are equal as data, however they came about.
    assert_eq!(set.difference(other).union(&set.intersection(other)), *set);
}

/// The list as the kernel's documentation describes it, read in another way.
fn model(line: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    if line.trim().is_empty() {
        return Some(cpus);
    }
    let number = |text: &str| -> Option<u32> {
        let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    };
    for field in line.trim().split(',').map(str::trim) {
        let (range, stride) = field.split_once(':').unwrap_or((field, "1/1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        let (used, step) = stride.split_once('/')?;
        let (used, step) = (number(used)?, number(step)?);
        if first > last || last > MAX_CPU_ID || used == 0 || used > step {
            return None;
        }
        for start in (first..=last).step_by(usize::try_from(step).ok()?) {
            cpus.extend(start..=last.min(start.saturating_add(used - 1)));
        }
    }
    Some(cpus)
}
