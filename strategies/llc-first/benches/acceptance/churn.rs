//! Plays a sequence to a strategy and measures what it chose.

use crate::load::Event;
use crate::machines::{Server, Sizes};
use dracpu_strategy_sdk::testkit::{Claim, all_free, open};
use dracpu_strategy_sdk::{CpuSet, Decision, Denial, Request, State, Strategy};
use std::collections::BTreeSet;

/// Sums over the counted claims.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measures {
    pub(crate) claims: usize,
    /// Caches that claims touch, and would at least touch on the idle machine.
    pub(crate) caches: usize,
    pub(crate) ideal_caches: usize,
    /// NUMA nodes, likewise.
    pub(crate) nodes: usize,
    pub(crate) ideal_nodes: usize,
    /// Caches that nobody uses, after each claim.
    pub(crate) whole_caches: usize,
    /// Cores that a claim shares with others when it comes.
    pub(crate) shared_cores: usize,
    /// Claims that take more caches than on the idle machine.
    pub(crate) unaligned: usize,
}

impl Measures {
    pub(crate) fn add(&mut self, other: Self) {
        self.claims += other.claims;
        self.caches += other.caches;
        self.ideal_caches += other.ideal_caches;
        self.nodes += other.nodes;
        self.ideal_nodes += other.ideal_nodes;
        self.whole_caches += other.whole_caches;
        self.shared_cores += other.shared_cores;
        self.unaligned += other.unaligned;
    }

    /// Caches per claim, by what they would be on the idle machine.
    pub(crate) fn excess(&self) -> f64 {
        self.caches as f64 / self.ideal_caches as f64
    }

    pub(crate) fn nodes_excess(&self) -> f64 {
        self.nodes as f64 / self.ideal_nodes as f64
    }

    pub(crate) fn per_claim(&self, sum: usize) -> f64 {
        sum as f64 / self.claims as f64
    }
}

/// A claim that comes, and what was free then.
pub(crate) struct Moment<'a> {
    pub(crate) server: &'a Server,
    pub(crate) group: usize,
    pub(crate) count: usize,
    /// What is free on the machine.
    pub(crate) free: &'a CpuSet,
}

impl Moment<'_> {
    pub(crate) fn sizes(&self) -> &Sizes {
        &self.server.groups[self.group]
    }

    /// What is free in the group, by cache.
    pub(crate) fn rooms(&self, cpus: &CpuSet) -> Vec<usize> {
        let mut rooms = vec![0; self.server.caches.len()];
        for cpu in &cpus.intersection(&self.sizes().cpus) {
            rooms[self.server.places[cpu as usize].cache] += 1;
        }
        rooms
    }
}

/// The fewest parts that hold so many CPUs: sort, and add up.
pub(crate) fn fewest(rooms: &[usize], count: usize) -> usize {
    let mut rooms = rooms.to_vec();
    rooms.sort_unstable();
    let (mut room, mut parts) = (0, 0);
    while room < count {
        room += rooms.pop().expect("so many are free");
        parts += 1;
    }
    parts
}

/// A strategy opened on a machine.
pub(crate) struct Player<S: Strategy> {
    strategy: S,
    asked: Request<S::Options>,
}

impl<S: Strategy<Options: Clone>> Player<S> {
    pub(crate) fn new(server: &Server, options: &str) -> Self {
        let (strategy, _) = open(server.machine.clone(), options).unwrap();
        Self { strategy, asked: Claim::with(options).request(0).requests().unwrap().remove(0) }
    }

    pub(crate) fn ask(&self, moment: &Moment<'_>) -> Result<Decision, Denial> {
        let count = u32::try_from(moment.count).unwrap();
        let request = Request { group: moment.group, count, ..self.asked.clone() };
        self.strategy.allocate(&[request], &State { free: moment.free.clone(), others: Vec::new() })
    }

    /// Plays the events; claims from number `counted` on are measured. `observe` sees each decision.
    pub(crate) fn play(
        &self,
        server: &Server,
        events: &[Event],
        counted: usize,
        observe: &mut dyn FnMut(&Moment<'_>, &CpuSet),
    ) -> Measures {
        let mut free = all_free(&server.machine).free;
        let mut claims: Vec<CpuSet> = Vec::new();
        let mut measures = Measures::default();
        for event in events {
            match *event {
                Event::Goes { claim } => free.extend_from(&claims[claim]),
                Event::Comes { group, count } => {
                    let moment = Moment { server, group, count: count as usize, free: &free };
                    let cpus = self.ask(&moment).unwrap().grants.remove(0).cpus;
                    assert!(cpus.len() == moment.count && cpus.is_subset(&free));
                    observe(&moment, &cpus);
                    if claims.len() >= counted {
                        measures.count(&moment, &cpus);
                    }
                    free.subtract(&cpus);
                    claims.push(cpus);
                }
            }
        }
        measures
    }
}

impl Measures {
    fn count(&mut self, moment: &Moment<'_>, cpus: &CpuSet) {
        let places = || cpus.iter().map(|cpu| moment.server.places[cpu as usize]);
        let distinct = |positions: &mut dyn Iterator<Item = usize>| positions.collect::<BTreeSet<_>>();
        let caches = distinct(&mut places().map(|place| place.cache)).len();
        let ideal = fewest(&moment.sizes().caches, moment.count);
        self.claims += 1;
        self.caches += caches;
        self.ideal_caches += ideal;
        self.unaligned += usize::from(caches > ideal);
        self.nodes += distinct(&mut places().map(|place| place.node)).len();
        self.ideal_nodes += fewest(&moment.sizes().nodes, moment.count);
        let left = moment.free.difference(cpus);
        self.whole_caches += moment.server.caches.iter().filter(|cache| cache.is_subset(&left)).count();
        let reserved = &moment.server.machine.reserved;
        let is_shared = |core: &usize| {
            let others = moment.server.machine.cores[*core].difference(cpus).difference(reserved);
            !others.is_subset(&left)
        };
        self.shared_cores +=
            distinct(&mut places().map(|place| place.core)).iter().filter(|core| is_shared(core)).count();
    }
}
