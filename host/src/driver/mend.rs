//! Files of prepared claims that somebody has removed or damaged while the driver runs. Without them no container of
//! the claim can be made, and the next start of the driver would not know the claim.
//!
//! A claim that is unprepared meanwhile stays so: whether it is booked is asked under the allocation lock, which unprepare
//! holds from the first file to the last.

use super::core::Driver;
use dracpu_ledger::{Booking, ClaimUid};
use std::sync::Arc;

impl Driver {
    /// Looks at the files of all claims, and writes those again that are missing or damaged. How many claims got theirs
    /// back. A claim of which only the CPUs are known has nothing that could be written.
    pub async fn mend_files(self: &Arc<Self>) -> usize {
        let driver = Arc::clone(self);
        tokio::task::spawn_blocking(move || driver.mend_blocking()).await.unwrap_or_else(|error| {
            tracing::error!("the files of claims could not be looked at: {error}");
            0
        })
    }

    fn mend_blocking(&self) -> usize {
        let all: Vec<(ClaimUid, Booking)> = {
            let ledger = self.ledger();
            let whole = ledger.bookings().filter(|(_, booking)| !booking.is_plain());
            whole.map(|(uid, booking)| (uid.clone(), booking.clone())).collect()
        };
        let lost = all.iter().filter(|(uid, booking)| !self.has_files(uid, booking));
        lost.filter(|(uid, _)| self.mend(uid)).count()
    }

    fn mend(&self, uid: &ClaimUid) -> bool {
        let allocation = self.allocation();
        let booking = self.ledger().booking(uid).filter(|booking| !booking.is_plain()).cloned();
        let Some(booking) = booking.filter(|booking| !self.has_files(uid, booking)) else { return false };
        let written = self.rewrite(uid, &allocation, &booking);
        match &written {
            Ok(()) => {
                tracing::warn!(claim_uid = %uid, "a file of the claim was missing or damaged; written again");
            }
            Err(error) => {
                tracing::warn!(claim_uid = %uid, "a file of the claim is missing or damaged: {error}");
            }
        }
        written.is_ok()
    }
}
