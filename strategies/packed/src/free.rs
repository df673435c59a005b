use crate::layout::{Layout, Level, Nesting, Part, Unit, bits, wide};
use dracpu_strategy_sdk::{CpuSet, sorted};

/// Free CPUs, and the orders in which the algorithm looks at units. An order holds the units with a free CPU and is that
/// of the moment at which it is asked for.
pub(crate) struct Free<'a> {
    layout: &'a Layout,
    words: Vec<u64>,
}

/// Units, each with what it was ranked by.
pub(crate) type Order = Vec<(u64, Unit)>;

impl<'a> Free<'a> {
    /// Those of the CPUs that are online.
    pub(crate) fn of(layout: &'a Layout, cpus: &CpuSet) -> Self {
        Self { layout, words: cpus.intersection(&layout.online).into_words() }
    }

    /// What was taken of the CPUs that this was made of.
    pub(crate) fn taken_of(mut self, cpus: &CpuSet) -> CpuSet {
        for ((free, all), online) in self.words.iter_mut().zip(cpus.words()).zip(self.layout.online.words()) {
            *free = all & online & !*free;
        }
        CpuSet::from_words(self.words).unwrap_or_default()
    }

    /// How many CPUs are free.
    pub(crate) fn len(&self) -> usize {
        ones(self.words.iter().copied())
    }

    /// The free CPUs of a part.
    fn bits(&self, part: &Part) -> u64 {
        part.of(&self.words)
    }

    /// Takes the CPUs of a mask from a word.
    fn clear(&mut self, word: usize, mask: u64) {
        if let Some(word) = self.words.get_mut(word) {
            *word &= !mask;
        }
    }

    /// Takes all of a unit.
    pub(crate) fn take_unit(&mut self, unit: Unit) {
        for part in self.layout.parts(unit) {
            self.clear(part.word, part.mask);
        }
    }

    /// Takes the lowest free CPUs of a unit, at most so many. How many they are.
    pub(crate) fn take_lowest(&mut self, unit: Unit, most: usize) -> usize {
        let mut left = most;
        for part in self.layout.parts(unit) {
            let mut rest = self.bits(part);
            let taken = rest;
            while rest != 0 && left > 0 {
                rest &= rest - 1;
                left -= 1;
            }
            self.clear(part.word, taken & !rest);
        }
        most - left
    }

    /// Takes the CPUs of these words.
    pub(crate) fn take_words(&mut self, taken: &[u64]) {
        for (word, taken) in taken.iter().enumerate() {
            self.clear(word, *taken);
        }
    }

    /// Adds the free CPUs of a unit to these words.
    pub(crate) fn copy_unit(&self, unit: Unit, to: &mut Vec<u64>) {
        if to.len() < self.words.len() {
            to.resize(self.words.len(), 0);
        }
        for part in self.layout.parts(unit) {
            if let Some(word) = to.get_mut(part.word) {
                *word |= self.bits(part);
            }
        }
    }

    /// The free CPUs of a unit.
    pub(crate) fn of_unit(&self, unit: Unit) -> CpuSet {
        let mut words = Vec::new();
        self.copy_unit(unit, &mut words);
        CpuSet::from_words(words).unwrap_or_default()
    }

    /// How many CPUs of a unit are free.
    pub(crate) fn count(&self, unit: Unit) -> usize {
        ones(self.layout.parts(unit).iter().map(|part| self.bits(part)))
    }

    /// Whether all installed CPUs of a unit are free.
    pub(crate) fn is_whole(&self, unit: Unit) -> bool {
        self.layout.parts(unit).iter().all(|part| self.bits(part) == part.mask)
    }

    /// The level's units by their free CPUs, the fewest first; ties by key.
    fn rank(&self, units: impl Iterator<Item = Unit>) -> Order {
        let counted = units.map(|unit| (wide(self.count(unit)), unit));
        sorted(counted.filter(|(count, _)| *count > 0).collect())
    }

    /// Those of an inner level that have a free CPU in an outer unit, ranked by their free CPUs in the whole machine.
    pub(crate) fn rank_in(&self, nesting: &Nesting, outer: Unit) -> Order {
        self.rank(nesting.within(outer).filter(|unit| self.is_in(*unit, nesting, outer)))
    }

    /// Whether a free CPU of a unit, if it has any, is in an outer one that it has CPUs in.
    fn is_in(&self, unit: Unit, nesting: &Nesting, outer: Unit) -> bool {
        let is_in = |cpu| nesting.level.and_then(|level| self.layout.unit_of(cpu, level)) == Some(outer);
        let mut parts = self.layout.parts(unit).iter();
        !nesting.spans(unit) || parts.any(|part| bits(part.word, self.bits(part)).any(is_in))
    }

    /// Whether a unit has a free CPU in an outer one that it has CPUs in.
    pub(crate) fn is_free_in(&self, unit: Unit, nesting: &Nesting, outer: Unit) -> bool {
        self.layout.parts(unit).iter().any(|part| self.bits(part) != 0) && self.is_in(unit, nesting, outer)
    }

    /// For each outer unit in order the inner ones. One that several outer ones touch counts at the first.
    fn rank_within(&self, nesting: &Nesting, outer: &Order) -> Order {
        let mut order = Order::new();
        for (rank, (_, outer)) in (0..).zip(outer) {
            for unit in nesting.within(*outer) {
                let count = wide(self.count(unit));
                let again = nesting.spans(unit) && order.iter().any(|(_, known)| *known == unit);
                if count > 0 && self.is_in(unit, nesting, *outer) && !again {
                    order.push(((rank << 32) + count, unit));
                }
            }
        }
        sorted(order)
    }

    /// NUMA nodes or sockets, whichever are the larger units.
    pub(crate) fn first_order(&self) -> Order {
        self.rank(self.layout.units(self.layout.first()))
    }

    /// The other of the two.
    pub(crate) fn second_order(&self) -> Order {
        self.rank_within(&self.layout.second_in_first, &self.first_order())
    }

    pub(crate) fn numa_order(&self) -> Order {
        self.order_of(Level::NumaNode)
    }

    pub(crate) fn socket_order(&self) -> Order {
        self.order_of(Level::Socket)
    }

    fn order_of(&self, level: Level) -> Order {
        if self.layout.first() == level { self.first_order() } else { self.second_order() }
    }

    pub(crate) fn core_order(&self) -> Order {
        self.rank_within(&self.layout.cores_in_second, &self.second_order())
    }

    pub(crate) fn cache_order(&self) -> Order {
        self.rank_within(&self.layout.caches_in_nodes, &self.numa_order())
    }
}

fn ones(words: impl Iterator<Item = u64>) -> usize {
    words.map(|word| usize::try_from(word.count_ones()).unwrap_or_default()).sum()
}
