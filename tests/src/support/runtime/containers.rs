//! Pods and containers as the runtime keeps them, and as it shows them to plugins.

use super::super::cdi_reader::{Edits, Mount};
use super::super::cpus::{Cpus, parse};
use super::RuntimeVersion;
use dracpu_proto::nri;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A pod to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSpec {
    /// The pod object's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// CFS quota and period of all its containers together, as the kubelet adds them up.
    pub quota: Option<(i64, u64)>,
}

/// A container to be created, as the kubelet asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerSpec {
    /// The name in the pod spec.
    pub name: String,
    /// The pod spec's own variables.
    pub env: Vec<String>,
    /// `CDIDevices` of the CRI call.
    pub cdi_devices: Vec<String>,
    /// The cpuset of the CRI call; empty unless the kubelet pins CPUs itself.
    pub cpus: String,
    /// CFS quota and period of the CRI call.
    pub quota: Option<(i64, u64)>,
}

/// What a container's life has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// Started.
    Running,
    /// Ended.
    Exited,
}

/// What the runtime knows of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRecord {
    /// The runtime's id.
    pub id: String,
    /// The pod sandbox's id.
    pub pod_id: String,
    /// The name in the pod spec.
    pub name: String,
    /// With what CDI injected.
    pub env: Vec<String>,
    /// What CDI mounts.
    pub mounts: Vec<Mount>,
    /// As asked.
    pub cdi_devices: Vec<String>,
    /// Mask in effect; empty = all CPUs.
    pub cpus: String,
    /// Memory nodes in effect; empty = all.
    pub mems: String,
    /// CFS quota in effect; -1 = none.
    pub quota: i64,
    /// CFS period.
    pub period: u64,
    /// CPU shares.
    pub shares: u64,
    /// Its life.
    pub state: ContainerState,
    /// Number of creation, to tell an order.
    pub created: u64,
    /// Since when it runs.
    pub started: Option<SystemTime>,
}

impl ContainerRecord {
    /// The CPUs that it may run on, on a machine with these.
    ///
    /// # Panics
    /// When its mask is no list: the runtime let none through.
    #[must_use]
    pub fn effective(&self, online: &Cpus) -> Cpus {
        let mask = parse(&self.cpus).unwrap();
        if mask.is_empty() { online.clone() } else { mask.intersection(online).copied().collect() }
    }

    /// As plugins see it.
    pub(super) fn shown(&self, version: RuntimeVersion) -> nri::Container {
        let state = match self.state {
            ContainerState::Created => nri::ContainerState::ContainerCreated,
            ContainerState::Running => nri::ContainerState::ContainerRunning,
            ContainerState::Exited => nri::ContainerState::ContainerStopped,
        };
        let cpu = nri::LinuxCpu {
            shares: Some(nri::OptionalUInt64 { value: self.shares }),
            quota: Some(nri::OptionalInt64 { value: self.quota }),
            period: Some(nri::OptionalUInt64 { value: self.period }),
            cpus: self.cpus.clone(),
            mems: self.mems.clone(),
            ..nri::LinuxCpu::default()
        };
        let mounts = self.mounts.iter().map(|mount| nri::Mount {
            destination: mount.container_path.clone(),
            source: mount.host_path.clone(),
            r#type: mount.r#type.clone().unwrap_or_default(),
            options: mount.options.clone(),
        });
        let devices = self.cdi_devices.iter().map(|name| nri::CdiDevice { name: name.clone() });
        let modern = version.nri_minor() >= 12;
        nri::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.pod_id.clone(),
            name: self.name.clone(),
            state: state.into(),
            labels: BTreeMap::from([("io.kubernetes.container.name".to_owned(), self.name.clone())]),
            args: vec!["/pause".to_owned()],
            env: self.env.clone(),
            mounts: mounts.collect(),
            linux: Some(nri::LinuxContainer {
                resources: Some(nri::LinuxResources { cpu: Some(cpu), ..Default::default() }),
                cgroups_path: format!("/kubepods/pod-{}/{}", self.pod_id, self.id),
                ..Default::default()
            }),
            started_at: if version.nri_minor() >= 10 { nanos(self.started) } else { 0 },
            pid: if self.state == ContainerState::Running { 1000 } else { 0 },
            cdi_devices: if modern { devices.collect() } else { Vec::new() },
            ..Default::default()
        }
    }
}

impl PodSpec {
    pub(super) fn shown(&self, id: &str) -> nri::PodSandbox {
        let cpu = self.quota.map(|(quota, period)| nri::LinuxCpu {
            quota: Some(nri::OptionalInt64 { value: quota }),
            period: Some(nri::OptionalUInt64 { value: period }),
            ..Default::default()
        });
        nri::PodSandbox {
            linux: Some(nri::LinuxPodSandbox {
                pod_resources: Some(nri::LinuxResources { cpu, ..Default::default() }),
                ..Default::default()
            }),
            id: id.to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            labels: BTreeMap::from([("io.kubernetes.pod.uid".to_owned(), self.uid.clone())]),
            annotations: self.annotations.clone(),
            ..Default::default()
        }
    }
}

/// As NRI tells times; 0 where there is none.
fn nanos(time: Option<SystemTime>) -> i64 {
    let since = time.map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos());
    since.map_or(0, |nanos| i64::try_from(nanos).unwrap())
}

/// What CDI mounts; of two at one place in the container the later one.
pub(super) fn mounts(edits: &[Edits]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for mount in edits.iter().flat_map(|edits| &edits.mounts) {
        mounts.retain(|other| other.container_path != mount.container_path);
        mounts.push(mount.clone());
    }
    mounts
}

/// The pod's own variables with those of CDI: behind them (released runtimes up to containerd 2.3), or in
/// place of the last one with the same key (2.4).
pub(super) fn inject(own: &[String], edits: &[Edits], version: RuntimeVersion) -> Vec<String> {
    let key = |entry: &str| entry.split_once('=').map_or(entry, |(key, _)| key).to_owned();
    let mut injected: Vec<String> = Vec::new(); // within one injection a key replaces itself
    for entry in edits.iter().flat_map(|edits| &edits.env) {
        match injected.iter_mut().find(|other| key(other) == key(entry)) {
            Some(other) => other.clone_from(entry),
            None => injected.push(entry.clone()),
        }
    }
    let mut env = own.to_vec();
    for entry in injected {
        let place = env.iter_mut().rev().find(|other| key(other) == key(&entry));
        match place {
            Some(place) if version.nri_minor() >= 12 => *place = entry,
            _ => env.push(entry),
        }
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdi_variables_come_behind_the_pods_own_or_replace_the_last_of_them() {
        let own = ["A=p1", "A=p2", "B=1"].map(str::to_owned);
        let edits = [Edits { env: vec!["A=cdi".to_owned()], ..Edits::default() }];
        assert_eq!(inject(&own, &edits, RuntimeVersion::Containerd21), ["A=p1", "A=p2", "B=1", "A=cdi"]);
        assert_eq!(inject(&own, &edits, RuntimeVersion::Containerd24), ["A=p1", "A=cdi", "B=1"]);
    }
}
