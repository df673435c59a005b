use crate::assemble::{Draft, DraftCpu};
use crate::facts::{Cache, CpuKind, Topology};
use crate::printable::shown;
use crate::yaml;
use dracpu_cpuset::{CpuSet, MAX_CPU_ID};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The part of a `gatherinfo` document that describes the machine. Its other parts, and keys that later
/// versions may add, do not matter here. -1 stands for "none".
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    cpu_details: CpuDetails,
}

#[derive(Debug, Deserialize)]
struct CpuDetails {
    cpus: Vec<CpuInfo>,
}

#[derive(Debug, Deserialize)]
struct CpuInfo {
    #[serde(rename = "cpuID")]
    cpu: u32,
    #[serde(rename = "coreID", default = "none")]
    core: i64,
    #[serde(rename = "socketID", default = "none")]
    socket: i64,
    #[serde(rename = "clusterID", default = "none")]
    cluster: i64,
    #[serde(rename = "numaNodeID", default = "none")]
    numa_node: i64,
    #[serde(rename = "numaNodeCPUSet", default)]
    numa_node_cpus: String,
    #[serde(default = "none")]
    sibling: i64,
    siblings: Option<String>,
    #[serde(rename = "coreType", default)]
    core_type: String,
    #[serde(rename = "uncoreCacheID", default = "none")]
    cache: i64,
}

fn none() -> i64 {
    -1
}

/// Reads the machine out of a `gatherinfo` document.
///
/// # Errors
/// Text that says what is wrong with the document.
pub(crate) fn from_yaml(text: &str) -> Result<Topology, String> {
    // Written by a program: a reader of YAML for these types would be program for nobody's benefit.
    let document: Value = yaml::parse(text)?;
    let document = Document::deserialize(document).map_err(|error| error.to_string())?;
    let cpus = document.cpu_details.cpus;
    let mut online = CpuSet::new();
    let mut cores: BTreeMap<u32, CpuSet> = BTreeMap::new();
    let mut caches: BTreeMap<(i64, i64), CpuSet> = BTreeMap::new();
    let mut nodes: BTreeMap<i64, CpuSet> = BTreeMap::new();
    for cpu in &cpus {
        if cpu.cpu > MAX_CPU_ID || !online.insert(cpu.cpu) {
            return Err(format!("cpuID {} is above {MAX_CPU_ID} or there twice", cpu.cpu));
        }
        cores.entry(cpu.core_name()).or_default().insert(cpu.cpu);
        caches.entry((cpu.socket, cpu.cache)).or_default().insert(cpu.cpu);
        nodes.entry(cpu.numa_node).or_default().insert(cpu.cpu);
    }
    let mut draft = Draft::default();
    for cpu in cpus {
        let siblings = match &cpu.siblings {
            Some(text) => cpu.list("siblings", text)?,
            None => cores.get(&cpu.core_name()).cloned().unwrap_or_default(),
        };
        let shared = caches.get(&(cpu.socket, cpu.cache)).filter(|_| cpu.cache >= 0);
        let llc = shared.map(|cpus| Cache {
            level: 3,
            id: u32::try_from(cpu.cache).ok(),
            size_bytes: 0,
            cpus: cpus.clone(),
        });
        let of_node = cpu.list("numaNodeCPUSet", &cpu.numa_node_cpus)?.intersection(&online);
        if !of_node.is_empty() && nodes.get(&cpu.numa_node) != Some(&of_node) {
            draft.warnings.note("nodes-disagree", cpu.cpu);
        }
        let named = CpuKind { name: shown("coreType", cpu.core_type)?, ..CpuKind::default() };
        draft.cpus.push(DraftCpu {
            id: cpu.cpu,
            socket: Some(cpu.socket),
            die: None,
            cluster: Some(cpu.cluster).filter(|cluster| *cluster >= 0),
            core_id: u32::try_from(cpu.core).ok(),
            siblings: Some(siblings),
            numa_node: u32::try_from(cpu.numa_node).ok(),
            llc,
            kind: if named.name.is_empty() { CpuKind::default() } else { named },
        });
    }
    draft.cpus.sort_by_key(|cpu| cpu.id);
    draft.assemble("the document").map_err(|_| "cpuDetails.cpus is empty".to_owned())
}

impl CpuInfo {
    fn list(&self, key: &str, text: &str) -> Result<CpuSet, String> {
        text.parse().map_err(|error| format!("{key} of cpuID {} is `{text}`: {error}", self.cpu))
    }

    /// The lowest CPU of the core: `sibling` is the lowest other one, also with more than two threads.
    fn core_name(&self) -> u32 {
        u32::try_from(self.sibling).map_or(self.cpu, |sibling| sibling.min(self.cpu))
    }
}
