use crate::algorithm::named_cpus;
use dracpu_strategy_sdk::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Machine, NoOptions, Offer, Request, State,
    Strategy,
};

/// The strategy: whoever made the claim has chosen; here the choice is checked.
#[derive(Debug)]
pub struct External {
    machine: Machine,
}

impl Strategy for External {
    type Options = NoOptions;

    fn describe() -> Description {
        Description {
            name: "external",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Gives the CPUs that the claim itself names, chosen by a scheduler or a person.",
            options_schema: NoOptions::SCHEMA,
            explicit_cpuset: ExplicitCpuset::Required,
            publishes: &["dra.cpu/cpuIDs", "dra.cpu/smtLayout"],
            needs: &[],
        }
    }

    /// Isolated CPUs count for nothing in the capacity, but a claim may name them.
    fn open(machine: Machine, _: NoOptions) -> Result<(Self, Vec<Offer>), Denial> {
        let offer = |cpus: &CpuSet| {
            Offer::of(u32::try_from(cpus.difference(&machine.isolated).len()).unwrap_or(u32::MAX))
        };
        let offers = machine.groups.iter().map(|group| offer(&group.cpus)).collect();
        Ok((Self { machine }, offers))
    }

    fn allocate(&self, requests: &[Request<NoOptions>], now: &State) -> Result<Decision, Denial> {
        let mut taken = CpuSet::new();
        let mut grants = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let cpus = named_cpus(&self.machine, request, &now.free, &taken)
                .map_err(|denial| denial.of_request(at))?;
            taken.extend_from(&cpus);
            grants.push(Grant::from(cpus));
        }
        Ok(Decision { grants, join_shared_pool: false, why: format!("CPUs {taken} as the claim names them") })
    }
}
