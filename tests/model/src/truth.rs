//! The node as it must be, from the story alone: what was asked and answered, not what the driver says of itself.
//!
//! Claims and the containers that the driver can know of are modelled as the contract says; where the contract
//! leaves a choice (which CPUs, say), the answer is taken down and held against the driver from then on.

use crate::event::{Damage, NewClaim, NewContainer};
use crate::machine::{Kind, Machine, Numbers};
use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Driver name of the allocation results that count.
pub const DRIVER: &str = "dra.cpu";

/// What a claim has.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Hold {
    /// Nothing.
    #[default]
    Nothing,
    /// Nothing, but a file that nobody can read is left of what it had.
    Unreadable,
    /// CPUs that were booked and never answered, since neither could the record be written nor taken back.
    Stuck(CpuSet),
    /// CPUs that were answered.
    Held(Held),
}

/// What an answered claim has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    /// The CPUs of its container.
    pub cpus: CpuSet,
    /// CPUs that nobody may use.
    pub blocked: CpuSet,
    /// The requests of its results, and how many CPUs each result has.
    pub counts: Vec<(String, u64)>,
    /// Its container runs on the shared pool, too.
    pub mixed: bool,
    /// Only its CPUs are known: its record was damaged.
    pub plain: bool,
    /// What has become of the file since it was written.
    pub damage: Option<Damage>,
    /// An unprepare that failed may have removed what its containers mount.
    pub incomplete: bool,
    /// The devices it was asked of do not count what it holds: the scheduler would not have allocated it, or the
    /// node offers something else by now.
    pub unscheduled: bool,
}

/// A claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Claim {
    /// Its object in the API; none when it is gone.
    pub object: Option<NewClaim>,
    /// What it was last asked with, also when the object is gone.
    pub last: NewClaim,
    /// What it has.
    pub hold: Hold,
    /// The container that it belongs to.
    pub owner: Option<Owner>,
}

/// A container that has a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Pod.
    pub pod: String,
    /// Name.
    pub name: String,
    /// Which of that name.
    pub instance: u64,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Container {
    /// Its pod.
    pub pod: String,
    /// Which of its name.
    pub instance: u64,
    /// Its variables, those of its claims' devices too.
    pub env: Vec<String>,
    /// Claims whose devices it was given.
    pub given: BTreeSet<String>,
    /// Where it runs.
    pub mask: Option<CpuSet>,
    /// It has run, and runs no more.
    pub ended: bool,
    /// What the driver can know of it.
    pub known: Option<Known>,
}

/// What a driver that heard of a container must make of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    /// Claims that are its own.
    pub claims: BTreeSet<String>,
    /// What it says of claims that have no record, and nobody has settled yet.
    pub unproven: BTreeMap<String, CpuSet>,
    /// It has ended.
    pub stopped: bool,
    /// It has been started.
    pub started: bool,
}

/// The node as it must be.
#[derive(Debug, Clone)]
pub struct Truth {
    /// The machine.
    pub machine: Machine,
    /// Keys of the configuration.
    pub config: Map<String, Value>,
    /// CPUs that are offline by now.
    pub offline: CpuSet,
    /// What devices with running numbers are called.
    pub numbers: Numbers,
    /// The runtime's NRI version.
    pub nri: (u32, u32, u32),
    /// The runtime injects a device's variables as containerd does: from NRI 0.12 on in the place of the pod's own of
    /// the same name. Else behind them.
    pub injects_as_containerd: bool,
    /// The driver writes files of claims again that were lost, also when nobody asks for the claims.
    pub looks_after_files: bool,
    /// Specs cannot be written.
    pub write_fails: bool,
    /// Specs cannot be removed.
    pub remove_fails: bool,
    /// The API server does not answer.
    pub api_down: bool,
    /// By UID.
    pub claims: BTreeMap<String, Claim>,
    /// Claims that the pods' objects name.
    pub pods: BTreeMap<String, BTreeSet<String>>,
    /// By name.
    pub containers: BTreeMap<String, Container>,
    /// Instances that the driver takes for alive though the runtime has them no more.
    pub ghosts: BTreeSet<u64>,
    /// The driver has seen the runtime name a device of ours.
    pub devices_told: bool,
    /// Every mask must be in place by now; else the next hook brings them.
    pub settled: bool,
    instances: u64,
}

/// What a container says of its claims.
pub type Says = Vec<(String, CpuSet)>;

impl Truth {
    /// A node on which nothing has happened.
    #[must_use]
    pub fn new(machine: Machine, config: Map<String, Value>) -> Self {
        let mut truth = Self {
            machine,
            config,
            offline: CpuSet::new(),
            numbers: Numbers::default(),
            nri: (0, 12, 1),
            injects_as_containerd: false,
            looks_after_files: false,
            write_fails: false,
            remove_fails: false,
            api_down: false,
            claims: BTreeMap::new(),
            pods: BTreeMap::new(),
            containers: BTreeMap::new(),
            ghosts: BTreeSet::new(),
            devices_told: false,
            settled: true,
            instances: 0,
        };
        truth.number_anew();
        truth
    }

    // ---- the node

    /// CPUs that run.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.machine.cpus.difference(&self.offline)
    }

    /// CPUs that are never given out.
    #[must_use]
    pub fn reserved(&self) -> CpuSet {
        self.text("reservedCPUs").parse().unwrap_or_default()
    }

    /// CPUs that a claim can have.
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        self.online().difference(&self.reserved())
    }

    /// What claims must leave to the others.
    #[must_use]
    pub fn floor(&self) -> usize {
        let floor = self.config.get("minSharedCPUs").and_then(Value::as_u64).unwrap_or(1);
        usize::try_from(floor).unwrap()
    }

    /// What a device stands for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match (self.text("cpuDeviceMode"), self.text("groupBy")) {
            ("individual", _) => Kind::Cpu,
            (_, "socket") => Kind::Socket,
            (_, "llc") => Kind::Cache,
            (_, "machine") => Kind::Machine,
            _ => Kind::Numa,
        }
    }

    /// The scheduler chooses the CPUs.
    #[must_use]
    pub fn is_individual(&self) -> bool {
        self.kind() == Kind::Cpu
    }

    /// A driver has started: devices are numbered from the first one on.
    pub fn number_anew(&mut self) {
        self.numbers = self.machine.numbers(self.kind(), &self.online(), &self.reserved());
    }

    /// Other CPUs are online.
    pub fn number_new(&mut self) {
        let (kind, online, reserved) = (self.kind(), self.online(), self.reserved());
        self.machine.number_new(kind, &online, &reserved, &mut self.numbers);
    }

    /// Devices by name, with the CPUs that a claim can have of them.
    #[must_use]
    pub fn devices(&self) -> BTreeMap<String, CpuSet> {
        let mut devices = self.machine.devices(self.kind(), &self.numbers);
        devices.values_mut().for_each(|cpus| *cpus = cpus.intersection(&self.allocatable()));
        devices
    }

    /// A key of the configuration, as text.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.config.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// Nothing but the packed strategy as it is when nobody says anything.
    #[must_use]
    pub fn is_plain_packed(&self) -> bool {
        ["", "cpumanager", "packed"].contains(&self.text("allocator")) && !self.has_options()
    }

    /// The node's strategy is told something.
    #[must_use]
    pub fn has_options(&self) -> bool {
        let options = self.config.get("strategyOptions").and_then(Value::as_object);
        options.is_some_and(|options| !options.is_empty())
    }

    /// Masks can be given without a hook.
    #[must_use]
    pub fn bears_pushes(&self) -> bool {
        self.nri >= (0, 12, 1)
    }

    /// The runtime names CDI devices in hooks.
    #[must_use]
    pub fn names_devices(&self) -> bool {
        self.nri >= (0, 12, 0)
    }

    // ---- who has what

    /// What each claim keeps from all others.
    #[must_use]
    pub fn booked_by(&self) -> BTreeMap<&str, CpuSet> {
        let booked = |claim: &Claim| match &claim.hold {
            Hold::Held(held) => Some(held.cpus.union(&held.blocked)),
            Hold::Stuck(cpus) => Some(cpus.clone()),
            Hold::Nothing | Hold::Unreadable => None,
        };
        self.claims.iter().filter_map(|(uid, claim)| Some((uid.as_str(), booked(claim)?))).collect()
    }

    /// The CPUs of each claim that has any.
    #[must_use]
    pub fn held(&self) -> BTreeMap<String, CpuSet> {
        let held = |claim: &Claim| claim.cpus().cloned();
        self.claims.iter().filter_map(|(uid, claim)| Some((uid.clone(), held(claim)?))).collect()
    }

    /// What all claims keep from all others.
    #[must_use]
    pub fn booked(&self) -> CpuSet {
        union(self.booked_by().values())
    }

    /// CPUs that containers say they have of claims without a record.
    #[must_use]
    pub fn unproven(&self) -> CpuSet {
        union(
            self.containers
                .values()
                .filter_map(|container| container.known.as_ref())
                .flat_map(|known| known.unproven.values()),
        )
        .difference(&self.booked())
    }

    /// The CPUs of containers without a claim.
    #[must_use]
    pub fn shared(&self) -> CpuSet {
        self.allocatable().difference(&self.machine.isolated).difference(&self.booked())
    }

    /// Where a container must run. None: it is left alone.
    #[must_use]
    pub fn mask_of(&self, known: &Known) -> Option<CpuSet> {
        if !known.unproven.is_empty() {
            return None;
        }
        let mask = self.mask_with(&known.claims);
        (!mask.is_empty()).then_some(mask)
    }

    /// Where a container with these claims must run, as far as anything is online.
    #[must_use]
    pub fn mask_with(&self, claims: &BTreeSet<String>) -> CpuSet {
        if claims.is_empty() {
            return self.shared();
        }
        let claims: Vec<&Claim> = claims.iter().filter_map(|uid| self.claims.get(uid)).collect();
        let mut mask = union(claims.iter().filter_map(|claim| claim.cpus())).intersection(&self.online());
        if claims.iter().any(|claim| matches!(&claim.hold, Hold::Held(held) if held.mixed)) {
            mask.extend_from(&self.shared());
        }
        mask
    }

    // ---- containers, as the runtime makes them

    /// A container with the variables of its claims' devices, as the files say them. None: a device cannot be
    /// resolved.
    pub fn made(&mut self, new: &NewContainer, files: &BTreeMap<String, String>) -> Option<Container> {
        self.instances += 1;
        self.pods.entry(new.pod.clone()).or_default().extend(new.claims.iter().cloned());
        let mut env = new.env.clone();
        let replaces = self.injects_as_containerd && self.names_devices();
        for uid in &new.claims {
            for variable in variables(files, uid)? {
                let name = variable.split_inclusive('=').next().unwrap_or_default();
                let same = new.env.iter().rposition(|own| replaces && own.starts_with(name));
                match same {
                    Some(at) => env[at] = variable,
                    None => env.push(variable),
                }
            }
        }
        let given = new.claims.iter().cloned().collect();
        Some(Container { pod: new.pod.clone(), instance: self.instances, env, given, ..Container::default() })
    }

    /// Claims whose devices the runtime names of a container.
    #[must_use]
    pub fn named(&self, container: &Container) -> BTreeSet<String> {
        if self.names_devices() { container.given.clone() } else { BTreeSet::new() }
    }

    /// What a container says, if it can be listened to.
    #[must_use]
    pub fn says(&self, container: &Container) -> Option<Says> {
        let named = self.named(container);
        let told = !named.is_empty() || self.devices_told;
        let mut says = Vec::new();
        for variable in container.env.iter().filter_map(|variable| variable.strip_prefix("DRA_CPUSET_")) {
            let (uid, list) = variable.split_once('=')?;
            let cpus: CpuSet = list.parse().ok()?;
            if uid.is_empty() || cpus.is_empty() || (told && !named.contains(uid)) {
                return None;
            }
            says.push((uid.to_owned(), cpus));
        }
        Some(says)
    }

    /// Whether a claim may go to a container: not while another one has it.
    #[must_use]
    pub fn may_have(&self, claim: &Claim, pod: &str, name: &str) -> bool {
        claim.owner.as_ref().is_none_or(|owner| {
            owner.pod == pod && (owner.name == name || !self.driver_sees_alive(owner.instance))
        })
    }

    /// As far as the driver can know.
    #[must_use]
    pub fn driver_sees_alive(&self, instance: u64) -> bool {
        let known = |container: &&Container| container.instance == instance;
        let found = self.containers.values().find(known).and_then(|container| container.known.as_ref());
        self.ghosts.contains(&instance) || found.is_some_and(|known| !known.stopped)
    }

    /// A container that runs already becomes known.
    pub fn admit(&mut self, name: &str, started: bool) {
        let Some(container) = self.containers.get(name).cloned() else { return };
        self.devices_told |= !self.named(&container).is_empty();
        let mut known = Known { started, ..Known::default() };
        let says = self.says(&container).unwrap_or_default();
        for (uid, cpus) in says.clone() {
            let claim = self.claims.get(&uid);
            match claim.and_then(Claim::cpus) {
                None if says.iter().any(|(other, others)| *other == uid && *others != cpus) => {}
                None => drop(known.unproven.insert(uid, cpus)),
                Some(held) if *held != cpus => {}
                Some(_) if claim.is_some_and(|claim| self.may_have(claim, &container.pod, name)) => {
                    known.claims.insert(uid);
                }
                Some(_) => {}
            }
        }
        self.own(name, &container, &known.claims);
        self.containers.get_mut(name).unwrap().known = Some(known);
    }

    /// A container's claims are its own.
    pub fn own(&mut self, name: &str, container: &Container, claims: &BTreeSet<String>) {
        for uid in claims {
            let owner =
                Owner { pod: container.pod.clone(), name: name.to_owned(), instance: container.instance };
            self.claims.get_mut(uid).unwrap().owner = Some(owner);
        }
    }

    /// The container is there. One of the same name, in the driver's eyes, may live on.
    pub fn add(&mut self, name: &str, container: Container) {
        if let Some(old) = self.containers.insert(name.to_owned(), container)
            && old.known.is_some_and(|known| !known.stopped)
        {
            self.ghosts.insert(old.instance);
        }
    }

    /// The runtime says what exists.
    pub fn synchronize(&mut self, names: &[String]) {
        self.ghosts.clear();
        let named: BTreeSet<u64> = names.iter().map(|name| self.containers[name].instance).collect();
        let owners: BTreeSet<u64> = self
            .claims
            .values()
            .filter_map(|claim| claim.owner.as_ref())
            .map(|owner| owner.instance)
            .collect();
        self.devices_told |= names.iter().any(|name| !self.named(&self.containers[name]).is_empty());
        let mut started = BTreeMap::new();
        for container in self.containers.values_mut() {
            let known = container.known.take();
            started.insert(container.instance, known.is_none_or(|known| known.started));
        }
        let mut order = names.to_vec();
        // Owners, then those that run where they say.
        order.sort_by_key(|name| {
            let container = &self.containers[name];
            let says = self.says(container).unwrap_or_default();
            let there = container.mask == Some(union(says.iter().map(|(_, cpus)| cpus)));
            (!owners.contains(&container.instance), !there)
        });
        for name in order {
            let started = started[&self.containers[&name].instance];
            self.admit(&name, started);
        }
        debug_assert!(self.containers.values().all(|c| c.known.is_some() == named.contains(&c.instance)));
    }

    /// A claim holds nothing any more.
    pub fn free(&mut self, uid: &str) {
        if let Some(claim) = self.claims.get_mut(uid) {
            (claim.hold, claim.owner) = (Hold::Nothing, None);
        }
        for known in self.containers.values_mut().filter_map(|container| container.known.as_mut()) {
            known.claims.remove(uid);
            known.unproven.remove(uid);
        }
    }

    /// The driver has forgotten all that is not on disk.
    pub fn restarted(&mut self, files: &BTreeMap<String, String>) {
        for (uid, claim) in &mut self.claims {
            claim.owner = None;
            match &mut claim.hold {
                Hold::Stuck(_) => claim.hold = Hold::Nothing,
                Hold::Held(held) if held.damage.is_some() => {
                    // What is left of the file tells the CPUs, or nothing at all.
                    let variable = format!("\"DRA_CPUSET_{uid}={}\"]", held.cpus);
                    let text = files.get(&file_name(uid));
                    (held.plain, held.mixed, held.blocked) = (true, false, CpuSet::new());
                    match text {
                        Some(text) if text.contains(&variable) => {}
                        Some(_) => claim.hold = Hold::Unreadable,
                        None => claim.hold = Hold::Nothing,
                    }
                }
                _ => {}
            }
        }
        self.containers.values_mut().for_each(|container| container.known = None);
        self.ghosts.clear();
        self.devices_told = false;
        self.settled = true;
        self.number_anew();
    }

    /// No container runs that could have a claim's CPUs: a claim keeps them if its devices still have them to give.
    pub fn records_of_another_boot(&mut self, files: &BTreeMap<String, String>) {
        let (devices, allocatable) = (self.devices(), self.allocatable());
        for (uid, claim) in &mut self.claims {
            let Hold::Held(held) = &claim.hold else { continue };
            if held.plain {
                continue;
            }
            let has = |result: &Value| {
                let device = devices.get(result["device"].as_str().unwrap_or_default());
                device.is_some_and(|device| cpus_of(result, "cpus").is_subset(device))
            };
            let record = files.get(&file_name(uid)).and_then(|text| record_of(text)).unwrap_or_default();
            let mut results = record["results"].as_array().into_iter().flatten();
            if !held.cpus.union(&held.blocked).is_subset(&allocatable) || !results.all(has) {
                claim.hold = Hold::Nothing;
            }
        }
    }
}

impl Claim {
    /// Its CPUs, if it has any.
    #[must_use]
    pub fn cpus(&self) -> Option<&CpuSet> {
        match &self.hold {
            Hold::Held(held) => Some(&held.cpus),
            Hold::Stuck(cpus) => Some(cpus),
            Hold::Nothing | Hold::Unreadable => None,
        }
    }
}

/// The name of a claim's spec file.
#[must_use]
pub fn file_name(uid: &str) -> String {
    format!("dra.k8s.io-cpu_claim-{uid}.json")
}

/// The record in the text of a claim's spec.
#[must_use]
pub fn record_of(text: &str) -> Option<Value> {
    let spec: Value = serde_json::from_str(text).ok()?;
    serde_json::from_str(spec.pointer("/devices/0/annotations/dra.cpu~1record")?.as_str()?).ok()
}

/// A set of CPUs in one of a record's results.
#[must_use]
pub fn cpus_of(result: &Value, key: &str) -> CpuSet {
    result[key].as_str().and_then(|list| list.parse().ok()).unwrap_or_default()
}

/// The sets of CPUs in all of a record's results.
#[must_use]
pub fn all_cpus_of(record: &Value, key: &str) -> CpuSet {
    let mut all = CpuSet::new();
    let results = record["results"].as_array().into_iter().flatten();
    results.for_each(|result| all.extend_from(&cpus_of(result, key)));
    all
}

/// The variables of a claim's device, as a runtime reads them.
fn variables(files: &BTreeMap<String, String>, uid: &str) -> Option<Vec<String>> {
    let spec: Value = serde_json::from_str(files.get(&file_name(uid))?).ok()?;
    let env = spec.pointer("/devices/0/containerEdits/env")?.as_array()?;
    Some(env.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// All CPUs of some sets.
pub fn union<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> CpuSet {
    let mut all = CpuSet::new();
    sets.into_iter().for_each(|set| all.extend_from(set));
    all
}
