//! Machines in a few lines: a shape from the outside in, how CPUs are numbered, and what is odd about it.
//!
//! ```yaml
//! # 64 CPUs: the first line says what the machine is like
//! shape: socket:2 numa:1(128G) l3:4(16M) core:4 thread:2
//! numbering: thread * socket
//! offline: 3,17
//! ```
//!
//! | key | meaning |
//! |---|---|
//! | `shape` | `LEVEL:COUNT` with the size of a cache or of a node's memory in brackets: that many in each of what stands before. Levels are `socket`, `die`, `cluster`, `numa`, `l1` to `l4`, `core`, `thread`, in any order: an L3 before the nodes spans them. `[a \| b]` are unlike parts beside each other, and what follows is in each of them. `kind=p-core` and `capacity=512` are for what follows them |
//! | `numbering` | the loops that number the CPUs, the slowest first; `*` is what is not named. `thread *`: all first threads, then all second ones; `thread * socket`: sockets take turns; left out: threads of a core are neighbours |
//! | `cpus` | the ids to give in this order, instead of 0, 1, 2 |
//! | `ids` | the kernel's ids by level: `none`, `per LEVEL` (a running number in each of these, or `per machine`), `per LEVEL step N`, or a list, taken in order and again from its start |
//! | `absent` | CPUs that are taken out of the shape |
//! | `offline`, `isolated`, `nohzFull` | as the kernel lists them |
//! | `memory` | memory by node id: for nodes without CPUs, and for nodes that differ |
//! | `distances` | a row for each node; left out: 10, in the same socket 12, else 21 |
//! | `pcie` | PCIe roots, `0000:00 0000:40`, each local to a node, in equal shares |
//!
//! Reading order: this file (the keys), `tree` (`shape` and `numbering`), `ids`.

mod ids;
mod tree;

use crate::assemble::{Draft, DraftCpu, DraftNode};
use crate::cache::{is_later, size};
use crate::facts::{Cache, CpuKind, PcieRoot, Topology};
use crate::kind::relative;
use crate::printable::shown;
use crate::{pcie, yaml};
use dracpu_cpuset::CpuSet;
use ids::Ids;
use serde::Deserialize;
use std::collections::BTreeMap;
use tree::{Leaf, Level};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Text {
    shape: String,
    #[serde(default)]
    numbering: String,
    cpus: Option<String>,
    #[serde(default)]
    ids: BTreeMap<String, String>,
    #[serde(default)]
    absent: String,
    #[serde(default)]
    offline: String,
    #[serde(default)]
    isolated: String,
    #[serde(default)]
    nohz_full: String,
    #[serde(default)]
    memory: BTreeMap<u32, String>,
    #[serde(default)]
    distances: Vec<Vec<u32>>,
    #[serde(default)]
    pcie: String,
}

/// Whether text is a machine in this form.
pub(crate) fn is_shape(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("shape:"))
}

/// Expands a machine.
///
/// # Errors
/// Text that says what is wrong with the description.
pub(crate) fn expand(text: &str) -> Result<Topology, String> {
    let text: Text = yaml::parse(text)?;
    // Absent CPUs count while ids are given out, as those of cores that firmware has taken out do.
    let leaves = text.leaves()?;
    let absent = list("absent", &text.absent)?;
    let all: CpuSet = leaves.iter().map(|(cpu, _)| *cpu).filter(|cpu| !absent.contains(*cpu)).collect();
    let some_of = |what: &str, text: &str| {
        let cpus = list(what, text)?;
        match cpus.difference(&all).first() {
            Some(cpu) => Err(format!("{what} names CPU {cpu}, the shape has no such CPU")),
            None => Ok(cpus),
        }
    };
    let offline = some_of("offline", &text.offline)?;
    let present = all.difference(&offline);
    let online: Vec<(u32, &Leaf)> =
        leaves.iter().filter(|(cpu, _)| present.contains(*cpu)).map(|(cpu, leaf)| (*cpu, leaf)).collect();
    let ids = Ids::parse(&text.ids)?;
    let draft = Draft {
        cpus: cpus(&online, &ids, &leaves)?,
        nodes: text.nodes(&leaves, &ids)?,
        pcie_roots: text.pcie_roots(&online)?,
        offline,
        isolated: some_of("isolated", &text.isolated)?,
        nohz_full: some_of("nohzFull", &text.nohz_full)?,
        ..Draft::default()
    };
    draft.assemble("the shape").map_err(|_| "no CPU is online".to_owned())
}

impl Text {
    /// The shape's logical CPUs with the kernel's numbers, ascending.
    fn leaves(&self) -> Result<Vec<(u32, Leaf)>, String> {
        let leaves = tree::number(tree::expand(&self.shape)?, &self.numbering)?;
        let ids: Vec<u32> = match &self.cpus {
            Some(cpus) => list("cpus", cpus)?.iter().collect(),
            None => (0..).take(leaves.len()).collect(),
        };
        if ids.len() != leaves.len() {
            return Err(format!("cpus has {} ids, the shape {} CPUs", ids.len(), leaves.len()));
        }
        Ok(ids.into_iter().zip(leaves).collect())
    }

    /// Nodes of the shape, and those that only have memory.
    fn nodes(&self, leaves: &[(u32, Leaf)], ids: &Ids) -> Result<Vec<DraftNode>, String> {
        let numbers = ids.of(Level::Numa, leaves.iter().map(|(_, leaf)| leaf));
        // Of each node: its memory, and the socket that it is in.
        let mut nodes: BTreeMap<u32, (u64, Option<usize>)> = BTreeMap::new();
        for (_, leaf) in leaves {
            let Some(id) = node_id(&numbers, leaf) else { continue };
            nodes.entry(id).or_insert((leaf.size(Level::Numa).unwrap_or(0), leaf.instance(Level::Socket)));
        }
        for (id, memory) in &self.memory {
            let bytes = size(memory)
                .ok_or_else(|| format!("memory of node {id} is `{memory}`, not a size like 16G"))?;
            nodes.entry(*id).or_insert((0, None)).0 = bytes;
        }
        if !self.distances.is_empty() && self.distances.len() != nodes.len() {
            return Err(format!(
                "distances has {} rows for {} NUMA nodes",
                self.distances.len(),
                nodes.len()
            ));
        }
        let row = |socket: Option<usize>, of: u32| {
            let distance = |(id, (_, other)): (&u32, &(u64, Option<usize>))| match *id {
                id if id == of => 10,
                _ if *other == socket && socket.is_some() => 12,
                _ => 21,
            };
            nodes.iter().map(distance).collect()
        };
        let mut rows = self.distances.iter();
        let node = |(id, (memory, socket)): (&u32, &(u64, Option<usize>))| DraftNode {
            id: *id,
            memory_bytes: Some(*memory),
            distances: rows.next().cloned().unwrap_or_else(|| row(*socket, *id)),
        };
        Ok(nodes.iter().map(node).collect())
    }

    fn pcie_roots(&self, online: &[(u32, &Leaf)]) -> Result<Vec<PcieRoot>, String> {
        let mut nodes: BTreeMap<Option<usize>, CpuSet> = BTreeMap::new();
        for (cpu, leaf) in online {
            nodes.entry(leaf.instance(Level::Numa)).or_default().insert(*cpu);
        }
        let nodes: Vec<CpuSet> = nodes.into_values().collect();
        let roots: Vec<&str> = self.pcie.split_whitespace().collect();
        let root = |(at, bus): (usize, &&str)| {
            if !pcie::is_bus(bus) {
                return Err(format!("pcie names `{bus}`, not a domain and bus like 0000:40"));
            }
            let cpus = nodes.get(at * nodes.len() / roots.len()).cloned().unwrap_or_default();
            Ok(PcieRoot { name: format!("pci{bus}"), cpus })
        };
        roots.iter().enumerate().map(root).collect()
    }
}

fn list(what: &str, text: &str) -> Result<CpuSet, String> {
    text.parse().map_err(|error| format!("{what} is `{text}`: {error}"))
}

/// The kernel's number of the node that a CPU is in.
fn node_id(numbers: &BTreeMap<usize, i64>, leaf: &Leaf) -> Option<u32> {
    numbers.get(&leaf.instance(Level::Numa)?).and_then(|id| u32::try_from(*id).ok())
}

/// The online CPUs as the kernel would describe them.
fn cpus(online: &[(u32, &Leaf)], ids: &Ids, leaves: &[(u32, Leaf)]) -> Result<Vec<DraftCpu>, String> {
    let mut shared: BTreeMap<(Level, usize), CpuSet> = BTreeMap::new();
    for (cpu, leaf) in online {
        for (level, instance) in leaf.instances() {
            shared.entry((level, instance)).or_default().insert(*cpu);
        }
    }
    let of_level = |level| (level, ids.of(level, leaves.iter().map(|(_, leaf)| leaf)));
    let numbers: BTreeMap<Level, BTreeMap<usize, i64>> = Level::ALL.into_iter().map(of_level).collect();
    let id = |leaf: &Leaf, level: Level| numbers.get(&level)?.get(&leaf.instance(level)?).copied();
    let some_id = |leaf: &Leaf, level: Level| id(leaf, level).and_then(|id| u32::try_from(id).ok());
    let fastest = online.iter().filter_map(|(_, leaf)| leaf.capacity).max().unwrap_or(0);
    online
        .iter()
        .map(|(cpu, leaf)| {
            let cache_levels = leaf.instances().filter_map(|(level, _)| Some((level, level.cache()?)));
            let last = cache_levels.reduce(|a, b| if is_later(b.1, a.1) { b } else { a });
            let llc = last.and_then(|(level, number)| {
                let cpus = shared.get(&(level, leaf.instance(level)?))?.clone();
                let size_bytes = leaf.size(level).unwrap_or(0);
                Some(Cache { level: number, id: some_id(leaf, level), size_bytes, cpus })
            });
            let core = leaf.instance(Level::Core).and_then(|core| shared.get(&(Level::Core, core)));
            let name = leaf.kind.clone().unwrap_or(CpuKind::default().name);
            let speed = leaf.capacity.unwrap_or(fastest);
            Ok(DraftCpu {
                id: *cpu,
                socket: Some(id(leaf, Level::Socket).unwrap_or(-1))
                    .filter(|_| leaf.instance(Level::Socket).is_some()),
                die: id(leaf, Level::Die),
                cluster: id(leaf, Level::Cluster),
                core_id: some_id(leaf, Level::Core),
                siblings: Some(core.cloned().unwrap_or_else(|| CpuSet::from([*cpu]))),
                numa_node: numbers.get(&Level::Numa).and_then(|numbers| node_id(numbers, leaf)),
                llc,
                kind: CpuKind {
                    name: shown("kind", name)?,
                    capacity: relative(speed.into(), fastest.into()),
                },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> String {
        sets.into_iter().map(CpuSet::to_string).collect::<Vec<_>>().join(" ")
    }

    fn cores(text: &str) -> String {
        lists(&expand(text).unwrap().cores)
    }

    #[test]
    fn loops_number_the_cpus() {
        let shape = "shape: socket:2 core:2 thread:2\n";
        for (numbering, expected) in [
            ("*", "0-1 2-3 4-5 6-7"),
            ("thread *", "0,4 1,5 2,6 3,7"),
            ("thread * socket", "0,4 1,5 2,6 3,7"),
            ("socket thread *", "0,2 1,3 4,6 5,7"),
        ] {
            assert_eq!(cores(&format!("{shape}numbering: '{numbering}'\n")), expected, "{numbering}");
        }
        let turns = expand(&format!("{shape}numbering: thread * socket\n")).unwrap();
        assert_eq!(lists(turns.sockets.iter().map(|socket| &socket.cpus)), "0,2,4,6 1,3,5,7");
    }

    #[test]
    fn levels_nest_as_they_are_written() {
        let spanning = expand("shape: socket:1 l3:1(32M) numa:2(1G) core:2\n").unwrap();
        assert_eq!(lists(spanning.caches.iter().map(|cache| &cache.cpus)), "0-3");
        assert_eq!(lists(spanning.numa_nodes.iter().map(|node| &node.cpus)), "0-1 2-3");
        assert_eq!((spanning.caches[0].size_bytes, spanning.numa_nodes[1].memory_bytes), (32 << 20, 1 << 30));
        let one_node = expand("shape: numa:1 socket:3 l3:1\n").unwrap();
        assert_eq!((one_node.numa_nodes.len(), one_node.sockets.len(), one_node.cpus.len()), (1, 3, 3));
        let bare = expand("shape: core:2\n").unwrap();
        assert_eq!((bare.sockets[0].id, bare.numa_nodes.len(), bare.caches.len()), (-1, 0, 0));
    }

    #[test]
    fn unlike_parts_stand_beside_each_other() {
        let hybrid = expand(
            "shape: socket:1 [l3:1 [kind=p-core core:2 thread:2 | kind=e-core capacity=512 cluster:1 l2:1 core:2] | \
             kind=e-core capacity=256 l2:1 core:1]\nids: {l3: none}\n",
        );
        let hybrid = hybrid.unwrap();
        assert_eq!(lists(&hybrid.cores), "0-1 2-3 4 5 6");
        assert_eq!(lists(hybrid.caches.iter().map(|cache| &cache.cpus)), "0-5 6");
        assert_eq!((hybrid.caches[0].id, hybrid.caches[1].level), (None, 2));
        let kinds: Vec<_> = hybrid.kinds.iter().map(|kind| (kind.name.as_str(), kind.capacity)).collect();
        assert_eq!(kinds, [("p-core", 1024), ("e-core", 1024), ("e-core", 512)], "relative to what is given");
        assert_eq!(cores("shape: '[socket:1 core:1 | socket:1 core:2] thread:3'\n"), "0-2 3-5 6-8");
    }

    #[test]
    fn ids_and_cpus_may_be_anything() {
        let machine = expand(
            "shape: socket:2 numa:1 l3:2 core:2\ncpus: 0-1,8-9,16-17,30,8191\nabsent: '30'\noffline: '9'\n\
             ids: {socket: '36,8442', numa: '2,8', core: per l3 step 4, l3: per socket}\nmemory: {2: 0, 250: 4G}\n",
        );
        let machine = machine.unwrap();
        assert_eq!(
            (machine.online().to_string(), machine.offline.to_string()),
            ("0-1,8,16-17,8191".into(), "9".into())
        );
        assert_eq!(machine.sockets.iter().map(|socket| socket.id).collect::<Vec<_>>(), [36, 8442]);
        assert_eq!(machine.numa_nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [2, 8, 250]);
        assert_eq!(machine.numa_nodes[2].memory_bytes, 4 << 30);
        assert_eq!(machine.numa_nodes[0].distances, [10, 21, 21]);
        let cores: Vec<_> = machine.cpus.iter().map(|cpu| cpu.core_id).collect();
        assert_eq!(cores, [0, 4, 0, 0, 4, 4].map(Some));
        assert_eq!(machine.caches.iter().map(|cache| cache.id).collect::<Vec<_>>(), [0, 1, 0, 1].map(Some));
        let unknown = expand("shape: socket:2 core:2\nids: {socket: '-1', core: none}\n").unwrap();
        assert_eq!((unknown.sockets.len(), unknown.cpus[0].core_id), (1, None));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("shape: ''\n", "one CPU"),
            ("shape: sockets:2\n", "`sockets:2`"),
            ("shape: core:0\n", "`core:0`"),
            ("shape: core\n", "`core`"),
            ("shape: core:2(big)\n", "`core:2(big)`"),
            ("shape: core:2 core:2\n", "core is there twice"),
            ("shape: core:8193\n", "more than 8192 CPUs"),
            ("shape: numa:4000000000 core:4000000000\n", "more than 8192 CPUs"),
            ("shape: '[core:1 | core:2'\n", "`[`"),
            ("shape: core:1 ] core:2\n", "`]`"),
            ("shape: core:1 | core:2\n", "`|`"),
            ("shape: kind= core:1\n", "`kind=`"),
            ("shape: core:2\nnumbering: thread\n", "`*`"),
            ("shape: core:2\nnumbering: '* * thread'\n", "`*`"),
            ("shape: core:2\nnumbering: '* strand'\n", "`strand`"),
            ("shape: core:2\ncpus: '0'\n", "cpus has 1 ids"),
            ("shape: core:2\noffline: '2'\n", "CPU 2"),
            ("shape: core:2\noffline: 0-1\n", "no CPU is online"),
            ("shape: core:2\nids: {core: per strand}\n", "per strand"),
            ("shape: core:2\nids: {strand: none}\n", "strand"),
            ("shape: core:2\nids: {core: '1,x'}\n", "1,x"),
            ("shape: core:2\nmemory: {0: much}\n", "much"),
            ("shape: core:2\ndistances: [[10]]\n", "1 rows for 0"),
            ("shape: core:2\npcie: 00:00\n", "00:00"),
            ("shape: core:2\nshapes: 1\n", "shapes"),
        ] {
            let fault = expand(text).unwrap_err();
            assert!(fault.contains(expected), "{text}: {fault}");
        }
        let deep = format!("shape: '{}core:1'\n", "[ ".repeat(100_000));
        assert!(expand(&deep).unwrap_err().contains("deep"));
    }
}
