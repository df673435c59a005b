use dracpu_strategy_sdk::{CpuSet, Denial, Group, Machine, NoOptions, Request, cpu_count, deny};

/// The CPUs that the claim names for a request, when they can be given: as many as consumed, online, not
/// reserved, in the request's group, named once in the claim and held by no other one.
///
/// `taken` are the CPUs of the claim's earlier requests.
///
/// # Errors
/// A denial with a sentence of its own for each rule, which names the CPUs at fault.
pub fn named_cpus(
    machine: &Machine,
    request: &Request<NoOptions>,
    free: &CpuSet,
    taken: &CpuSet,
) -> Result<CpuSet, Denial> {
    let group = machine.group(request.group)?;
    let Some(named) = &request.cpuset else {
        return if request.count == 0 { Ok(CpuSet::new()) } else { Err(missing(group, request.count)) };
    };
    check_size(named, request.count)?;
    let rest = free.intersection(&group.cpus).difference(taken);
    check_group(machine, group, named, &rest)?;
    let twice = named.intersection(taken);
    if !twice.is_empty() {
        return Err(deny!(
            Invalid,
            "cpuset {named} overlaps the cpuset of another request of the same claim ({}); name each CPU once",
            listed(&twice)
        ));
    }
    let held = named.difference(free);
    if !held.is_empty() {
        return Err(deny!(
            NoFit,
            "cpuset {named}: {} already held by another claim; {}",
            are(&held),
            pick(&rest, &group.device)
        ));
    }
    Ok(named.clone())
}

fn missing(group: &Group, count: u32) -> Denial {
    deny!(
        Invalid,
        "the request consumes {count} of {} but the claim names no CPUs: this node's allocator is external, so \
         cpuConfig must carry a cpuset of that size",
        group.device
    )
}

fn check_size(named: &CpuSet, count: u32) -> Result<(), Denial> {
    if u32::try_from(named.len()) == Ok(count) {
        return Ok(());
    }
    Err(deny!(
        Invalid,
        "cpuset {named} has {}, but the request consumes {count}; make the cpuset and the consumed capacity \
         dra.cpu/cpu the same size",
        cpu_count(named.len())
    ))
}

fn check_group(machine: &Machine, group: &Group, named: &CpuSet, rest: &CpuSet) -> Result<(), Denial> {
    let reserved = named.intersection(&machine.reserved);
    if !reserved.is_empty() {
        return Err(deny!(
            Invalid,
            "cpuset {named}: {} reserved for the system on this node; {}",
            are(&reserved),
            pick(rest, &group.device)
        ));
    }
    let offline = named.intersection(&machine.offline);
    if !offline.is_empty() {
        return Err(deny!(
            Invalid,
            "cpuset {named}: {} offline on this node; bring it online, or {}",
            are(&offline),
            pick(rest, &group.device)
        ));
    }
    let absent = named.difference(&machine.online());
    if !absent.is_empty() {
        return Err(deny!(
            Invalid,
            "cpuset {named}: this node has no {}; {}",
            listed(&absent),
            pick(rest, &group.device)
        ));
    }
    let foreign = named.difference(&group.cpus);
    if !foreign.is_empty() {
        return Err(deny!(
            Invalid,
            "cpuset {named}: {} outside the allocated device {}; {}",
            are(&foreign),
            group.device,
            pick(rest, &group.device)
        ));
    }
    Ok(())
}

/// `CPU 3` or `CPUs 3-4`.
fn listed(cpus: &CpuSet) -> String {
    format!("CPU{} {cpus}", if cpus.len() == 1 { "" } else { "s" })
}

fn are(cpus: &CpuSet) -> String {
    format!("{} {}", listed(cpus), if cpus.len() == 1 { "is" } else { "are" })
}

/// Behind a semicolon or an "or".
fn pick(cpus: &CpuSet, device: &str) -> String {
    if cpus.is_empty() {
        format!("wait until other claims end: {device} has none to give")
    } else {
        format!("pick from {cpus} of {device}")
    }
}
