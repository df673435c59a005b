//! The lowest cores first, whole ones where there are any.

use dracpu_strategy_sdk::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Group, Machine, Offer, Request, State,
    Strategy, cpu_count, deny, export,
};

/// The strategy, opened on a machine.
pub struct LowestFirst {
    machine: Machine,
}

/// What a node, a DeviceClass and a claim may set; `options.schema.json` says the same to the host.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    whole_cores: bool,
}

impl Strategy for LowestFirst {
    type Options = Options;

    fn describe() -> Description {
        Description {
            name: "my-strategy",
            version: env!("CARGO_PKG_VERSION"),
            summary: "The lowest cores first, whole ones where there are any",
            options_schema: include_str!("../options.schema.json"),
            explicit_cpuset: ExplicitCpuset::Refused,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, _: Options) -> Result<(Self, Vec<Offer>), Denial> {
        let offer = |group: &Group| Offer::of_all(&machine.without_isolated(&group.cpus));
        let offers = machine.groups.iter().map(offer).collect();
        Ok((Self { machine }, offers))
    }

    fn allocate(&self, requests: &[Request<Options>], now: &State) -> Result<Decision, Denial> {
        let mut free = self.machine.without_isolated(&now.free);
        let mut grants = Vec::new();
        for (position, request) in requests.iter().enumerate() {
            let group = self.machine.group(request.group)?;
            let candidates = free.intersection(&group.cpus);
            let cpus = self
                .choose(&candidates, request)
                .map_err(|denial| denial.of_request(position))?;
            free.subtract(&cpus);
            grants.push(cpus.into());
        }
        Ok(Decision {
            grants,
            join_shared_pool: false,
            why: "the lowest cores that were free".into(),
        })
    }
}

impl LowestFirst {
    /// As many of the candidates as asked: whole cores, then single CPUs.
    fn choose(&self, candidates: &CpuSet, request: &Request<Options>) -> Result<CpuSet, Denial> {
        let count = request.count as usize;
        if candidates.len() < count {
            let (asked, free) = (cpu_count(count), candidates.len());
            return Err(deny!(
                NotEnough,
                "{asked} asked, {free} free; ask for fewer, or wait"
            ));
        }
        let mut chosen = CpuSet::new();
        for core in self
            .machine
            .cores
            .iter()
            .filter(|core| core.is_subset(candidates))
        {
            if chosen.len() + core.len() <= count {
                chosen.extend_from(core);
            }
        }
        if request.options.whole_cores && chosen.len() < count {
            let asked = cpu_count(count);
            return Err(deny!(
                NoFit,
                "{asked} asked as whole cores, the free ones give {}; ask for that, or leave `whole-cores` out",
                cpu_count(chosen.len())
            ));
        }
        let single = candidates.difference(&chosen);
        chosen.extend_from(&single.iter().take(count - chosen.len()).collect());
        Ok(chosen)
    }
}

export!(LowestFirst);

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_strategy_sdk::testkit::{Claim, MachineSpec, all_free, check_strategy};

    /// What a claim of this size gets on an idle machine of four cores with two threads.
    fn chosen(count: u32, options: &str) -> Result<CpuSet, Denial> {
        let machine = MachineSpec::even(1, 1, 4, 2).build();
        let claim = Claim::with(options).request(count);
        let decision = claim.decide::<LowestFirst>(&machine, "{}", &all_free(&machine))?;
        Ok(decision.grants[0].cpus.clone())
    }

    #[test]
    fn whole_cores_come_first() {
        assert_eq!(chosen(4, "{}"), Ok([0, 1, 4, 5].into()));
        assert_eq!(chosen(3, "{}"), Ok([0, 1, 4].into()));
    }

    #[test]
    fn whole_cores_may_be_demanded() {
        let options = r#"{"whole-cores":true}"#;
        assert_eq!(chosen(2, options), Ok([0, 4].into()));
        assert!(chosen(3, options).is_err());
    }

    #[test]
    fn it_keeps_the_rules_on_every_machine() {
        assert_eq!(
            check_strategy::<LowestFirst>(0..500, &["{}", r#"{"whole-cores":true}"#]),
            Ok(())
        );
    }
}
