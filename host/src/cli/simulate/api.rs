//! The API server of a story: claim objects in memory.

use crate::driver::{Api, ApiError, Claim, ClaimStatus};
use futures::future::{BoxFuture, ready};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct MemoryApi {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    down: bool,
    claims: BTreeMap<String, Claim>,
    /// Claims that a pod's spec names.
    pods: BTreeMap<String, BTreeSet<String>>,
}

impl MemoryApi {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, on: bool) {
        self.state().down = on;
    }

    pub(super) fn put(&self, claim: Claim) {
        self.state().claims.insert(claim.id.uid.clone(), claim);
    }

    /// Takes a claim away; false when there is none.
    pub(super) fn delete(&self, uid: &str) -> bool {
        let mut state = self.state();
        state.pods.retain(|_, claims| {
            claims.remove(uid);
            !claims.is_empty()
        });
        state.claims.remove(uid).is_some()
    }

    pub(super) fn claim_of(&self, uid: &str) -> Option<Claim> {
        self.state().claims.get(uid).cloned()
    }

    pub(super) fn pod_uses(&self, pod: &str, claims: &[String]) {
        self.state().pods.entry(pod.to_owned()).or_default().extend(claims.iter().cloned());
    }

    fn asked<T>(&self, answer: impl FnOnce(&State) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let state = self.state();
        if state.down {
            return Err(ApiError::Unreachable("connection refused".to_owned()));
        }
        answer(&state)
    }
}

impl Api for MemoryApi {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Claim, ApiError>> {
        Box::pin(ready(self.asked(|state| {
            let named = |claim: &&Claim| claim.id.namespace == namespace && claim.id.name == name;
            state.claims.values().find(named).cloned().ok_or(ApiError::NotFound)
        })))
    }

    fn claims_of_pod<'a>(
        &'a self,
        _: &'a str,
        pod: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Claim>, ApiError>> {
        Box::pin(ready(self.asked(|state| {
            let named = state.pods.get(pod).into_iter().flatten();
            Ok(named.filter_map(|uid| state.claims.get(uid)).cloned().collect())
        })))
    }

    /// A story has no slices of other drivers.
    fn pcie_roots<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<BTreeSet<String>, ApiError>> {
        Box::pin(ready(self.asked(|_| Ok(BTreeSet::new()))))
    }

    /// A story has nobody who writes it.
    fn write_status<'a>(&'a self, _: &'a ClaimStatus) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(ready(self.asked(|_| Ok(()))))
    }
}
