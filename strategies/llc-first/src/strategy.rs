use crate::algorithm::{Choice, Free, Held, choose, descending, fewest, rooms};
use crate::layout::{Layout, Places};
use crate::options::{Align, Options, SCHEMA};
use dracpu_strategy_sdk::{
    Attribute, CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Group, Isolate, Kind, Machine,
    Offer, Request, State, Strategy, Terms, Threads, cpu_count, deny,
};

/// So many parts of a choice a sentence tells.
const MOST_AMOUNTS: usize = 8;

/// The strategy: as few last-level caches as possible.
#[derive(Debug)]
pub struct LlcFirst {
    machine: Machine,
    map: Map,
    /// The machine with one thread of each core, where cores have more.
    first_threads: Option<Map>,
    terms: Terms,
}

/// What the algorithm needs to know of a machine.
#[derive(Debug)]
struct Map {
    places: Places,
    /// One per group.
    layouts: Vec<Layout>,
}

impl Map {
    /// Of the machine as if only these CPUs were online.
    fn of(machine: &Machine, cpus: &CpuSet, terms: &Terms) -> Self {
        let places = Places::of(machine, cpus);
        let layout = |group: &Group| {
            Layout::of(machine, &places, group, &terms.node().eligible(machine, group.cpus.clone()))
        };
        Self { layouts: machine.groups.iter().map(layout).collect(), places }
    }
}

impl Strategy for LlcFirst {
    type Options = Options;

    fn describe() -> Description {
        Description {
            name: "llc-first",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Keeps a claim in as few last-level caches as the free CPUs allow, whole cores first.",
            options_schema: SCHEMA,
            explicit_cpuset: ExplicitCpuset::Refused,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, options: Options) -> Result<(Self, Vec<Offer>), Denial> {
        let terms = Terms::new(&machine, options.wishes)?;
        let online = machine.online();
        let map = Map::of(&machine, &online, &terms);
        let mut offers = terms.offers(&machine, &|cpus| cpus)?;
        for (offer, layout) in offers.iter_mut().zip(&map.layouts) {
            offer.attributes = attributes(&machine, layout);
        }
        let threads = terms.first_threads();
        let first_threads = (*threads != online).then(|| Map::of(&machine, threads, &terms));
        Ok((Self { machine, map, first_threads, terms }, offers))
    }

    fn allocate(&self, requests: &[Request<Options>], now: &State) -> Result<Decision, Denial> {
        let mut held = Held::default();
        let serve = |request: &Request<Options>, free: &CpuSet| {
            let (grant, why) = self.serve(request, free, &held)?;
            held.add(&self.map.places, &grant.cpus);
            Ok((grant, why))
        };
        // Of equals the large ones first: small ones fit into what is left.
        let rank = |request: &Request<Options>| !request.count;
        self.terms.decide(&self.machine, requests, &now.free, |options| &options.wishes, rank, serve)
    }
}

/// Facts for selectors, such as "a node whose caches hold 12 CPUs". What is free changes too often for an
/// attribute.
fn attributes(machine: &Machine, layout: &Layout) -> Vec<(String, Attribute)> {
    let caches = || layout.domains.iter().map(|domain| machine.caches.get(domain.cache?));
    let sizes = || layout.domains.iter().map(|domain| domain.cpus);
    let cores = layout.domains.iter().map(|domain| domain.cores);
    let level = caches().map(|cache| cache.map_or(0, |cache| cache.level)).min();
    let bytes = caches().map(|cache| cache.map_or(0, |cache| cache.size_bytes)).min();
    let facts = [
        ("cacheCount", i64::try_from(layout.domains.len()).ok()),
        ("cacheCpusMax", sizes().max().and_then(|size| i64::try_from(size).ok())),
        ("cacheCpusMin", sizes().min().and_then(|size| i64::try_from(size).ok())),
        ("coresPerCacheMax", cores.max().and_then(|count| i64::try_from(count).ok())),
        // 0 where something else stands for a cache.
        ("cacheLevel", level.map(i64::from)),
        ("cacheBytesMin", bytes.filter(|bytes| *bytes > 0).and_then(|bytes| i64::try_from(bytes).ok())),
    ];
    let known = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| (format!("llc-first.dra.cpu/{name}"), Attribute::Int(value))).collect()
}

fn asked(request: &Request<Options>) -> usize {
    size(request.count)
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl LlcFirst {
    /// What one request gets, and why that.
    fn serve(
        &self,
        request: &Request<Options>,
        free: &CpuSet,
        held: &Held,
    ) -> Result<(Grant, String), Denial> {
        let group = self.machine.group(request.group)?;
        let wishes = &request.options.wishes;
        let Map { places, layouts } = match (wishes.threads, &self.first_threads) {
            (Threads::One, Some(map)) => map,
            _ => &self.map,
        };
        let Some(layout) = layouts.get(request.group) else {
            return Err(deny!(Invalid, "group {} is not known", group.device));
        };
        let asked = asked(request);
        if asked == 0 {
            return Ok((Grant::default(), format!("{}: nothing asked", request.name)));
        }
        self.terms.admit(&self.machine, wishes, group, asked)?;
        // An idle machine, as far as the request's wishes let it be used.
        let idle = self.terms.usable(&self.machine, wishes, group.cpus.clone());
        let possible = fewest(&rooms(layout, &idle), asked);
        let isolation = self.terms.isolation(wishes);
        let mut refusal = None;
        for candidate in self.candidates(request, free.intersection(&group.cpus)) {
            if candidate.len() < asked {
                continue;
            }
            let free = match isolation {
                Isolate::None => Free::of(places, candidate),
                Isolate::Core | Isolate::Cache => Free::among(places, &idle, candidate),
            };
            if request.options.align == Align::Required
                && fewest(&rooms(layout, &free.cpus), asked) > possible
            {
                refusal = refusal.or_else(|| Some(unaligned(group, layout, &free.cpus, asked, possible)));
                continue;
            }
            let Some(choice) = choose(places, layout, &free, asked, held) else { continue };
            let grant = self.terms.grant(&self.machine, wishes, group, choice.cpus.clone())?;
            let whole = match isolation {
                Isolate::None => Free::of(&self.map.places, grant.cpus.clone()).whole,
                Isolate::Core | Isolate::Cache => free.on_whole_cores(&grant.cpus),
            };
            let why = self.why(&request.name, &choice, whole.len(), possible);
            return Ok((grant.clone(), format!("{why}{}", self.terms.why(&self.machine, wishes, &grant))));
        }
        Err(refusal.unwrap_or_else(|| self.terms.lacking(&self.machine, wishes, group, asked, free)))
    }

    /// The sets to choose from, the best first: local to the claim's PCIe roots if that is enough, and of
    /// one kind of core if that is enough.
    fn candidates(&self, request: &Request<Options>, in_group: CpuSet) -> Vec<CpuSet> {
        let wishes = &request.options.wishes;
        let local = in_group.intersection(&self.machine.local_to(&request.pcie_roots));
        // Kinds that share a cache are given out together where nobody else gets the cache.
        let by_kind = wishes.kind == Kind::Any
            && self.machine.kinds.len() > 1
            && self.terms.isolation(wishes) != Isolate::Cache;
        let mut candidates = Vec::new();
        for base in [local, in_group] {
            let usable = self.terms.usable(&self.machine, wishes, base);
            if by_kind {
                let kinds = &self.machine.kinds;
                let fastest = descending(kinds.len(), &|at| {
                    kinds.get(at).map_or((0, false, 0), |kind| (size(kind.capacity), false, 0))
                });
                let kinds = fastest.into_iter().filter_map(|at| kinds.get(at));
                candidates.extend(kinds.map(|kind| usable.intersection(&kind.cpus)));
            }
            candidates.push(usable);
        }
        candidates
    }

    fn why(&self, name: &str, choice: &Choice, whole: usize, possible: Option<usize>) -> String {
        let caches = choice.amounts.len();
        let mut amounts: Vec<String> = choice.amounts.iter().map(ToString::to_string).collect();
        if amounts.len() > MOST_AMOUNTS {
            amounts.truncate(MOST_AMOUNTS);
            amounts.push("…".to_owned());
        }
        let mut used = Held::default();
        used.add(&self.map.places, &choice.cpus);
        let nodes = used.nodes.iter().filter_map(|node| self.machine.numa_nodes.get(size(node)));
        let nodes: Vec<String> = nodes.map(|node| node.id.to_string()).collect();
        let possible = possible.map_or_else(String::new, |possible| format!(", {possible} when idle"));
        format!(
            "{name}: {caches} cache{} ({}), NUMA node {}, {whole} of {} on whole cores; the fewest possible now{possible}",
            if caches == 1 { "" } else { "s" },
            amounts.join("+"),
            nodes.join("+"),
            cpu_count(choice.cpus.len()),
        )
    }
}

fn unaligned(group: &Group, layout: &Layout, free: &CpuSet, asked: usize, possible: Option<usize>) -> Denial {
    let largest = rooms(layout, free).into_iter().max().unwrap_or(0);
    let possible = possible.unwrap_or(0);
    deny!(
        NoFit,
        "{} asked of {} in {possible} cache{} (align: required): the caches with most room have {largest} free and \
         it would take more of them; ask for at most {largest}, set align: preferred, or wait until other claims end",
        cpu_count(asked),
        group.device,
        if possible == 1 { "" } else { "s" },
    )
}
