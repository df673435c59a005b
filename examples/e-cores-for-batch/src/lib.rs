//! Batch work on efficient cores, everything else on fast ones; each claim in as few caches as possible.

use dracpu_strategy_sdk::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Group, Machine, Offer, Request, State, Strategy,
    cpu_count, deny, export,
};

/// What a node, a DeviceClass and a claim may set; `options.schema.json` says the same to the host.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    class: Class,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Class {
    #[default]
    Latency,
    Batch,
}

/// The strategy, opened on a machine.
pub struct ECoresForBatch {
    machine: Machine,
    /// The CPUs of the fastest kind of core.
    fast: CpuSet,
    /// All others; none on a machine with one kind.
    efficient: CpuSet,
}

impl Strategy for ECoresForBatch {
    type Options = Options;

    fn describe() -> Description {
        Description {
            name: "e-cores-for-batch",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Batch work on efficient cores, everything else on fast ones",
            options_schema: include_str!("../options.schema.json"),
            explicit_cpuset: ExplicitCpuset::Refused,
            publishes: &[],
            needs: &[],
        }
    }

    fn open(machine: Machine, _: Options) -> Result<(Self, Vec<Offer>), Denial> {
        let usable = machine.without_isolated(&machine.online());
        let fast = machine.by_kind(&usable).into_iter().next().unwrap_or_default();
        let efficient = usable.difference(&fast);
        let offer = |group: &Group| Offer::of_all(&machine.without_isolated(&group.cpus));
        let offers = machine.groups.iter().map(offer).collect();
        Ok((Self { machine, fast, efficient }, offers))
    }

    fn allocate(&self, requests: &[Request<Options>], now: &State) -> Result<Decision, Denial> {
        let mut free = now.free.clone();
        let mut grants = Vec::new();
        for (position, request) in requests.iter().enumerate() {
            let cpus = self.choose(request, &free).map_err(|denial| denial.of_request(position))?;
            free.subtract(&cpus);
            grants.push(cpus.into());
        }
        Ok(Decision {
            grants,
            join_shared_pool: false,
            why: "batch work on efficient cores, everything else on fast ones".into(),
        })
    }
}

impl ECoresForBatch {
    /// The CPUs of one request.
    fn choose(&self, request: &Request<Options>, free: &CpuSet) -> Result<CpuSet, Denial> {
        let (cores, kind) = match request.options.class {
            Class::Batch if !self.efficient.is_empty() => (&self.efficient, "efficient"),
            _ => (&self.fast, "fast"),
        };
        let group = self.machine.group(request.group)?;
        let candidates = free.intersection(&group.cpus).intersection(cores);
        let count = request.count as usize;
        if candidates.len() < count {
            return Err(deny!(
                NoFit,
                "{} asked, {} has {} free on {kind} cores; ask for fewer, or for the other `class`",
                cpu_count(count),
                group.device,
                candidates.len()
            ));
        }
        Ok(self.compact(&candidates, count))
    }

    /// So many of the candidates: of the smallest cache that has enough, else of the emptiest caches.
    fn compact(&self, candidates: &CpuSet, count: usize) -> CpuSet {
        let mut caches = self.machine.by_cache(candidates);
        caches.sort_by_key(CpuSet::len);
        if let Some(cache) = caches.iter().find(|cache| cache.len() >= count) {
            return self.whole_cores_first(cache, count);
        }
        let mut chosen = CpuSet::new();
        for cache in caches.iter().rev().chain([candidates]) {
            let left = cache.difference(&chosen);
            chosen.extend_from(&self.whole_cores_first(&left, count - chosen.len()));
        }
        chosen
    }

    /// So many of these CPUs, or all when there are fewer: those of the fullest cores first.
    fn whole_cores_first(&self, cpus: &CpuSet, count: usize) -> CpuSet {
        let mut cores = self.machine.by_core(cpus);
        cores.sort_by_key(|core| std::cmp::Reverse(core.len()));
        cores.iter().flatten().take(count).collect()
    }
}

export!(ECoresForBatch);

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_strategy_sdk::Reason;
    use dracpu_strategy_sdk::testkit::{Claim, CpuRow, MachineSpec, all_free, check_strategy};

    const BATCH: &str = r#"{"class":"batch"}"#;

    /// Four fast cores with two threads (CPUs 0 to 7) beside eight efficient ones (8 to 15).
    fn hybrid() -> Machine {
        let row = |cpu: u32| CpuRow {
            cpu,
            core_id: if cpu < 8 { cpu / 2 } else { cpu },
            socket: 0,
            numa: 0,
            l3: Some(0),
        };
        MachineSpec::of_rows((0..16).map(row))
            .kind("p-core", 1024, (0..8).collect())
            .kind("e-core", 600, (8..16).collect())
            .build()
    }

    /// What a claim of this size gets on it.
    fn chosen(count: u32, options: &str) -> Result<CpuSet, Denial> {
        let machine = hybrid();
        let claim = Claim::with(options).request(count);
        let decision = claim.decide::<ECoresForBatch>(&machine, "{}", &all_free(&machine))?;
        Ok(decision.grants[0].cpus.clone())
    }

    #[test]
    fn batch_work_gets_efficient_cores_and_everything_else_fast_ones() {
        assert_eq!(chosen(4, "{}"), Ok((0..4).collect()));
        assert_eq!(chosen(4, BATCH), Ok((8..12).collect()));
    }

    #[test]
    fn neither_takes_what_is_the_others() {
        assert_eq!(chosen(9, "{}").unwrap_err().reason, Reason::NoFit);
        assert_eq!(chosen(9, BATCH).unwrap_err().reason, Reason::NoFit);
    }

    #[test]
    fn on_a_machine_with_one_kind_of_cores_both_get_those() {
        let machine = MachineSpec::even(1, 1, 4, 2).build();
        let claim = Claim::with(BATCH).request(2);
        let decision = claim.decide::<ECoresForBatch>(&machine, "{}", &all_free(&machine)).unwrap();
        assert_eq!(decision.grants[0].cpus, [0, 4].into());
    }

    #[test]
    fn it_keeps_the_rules_on_every_machine() {
        assert_eq!(check_strategy::<ECoresForBatch>(0..500, &["{}", BATCH]), Ok(()));
    }
}
