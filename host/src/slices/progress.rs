use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// What the publisher last did, for who asks.
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<State>,
    /// Passes that have ended.
    passes: watch::Sender<u64>,
    /// Somebody wants a pass.
    pub(super) wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    published: Option<Published>,
    problem: Option<String>,
    unwatched: Option<String>,
    left_out: BTreeMap<&'static str, String>,
}

/// The slices as they are at the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The pool's generation.
    pub generation: i64,
    /// How many slices the pool has.
    pub slices: usize,
    /// How many devices stand in them.
    pub devices: usize,
}

impl Progress {
    /// The slices are as they should be.
    pub(super) fn published(&self, published: Published) {
        let mut state = self.state();
        (state.published, state.problem, state.unwatched) = (Some(published), None, None);
        drop(state);
        self.passes.send_modify(|passes| *passes += 1);
    }

    /// They are not, and why; tried again.
    pub(super) fn failed(&self, problem: String) {
        self.state().problem = Some(problem);
        self.passes.send_modify(|passes| *passes += 1);
    }

    /// Changes by others may go unnoticed, and why; until a pass succeeds.
    pub(super) fn unwatched(&self, why: String) {
        self.state().unwatched = Some(why);
    }

    /// Has the publisher look whether the slices are as they should be, so that the rest is true of this moment.
    pub async fn look_again(&self, within: Duration) {
        let mut passes = self.passes.subscribe();
        self.wanted.notify_one();
        if tokio::time::timeout(within, passes.changed()).await.is_err() {
            self.unwatched(format!("the API server gave no answer within {} s", within.as_secs()));
        }
    }

    /// The API server leaves a field out; one sentence on what follows. False when that was known.
    pub(super) fn left_out(&self, field: &'static str, consequence: impl FnOnce() -> String) -> bool {
        let mut state = self.state();
        let new = !state.left_out.contains_key(field);
        if new {
            state.left_out.insert(field, consequence());
        }
        new
    }

    /// The slices that were last seen or written; none before the first success.
    #[must_use]
    pub fn last(&self) -> Option<Published> {
        self.state().published
    }

    /// Why they are not as they should be, or why that is not known by now; none when they are, and before the first
    /// attempt has ended.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let state = self.state();
        state.problem.as_ref().or(state.unwatched.as_ref()).cloned()
    }

    /// Fields that the API server leaves out, each with what follows.
    #[must_use]
    pub fn fields_left_out(&self) -> Vec<(&'static str, String)> {
        self.state().left_out.iter().map(|(field, consequence)| (*field, consequence.clone())).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
