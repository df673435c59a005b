use super::api::Api;
use super::decide::{Decide, Strategies, StrategyInfo};
use super::view::{self, Names, View};
use crate::cdi::{Content, Found, Probe, Record, SpecDir};
use crate::config::{Config, DeviceMode, MinSharedCpus};
use crate::device::{Device, Group, Published};
use crate::logging;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, Ledger, Node};
use dracpu_topology::Topology;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// The least that claims must leave to the shared pool. A build with debug assertions breaks the rule when
/// `DRACPU_NO_FLOOR` is set: the test that does so sees the daemon and `dracpu simulate` break it alike.
fn floor(config: &Config) -> u32 {
    if cfg!(debug_assertions) && std::env::var_os("DRACPU_NO_FLOOR").is_some() {
        return 0;
    }
    match config.min_shared_cpus {
        MinSharedCpus::Default => 1,
        MinSharedCpus::Explicit(floor) => floor,
    }
}

/// What a driver is made of: the daemon's own parts, or stand-ins.
pub struct DriverParts {
    /// The configuration.
    pub config: Config,
    /// The machine.
    pub topology: Topology,
    /// The strategies that can be asked for.
    pub strategies: Arc<dyn Strategies>,
    /// The API server.
    pub api: Arc<dyn Api>,
    /// The directory of CDI specs.
    pub specs: SpecDir,
    /// Where tests can look or break in.
    pub probe: Arc<dyn Probe>,
    /// Changes with every boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
}

/// Why a driver cannot start. What single records hold is never a reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// What has been given out before cannot be known.
    #[error("CDI directory {} cannot be listed: which CPUs were given out is not known", path.display())]
    Records {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Containers without a claim would all be refused.
    #[error(transparent)]
    NothingShared(#[from] NothingShared),
}

/// Too few CPUs are left for containers without a claim, even while nobody has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "of the CPUs {online}, {} are left for containers without a claim, and {floor} must be: {}; change reservedCPUs \
     or minSharedCPUs",
    shared.len(),
    gone(reserved, isolated)
)]
pub struct NothingShared {
    online: CpuSet,
    reserved: CpuSet,
    isolated: CpuSet,
    shared: CpuSet,
    floor: u32,
}

fn gone(reserved: &CpuSet, isolated: &CpuSet) -> String {
    let sets = [("reserved", reserved), ("isolated by the kernel", isolated)];
    let named = sets.iter().filter(|(_, cpus)| !cpus.is_empty()).map(|(what, cpus)| format!("{cpus} {what}"));
    let named: Vec<String> = named.collect();
    if named.is_empty() { "none is reserved".to_owned() } else { named.join(" and ") }
}

/// The least that claims must leave to the shared pool, once containers without a claim have a place while nobody has
/// a claim.
fn floor_of(topology: &Topology, config: &Config) -> Result<u32, NothingShared> {
    let Node { online, reserved, isolated } = node(topology, config);
    let shared = online.difference(&reserved).difference(&isolated);
    let floor = floor(config);
    if u32::try_from(shared.len()).is_ok_and(|shared| shared < floor) {
        return Err(NothingShared { online, reserved, isolated, shared, floor });
    }
    Ok(floor)
}

/// The driver of one node: the only owner of its CPU allocations.
pub struct Driver {
    pub(super) config: Config,
    pub(super) strategies: Arc<dyn Strategies>,
    pub(super) api: Arc<dyn Api>,
    pub(super) specs: SpecDir,
    pub(super) probe: Arc<dyn Probe>,
    pub(super) boot_id: String,
    /// Taken in blocking tasks only, before the ledger's.
    allocation: Mutex<Allocation>,
    /// Never held across anything that waits.
    ledger: Mutex<Ledger>,
    pub(super) orphans: Mutex<BTreeSet<ClaimUid>>,
    pub(super) unreadable: Mutex<Vec<PathBuf>>,
    strategy: Mutex<Result<Option<StrategyInfo>, String>>,
    devices: watch::Sender<Arc<Vec<Device>>>,
    /// A container has a claim without a record.
    pub(super) unproven: Notify,
    /// Masks are due that no hook may bring soon.
    pub(super) masks_due: Notify,
    /// The runtime has named a CDI device of ours before, so it always does.
    pub(super) devices_are_told: AtomicBool,
    /// Claims unprepared while one of their containers seemed alive.
    pub(super) unprepared_in_use: AtomicU64,
}

/// What the allocation lock is for.
pub(super) struct Allocation {
    pub(super) strategy: Chooser,
    pub(super) view: View,
    pub(super) fingerprint: String,
    /// Names, in the topology's order.
    pub(super) pcie_roots: Vec<String>,
}

/// Who chooses CPUs.
pub(super) enum Chooser {
    /// Individual mode.
    Scheduler,
    /// The active strategy.
    Strategy(Box<dyn Decide>),
    /// The active strategy cannot be used: why.
    Broken(String),
}

impl Chooser {
    fn decider(&self) -> Option<&dyn Decide> {
        match self {
            Self::Strategy(strategy) => Some(&**strategy),
            Self::Scheduler | Self::Broken(_) => None,
        }
    }

    fn info(&self) -> Result<Option<StrategyInfo>, String> {
        match self {
            Self::Broken(why) => Err(why.clone()),
            _ => Ok(self.decider().map(Decide::info)),
        }
    }
}

impl Driver {
    /// Starts a driver: opens the active strategy, and takes over what is recorded. Blocking. Call before any
    /// socket is open, so that the first call finds everything in place.
    ///
    /// A strategy that cannot be used does not keep the driver from serving claims that it has served
    /// before; see [`strategy`](Self::strategy).
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(parts: DriverParts) -> Result<Arc<Self>, StartError> {
        let DriverParts { config, topology, strategies, api, specs, probe, boot_id } = parts;
        let floor = usize::try_from(floor_of(&topology, &config)?).unwrap_or(usize::MAX);
        let mut ledger = Ledger::new(node(&topology, &config), floor);
        let allocation = allocation(&*strategies, &config, &topology, None);
        let unreadable = adopt(&specs, &mut ledger, &allocation, &boot_id)?;
        let strategy = Mutex::new(allocation.strategy.info());
        let devices = watch::Sender::new(allocation.view.devices.clone());
        Ok(Arc::new(Self {
            config,
            strategies,
            api,
            specs,
            probe,
            boot_id,
            allocation: Mutex::new(allocation),
            ledger: Mutex::new(ledger),
            orphans: Mutex::default(),
            unreadable: Mutex::new(unreadable),
            strategy,
            devices,
            unproven: Notify::new(),
            masks_due: Notify::new(),
            devices_are_told: AtomicBool::new(false),
            unprepared_in_use: AtomicU64::new(0),
        }))
    }

    /// Other CPUs are online: a new instance of the strategy, new devices; claims keep their CPUs. Blocking.
    /// The new masks are in [`take_pending_updates`](Self::take_pending_updates).
    pub fn machine_changed(&self, topology: &Topology) {
        let mut current = self.allocation();
        let node = node(topology, &self.config);
        *current = allocation(&*self.strategies, &self.config, topology, Some(&current.view));
        let strategy = current.strategy.info();
        if let Err(why) = &strategy {
            tracing::error!(
                "new claims are refused until the machine changes back, or the driver restarts: {why}"
            );
        }
        *lock(&self.strategy) = strategy;
        let mut ledger = self.ledger();
        ledger.replace_node(node);
        self.tell_due(&ledger);
        drop(ledger);
        self.devices.send_replace(current.view.devices.clone());
    }

    /// The devices to publish, as they change.
    #[must_use]
    pub fn devices(&self) -> watch::Receiver<Arc<Vec<Device>>> {
        self.devices.subscribe()
    }

    /// The active strategy; none in individual mode.
    ///
    /// # Errors
    /// Why it cannot be used. New claims are refused meanwhile.
    pub fn strategy(&self) -> Result<Option<StrategyInfo>, String> {
        lock(&self.strategy).clone()
    }

    /// The allocation lock. Blocking: it may be held for as long as a strategy and a file take.
    pub(super) fn allocation(&self) -> MutexGuard<'_, Allocation> {
        lock(&self.allocation)
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}

/// A lock whose holder panicked is taken over: what the holders change is changed in one step, and a driver
/// that refuses every later claim would be worse.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node(topology: &Topology, config: &Config) -> Node {
    Node {
        online: topology.online(),
        reserved: config.reserved_cpus.on(topology),
        isolated: topology.isolated.clone(),
    }
}

/// The devices that a driver with this configuration publishes on this machine; nothing is started. Blocking.
///
/// # Errors
/// Why the driver would not start, or the strategy cannot be used.
pub fn published(
    strategies: &dyn Strategies,
    config: &Config,
    topology: &Topology,
) -> Result<Published, String> {
    floor_of(topology, config).map_err(|error| error.to_string())?;
    let reserved = config.reserved_cpus.on(topology);
    let (groups, _, strategy) = open(strategies, config, topology, &reserved, None);
    strategy.info()?;
    Ok(view::publish(topology, &reserved, config, &groups, strategy.decider()))
}

fn allocation(
    strategies: &dyn Strategies,
    config: &Config,
    topology: &Topology,
    before: Option<&View>,
) -> Allocation {
    let reserved = config.reserved_cpus.on(topology);
    let (groups, names, strategy) = open(strategies, config, topology, &reserved, before);
    let fingerprint = topology.fingerprint();
    let published = view::publish(topology, &reserved, config, &groups, strategy.decider());
    logging::warn_all(&published.warnings);
    let view = View::new(groups, names, published.devices);
    let pcie_roots = topology.pcie_roots.iter().map(|root| root.name.clone()).collect();
    Allocation { strategy, view, fingerprint, pcie_roots }
}

/// The machine's groups, all names, and who chooses CPUs in the groups.
fn open(
    strategies: &dyn Strategies,
    config: &Config,
    topology: &Topology,
    reserved: &CpuSet,
    before: Option<&View>,
) -> (Vec<Group>, Names, Chooser) {
    let (groups, names) = view::groups(topology, reserved, config, before);
    let chooser = match config.mode {
        DeviceMode::Individual => Chooser::Scheduler,
        DeviceMode::Grouped(_) => {
            let options = &config.strategy_options;
            match strategies.open(&config.allocator, topology, reserved, &groups, options) {
                Ok(strategy) => Chooser::Strategy(strategy),
                Err(why) => Chooser::Broken(why),
            }
        }
    };
    (groups, names, chooser)
}

/// Takes over what is recorded. Returns the files of which not even the CPUs are known.
fn adopt(
    specs: &SpecDir,
    ledger: &mut Ledger,
    allocation: &Allocation,
    boot_id: &str,
) -> Result<Vec<PathBuf>, StartError> {
    let records = |source| StartError::Records { path: specs.path().to_owned(), source };
    match specs.sweep() {
        Ok(0) => {}
        Ok(files) => tracing::info!(files, "removed what an interrupted write had left in the CDI directory"),
        Err(error) => tracing::warn!(%error, "cannot remove old temporary files in the CDI directory"),
    }
    let mut unreadable = Vec::new();
    for Found { path, uid, content } in specs.scan().map_err(records)? {
        let file = path.display();
        match (uid, content) {
            (Some(uid), Ok(Content::Recorded(record))) => {
                if let Some(booking) = valid(&uid, record, ledger, allocation, boot_id) {
                    ledger.adopt(uid, booking);
                } else if let Err(error) = specs.remove(&uid) {
                    tracing::warn!(claim_uid = %uid, %error, "cannot remove CDI spec {file} of an earlier boot");
                }
            }
            (Some(uid), Ok(Content::CpusOnly { cpus, doubt })) => {
                match doubt {
                    None => tracing::info!(claim_uid = %uid, %cpus, "took over a claim of another driver"),
                    Some(doubt) => tracing::error!(
                        claim_uid = %uid, %cpus,
                        "CDI spec {file}: {doubt}; its CPUs stay with the claim, all else about it is lost"
                    ),
                }
                ledger.adopt(uid, Booking::plain(cpus));
            }
            (_, content) => {
                let fault = content.err().map(|fault| format!("{:#}", anyhow::Error::new(fault)));
                tracing::error!(
                    "CDI spec {file}: {}; it is left alone, and which CPUs it stands for is not known; \
                     delete the pod that uses it",
                    fault.unwrap_or_default()
                );
                unreadable.push(path);
            }
        }
    }
    let (cpus, claims) = ledger.conflicted();
    if !claims.is_empty() {
        let claims: Vec<String> = claims.iter().map(ToString::to_string).collect();
        tracing::error!(%cpus, claims = claims.join(", "), "CDI specs overlap: delete the pods of all but one");
    }
    for uid in ledger.stranded() {
        tracing::warn!(claim_uid = %uid, "the claim holds CPUs that are reserved by now; it keeps them");
    }
    Ok(unreadable)
}

/// What a record is worth. None when the node has rebooted since (so that no container of the claim runs)
/// and the machine cannot honour it any more: the claim is then to be prepared anew.
fn valid(
    uid: &ClaimUid,
    record: Record,
    ledger: &Ledger,
    allocation: &Allocation,
    boot_id: &str,
) -> Option<Booking> {
    let cpus = record.booking.cpus();
    if record.boot_id == boot_id {
        if record.topology_hash != allocation.fingerprint {
            tracing::info!(claim_uid = %uid, %cpus, "the machine has changed since; the claim keeps its CPUs");
        }
        return Some(record.booking);
    }
    let fits = |part: &dracpu_ledger::Part| {
        let place = allocation.view.place(&part.device).map(|place| allocation.view.cpus(&place));
        place.is_some_and(|group| part.cpus.is_subset(&group))
    };
    let all: CpuSet = cpus.union(&record.booking.blocked());
    let free = ledger.holders(&all).is_empty() && all.is_subset(&ledger.allocatable());
    if free && record.booking.parts.iter().all(fits) {
        return Some(record.booking);
    }
    tracing::warn!(claim_uid = %uid, %cpus, "rebooted, and the CPUs of the claim cannot be had any more");
    None
}
