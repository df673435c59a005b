//! The status of claims: which CPUs each has, for whoever looks at the claim object. In the background,
//! written once: a claim is prepared whether or not the API server hears of it, and nobody waits for it.

use super::api::{ApiError, ClaimStatus, DeviceStatus};
use super::claim::ClaimRef;
use super::core::Driver;
use super::locks::lock;
use crate::clock::{Clock, jittered};
use dracpu_ledger::{ClaimUid, Part};
use futures::future::{BoxFuture, pending};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What came of a round of writes.
#[derive(Default)]
struct Round {
    /// Claims that must be written again.
    failed: BTreeSet<ClaimUid>,
    /// Why the first of them was not.
    why: Option<String>,
}

impl Driver {
    /// The status of a claim is to be written.
    pub(super) fn status_is_due(&self, uid: &ClaimUid) {
        if self.config.claim_status {
            lock(&self.statuses).insert(uid.clone());
            self.status_due.notify_one();
        }
    }

    /// Writes the status of each claim that is prepared. Those from before the start are among them: the last
    /// instance may have ended too early, and what is written already changes nothing. What fails is tried
    /// again, after pauses that grow; why is logged once. Ends never.
    pub async fn write_statuses_forever(self: Arc<Self>, clock: Arc<dyn Clock>) {
        let mut failed = BTreeSet::new();
        let mut pause = FIRST_PAUSE;
        let mut retry: Option<BoxFuture<'static, ()>> = None;
        let mut trouble: Option<String> = None;
        loop {
            let due = std::mem::take(&mut *lock(&self.statuses));
            let round = self.write_statuses(due).await;
            failed.extend(round.failed);
            if let Some(why) = round.why.filter(|why| trouble.as_ref() != Some(why)) {
                tracing::warn!("the status of a claim is not written yet, the claim works without it: {why}");
                trouble = Some(why);
            }
            if failed.is_empty() {
                if trouble.take().is_some() {
                    tracing::info!("the status of all claims is written");
                }
                (pause, retry) = (FIRST_PAUSE, None);
            } else if retry.is_none() {
                retry = Some(clock.sleep(jittered(pause)));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            let again = async {
                match &mut retry {
                    Some(sleep) => sleep.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.status_due.notified() => {}
                () = again => {
                    retry = None;
                    lock(&self.statuses).append(&mut failed);
                }
            }
        }
    }

    async fn write_statuses(self: &Arc<Self>, due: BTreeSet<ClaimUid>) -> Round {
        let mut round = Round::default();
        let mut reachable = true;
        for uid in due {
            // A server that is away for one claim is not asked about all others.
            if reachable && let Err(error) = self.write_status(&uid).await {
                reachable = !matches!(error, ApiError::Unreachable(_));
                round.why.get_or_insert(error.to_string());
                round.failed.insert(uid);
            } else if !reachable {
                round.failed.insert(uid);
            }
        }
        round
    }

    /// A claim that is gone, or not this node's any more, needs no status.
    async fn write_status(self: &Arc<Self>, uid: &ClaimUid) -> Result<(), ApiError> {
        let (driver, of) = (Arc::clone(self), uid.clone());
        let status = tokio::task::spawn_blocking(move || driver.status_of(&of)).await;
        let Ok(Some(status)) = status else { return Ok(()) };
        match self.api().write_status(&status).await {
            Ok(()) | Err(ApiError::NotFound) => Ok(()),
            Err(refusal @ ApiError::Other(_)) => {
                match self.api().claim(&status.claim.namespace, &status.claim.name).await {
                    Ok(object) if object.id.uid == status.claim.uid => Err(refusal),
                    Ok(_) | Err(ApiError::NotFound) => Ok(()),
                    Err(_) => Err(refusal),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// What a claim has; none when it is not prepared, or only its CPUs are known. Blocking.
    fn status_of(&self, uid: &ClaimUid) -> Option<ClaimStatus> {
        let booking = self.ledger().booking(uid).filter(|booking| !booking.is_plain()).cloned()?;
        let device = |part: Part| DeviceStatus {
            pool: part.pool,
            device: part.device,
            share_id: part.share_id,
            cpus: part.cpus,
            blocked: part.blocked,
        };
        Some(ClaimStatus {
            prepared_at: self.specs().written_at(uid).ok()?,
            claim: ClaimRef { uid: uid.to_string(), namespace: booking.namespace, name: booking.name },
            strategy: booking.strategy.map(|strategy| strategy.name),
            devices: booking.parts.into_iter().map(device).collect(),
        })
    }
}
