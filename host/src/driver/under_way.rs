//! Prepare calls that have begun and not ended. The kubelet may drop one, unprepare its claim and never come back for
//! it: what goes on of such a call must not give the claim CPUs that nobody would free.

use super::core::Driver;
use super::locks::lock;
use dracpu_ledger::ClaimUid;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The calls, each under a number of its own, and whether its claim has been unprepared since it began.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    next: u64,
    open: BTreeMap<u64, (ClaimUid, bool)>,
}

impl UnderWay {
    /// A claim is being unprepared. Under the allocation lock, so that a call either has ended or will see it.
    pub(super) fn overtake(&self, uid: &ClaimUid) {
        for (claim, overtaken) in lock(&self.0).open.values_mut() {
            *overtaken |= claim == uid;
        }
    }
}

/// The part of a prepare call that is for one claim; it ends when this is dropped.
pub(super) struct Call {
    driver: Arc<Driver>,
    number: u64,
}

impl Call {
    /// Begins one.
    pub(super) fn begin(driver: &Arc<Driver>, uid: &ClaimUid) -> Self {
        let mut calls = lock(&driver.under_way.0);
        let number = calls.next;
        calls.next += 1;
        calls.open.insert(number, (uid.clone(), false));
        Self { driver: Arc::clone(driver), number }
    }

    /// Whether the claim has been unprepared since. Under the allocation lock.
    pub(super) fn is_overtaken(&self) -> bool {
        lock(&self.driver.under_way.0).open.get(&self.number).is_some_and(|(_, overtaken)| *overtaken)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        lock(&self.driver.under_way.0).open.remove(&self.number);
    }
}
