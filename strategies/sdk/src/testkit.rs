//! For native tests of a strategy: machines from a few words, and the host's own rules for an answer.
//!
//! ```
//! use dracpu_strategy_sdk::testkit::MachineSpec;
//! let machine = MachineSpec::even(2, 1, 4, 2).build();
//! assert_eq!(machine.core_of(0), Some(&[0, 8].into()));
//! ```

use crate::bindings::dracpu::strategy::types as records;
use crate::{CpuSet, Decision, Denial, Machine, Offer, Request, State, Strategy, convert};
use std::collections::{BTreeMap, BTreeSet};

/// A machine in the making. Without [`group`](Self::group) it has one group of all unreserved CPUs.
#[derive(Debug, Clone, Default)]
pub struct MachineSpec {
    rows: Vec<CpuRow>,
    reserved: CpuSet,
    isolated: CpuSet,
    empty_numa_nodes: Vec<u32>,
    pcie_roots: Vec<(String, CpuSet)>,
    kinds: Vec<(String, u32, CpuSet)>,
    groups: Vec<(String, CpuSet)>,
}

/// A CPU by the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRow {
    /// Its id.
    pub cpu: u32,
    /// `core_id`; CPUs of one socket with the same one are a core.
    pub core_id: u32,
    /// `physical_package_id`.
    pub socket: i64,
    /// NUMA node id.
    pub numa: u32,
    /// Id of the level 3 cache; CPUs of one socket with the same one share it.
    pub l3: Option<u32>,
}

impl MachineSpec {
    /// A machine of these CPUs.
    #[must_use]
    pub fn of_rows(rows: impl IntoIterator<Item = CpuRow>) -> Self {
        let mut rows: Vec<CpuRow> = rows.into_iter().collect();
        rows.sort_by_key(|row| row.cpu);
        rows.dedup_by_key(|row| row.cpu);
        Self { rows, ..Self::default() }
    }

    /// Equal sockets, each of `numa` nodes with one level 3 cache of `cores` cores. Numbered as servers
    /// are: first threads of all cores, then second threads; core ids repeat on every socket.
    #[must_use]
    pub fn even(sockets: u32, numa: u32, cores: u32, threads: u32) -> Self {
        let all = sockets * numa * cores;
        let row = |cpu: u32| {
            let core = cpu % all;
            let node = core / cores;
            CpuRow {
                cpu,
                core_id: core % (numa * cores),
                socket: i64::from(node / numa),
                numa: node,
                l3: Some(node),
            }
        };
        Self::of_rows((0..all * threads).map(row))
    }

    /// A small machine drawn from a seed: uneven cores, sockets, NUMA nodes and caches, holes in the
    /// numbers, reserved and isolated CPUs, groups that overlap. The same seed, the same machine.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let (sockets, nodes, caches) = (1 + draw.below(3), 1 + draw.below(5), draw.below(7));
        let (wide, shuffled) = (1 + draw.below(4), draw.below(2) == 0);
        let mut rows = Vec::new();
        for core in 0..1 + draw.below(24) {
            let (socket, numa, cache) = if shuffled {
                (draw.below(sockets), draw.below(nodes), draw.below(caches + 1))
            } else {
                (core % sockets, core % nodes, core % (caches + 1))
            };
            for thread in 0..1 + draw.below(wide) {
                let cpu = core + thread * 29 + 40 * draw.below(2) * u32::from(shuffled);
                let l3 = (cache > 0).then_some(cache);
                rows.push(CpuRow {
                    cpu,
                    core_id: core / 2 * 3 + core % 2,
                    socket: i64::from(socket) - 1,
                    numa,
                    l3,
                });
            }
        }
        let mut spec = Self::of_rows(rows);
        let cpus: Vec<u32> = spec.rows.iter().map(|row| row.cpu).collect();
        let mut some = |of: u32| -> CpuSet { cpus.iter().copied().filter(|_| draw.below(of) == 0).collect() };
        spec.reserved = some(8);
        spec.isolated = some(6);
        for name in ["a", "b"] {
            let cpus = some(2).difference(&spec.reserved);
            spec.groups.push((name.to_owned(), cpus));
        }
        spec.pcie_roots.push(("pci0000:00".to_owned(), some(2)));
        spec.empty_numa_nodes.push(90);
        spec
    }

    /// Takes CPUs out, as if they were offline.
    #[must_use]
    pub fn offline(mut self, cpus: &CpuSet) -> Self {
        self.rows.retain(|row| !cpus.contains(row.cpu));
        self
    }

    /// Reserves CPUs.
    #[must_use]
    pub fn reserved(self, cpus: CpuSet) -> Self {
        Self { reserved: cpus, ..self }
    }

    /// Isolates CPUs.
    #[must_use]
    pub fn isolated(self, cpus: CpuSet) -> Self {
        Self { isolated: cpus, ..self }
    }

    /// Adds a NUMA node without CPUs.
    #[must_use]
    pub fn empty_numa_node(mut self, id: u32) -> Self {
        self.empty_numa_nodes.push(id);
        self
    }

    /// Adds a PCIe root.
    #[must_use]
    pub fn pcie_root(mut self, name: &str, cpus: CpuSet) -> Self {
        self.pcie_roots.push((name.to_owned(), cpus));
        self
    }

    /// Gives CPUs a kind of core; the others are `standard` with capacity 1024.
    #[must_use]
    pub fn kind(mut self, name: &str, capacity: u32, cpus: CpuSet) -> Self {
        self.kinds.push((name.to_owned(), capacity, cpus));
        self
    }

    /// Adds a group. Its CPUs must be online and not reserved.
    #[must_use]
    pub fn group(mut self, device: &str, cpus: CpuSet) -> Self {
        self.groups.push((device.to_owned(), cpus));
        self
    }

    /// The machine, by way of the interface's own record, as a strategy gets it from the host.
    #[must_use]
    pub fn build(&self) -> Machine {
        Machine::try_from(self.topology()).unwrap_or_default()
    }

    fn topology(&self) -> records::Topology {
        let cores = Numbering::of(&self.rows, |row| Some((row.core_id, row.socket)));
        let caches = Numbering::of(&self.rows, |row| row.l3.map(|l3| (l3, row.socket)));
        let sockets = Numbering::of(&self.rows, |row| Some(row.socket));
        let occupied = self.rows.iter().map(|row| row.numa);
        let nodes: BTreeSet<u32> = occupied.chain(self.empty_numa_nodes.iter().copied()).collect();
        let nodes: Vec<u32> = nodes.into_iter().collect();
        let online: CpuSet = self.rows.iter().map(|row| row.cpu).collect();

        let mut threads: BTreeMap<u32, u32> = BTreeMap::new();
        let mut cpu = |row: &CpuRow| {
            let core = cores.position(row).unwrap_or_default();
            let thread = threads.entry(core).or_default();
            *thread += 1;
            let socket = sockets.position(row).unwrap_or_default();
            let kind =
                self.kinds.iter().position(|(_, _, cpus)| cpus.contains(row.cpu)).map_or(0, |at| at + 1);
            records::Cpu {
                id: row.cpu,
                core,
                core_id: row.core_id,
                thread: *thread - 1,
                cluster: None,
                die: socket,
                socket,
                numa_node: index(nodes.binary_search(&row.numa).unwrap_or_default()),
                llc: caches.position(row),
                kind: index(kind),
            }
        };
        let cpus: Vec<records::Cpu> = self.rows.iter().map(&mut cpu).collect();
        let cache = |(at, (id, _)): (u32, &(u32, i64))| records::Cache {
            level: 3,
            id: *id,
            size_bytes: 32 << 20,
            cpus: cpus
                .iter()
                .filter(|cpu| cpu.llc == Some(at))
                .map(|cpu| cpu.id)
                .collect::<CpuSet>()
                .into_words(),
        };
        let node = |id: &u32| records::NumaNode { id: *id, memory_bytes: 0, distances: Vec::new() };
        let standard = records::CpuKind { name: "standard".to_owned(), capacity: 1024 };
        let kind = |(name, capacity, _): &(String, u32, CpuSet)| records::CpuKind {
            name: name.clone(),
            capacity: *capacity,
        };
        let whole = [("cpudevmachine".to_owned(), online.difference(&self.reserved))];
        let groups = if self.groups.is_empty() { &whole[..] } else { &self.groups[..] };
        records::Topology {
            sockets: sockets.keys.clone(),
            numa_nodes: nodes.iter().map(node).collect(),
            caches: (0..).zip(&caches.keys).map(cache).collect(),
            kinds: std::iter::once(standard).chain(self.kinds.iter().map(kind)).collect(),
            pcie_roots: self.pcie_roots.iter().map(|(name, cpus)| pcie_root(name, cpus)).collect(),
            reserved: self.reserved.words().to_vec(),
            isolated: self.isolated.words().to_vec(),
            groups: groups.iter().map(|(device, cpus)| group(device, cpus)).collect(),
            extra: Vec::new(),
            cpus,
        }
    }
}

fn pcie_root(name: &str, cpus: &CpuSet) -> records::PcieRoot {
    records::PcieRoot { name: name.to_owned(), cpus: cpus.words().to_vec() }
}

fn group(device: &str, cpus: &CpuSet) -> records::Group {
    records::Group { device: device.to_owned(), kind: "machine".to_owned(), cpus: cpus.words().to_vec() }
}

fn index(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Dense numbers for keys, by the first row that has each.
struct Numbering<K, F> {
    keys: Vec<K>,
    key_of: F,
}

impl<K: PartialEq, F: Fn(&CpuRow) -> Option<K>> Numbering<K, F> {
    fn of(rows: &[CpuRow], key_of: F) -> Self {
        let mut keys = Vec::new();
        for key in rows.iter().filter_map(&key_of) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Self { keys, key_of }
    }

    fn position(&self, row: &CpuRow) -> Option<u32> {
        let key = (self.key_of)(row)?;
        self.keys.iter().position(|known| *known == key).map(index)
    }
}

/// A small source of numbers that look random and are the same every time (xorshift64*).
#[derive(Debug, Clone)]
pub struct Draw(pub u64);

impl Draw {
    /// A number below the limit; 0 when the limit is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.max(0x9e37_79b9_7f4a_7c15 & !self.0);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        u32::try_from(high % u64::from(limit.max(1))).unwrap_or_default()
    }

    /// Some of the CPUs of a set, each with a chance of one in `of`.
    pub fn some(&mut self, cpus: &CpuSet, of: u32) -> CpuSet {
        cpus.iter().filter(|_| self.below(of) == 0).collect()
    }
}

/// Opens a strategy with options as JSON text, as the host does.
///
/// # Errors
/// The strategy's denial; an invalid one for options that do not parse.
pub fn open<S: Strategy>(machine: Machine, options: &str) -> Result<(S, Vec<Offer>), Denial> {
    S::open(machine, convert::options(options)?)
}

/// A request for `count` CPUs of the first group, with options as JSON text.
///
/// # Errors
/// Invalid, for options that do not parse.
pub fn request<S: Strategy>(count: u32, options: &str) -> Result<Request<S::Options>, Denial> {
    Ok(Request {
        name: "r".to_owned(),
        group: 0,
        count,
        cpuset: None,
        options: convert::options(options)?,
        pcie_roots: Vec::new(),
    })
}

/// Everything in the machine is free.
#[must_use]
pub fn all_free(machine: &Machine) -> State {
    State { free: machine.online().difference(&machine.reserved), others: Vec::new() }
}

/// Checks a decision by the host's rules: one grant per request, exact size, free, in the group, disjoint.
///
/// # Errors
/// The first rule that the decision breaks, as a sentence.
pub fn check_decision<O>(
    machine: &Machine,
    requests: &[Request<O>],
    now: &State,
    decision: &Decision,
) -> Result<(), String> {
    if decision.grants.len() != requests.len() {
        return Err(format!("{} grants for {} requests", decision.grants.len(), requests.len()));
    }
    let mut free = now.free.clone();
    for (request, grant) in requests.iter().zip(&decision.grants) {
        let group = machine.group(request.group).map_err(|denial| denial.message)?;
        let name = &request.name;
        if u32::try_from(grant.cpus.len()) != Ok(request.count) {
            return Err(format!(
                "{name}: {} CPUs ({}) for {} asked",
                grant.cpus.len(),
                grant.cpus,
                request.count
            ));
        }
        if !grant.cpus.is_subset(&group.cpus) {
            return Err(format!("{name}: CPUs {} are not in the group", grant.cpus.difference(&group.cpus)));
        }
        for (cpus, what) in [(&grant.cpus, "given"), (&grant.blocked, "blocked")] {
            if !cpus.is_subset(&free) {
                return Err(format!("{name}: CPUs {} are {what} but not free", cpus.difference(&free)));
            }
            free.subtract(cpus);
        }
        if let Some(node) = grant.mems.iter().find(|node| **node >= machine.numa_nodes.len()) {
            return Err(format!("{name}: NUMA node {node} of {}", machine.numa_nodes.len()));
        }
    }
    Ok(())
}

/// Tries a strategy on drawn machines, states and requests: every answer must pass [`check_decision`], and
/// a fresh instance and one that has answered before must agree.
///
/// # Errors
/// What is wrong, with the seed that shows it.
pub fn check_strategy<S: Strategy>(seeds: std::ops::Range<u64>, options: &[&str]) -> Result<(), String>
where
    S::Options: Clone,
{
    for seed in seeds {
        let machine = MachineSpec::drawn(seed).build();
        let mut draw = Draw(!seed);
        for options in options {
            let node = "{}";
            let (Ok((used, offers)), Ok((fresh, _))) =
                (open::<S>(machine.clone(), node), open::<S>(machine.clone(), node))
            else {
                continue;
            };
            check_offers(&machine, &offers).map_err(|fault| format!("seed {seed}: {fault}"))?;
            for state in [
                all_free(&machine),
                State { free: draw.some(&all_free(&machine).free, 2), others: Vec::new() },
            ] {
                let mut requests = Vec::new();
                for group in [0, draw.below(2)] {
                    let mut request =
                        request::<S>(draw.below(9), options).map_err(|denial| denial.message)?;
                    request.group = convert::position(group);
                    request.cpuset = Some(draw.some(&state.free, 3));
                    request.pcie_roots =
                        (0..machine.pcie_roots.len()).filter(|_| draw.below(2) == 0).collect();
                    requests.push(request);
                }
                let fault = |text: String| format!("seed {seed}, options {options}: {text}");
                let answer = used.allocate(&requests, &state);
                if let Ok(decision) = &answer {
                    check_decision(&machine, &requests, &state, decision).map_err(fault)?;
                }
                if used.allocate(&requests, &state) != answer || fresh.allocate(&requests, &state) != answer {
                    return Err(fault("asked again, it answers differently".to_owned()));
                }
            }
        }
    }
    Ok(())
}

fn check_offers(machine: &Machine, offers: &[Offer]) -> Result<(), String> {
    if offers.len() != machine.groups.len() {
        return Err(format!("{} offers for {} groups", offers.len(), machine.groups.len()));
    }
    for (offer, group) in offers.iter().zip(&machine.groups) {
        if convert::position(offer.capacity) > group.cpus.len() || offer.step == 0 {
            return Err(format!("{offer:?} for the {} CPUs of {}", group.cpus.len(), group.device));
        }
    }
    Ok(())
}
