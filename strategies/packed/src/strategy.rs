use crate::algorithm::{Placement, packed, whole_cores};
use crate::distributed::{SearchBudget, distributed};
use crate::layout::Layout;
use crate::options::{Isolated, Method, Options, Plan};
use dracpu_strategy_sdk::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Group, Machine, Offer, Request, State,
    Strategy, cpu_count, deny, log,
};

/// The strategy: the kubelet's packing, within the groups of the machine.
#[derive(Debug)]
pub struct Packed {
    machine: Machine,
    layout: Layout,
}

impl Strategy for Packed {
    type Options = Options;

    fn describe() -> Description {
        Description {
            name: "packed",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Packs claims by whole NUMA nodes, sockets, caches and cores, as the kubelet's static policy does.",
            options_schema: include_str!("../options.schema.json"),
            explicit_cpuset: ExplicitCpuset::Refused,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, options: Options) -> Result<(Self, Vec<Offer>), Denial> {
        let plan = options.plan()?;
        let offer = |group: &Group| {
            let eligible = plan.isolated.eligible(&group.cpus, &machine.isolated);
            if plan.full_cores {
                let step = machine.threads_per_core(&eligible);
                if step.is_none() {
                    log::info(&format!(
                        "{}: its cores have different numbers of threads, so requests are not rounded to whole cores: one \
                         that is no sum of whole cores is refused when it is prepared",
                        group.device
                    ));
                }
                Offer { step: step.unwrap_or(1), ..Offer::of(count(&machine.whole_cores(&eligible))) }
            } else {
                Offer::of(count(&eligible))
            }
        };
        let offers = machine.groups.iter().map(offer).collect();
        let layout = Layout::of(&machine);
        Ok((Self { machine, layout }, offers))
    }

    fn allocate(&self, requests: &[Request<Options>], now: &State) -> Result<Decision, Denial> {
        let mut free = now.free.clone();
        let mut budget = SearchBudget::default();
        let mut decision = Decision { grants: Vec::new(), join_shared_pool: false, why: String::new() };
        for (at, request) in requests.iter().enumerate() {
            let (cpus, why) =
                self.serve(request, &free, &mut budget).map_err(|denial| denial.of_request(at))?;
            free.subtract(&cpus);
            if at > 0 {
                decision.why.push_str("; ");
            }
            decision.why.push_str(&why);
            decision.grants.push(Grant::from(cpus));
        }
        Ok(decision)
    }
}

fn count(cpus: &CpuSet) -> u32 {
    u32::try_from(cpus.len()).unwrap_or(u32::MAX)
}

impl Packed {
    /// The CPUs for one request, and why these.
    fn serve(
        &self,
        request: &Request<Options>,
        free: &CpuSet,
        budget: &mut SearchBudget,
    ) -> Result<(CpuSet, String), Denial> {
        let plan = request.options.plan()?;
        let group = self.machine.group(request.group)?;
        let in_group = free.intersection(&group.cpus);
        let candidates = plan.isolated.eligible(&in_group, &self.machine.isolated);
        let asked = usize::try_from(request.count).unwrap_or(usize::MAX);
        if plan.full_cores {
            self.check_whole_cores(plan, group, asked)?;
        }
        if candidates.len() < asked {
            return Err(not_enough(plan.isolated, group, asked, &candidates, &in_group));
        }
        // Local CPUs are a preference: the whole request from them, or from anywhere in the group.
        let local = candidates.intersection(&self.machine.local_to(&request.pcie_roots));
        if !local.is_empty()
            && local.len() >= asked
            && let Ok(cpus) = self.choose(plan, group, &local, asked, budget)
        {
            let why = format!("{}, all local to the claim's PCIe root", self.why(request, plan, &cpus));
            return Ok((cpus, why));
        }
        let cpus = self.choose(plan, group, &candidates, asked, budget)?;
        let mut why = self.why(request, plan, &cpus);
        if !request.pcie_roots.is_empty() {
            why.push_str(", as too few are free near the claim's PCIe root");
        }
        Ok((cpus, why))
    }

    /// The threads of every core with a CPU in the group; 1 when they differ.
    fn step(&self, plan: Plan, group: &Group) -> usize {
        let eligible = plan.isolated.eligible(&group.cpus, &self.machine.isolated);
        let step = self.machine.threads_per_core(&eligible);
        step.and_then(|step| usize::try_from(step).ok()).unwrap_or(1)
    }

    fn check_whole_cores(&self, plan: Plan, group: &Group, asked: usize) -> Result<(), Denial> {
        let step = self.step(plan, group);
        if !asked.is_multiple_of(step) {
            let (below, above) = (asked / step * step, asked.next_multiple_of(step));
            return Err(deny!(
                Invalid,
                "{} asked of {}, whose cores have {step} threads: with full-pcpus-only ask for a multiple of {step}, \
                 such as {}",
                cpu_count(asked),
                group.device,
                if below == 0 { above } else { below },
            ));
        }
        Ok(())
    }

    /// Chooses by the plan, of CPUs that are enough in number.
    fn choose(
        &self,
        plan: Plan,
        group: &Group,
        candidates: &CpuSet,
        asked: usize,
        budget: &mut SearchBudget,
    ) -> Result<CpuSet, Denial> {
        if !plan.full_cores {
            return self.place(plan, candidates, asked, 1, budget).ok_or_else(|| no_split(group, asked));
        }
        let whole = self.machine.whole_cores(candidates);
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
        if whole.len() < asked {
            return Err(no_whole_cores("ask for at most that many"));
        }
        // Where all cores are alike, the kubelet's count is the whole check: packing then gives whole
        // cores, an even split over NUMA nodes may still halve some. On mixed cores each one is looked at.
        let step = self.step(plan, group);
        self.place(plan, candidates, asked, step, budget)
            .filter(|cpus| step > 1 || self.machine.whole_cores(cpus).len() == cpus.len())
            .or_else(|| whole_cores(&self.layout, candidates, asked))
            .ok_or_else(|| no_whole_cores("cores of those sizes do not add up, so ask for another number"))
    }

    fn place(
        &self,
        plan: Plan,
        candidates: &CpuSet,
        asked: usize,
        step: usize,
        budget: &mut SearchBudget,
    ) -> Option<CpuSet> {
        match plan.method {
            Method::Pack { placement, prefer_llc } => {
                packed(&self.layout, candidates, asked, placement, prefer_llc)
            }
            Method::DistributeAcrossNuma => {
                distributed(&self.layout, candidates, asked, step, Placement::Packed, budget)
            }
        }
    }

    fn why(&self, request: &Request<Options>, plan: Plan, cpus: &CpuSet) -> String {
        let how = match plan.method {
            Method::Pack { placement: Placement::Packed, .. } => "packed into",
            Method::Pack { placement: Placement::Spread, .. } => "spread over",
            Method::DistributeAcrossNuma => "distributed over",
        };
        let cores = self.layout.cores.touched(cpus).len();
        let nodes = self.layout.numa_nodes.touched(cpus).len();
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        format!(
            "{}: {} {how} {cores} core{} of {nodes} NUMA node{}",
            request.name,
            cpu_count(cpus.len()),
            plural(cores),
            plural(nodes),
        )
    }
}

fn no_split(group: &Group, asked: usize) -> Denial {
    deny!(
        NoFit,
        "{asked} CPUs asked of {} cannot be chosen by these options; leave some of them out",
        group.device
    )
}

fn not_enough(
    isolated: Isolated,
    group: &Group,
    asked: usize,
    candidates: &CpuSet,
    in_group: &CpuSet,
) -> Denial {
    let free = candidates.len();
    let (kind, hint) = match isolated {
        _ if in_group.len() == free => ("", ""),
        Isolated::Only => (" of the isolated ones", ", set the option isolated to include"),
        _ => (" without isolated ones", ", set the option isolated to include"),
    };
    deny!(
        NotEnough,
        "{} asked of {}, {free} free{kind}; ask for at most {free}{hint}, or wait until other claims end",
        cpu_count(asked),
        group.device,
    )
}
