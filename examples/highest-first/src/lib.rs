//! An example strategy: whole cores from the highest-numbered one down, then single CPUs.
//!
//! Some people keep interrupts and housekeeping on low CPU numbers by habit; this keeps claims away from
//! them. It is also the smallest strategy worth reading: no options, one rule.

use dracpu_strategy_sdk::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Machine, NoOptions, Offer, Request, State,
    Strategy, deny, export,
};

struct HighestFirst {
    machine: Machine,
}

impl Strategy for HighestFirst {
    type Options = NoOptions;

    fn describe() -> Description {
        Description {
            name: "highest-first",
            version: "0.1.0",
            summary: "Whole cores from the highest-numbered one down, then single CPUs",
            options_schema: NoOptions::SCHEMA,
            explicit_cpuset: ExplicitCpuset::Refused,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, _: NoOptions) -> Result<(Self, Vec<Offer>), Denial> {
        let size =
            |cpus: &CpuSet| u32::try_from(cpus.difference(&machine.isolated).len()).unwrap_or(u32::MAX);
        let offers = machine.groups.iter().map(|group| Offer::of(size(&group.cpus))).collect();
        Ok((Self { machine }, offers))
    }

    fn allocate(&self, requests: &[Request<NoOptions>], now: &State) -> Result<Decision, Denial> {
        let mut free = now.free.difference(&self.machine.isolated);
        let mut grants = Vec::with_capacity(requests.len());
        for (position, request) in requests.iter().enumerate() {
            let group = self.machine.group(request.group)?;
            let cpus =
                self.highest(&free.intersection(&group.cpus), request.count as usize).ok_or_else(|| {
                    let left = free.intersection_len(&group.cpus);
                    deny!(
                        NotEnough,
                        "{} CPUs asked of {}, {left} free; ask for fewer",
                        request.count,
                        group.device
                    )
                    .of_request(position)
                })?;
            free.subtract(&cpus);
            grants.push(cpus.into());
        }
        Ok(Decision {
            grants,
            join_shared_pool: false,
            why: "the highest-numbered cores that were free".into(),
        })
    }
}

impl HighestFirst {
    /// `count` of the candidates; none when there are fewer.
    fn highest(&self, candidates: &CpuSet, count: usize) -> Option<CpuSet> {
        let whole = |core: &&CpuSet| core.is_subset(candidates);
        let mut chosen = CpuSet::new();
        for core in self.machine.cores.iter().rev().filter(whole) {
            if chosen.len() + core.len() <= count {
                chosen.extend_from(core);
            }
        }
        let mut rest: Vec<u32> = candidates.difference(&chosen).iter().collect();
        while chosen.len() < count {
            chosen.insert(rest.pop()?);
        }
        Some(chosen)
    }
}

export!(HighestFirst);

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_strategy_sdk::testkit::{Claim, MachineSpec, all_free, check_strategy};

    #[test]
    fn whole_cores_from_the_top_then_single_cpus() {
        let machine = MachineSpec::even(1, 1, 4, 2).build();
        let chosen = |count| {
            let claim = Claim::with("{}").request(count);
            let decision = claim.decide::<HighestFirst>(&machine, "{}", &all_free(&machine)).unwrap();
            decision.grants[0].cpus.clone()
        };
        assert_eq!(chosen(2), machine.cores[3]);
        assert_eq!(chosen(4), machine.cores[3].union(&machine.cores[2]));
        assert_eq!(chosen(3).intersection(&machine.cores[3]).len(), 2);
    }

    #[test]
    fn it_keeps_the_contract_on_every_machine() {
        assert_eq!(check_strategy::<HighestFirst>(0..200, &["{}"]), Ok(()));
    }
}
