//! Best-fit packing by whole units: NUMA nodes and sockets, caches, cores, then single CPUs.
//!
//! This is the algorithm of the kubelet's static CPU manager policy, by exact sets instead of averages, so
//! that machines with uneven units are served as even ones are. `tests/vectors/README.md` describes it in
//! full, and which answers of the original were faults; `tests/vectors` holds the expected answers.

use crate::free::{Free, Order};
use crate::layout::{Layout, Level, Unit, at, bits, wide};
use dracpu_strategy_sdk::{CpuSet, ascending};

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
    let free = Free::of(layout, available);
    if count > free.len() {
        return None;
    }
    let mut packing = Packing { layout, free, need: count };
    packing.take_whole(layout.first(), &Free::first_order);
    packing.take_whole(layout.second(), &Free::second_order);
    if prefer_llc {
        packing.caches();
    }
    match placement {
        Placement::Packed => packing.cores(),
        Placement::Spread => packing.take_singles(&packing.free.socket_order()),
    }
    (packing.need == 0).then(|| packing.free.taken_of(available))
}

/// Chooses whole cores that make up exactly `count` CPUs, for machines whose cores differ in threads.
/// Earlier cores of the core order are preferred. None when the available whole cores do not add up.
#[must_use]
pub fn whole_cores(layout: &Layout, available: &CpuSet, count: usize) -> Option<CpuSet> {
    let free = Free::of(layout, available);
    let cores = free.core_order().into_iter();
    let mut sums = Sums::new(count);
    // By sum: the core with which the sum was first reached. The rest of it is made of earlier cores.
    let mut reached: Vec<Option<Unit>> = vec![None; count + 1];
    for core in cores.map(|(_, core)| core).filter(|core| free.is_whole(*core)) {
        if count == 0 || reached.get(count).is_some_and(Option::is_some) {
            break;
        }
        for sum in sums.add(layout.size(core)) {
            reached.get_mut(sum).map(|reached| reached.replace(core));
        }
    }
    let mut chosen = CpuSet::new();
    let mut need = count;
    while need > 0 {
        let core = reached.get(need).copied().flatten()?;
        chosen.extend(layout.members(core));
        need -= layout.size(core);
    }
    Some(chosen)
}

/// The sums that some of the numbers added so far make up: bit `i` of word `w` is the sum `64 * w + i`.
struct Sums {
    words: Vec<u64>,
    most: usize,
}

impl Sums {
    fn new(most: usize) -> Self {
        let mut words = vec![0; most / 64 + 1];
        words.iter_mut().take(1).for_each(|word| *word = 1);
        Self { words, most }
    }

    /// The sums that this number makes up for the first time.
    fn add(&mut self, number: usize) -> Vec<usize> {
        let (by_words, by_bits) = (number / 64, number % 64);
        let shifted = |at: usize| {
            let word = |back: usize| at.checked_sub(by_words + back).and_then(|at| self.words.get(at));
            let low = word(0).map_or(0, |word| word << by_bits);
            low | word(1).filter(|_| by_bits > 0).map_or(0, |word| word >> (64 - by_bits))
        };
        let new: Vec<u64> = self.words.iter().enumerate().map(|(at, known)| shifted(at) & !known).collect();
        let mut sums = Vec::new();
        for (position, (word, new)) in self.words.iter_mut().zip(new).enumerate() {
            *word |= new;
            sums.extend(bits(position, new).map(at));
        }
        sums.retain(|sum| *sum <= self.most);
        sums
    }
}

/// The CPUs of as few of these disjoint parts as hold `count`, in one NUMA node where that takes no more of
/// them. Of several such choices: the part that is filled last is the smallest that will do, so that large
/// ones stay whole. None when all parts together hold less.
#[must_use]
pub fn fewest_parts(layout: &Layout, parts: &[CpuSet], count: usize) -> Option<CpuSet> {
    let mut all = CpuSet::new();
    parts.iter().for_each(|part| all.extend_from(part));
    let nodes = Free::of(layout, &all).numa_order();
    let mut rank_of = vec![usize::MAX; layout.unit_count()];
    for (rank, (_, node)) in nodes.iter().enumerate() {
        rank_of.get_mut(*node).map(|of| std::mem::replace(of, rank));
    }
    let rank = |cpu| layout.unit_of(cpu, Level::NumaNode).and_then(|node| rank_of.get(node).copied());
    // By part: its first and last NUMA node in that order.
    let span = |part: &CpuSet| {
        let ranks = || part.iter().filter_map(rank);
        (ranks().min().unwrap_or(usize::MAX), ranks().max().unwrap_or(usize::MAX))
    };
    let spans: Vec<(usize, usize)> = parts.iter().map(span).collect();
    let by_node = ascending(spans.iter().zip(0..).map(|((first, _), at)| (wide(*first), at)).collect());
    let parts: Vec<(&CpuSet, (usize, usize))> =
        by_node.into_iter().filter_map(|at| Some((parts.get(at)?, *spans.get(at)?))).collect();
    let all: Vec<(usize, &CpuSet)> = parts.iter().map(|(part, _)| (part.len(), *part)).collect();
    let fewest = cover(&all, count)?;
    let in_node = |node: usize| {
        let within = parts.iter().zip(&all).filter(|((_, span), _)| *span == (node, node));
        let within: Vec<_> = within.map(|(_, part)| *part).collect();
        cover(&within, count).filter(|chosen| chosen.len() == fewest.len())
    };
    let chosen = (0..nodes.len()).find_map(in_node).unwrap_or(fewest);
    let mut cpus = CpuSet::new();
    chosen.into_iter().for_each(|part| cpus.extend_from(part));
    Some(cpus)
}

/// The largest parts, until one can hold what is left; of those the smallest.
fn cover<'a>(parts: &[(usize, &'a CpuSet)], count: usize) -> Option<Vec<&'a CpuSet>> {
    let largest_first = ascending(parts.iter().map(|(size, _)| !wide(*size)).zip(0..).collect());
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
    free: Free<'a>,
    need: usize,
}

impl<'a> Packing<'a> {
    fn can_take(&self, unit: Unit) -> bool {
        self.need >= self.layout.size(unit) && self.free.is_whole(unit)
    }

    /// Takes every unit that is free as a whole and not larger than what is still needed.
    fn take_whole(&mut self, level: Level, order: &dyn Fn(&Free<'a>) -> Order) {
        if self.need == 0 || !self.layout.units(level).any(|unit| self.can_take(unit)) {
            return; // as mostly: an order takes longer than this look
        }
        for (_, unit) in order(&self.free) {
            self.take_if_whole(unit);
        }
    }

    fn take_if_whole(&mut self, unit: Unit) {
        if self.can_take(unit) {
            self.free.take_unit(unit);
            self.need -= self.layout.size(unit);
        }
    }

    /// Takes the free CPUs of each unit, ascending, until nothing is needed.
    fn take_singles(&mut self, order: &Order) {
        for (_, unit) in order {
            if self.need == 0 {
                return;
            }
            self.need -= self.free.take_lowest(*unit, self.need);
        }
    }

    /// Whole cores, then single CPUs core by core. Cores are ranked where they are come to: what was taken before
    /// changes the rank of none, as it was all that was free, or could be taken, of other cores.
    fn cores(&mut self) {
        if self.need == 0 {
            return;
        }
        let nesting = &self.layout.cores_in_second;
        if self.layout.units(Level::Core).any(|core| self.can_take(core)) {
            for (_, outer) in self.free.second_order() {
                for (_, core) in self.free.rank_in(nesting, outer) {
                    self.take_if_whole(core);
                }
                if self.need == 0 {
                    return;
                }
            }
        }
        for (_, outer) in self.free.second_order() {
            let cores = self.free.rank_in(nesting, outer);
            self.take_singles(&cores);
            if self.need == 0 {
                return;
            }
        }
    }

    /// Whole caches once a cache is met that the need would fill; a part of the cache at hand otherwise.
    fn caches(&mut self) {
        if self.need == 0 {
            return;
        }
        let mut whole_taken = false;
        for (_, cache) in self.free.cache_order() {
            // One walk is enough: caches are disjoint and the need only shrinks, so that a second walk
            // would skip what the first one skipped.
            if !whole_taken && self.need >= self.layout.size(cache) {
                self.take_whole(Level::Cache, &Free::cache_order);
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
    fn part_of_cache(&mut self, cache: Unit) {
        let nesting = &self.layout.cores_in_caches;
        if !nesting.any_spans && self.free.count(cache) < self.need {
            return;
        }
        let mut threads = 0;
        let mut candidates = Vec::new();
        for core in nesting.within(cache).filter(|core| self.free.is_free_in(*core, nesting, cache)) {
            if threads >= self.need {
                break;
            }
            threads += self.layout.size(core);
            self.free.copy_unit(core, &mut candidates);
        }
        let mut candidates = CpuSet::from_words(candidates).unwrap_or_default();
        let mut count = candidates.len();
        if count < self.need {
            return;
        }
        // The surplus is dropped from the core with the highest CPU, its highest CPUs first.
        while count > self.need {
            let highest = candidates.last().and_then(|cpu| self.layout.unit_of(cpu, Level::Core));
            let Some(core) = highest else { return };
            let members: Vec<u32> = self.layout.members(core).collect();
            for cpu in members.into_iter().rev() {
                if count > self.need && candidates.remove(cpu) {
                    count -= 1;
                }
            }
        }
        self.free.take_words(candidates.words());
        self.need = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_told_once_and_end_at_the_most() {
        let mut sums = Sums::new(130);
        assert_eq!(sums.add(64), [64]);
        assert_eq!(sums.add(64), [128]);
        assert_eq!(sums.add(3), [3, 67]);
        assert_eq!(sums.add(3), [6, 70]);
        assert_eq!(sums.add(64), [0; 0]);
        assert_eq!(Sums::new(0).add(1), [0; 0]);
    }
}
