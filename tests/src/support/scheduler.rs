//! The scheduler, as far as it writes allocations: sees only complete pools, and hands out what is left of
//! a device.
//!
//! Sources: KEP-4381 (pools and generations), KEP-5075 (consumable capacity and request policies).

use super::api_server::{ApiServer, Resource};
use super::kubelet::ClaimRef;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The driver under test.
pub const DRIVER: &str = "dra.cpu";
/// Its capacity.
pub const CAPACITY: &str = "dra.cpu/cpu";

/// A request of a claim.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Its name in the claim.
    pub request: String,
    /// A device by name; empty = the first that fits.
    pub device: String,
    /// CPUs of a grouped device; 0 = a whole device, as in individual mode.
    pub cpus: u32,
}

impl Ask {
    /// CPUs of a certain device.
    #[must_use]
    pub fn of(request: &str, device: &str, cpus: u32) -> Self {
        Self { request: request.to_owned(), device: device.to_owned(), cpus }
    }
}

/// The devices of a node's pool, by name.
///
/// # Errors
/// When the pool is incomplete or contradicts itself: such pools are not used.
pub fn pool(api: &ApiServer, node: &str) -> Result<BTreeMap<String, Value>> {
    let slices = api.list(Resource::ResourceSlices);
    let ours = slices
        .iter()
        .filter(|slice| slice["spec"]["driver"] == DRIVER && slice["spec"]["pool"]["name"] == node);
    let ours: Vec<_> = ours.collect();
    let generation = |slice: &Value| slice["spec"]["pool"]["generation"].as_i64().unwrap_or(-1);
    let newest = ours.iter().map(|slice| generation(slice)).max().context("no slice of the pool")?;
    let current: Vec<_> = ours.iter().filter(|slice| generation(slice) == newest).collect();
    let mut devices = BTreeMap::new();
    for slice in &current {
        let count = slice["spec"]["pool"]["resourceSliceCount"].as_u64();
        let there = u64::try_from(current.len()).ok();
        ensure!(count == there, "incomplete pool: {there:?} slices of {count:?} at generation {newest}");
        for device in slice["spec"]["devices"].as_array().into_iter().flatten() {
            let name = device["name"].as_str().unwrap_or("").to_owned();
            ensure!(devices.insert(name.clone(), device.clone()).is_none(), "device {name} is there twice");
        }
    }
    Ok(devices)
}

fn whole(quantity: &Value) -> Result<u32> {
    let text = quantity.as_str().with_context(|| format!("{quantity} is no quantity"))?;
    match text.strip_suffix('k') {
        Some(thousands) => Ok(thousands.parse::<u32>()? * 1000),
        None => text.parse().with_context(|| format!("{text} is not a whole number")),
    }
}

/// What a request for `asked` consumes of a capacity: rounded up by its policy.
fn consumed(capacity: &Value, asked: u32) -> Result<u32> {
    let policy = &capacity["requestPolicy"];
    let Some(range) = policy.get("validRange") else { return Ok(asked) };
    let min = whole(&range["min"])?;
    let rounded = match range.get("step") {
        Some(step) => {
            let step = whole(step)?;
            min + asked.saturating_sub(min).div_ceil(step) * step
        }
        None => asked.max(min),
    };
    if let Some(max) = range.get("max") {
        ensure!(rounded <= whole(max)?, "{asked} is more than the policy's maximum");
    }
    Ok(rounded)
}

/// What is allocated of each device, and the devices that are taken as a whole.
fn taken(api: &ApiServer, node: &str) -> Result<BTreeMap<String, u32>> {
    let mut taken: BTreeMap<String, u32> = BTreeMap::new();
    for claim in api.list(Resource::ResourceClaims) {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array().cloned();
        for result in results.into_iter().flatten() {
            if result["driver"] == DRIVER && result["pool"] == node {
                let consumed = &result["consumedCapacity"][CAPACITY];
                let cpus = if consumed.is_null() { u32::MAX } else { whole(consumed)? };
                let device = taken.entry(result["device"].as_str().unwrap_or("").to_owned()).or_default();
                *device = device.saturating_add(cpus);
            }
        }
    }
    Ok(taken)
}

/// Allocates a claim on the node and writes it to the API server.
///
/// # Errors
/// When no published device fits.
pub fn allocate(api: &ApiServer, node: &str, name: &str, asks: &[Ask]) -> Result<ClaimRef> {
    let devices = pool(api, node)?;
    let mut taken = taken(api, node)?;
    let mut results = Vec::new();
    for (n, ask) in asks.iter().enumerate() {
        let candidates = devices.iter().filter(|(name, _)| ask.device.is_empty() || **name == ask.device);
        let mut found = None;
        for (device, facts) in candidates {
            let before = taken.get(device).copied().unwrap_or(0);
            if ask.cpus == 0 {
                if before == 0 {
                    found = Some((device, u32::MAX, json!({})));
                    break;
                }
                continue;
            }
            ensure!(facts["allowMultipleAllocations"] == true, "device {device} takes one claim only");
            let capacity = &facts["capacity"][CAPACITY];
            let consumed = consumed(capacity, ask.cpus)?;
            if before.saturating_add(consumed) <= whole(&capacity["value"])? {
                let share = format!("5ba4e000-0000-4000-8000-{n:012x}");
                let more = json!({"consumedCapacity": {CAPACITY: consumed.to_string()}, "shareID": share});
                found = Some((device, consumed, more));
                break;
            }
        }
        let Some((device, consumed, more)) = found else { bail!("claim {name}: no device fits {ask:?}") };
        *taken.entry(device.clone()).or_default() += consumed.min(1 << 20);
        let mut result = json!({"request": ask.request, "driver": DRIVER, "pool": node, "device": device});
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        results.push(result);
    }
    Ok(write_claim(api, name, None, &results, &[]))
}

/// Writes an allocated claim as it is told, whether or not a scheduler would do so.
///
/// # Panics
/// When a result has no request.
pub fn write_claim(
    api: &ApiServer,
    name: &str,
    uid: Option<&str>,
    results: &[Value],
    config: &[Value],
) -> ClaimRef {
    let names: BTreeSet<&str> = results.iter().map(|result| result["request"].as_str().unwrap()).collect();
    let requests: Vec<_> =
        names.iter().map(|name| json!({"name": name, "exactly": {"deviceClassName": DRIVER}})).collect();
    let mut claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results, "config": config}}},
    });
    if let Some(uid) = uid {
        claim["metadata"]["uid"] = uid.into();
    }
    let stored = api.put(Resource::ResourceClaims, claim);
    ClaimRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: stored["metadata"]["uid"].as_str().unwrap().to_owned(),
    }
}

/// Opaque parameters of the driver, for all requests or some.
#[must_use]
pub fn cpu_config(source: &str, requests: &[&str], cpu_config: &Value) -> Value {
    json!({
        "source": source, "requests": requests,
        "opaque": {"driver": DRIVER, "parameters": {"apiVersion": "v1alpha1", "cpuConfig": cpu_config}},
    })
}
