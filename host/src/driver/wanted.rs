//! What a claim asks of this node: its allocation results and opaque parameters, checked against what the
//! node publishes. Nothing is decided here.

use super::claim::{AllocationResult, Claim};
use super::error::{PrepareError, ResultFault};
use super::opaque::{self, ConfigFault};
use super::quantity::whole_cpus;
use super::view::{Place, View};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::Part;
use serde_json::{Map, Value};

/// One allocation result of this driver.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) result: &'a AllocationResult,
    pub(super) place: Place,
    pub(super) count: u32,
    pub(super) cpuset: Option<CpuSet>,
    pub(super) options: Map<String, Value>,
}

impl Wanted<'_> {
    /// What the result holds when it gets these CPUs.
    pub(super) fn part(&self, cpus: CpuSet, blocked: CpuSet, mems: Vec<u32>) -> Part {
        let AllocationResult { request, pool, device, share_id, .. } = self.result.clone();
        Part { request, pool, device, share_id, cpus, blocked, mems }
    }
}

/// The results of this driver; none when the claim wants nothing of it. `strategy` is the name of the active
/// one, none in individual mode.
pub(super) fn wanted<'a>(
    claim: &'a Claim,
    node_name: &str,
    view: &View,
    strategy: Option<&str>,
) -> Result<Vec<Wanted<'a>>, PrepareError> {
    let results = claim.results.as_ref().ok_or(PrepareError::NotAllocated)?;
    let ours: Vec<&AllocationResult> =
        results.iter().filter(|result| result.driver == crate::DRIVER_NAME).collect();
    let mut wanted = Vec::new();
    for result in &ours {
        let (place, count) = place(result, node_name, view).map_err(|fault| PrepareError::Result {
            request: result.request.clone(),
            device: result.device.clone(),
            fault,
        })?;
        wanted.push(Wanted { result, place, count, cpuset: None, options: Map::new() });
    }
    for (wanted, settings) in wanted.iter_mut().zip(opaque::settings(&claim.config, &ours)?) {
        let what = match (&settings.cpuset, &settings.strategy, settings.options.is_empty()) {
            (Some(_), _, _) => Some("cpuset"),
            (_, Some(_), _) => Some("strategy"),
            (_, _, false) => Some("options"),
            _ => None,
        };
        match (strategy, what, settings.strategy) {
            (None, Some(what), _) => return Err(ConfigFault::Individual(what).into()),
            (Some(active), _, Some(named)) if named != active => {
                return Err(ConfigFault::Strategy { wanted: named, allowed: active.to_owned() }.into());
            }
            _ => {}
        }
        wanted.cpuset = settings.cpuset;
        wanted.options = settings.options;
    }
    Ok(wanted)
}

fn place(result: &AllocationResult, node_name: &str, view: &View) -> Result<(Place, u32), ResultFault> {
    if result.admin_access {
        return Err(ResultFault::AdminAccess);
    }
    if result.pool != node_name {
        return Err(ResultFault::ForeignPool { pool: result.pool.clone(), ours: node_name.to_owned() });
    }
    let unknown = || ResultFault::UnknownDevice(view.device_names());
    match view.place(&result.device).ok_or_else(unknown)? {
        Place::Cpus(cpus) => Ok((Place::Cpus(cpus), 1)),
        group @ Place::Group(_) => {
            let consumed = result.consumed_cpus.as_deref().ok_or(ResultFault::NoCapacity)?;
            Ok((group, whole_cpus(consumed)?))
        }
    }
}

/// Spreads CPUs that a claim is known to hold over its results. None when they do not fit: other CPUs,
/// or another number in a group, than the results say.
///
/// CPUs that are in no group by now (offline, or reserved since) may belong to any result.
pub(super) fn spread(wanted: &[Wanted<'_>], view: &View, cpus: &CpuSet) -> Option<Vec<Part>> {
    let mut grouped = CpuSet::new();
    for group in &view.groups {
        grouped.extend_from(&group.cpus);
    }
    let mut left = cpus.clone();
    let mut parts: Vec<Option<Part>> = wanted.iter().map(|_| None).collect();
    let named = |wanted: &&mut (&Wanted<'_>, &mut Option<Part>)| named_cpus(wanted.0).is_some();
    let mut each: Vec<(&Wanted<'_>, &mut Option<Part>)> = wanted.iter().zip(&mut parts).collect();
    for (wanted, part) in each.iter_mut().filter(named) {
        let own = named_cpus(wanted)?;
        if !own.is_subset(&left) || u32::try_from(own.len()) != Ok(wanted.count) {
            return None;
        }
        left.subtract(&own);
        **part = Some(wanted.part(own, CpuSet::new(), Vec::new()));
    }
    for (wanted, part) in each.iter_mut().filter(|(_, part)| part.is_none()) {
        let group = view.cpus(&wanted.place);
        let candidates = left.iter().filter(|cpu| group.contains(*cpu) || !grouped.contains(*cpu));
        let own: CpuSet = candidates.take(usize::try_from(wanted.count).ok()?).collect();
        if u32::try_from(own.len()) != Ok(wanted.count) {
            return None;
        }
        left.subtract(&own);
        **part = Some(wanted.part(own, CpuSet::new(), Vec::new()));
    }
    left.is_empty().then(|| parts.into_iter().flatten().collect())
}

/// The CPUs of a result that names them.
fn named_cpus(wanted: &Wanted<'_>) -> Option<CpuSet> {
    match &wanted.place {
        Place::Cpus(cpus) => Some(cpus.clone()),
        Place::Group(_) => wanted.cpuset.clone(),
    }
}
