use super::units::Units;
use super::{Isolate, Isolated, Kind, Memory, Threads, Wishes};
use crate::order::{ascending, joined};
use crate::{
    CpuSet, Decision, Denial, Grant, Group, Machine, Offer, Reason, Request, counted, cpu_count, deny, log,
};

/// The node's wishes on its machine: what devices can offer under them, and what the wishes of a claim come
/// to. A strategy makes it in `open`, has it [go through the requests](Self::decide) and asks it for each:
///
/// 1. [`admit`](Self::admit): whether the claim's wishes go together with what the node offers;
/// 2. [`usable`](Self::usable): what to choose from; when that is too little, [`lacking`](Self::lacking);
/// 3. [`grant`](Self::grant): the chosen CPUs with what they block, and their memory.
///
/// A core or cache is used when it lies in the device with all its online CPUs and all of them are free: a
/// thread that is reserved, held or of another device cannot be kept idle.
#[derive(Debug)]
pub struct Terms {
    node: Wishes,
    cores: Units,
    caches: Units,
    first_threads: CpuSet,
}

impl Terms {
    /// The terms of a node with these wishes.
    ///
    /// # Errors
    /// Invalid, for a kind of cores that the machine does not have.
    pub fn new(machine: &Machine, node: Wishes) -> Result<Self, Denial> {
        node.check_kind(machine)?;
        let cores = Units::cores(machine);
        let first_threads = cores.first_cpus();
        Ok(Self { node, caches: Units::caches(machine), cores, first_threads })
    }

    /// The node's own wishes.
    #[must_use]
    pub fn node(&self) -> &Wishes {
        &self.node
    }

    /// The first thread of each core: all that `threads: one` gives out. Algorithms that count threads should
    /// then see a [machine of these alone](Machine::only).
    #[must_use]
    pub fn first_threads(&self) -> &CpuSet {
        &self.first_threads
    }

    /// In whole units of what CPUs must be chosen so that the node's offers hold, whatever the claim wishes:
    /// at least the node's own `isolate`.
    #[must_use]
    pub fn isolation(&self, wishes: &Wishes) -> Isolate {
        self.node.isolate.max(wishes.isolate)
    }

    /// One offer per group. `grantable` takes out what the strategy's own options keep from claims.
    ///
    /// Where claims block CPUs, they are counted in whole units: the step is the size for which the units of
    /// at least that size, each counted with it, hold most. Where all units are equally large, that is their
    /// size and nothing is lost; in any case claims that add up to the capacity fit, in whatever order.
    ///
    /// # Errors
    /// Invalid, when no group has a whole unit.
    pub fn offers(
        &self,
        machine: &Machine,
        grantable: &dyn Fn(CpuSet) -> CpuSet,
    ) -> Result<Vec<Offer>, Denial> {
        let mut offers = Vec::with_capacity(machine.groups.len());
        let mut barren = Vec::new();
        for group in &machine.groups {
            let usable = grantable(self.usable(machine, &self.node, group.cpus.clone()));
            let offer = self.offer(self.node.exclusive(), &usable);
            if offer.capacity == 0 && !self.node.eligible(machine, group.cpus.clone()).is_empty() {
                barren.push(group.device.clone());
            }
            offers.push(offer);
        }
        let unit = match self.node.exclusive() {
            Isolate::None => return Ok(offers),
            Isolate::Core => "core",
            Isolate::Cache => "cache",
        };
        if barren.is_empty() {
            return Ok(offers);
        }
        let why = format!(
            "{} offers nothing with {}: no {unit} lies in it with all CPUs (some are reserved or in another device); \
             reserve whole {unit}s, choose a groupBy that keeps {unit}s together, or leave the option out",
            joined(&barren, ", "),
            joined(&self.node.demands(), " and "),
        );
        if offers.iter().all(|offer| offer.capacity == 0) {
            return Err(deny!(Invalid, "{why}"));
        }
        log::warn(&why);
        Ok(offers)
    }

    /// What CPUs can offer that are given out in such units.
    fn offer(&self, unit: Isolate, usable: &CpuSet) -> Offer {
        let Some(units) = self.units(unit) else { return Offer::of(number(usable.len())) };
        let sizes = units.counts(usable).into_iter();
        let sizes = ascending(sizes.map(|size| (u64::try_from(size).unwrap_or(u64::MAX), size)).collect());
        let count = sizes.len();
        let mut best = Offer::of(0);
        for (smaller, size) in sizes.into_iter().enumerate().filter(|(_, size)| *size > 0) {
            let capacity = number(size * (count - smaller));
            if capacity > best.capacity {
                best = Offer { step: number(size), ..Offer::of(capacity) };
            }
        }
        best
    }

    /// The step of an idle group for a claim with these wishes: see [`offers`](Self::offers).
    #[must_use]
    pub fn step(&self, machine: &Machine, wishes: &Wishes, group: &Group) -> usize {
        let unit = self.isolation(wishes).max(wishes.exclusive());
        let offer = self.offer(unit, &self.usable(machine, wishes, group.cpus.clone()));
        usize::try_from(offer.step).unwrap_or(usize::MAX)
    }

    fn units(&self, unit: Isolate) -> Option<&Units> {
        match unit {
            Isolate::None => None,
            Isolate::Core => Some(&self.cores),
            Isolate::Cache => Some(&self.caches),
        }
    }

    /// Checks a claim's wishes against the node's. What devices offer counts on the node's, so that a claim
    /// may narrow what it can get, and may keep CPUs idle only where the node does, or where none would be.
    ///
    /// # Errors
    /// Invalid, with the option and the remedy.
    pub fn admit(
        &self,
        machine: &Machine,
        wishes: &Wishes,
        group: &Group,
        asked: usize,
    ) -> Result<(), Denial> {
        wishes.check_kind(machine)?;
        if wishes.isolated != self.node.isolated && self.node.isolated != Isolated::Include {
            return Err(deny!(
                Invalid,
                "isolated: {wanted} is not what this node's devices offer (isolated: {}): set isolated: {wanted} or \
                 include in the node's strategyOptions, or leave the option out",
                self.node.isolated.word(),
                wanted = wishes.isolated.word(),
            ));
        }
        if let Kind::Named(offered) = &self.node.kind
            && wishes.kind != self.node.kind
        {
            return Err(deny!(
                Invalid,
                "this node's devices offer kind: {offered} alone: ask for that, or set kind: any in the node's \
                 strategyOptions"
            ));
        }
        if self.may_block(wishes) {
            return Ok(());
        }
        let idle = self.usable(machine, wishes, group.cpus.clone());
        if self.drops_threads(wishes) {
            return if asked <= idle.len() { Ok(()) } else { Err(not_counted_threads(group, asked, &idle)) };
        }
        let offer = self.offer(wishes.exclusive(), &idle);
        let (step, even) = (size(offer.step), size(offer.capacity) == idle.len());
        if even && !asked.is_multiple_of(step) {
            return Err(self.not_counted(wishes, asked, &format!("a multiple of {step} CPUs")));
        }
        Ok(())
    }

    /// Whether the node's offers count on CPUs that such a claim keeps idle.
    fn may_block(&self, wishes: &Wishes) -> bool {
        wishes.exclusive() <= self.node.exclusive() && !self.drops_threads(wishes)
    }

    /// Whether the claim would leave threads unused that the node's offers count.
    fn drops_threads(&self, wishes: &Wishes) -> bool {
        wishes.threads == Threads::One && self.node.threads == Threads::All
    }

    fn not_counted(&self, wishes: &Wishes, asked: usize, instead: &str) -> Denial {
        let option = if wishes.isolate == Isolate::Cache { "isolate: cache" } else { "isolate: core" };
        deny!(
            Invalid,
            "{} asked with {option} would keep further CPUs idle, which this node's devices do not count: ask for \
             {instead}, or set {option} in the node's strategyOptions",
            cpu_count(asked)
        )
    }

    /// Those of a group's free CPUs to choose from. However a strategy chooses among them, it must leave no
    /// unit half used to open another, see [`isolation`](Self::isolation).
    #[must_use]
    pub fn usable(&self, machine: &Machine, wishes: &Wishes, free: CpuSet) -> CpuSet {
        let mut usable = match self.units(self.isolation(wishes)) {
            Some(units) => units.whole(&free),
            None => free,
        };
        if wishes.threads == Threads::One {
            usable = self.cores.whole(&usable).intersection(&self.first_threads);
        }
        if self.drops_threads(wishes) {
            usable = usable.intersection(&self.cores.alone());
        }
        wishes.eligible(machine, usable)
    }

    /// Serves the requests of one claim, each with what others have left. What has the least to choose from comes first,
    /// or others would take it though they could have had something else; of equals the first by `rank`, and then as asked.
    ///
    /// # Errors
    /// The first denial, of its request.
    pub fn decide<O>(
        &self,
        machine: &Machine,
        requests: &[Request<O>],
        free: &CpuSet,
        wishes: fn(&O) -> &Wishes,
        rank: fn(&Request<O>) -> u32,
        mut serve: impl FnMut(&Request<O>, &CpuSet) -> Result<(Grant, String), Denial>,
    ) -> Result<Decision, Denial> {
        let join_shared_pool = requests.iter().any(|request| wishes(&request.options).mixed);
        if let [request] = requests {
            let (grant, why) = serve(request, free).map_err(|denial| denial.of_request(0))?;
            return Ok(Decision { grants: vec![grant], join_shared_pool, why });
        }
        let key = |request: &Request<O>| {
            let group = machine.groups.get(request.group);
            let in_group = group.map(|group| free.intersection(&group.cpus)).unwrap_or_default();
            let usable = self.usable(machine, wishes(&request.options), in_group);
            (u64::from(number(usable.len())) << 32) + u64::from(rank(request))
        };
        let keyed = requests.iter().enumerate().map(|(at, request)| (key(request), at)).collect();
        let mut free = free.clone();
        let mut answers: Vec<(Grant, String)> = vec![Default::default(); requests.len()];
        for at in ascending(keyed) {
            let (Some(request), Some(answer)) = (requests.get(at), answers.get_mut(at)) else { continue };
            let (grant, why) = serve(request, &free).map_err(|denial| denial.of_request(at))?;
            free.subtract(&grant.cpus);
            free.subtract(&grant.blocked);
            *answer = (grant, why);
        }
        let (grants, reasons): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        Ok(Decision { grants, join_shared_pool, why: reasons.join("; ") })
    }

    /// The usable CPUs by cache: the parts that `isolate: cache` gives to one claim each.
    #[must_use]
    pub fn by_cache(&self, usable: &CpuSet) -> Vec<CpuSet> {
        self.caches.parts(usable)
    }

    /// Why a request cannot be served while so much of its group is free.
    #[must_use]
    pub fn lacking(
        &self,
        machine: &Machine,
        wishes: &Wishes,
        group: &Group,
        asked: usize,
        free: &CpuSet,
    ) -> Denial {
        let in_group = free.intersection(&group.cpus);
        let by_isolation = Wishes { isolated: wishes.isolated, ..Wishes::default() };
        let eligible = by_isolation.eligible(machine, in_group.clone()).len();
        let asked_of = format!("{} asked of {}", cpu_count(asked), group.device);
        if eligible >= asked {
            let fits = self.usable(machine, wishes, in_group).len();
            let demands = Wishes { isolate: self.isolation(wishes), ..wishes.clone() }.demands();
            // A claim cannot leave out what the node demands.
            let nodes = self.node.demands();
            let (whose, leave_out) = match demands.iter().all(|demand| nodes.contains(demand)) {
                true => (" (of the node's strategyOptions)", ""),
                false => ("", ", leave the option out"),
            };
            let demands = joined(&demands, " and ");
            let idle = self.usable(machine, wishes, group.cpus.clone()).len();
            if idle < asked {
                return deny!(
                    Invalid,
                    "{asked_of} with {demands}{whose}: no more than {idle} fit when nothing else is there; ask for at most \
                     that many{leave_out}"
                );
            }
            return deny!(
                NoFit,
                "{asked_of} with {demands}{whose}: {} free, {fits} of them fit; ask for at most that many{leave_out}, or \
                 wait until other claims end",
                cpu_count(eligible),
            );
        }
        let (which, hint) = match wishes.isolated {
            _ if in_group.len() == eligible => ("", ""),
            Isolated::Only => (" of the isolated ones", WIDEN),
            Isolated::Exclude | Isolated::Include => (" without isolated ones", WIDEN),
        };
        deny!(
            NotEnough,
            "{asked_of}, {eligible} free{which}; ask for at most {eligible}{hint}, or wait until other claims end"
        )
    }

    /// The CPUs that were chosen of a group, what they block, and where their memory lies.
    ///
    /// # Errors
    /// Invalid, when CPUs would be blocked that the node's offers do not count.
    pub fn grant(
        &self,
        machine: &Machine,
        wishes: &Wishes,
        group: &Group,
        cpus: CpuSet,
    ) -> Result<Grant, Denial> {
        self.check_units(machine, wishes, group, &cpus)?;
        let touched = self.units(wishes.exclusive()).map(|units| units.touched(&cpus));
        let blocked = touched.map(|touched| touched.difference(&cpus)).unwrap_or_default();
        if !blocked.is_empty() && !self.may_block(wishes) {
            let units = if wishes.isolate == Isolate::Cache { "whole caches" } else { "whole cores" };
            return Err(self.not_counted(wishes, cpus.len(), units));
        }
        let nodes = machine.numa_nodes.iter().enumerate();
        let local = nodes.filter(|(_, node)| node.memory_bytes > 0 && !node.cpus.is_disjoint(&cpus));
        let mems = match wishes.memory {
            Memory::None => Vec::new(),
            Memory::Local => local.map(|(position, _)| position).collect(),
        };
        Ok(Grant { cpus, blocked, mems })
    }

    /// Where the node's claims have units to themselves, a claim that is given fewer CPUs of each than the node offers takes
    /// no more units than its size counts for.
    fn check_units(
        &self,
        machine: &Machine,
        wishes: &Wishes,
        group: &Group,
        cpus: &CpuSet,
    ) -> Result<(), Denial> {
        let unit = self.node.exclusive();
        let Some(units) = self.units(unit) else { return Ok(()) };
        let narrower = self.narrower(wishes);
        if narrower.is_empty() {
            return Ok(());
        }
        let offered = self.usable(machine, &self.node, group.cpus.clone());
        let step = size(self.offer(unit, &offered).step).max(1);
        // Smaller units are in no offer, so nobody counts on them.
        let counted_units = units.counts(&offered).into_iter().zip(units.counts(cpus));
        let taken = counted_units.filter(|(all, given)| *all >= step && *given > 0).count();
        let allowed = cpus.len().div_ceil(step);
        if taken <= allowed {
            return Ok(());
        }
        // On an idle machine the units with most room may do.
        let mut rooms = units.counts(&self.usable(machine, wishes, group.cpus.clone()));
        rooms.sort_unstable();
        let fits_idle = rooms.iter().rev().take(allowed).sum::<usize>() >= cpus.len();
        let (reason, remedy) = match fits_idle {
            true => (Reason::NoFit, ", leave that out, or wait until other claims end"),
            false => (Reason::Invalid, ", or leave that out"),
        };
        let unit = if unit == Isolate::Cache { "cache" } else { "core" };
        let narrower = joined(&narrower, " and ");
        Err(Denial {
            reason,
            ..deny!(
                Invalid,
                "{} asked of {} with {narrower} would take {}, this node's devices count {} CPUs for each: ask for \
                 fewer, set {narrower} in the node's strategyOptions{remedy}",
                cpu_count(cpus.len()),
                group.device,
                counted(taken, unit),
                step,
            )
        })
    }

    /// What a claim demands that takes out CPUs which the node's devices offer.
    fn narrower(&self, wishes: &Wishes) -> Vec<String> {
        let mut narrower = Vec::new();
        if wishes.isolated != self.node.isolated {
            narrower.push(format!("isolated: {}", wishes.isolated.word()));
        }
        let (threads, kind) = (wishes.threads, wishes.kind.clone());
        let demands = Wishes { threads, kind, ..Wishes::default() }.demands();
        let nodes = self.node.demands();
        narrower.extend(demands.into_iter().filter(|demand| !nodes.contains(demand)));
        narrower
    }

    /// What a grant comes to beyond its CPUs, to be put behind the strategy's own words; mostly nothing.
    #[must_use]
    pub fn why(&self, machine: &Machine, wishes: &Wishes, grant: &Grant) -> String {
        let mut why = String::new();
        if !grant.blocked.is_empty() {
            let noun = if grant.blocked.len() == 1 { "CPU" } else { "CPUs" };
            why.push_str(&format!(", {noun} {} kept idle", grant.blocked));
        }
        if wishes.memory == Memory::Local {
            let nodes = machine.numa_nodes.iter().filter(|node| !node.cpus.is_disjoint(&grant.cpus));
            let (with, without): (Vec<_>, Vec<_>) = nodes.partition(|node| node.memory_bytes > 0);
            let ids = |nodes: Vec<&crate::NumaNode>| {
                joined(&nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>(), "+")
            };
            let has_any = !with.is_empty();
            if has_any {
                why.push_str(&format!(", memory of NUMA node {}", ids(with)));
            }
            if !without.is_empty() {
                let rest = if has_any { "" } else { ", so memory is left alone" };
                why.push_str(&format!(", NUMA node {} has no memory{rest}", ids(without)));
            }
        }
        why
    }
}

const WIDEN: &str = ", set the option isolated to include in the node's strategyOptions";

fn not_counted_threads(group: &Group, asked: usize, idle: &CpuSet) -> Denial {
    deny!(
        Invalid,
        "{} asked of {} with threads: one, which has {} on cores of one thread; other cores would keep threads idle \
         that this node's devices count: set threads: one in the node's strategyOptions, or leave it out",
        cpu_count(asked),
        group.device,
        idle.len(),
    )
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
