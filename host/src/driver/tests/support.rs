//! A driver among scripted stand-ins, with real files.

use super::super::locks::lock;
use super::super::{
    AllocationResult, Api, ApiError, Claim, ClaimRef, ClaimStatus, Container, Decide, Driver, DriverParts,
    Pod, PrepareError, Prepared, StartError, Strategies, StrategyInfo, Undecided, Update,
};
use crate::cdi::{Access, NoProbe, Probe, SpecDir};
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, ConfigFlags, DeviceMode, GroupBy};
use crate::device::{Group, Offer, fixtures};
use crate::metadata::MetadataFiles;
use crate::strategy::{Decision, Grant, Request, State};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use futures::future::{BoxFuture, ready};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

pub(super) const DEVICE: &str = "cpudevnuma000";

pub(super) fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// The API server: claims, pods, and what it was asked.
#[derive(Default)]
pub(super) struct FakeApi {
    pub(super) claims: Mutex<BTreeMap<String, Claim>>,
    pub(super) pods: Mutex<BTreeMap<String, Vec<String>>>,
    pub(super) down: Mutex<bool>,
    pub(super) asked: Mutex<usize>,
    /// PCIe roots of other drivers' devices, by device.
    pub(super) roots: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Statuses that were sent while it was up.
    pub(super) statuses: watch::Sender<Vec<ClaimStatus>>,
    /// What it says to them; none = they are written.
    pub(super) refuses_status: Mutex<Option<ApiError>>,
}

impl FakeApi {
    fn ask<T>(&self, answer: impl FnOnce() -> Result<T, ApiError>) -> BoxFuture<'_, Result<T, ApiError>>
    where
        T: Send + 'static,
    {
        *lock(&self.asked) += 1;
        let down = *lock(&self.down);
        Box::pin(ready(if down { Err(ApiError::Unreachable("refused".into())) } else { answer() }))
    }
}

impl Api for FakeApi {
    fn claim<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Claim, ApiError>> {
        self.ask(|| lock(&self.claims).get(name).cloned().ok_or(ApiError::NotFound))
    }

    fn claims_of_pod<'a>(
        &'a self,
        _: &'a str,
        pod: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Claim>, ApiError>> {
        self.ask(|| {
            let names = lock(&self.pods).get(pod).cloned().ok_or(ApiError::NotFound)?;
            Ok(names.iter().filter_map(|name| lock(&self.claims).get(name).cloned()).collect())
        })
    }

    fn pcie_roots<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        device: &'a str,
    ) -> BoxFuture<'a, Result<BTreeSet<String>, ApiError>> {
        self.ask(|| Ok(lock(&self.roots).get(device).cloned().unwrap_or_default()))
    }

    fn write_status<'a>(&'a self, status: &'a ClaimStatus) -> BoxFuture<'a, Result<(), ApiError>> {
        let refusal = lock(&self.refuses_status).clone();
        self.ask(|| {
            self.statuses.send_modify(|statuses| statuses.push(status.clone()));
            refusal.map_or(Ok(()), Err)
        })
    }
}

type Script = Box<dyn Fn(&[Request]) + Send + Sync>;

/// A strategy that gives the lowest free CPUs, after what the test wants to happen.
#[derive(Clone)]
pub(super) struct Lowest {
    pub(super) before: Arc<Mutex<Option<Script>>>,
    pub(super) broken: Arc<Mutex<bool>>,
}

struct Open {
    lowest: Lowest,
    groups: Vec<CpuSet>,
    offers: Vec<Offer>,
}

impl Strategies for Lowest {
    fn open(
        &self,
        name: &str,
        _: &Topology,
        _: &CpuSet,
        groups: &[Group],
        _: &Map<String, Value>,
    ) -> Result<Box<dyn Decide>, String> {
        if *lock(&self.broken) {
            return Err(format!("strategy {name}: the file is missing"));
        }
        let offer = |group: &Group| Offer {
            capacity: u32::try_from(group.cpus.len()).unwrap(),
            step: 1,
            attributes: Vec::new(),
        };
        Ok(Box::new(Open {
            lowest: self.clone(),
            groups: groups.iter().map(|group| group.cpus.clone()).collect(),
            offers: groups.iter().map(offer).collect(),
        }))
    }
}

impl Decide for Open {
    fn info(&self) -> StrategyInfo {
        StrategyInfo {
            name: "packed".into(),
            version: "1.0.0".into(),
            digest: "sha256:00".into(),
            publishes: Vec::new(),
        }
    }

    fn offers(&self) -> &[Offer] {
        &self.offers
    }

    fn decide(&mut self, requests: &[Request], state: &State) -> Result<Decision, Undecided> {
        if let Some(script) = &*lock(&self.lowest.before) {
            script(requests);
        }
        let mut free = state.free.clone();
        let mut grants = Vec::new();
        for request in requests {
            let group = &self.groups[request.group];
            let own: CpuSet = free.intersection(group).iter().take(request.count as usize).collect();
            if own.len() < request.count as usize {
                return Err(Undecided {
                    strategy: "packed".into(),
                    kind: "denied",
                    for_lack_of_cpus: true,
                    message: "not enough".into(),
                });
            }
            free.subtract(&own);
            grants.push(Grant { cpus: own, blocked: CpuSet::new(), mems: Vec::new() });
        }
        Ok(Decision { grants, join_shared_pool: false, why: String::new() })
    }
}

/// A disk that is full for some kinds of access.
#[derive(Default)]
pub(super) struct Disk(Mutex<Vec<Access>>);

impl Disk {
    pub(super) fn fail_at(&self, accesses: &[Access]) {
        *lock(&self.0) = accesses.to_vec();
    }
}

impl Probe for Disk {
    fn before(&self, access: Access) -> io::Result<()> {
        if lock(&self.0).contains(&access) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// What outlives a driver.
pub(super) struct Home {
    root: tempfile::TempDir,
    pub(super) api: Arc<FakeApi>,
    pub(super) strategy: Lowest,
    pub(super) probe: Arc<dyn Probe>,
    pub(super) config: Config,
    pub(super) topology: Topology,
    pub(super) boot_id: String,
    pub(super) containers_within: Option<Duration>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Home {
    /// 8 CPUs on one NUMA node, no siblings.
    pub(super) fn new() -> Self {
        let mut config = ConfigFlags::default().load().unwrap();
        config.node_name = "n".into();
        config.mode = DeviceMode::Grouped(GroupBy::NumaNode);
        Self {
            root: tempfile::tempdir().unwrap(),
            api: Arc::default(),
            strategy: Lowest { before: Arc::default(), broken: Arc::default() },
            probe: Arc::new(NoProbe),
            config,
            topology: fixtures::machine(&fixtures::rows(1, 8, 1)),
            boot_id: "boot-1".into(),
            containers_within: None,
            clock: Arc::new(SystemClock),
        }
    }

    /// One whose disk can be made to fail.
    pub(super) fn with_disk() -> (Self, Arc<Disk>) {
        let disk = Arc::new(Disk::default());
        let home = Self { probe: disk.clone(), ..Self::new() };
        (home, disk)
    }

    pub(super) fn cdi_dir(&self) -> PathBuf {
        self.root.path().join("cdi")
    }

    pub(super) fn metadata_dir(&self) -> PathBuf {
        self.root.path().join("metadata")
    }

    /// The claims with a file about their devices and a spec that mounts it: UIDs, which are names here too.
    pub(super) fn with_metadata(&self) -> Vec<String> {
        let names = |directory: PathBuf| -> BTreeSet<String> {
            let entries = std::fs::read_dir(directory).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let specs = names(self.cdi_dir()).into_iter().filter_map(|name| {
            let device = name.strip_prefix("dra.cpu_metadata_")?.strip_suffix("_r.json")?;
            Some(device.to_owned())
        });
        let specs: Vec<String> = specs.collect();
        let files: Vec<String> = names(self.metadata_dir())
            .into_iter()
            .inspect(|name| {
                assert!(self.metadata_dir().join(name).join("r/metadata.json").is_file(), "{name}")
            })
            .map(|name| name.trim_start_matches("ns_").to_owned())
            .collect();
        assert_eq!(specs, files);
        specs
    }

    pub(super) fn spec(&self, uid: &str) -> PathBuf {
        self.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{uid}.json"))
    }

    pub(super) fn start(&self) -> Arc<Driver> {
        self.try_start().unwrap()
    }

    pub(super) fn try_start(&self) -> Result<Arc<Driver>, StartError> {
        let parts = DriverParts {
            config: self.config.clone(),
            topology: self.topology.clone(),
            strategies: Arc::new(self.strategy.clone()),
            api: self.api.clone(),
            specs: SpecDir::new(self.cdi_dir(), self.probe.clone()),
            metadata: MetadataFiles::new(self.metadata_dir(), self.cdi_dir(), self.probe.clone()),
            probe: self.probe.clone(),
            boot_id: self.boot_id.clone(),
            clock: self.clock.clone(),
            containers_within: self.containers_within,
        };
        Driver::start(parts)
    }

    /// The object of a claim for CPUs of a device.
    pub(super) fn allocate(&self, uid: &str, results: &[(&str, &str)]) -> ClaimRef {
        let id = reference(uid);
        let result = |(device, cpus): &(&str, &str)| AllocationResult {
            request: "r".into(),
            driver: crate::DRIVER_NAME.into(),
            pool: "n".into(),
            device: (*device).into(),
            share_id: None,
            admin_access: false,
            consumed_cpus: Some((*cpus).into()).filter(|cpus: &String| !cpus.is_empty()),
        };
        let results = Some(results.iter().map(result).collect());
        let claim = Claim {
            id: id.clone(),
            results,
            config: Vec::new(),
            pcie_root_matches: Vec::new(),
            pod_claim_name: None,
            reserved_for: Vec::new(),
        };
        lock(&self.api.claims).insert(uid.into(), claim);
        id
    }

    /// Allocates and prepares.
    pub(super) async fn prepare(
        &self,
        driver: &Arc<Driver>,
        uid: &str,
        count: &str,
    ) -> Result<Prepared, PrepareError> {
        prepare(driver, self.allocate(uid, &[(DEVICE, count)])).await
    }
}

pub(super) async fn prepare(driver: &Arc<Driver>, claim: ClaimRef) -> Result<Prepared, PrepareError> {
    driver.prepare(vec![claim]).await.remove(0).1
}

pub(super) async fn unprepare(driver: &Arc<Driver>, uid: &str) {
    driver.unprepare(vec![reference(uid)]).await.remove(0).1.unwrap();
}

pub(super) fn reference(uid: &str) -> ClaimRef {
    ClaimRef { uid: uid.into(), namespace: "ns".into(), name: uid.into() }
}

pub(super) fn held(driver: &Driver) -> Vec<(String, String)> {
    driver.status().claims.into_iter().map(|(uid, cpus)| (uid, cpus.to_string())).collect()
}

pub(super) fn holds(uid: &str, cpus: &str) -> (String, String) {
    (uid.into(), cpus.into())
}

pub(super) fn container(id: &str, pod: &str, env: &[&str], mask: &str) -> Container {
    Container {
        id: id.into(),
        name: format!("name-{id}"),
        pod: Pod { uid: format!("uid-{pod}"), namespace: "ns".into(), name: pod.into(), quota: None },
        env: env.iter().map(|&variable| variable.into()).collect(),
        cdi_devices: Vec::new(),
        cpus: Some(cpus(mask)).filter(|cpus| !cpus.is_empty()),
        quota: None,
        started: None,
    }
}

pub(super) fn update(id: &str, mask: &str) -> Update {
    Update { container_id: id.into(), cpus: cpus(mask) }
}
