use crate::algorithm::{Choice, Free, Held, by_cores, choose, descending, fewest, rooms};
use crate::layout::{Layout, Places};
use crate::options::{Align, Isolate, Kind, Options};
use dracpu_strategy_sdk::{
    Attribute, CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Group, Machine, Offer, Request,
    State, Strategy, cpu_count, deny,
};

/// So many parts of a choice a sentence tells.
const MOST_AMOUNTS: usize = 8;

/// The strategy: as few last-level caches as possible.
#[derive(Debug)]
pub struct LlcFirst {
    machine: Machine,
    places: Places,
    /// One per group.
    layouts: Vec<Layout>,
    /// Whether the node itself offers whole cores only, so that idle siblings may be charged.
    isolates_cores: bool,
}

impl Strategy for LlcFirst {
    type Options = Options;

    fn describe() -> Description {
        Description {
            name: "llc-first",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Keeps a claim in as few last-level caches as the free CPUs allow, whole cores first.",
            options_schema: include_str!("../options.schema.json"),
            explicit_cpuset: ExplicitCpuset::Refused,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, options: Options) -> Result<(Self, Vec<Offer>), Denial> {
        let isolates_cores = options.isolate == Isolate::Core;
        let places = Places::of(&machine);
        let layout = |group| Layout::of(&machine, &places, group);
        let layouts: Vec<Layout> = machine.groups.iter().map(layout).collect();
        let offer = |layout| offer(&machine, &places, layout, isolates_cores);
        let offers = layouts.iter().map(offer).collect();
        Ok((Self { machine, places, layouts, isolates_cores }, offers))
    }

    fn allocate(&self, requests: &[Request<Options>], now: &State) -> Result<Decision, Denial> {
        let mut free = now.free.clone();
        let mut held = Held::default();
        let mut answers: Vec<(Grant, String)> = vec![Default::default(); requests.len()];
        let count = |at: usize| requests.get(at).map_or(0, asked);
        // The large ones first: small ones fit into what is left.
        for at in descending(requests.len(), &|at| (count(at), false, 0)) {
            let (Some(request), Some(answer)) = (requests.get(at), answers.get_mut(at)) else { continue };
            let (grant, why) = self.serve(request, &free, &held).map_err(|denial| denial.of_request(at))?;
            free.subtract(&grant.cpus);
            free.subtract(&grant.blocked);
            held.add(&self.places, &grant.cpus);
            *answer = (grant, why);
        }
        let (grants, reasons): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        Ok(Decision { grants, join_shared_pool: false, why: reasons.join("; ") })
    }
}

fn offer(machine: &Machine, places: &Places, layout: &Layout, isolates_cores: bool) -> Offer {
    let (capacity, step) = if isolates_cores {
        let whole = Free::of(places, layout.usable.clone()).whole.len();
        (whole / layout.threads * layout.threads, layout.threads)
    } else {
        (layout.usable.len(), 1)
    };
    Offer { capacity: number(capacity), step: number(step), attributes: attributes(machine, layout) }
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

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
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
        let Some(layout) = self.layouts.get(request.group) else {
            return Err(deny!(Invalid, "group {} is not known", group.device));
        };
        let (asked, options) = (asked(request), request.options);
        if asked == 0 {
            return Ok((Grant::default(), format!("{}: nothing asked", request.name)));
        }
        let isolate = options.isolate == Isolate::Core;
        if isolate && !self.isolates_cores && !asked.is_multiple_of(layout.threads) {
            return Err(split_core(group, layout.threads, asked));
        }
        let free = free.intersection(&layout.usable);
        if free.len() < asked {
            return Err(not_enough(group, asked, free.len()));
        }
        // An idle machine, as far as the request's demands let it be used.
        let idle = self.eligible(self.demanded(options.kind, layout.usable.clone()), isolate);
        let mut refusal = None;
        for candidate in self.candidates(request, &free) {
            let free = self.eligible(candidate, isolate);
            if free.cpus.len() < asked {
                continue;
            }
            // Blocked siblings lie in the caches too, so whole cores are what is looked for.
            let wanted = match asked.next_multiple_of(layout.threads) {
                wanted if isolate && wanted <= free.cpus.len() => wanted,
                _ => asked,
            };
            let possible = fewest(&rooms(layout, &idle.cpus), wanted);
            let needed = fewest(&rooms(layout, &free.cpus), wanted);
            if options.align == Align::Required && needed > possible {
                refusal = refusal.or_else(|| Some(unaligned(group, layout, &free.cpus, asked, possible)));
                continue;
            }
            let Some(choice) = choose(&self.places, layout, &free, wanted, held) else { continue };
            let grant =
                if isolate { self.whole_cores(&choice.cpus, asked) } else { choice.cpus.clone().into() };
            if isolate && !self.isolates_cores && !grant.blocked.is_empty() {
                continue;
            }
            let why = self.why(&request.name, &choice, &grant, possible);
            return Ok((grant, why));
        }
        Err(refusal.unwrap_or_else(|| no_fit(group, options, asked, &free, &self.largest(request, &free))))
    }

    /// The sets to choose from, the best first: local to the claim's PCIe roots if that is enough, and of
    /// one kind of core if that is enough.
    fn candidates(&self, request: &Request<Options>, free: &CpuSet) -> Vec<CpuSet> {
        let local = free.intersection(&self.machine.local_to(&request.pcie_roots));
        let mut candidates = Vec::new();
        for base in [&local, free] {
            if request.options.kind == Kind::Any && self.machine.kinds.len() > 1 {
                let kinds = &self.machine.kinds;
                let fastest = descending(kinds.len(), &|at| {
                    kinds.get(at).map_or((0, false, 0), |kind| (size(kind.capacity), false, 0))
                });
                let kinds = fastest.into_iter().filter_map(|at| kinds.get(at));
                candidates.extend(kinds.map(|kind| base.intersection(&kind.cpus)));
            }
            candidates.push(self.demanded(request.options.kind, base.clone()));
        }
        candidates
    }

    /// Without the CPUs of kinds other than the demanded one.
    fn demanded(&self, kind: Kind, cpus: CpuSet) -> CpuSet {
        let Some(name) = kind.name() else { return cpus };
        let kind = self.machine.kinds.iter().find(|kind| kind.name == name);
        kind.map_or_else(CpuSet::new, |kind| cpus.intersection(&kind.cpus))
    }

    /// What may be taken of these CPUs: with isolation only whole cores.
    fn eligible(&self, cpus: CpuSet, isolate: bool) -> Free {
        let free = Free::of(&self.places, cpus);
        if isolate { Free { cpus: free.whole.clone(), whole: free.whole } } else { free }
    }

    /// `count` of the CPUs, and the siblings that nobody else may use then.
    fn whole_cores(&self, cpus: &CpuSet, count: usize) -> Grant {
        let cores = |cpus: &CpuSet| {
            let mut cores = CpuSet::new();
            cpus.iter().filter_map(|cpu| self.machine.core_of(cpu)).for_each(|core| cores.extend_from(core));
            cores
        };
        let cpus: Vec<u32> = cores(cpus).iter().collect();
        let granted: CpuSet = by_cores(&self.places, &cpus, count).into_iter().collect();
        Grant { blocked: cores(&granted).difference(&granted), ..granted.into() }
    }

    /// The most that the request's demands leave.
    fn largest(&self, request: &Request<Options>, free: &CpuSet) -> CpuSet {
        let isolate = request.options.isolate == Isolate::Core;
        self.eligible(self.demanded(request.options.kind, free.clone()), isolate).cpus
    }

    fn why(&self, name: &str, choice: &Choice, grant: &Grant, possible: Option<usize>) -> String {
        let caches = choice.amounts.len();
        let mut amounts: Vec<String> = choice.amounts.iter().map(ToString::to_string).collect();
        if amounts.len() > MOST_AMOUNTS {
            amounts.truncate(MOST_AMOUNTS);
            amounts.push("…".to_owned());
        }
        let mut used = Held::default();
        used.add(&self.places, &grant.cpus);
        let nodes = used.nodes.iter().filter_map(|node| self.machine.numa_nodes.get(size(node)));
        let nodes: Vec<String> = nodes.map(|node| node.id.to_string()).collect();
        let whole = Free::of(&self.places, grant.cpus.clone()).whole.len();
        let possible = possible.map_or_else(String::new, |possible| format!(", {possible} when idle"));
        format!(
            "{name}: {caches} cache{} ({}), NUMA node {}, {whole} of {} on whole cores; the fewest possible now{possible}",
            if caches == 1 { "" } else { "s" },
            amounts.join("+"),
            nodes.join("+"),
            cpu_count(grant.cpus.len()),
        )
    }
}

fn not_enough(group: &Group, asked: usize, free: usize) -> Denial {
    deny!(
        NotEnough,
        "{} asked of {}, {free} free; ask for at most {free}, or wait until other claims end",
        cpu_count(asked),
        group.device
    )
}

fn split_core(group: &Group, threads: usize, asked: usize) -> Denial {
    deny!(
        Invalid,
        "{} asked of {} with isolate: core, whose cores have {threads} threads: ask for a multiple of {threads}",
        cpu_count(asked),
        group.device
    )
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

fn no_fit(group: &Group, options: Options, asked: usize, free: &CpuSet, usable: &CpuSet) -> Denial {
    let mut demands = Vec::new();
    if let Some(kind) = options.kind.name() {
        demands.push(format!("kind: {kind}"));
    }
    if options.isolate == Isolate::Core {
        demands.push("isolate: core".to_owned());
    }
    deny!(
        NoFit,
        "{} asked of {} with {}: {} free, {} of them fit; ask for at most that many, leave the option out, or wait \
         until other claims end",
        cpu_count(asked),
        group.device,
        demands.join(" and "),
        cpu_count(free.len()),
        usable.len(),
    )
}
