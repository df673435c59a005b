//! The document that the daemon answers: one JSON object. A reader of the same schema version may meet keys that it
//! does not know, of a newer daemon; none is ever taken away.

use super::list;
use crate::driver::ClaimState;
use dracpu_cpuset::CpuSet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

/// [`NodeReport::schema`].
pub const NODE_SCHEMA: &str = "dracpu.node/v1";

/// What the daemon of a node knows, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// [`NODE_SCHEMA`].
    pub schema: String,
    /// Who answers.
    pub driver: DriverReport,
    /// The node's name.
    pub node: String,
    /// Why the driver is not ready, by part; empty when it is. As `/readyz`.
    pub problems: Vec<PartReport>,
    /// What is not as configured, by part.
    pub notes: Vec<PartReport>,
    /// The kubelet.
    pub kubelet: KubeletReport,
    /// The container runtime.
    pub nri: NriReport,
    /// Who decides.
    pub strategy: StrategyReport,
    /// Whose the CPUs are.
    pub cpus: CpusReport,
    /// Containers whose mask should change with the next answer to the runtime.
    pub pending_updates: usize,
    /// CDI specs with this driver's prefix of which not even the CPUs are known.
    pub unreadable_specs: Vec<PathBuf>,
    /// Claims that were unprepared while a container of theirs seemed alive, since the daemon's start.
    pub unprepared_in_use: u64,
    /// Claims that hold CPUs.
    pub claims: Vec<ClaimReport>,
    /// Containers that the runtime has told of.
    pub containers: Vec<ContainerReport>,
    /// What is published.
    pub slices: SlicesReport,
    /// What is odd about the machine, and attributes that the API's limits leave out (codes `attribute-…`).
    pub warnings: Vec<WarningReport>,
    /// The effective configuration, by file key, or by flag where there is no key.
    pub config: Value,
}

/// A daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverReport {
    /// Its version.
    pub version: String,
    /// Its process id, as it sees it itself: in a container it is the container's.
    pub pid: u32,
}

/// Something about a part of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartReport {
    /// `registration`, `nri`, `node name`, `strategy`.
    pub part: String,
    /// One clause, with the remedy where there is one.
    pub message: String,
}

/// The kubelet's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletReport {
    /// Registered with the kubelet.
    pub registered: bool,
    /// Why not.
    pub reason: Option<String>,
}

/// The container runtime's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NriReport {
    /// Connected to the runtime and synchronized.
    pub connected: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The runtime that was connected last; none before the first.
    pub runtime: Option<RuntimeReport>,
}

/// A container runtime, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeReport {
    /// `containerd`, `cri-o`.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// The version of its NRI; none when nothing tells.
    pub nri_version: Option<String>,
}

/// The strategies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StrategyReport {
    /// The one that decides where a claim names none; none in individual mode, and when it cannot be used.
    pub active: Option<StrategyIdentity>,
    /// Why the active one cannot be used: new claims are refused.
    pub problem: Option<String>,
    /// Others that claims may name.
    pub others: Vec<StrategyIdentity>,
    /// Of those, the ones that cannot be used, and why.
    pub unusable: Vec<UnusableReport>,
}

/// Which strategy it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StrategyIdentity {
    /// As in the configuration's `allocator`.
    pub name: String,
    /// Its version; none when only the digest is on record and no strategy of that digest is loaded.
    pub version: Option<String>,
    /// `sha256:…` of the component.
    pub digest: String,
}

/// A strategy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnusableReport {
    /// Its name.
    pub name: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Sets of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpusReport {
    /// CPUs that run.
    #[serde(with = "list")]
    pub online: CpuSet,
    /// CPUs that the machine has and that are offline.
    #[serde(default, with = "list")]
    pub offline: CpuSet,
    /// Never given out, never shared.
    #[serde(with = "list")]
    pub reserved: CpuSet,
    /// Kept off by the kernel's scheduler: never shared; a claim may have them.
    #[serde(with = "list")]
    pub isolated: CpuSet,
    /// The CPUs of all containers without a claim.
    #[serde(with = "list")]
    pub shared: CpuSet,
    /// CPUs that claims hold or block.
    #[serde(with = "list")]
    pub allocated: CpuSet,
    /// CPUs that a new claim could have.
    #[serde(with = "list")]
    pub available: CpuSet,
    /// CPUs of claims that have become reserved since.
    #[serde(with = "list")]
    pub stranded: CpuSet,
    /// CPUs that the records of several claims name.
    #[serde(with = "list")]
    pub conflicted: CpuSet,
    /// CPUs that go to nobody until it is known whose they are.
    #[serde(with = "list")]
    pub unproven: CpuSet,
}

/// A claim that holds CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimReport {
    /// Its UID.
    pub uid: String,
    /// Empty when only its CPUs are known.
    pub namespace: String,
    /// Empty when only its CPUs are known.
    pub name: String,
    /// What its pod calls it, where it was made from a template.
    pub pod_claim_name: Option<String>,
    /// How it is.
    pub state: ClaimState,
    /// The pod that it belongs to; none before its first container.
    pub pod: Option<PodReport>,
    /// The container of that pod that it belongs to.
    pub container: Option<String>,
    /// The CPUs of its container.
    #[serde(with = "list")]
    pub cpus: CpuSet,
    /// CPUs that nobody may use while it lives.
    #[serde(with = "list")]
    pub blocked: CpuSet,
    /// Those of its CPUs that are offline.
    #[serde(with = "list")]
    pub offline: CpuSet,
    /// Its container also runs on the shared pool.
    pub joins_shared_pool: bool,
    /// What it has of each device; one without a device when only its CPUs are known.
    pub devices: Vec<DeviceReport>,
    /// Who decided, by its record; none where the scheduler chose the CPUs, or nobody knows.
    pub strategy: Option<StrategyIdentity>,
    /// The strategy's sentence; none when it has not been kept, as after a restart of the daemon.
    pub why: Option<String>,
    /// False when a container says that it has it, and there is no record.
    pub recorded: bool,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What a claim has of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceReport {
    /// The request, with subrequest.
    pub request: String,
    /// The device; empty when unknown.
    pub device: String,
    /// Its share of the device.
    #[serde(rename = "shareID")]
    pub share_id: Option<String>,
    /// Its CPUs.
    #[serde(with = "list")]
    pub cpus: CpuSet,
    /// CPUs that nobody may use while the claim lives.
    #[serde(with = "list")]
    pub blocked: CpuSet,
}

/// A container that the runtime has told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    /// The runtime's id.
    pub id: String,
    /// Its name in the pod spec.
    pub name: String,
    /// Its pod.
    pub pod: PodReport,
    /// UIDs of the claims that it has.
    pub claims: Vec<String>,
    /// UIDs of claims that it says it has, without a record. While there are any, it is left alone.
    pub unproven: Vec<String>,
    /// The mask that it should have; none when it has ended or is left alone.
    #[serde(with = "list::optional")]
    pub wanted: Option<CpuSet>,
    /// The mask that the runtime has set for it as far as this driver knows; none when it does not.
    #[serde(with = "list::optional")]
    pub mask: Option<CpuSet>,
    /// The two are known to differ: a change is pending.
    pub differs: bool,
    /// Its process has been started.
    pub started: bool,
    /// It has ended.
    pub stopped: bool,
}

/// What the publisher of slices last did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlicesReport {
    /// The slices as they were last seen to be right or were written; none before the first success.
    pub published: Option<PublishedReport>,
    /// Why they are not as they should be, or why that is not known.
    pub error: Option<String>,
    /// Fields that the API server leaves out.
    pub fields_left_out: Vec<FieldReport>,
}

/// A pool of slices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedReport {
    /// The pool's generation.
    pub generation: i64,
    /// How many slices it has.
    pub slices: usize,
    /// How many devices stand in them.
    pub devices: usize,
}

/// A field that the API server leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldReport {
    /// Its name.
    pub field: String,
    /// What follows, and which feature gate it takes.
    pub consequence: String,
}

/// Something odd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarningReport {
    /// Stable, for scripts.
    pub code: String,
    /// For people.
    pub message: String,
}
