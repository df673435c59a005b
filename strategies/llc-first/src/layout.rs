//! Where CPUs lie, worked out once: by CPU id for the machine, and as domains for each group.

use dracpu_strategy_sdk::{Cpu, CpuSet, Domain as Unit, Group, Machine};
use std::borrow::Cow;

/// Where the CPUs of the machine lie, by id.
#[derive(Debug, Default)]
pub struct Places {
    by_id: Vec<Option<Place>>,
    core_sizes: Vec<usize>,
    /// Whether some cluster is more than a core.
    pub(crate) has_clusters: bool,
    pub(crate) nodes: usize,
    pub(crate) sockets: usize,
    pub(crate) clusters: usize,
}

/// Positions in the lists of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) core: usize,
    pub(crate) node: usize,
    pub(crate) socket: usize,
    /// The number of clusters where the CPU has none.
    pub(crate) cluster: usize,
}

impl Places {
    /// Of a machine as if only these CPUs were online.
    #[must_use]
    pub fn of(machine: &Machine, cpus: &CpuSet) -> Self {
        let clusters = machine.clusters.len();
        let mut places = Self {
            by_id: Vec::new(),
            core_sizes: vec![0; machine.cores.len()],
            has_clusters: false,
            nodes: machine.numa_nodes.len(),
            sockets: machine.sockets.len(),
            clusters,
        };
        let mut cluster_sizes = vec![0; clusters + 1];
        for cpu in machine.cpus.iter().filter(|cpu| cpus.contains(cpu.id)) {
            let place = Place {
                core: cpu.core,
                node: cpu.numa_node,
                socket: cpu.socket,
                cluster: cpu.cluster.unwrap_or(clusters),
            };
            *slot(&mut places.by_id, cpu.id, None) = Some(place);
            let sizes = [places.core_sizes.get_mut(place.core), cluster_sizes.get_mut(place.cluster)];
            sizes.into_iter().flatten().for_each(|size: &mut usize| *size += 1);
        }
        let is_larger = |place: &Place| {
            place.cluster < clusters && cluster_sizes.get(place.cluster) > places.core_sizes.get(place.core)
        };
        places.has_clusters = places.by_id.iter().flatten().any(is_larger);
        places
    }

    pub(crate) fn of_cpu(&self, cpu: u32) -> Option<Place> {
        self.by_id.get(usize::try_from(cpu).ok()?).copied().flatten()
    }

    /// The rows of those of the CPUs that have a place, ascending.
    fn rows<'a>(&'a self, machine: &'a Machine, cpus: &'a CpuSet) -> impl Iterator<Item = &'a Cpu> {
        cpus.iter().filter(|cpu| self.of_cpu(*cpu).is_some()).filter_map(|cpu| machine.cpu(cpu))
    }

    /// Cores, each with all its threads.
    pub(crate) fn all_threads(&self) -> Cores<'_> {
        Cores { places: self, sizes: Cow::Borrowed(&self.core_sizes) }
    }

    /// Cores, each with those of its threads that are among these.
    pub(crate) fn threads_among(&self, cpus: &CpuSet) -> Cores<'_> {
        let mut sizes = vec![0; self.core_sizes.len()];
        for place in cpus.iter().filter_map(|cpu| self.of_cpu(cpu)) {
            if let Some(size) = sizes.get_mut(place.core) {
                *size += 1;
            }
        }
        Cores { places: self, sizes: Cow::Owned(sizes) }
    }
}

/// The cores of a machine, and how many threads make up each.
#[derive(Debug, Clone)]
pub(crate) struct Cores<'a> {
    places: &'a Places,
    sizes: Cow<'a, [usize]>,
}

impl Cores<'_> {
    /// Finds those that lie in the list with all the threads that make them up.
    pub(crate) fn whole_in(&self, cpus: impl Iterator<Item = u32>) -> WholeCores<'_> {
        let mut missing = self.sizes.to_vec();
        for place in cpus.filter_map(|cpu| self.places.of_cpu(cpu)) {
            if let Some(missing) = missing.get_mut(place.core) {
                *missing = missing.saturating_sub(1);
            }
        }
        WholeCores { cores: self, missing }
    }

    /// Those of the CPUs that make up whole cores among themselves.
    pub(crate) fn on_whole(&self, cpus: &CpuSet) -> CpuSet {
        let whole = self.whole_in(cpus.iter());
        cpus.iter().filter(|cpu| whole.core_of(*cpu).is_some()).collect()
    }

    /// How many they are.
    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// The threads of the widest of those that these CPUs are on.
    pub(crate) fn widest(&self, cpus: &CpuSet) -> usize {
        let size = |cpu| self.sizes.get(self.places.of_cpu(cpu)?.core).copied();
        cpus.iter().filter_map(size).max().unwrap_or(1)
    }
}

/// See [`Cores::whole_in`].
pub(crate) struct WholeCores<'a> {
    cores: &'a Cores<'a>,
    /// By core: threads that the list lacks.
    missing: Vec<usize>,
}

impl WholeCores<'_> {
    /// Position and size of the CPU's core, when it is whole.
    pub(crate) fn core_of(&self, cpu: u32) -> Option<(usize, usize)> {
        let core = self.cores.places.of_cpu(cpu)?.core;
        let is_whole = self.missing.get(core) == Some(&0);
        is_whole.then(|| Some((core, *self.cores.sizes.get(core)?))).flatten()
    }
}

/// What the algorithm needs to know of one group.
#[derive(Debug)]
pub struct Layout {
    /// The sets of CPUs of which a claim shall touch as few as possible, by lowest CPU.
    pub domains: Vec<Domain>,
    /// The domains' parts in NUMA nodes and sockets, by lowest CPU.
    pub(crate) cells: Vec<Cell>,
    cell_of: ByCpu,
}

/// A last-level cache, or what stands for one where the kernel shows none.
#[derive(Debug)]
pub struct Domain {
    /// Its usable CPUs, and the cores that those are on.
    pub cpus: usize,
    /// See [`Self::cpus`].
    pub cores: usize,
    /// Position in [`Machine::caches`].
    pub cache: Option<usize>,
}

/// What a domain, a NUMA node and a socket have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) domain: usize,
    pub(crate) node: usize,
    pub(crate) socket: usize,
}

impl Layout {
    /// The layout of a group of which these CPUs may be given out.
    #[must_use]
    pub fn of(machine: &Machine, places: &Places, group: &Group, usable: &CpuSet) -> Self {
        // A cache of its own for each core (as on POWER) tells nothing apart: look one level up.
        let mut level = Unit::CACHES;
        let (domains, domain_of) = loop {
            let units = Units::of(machine, places, &group.cpus, level);
            if !units.are_cores || level == Unit::NUMA_NODES {
                break units.domains(places, usable);
            }
            level += 1;
        };
        let mut cells: Vec<Cell> = Vec::new();
        let mut of_domain: Vec<Vec<usize>> = vec![Vec::new(); domains.len()];
        let mut cell_of = ByCpu::new();
        for (cpu, domain) in domain_of {
            let (Some(place), Some(known)) = (places.of_cpu(cpu), of_domain.get_mut(domain)) else {
                continue;
            };
            let cell = Cell { domain, node: place.node, socket: place.socket };
            let position =
                known.iter().copied().find(|at| cells.get(*at) == Some(&cell)).unwrap_or_else(|| {
                    cells.push(cell);
                    known.push(cells.len() - 1);
                    cells.len() - 1
                });
            cell_of.set(cpu, position);
        }
        Self { domains, cells, cell_of }
    }

    /// Position of the CPU's cell; none for a CPU that is not usable.
    pub(crate) fn cell_of(&self, cpu: u32) -> Option<usize> {
        self.cell_of.get(cpu)
    }

    /// Position of the CPU's domain.
    pub(crate) fn domain_of(&self, cpu: u32) -> Option<usize> {
        self.cells.get(self.cell_of(cpu)?).map(|cell| cell.domain)
    }
}

/// A number for some CPUs. As large as the CPUs are many, wherever they lie: there is one for each group, and groups may
/// be as many as caches.
#[derive(Debug)]
struct ByCpu {
    /// By CPU id / 64: where its page begins in `numbers`; the first page is that of CPUs without number.
    pages: Vec<u16>,
    numbers: Vec<u16>,
}

const PAGE: usize = 64;
/// There are no more cells than CPUs.
const NO_NUMBER: u16 = u16::MAX;

impl ByCpu {
    fn new() -> Self {
        Self { pages: Vec::new(), numbers: vec![NO_NUMBER; PAGE] }
    }

    fn get(&self, cpu: u32) -> Option<usize> {
        let cpu = usize::try_from(cpu).ok()?;
        let page = usize::from(*self.pages.get(cpu / PAGE)?);
        self.numbers
            .get(page + cpu % PAGE)
            .filter(|number| **number != NO_NUMBER)
            .map(|number| (*number).into())
    }

    fn set(&mut self, cpu: u32, number: usize) {
        let page = slot(&mut self.pages, cpu / 64, 0);
        if *page == 0 {
            *page = u16::try_from(self.numbers.len()).unwrap_or_default();
            self.numbers.resize(self.numbers.len() + PAGE, NO_NUMBER);
        }
        let at = usize::from(*page) + usize::try_from(cpu % 64).unwrap_or_default();
        if let Some(of_cpu) = self.numbers.get_mut(at) {
            *of_cpu = u16::try_from(number).unwrap_or(NO_NUMBER);
        }
    }
}

/// The units that the CPUs of a group are in.
struct Units {
    /// By lowest CPU.
    units: Vec<Unit>,
    /// CPUs, ascending, with the position of their unit.
    unit_of: Vec<(u32, usize)>,
    /// Whether each unit is a single core.
    are_cores: bool,
}

impl Units {
    /// As of this level: see [`Machine::domain_of`].
    fn of(machine: &Machine, places: &Places, cpus: &CpuSet, level: u8) -> Self {
        let mut known: Vec<Option<usize>> = Vec::new();
        let mut new = Self { units: Vec::new(), unit_of: Vec::new(), are_cores: true };
        for cpu in places.rows(machine, cpus) {
            let unit = machine.domain_of(cpu, level);
            let number = machine.number_of(unit);
            if number >= known.len() {
                known.resize(number + 1, None);
            }
            let Some(known) = known.get_mut(number) else { continue };
            let position = *known.get_or_insert_with(|| {
                let core = machine.cores.get(cpu.core);
                let size = machine.cpus_of(unit).map_or(0, CpuSet::len);
                new.are_cores &= core.is_none_or(|core| size <= core.len());
                new.units.push(unit);
                new.units.len() - 1
            });
            new.unit_of.push((cpu.id, position));
        }
        new
    }

    /// The units with usable CPUs as domains, and the position of each usable CPU's domain.
    fn domains(self, places: &Places, usable: &CpuSet) -> (Vec<Domain>, Vec<(u32, usize)>) {
        let mut domains: Vec<Domain> = Vec::new();
        let mut of_unit: Vec<Option<usize>> = vec![None; self.units.len()];
        let mut seen = CpuSet::new(); // by position of the core, of which there are no more than CPUs
        let mut domain_of = Vec::new();
        for (cpu, unit) in self.unit_of.into_iter().filter(|(cpu, _)| usable.contains(*cpu)) {
            let Some(known) = of_unit.get_mut(unit) else { continue };
            let position = *known.get_or_insert_with(|| {
                let cache = match self.units.get(unit) {
                    Some(Unit::Cache(cache)) => Some(*cache),
                    _ => None,
                };
                domains.push(Domain { cpus: 0, cores: 0, cache });
                domains.len() - 1
            });
            domain_of.push((cpu, position));
            let core = places.of_cpu(cpu).and_then(|place| u32::try_from(place.core).ok());
            if let Some(domain) = domains.get_mut(position) {
                domain.cpus += 1;
                domain.cores += usize::from(core.is_some_and(|core| seen.insert(core)));
            }
        }
        (domains, domain_of)
    }
}

/// The entry of a CPU in a list by CPU id, which grows as needed.
fn slot<T: Clone>(list: &mut Vec<T>, cpu: u32, empty: T) -> &mut T {
    let at = usize::try_from(cpu).expect("CPU ids end at 8191");
    if list.len() <= at {
        list.resize(at + 1, empty);
    }
    list.get_mut(at).expect("the list is longer than that")
}
