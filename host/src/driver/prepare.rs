//! Prepare. For each claim, in this order:
//!
//! 1. A recorded claim whose file is in place is answered from the record: no API call, no strategy, no
//!    lock that a strategy holds.
//! 2. The claim object is read, with a bound and without a lock; and the runtime has said which containers run.
//!    A container that says it has the claim, without a record, is settled first (see `prove`).
//! 3. Allocation lock. Look again: the record may have come, its file have gone, or the claim been unprepared.
//! 4. The strategy decides; its answer has been verified.
//! 5. The CPUs are booked: from here on nobody else gets them.
//! 6. The files for its containers (device metadata) and the specs that mount them are in place.
//! 7. The spec gets its name: the claim is prepared, and stays so over a crash.
//! 8. The answer.
//!
//! When 6 or 7 fails, 5 is undone; unless the spec cannot be removed: then the CPUs stay booked. A claim
//! without its files is refused: the answer names what the runtime is to mount, so none may be missing.
//!
//! The kubelet may drop a call at any moment, so a call runs in a task of its own and the caller only waits
//! for it.

use super::allocation::{Allocation, Asking};
use super::api::ApiError;
use super::claim::{Claim, ClaimRef, Prepared, PreparedDevice};
use super::core::Driver;
use super::decide::Undecided;
use super::decisions::PastQuestion;
use super::error::{Asked, PrepareError};
use super::locks::{lock, may_wait};
use super::opaque::main_request;
use super::pcie::MatchedRoots;
use super::under_way::Call;
use super::view::{Place, View};
use super::wanted::{Wanted, Wish, spread, wanted};
use crate::cdi::{NotWritten, Step, device_id};
use crate::device::Capacity;
use crate::metadata::{self, WriteError};
use crate::strategy::{Decision, Holding, Request, State};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{BookError, Booking, ClaimUid, StrategyId};
use dracpu_topology::Topology;
use futures::future::join_all;
use serde_json::Map;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// The kubelet waits 45 s for all claims of a pod, and tries again.
const API_TIMEOUT: Duration = Duration::from_secs(10);

impl Driver {
    /// Prepares claims; what becomes of one does not touch the others. In the order of the call, so that the
    /// same calls give the same CPUs.
    pub async fn prepare(
        self: &Arc<Self>,
        claims: Vec<ClaimRef>,
    ) -> Vec<(ClaimRef, Result<Prepared, PrepareError>)> {
        let driver = Arc::clone(self);
        let named = claims.clone();
        let begun =
            claims.into_iter().map(|claim| (Arc::new(Call::begin(self, &uid(&claim))), claim)).collect();
        let all = tokio::spawn(async move { driver.prepare_all(begun).await });
        all.await.unwrap_or_else(|error| {
            named.into_iter().map(|claim| (claim, Err(PrepareError::Internal(error.to_string())))).collect()
        })
    }

    async fn prepare_all(
        self: &Arc<Self>,
        claims: Vec<(Arc<Call>, ClaimRef)>,
    ) -> Vec<(ClaimRef, Result<Prepared, PrepareError>)> {
        let objects = join_all(claims.iter().map(|(_, claim)| self.object_of_new(claim))).await;
        let mut answers = Vec::new();
        for ((call, claim), object) in claims.into_iter().zip(objects) {
            let span = tracing::info_span!("claim", claim_uid = claim.uid, op = "prepare");
            let pods = match &object {
                Some(Ok(object)) => object.claim.reserved_for.clone(),
                _ => Vec::new(),
            };
            let answer = self.prepare_one(call, claim.clone(), object).instrument(span.clone()).await;
            span.in_scope(|| match &answer {
                Ok(prepared) => {
                    let cpus: Vec<String> = prepared.devices.iter().map(|d| d.cpus.to_string()).collect();
                    tracing::debug!(cpus = cpus.join(","), "prepared");
                }
                Err(error) => tracing::debug!("not prepared: {error}"),
            });
            match &answer {
                Ok(_prepared) => self.decisions.prepared(&claim.uid),
                Err(error) => {
                    self.tell_refused(&claim, error);
                    self.decisions.refused(&claim, pods, error);
                }
            }
            answers.push((claim, answer));
        }
        answers
    }

    /// The claim object, unless the record can answer.
    async fn object_of_new(&self, claim: &ClaimRef) -> Option<Result<Object, PrepareError>> {
        let recorded = self.ledger().booking(&uid(claim)).is_some_and(|booking| !booking.is_plain());
        if recorded {
            return None;
        }
        let (object, known) = tokio::join!(self.read(claim), self.containers_known());
        Some(object.and_then(|object| known.map(|()| object)))
    }

    async fn containers_known(&self) -> Result<(), PrepareError> {
        let mut known = self.containers_known.subscribe();
        let within = self.containers_within.unwrap_or_default();
        match tokio::time::timeout(within, known.wait_for(|known| *known)).await {
            Ok(_known) => Ok(()),
            Err(_elapsed) => Err(PrepareError::ContainersUnknown(within)),
        }
    }

    async fn read(&self, claim: &ClaimRef) -> Result<Object, PrepareError> {
        let answer = tokio::time::timeout(API_TIMEOUT, self.api().claim(&claim.namespace, &claim.name)).await;
        let late = |_| ApiError::Unreachable(format!("no answer within {} s", API_TIMEOUT.as_secs()));
        let object = answer.map_err(late).flatten().map_err(PrepareError::Api)?;
        self.probe.reached(Step::ClaimRead);
        if object.id.uid != claim.uid {
            return Err(PrepareError::Replaced(object.id.uid));
        }
        let roots = self.matched_roots(&object).await;
        Ok(Object { claim: object, roots })
    }

    async fn prepare_one(
        self: &Arc<Self>,
        call: Arc<Call>,
        claim: ClaimRef,
        object: Option<Result<Object, PrepareError>>,
    ) -> Result<Prepared, PrepareError> {
        let uid = uid(&claim);
        self.specs().file(&uid)?;
        let mut object = object.transpose()?;
        // A container may run on the claim's CPUs, or only say so: which of the two is not for this claim to say.
        if self.said_of(&uid).is_some() {
            self.prove_once().await;
        }
        loop {
            let (driver, call, uid, span) =
                (Arc::clone(self), Arc::clone(&call), uid.clone(), tracing::Span::current());
            let work = move || span.in_scope(|| driver.prepare_blocking(&call, &uid, object.as_ref()));
            let done = tokio::task::spawn_blocking(work).await;
            match done.map_err(|error| PrepareError::Internal(error.to_string()))?? {
                Some(prepared) => return Ok(prepared),
                // Unprepared between the first look and the lock.
                None => object = Some(self.read(&claim).await?),
            }
        }
    }

    /// None: the claim object is needed.
    fn prepare_blocking(
        &self,
        call: &Call,
        uid: &ClaimUid,
        object: Option<&Object>,
    ) -> Result<Option<Prepared>, PrepareError> {
        let recorded = self.ledger().booking(uid).filter(|booking| !booking.is_plain()).cloned();
        if let Some(booking) = recorded.filter(|booking| self.has_files(uid, booking)) {
            return Ok(Some(prepared(uid, &booking)));
        }
        let mut allocation = self.allocation();
        if call.is_overtaken() {
            return Err(PrepareError::Overtaken);
        }
        let recorded = self.ledger().booking(uid).cloned();
        let booking = match (recorded, object) {
            (Some(booking), _) if !booking.is_plain() => {
                if !self.has_files(uid, &booking) {
                    self.rewrite(uid, &allocation, &booking)?;
                    tracing::warn!("a file of the claim was missing or damaged; written again");
                }
                booking
            }
            (_, None) => return Ok(None),
            (Some(plain), Some(object)) => self.complete(uid, &allocation, &object.claim, &plain.cpus())?,
            (None, Some(object)) => {
                if let Some(said) = self.said_of(uid) {
                    return Err(PrepareError::Book { asked: Vec::new(), fault: BookError::Unproven(said) });
                }
                self.give(uid, &mut allocation, object)?
            }
        };
        lock(&self.orphans).remove(uid);
        self.tell_health(&self.ledger());
        self.status_is_due(uid);
        self.probe.reached(Step::Answering);
        Ok(Some(prepared(uid, &booking)))
    }

    /// Whether the files of a claim are there, and say what is booked.
    pub(super) fn has_files(&self, uid: &ClaimUid, booking: &Booking) -> bool {
        self.specs().holds(uid, booking) && self.metadata().holds(uid, booking)
    }

    /// A claim of which only the CPUs are known gets its results.
    fn complete(
        &self,
        uid: &ClaimUid,
        allocation: &Allocation,
        object: &Claim,
        cpus: &CpuSet,
    ) -> Result<Booking, PrepareError> {
        let booking = self.results(allocation, object, cpus)?;
        self.rewrite(uid, allocation, &booking)?;
        let mut ledger = self.ledger();
        ledger.describe(uid, booking.clone());
        self.tell_doubts(&ledger);
        drop(ledger);
        Ok(booking)
    }

    /// What a claim that holds these CPUs has for each of its results.
    pub(super) fn results(
        &self,
        allocation: &Allocation,
        object: &Claim,
        cpus: &CpuSet,
    ) -> Result<Booking, PrepareError> {
        let wish = wanted(object, &self.config.node_name, &allocation.view, allocation.selection())?;
        let parts = spread(&wish.results, &allocation.view, cpus);
        let parts = parts.ok_or_else(|| PrepareError::RecordMismatch(cpus.clone()))?;
        Ok(Booking { parts, ..named(object) })
    }

    /// The CPUs that a running container says it has of a claim without a record.
    fn said_of(&self, uid: &ClaimUid) -> Option<CpuSet> {
        self.ledger().unproven_claims().find(|(_, said, _)| *said == uid).map(|(_, _, cpus)| cpus.clone())
    }

    /// Steps 4 to 7.
    fn give(
        &self,
        uid: &ClaimUid,
        allocation: &mut Allocation,
        object: &Object,
    ) -> Result<Booking, PrepareError> {
        let Object { claim, roots } = object;
        let wish = wanted(claim, &self.config.node_name, &allocation.view, allocation.selection())?;
        if wish.results.is_empty() {
            return Ok(named(claim));
        }
        let booking = self.decide(allocation, claim, roots, &wish)?;
        self.check_offers(allocation, &wish, &booking)?;
        self.probe.reached(Step::Decided);
        let booked = self.ledger().book(uid.clone(), booking.clone());
        booked.map_err(|fault| PrepareError::Book {
            asked: self.asked(&allocation.view, &wish.results),
            fault,
        })?;
        self.probe.reached(Step::Booked);
        self.write_new(uid, allocation, &booking).inspect_err(|error| {
            if !error.keeps_cpus() {
                self.ledger().release(uid);
            }
        })?;
        Ok(booking)
    }

    fn decide(
        &self,
        allocation: &mut Allocation,
        object: &Claim,
        roots: &MatchedRoots,
        wish: &Wish<'_>,
    ) -> Result<Booking, PrepareError> {
        let wanted = &*wish.results;
        let Some(strategy) = &wish.strategy else {
            let cpus = |wanted: &Wanted<'_>| allocation.view.cpus(&wanted.place);
            let parts = wanted.iter().map(|wanted| wanted.part(cpus(wanted), CpuSet::new(), Vec::new()));
            return Ok(Booking { parts: parts.collect(), ..named(object) });
        };
        let Asking { strategy, view, pcie_roots, topology, reserved, options } =
            allocation.strategy(strategy)?;
        let mut unknown = Vec::new();
        let mut requests: Vec<Request> = wanted.iter().filter_map(request).collect();
        for request in &mut requests {
            match roots.get(&request.name).map(|roots| positions(roots, pcie_roots)) {
                Some(Ok(positions)) => request.pcie_roots = positions,
                Some(Err(why)) => {
                    unknown.push(format!("; the PCIe root of request {} is not known: {why}", request.name))
                }
                None => {}
            }
        }
        let mut state = self.state();
        may_wait("a strategy");
        let info = strategy.info();
        let mut decision = strategy.decide(&requests, &state);
        // The strategy does not know what must stay for others: there may be CPUs that they could not use anyway.
        if let Some(kept) =
            decision.as_ref().ok().and_then(|decision| self.kept_back(view, topology, decision))
        {
            let less = State { free: state.free.difference(&kept), ..state.clone() };
            if let Ok(other) = strategy.decide(&requests, &less) {
                (decision, state) = (Ok(other), less);
            }
        }
        let question = PastQuestion {
            strategy: info.clone(),
            options,
            topology: topology.clone(),
            reserved: reserved.clone(),
            groups: view.groups.clone(),
            requests,
            state,
        };
        self.decisions.asked(&object.id, object.reserved_for.clone(), question, decision.as_ref().ok());
        let decision = decision.map_err(|undecided| {
            let held = if undecided.for_lack_of_cpus { self.in_the_way(view, wanted) } else { Vec::new() };
            PrepareError::Undecided { asked: self.asked(view, wanted), undecided, held }
        })?;
        tracing::debug!("{}{}", decision.why, unknown.concat());
        let grants = wanted.iter().zip(decision.grants);
        Ok(Booking {
            strategy: Some(StrategyId { name: info.name, digest: info.digest }),
            joins_shared_pool: decision.join_shared_pool,
            parts: grants.map(|(wanted, grant)| wanted.part(grant.cpus, grant.blocked, grant.mems)).collect(),
            ..named(object)
        })
    }

    /// CPUs to keep for containers without a claim, where the decision would leave them too few in all, or of a device
    /// which offers less for their sake; none where it would not.
    fn kept_back(&self, view: &View, topology: &Topology, decision: &Decision) -> Option<CpuSet> {
        let taken = taken_by(decision);
        let (pool, floor) = self.ledger().pool_and_floor();
        let of_devices = view.devices.iter().filter_map(|device| {
            let kept = usize::try_from(device.capacity?.kept).unwrap_or(usize::MAX);
            Some((pool.intersection(&device.cpus), kept))
        });
        let mut kept = CpuSet::new();
        for (pool, least) in of_devices.chain([(pool.clone(), floor)]) {
            let left = pool.difference(&taken);
            if left.len() >= least || left == pool {
                continue;
            }
            kept.extend_from(&left);
            let missing = least.saturating_sub(pool.intersection_len(&kept));
            // Of few cores.
            let cores = topology.cores.iter().rev().map(|core| core.intersection(&pool).difference(&kept));
            let more: Vec<u32> =
                cores.flat_map(|core| core.iter().collect::<Vec<_>>()).take(missing).collect();
            kept.extend(more);
        }
        Some(kept).filter(|kept| !kept.is_empty())
    }

    /// What the node's strategy has offered can be had after a claim that another one has decided: that may keep CPUs
    /// idle which nobody counts, or leave parts of cores and caches that the node's gives whole.
    fn check_offers(
        &self,
        allocation: &mut Allocation,
        wish: &Wish<'_>,
        booking: &Booking,
    ) -> Result<(), PrepareError> {
        let active = allocation.selection().map(|selection| selection.allocator.clone()).unwrap_or_default();
        let Some(strategy) = wish.strategy.as_ref().filter(|strategy| **strategy != active) else {
            return Ok(());
        };
        let Ok(Asking { strategy: asked, view, .. }) = allocation.strategy(&active) else { return Ok(()) };
        let (given, idle) = (booking.cpus(), booking.blocked());
        let taken = given.union(&idle);
        let State { free, others } = self.state();
        for device in view.devices.iter().filter(|device| !device.cpus.is_disjoint(&taken)) {
            let Some(Capacity { cpus, step, .. }) = device.capacity else { continue };
            let Some(Place::Group(group)) = view.place(&device.name) else { continue };
            let held_of = |booking: &Booking| {
                let parts = booking.parts.iter().filter(|part| part.device == device.name);
                parts.map(|part| u32::try_from(part.cpus.len()).unwrap_or(u32::MAX)).sum::<u32>()
            };
            let held: u32 = self.ledger().bookings().map(|(_, booking)| held_of(booking)).sum();
            let own = held_of(booking);
            let owed = cpus.saturating_sub(held + own) / step.max(1) * step;
            let mut ask = |count: u32, taken: &CpuSet| {
                let state = State { free: free.difference(taken), others: others.clone() };
                asked.decide(&[plain_request(group, count)], &state)
            };
            let lacks = |answer: Result<Decision, Undecided>| answer.is_err_and(|why| why.for_lack_of_cpus);
            if owed == 0 || !lacks(ask(owed, &taken)) {
                continue;
            }
            // Where its own choice would leave as little, this claim is not to blame.
            let Ok(by_itself) = ask(own, &CpuSet::new()) else { continue };
            if !lacks(ask(owed, &taken_by(&by_itself))) {
                return Err(PrepareError::Unkept {
                    strategy: strategy.clone(),
                    active,
                    device: device.name.clone(),
                    owed,
                    given,
                    idle,
                });
            }
        }
        Ok(())
    }

    fn state(&self) -> State {
        let ledger = self.ledger();
        let holding = |booking: &Booking| Holding { cpus: booking.cpus(), blocked: booking.blocked() };
        let mut others: Vec<Holding> = ledger.bookings().map(|(_, booking)| holding(booking)).collect();
        others.sort_by_key(|holding| holding.cpus.first());
        State { free: ledger.free(), others }
    }

    /// What the results ask for, and what there is of it.
    fn asked(&self, view: &View, wanted: &[Wanted<'_>]) -> Vec<Asked> {
        let free = self.ledger().free();
        let asked = wanted.iter().map(|wanted| {
            let all = view.cpus(&wanted.place);
            Asked {
                request: wanted.result.request.clone(),
                device: wanted.result.device.clone(),
                cpus: wanted.count,
                free: all.intersection(&free).len(),
                all: all.len(),
            }
        });
        asked.collect()
    }

    /// Claims that hold CPUs which the results could have had.
    fn in_the_way(&self, view: &View, wanted: &[Wanted<'_>]) -> Vec<(ClaimUid, CpuSet)> {
        let mut looked_at = CpuSet::new();
        for wanted in wanted {
            let group = view.cpus(&wanted.place);
            looked_at.extend_from(wanted.cpuset.as_ref().unwrap_or(&group));
        }
        self.ledger().holders(&looked_at)
    }

    /// Writes the files of a claim that holds its CPUs, whatever becomes of this.
    pub(super) fn rewrite(
        &self,
        uid: &ClaimUid,
        allocation: &Allocation,
        booking: &Booking,
    ) -> Result<(), PrepareError> {
        self.write(uid, allocation, booking, |_| true)
    }

    /// Writes the files of a claim that has none. When that fails no spec is left, or the claim is to
    /// [keep its CPUs](PrepareError::keeps_cpus).
    pub(super) fn write_new(
        &self,
        uid: &ClaimUid,
        allocation: &Allocation,
        booking: &Booking,
    ) -> Result<(), PrepareError> {
        let written =
            self.write(uid, allocation, booking, |named| named && self.specs().remove(uid).is_err());
        if written.as_ref().is_err_and(|error| !error.keeps_cpus()) {
            // What stays of it is swept at the next start at the latest.
            let removed = self.remove_metadata(uid, &booking.namespace, &booking.name);
            if let Err(WriteError { path, source }) = removed {
                tracing::warn!("cannot remove device metadata {}: {source}", path.display());
            }
        }
        written
    }

    /// `keeps`: whether the claim has its CPUs although its files could not be written, given whether its spec has its name.
    fn write(
        &self,
        uid: &ClaimUid,
        allocation: &Allocation,
        booking: &Booking,
        keeps: impl FnOnce(bool) -> bool,
    ) -> Result<(), PrepareError> {
        let record = allocation.record(&self.boot_id, booking);
        let path = self.specs().file(uid)?;
        match self.metadata().write(uid, booking, allocation.attributes()) {
            Ok(()) => {}
            Err(WriteError { path, source }) => {
                let file = "device metadata";
                return Err(PrepareError::Write { file, path, booked: keeps(false), source });
            }
        }
        match self.specs().write(uid, &record) {
            Ok(()) => lock(&self.unreadable).retain(|unreadable| *unreadable != path),
            Err(NotWritten { named, source }) => {
                let file = "CDI spec";
                return Err(PrepareError::Write { file, path, booked: keeps(named), source });
            }
        }
        Ok(())
    }
}

/// A claim as the API server has it, with what else had to be asked for it.
struct Object {
    claim: Claim,
    roots: MatchedRoots,
}

/// Where the machine has these roots.
fn positions(roots: &Result<BTreeSet<String>, String>, machine: &[String]) -> Result<Vec<usize>, String> {
    let roots = roots.as_ref().map_err(Clone::clone)?;
    let positions: Vec<usize> =
        machine.iter().enumerate().filter(|(_, name)| roots.contains(*name)).map(|(at, _)| at).collect();
    if positions.is_empty() {
        let names: Vec<&str> = roots.iter().map(String::as_str).collect();
        return Err(match names.as_slice() {
            [] => "the devices that it is matched with have no root in common".to_owned(),
            names => format!("this machine has no {}", names.join(", ")),
        });
    }
    Ok(positions)
}

fn uid(claim: &ClaimRef) -> ClaimUid {
    claim.uid.as_str().into()
}

fn named(object: &Claim) -> Booking {
    let ClaimRef { namespace, name, .. } = object.id.clone();
    Booking { namespace, name, pod_claim_name: object.pod_claim_name.clone(), ..Booking::default() }
}

fn request(wanted: &Wanted<'_>) -> Option<Request> {
    let Place::Group(group) = wanted.place else { return None };
    Some(Request {
        name: wanted.result.request.clone(),
        group,
        count: wanted.count,
        cpuset: wanted.cpuset.clone(),
        options: wanted.options.clone(),
        pcie_roots: Vec::new(),
    })
}

/// What a decision takes from others.
fn taken_by(decision: &Decision) -> CpuSet {
    let mut taken = CpuSet::new();
    for grant in &decision.grants {
        taken.extend_from(&grant.cpus);
        taken.extend_from(&grant.blocked);
    }
    taken
}

/// For so many CPUs of a group, of a claim that says nothing else.
fn plain_request(group: usize, count: u32) -> Request {
    let name = "offered".to_owned();
    Request { name, group, count, cpuset: None, options: Map::new(), pcie_roots: Vec::new() }
}

fn prepared(uid: &ClaimUid, booking: &Booking) -> Prepared {
    let mut mounted = BTreeSet::new();
    let devices = booking.parts.iter().map(|part| {
        let request = main_request(&part.request);
        let mut cdi_device_ids = vec![device_id(uid)];
        // Once for each request: its file is about all its devices.
        cdi_device_ids.extend(mounted.insert(request).then(|| metadata::device_id(uid, request)));
        PreparedDevice {
            request: request.to_owned(),
            pool: part.pool.clone(),
            device: part.device.clone(),
            share_id: part.share_id.clone(),
            cdi_device_ids,
            cpus: part.cpus.clone(),
        }
    });
    Prepared { devices: devices.collect() }
}
