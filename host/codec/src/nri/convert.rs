//! Protobuf to driver types and back.

use super::CallError;
use crate::container::{Container, Created, Pod, Quota, Update, Updated};
use dracpu_cpuset::CpuSet;
use dracpu_proto::nri;
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

/// The container that a hook is about, with its pod.
pub fn container(
    pod: Option<nri::PodSandbox>,
    container: Option<nri::Container>,
) -> Result<Container, CallError> {
    let container = container.ok_or(CallError::Incomplete { missing: "container" })?;
    Ok(of_pod(self::pod(pod.unwrap_or_default()), container))
}

/// A container of a known pod.
pub fn of_pod(pod: Pod, container: nri::Container) -> Container {
    let resources = container.linux.and_then(|linux| linux.resources);
    Container {
        id: container.id,
        name: container.name,
        pod,
        env: container.env,
        cdi_devices: container.cdi_devices.into_iter().map(|device| device.name).collect(),
        quota: quota(resources.as_ref()),
        cpus: cpus(resources),
        started: u64::try_from(container.started_at)
            .ok()
            .filter(|nanos| *nanos > 0)
            .and_then(|nanos| SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanos))),
    }
}

pub fn pod(pod: nri::PodSandbox) -> Pod {
    let quota = quota(pod.linux.and_then(|linux| linux.pod_resources).as_ref());
    Pod { uid: pod.uid, namespace: pod.namespace, name: pod.name, quota }
}

/// The CFS quota in resources; none = not set, or unlimited. The kernel's period is 100 ms unless somebody says
/// otherwise.
fn quota(resources: Option<&nri::LinuxResources>) -> Option<Quota> {
    let cpu = resources?.cpu.as_ref()?;
    let micros = u64::try_from(cpu.quota.as_ref()?.value).ok().filter(|micros| *micros > 0)?;
    let period = cpu.period.as_ref().map(|period| period.value).filter(|period| *period > 0);
    Some(Quota { micros, period: period.unwrap_or(100_000) })
}

/// The mask in resources; none = not set, or not understood.
pub fn cpus(resources: Option<nri::LinuxResources>) -> Option<CpuSet> {
    resources?.cpu?.cpus.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty())
}

/// The answer to CreateContainer.
///
/// # Errors
/// An empty mask, which would mean "leave it as it is".
pub fn created(id: &str, created: Created) -> Result<nri::CreateContainerResponse, CallError> {
    if created.cpus.is_empty() {
        return Err(CallError::NoCpus);
    }
    let mems: Vec<_> = created.mems.iter().map(u32::to_string).collect();
    let cpu = nri::LinuxCpu {
        cpus: created.cpus.to_string(),
        mems: mems.join(","),
        quota: created.remove_cfs_quota.then_some(nri::OptionalInt64 { value: -1 }),
        ..Default::default()
    };
    let linux = nri::LinuxContainerAdjustment { resources: Some(resources(cpu)), ..Default::default() };
    Ok(nri::CreateContainerResponse {
        adjust: Some(nri::ContainerAdjustment { linux: Some(linux), ..Default::default() }),
        update: updates(created.updates, Some(id)),
        evict: Vec::new(),
    })
}

/// The answer to UpdateContainer: the container's own mask goes with the others.
pub fn updated(id: &str, updated: Updated) -> nri::UpdateContainerResponse {
    let own = updated.cpus.filter(|cpus| !cpus.is_empty()).map(|cpus| nri::ContainerUpdate {
        // If it cannot be set, the whole call must fail: else the container would run on the mask asked for.
        ignore_failure: false,
        ..update(Update { container_id: id.to_owned(), cpus })
    });
    let others = updates(updated.updates, Some(id));
    nri::UpdateContainerResponse { update: own.into_iter().chain(others).collect(), evict: Vec::new() }
}

/// Updates as the runtime takes them: never two for one container (the whole answer would be refused), none
/// for the container `own` that the hook is about, none that is empty (it would change nothing).
pub fn updates(updates: Vec<Update>, own: Option<&str>) -> Vec<nri::ContainerUpdate> {
    let mut named: HashSet<String> = own.into_iter().map(str::to_owned).collect();
    updates
        .into_iter()
        .filter(|update| {
            let sound = !update.cpus.is_empty() && named.insert(update.container_id.clone());
            if !sound {
                tracing::error!(container = update.container_id, cpus = %update.cpus, "left out an unsound update");
            }
            sound
        })
        .map(update)
        .collect()
}

fn update(update: Update) -> nri::ContainerUpdate {
    let cpu = nri::LinuxCpu { cpus: update.cpus.to_string(), ..Default::default() };
    nri::ContainerUpdate {
        container_id: update.container_id,
        linux: Some(nri::LinuxContainerUpdate { resources: Some(resources(cpu)) }),
        // CRI-O fails the whole hook, or the plugin's synchronization, when one update fails: a container
        // that has just exited must not keep another from being created.
        ignore_failure: true,
    }
}

fn resources(cpu: nri::LinuxCpu) -> nri::LinuxResources {
    nri::LinuxResources { cpu: Some(cpu), ..Default::default() }
}
