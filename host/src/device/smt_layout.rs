//! `dra.cpu/smtLayout` and `dra.cpu/smtLayoutV2`: which CPUs are SMT siblings, as text that is short enough
//! for an attribute.
//!
//! V1, the form that consumers know: entries joined by `;`. `<cpuset>>S` are CPUs which pair up at id
//! distance S (the lowest unpaired CPU with the one S above it), `<cpuset>` are CPUs without sibling.
//! Entries with a stride come first, ascending; that without siblings is last. Two-way SMT only.
//!
//! V2 takes any number of threads and is read the same way, with two extensions:
//!
//! * `<cpuset>` may have strided ranges, `0-46:1/2`, as the kernel's `bitmap_parselist` reads them;
//! * behind `>` stand the distances from each sibling to the next one above it, joined by `+`; `DxN` is N
//!   times the distance D. The lowest CPU of the entry that has no core yet is the first of the next core.
//!
//! So `0-7>4` and `8-23>8;0-7` mean the same in both; `0-31:4/8>1x3` are cores of four neighbours at every
//! eighth CPU, and `0-7>2x3` the cores 0,2,4,6 and 1,3,5,7. Entries are in the order of their distances.

use dracpu_cpuset::{CpuSet, StridedList};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The V1 text for a machine with these cores; none when a core has more than two threads.
pub(super) fn v1(cores: &[CpuSet]) -> Option<String> {
    let shapes = shapes(cores);
    shapes.keys().all(|distances| distances.len() < 2).then(|| {
        join(shapes.iter().map(|(distances, cpus)| match distances.first() {
            Some(stride) => format!("{cpus}>{stride}"),
            None => cpus.to_string(),
        }))
    })
}

/// The V2 text for a machine with these cores.
pub(super) fn v2(cores: &[CpuSet]) -> String {
    join(shapes(cores).iter().map(|(distances, cpus)| {
        let mut entry = StridedList(cpus).to_string();
        let mut separator = '>';
        for same in distances.chunk_by(|a, b| a == b) {
            let Some(distance) = same.first() else { continue };
            let times = if same.len() > 1 { format!("x{}", same.len()) } else { String::new() };
            write!(entry, "{separator}{distance}{times}").expect("writing to a string does not fail");
            separator = '+';
        }
        entry
    }))
}

/// By the distances between a core's siblings, the CPUs of all such cores: one entry of the text each.
fn shapes(cores: &[CpuSet]) -> BTreeMap<Distances, CpuSet> {
    let mut shapes: BTreeMap<Distances, CpuSet> = BTreeMap::new();
    for core in cores {
        let distances = core.iter().zip(core.iter().skip(1)).map(|(cpu, next)| next - cpu).collect();
        shapes.entry(Distances(distances)).or_default().extend_from(core);
    }
    shapes
}

/// The distances from each sibling of a core to the next, ordered as the texts are: cores of one thread last.
#[derive(Debug, PartialEq, Eq)]
struct Distances(Vec<u32>);

impl std::ops::Deref for Distances {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl Ord for Distances {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.is_empty(), &self.0).cmp(&(other.is_empty(), &other.0))
    }
}

impl PartialOrd for Distances {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn join(entries: impl Iterator<Item = String>) -> String {
    entries.collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Reads either form as the documentation tells a consumer to: the cores, by lowest CPU.
    fn read(text: &str) -> Vec<CpuSet> {
        let mut cores = Vec::new();
        for entry in text.split(';').filter(|entry| !entry.is_empty()) {
            let (cpus, distances) = entry.split_once('>').unwrap_or((entry, ""));
            let mut offsets = vec![0];
            for field in distances.split('+').filter(|field| !field.is_empty()) {
                let (distance, times) = field.split_once('x').unwrap_or((field, "1"));
                for _ in 0..times.parse().unwrap() {
                    offsets.push(offsets.last().unwrap() + distance.parse::<u32>().unwrap());
                }
            }
            let mut rest: CpuSet = cpus.parse().unwrap();
            while let Some(lowest) = rest.first() {
                let core: CpuSet = offsets.iter().map(|offset| lowest + offset).collect();
                assert!(core.is_subset(&rest), "{text}: {core} from {rest}");
                rest.subtract(&core);
                cores.push(core);
            }
        }
        cores.sort_by_key(CpuSet::first);
        cores
    }

    fn cores(lists: &[&str]) -> Vec<CpuSet> {
        lists.iter().map(|list| list.parse().unwrap()).collect()
    }

    fn regular(count: u32, threads: u32, first: impl Fn(u32) -> u32, stride: u32) -> Vec<CpuSet> {
        (0..count).map(|core| (0..threads).map(|thread| first(core) + thread * stride).collect()).collect()
    }

    #[test]
    fn texts_of_common_machines_are_as_consumers_know_them() {
        let hybrid: Vec<CpuSet> =
            regular(8, 2, |core| 8 + core, 8).into_iter().chain(regular(8, 1, |core| core, 1)).collect();
        let cases = [
            ("siblings split", regular(4, 2, |core| core, 4), Some("0-7>4"), "0-7>4"),
            ("siblings adjacent", regular(4, 2, |core| 2 * core, 1), Some("0-7>1"), "0-7>1"),
            ("hybrid", hybrid, Some("8-23>8;0-7"), "8-23>8;0-7"),
            ("80 CPUs", regular(40, 2, |core| core, 40), Some("0-79>40"), "0-79>40"),
            ("no SMT", regular(64, 1, |core| core, 1), Some("0-63"), "0-63"),
            ("two strides", cores(&["0,4", "2-3", "1"]), Some("2-3>1;0,4>4;1"), "2-3>1;0,4>4;1"),
            ("four threads", regular(2, 4, |core| core, 2), None, "0-7>2x3"),
            ("four threads of eight online", regular(4, 4, |core| 8 * core, 1), None, "0-27:4/8>1x3"),
            ("a thread offline in the middle", cores(&["0-1,3-4", "5"]), None, "0-1,3-4>1+2+1;5"),
            ("nothing", Vec::new(), Some(""), ""),
        ];
        for (name, cores, first, second) in cases {
            assert_eq!(v1(&cores).as_deref(), first, "{name}");
            assert_eq!(v2(&cores), second, "{name}");
        }
    }

    /// Cores of up to `threads` threads over arbitrary CPUs.
    fn any_cores(threads: usize) -> impl Strategy<Value = Vec<CpuSet>> {
        let cpus = proptest::collection::vec(0..400u32, 0..80).prop_map(|cpus| {
            let mut seen = BTreeSet::new();
            cpus.into_iter().filter(|cpu| seen.insert(*cpu)).collect::<Vec<_>>()
        });
        (cpus, proptest::collection::vec(1..=threads, 80)).prop_map(|(cpus, sizes)| {
            let mut cpus = cpus.into_iter();
            let cores = sizes.into_iter().map(|size| cpus.by_ref().take(size).collect::<CpuSet>());
            let mut cores: Vec<CpuSet> = cores.filter(|core| !core.is_empty()).collect();
            cores.sort_by_key(CpuSet::first);
            cores
        })
    }

    proptest! {
        #[test]
        fn v1_reads_back_as_the_cores_it_was_made_from(cores in any_cores(2)) {
            prop_assert_eq!(read(&v1(&cores).unwrap()), cores);
        }

        #[test]
        fn v2_reads_back_as_the_cores_it_was_made_from(cores in any_cores(8)) {
            prop_assert_eq!(read(&v2(&cores)), cores.clone());
            if let Some(v1) = v1(&cores) {
                prop_assert!(v2(&cores).len() <= v1.len());
                prop_assert_eq!(read(&v1), cores);
            }
        }
    }
}
