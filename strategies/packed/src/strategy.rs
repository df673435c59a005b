use crate::algorithm::{Placement, fewest_parts, packed, whole_cores};
use crate::distributed::{SearchBudget, distributed};
use crate::layout::{Layout, Level};
use crate::options::{Method, Options, Plan, SCHEMA};
use dracpu_strategy_sdk::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Group, Isolate, Machine, Offer, Request,
    State, Strategy, Terms, Threads, cpu_count, deny, log, push_counted,
};

/// The strategy: the kubelet's packing, within the groups of the machine.
#[derive(Debug)]
pub struct Packed {
    machine: Machine,
    layout: Layout,
    /// The machine with one thread of each core, where cores have more.
    first_threads: Option<Layout>,
    terms: Terms,
    /// Whether the devices offer whole cores.
    full_cores: bool,
}

impl Strategy for Packed {
    type Options = Options;

    fn describe() -> Description {
        Description {
            name: "packed",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Packs claims by whole NUMA nodes, sockets, caches and cores, as the kubelet's static policy does.",
            options_schema: SCHEMA,
            explicit_cpuset: ExplicitCpuset::Refused,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, options: Options) -> Result<(Self, Vec<Offer>), Denial> {
        let plan = options.plan(options.wishes.isolate)?;
        let terms = Terms::new(&machine, options.wishes)?;
        let whole_cores = |cpus: CpuSet| if plan.full_cores { machine.whole_cores(&cpus) } else { cpus };
        let mut offers = terms.offers(&machine, &whole_cores)?;
        if plan.full_cores && terms.node().isolate == Isolate::None {
            for (offer, group) in offers.iter_mut().zip(&machine.groups) {
                offer.step = core_step(&machine, &terms, group);
            }
        }
        let threads = terms.first_threads();
        let first_threads = (*threads != machine.online()).then(|| Layout::only(&machine, threads));
        let layout = Layout::of(&machine);
        Ok((Self { machine, layout, first_threads, terms, full_cores: plan.full_cores }, offers))
    }

    fn allocate(&self, requests: &[Request<Options>], now: &State) -> Result<Decision, Denial> {
        let mut budget = SearchBudget::default();
        let serve = |request: &Request<Options>, free: &CpuSet| self.serve(request, free, &mut budget);
        self.terms.decide(&self.machine, requests, &now.free, |options| &options.wishes, |_| 0, serve)
    }
}

/// The threads of every core that the node offers CPUs of; 1, with a line in the log, when they differ.
fn core_step(machine: &Machine, terms: &Terms, group: &Group) -> u32 {
    let step = machine.threads_per_core(&terms.node().eligible(machine, group.cpus.clone()));
    step.unwrap_or_else(|| {
        log::info(&format!(
            "{}: its cores have different numbers of threads, so requests are not rounded to whole cores: one that is no \
             sum of whole cores is refused when it is prepared",
            group.device
        ));
        1
    })
}

impl Packed {
    /// What one request gets, and why that.
    fn serve(
        &self,
        request: &Request<Options>,
        free: &CpuSet,
        budget: &mut SearchBudget,
    ) -> Result<(Grant, String), Denial> {
        let wishes = &request.options.wishes;
        let plan = request.options.plan(self.terms.isolation(wishes))?;
        let group = self.machine.group(request.group)?;
        let asked = usize::try_from(request.count).unwrap_or(usize::MAX);
        self.terms.admit(&self.machine, wishes, group, asked)?;
        let question = Question { request, plan, group, asked };
        if plan.full_cores {
            self.check_whole_cores(&question)?;
        }
        let candidates = self.terms.usable(&self.machine, wishes, free.intersection(&group.cpus));
        if candidates.len() < asked {
            return Err(self.terms.lacking(&self.machine, wishes, group, asked, free));
        }
        // Local CPUs are a preference: the whole request from them, or from anywhere in the group.
        let local = match request.pcie_roots.as_slice() {
            [] => CpuSet::new(),
            roots => {
                let local = free.intersection(&group.cpus).intersection(&self.machine.local_to(roots));
                self.terms.usable(&self.machine, wishes, local)
            }
        };
        let near = (!local.is_empty() && local.len() >= asked)
            .then(|| self.choose(&question, &local, budget))
            .and_then(Result::ok);
        let place = match (&near, request.pcie_roots.is_empty()) {
            (Some(_), _) => ", all local to the claim's PCIe root",
            (None, false) => ", as too few are free near the claim's PCIe root",
            (None, true) => "",
        };
        let cpus = near.map_or_else(|| self.choose(&question, &candidates, budget), Ok)?;
        let grant = self.terms.grant(&self.machine, wishes, group, cpus).or_else(|denial| {
            // Of cores that differ in threads, some may make up the number exactly.
            let exactly = whole_cores(&self.layout, &candidates, asked).ok_or(denial)?;
            self.terms.grant(&self.machine, wishes, group, exactly)
        })?;
        self.check_offered_cores(&question, &grant.cpus)?;
        let mut why = self.why(&question, &grant.cpus);
        why.push_str(place);
        why.push_str(&self.terms.why(&self.machine, wishes, &grant));
        Ok((grant, why))
    }

    /// The threads of every core with a CPU in the group; 1 when they differ.
    fn step(&self, question: &Question<'_>) -> usize {
        let eligible = question.request.options.wishes.eligible(&self.machine, question.group.cpus.clone());
        let step = self.machine.threads_per_core(&eligible);
        step.and_then(|step| usize::try_from(step).ok()).unwrap_or(1)
    }

    fn check_whole_cores(&self, question: &Question<'_>) -> Result<(), Denial> {
        let (step, asked) = (self.step(question), question.asked);
        if !asked.is_multiple_of(step) {
            let (below, above) = (asked / step * step, asked.next_multiple_of(step));
            return Err(deny!(
                Invalid,
                "{} asked of {}, whose cores have {step} threads: with full-pcpus-only ask for a multiple of {step}, \
                 such as {}",
                cpu_count(asked),
                question.group.device,
                if below == 0 { above } else { below },
            ));
        }
        Ok(())
    }

    /// Where devices offer whole cores, a claim that does not want them takes no halves: others count on the rest. A
    /// number that is no multiple was never offered.
    fn check_offered_cores(&self, question: &Question<'_>, cpus: &CpuSet) -> Result<(), Denial> {
        if !self.full_cores
            || question.plan.full_cores
            || !question.asked.is_multiple_of(self.step(question))
            || self.machine.whole_cores(cpus).len() == cpus.len()
        {
            return Ok(());
        }
        Err(deny!(
            Invalid,
            "full-pcpus-only: false would give {} of {} on parts of cores, where this node's devices offer whole ones \
             (full-pcpus-only of the node's strategyOptions): leave the option out",
            cpu_count(question.asked),
            question.group.device,
        ))
    }

    /// Chooses by the plan, of CPUs that are enough in number.
    fn choose(
        &self,
        question: &Question<'_>,
        candidates: &CpuSet,
        budget: &mut SearchBudget,
    ) -> Result<CpuSet, Denial> {
        let Question { request, plan, group, asked } = *question;
        let isolation = self.terms.isolation(&request.options.wishes);
        let whole = if plan.full_cores { self.machine.whole_cores(candidates) } else { CpuSet::new() };
        let no_whole_cores = |remedy: &str| {
            deny!(
                NoFit,
                "{} asked of {} on whole cores: {} free, {} of them on cores that are free with all threads; {remedy} \
                 or leave out full-pcpus-only",
                cpu_count(asked),
                group.device,
                cpu_count(candidates.len()),
                whole.len(),
            )
        };
        if plan.full_cores && whole.len() < asked {
            return Err(no_whole_cores("ask for at most that many"));
        }
        // Nobody else gets the caches that are touched, so they are chosen first.
        let caches = (isolation == Isolate::Cache).then(|| {
            let from = if plan.full_cores { &whole } else { candidates };
            fewest_parts(self.layout(question), &self.terms.by_cache(from), asked)
        });
        let candidates = caches.as_ref().map_or(Some(candidates), Option::as_ref);
        let candidates = candidates.ok_or_else(|| no_split(group, asked))?;
        if !plan.full_cores {
            let step = match isolation {
                Isolate::Core => self.terms.step(&self.machine, &request.options.wishes, group),
                Isolate::None | Isolate::Cache => 1,
            };
            return self.place(question, candidates, step, budget).ok_or_else(|| no_split(group, asked));
        }
        // Where all cores are alike, the kubelet's count is the whole check: packing then gives whole
        // cores, an even split over NUMA nodes may still halve some. On mixed cores each one is looked at.
        let step = self.step(question);
        self.place(question, candidates, step, budget)
            .filter(|cpus| step > 1 || self.machine.whole_cores(cpus).len() == cpus.len())
            .or_else(|| whole_cores(&self.layout, candidates, asked))
            .ok_or_else(|| no_whole_cores("cores of those sizes do not add up, so ask for another number"))
    }

    /// The machine as far as the request is given threads of it.
    fn layout(&self, question: &Question<'_>) -> &Layout {
        match (question.request.options.wishes.threads, &self.first_threads) {
            (Threads::One, Some(layout)) => layout,
            _ => &self.layout,
        }
    }

    fn place(
        &self,
        question: &Question<'_>,
        candidates: &CpuSet,
        step: usize,
        budget: &mut SearchBudget,
    ) -> Option<CpuSet> {
        let (layout, asked) = (self.layout(question), question.asked);
        match question.plan.method {
            Method::Pack { placement, prefer_llc } => {
                packed(layout, candidates, asked, placement, prefer_llc)
            }
            Method::DistributeAcrossNuma => {
                distributed(layout, candidates, asked, step, Placement::Packed, budget)
            }
        }
    }

    fn why(&self, question: &Question<'_>, cpus: &CpuSet) -> String {
        let how = match question.plan.method {
            Method::Pack { placement: Placement::Packed, .. } => " packed into ",
            Method::Pack { placement: Placement::Spread, .. } => " spread over ",
            Method::DistributeAcrossNuma => " distributed over ",
        };
        let mut why = String::with_capacity(96);
        why.push_str(&question.request.name);
        why.push_str(": ");
        push_counted(&mut why, cpus.len(), "CPU");
        why.push_str(how);
        push_counted(&mut why, self.layout.touched(cpus, Level::Core), "core");
        why.push_str(" of ");
        push_counted(&mut why, self.layout.touched(cpus, Level::NumaNode), "NUMA node");
        why
    }
}

/// What is asked of one group.
#[derive(Clone, Copy)]
struct Question<'a> {
    request: &'a Request<Options>,
    plan: Plan,
    group: &'a Group,
    asked: usize,
}

fn no_split(group: &Group, asked: usize) -> Denial {
    deny!(
        NoFit,
        "{asked} CPUs asked of {} cannot be chosen by these options; leave some of them out",
        group.device
    )
}
