use super::allocation::{Allocation, Told, Unusable};
use super::api::Api;
use super::decide::{Strategies, StrategyInfo};
use super::decisions::Decisions;
use super::floor::{NothingShared, floor_of, node};
use super::health::{self, DevicesHealth};
use super::locks::{Guard, Locks, lock, may_wait};
use super::notices::Notices;
use super::overlap::{Overlap, Watched};
use super::under_way::UnderWay;
use crate::cdi::{Content, Found, NotWritten, Probe, Record, SpecDir, Step};
use crate::clock::Clock;
use crate::config::{Config, Selection};
use crate::device::Device;
use crate::metadata::{MetadataFiles, WriteError};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, Ledger};
use dracpu_topology::Topology;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// What a driver is made of: the daemon's own parts, or stand-ins.
pub struct DriverParts {
    /// The configuration. Its selection can be replaced later.
    pub config: Config,
    /// The machine.
    pub topology: Topology,
    /// The strategies that can be asked for.
    pub strategies: Arc<dyn Strategies>,
    /// The API server.
    pub api: Arc<dyn Api>,
    /// The directory of CDI specs.
    pub specs: SpecDir,
    /// What containers are told of their devices.
    pub metadata: MetadataFiles,
    /// Where tests can look or break in.
    pub probe: Arc<dyn Probe>,
    /// Changes with every boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// How long a new claim waits for the runtime's first word of what runs; none: it does not. A record can be lost while
    /// its container runs, and then only the runtime knows which CPUs are in use.
    pub containers_within: Option<Duration>,
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

/// The driver of one node: the only owner of its CPU allocations.
pub struct Driver {
    pub(super) config: Config,
    api: Arc<dyn Api>,
    specs: SpecDir,
    metadata: MetadataFiles,
    pub(super) probe: Arc<dyn Probe>,
    pub(super) boot_id: String,
    /// For who must not wait for the allocation lock.
    pub(super) told: Mutex<Told>,
    /// For people.
    pub(super) decisions: Decisions,
    locks: Locks,
    /// Told of every change of the ledger.
    pub(super) overlap: Overlap,
    pub(super) under_way: UnderWay,
    pub(super) orphans: Mutex<BTreeSet<ClaimUid>>,
    pub(super) unreadable: Mutex<Vec<PathBuf>>,
    devices: watch::Sender<Arc<Vec<Device>>>,
    pub(super) containers_within: Option<Duration>,
    /// Whether the runtime has said what runs.
    pub(super) containers_known: watch::Sender<bool>,
    pub(super) health: watch::Sender<DevicesHealth>,
    /// Claims whose status is to be written.
    pub(super) statuses: Mutex<BTreeSet<ClaimUid>>,
    /// There may be such claims.
    pub(super) status_due: Notify,
    /// What people should hear of.
    pub(super) notices: Notices,
    /// A container has a claim without a record.
    pub(super) unproven: Notify,
    /// Masks are due that no hook may bring soon.
    pub(super) masks_due: Notify,
    /// The runtime has named a CDI device of ours before, so it always does.
    pub(super) devices_are_told: AtomicBool,
    /// Claims unprepared while one of their containers seemed alive.
    pub(super) unprepared_in_use: AtomicU64,
}

impl Driver {
    /// Starts a driver: opens the strategies, and takes over what is recorded. Blocking. Call before any
    /// socket is open, so that the first call finds everything in place.
    ///
    /// A strategy that cannot be used does not keep the driver from serving claims that it has served
    /// before; see [`strategy`](Self::strategy).
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(parts: DriverParts) -> Result<Arc<Self>, StartError> {
        let DriverParts {
            config,
            topology,
            strategies,
            api,
            specs,
            metadata,
            probe,
            boot_id,
            clock,
            containers_within,
        } = parts;
        let floor = usize::try_from(floor_of(&topology, &config)?).unwrap_or(usize::MAX);
        let mut ledger = Ledger::new(node(&topology, &config), floor);
        let allocation = Allocation::new(&config, &strategies, config.selection.clone(), topology);
        let (known, unreadable) = adopt(&specs, &mut ledger, &allocation, &boot_id, &*probe)?;
        let held = known.iter().filter_map(|uid| Some((uid.clone(), specs.written_at(uid).ok()?)));
        let overlap = Overlap::new(clock, held);
        probe.reached(Step::RecordsRead);
        match metadata.sweep(&known) {
            Ok(0) => {}
            Ok(files) => {
                tracing::info!(files, "removed what was left of the device metadata of former claims")
            }
            Err(WriteError { path, source }) => {
                tracing::warn!("cannot remove device metadata of former claims: {}: {source}", path.display())
            }
        }
        let statuses = if config.claim_status { known } else { BTreeSet::new() };
        let told = Mutex::new(allocation.told());
        let devices = watch::Sender::new(allocation.view.devices.clone());
        let health = health::of_devices(&config.node_name, &allocation.view.devices, &ledger);
        let driver = Self {
            config,
            api,
            specs,
            metadata,
            probe,
            boot_id,
            locks: Locks::new(allocation, ledger),
            overlap,
            under_way: UnderWay::default(),
            orphans: Mutex::default(),
            unreadable: Mutex::new(unreadable),
            told,
            decisions: Decisions::default(),
            devices,
            containers_within,
            containers_known: watch::Sender::new(containers_within.is_none()),
            health: watch::Sender::new(Arc::new(health)),
            statuses: Mutex::new(statuses),
            status_due: Notify::new(),
            notices: Notices::default(),
            unproven: Notify::new(),
            masks_due: Notify::new(),
            devices_are_told: AtomicBool::new(false),
            unprepared_in_use: AtomicU64::new(0),
        };
        driver.tell_doubts(&driver.ledger());
        Ok(Arc::new(driver))
    }

    /// Other CPUs are online: new instances of the strategies, new devices; claims keep their CPUs. Blocking.
    /// The new masks are in [`take_pending_updates`](Self::take_pending_updates).
    pub fn machine_changed(&self, topology: Topology) {
        let mut current = self.allocation();
        let node = node(&topology, &self.config);
        *current = current.moved_to(topology, &self.config);
        if let Err(why) = self.announce(&current) {
            tracing::error!(
                "new claims are refused until the machine changes back, or the driver restarts: {why}"
            );
        }
        let mut ledger = self.ledger();
        ledger.replace_node(node);
        self.tell_due(&ledger);
        self.tell_health(&ledger);
        self.tell_doubts(&ledger);
    }

    /// Other strategies decide from now on; claims keep their CPUs, and a claim that is being decided is decided by the
    /// old ones. The strategies must be loaded: new claims wait meanwhile. Blocking.
    ///
    /// # Errors
    /// Which strategies cannot be used, and why. When the active one is among them, the old ones go on; else the old one
    /// of the same name does.
    pub fn select(
        &self,
        selection: Selection,
        strategies: &Arc<dyn Strategies>,
    ) -> Result<(), Vec<Unusable>> {
        let mut current = self.allocation();
        let selected = current.select(&self.config, strategies, selection);
        let _may_be_none = self.announce(&current);
        self.tell_health(&self.ledger());
        selected
    }

    /// Tells the active strategy and the devices to those who do not take the allocation lock.
    fn announce(&self, allocation: &Allocation) -> Result<(), String> {
        let told = allocation.told();
        let outcome = told.active.as_ref().map(|_| ()).map_err(Clone::clone);
        *lock(&self.told) = told;
        self.devices.send_if_modified(|devices| {
            let changed = **devices != *allocation.view.devices;
            devices.clone_from(&allocation.view.devices);
            changed
        });
        outcome
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
        lock(&self.told).active.clone()
    }

    /// Which strategies decide, as configured now.
    #[must_use]
    pub fn selection(&self) -> Selection {
        lock(&self.told).selection.clone()
    }

    /// The strategies that claims may name beside the active one and that cannot be used.
    #[must_use]
    pub fn unusable(&self) -> Vec<Unusable> {
        let told = lock(&self.told);
        let others = told.strategies.iter().filter(|(name, _)| **name != told.selection.allocator);
        let fault = |(name, known): (&String, &Result<_, String>)| {
            let why = known.as_ref().err()?.clone();
            Some(Unusable { strategy: name.clone(), why })
        };
        others.filter_map(fault).collect()
    }

    /// The allocation lock. Blocking: it may be held for as long as a strategy and a file take.
    pub(super) fn allocation(&self) -> Guard<'_, Allocation> {
        self.locks.allocation()
    }

    pub(super) fn ledger(&self) -> Watched<'_> {
        Watched::new(self.locks.ledger(), &self.overlap)
    }

    /// The files. Not under the ledger lock.
    pub(super) fn specs(&self) -> &SpecDir {
        may_wait("a file");
        &self.specs
    }

    /// What containers are told of their devices. Not under the ledger lock.
    pub(super) fn metadata(&self) -> &MetadataFiles {
        may_wait("a file");
        &self.metadata
    }

    /// The API server. Not under a lock.
    pub(super) fn api(&self) -> &dyn Api {
        may_wait("the API server");
        &*self.api
    }
}

/// Takes over what is recorded. Returns the claims that have a file from here on, and the files of which not even the
/// CPUs are known.
fn adopt(
    specs: &SpecDir,
    ledger: &mut Ledger,
    allocation: &Allocation,
    boot_id: &str,
    probe: &dyn Probe,
) -> Result<(BTreeSet<ClaimUid>, Vec<PathBuf>), StartError> {
    let records = |source| StartError::Records { path: specs.path().to_owned(), source };
    match specs.sweep() {
        Ok(0) => {}
        Ok(files) => tracing::info!(files, "removed what an interrupted write had left in the CDI directory"),
        Err(error) => tracing::warn!(%error, "cannot remove old temporary files in the CDI directory"),
    }
    let (mut known, mut unreadable) = (BTreeSet::new(), Vec::new());
    for Found { path, uid, content } in specs.scan().map_err(records)? {
        let file = path.display();
        known.extend(uid.clone());
        match (uid, content) {
            (Some(uid), Ok(Content::Recorded(record))) => {
                let of_this_boot = record.boot_id == boot_id;
                if let Some(booking) = valid(&uid, record, ledger, allocation, boot_id) {
                    // From now on its containers may run: whatever changes, the next start must not judge it again.
                    if !of_this_boot
                        && let Err(NotWritten { source, .. }) =
                            specs.write(&uid, &allocation.record(boot_id, &booking))
                    {
                        tracing::warn!(claim_uid = %uid, error = %source, "cannot bring CDI spec {file} of an earlier boot up to date yet");
                        known.remove(&uid);
                    }
                    ledger.adopt(uid, booking);
                    probe.reached(Step::Adopted);
                } else {
                    if let Err(error) = specs.remove(&uid) {
                        tracing::warn!(claim_uid = %uid, %error, "cannot remove CDI spec {file} of an earlier boot");
                    }
                    known.remove(&uid);
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
                probe.reached(Step::Adopted);
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
    Ok((known, unreadable))
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
