use super::api::ApiError;
use super::core::Driver;
use super::locks::lock;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, Ledger, Who};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the node holds, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// CPUs that claims hold or block.
    pub allocated: CpuSet,
    /// CPUs that a new claim could have.
    pub available: CpuSet,
    /// Online CPUs, as the driver knows them.
    pub online: CpuSet,
    /// Never given out, never shared.
    pub reserved: CpuSet,
    /// Kept off by the kernel's scheduler: never shared; a claim may have them.
    pub isolated: CpuSet,
    /// The CPUs of all containers without a claim.
    pub shared: CpuSet,
    /// The CPUs of each claim.
    pub claims: BTreeMap<String, CpuSet>,
    /// Claims that hold CPUs which have become reserved since.
    pub stranded: Vec<String>,
    /// Those CPUs.
    pub stranded_cpus: CpuSet,
    /// Claims whose records overlap.
    pub conflicted: Vec<String>,
    /// Those CPUs.
    pub conflicted_cpus: CpuSet,
    /// Claims that hold offline CPUs.
    pub unhealthy: Vec<String>,
    /// Claims whose object is gone and that no container has, as far as was asked.
    pub orphaned: Vec<String>,
    /// CPUs that go to nobody until it is known whose they are.
    pub unproven_cpus: CpuSet,
    /// For how long containers ran on CPUs that claims hold for others, since the start, summed over containers.
    pub overlap: Duration,
    /// Containers whose mask should change with the next answer to the runtime.
    pub pending_updates: usize,
    /// Files with this driver's prefix that say nothing.
    pub unreadable_specs: Vec<PathBuf>,
    /// Claims unprepared while a container of theirs seemed alive, since the start.
    pub unprepared_in_use: u64,
}

impl Driver {
    /// What the node holds.
    #[must_use]
    pub fn status(&self) -> Status {
        let orphans = lock(&self.orphans).clone();
        self.summary(&self.ledger(), &orphans)
    }

    pub(super) fn summary(&self, ledger: &Ledger, orphans: &BTreeSet<ClaimUid>) -> Status {
        let (conflicted_cpus, conflicted) = ledger.conflicted();
        let stranded = ledger.stranded();
        let mut stranded_cpus = CpuSet::new();
        for booking in stranded.iter().filter_map(|uid| ledger.booking(uid)) {
            stranded_cpus.extend_from(&booking.cpus().intersection(&ledger.node().reserved));
        }
        Status {
            allocated: ledger.booked(),
            available: ledger.free(),
            online: ledger.node().online.clone(),
            reserved: ledger.node().reserved.clone(),
            isolated: ledger.node().isolated.clone(),
            shared: ledger.shared_pool(),
            claims: ledger.bookings().map(|(uid, booking)| (uid.to_string(), booking.cpus())).collect(),
            stranded: strings(stranded.iter()),
            stranded_cpus,
            conflicted: strings(conflicted.iter()),
            conflicted_cpus,
            unhealthy: strings(ledger.unhealthy().iter()),
            orphaned: strings(orphans.iter()),
            unproven_cpus: ledger.unproven(),
            overlap: self.overlap.total(),
            pending_updates: ledger.pending_updates(),
            unreadable_specs: lock(&self.unreadable).clone(),
            unprepared_in_use: self.unprepared_in_use.load(Ordering::Relaxed),
        }
    }

    /// What a claim holds, and which container it belongs to.
    #[must_use]
    pub fn claim(&self, uid: &str) -> Option<(Booking, Option<Who>)> {
        let ledger = self.ledger();
        let booking = ledger.booking(&uid.into())?.clone();
        Some((booking, ledger.owner(&uid.into()).cloned()))
    }

    /// Asks the API server about every claim that no container has: one whose object is gone is an orphan.
    /// What cannot be asked stays as it was. Returns how many are new.
    pub async fn find_orphans(&self) -> usize {
        if !*self.containers_known.borrow() {
            return 0;
        }
        let idle: Vec<(ClaimUid, Booking)> = {
            let ledger = self.ledger();
            let idle = ledger.bookings().filter(|(uid, booking)| {
                // One of which only the CPUs are known has no name to ask for.
                ledger.in_use(uid).is_none() && !booking.name.is_empty()
            });
            idle.map(|(uid, booking)| (uid.clone(), booking.clone())).collect()
        };
        let mut found = 0;
        let in_question = |uid: &ClaimUid| idle.iter().any(|(idle, _)| idle == uid);
        lock(&self.orphans).retain(in_question);
        for (uid, booking) in &idle {
            let gone = match self.api().claim(&booking.namespace, &booking.name).await {
                Ok(object) => object.id.uid != uid.as_str(),
                Err(ApiError::NotFound) => true,
                Err(_) => continue,
            };
            let (ledger, mut orphans) = (self.ledger(), lock(&self.orphans));
            if !gone || ledger.booking(uid).is_none() {
                orphans.remove(uid);
            } else if orphans.insert(uid.clone()) {
                let (namespace, name) = (&booking.namespace, &booking.name);
                tracing::warn!(claim_uid = %uid, "claim {namespace}/{name} is gone, and so are its containers, \
                     but it was not unprepared; `dracpu claims release {uid}` frees its CPUs");
                self.tell_orphaned(uid, booking);
                found += 1;
            }
        }
        found
    }
}

fn strings<'a>(uids: impl Iterator<Item = &'a ClaimUid>) -> Vec<String> {
    uids.map(ToString::to_string).collect()
}
