//! What a claim asks of this node: its allocation results and opaque parameters, checked against what the
//! node publishes. Nothing is decided here.

use super::claim::{AllocationResult, Claim};
use super::error::{PrepareError, ResultFault};
use super::opaque::{self, ConfigFault, Settings};
use super::quantity::whole_cpus;
use super::view::{Place, View};
use crate::config::Selection;
use crate::strategy::is_dns_label;
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

/// What a claim wants of this driver.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    /// None in individual mode, and when nothing is wanted.
    pub(super) strategy: Option<String>,
    pub(super) results: Vec<Wanted<'a>>,
}

/// The results of this driver, and who is to decide them. `selection` is none in individual mode.
pub(super) fn wanted<'a>(
    claim: &'a Claim,
    node_name: &str,
    view: &View,
    selection: Option<&Selection>,
) -> Result<Wish<'a>, PrepareError> {
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
    let settings = opaque::settings(&claim.config, &ours)?;
    let strategy = match selection {
        Some(selection) => strategy(&ours, &settings, selection)?,
        None => settings
            .iter()
            .find_map(Settings::what)
            .map_or(Ok(None), |what| Err(ConfigFault::Individual(what)))?,
    };
    for (wanted, settings) in wanted.iter_mut().zip(settings) {
        wanted.cpuset = settings.cpuset;
        wanted.options = settings.options;
    }
    Ok(Wish { strategy, results: wanted })
}

/// The strategy that the results name: one for all of them, or none.
fn strategy(
    results: &[&AllocationResult],
    settings: &[Settings],
    selection: &Selection,
) -> Result<Option<String>, ConfigFault> {
    let names: Vec<&str> = settings
        .iter()
        .map(|settings| settings.strategy.as_deref().unwrap_or(&selection.allocator))
        .collect();
    let Some(first) = names.first() else { return Ok(None) };
    if let Some(refused) = names.iter().find(|name| !selection.names().any(|allowed| allowed == **name)) {
        let allowed: Vec<&str> = selection.names().collect();
        return Err(ConfigFault::Strategy { wanted: (*refused).to_owned(), allowed: allowed.join(", ") });
    }
    if let Some(at) = names.iter().position(|name| name != first) {
        let request = |at: usize| results.get(at).map(|result| result.request.clone()).unwrap_or_default();
        let strategies = [*first, names.get(at).copied().unwrap_or_default()].map(str::to_owned);
        return Err(ConfigFault::TwoStrategies { requests: [request(0), request(at)], strategies });
    }
    Ok(Some((*first).to_owned()))
}

fn place(result: &AllocationResult, node_name: &str, view: &View) -> Result<(Place, u32), ResultFault> {
    let (request, subrequest) = result.request.split_once('/').unwrap_or((&result.request, "none"));
    if !is_dns_label(request) || !is_dns_label(subrequest) {
        return Err(ResultFault::RequestName);
    }
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
    for group in view.groups.iter() {
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
