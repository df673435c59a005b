//! Unprepare. For each claim, in this order:
//!
//! 1. Allocation lock. A prepare of the claim that is under way gives it no CPUs any more.
//! 2. The files for its containers (device metadata), and what mounts them, are gone.
//! 3. The spec loses its name: the claim is unprepared, and stays so over a crash.
//! 4. The CPUs are free.
//!
//! When 2 or 3 fails the CPUs stay booked. A claim that nobody knows is unprepared. What runs on the CPUs does
//! not matter: the kubelet is the authority, and a stop event can be lost.

use super::ApiError;
use super::claim::ClaimRef;
use super::core::Driver;
use super::error::{ReleaseError, UnprepareError};
use super::locks::lock;
use crate::cdi::Step;
use crate::metadata::WriteError;
use dracpu_ledger::{Booking, ClaimUid, Ledger};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Driver {
    /// Unprepares claims; what becomes of one does not touch the others.
    pub async fn unprepare(
        self: &Arc<Self>,
        claims: Vec<ClaimRef>,
    ) -> Vec<(ClaimRef, Result<(), UnprepareError>)> {
        let driver = Arc::clone(self);
        let named = claims.clone();
        // Started, it ends, whether anybody waits for it or not.
        let all = tokio::task::spawn_blocking(move || {
            let one = |claim: ClaimRef| (driver.unprepare_blocking(&claim), claim);
            claims.into_iter().map(one).map(|(answer, claim)| (claim, answer)).collect()
        });
        all.await.unwrap_or_else(|error| {
            named.into_iter().map(|claim| (claim, Err(UnprepareError::Internal(error.to_string())))).collect()
        })
    }

    /// Frees the CPUs of a claim that nobody will unprepare any more: its object is gone and so are its
    /// containers.
    ///
    /// # Errors
    /// [`ReleaseError`], and nothing has changed.
    pub async fn release(self: &Arc<Self>, uid: &str) -> Result<(), ReleaseError> {
        if !*self.containers_known.borrow() {
            return Err(ReleaseError::ContainersUnknown);
        }
        let claim = {
            let ledger = self.ledger();
            unused(&ledger, &uid.into())?;
            let booking = ledger.booking(&uid.into()).ok_or(ReleaseError::Unknown)?;
            ClaimRef { uid: uid.to_owned(), namespace: booking.namespace.clone(), name: booking.name.clone() }
        };
        if claim.name.is_empty() {
            return Err(ReleaseError::Nameless);
        }
        match self.api().claim(&claim.namespace, &claim.name).await {
            Ok(object) if object.id.uid == claim.uid => return Err(ReleaseError::Claimed),
            Ok(_) | Err(ApiError::NotFound) => {}
            Err(error) => return Err(ReleaseError::Unsure(error)),
        }
        // The API server may have taken its time.
        unused(&self.ledger(), &uid.into())?;
        for (_, answer) in self.unprepare(vec![claim]).await {
            answer?;
        }
        Ok(())
    }

    /// Removes what containers of a claim are told of its devices. The files have the claim's name, and stay when
    /// another claim has it by now.
    pub(super) fn remove_metadata(
        &self,
        uid: &ClaimUid,
        namespace: &str,
        name: &str,
    ) -> Result<(), WriteError> {
        let same = |(other, booking): (&ClaimUid, &Booking)| {
            other != uid && (booking.namespace.as_str(), booking.name.as_str()) == (namespace, name)
        };
        let keep_files = self.ledger().bookings().any(same);
        self.metadata().remove(uid, namespace, name, keep_files)
    }

    fn unprepare_blocking(&self, claim: &ClaimRef) -> Result<(), UnprepareError> {
        let _span = tracing::info_span!("claim", claim_uid = claim.uid, op = "unprepare").entered();
        let uid = &ClaimUid::from(claim.uid.as_str());
        let _allocation = self.allocation();
        self.under_way.overtake(uid);
        self.probe.reached(Step::Removing);
        // A UID that no spec can carry has none to remove.
        if let Ok(path) = self.specs().file(uid) {
            self.remove_metadata(uid, &claim.namespace, &claim.name).map_err(
                |WriteError { path, source }| UnprepareError::Remove {
                    file: "device metadata",
                    path,
                    source,
                },
            )?;
            match self.specs().remove(uid) {
                Ok(()) => lock(&self.unreadable).retain(|unreadable| *unreadable != path),
                Err(source) => return Err(UnprepareError::Remove { file: "CDI spec", path, source }),
            }
        }
        let freed = {
            let mut ledger = self.ledger();
            if let Some(who) = ledger.in_use(uid) {
                tracing::warn!("unprepared while {who} seems alive; it runs on the shared pool from here on");
                self.unprepared_in_use.fetch_add(1, Ordering::Relaxed);
            }
            let freed = ledger.release(uid);
            self.tell_due(&ledger);
            self.tell_health(&ledger);
            freed
        };
        lock(&self.orphans).remove(uid);
        lock(&self.statuses).remove(uid);
        self.decisions.over(&claim.uid);
        self.probe.reached(Step::Released);
        match freed {
            Some(booking) => tracing::debug!(cpus = %booking.cpus(), "unprepared"),
            None => tracing::debug!("unprepared a claim that holds nothing here"),
        }
        Ok(())
    }
}

/// Whether no container has the claim, or says so.
fn unused(ledger: &Ledger, uid: &ClaimUid) -> Result<(), ReleaseError> {
    let says = || ledger.unproven_claims().find(|(_, said, _)| *said == uid).map(|(who, _, _)| who);
    match ledger.in_use(uid).or_else(says) {
        Some(who) => Err(ReleaseError::InUse(Box::new(who.clone()))),
        None => Ok(()),
    }
}
