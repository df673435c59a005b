//! Machines that nobody has built: drawn from a number, to find what a program takes for granted.

use crate::assemble::{Draft, DraftCpu, DraftNode};
use crate::facts::{Cache, CpuKind, PcieRoot, Topology};
use dracpu_cpuset::{CpuSet, Draw};
use std::collections::BTreeMap;

/// What the name of a drawn machine begins with; its number follows.
const PREFIX: &str = "random-";

/// The name of the machine that is drawn from a number.
#[must_use]
pub fn random_name(number: u32) -> String {
    format!("{PREFIX}{number}")
}

/// The machine of this name and its reserved CPUs; none when it is not the name of a drawn machine.
pub(crate) fn find(name: &str) -> Option<(Topology, CpuSet)> {
    let number: u32 = name.strip_prefix(PREFIX)?.parse().ok()?;
    if random_name(number) != name {
        return None; // `random-007` and `random-+7` are not names
    }
    draw(number)
}

/// A core before it is part of a machine.
struct Core {
    socket: i64,
    die: Option<i64>,
    cluster: Option<i64>,
    node: Option<u32>,
    cache: Option<u32>,
    kind: CpuKind,
    threads: u32,
}

/// Sockets of cores, uneven in everything; then CPUs that are offline, isolated or reserved.
fn draw(number: u32) -> Option<(Topology, CpuSet)> {
    let mut draw = Draw::of(u64::from(number));
    let cores = cores(&mut draw);
    let mut cpus = numbered(&mut draw, &cores);
    let ids: CpuSet = cpus.iter().map(|(id, _)| *id).collect();
    let offline = if draw.one_in(2) { draw.some(&ids, 6) } else { CpuSet::new() };
    cpus.retain(|(id, _)| !offline.contains(*id) || ids.first() == Some(*id));
    let online: CpuSet = cpus.iter().map(|(id, _)| *id).collect();

    let mut caches: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for (id, core) in &cpus {
        if let Some(cache) = cores.get(*core)?.cache {
            caches.entry(cache).or_default().insert(*id);
        }
    }
    let (level, ids_known) = (if draw.one_in(5) { 2 } else { 3 }, !draw.one_in(5));
    let sizes: BTreeMap<u32, u64> = caches.keys().map(|id| (*id, u64::from(draw.below(5)) << 23)).collect();
    // A core id is the core's number on its socket, has holes, or is unknown.
    let (step, core_ids_known) = (1 + draw.below(3), !draw.one_in(6));
    let mut numbers: BTreeMap<i64, u32> = BTreeMap::new();
    let core_ids: Vec<u32> = cores
        .iter()
        .map(|core| {
            let next = numbers.entry(core.socket).or_default();
            std::mem::replace(next, *next + step)
        })
        .collect();
    let mut draft = Draft { offline: offline.difference(&online), ..Draft::default() };
    for (id, at) in &cpus {
        let core = cores.get(*at)?;
        let siblings = cpus.iter().filter(|(_, other)| other == at).map(|(id, _)| *id).collect();
        draft.cpus.push(DraftCpu {
            id: *id,
            socket: Some(core.socket),
            die: core.die,
            cluster: core.cluster,
            core_id: core_ids.get(*at).copied().filter(|_| core_ids_known),
            siblings: Some(siblings),
            numa_node: core.node,
            llc: core.cache.map(|cache| Cache {
                level,
                id: ids_known.then_some(cache),
                size_bytes: sizes.get(&cache).copied().unwrap_or_default(),
                cpus: caches.get(&cache).cloned().unwrap_or_default(),
            }),
            kind: core.kind.clone(),
        });
    }
    draft.cpus.sort_by_key(|cpu| cpu.id);
    draft.nodes = nodes(&mut draw, &cores);
    draft.isolated = if draw.one_in(3) { draw.some(&ids, 4) } else { CpuSet::new() };
    if draw.one_in(3) {
        let names = ["pci0000:00", "pci0000:40"].map(str::to_owned);
        draft.pcie_roots = names.map(|name| PcieRoot { name, cpus: draw.some(&online, 2) }).to_vec();
    }
    let reserved = if draw.one_in(2) { draw.some(&online, 8) } else { CpuSet::new() };
    Some((draft.assemble("the drawn machine").ok()?, reserved))
}

fn cores(draw: &mut Draw) -> Vec<Core> {
    let sockets = 1 + draw.below(3) * draw.below(2);
    // NUMA nodes and caches lie within sockets, or across them, or are not known.
    let (nodes, caches) = (draw.below(5), draw.below(5));
    let (apart, scattered) = (draw.one_in(2), draw.one_in(4));
    let (dies, clusters) = (draw.one_in(4), draw.one_in(4));
    let (widest, mixed, hybrid) = ([1, 2, 2, 2, 4, 8], draw.one_in(4), draw.one_in(5));
    let widest = draw.pick(&widest).copied().unwrap_or(1);
    let most = if draw.one_in(6) { 48 } else { 14 };
    let mut cores = Vec::new();
    for socket in 0..sockets {
        for core in 0..1 + draw.below(most) {
            let part = |draw: &mut Draw, parts: u32| {
                let part = if scattered { draw.below(parts) } else { core * parts / most };
                (parts > 0).then_some(if apart { socket * parts + part } else { part })
            };
            let (node, cache) = (part(draw, nodes), part(draw, caches));
            let efficient = hybrid && draw.one_in(2);
            let threads = if mixed { 1 + draw.below(widest) } else { widest };
            cores.push(Core {
                socket: i64::from(socket),
                die: dies.then_some(i64::from(core % 2)),
                cluster: clusters.then_some(i64::from(core / 4)),
                // Numbers of nodes have holes.
                node: node.map(|node| node * 2),
                cache,
                kind: match (hybrid, efficient) {
                    (false, _) => CpuKind::default(),
                    (true, true) => CpuKind { name: "e-core".to_owned(), capacity: 600 },
                    (true, false) => CpuKind { name: "p-core".to_owned(), capacity: 1024 },
                },
                threads: if efficient { 1 } else { threads },
            });
        }
    }
    cores
}

/// The CPUs of cores as (id, position of the core): threads side by side, or first threads of all cores
/// first, or in no order; in each case sometimes with holes, and sometimes with high numbers.
fn numbered(draw: &mut Draw, cores: &[Core]) -> Vec<(u32, usize)> {
    let threads = |(at, core): (usize, &Core)| (0..core.threads).map(move |thread| (thread, at));
    let mut order: Vec<(u32, usize)> = cores.iter().enumerate().flat_map(threads).collect();
    match draw.below(3) {
        0 => {}
        1 => order.sort_unstable(),
        _ => draw.shuffle(&mut order),
    }
    let holes = draw.one_in(3);
    let mut next = if draw.one_in(5) { 1000 * draw.below(8) } else { 0 };
    let number = |(_, core)| {
        let id = next;
        next += if holes { 1 + draw.below(3) } else { 1 };
        (id, core)
    };
    order.into_iter().map(number).collect()
}

/// The nodes of the cores, sometimes one with memory only, sometimes with distances.
fn nodes(draw: &mut Draw, cores: &[Core]) -> Vec<DraftNode> {
    let mut ids: Vec<u32> = cores.iter().filter_map(|core| core.node).collect();
    ids.sort_unstable();
    ids.dedup();
    if !ids.is_empty() && draw.one_in(4) {
        ids.push(90);
    }
    let known = draw.one_in(2);
    let distance = |a: &u32, b: &u32| if a == b { 10 } else { 10 + a.abs_diff(*b).min(60) };
    ids.iter()
        .map(|id| DraftNode {
            id: *id,
            memory_bytes: Some(u64::from(draw.below(64)) << 30),
            distances: if known { ids.iter().map(|other| distance(id, other)).collect() } else { Vec::new() },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_is_the_same_machine_and_its_description_too() {
        for number in 0..200 {
            let name = random_name(number);
            let (topology, reserved) = find(&name).unwrap();
            assert_eq!(find(&name).unwrap(), (topology.clone(), reserved.clone()), "{name}");
            assert!(reserved.is_subset(&topology.online()), "{name}");
            let text = crate::to_json(&topology, &reserved).to_string();
            assert_eq!(crate::described::from_json(&text).unwrap(), (topology, reserved), "{name}");
        }
    }

    #[test]
    fn other_names_are_no_drawn_machines() {
        for name in ["random", "random-", "random-x", "random-007", "random-+7", "random-4294967296", "small"]
        {
            assert!(find(name).is_none(), "{name}");
        }
    }

    #[test]
    fn they_are_odd_in_every_way() {
        let machines: Vec<(Topology, CpuSet)> =
            (0..100).map(|number| find(&random_name(number)).unwrap()).collect();
        type Odd = fn(&Topology, &CpuSet) -> bool;
        let odd: [(&str, Odd); 12] = [
            ("reserved", |_, reserved| !reserved.is_empty()),
            ("isolated", |it, _| !it.isolated.is_empty()),
            ("offline", |it, _| !it.offline.is_empty()),
            ("no NUMA", |it, _| it.numa_nodes.is_empty()),
            ("memory only", |it, _| it.numa_nodes.iter().any(|node| node.cpus.is_empty())),
            ("no cache", |it, _| it.caches.is_empty()),
            ("unequal caches", |it, _| {
                it.caches.iter().any(|cache| cache.cpus.len() != it.caches[0].cpus.len())
            }),
            ("unequal cores", |it, _| it.cores.iter().any(|core| core.len() != it.cores[0].len())),
            ("kinds", |it, _| it.kinds.len() > 1),
            ("roots", |it, _| !it.pcie_roots.is_empty()),
            ("high numbers", |it, _| it.online().first() > Some(0)),
            ("one core", |it, _| it.cores.len() == 1),
        ];
        for (what, is_odd) in odd {
            let count = machines.iter().filter(|(topology, reserved)| is_odd(topology, reserved)).count();
            assert!((1..90).contains(&count), "{what}: {count} of 100");
        }
    }
}
