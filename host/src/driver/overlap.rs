//! For how long containers run on CPUs that claims hold for other containers. A claim that has no container yet, or
//! none any more, shares its CPUs with nobody who could mind. Two parts, and nothing that is not known for sure:
//!
//! 1. A container that the driver meets in Synchronize, and that ran before on other CPUs than it should: since it was
//!    started, or since the first of those claims got its CPUs, or its container where that is new too, whichever is
//!    latest. So many runtimes tell when that was (NRI 0.10); for others nothing is counted.
//! 2. A container that the driver knows, from the moment a container is made whose claims have CPUs of its mask until the
//!    new mask is handed to the runtime.

use super::container::Container;
use super::locks::{Guard, lock};
use crate::clock::Clock;
use dracpu_ledger::{ClaimUid, Ledger};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Counts the time.
pub(super) struct Overlap {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    /// Until `at`.
    total: Duration,
    /// Containers that overlap since.
    running: u32,
    at: Instant,
    /// Since when claims have their CPUs.
    held: BTreeMap<ClaimUid, SystemTime>,
}

impl Overlap {
    /// `held`: since when claims have their CPUs that were prepared before.
    pub(super) fn new(clock: Arc<dyn Clock>, held: impl Iterator<Item = (ClaimUid, SystemTime)>) -> Self {
        let state = State { total: Duration::ZERO, running: 0, at: clock.instant(), held: held.collect() };
        Self { clock, state: Mutex::new(state) }
    }

    /// All of it until now, summed over containers.
    pub(super) fn total(&self) -> Duration {
        lock(&self.state).until(self.clock.instant())
    }

    /// The ledger has changed.
    fn changed(&self, ledger: &Ledger) {
        let mut state = lock(&self.state);
        let now = self.clock.instant();
        state.total = state.until(now);
        state.at = now;
        state.running = u32::try_from(ledger.overlapping()).unwrap_or(u32::MAX);
        if !state.held.keys().eq(ledger.bookings().map(|(uid, _)| uid)) {
            let now = self.clock.now();
            state.held.retain(|uid, _| ledger.booking(uid).is_some());
            for (uid, _) in ledger.bookings() {
                state.held.entry(uid.clone()).or_insert(now);
            }
        }
    }

    /// Containers that ran where they should not before the driver knew them. One without a mask runs everywhere.
    pub(super) fn ran_before(&self, met: &[&Container], ledger: &Ledger) {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let starts: BTreeMap<&str, SystemTime> =
            met.iter().filter_map(|container| Some((container.id.as_str(), container.started?))).collect();
        let in_use_since = |uid: &ClaimUid| {
            let (user, held) = (ledger.in_use(uid)?, *state.held.get(uid)?);
            Some(starts.get(user.id.as_str()).map_or(held, |started| held.max(*started)))
        };
        let mut total = state.total;
        for container in met {
            let Some(started) = container.started else { continue };
            let mask = container.cpus.as_ref().unwrap_or(&ledger.node().online);
            let id = container.id.as_str().into();
            let since = ledger.others_claims(&id, mask).filter_map(in_use_since).min();
            let since = since.map(|since| started.max(since));
            let ran = since.and_then(|since| now.duration_since(since).ok()).unwrap_or_default();
            total = total.saturating_add(ran);
        }
        state.total = total;
    }
}

impl State {
    fn until(&self, now: Instant) -> Duration {
        self.total.saturating_add(now.saturating_duration_since(self.at).saturating_mul(self.running))
    }
}

/// The ledger, held; what changes it is counted from then on.
pub(super) struct Watched<'a> {
    ledger: Guard<'a, Ledger>,
    overlap: &'a Overlap,
    changed: bool,
}

impl<'a> Watched<'a> {
    pub(super) fn new(ledger: Guard<'a, Ledger>, overlap: &'a Overlap) -> Self {
        Self { ledger, overlap, changed: false }
    }
}

impl Deref for Watched<'_> {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.ledger
    }
}

impl DerefMut for Watched<'_> {
    fn deref_mut(&mut self) -> &mut Ledger {
        self.changed = true;
        &mut self.ledger
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if self.changed {
            self.overlap.changed(&self.ledger);
        }
    }
}
