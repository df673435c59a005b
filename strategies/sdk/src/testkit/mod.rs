//! For native tests of a strategy: machines from a few words, and the host's own rules for an answer.
//!
//! ```
//! use dracpu_strategy_sdk::testkit::MachineSpec;
//! let machine = MachineSpec::even(2, 1, 4, 2).build();
//! assert_eq!(machine.core_of(0), Some(&[0, 8].into()));
//! ```

mod spec;

pub use dracpu_cpuset::Draw;
pub use spec::{CpuRow, MachineSpec};

use crate::{Decision, Denial, Machine, Offer, Request, State, Strategy, convert};

/// Opens a strategy with options as JSON text, as the host does.
///
/// # Errors
/// The strategy's denial; an invalid one for options that do not parse.
pub fn open<S: Strategy>(machine: Machine, options: &str) -> Result<(S, Vec<Offer>), Denial> {
    S::open(machine, convert::options(options)?)
}

/// A request for `count` CPUs of the first group, with options as JSON text.
///
/// # Errors
/// Invalid, for options that do not parse.
pub fn request<S: Strategy>(count: u32, options: &str) -> Result<Request<S::Options>, Denial> {
    Ok(Request {
        name: "r".to_owned(),
        group: 0,
        count,
        cpuset: None,
        options: convert::options(options)?,
        pcie_roots: Vec::new(),
    })
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
/// a fresh instance and one that has answered before must agree.
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
        for options in options {
            let node = "{}";
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
                let mut requests = Vec::new();
                for group in [0, draw.below(2)] {
                    let mut request =
                        request::<S>(draw.below(9), options).map_err(|denial| denial.message)?;
                    request.group = convert::position(group);
                    request.cpuset = Some(draw.some(&state.free, 3));
                    request.pcie_roots =
                        (0..machine.pcie_roots.len()).filter(|_| draw.below(2) == 0).collect();
                    requests.push(request);
                }
                let fault = |text: String| format!("seed {seed}, options {options}: {text}");
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
        let request = Request {
            name: "r".to_owned(),
            group: 0,
            count: 1,
            cpuset: None,
            options: NoOptions {},
            pcie_roots: Vec::new(),
        };
        let mut state = all_free(&machine);
        let both = [request.clone(), request];
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
