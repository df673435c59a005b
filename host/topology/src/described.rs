use crate::assemble::{Draft, DraftCpu, DraftNode};
use crate::facts::{Cache, CpuKind, PcieRoot, Topology, Warning};
use crate::printable::{printable, shown};
use crate::warnings::{Warnings, known_code, position};
use dracpu_cpuset::{CpuSet, MAX_CPU_ID};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The `schema` of machines as JSON.
pub const SCHEMA: &str = "dracpu.topology/v1";

/// A machine as one JSON object: what `topology -o json` prints, and [`load`](crate::machine::load) reads back.
///
/// `core`, `die` and `cluster` are running numbers over the machine, `coreId`, `socket` and `llcId` the
/// kernel's own. `llc` is the last-level cache, whatever its level; `l3` the same where that is level 3.
#[must_use]
pub fn to_json(topology: &Topology, reserved: &CpuSet) -> Value {
    let list = |cpus: &CpuSet| cpus.to_string();
    let cpus = topology.cpus.iter().map(|cpu| {
        let llc = cpu.llc.and_then(|at| topology.caches.get(at));
        let kind = topology.kinds.get(cpu.kind);
        json!({
            "cpu": cpu.id,
            "siblings": topology.cores.get(cpu.core).map(list),
            "socket": topology.sockets.get(cpu.socket).map(|socket| socket.id),
            "numa": cpu.numa_node.and_then(|at| topology.numa_nodes.get(at)).map(|node| node.id),
            "l3": llc.filter(|cache| cache.level == 3).map(|cache| list(&cache.cpus)),
            "kind": kind.map(|kind| &kind.name),
            "core": cpu.core,
            "thread": cpu.thread,
            "coreId": cpu.core_id,
            "die": cpu.die,
            "cluster": cpu.cluster,
            "llc": llc.map(|cache| list(&cache.cpus)),
            "llcId": llc.and_then(|cache| cache.id),
            "capacity": kind.map(|kind| kind.capacity),
        })
    });
    let nodes = topology.numa_nodes.iter().map(|node| {
        json!({
            "id": node.id,
            "cpus": list(&node.cpus),
            "memoryBytes": node.memory_bytes,
            "distances": node.distances,
        })
    });
    let caches = topology.caches.iter().map(|cache| {
        json!({
            "level": cache.level,
            "id": cache.id,
            "cpus": list(&cache.cpus),
            "sizeBytes": cache.size_bytes,
        })
    });
    let roots = topology.pcie_roots.iter().map(|root| json!({"name": root.name, "cpus": list(&root.cpus)}));
    let warnings =
        topology.warnings.iter().map(|found| json!({"code": found.code, "message": found.message}));
    json!({
        "schema": SCHEMA,
        "online": list(&topology.online()),
        "offline": list(&topology.offline),
        "isolated": list(&topology.isolated),
        "nohzFull": list(&topology.nohz_full),
        "reserved": list(reserved),
        "threadsPerCore": topology.threads_per_core(),
        "cpus": cpus.collect::<Vec<_>>(),
        "numaNodes": nodes.collect::<Vec<_>>(),
        "caches": caches.collect::<Vec<_>>(),
        "pcieRoots": roots.collect::<Vec<_>>(),
        "warnings": warnings.collect::<Vec<_>>(),
    })
}

/// Reads a machine as JSON: its topology and reserved CPUs. What can be derived may be left out, down to
/// `{"cpu":0,"coreId":0,"socket":0,"numa":0,"llcId":0}` for each CPU; -1 and null stand for "none". Where the
/// description contradicts itself, a warning says what counts, with the same codes as for sysfs.
///
/// # Errors
/// Text that says what is wrong with the description.
pub(crate) fn from_json(text: &str) -> Result<(Topology, CpuSet), String> {
    let machine: MachineJson = serde_json::from_str(text).map_err(|error| error.to_string())?;
    machine.build()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MachineJson {
    schema: Option<String>,
    cpus: Vec<CpuJson>,
    online: Option<String>,
    #[serde(default)]
    offline: String,
    #[serde(default)]
    isolated: String,
    #[serde(default)]
    nohz_full: String,
    #[serde(default)]
    reserved: String,
    #[serde(default)]
    numa_nodes: Vec<NodeJson>,
    #[serde(default)]
    caches: Vec<CacheJson>,
    #[serde(default)]
    pcie_roots: Vec<RootJson>,
    #[serde(default)]
    warnings: Vec<WarningJson>,
    #[serde(rename = "threadsPerCore")]
    _threads_per_core: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CpuJson {
    cpu: u32,
    siblings: Option<String>,
    core: Option<i64>,
    core_id: Option<i64>,
    die: Option<i64>,
    cluster: Option<i64>,
    socket: Option<i64>,
    numa: Option<i64>,
    llc: Option<String>,
    l3: Option<String>,
    llc_id: Option<i64>,
    kind: Option<String>,
    capacity: Option<u32>,
    #[serde(rename = "thread")]
    _thread: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeJson {
    id: u32,
    #[serde(default)]
    cpus: String,
    memory_bytes: Option<u64>,
    #[serde(default)]
    distances: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CacheJson {
    level: u32,
    id: Option<i64>,
    cpus: String,
    #[serde(default)]
    size_bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootJson {
    name: String,
    cpus: String,
}

#[derive(Debug, Deserialize)]
struct WarningJson {
    code: String,
    message: String,
}

/// What a CPU says about its last-level cache: the CPUs, or an id that its socket's CPUs share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CacheName {
    Cpus(CpuSet),
    Id(Option<i64>, u32),
}

impl MachineJson {
    fn build(self) -> Result<(Topology, CpuSet), String> {
        if let Some(schema) = self.schema.filter(|schema| schema != SCHEMA) {
            return Err(format!("schema is `{schema}`, this version reads `{SCHEMA}`"));
        }
        let mut online = CpuSet::new();
        for cpu in &self.cpus {
            if cpu.cpu > MAX_CPU_ID {
                return Err(format!("cpu {} is above {MAX_CPU_ID}", cpu.cpu));
            }
            if !online.insert(cpu.cpu) {
                return Err(format!("cpu {} is described twice", cpu.cpu));
            }
        }
        if let Some(text) = self.online {
            let stated = list("online", &text)?;
            if stated != online {
                return Err(format!("online is `{stated}`, but cpus describes `{online}`"));
            }
        }
        let offline = list("offline", &self.offline)?;
        if let Some(both) = offline.intersection(&online).first() {
            return Err(format!("cpu {both} is in offline and among the cpus"));
        }
        let isolated = list("isolated", &self.isolated)?;
        let nohz_full = list("nohzFull", &self.nohz_full)?;
        let mut draft = Draft { offline, isolated, nohz_full, ..Draft::default() };
        let known = cache_facts(self.caches, &online, &mut draft.warnings)?;
        let node_of = nodes(self.numa_nodes, &online, &mut draft)?;
        draft.pcie_roots = pcie_roots(self.pcie_roots, &mut draft.warnings)?;

        let mut cores: BTreeMap<i64, CpuSet> = BTreeMap::new();
        let mut shared: BTreeMap<CacheName, CpuSet> = BTreeMap::new();
        let mut names = BTreeMap::new();
        let listed = known.keys().fold(CpuSet::new(), |all, cpus| all.union(cpus));
        for cpu in &self.cpus {
            if let Some(core) = cpu.core {
                cores.entry(core).or_default().insert(cpu.cpu);
            }
            if let Some(name) = cpu.cache_name()? {
                shared.entry(name.clone()).or_default().insert(cpu.cpu);
                names.insert(cpu.cpu, name);
            }
        }
        for cpu in self.cpus {
            let id = cpu.cpu;
            let llc = names.get(&id).map(|name| {
                let cpus = match name {
                    CacheName::Cpus(cpus) => cpus.intersection(&online),
                    CacheName::Id(..) => shared.get(name).cloned().unwrap_or_default(),
                };
                if !known.contains_key(&cpus) && listed.contains(id) {
                    draft.warnings.note("caches-disagree", id);
                }
                let (level, known_id, size_bytes) = known.get(&cpus).copied().unwrap_or((3, None, 0));
                Cache { level, id: cpu.llc_id.and_then(some_id).or(known_id), size_bytes, cpus }
            });
            let named = cpu.siblings.as_deref().map(|text| list("siblings", text)).transpose()?;
            let numbered = cpu.core.and_then(|core| cores.get(&core)).cloned();
            if named.as_ref().is_some_and(|named| numbered.as_ref().is_some_and(|core| core != named)) {
                draft.warnings.note("siblings-disagree", id);
            }
            let listed = node_of.get(&id).copied();
            let numa_node = match (cpu.numa.and_then(some_id), listed) {
                (Some(named), Some(listed)) if named != listed => {
                    draft.warnings.note("cpu-in-several-nodes", id);
                    Some(named.min(listed))
                }
                (named, listed) => named.or(listed),
            };
            let kind = CpuKind::default();
            draft.cpus.push(DraftCpu {
                id,
                socket: cpu.socket,
                die: cpu.die.filter(|die| *die >= 0),
                cluster: cpu.cluster.filter(|cluster| *cluster >= 0),
                core_id: cpu.core_id.and_then(some_id),
                siblings: named.or(numbered),
                numa_node,
                llc,
                kind: CpuKind {
                    name: cpu.kind.map_or(Ok(kind.name), |name| shown("kind", name))?,
                    capacity: cpu.capacity.unwrap_or(kind.capacity),
                },
            });
        }
        draft.cpus.sort_by_key(|cpu| cpu.id);
        let reserved = list("reserved", &self.reserved)?;
        let mut topology =
            draft.assemble("the description").map_err(|_| "no cpus are described".to_owned())?;
        keep_warnings(&mut topology, self.warnings);
        Ok((topology, reserved))
    }
}

impl CpuJson {
    fn cache_name(&self) -> Result<Option<CacheName>, String> {
        if let Some(text) = self.llc.as_deref().or(self.l3.as_deref()) {
            return list("llc", text).map(|cpus| Some(CacheName::Cpus(cpus)));
        }
        Ok(self.llc_id.and_then(some_id).map(|id| CacheName::Id(self.socket, id)))
    }
}

type CacheFacts = (u32, Option<u32>, u64);

/// Level, id and size of the caches that the description lists, by their online CPUs.
fn cache_facts(
    caches: Vec<CacheJson>,
    online: &CpuSet,
    warnings: &mut Warnings,
) -> Result<BTreeMap<CpuSet, CacheFacts>, String> {
    let mut facts = BTreeMap::new();
    let mut seen: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cache in caches {
        let cpus = list("cpus of a cache", &cache.cpus)?.intersection(online);
        let of_level = seen.entry(cache.level).or_default();
        warnings.note_all("caches-disagree", &cpus.intersection(of_level));
        of_level.extend_from(&cpus);
        facts.entry(cpus).or_insert((cache.level, cache.id.and_then(some_id), cache.size_bytes));
    }
    Ok(facts)
}

/// Adds the NUMA nodes to the draft; the node of each CPU that a node lists.
fn nodes(described: Vec<NodeJson>, online: &CpuSet, draft: &mut Draft) -> Result<BTreeMap<u32, u32>, String> {
    let mut nodes: BTreeMap<u32, DraftNode> = BTreeMap::new();
    let mut node_of: BTreeMap<u32, u32> = BTreeMap::new();
    for NodeJson { id, cpus, memory_bytes, distances } in described {
        if nodes.contains_key(&id) {
            draft.warnings.note("node-twice", id);
        }
        nodes.entry(id).or_insert(DraftNode { id, memory_bytes, distances });
        let cpus = list("cpus of a NUMA node", &cpus)?;
        draft.warnings.note_all("node-of-offline-cpu", &cpus.difference(online));
        for cpu in &cpus {
            let lowest = node_of.entry(cpu).or_insert(id);
            if *lowest != id {
                draft.warnings.note("cpu-in-several-nodes", cpu);
                *lowest = id.min(*lowest);
            }
        }
    }
    draft.nodes = nodes.into_values().collect();
    Ok(node_of)
}

fn pcie_roots(described: Vec<RootJson>, warnings: &mut Warnings) -> Result<Vec<PcieRoot>, String> {
    let mut roots: BTreeMap<String, CpuSet> = BTreeMap::new();
    for RootJson { name, cpus } in described {
        let cpus = list("cpus of a PCIe root", &cpus)?;
        match roots.entry(shown("PCIe root", name)?) {
            Entry::Vacant(new) => _ = new.insert(cpus),
            Entry::Occupied(mut known) => {
                known.get_mut().extend_from(&cpus);
                warnings.note_all("pcie-root-twice", known.get());
            }
        }
    }
    Ok(roots.into_iter().map(|(name, cpus)| PcieRoot { name, cpus }).collect())
}

/// Adds the description's own warnings to those that reading it gave; one of each code, in the usual order.
fn keep_warnings(topology: &mut Topology, described: Vec<WarningJson>) {
    for WarningJson { code, message } in described {
        let (code, message) = (known_code(&code), printable(&message));
        match topology.warnings.iter_mut().find(|warning| warning.code == code) {
            Some(warning) => warning.message = message,
            None => topology.warnings.push(Warning { code, message }),
        }
    }
    topology.warnings.sort_by_key(|warning| position(warning.code));
}

fn list(what: &str, text: &str) -> Result<CpuSet, String> {
    text.parse().map_err(|error| format!("{what} is `{text}`: {error}"))
}

/// -1 stands for "none".
fn some_id(id: i64) -> Option<u32> {
    u32::try_from(id).ok()
}
