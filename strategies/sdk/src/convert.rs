//! Between the records of the interface and the types of the crate.

use crate::bindings::dracpu::strategy::types as records;
use crate::bindings::exports::dracpu::strategy::policy as wit;
use crate::{
    Attribute, Cache, Cpu, CpuKind, CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Group,
    Holding, Machine, NumaNode, Offer, PcieRoot, Reason, Request, Socket, State, deny, json,
};
use serde::de::DeserializeOwned;

/// A position; one that this platform cannot hold points nowhere.
pub(crate) fn position(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

fn index(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn cpu_set(words: Vec<u64>, what: &str) -> Result<CpuSet, Denial> {
    CpuSet::from_words(words).ok_or_else(|| deny!(Invalid, "{what} holds a CPU above {}", crate::MAX_CPU_ID))
}

/// The CPUs of the topology's key `offline`; hosts may leave it out.
fn offline(extra: &[(String, String)]) -> Result<CpuSet, Denial> {
    let Some((_, list)) = extra.iter().find(|(key, _)| key == "offline") else { return Ok(CpuSet::new()) };
    list.parse().map_err(|error| deny!(Invalid, "the offline set {list} cannot be read: {error}"))
}

/// Options from their JSON text.
pub(crate) fn options<O: DeserializeOwned>(text: &str) -> Result<O, Denial> {
    if !text.trim_ascii_start().starts_with('{') {
        return Err(deny!(Invalid, "the options {text} are not a JSON object")); // serde takes lists for structs
    }
    json::read(text).map_err(|error| deny!(Invalid, "the options {text} cannot be read: {error}"))
}

/// Requests; options whose text is already known are not read again.
pub(crate) fn requests<O: DeserializeOwned + Clone>(
    requests: Vec<wit::Request>,
    (text, known): &(String, O),
) -> Result<Vec<Request<O>>, Denial> {
    let request = |(at, request): (usize, wit::Request)| {
        let of_request = |denial: Denial| denial.of_request(at);
        Ok(Request {
            group: position(request.group),
            count: request.count,
            cpuset: request
                .cpuset
                .map(|words| cpu_set(words, "the cpuset"))
                .transpose()
                .map_err(of_request)?,
            options: match request.options == *text {
                true => known.clone(),
                false => options(&request.options).map_err(of_request)?,
            },
            pcie_roots: request.pcie_roots.into_iter().map(position).collect(),
            name: request.name,
        })
    };
    requests.into_iter().enumerate().map(request).collect()
}

impl TryFrom<wit::State> for State {
    type Error = Denial;

    fn try_from(state: wit::State) -> Result<Self, Denial> {
        let holding = |holding: records::Holding| {
            Ok(Holding {
                cpus: cpu_set(holding.cpus, "another claim")?,
                blocked: cpu_set(holding.blocked, "another claim")?,
            })
        };
        Ok(Self {
            free: cpu_set(state.free, "the free set")?,
            others: state.others.into_iter().map(holding).collect::<Result<_, Denial>>()?,
        })
    }
}

/// Puts a CPU into the set at a position of a list, if there is one.
fn join(set: Option<&mut CpuSet>, known: usize, what: &str, at: usize, cpu: u32) -> Result<(), Denial> {
    let set = set.ok_or_else(|| deny!(Invalid, "CPU {cpu} names {what} {at}, the topology has {known}"))?;
    set.insert(cpu);
    Ok(())
}

/// Likewise, in a list that has no rows of its own in the interface and grows with the positions.
fn join_growing(list: &mut Vec<CpuSet>, most: usize, what: &str, at: usize, cpu: u32) -> Result<(), Denial> {
    if at >= most {
        return Err(deny!(Invalid, "CPU {cpu} names {what} {at}, with {most} CPUs in all"));
    }
    if at >= list.len() {
        list.resize(at + 1, CpuSet::new());
    }
    join(list.get_mut(at), most, what, at, cpu)
}

impl TryFrom<wit::Topology> for Machine {
    type Error = Denial;

    /// # Errors
    /// Invalid, for a position that points nowhere, a CPU above the limit, or CPUs out of order.
    fn try_from(topology: wit::Topology) -> Result<Self, Denial> {
        let mut machine = Self {
            sockets: topology.sockets.into_iter().map(|id| Socket { id, cpus: CpuSet::new() }).collect(),
            numa_nodes: topology.numa_nodes.into_iter().map(NumaNode::from).collect(),
            kinds: topology.kinds.into_iter().map(CpuKind::from).collect(),
            reserved: cpu_set(topology.reserved, "the reserved set")?,
            isolated: cpu_set(topology.isolated, "the isolated set")?,
            offline: offline(&topology.extra)?,
            ..Self::default()
        };
        for cache in topology.caches {
            let cpus = cpu_set(cache.cpus, "a cache")?;
            let (level, id, size_bytes) = (cache.level, cache.id, cache.size_bytes);
            machine.caches.push(Cache { level, id, size_bytes, cpus });
        }
        for root in topology.pcie_roots {
            let cpus = cpu_set(root.cpus, &root.name)?;
            machine.pcie_roots.push(PcieRoot { name: root.name, cpus });
        }
        for group in topology.groups {
            let cpus = cpu_set(group.cpus, &group.device)?;
            machine.groups.push(Group { device: group.device, kind: group.kind, cpus });
        }
        machine.cpus.reserve(topology.cpus.len());
        let most = topology.cpus.len();
        for row in topology.cpus {
            machine.add_cpu(row, most)?;
        }
        Ok(machine)
    }
}

impl Machine {
    fn add_cpu(&mut self, row: records::Cpu, most: usize) -> Result<(), Denial> {
        let id = row.id;
        if id > crate::MAX_CPU_ID || self.cpus.last().is_some_and(|last| last.id >= id) {
            return Err(deny!(Invalid, "CPU {id} is out of order, or above {}", crate::MAX_CPU_ID));
        }
        let cpu = Cpu {
            id,
            core: position(row.core),
            core_id: row.core_id,
            thread: row.thread,
            cluster: row.cluster.map(position),
            die: position(row.die),
            socket: position(row.socket),
            numa_node: position(row.numa_node),
            llc: row.llc.map(position),
            kind: position(row.kind),
        };
        join_growing(&mut self.cores, most, "core", cpu.core, id)?;
        join_growing(&mut self.dies, most, "die", cpu.die, id)?;
        if let Some(cluster) = cpu.cluster {
            join_growing(&mut self.clusters, most, "cluster", cluster, id)?;
        }
        let (sockets, nodes, kinds) = (self.sockets.len(), self.numa_nodes.len(), self.kinds.len());
        join(self.sockets.get_mut(cpu.socket).map(|row| &mut row.cpus), sockets, "socket", cpu.socket, id)?;
        let node = self.numa_nodes.get_mut(cpu.numa_node).map(|row| &mut row.cpus);
        join(node, nodes, "NUMA node", cpu.numa_node, id)?;
        join(self.kinds.get_mut(cpu.kind).map(|row| &mut row.cpus), kinds, "kind", cpu.kind, id)?;
        if let Some(llc) = cpu.llc {
            let caches = self.caches.len();
            join(self.caches.get_mut(llc).map(|row| &mut row.cpus), caches, "cache", llc, id)?;
        }
        self.cpus.push(cpu);
        Ok(())
    }
}

impl From<records::NumaNode> for NumaNode {
    fn from(node: records::NumaNode) -> Self {
        Self { id: node.id, memory_bytes: node.memory_bytes, distances: node.distances, cpus: CpuSet::new() }
    }
}

impl From<records::CpuKind> for CpuKind {
    fn from(kind: records::CpuKind) -> Self {
        Self { name: kind.name, capacity: kind.capacity, cpus: CpuSet::new() }
    }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

impl From<Description> for wit::Description {
    fn from(description: Description) -> Self {
        Self {
            name: description.name.to_owned(),
            version: description.version.to_owned(),
            summary: description.summary.to_owned(),
            options_schema: description.options_schema.to_owned(),
            explicit_cpuset: match description.explicit_cpuset {
                ExplicitCpuset::Refused => records::ExplicitCpuset::Refused,
                ExplicitCpuset::Accepted => records::ExplicitCpuset::Accepted,
                ExplicitCpuset::Required => records::ExplicitCpuset::Required,
            },
            publishes: texts(description.publishes),
            needs: texts(description.needs),
            extra: Vec::new(),
        }
    }
}

impl From<Offer> for wit::Offer {
    fn from(offer: Offer) -> Self {
        let attribute = |(name, value): (String, Attribute)| {
            let value = match value {
                Attribute::Int(value) => records::Attribute::Int(value),
                Attribute::Bool(value) => records::Attribute::Truth(value),
                Attribute::Text(value) => records::Attribute::Text(value),
                Attribute::Version(value) => records::Attribute::Version(value),
            };
            (name, value)
        };
        Self {
            capacity: offer.capacity,
            step: offer.step,
            attributes: offer.attributes.into_iter().map(attribute).collect(),
        }
    }
}

impl From<Decision> for wit::Decision {
    fn from(decision: Decision) -> Self {
        let grant = |grant: Grant| records::Grant {
            cpus: grant.cpus.into_words(),
            blocked: grant.blocked.into_words(),
            mems: grant.mems.into_iter().map(index).collect(),
        };
        Self {
            grants: decision.grants.into_iter().map(grant).collect(),
            join_shared_pool: decision.join_shared_pool,
            why: decision.why,
            extra: Vec::new(),
        }
    }
}

impl From<Denial> for wit::Denial {
    fn from(denial: Denial) -> Self {
        Self {
            reason: match denial.reason {
                Reason::Invalid => records::Reason::Invalid,
                Reason::NotEnough => records::Reason::NotEnough,
                Reason::NoFit => records::Reason::NoFit,
            },
            request: denial.request.map(index),
            message: denial.message,
        }
    }
}
