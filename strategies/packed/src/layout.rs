use dracpu_strategy_sdk::{Cpu, CpuSet, Machine, ascending};
use std::ops::Range;

/// The machine as the algorithm sees it: levels of units, each unit a set of installed CPUs. Of a set only the words
/// are kept in which it has CPUs, so that all of it is linear in the CPUs.
#[derive(Debug)]
pub struct Layout {
    /// By CPU id: the units that it is in.
    places: Vec<Place>,
    /// By unit: where it begins in `parts`; one more entry for the end of the last.
    starts: Vec<usize>,
    /// By unit: its CPUs, ascending.
    parts: Vec<Part>,
    /// By unit: how many CPUs it has.
    sizes: Vec<u16>,
    /// The units of each level, in the order of their keys.
    levels: [Range<Unit>; LEVELS],
    /// At least as many sockets as NUMA nodes with CPUs: NUMA nodes are then the larger unit, or equal.
    numa_first: bool,
    pub(crate) second_in_first: Nesting,
    pub(crate) cores_in_second: Nesting,
    pub(crate) caches_in_nodes: Nesting,
    pub(crate) cores_in_caches: Nesting,
    pub(crate) online: CpuSet,
}

/// A core, a cache, a NUMA node or a socket: its number among all of them.
pub(crate) type Unit = usize;

/// The CPUs of a unit that are in one word of a set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The word's position.
    pub(crate) word: usize,
    pub(crate) mask: u64,
}

impl Part {
    /// Those of its CPUs that are in a set of these words.
    pub(crate) fn of(&self, words: &[u64]) -> u64 {
        words.get(self.word).map_or(0, |word| word & self.mask)
    }
}

/// Kinds of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Core,
    /// Level 3 caches. CPUs without one are in no unit; a last-level cache below level 3 is none: the
    /// kubelet's uncore cache is the L3.
    Cache,
    NumaNode,
    Socket,
}

const LEVELS: usize = 4;

/// Units by level. 16 bits hold the units of 8192 CPUs, and keep all that a choice looks at close together.
type Place = [u16; LEVELS];

/// In a place: no unit of that level.
const NOWHERE: u16 = u16::MAX;

impl Level {
    fn of<T>(self, all: &[T; LEVELS]) -> &T {
        let [core, cache, node, socket] = all;
        match self {
            Self::Core => core,
            Self::Cache => cache,
            Self::NumaNode => node,
            Self::Socket => socket,
        }
    }
}

impl Layout {
    /// Orders the units of a machine by the keys that break ties in the kubelet's algorithm: core =
    /// (kernel core id, socket id), cache = (kernel cache id, socket id), NUMA node and socket = kernel id.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        Self::only(machine, &machine.online())
    }

    /// The layout of a machine as if only these CPUs were online.
    #[must_use]
    pub fn only(machine: &Machine, cpus: &CpuSet) -> Self {
        let rows: Vec<&Cpu> = machine.cpus.iter().filter(|cpu| cpus.contains(cpu.id)).collect();
        let socket_id = |cpu: &Cpu| machine.sockets.get(cpu.socket).map_or(0, |socket| socket.id);
        let sockets = Column::of(&rows, &|cpu| Some(cpu.socket), &|_, cpu| order_preserving(socket_id(cpu)));
        let node_id = |cpu: &Cpu| machine.numa_nodes.get(cpu.numa_node).map_or(0, |node| node.id);
        let nodes = Column::of(&rows, &|cpu| Some(cpu.numa_node), &|_, cpu| node_id(cpu).into());
        // Socket positions keep the order of the ids and leave room for another id.
        let key = |row: usize, id: u32| {
            (u64::from(id) << 32) + sockets.positions.get(row).copied().map_or(0, u64::from)
        };
        let cores = Column::of(&rows, &|cpu| Some(cpu.core), &|row, cpu| key(row, cpu.core_id));
        let cache = |cpu: &Cpu| machine.caches.get(cpu.llc?).filter(|cache| cache.level >= 3);
        let cache_at = |cpu: &Cpu| cpu.llc.filter(|_| cache(cpu).is_some());
        let caches =
            Column::of(&rows, &cache_at, &|row, cpu| key(row, cache(cpu).map_or(0, |cache| cache.id)));

        let mut layout = Self {
            places: vec![[NOWHERE; LEVELS]; rows.last().map_or(0, |cpu| at(cpu.id) + 1)],
            starts: vec![0],
            parts: Vec::new(),
            sizes: Vec::new(),
            levels: [const { 0..0 }; LEVELS],
            numa_first: sockets.count >= nodes.count,
            second_in_first: Nesting::default(),
            cores_in_second: Nesting::default(),
            caches_in_nodes: Nesting::default(),
            cores_in_caches: Nesting::default(),
            online: rows.iter().map(|cpu| cpu.id).collect(),
        };
        let columns = [cores, caches, nodes, sockets];
        for (level, column) in columns.iter().enumerate() {
            layout.add(level, &rows, column);
        }
        let (first, second) = (layout.first(), layout.second());
        layout.second_in_first = Nesting::of(&layout, second, first);
        layout.cores_in_second = Nesting::of(&layout, Level::Core, second);
        layout.caches_in_nodes = Nesting::of(&layout, Level::Cache, Level::NumaNode);
        layout.cores_in_caches = Nesting::of(&layout, Level::Core, Level::Cache);
        layout
    }

    fn add(&mut self, level: usize, rows: &[&Cpu], column: &Column) {
        let first = self.sizes.len();
        let mut units = vec![(0, usize::MAX); column.count]; // parts, and the word of the last one
        let placed = || rows.iter().map(|cpu| cpu.id).zip(column.positions.iter().map(|at| usize::from(*at)));
        for (cpu, position) in placed() {
            if let Some((parts, last)) = units.get_mut(position) {
                *parts += usize::from(*last != word(cpu));
                *last = word(cpu);
            }
        }
        let mut end = self.parts.len();
        for (parts, last) in &mut units {
            end += std::mem::replace(parts, end); // from now on: where its next part goes
            *last = usize::MAX;
            self.starts.push(end);
        }
        self.parts.resize(end, Part { word: 0, mask: 0 });
        self.sizes.resize(first + column.count, 0);
        for (cpu, position) in placed() {
            let Some((next, last)) = units.get_mut(position) else { continue };
            *next += usize::from(*last != word(cpu));
            *last = word(cpu);
            if let Some(part) = self.parts.get_mut(*next - 1) {
                *part = Part { word: word(cpu), mask: part.mask | 1 << (cpu % u64::BITS) };
            }
            if let Some(size) = self.sizes.get_mut(first + position) {
                *size += 1;
            }
            if let Some(unit) = self.places.get_mut(at(cpu)).and_then(|place| place.get_mut(level)) {
                *unit = small(first + position);
            }
        }
        if let Some(units) = self.levels.get_mut(level) {
            *units = first..first + column.count;
        }
    }

    /// The level of the largest units: NUMA nodes or sockets.
    pub(crate) fn first(&self) -> Level {
        if self.numa_first { Level::NumaNode } else { Level::Socket }
    }

    /// The other of the two.
    pub(crate) fn second(&self) -> Level {
        if self.numa_first { Level::Socket } else { Level::NumaNode }
    }

    /// All units of all levels.
    pub(crate) fn unit_count(&self) -> usize {
        self.sizes.len()
    }

    pub(crate) fn units(&self, level: Level) -> Range<Unit> {
        level.of(&self.levels).clone()
    }

    /// The unit of a CPU.
    pub(crate) fn unit_of(&self, cpu: u32, level: Level) -> Option<Unit> {
        let unit = *level.of(self.places.get(at(cpu))?);
        (unit != NOWHERE).then(|| unit.into())
    }

    /// How many units of a level have a CPU in the set.
    pub(crate) fn touched(&self, cpus: &CpuSet, level: Level) -> usize {
        let lowest =
            |unit| self.parts(unit).iter().find_map(|part| bits(part.word, part.of(cpus.words())).next());
        let is_lowest = |cpu: &u32| self.unit_of(*cpu, level).and_then(lowest) == Some(*cpu);
        cpus.iter().filter(is_lowest).count()
    }

    /// The installed CPUs of a unit, ascending.
    pub(crate) fn parts(&self, unit: Unit) -> &[Part] {
        match self.starts.get(unit..unit + 2) {
            Some([start, end]) => self.parts.get(*start..*end).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The same one by one.
    pub(crate) fn members(&self, unit: Unit) -> impl Iterator<Item = u32> + '_ {
        self.parts(unit).iter().flat_map(|part| bits(part.word, part.mask))
    }

    /// How many those are.
    pub(crate) fn size(&self, unit: Unit) -> usize {
        self.sizes.get(unit).copied().map_or(0, usize::from)
    }
}

/// The members of a word of a set, ascending.
pub(crate) fn bits(word: usize, mut bits: u64) -> impl Iterator<Item = u32> {
    let base = u32::try_from(word).unwrap_or_default() * u64::BITS;
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(base + bit)
    })
}

/// The word of a set that a CPU is in.
fn word(cpu: u32) -> usize {
    at(cpu / u64::BITS)
}

/// For each row of a machine the position of its unit among those of a level.
struct Column {
    positions: Vec<u16>,
    count: usize,
}

impl Column {
    /// Units are told by an index of the machine, and ordered by the key of their first CPU.
    fn of(rows: &[&Cpu], index: &dyn Fn(&Cpu) -> Option<usize>, key: &dyn Fn(usize, &Cpu) -> u64) -> Self {
        let mut keys: Vec<Option<u64>> = Vec::new();
        for (row, cpu) in rows.iter().enumerate() {
            let Some(index) = index(cpu) else { continue };
            if index >= keys.len() {
                keys.resize(index + 1, None);
            }
            if let Some(known) = keys.get_mut(index) {
                known.get_or_insert_with(|| key(row, cpu));
            }
        }
        let mut position_of = vec![NOWHERE; keys.len()];
        let order =
            ascending(keys.into_iter().zip(0..).filter_map(|(key, index)| Some((key?, index))).collect());
        for (position, index) in order.iter().enumerate() {
            if let Some(of) = position_of.get_mut(*index) {
                *of = small(position);
            }
        }
        let position = |cpu: &&Cpu| index(cpu).and_then(|index| position_of.get(index).copied());
        let positions = rows.iter().map(|cpu| position(cpu).unwrap_or(NOWHERE)).collect();
        Self { positions, count: order.len() }
    }
}

/// Which units of one level have CPUs in which units of another.
#[derive(Debug, Default)]
pub(crate) struct Nesting {
    outer: Range<Unit>,
    /// By unit of the outer level: where its list begins in `lists`; one more entry for the end.
    starts: Vec<usize>,
    lists: Vec<u16>,
    inner: Range<Unit>,
    /// By unit of the inner level: whether some of its CPUs are in another unit than others, or in none.
    spans: Vec<bool>,
    /// The level that they are nested in.
    pub(crate) level: Option<Level>,
    pub(crate) any_spans: bool,
}

impl Nesting {
    fn of(layout: &Layout, inner: Level, outer: Level) -> Self {
        let mut nesting = Self {
            outer: layout.units(outer),
            starts: vec![0],
            inner: layout.units(inner),
            spans: Vec::new(),
            level: Some(outer),
            ..Self::default()
        };
        for unit in nesting.inner.clone() {
            let mut outers = layout.members(unit).map(|cpu| layout.unit_of(cpu, outer));
            let first = outers.next().flatten();
            let spans = !outers.all(|outer| outer == first);
            nesting.spans.push(spans);
            nesting.any_spans |= spans;
        }
        let mut listed = vec![None; nesting.inner.len()];
        for outer in nesting.outer.clone() {
            let mut list = Vec::new();
            for unit in layout.members(outer).filter_map(|cpu| layout.unit_of(cpu, inner)) {
                let Some(listed) = listed.get_mut(unit - nesting.inner.start) else { continue };
                if listed.replace(outer) != Some(outer) {
                    list.push((0, unit));
                }
            }
            nesting.lists.extend(ascending(list).into_iter().map(small));
            nesting.starts.push(nesting.lists.len());
        }
        nesting
    }

    /// The units with a CPU in an outer one, in the order of their keys.
    pub(crate) fn within(&self, outer: Unit) -> impl Iterator<Item = Unit> + '_ {
        let at = outer.wrapping_sub(self.outer.start);
        let range = match self.starts.get(at..at.saturating_add(2)) {
            Some([start, end]) => *start..*end,
            _ => 0..0,
        };
        self.lists.get(range).unwrap_or_default().iter().map(|unit| usize::from(*unit))
    }

    /// Whether a unit has CPUs outside the outer unit that it was found in.
    pub(crate) fn spans(&self, unit: Unit) -> bool {
        self.any_spans && self.spans.get(unit - self.inner.start).copied().unwrap_or(false)
    }
}

pub(crate) fn at(cpu: u32) -> usize {
    usize::try_from(cpu).unwrap_or(usize::MAX)
}

/// CPU ids end at 8191, and units are at most four times as many as CPUs.
fn small(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(NOWHERE)
}

/// A count as a key to sort by.
pub(crate) fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// A number that sorts among its kind as the signed one does.
fn order_preserving(id: i64) -> u64 {
    id.cast_unsigned() ^ (1 << 63)
}
