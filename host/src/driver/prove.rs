//! Containers with a claim without a record: the CDI directory was wiped and the driver restarted. Asks the
//! API server, outside the hooks, whether the pod has that claim and whether its allocation fits the CPUs.
//!
//! Proven: the spec is written again, and the CPUs leave the shared pool. Disproven: the container is one
//! without that claim. No answer: everything stays as it is, and is asked again.
//!
//! CPUs that another claim was given before the container was seen are that claim's: a record counts for more
//! than a variable, and two owners are never made.

use super::allocation::Allocation;
use super::api::ApiError;
use super::claim::Claim;
use super::core::Driver;
use super::error::PrepareError;
use crate::cdi::Step;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, Who};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What came of one round of questions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    /// Claims that are settled, one way or the other.
    pub settled: usize,
    /// Claims that must be asked for again.
    pub open: usize,
}

impl Driver {
    /// Asks about every claim without a record, as soon as there is one, until it is settled. Ends never.
    pub async fn prove_forever(self: Arc<Self>) {
        loop {
            self.unproven.notified().await;
            let mut pause = FIRST_PAUSE;
            while self.prove_once().await.open > 0 {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Asks once about every claim without a record. New masks are in
    /// [`take_pending_updates`](Self::take_pending_updates).
    pub async fn prove_once(self: &Arc<Self>) -> Round {
        let mut by_pod: BTreeMap<String, (Who, Vec<(ClaimUid, CpuSet)>)> = BTreeMap::new();
        for (who, uid, cpus) in self.ledger().unproven_claims() {
            let pod = by_pod.entry(who.pod_uid.clone()).or_insert_with(|| (who.clone(), Vec::new()));
            pod.1.push((uid.clone(), cpus.clone()));
        }
        let mut round = Round::default();
        for (_, (who, said)) in by_pod {
            let claims = self.api().claims_of_pod(&who.pod_namespace, &who.pod_name, &who.pod_uid).await;
            let claims = match claims {
                Ok(claims) => claims,
                Err(ApiError::NotFound) => Vec::new(),
                Err(error) => {
                    tracing::warn!("which claims {who} has is not known: {error}; its CPUs go to nobody");
                    round.open += said.len();
                    continue;
                }
            };
            let driver = Arc::clone(self);
            let work = move || driver.settle(&who, &claims, said);
            let pod = tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
                tracing::error!("a claim without a record could not be settled: {error}");
                Round::default()
            });
            round.settled += pod.settled;
            round.open += pod.open;
        }
        round
    }

    fn settle(&self, who: &Who, claims: &[Claim], said: Vec<(ClaimUid, CpuSet)>) -> Round {
        let allocation = self.allocation();
        let mut round = Round::default();
        for (uid, cpus) in said {
            // Kubelet or runtime may have been faster.
            let open = |(of, said, set): (&Who, &ClaimUid, &CpuSet)| {
                of.pod_uid == who.pod_uid && *said == uid && *set == cpus
            };
            if !self.ledger().unproven_claims().any(open) {
                round.settled += 1;
                continue;
            }
            let object = claims.iter().find(|claim| claim.id.uid == uid.as_str());
            let booking: Option<Booking> =
                object.and_then(|object| self.results(&allocation, object, &cpus).ok());
            let holders = booking.as_ref().map(|booking| self.holders(booking)).unwrap_or_default();
            match booking {
                Some(_) if !holders.is_empty() => {
                    let text = format!(
                        "{who} has claim {uid}, but no record of it was left, and claim {holders} was given some of its \
                         CPUs ({cpus}): it runs on the shared pool from here on; delete its pod"
                    );
                    tracing::error!(claim_uid = %uid, "{text}");
                    self.tell_not_believed(who, &text);
                    self.ledger().disprove(&uid, &who.pod_uid);
                }
                None => {
                    let text = format!(
                        "{who} does not have claim {uid}, which it says it has with CPUs {cpus}; if the pod sets \
                         DRA_CPUSET_{uid} itself, take that out"
                    );
                    tracing::warn!(claim_uid = %uid, "{text}");
                    self.tell_not_believed(who, &text);
                    self.ledger().disprove(&uid, &who.pod_uid);
                }
                Some(booking) => match self.record_again(&uid, &allocation, &booking, &who.pod_uid) {
                    Ok(()) => {
                        tracing::info!(claim_uid = %uid, %cpus, "{who} has the claim; its record is back");
                        self.status_is_due(&uid);
                    }
                    Err(error) => {
                        tracing::warn!(claim_uid = %uid, "{:#}", anyhow::Error::new(error));
                        round.open += 1;
                        continue;
                    }
                },
            }
            round.settled += 1;
        }
        let ledger = self.ledger();
        self.tell_due(&ledger);
        self.tell_health(&ledger);
        round
    }

    /// Writes the record of a claim that a running container has, and books it. When the record can neither be written
    /// nor removed, the claim is booked all the same: the next start would find it.
    fn record_again(
        &self,
        uid: &ClaimUid,
        allocation: &Allocation,
        booking: &Booking,
        pod_uid: &str,
    ) -> Result<(), PrepareError> {
        let written = self.write_new(uid, allocation, booking);
        if written.as_ref().err().is_none_or(PrepareError::keeps_cpus) {
            self.ledger().prove(uid, booking.clone(), pod_uid);
            self.probe.reached(Step::Proven);
        }
        written
    }

    /// The claims that hold CPUs of a booking, for a sentence; empty when nobody does.
    fn holders(&self, booking: &Booking) -> String {
        let all = booking.cpus().union(&booking.blocked());
        let uids: Vec<String> =
            self.ledger().holders(&all).into_iter().map(|(uid, _)| uid.to_string()).collect();
        uids.join(", ")
    }
}
