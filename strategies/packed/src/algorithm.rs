//! Best-fit packing by whole units: NUMA nodes and sockets, caches, cores, then single CPUs.
//!
//! This is the algorithm of the kubelet's static CPU manager policy, by exact sets instead of averages, so
//! that machines with uneven units are served as even ones are. `tests/vectors/README.md` describes it in
//! full, and which answers of the original were faults; `tests/vectors` holds the expected answers.

use crate::layout::{Layout, Unit, sorted, wide};
use dracpu_strategy_sdk::CpuSet;

/// What is taken when no larger unit fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Whole cores, then the remaining CPUs core by core.
    Packed,
    /// CPUs of a socket by ascending id, which on most machines are different cores.
    Spread,
}

/// Chooses `count` of the available CPUs. None when fewer are available.
///
/// With `prefer_llc`, level 3 caches are filled, whole or in part, before cores are looked at.
#[must_use]
pub fn packed(
    layout: &Layout,
    available: &CpuSet,
    count: usize,
    placement: Placement,
    prefer_llc: bool,
) -> Option<CpuSet> {
    let free = available.intersection(&layout.online);
    if count > free.len() {
        return None;
    }
    let mut packing = Packing { layout, free, need: count, taken: CpuSet::new() };
    packing.take_whole(Layout::first_order);
    packing.take_whole(Layout::second_order);
    if prefer_llc {
        packing.caches();
    }
    match placement {
        Placement::Packed => {
            packing.take_whole(Layout::core_order);
            packing.take_singles(Layout::core_order);
        }
        Placement::Spread => packing.take_singles(Layout::socket_order),
    }
    (packing.need == 0).then_some(packing.taken)
}

/// Chooses whole cores that make up exactly `count` CPUs, for machines whose cores differ in threads.
/// Earlier cores of the core order are preferred. None when the available whole cores do not add up.
#[must_use]
pub fn whole_cores(layout: &Layout, available: &CpuSet, count: usize) -> Option<CpuSet> {
    let free = available.intersection(&layout.online);
    let mut cores = layout.core_order(&free);
    cores.retain(|core| core.cpus.is_subset(&free));
    // By sum: the core with which the sum was first reached. The rest of it is made of earlier cores.
    let mut reached: Vec<Option<&Unit>> = vec![None; count + 1];
    for core in cores {
        for sum in (core.size..=count).rev() {
            let rest = sum - core.size;
            let open = reached.get(sum).is_some_and(Option::is_none);
            if open && (rest == 0 || reached.get(rest).is_some_and(Option::is_some)) {
                reached.get_mut(sum).map(|reached| reached.replace(core));
            }
        }
    }
    let mut chosen = CpuSet::new();
    let mut need = count;
    while need > 0 {
        let core = reached.get(need).copied().flatten()?;
        chosen.extend_from(&core.cpus);
        need -= core.size;
    }
    Some(chosen)
}

/// The CPUs of as few of these disjoint parts as hold `count`, in one NUMA node where that takes no more of
/// them. Of several such choices: the part that is filled last is the smallest that will do, so that large
/// ones stay whole. None when all parts together hold less.
#[must_use]
pub fn fewest_parts(layout: &Layout, parts: &[CpuSet], count: usize) -> Option<CpuSet> {
    let mut all = CpuSet::new();
    parts.iter().for_each(|part| all.extend_from(part));
    let nodes = layout.numa_order(&all);
    let node_of = |part: &CpuSet| nodes.iter().position(|node| !node.cpus.is_disjoint(part));
    let parts: Vec<(usize, &CpuSet)> =
        sorted(parts.iter().map(|part| node_of(part).map_or(u64::MAX, wide)).zip(0..))
            .into_iter()
            .filter_map(|at| parts.get(at))
            .map(|part| (part.len(), part))
            .collect();
    let fewest = cover(&parts, count)?;
    let in_node = |node: &&Unit| {
        let within: Vec<_> = parts.iter().copied().filter(|(_, part)| part.is_subset(&node.cpus)).collect();
        cover(&within, count).filter(|chosen| chosen.len() == fewest.len())
    };
    let chosen = nodes.iter().find_map(in_node).unwrap_or(fewest);
    let mut cpus = CpuSet::new();
    chosen.into_iter().for_each(|part| cpus.extend_from(part));
    Some(cpus)
}

/// The largest parts, until one can hold what is left; of those the smallest.
fn cover<'a>(parts: &[(usize, &'a CpuSet)], count: usize) -> Option<Vec<&'a CpuSet>> {
    let largest_first = sorted(parts.iter().map(|(size, _)| !wide(*size)).zip(0..));
    let mut left = largest_first.into_iter().filter_map(|at| parts.get(at)).peekable();
    let mut rest = count;
    let mut chosen = Vec::new();
    while rest > 0 {
        let (size, part) = *left.next()?;
        if size < rest {
            chosen.push(part);
            rest -= size;
            continue;
        }
        // The first of the smallest.
        let (mut size, mut part) = (size, part);
        while let Some((smaller, next)) = left.next_if(|(next, _)| *next >= rest) {
            if *smaller < size {
                (size, part) = (*smaller, *next);
            }
        }
        chosen.push(part);
        rest = 0;
    }
    Some(chosen)
}

/// A choice in the making.
struct Packing<'a> {
    layout: &'a Layout,
    free: CpuSet,
    need: usize,
    taken: CpuSet,
}

/// The units of one level that have a free CPU, in the order in which to look at them.
type Order = for<'a> fn(&'a Layout, &CpuSet) -> Vec<&'a Unit>;

impl Packing<'_> {
    fn take(&mut self, cpus: &CpuSet) {
        self.free.subtract(cpus);
        self.taken.extend_from(cpus);
        self.need = self.need.saturating_sub(cpus.len());
    }

    /// Takes every unit that is free as a whole and not larger than what is still needed.
    fn take_whole(&mut self, order: Order) {
        if self.need == 0 {
            return;
        }
        for unit in order(self.layout, &self.free) {
            if self.need >= unit.size && unit.cpus.is_subset(&self.free) {
                self.take(&unit.cpus);
            }
        }
    }

    /// Takes the free CPUs of each unit, ascending, until nothing is needed.
    fn take_singles(&mut self, order: Order) {
        if self.need == 0 {
            return;
        }
        for unit in order(self.layout, &self.free) {
            let some: CpuSet = unit.cpus.intersection(&self.free).iter().take(self.need).collect();
            self.take(&some);
        }
    }

    /// Whole caches once a cache is met that the need would fill; a part of the cache at hand otherwise.
    fn caches(&mut self) {
        if self.need == 0 {
            return;
        }
        let mut whole_taken = false;
        for cache in self.layout.llc_order(&self.free) {
            // One walk is enough: caches are disjoint and the need only shrinks, so that a second walk
            // would skip what the first one skipped.
            if !whole_taken && self.need >= cache.size {
                self.take_whole(Layout::llc_order);
                whole_taken = true;
            }
            if self.need == 0 {
                return;
            }
            self.part_of_cache(cache);
            if self.need == 0 {
                return;
            }
        }
    }

    /// All that is needed from one cache, or nothing. Cores come in key order and count with all their
    /// installed threads, so that a cache with half-used cores may be refused though enough is free.
    fn part_of_cache(&mut self, cache: &Unit) {
        let mut threads = 0;
        let mut candidates = CpuSet::new();
        for core in self.layout.cores.touched(&self.free.intersection(&cache.cpus)) {
            if threads >= self.need {
                break;
            }
            threads += core.size;
            candidates.extend_from(&core.cpus.intersection(&self.free));
        }
        if candidates.len() < self.need {
            return;
        }
        // The surplus is dropped from the core with the highest CPU, its highest CPUs first.
        while candidates.len() > self.need {
            let Some((_, core)) = candidates.last().and_then(|cpu| self.layout.cores.unit_of(cpu)) else {
                return;
            };
            while candidates.len() > self.need
                && let Some(cpu) = candidates.intersection(&core.cpus).last()
            {
                candidates.remove(cpu);
            }
        }
        self.take(&candidates);
    }
}
