//! For native tests of a strategy: machines and claims from a few words, and the host's own rules for an answer.
//!
//! ```
//! use dracpu_strategy_sdk::testkit::{Claim, MachineSpec, cpus, free};
//! # use dracpu_strategy_sdk::{Denial, Strategy};
//! # fn shown<MyStrategy: Strategy>() -> Result<(), Denial> {
//! let machine = MachineSpec::even(2, 1, 4, 2).build();
//! let decision = Claim::with("{}").request(4).request(2).decide::<MyStrategy>(&machine, "{}", &free("0-11"))?;
//! assert_eq!(decision.grants[1].cpus, cpus("2,10"));
//! # Ok(())
//! # }
//! ```

mod claim;
mod spec;
mod wishes;

pub use claim::{Claim, cpus, free};
use dracpu_cpuset::CpuSet;
pub use dracpu_cpuset::Draw;
pub use spec::{CpuRow, MachineSpec};
pub use wishes::{ISOLATIONS, every_wish, narrowing};

use crate::{Decision, Denial, Machine, Offer, Request, State, Strategy, convert};

/// Opens a strategy with options as JSON text, as the host does.
///
/// # Errors
/// The strategy's denial; an invalid one for options that do not parse.
pub fn open<S: Strategy>(machine: Machine, options: &str) -> Result<(S, Vec<Offer>), Denial> {
    S::open(machine, convert::options(options)?)
}

/// Everything in the machine is free.
#[must_use]
pub fn all_free(machine: &Machine) -> State {
    State { free: machine.online().difference(&machine.reserved), others: Vec::new() }
}

/// Checks a decision by the host's rules: one grant per request, exact size, free, in the group, disjoint.
///
/// # Errors
/// The first rule that the decision breaks, as a sentence.
pub fn check_decision<O>(
    machine: &Machine,
    requests: &[Request<O>],
    now: &State,
    decision: &Decision,
) -> Result<(), String> {
    if decision.grants.len() != requests.len() {
        return Err(format!("{} grants for {} requests", decision.grants.len(), requests.len()));
    }
    let mut free = now.free.clone();
    for (request, grant) in requests.iter().zip(&decision.grants) {
        let group = machine.group(request.group).map_err(|denial| denial.message)?;
        let name = &request.name;
        if u32::try_from(grant.cpus.len()) != Ok(request.count) {
            return Err(format!(
                "{name}: {} CPUs ({}) for {} asked",
                grant.cpus.len(),
                grant.cpus,
                request.count
            ));
        }
        if !grant.cpus.is_subset(&group.cpus) {
            return Err(format!("{name}: CPUs {} are not in the group", grant.cpus.difference(&group.cpus)));
        }
        for (cpus, what) in [(&grant.cpus, "given"), (&grant.blocked, "blocked")] {
            if !cpus.is_subset(&free) {
                return Err(format!("{name}: CPUs {} are {what} but not free", cpus.difference(&free)));
            }
            free.subtract(cpus);
        }
        if let Some(node) = grant.mems.iter().find(|node| **node >= machine.numa_nodes.len()) {
            return Err(format!("{name}: NUMA node {node} of {}", machine.numa_nodes.len()));
        }
    }
    Ok(())
}

/// Tries a strategy on drawn machines, states and requests: every answer must pass [`check_decision`], and
/// a fresh instance and one that has answered before must agree. Each of the options is tried on a node without
/// options and on one that has the same.
///
/// # Errors
/// What is wrong, with the seed that shows it.
pub fn check_strategy<S: Strategy>(seeds: std::ops::Range<u64>, options: &[&str]) -> Result<(), String>
where
    S::Options: Clone,
{
    for seed in seeds {
        let machine = MachineSpec::drawn(seed).build();
        let mut draw = Draw(!seed);
        for (node, options) in options.iter().flat_map(|options| [("{}", options), (*options, options)]) {
            let (Ok((used, offers)), Ok((fresh, _))) =
                (open::<S>(machine.clone(), node), open::<S>(machine.clone(), node))
            else {
                continue;
            };
            check_offers(&machine, &offers).map_err(|fault| format!("seed {seed}: {fault}"))?;
            for state in [
                all_free(&machine),
                State { free: draw.some(&all_free(&machine).free, 2), others: Vec::new() },
            ] {
                let mut claim = Claim::with(options);
                for group in [0, draw.below(2)] {
                    let request = claim.request(draw.below(9)).of_group(convert::position(group));
                    let request = request.cpuset(draw.some(&state.free, 3));
                    let roots: Vec<usize> =
                        (0..machine.pcie_roots.len()).filter(|_| draw.below(2) == 0).collect();
                    claim = request.near(&roots);
                }
                let requests = claim.requests().map_err(|denial| denial.message)?;
                let fault = |text: String| format!("seed {seed}, node {node}, options {options}: {text}");
                let answer = used.allocate(&requests, &state);
                if let Ok(decision) = &answer {
                    check_decision(&machine, &requests, &state, decision).map_err(fault)?;
                }
                if used.allocate(&requests, &state) != answer || fresh.allocate(&requests, &state) != answer {
                    return Err(fault("asked again, it answers differently".to_owned()));
                }
            }
        }
    }
    Ok(())
}

/// Holds a strategy to its offers, on drawn machines of one group, even and uneven ones: as long as claims in multiples of the step
/// stay within the capacity, each of them is served, however claims come and go. `claims` are their options,
/// drawn from; with the node's own among them. Those of `narrower` claims want less than the node offers: each may be
/// refused, but one that is served takes nothing from the others.
///
/// # Errors
/// The claim that was refused, with the machine of [`MachineSpec`] that shows it; or that the options fit hardly any machine.
pub fn check_promises<S: Strategy>(
    seeds: std::ops::Range<u64>,
    node: &str,
    claims: &[&str],
    narrower: &[&str],
) -> Result<(), String> {
    let all: Vec<&str> = claims.iter().chain(narrower).copied().collect();
    let (mut machines, mut fitting) = (0, 0);
    let drawn = |seed| {
        let uneven = MachineSpec::drawn(seed).ungrouped();
        [(format!("drawn({seed})"), uneven), (format!("drawn_even({seed})"), MachineSpec::drawn_even(seed))]
    };
    for (seed, (name, spec)) in seeds.flat_map(|seed| drawn(seed).map(|drawn| (seed, drawn))) {
        let machine = spec.build();
        machines += 1;
        let Ok((strategy, offers)) = open::<S>(machine.clone(), node) else { continue };
        let Some(Offer { capacity, step, .. }) = offers.first().filter(|offer| offer.capacity >= offer.step)
        else {
            continue;
        };
        fitting += 1;
        let mut draw = Draw(!seed);
        let mut now = all_free(&machine);
        let mut held: Vec<(u32, CpuSet)> = Vec::new();
        for _ in 0..40 {
            let left = capacity - held.iter().map(|(count, _)| count).sum::<u32>();
            if left < *step || draw.below(4) == 0 {
                let at = convert::position(draw.below(u32::try_from(held.len()).unwrap_or(0)));
                if at < held.len() {
                    now.free.extend_from(&held.swap_remove(at).1);
                }
                continue;
            }
            let most = (left / step).min(1 + draw.below(8));
            let count = step * (1 + draw.below(most));
            let at = convert::position(draw.below(u32::try_from(all.len()).unwrap_or(0)));
            let options = all.get(at).copied().unwrap_or(node);
            let fault = |text: String| {
                format!(
                    "{name}, {count} of {left} left of {capacity} in steps of {step}, free {}, node {node}, claim \
                     {options}: {text}",
                    now.free
                )
            };
            let requests = Claim::with(options).request(count).requests();
            let requests = requests.map_err(|denial| fault(denial.message))?;
            let decision = match strategy.allocate(&requests, &now) {
                Err(_) if at >= claims.len() => continue,
                answer => answer.map_err(|denial| fault(denial.message))?,
            };
            check_decision(&machine, &requests, &now, &decision).map_err(fault)?;
            let mut taken = CpuSet::new();
            for grant in &decision.grants {
                taken.extend_from(&grant.cpus);
                taken.extend_from(&grant.blocked);
            }
            now.free.subtract(&taken);
            held.push((count, taken));
        }
    }
    if fitting * 8 < machines {
        return Err(format!("{node} fits only {fitting} of {machines} machines, which proves little"));
    }
    Ok(())
}

fn check_offers(machine: &Machine, offers: &[Offer]) -> Result<(), String> {
    if offers.len() != machine.groups.len() {
        return Err(format!("{} offers for {} groups", offers.len(), machine.groups.len()));
    }
    for (offer, group) in offers.iter().zip(&machine.groups) {
        if convert::position(offer.capacity) > group.cpus.len() || offer.step == 0 {
            return Err(format!("{offer:?} for the {} CPUs of {}", group.cpus.len(), group.device));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuSet, Grant, NoOptions};

    fn decision(cpus: &[&[u32]]) -> Decision {
        let grants = cpus.iter().map(|cpus| Grant::from(cpus.iter().copied().collect::<CpuSet>())).collect();
        Decision { grants, join_shared_pool: false, why: String::new() }
    }

    #[test]
    fn each_lie_is_named() {
        let machine = MachineSpec::even(1, 1, 4, 1).reserved([0].into()).group("g", [1, 2].into()).build();
        let mut state = all_free(&machine);
        let both = Claim::with("{}").request(1).request(1).requests::<NoOptions>().unwrap();
        let check = |decision: &Decision, state: &State| check_decision(&machine, &both, state, decision);
        assert_eq!(check(&decision(&[&[1], &[2]]), &state), Ok(()));
        let mut blocked = decision(&[&[1], &[2]]);
        blocked.grants[0].blocked = [1].into();
        let mut mems = decision(&[&[1], &[2]]);
        mems.grants[1].mems = vec![1];
        for (wrong, words) in [
            (decision(&[&[1]]), "1 grants for 2 requests"),
            (decision(&[&[1], &[]]), "0 CPUs () for 1 asked"),
            (decision(&[&[1], &[3]]), "3 are not in the group"),
            (decision(&[&[1], &[1]]), "1 are given but not free"),
            (blocked, "1 are blocked but not free"),
            (mems, "NUMA node 1 of 1"),
        ] {
            let fault = check(&wrong, &state).unwrap_err();
            assert!(fault.contains(words), "{fault}");
        }
        state.free.remove(2);
        assert!(check(&decision(&[&[1], &[2]]), &state).is_err());
    }

    #[test]
    fn drawn_machines_are_the_same_every_time_and_differ() {
        let machines: Vec<Machine> = (0..50).map(|seed| MachineSpec::drawn(seed).build()).collect();
        let again: Vec<Machine> = (0..50).map(|seed| MachineSpec::drawn(seed).build()).collect();
        assert_eq!(machines, again);
        assert!(machines.iter().all(|machine| !machine.cpus.is_empty() && machine.groups.len() == 2));
        let mixed = machines.iter().filter(|machine| machine.threads_per_core(&machine.online()).is_none());
        assert!((10..40).contains(&mixed.count()));
    }
}
