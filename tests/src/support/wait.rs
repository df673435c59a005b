//! Waiting for an event with a limit, instead of sleeping.

use anyhow::{Context, Result};
use std::time::Duration;
use tokio::sync::watch;

/// What anything on one machine should be done in; generous, as test machines are slow.
pub const SOON: Duration = Duration::from_secs(60);

/// Waits until the watched value passes `enough` and returns it.
///
/// # Errors
/// After `limit`, naming `what` and the last value.
pub async fn until<T: Clone + std::fmt::Debug>(
    what: &str,
    limit: Duration,
    watched: &mut watch::Receiver<T>,
    enough: impl FnMut(&T) -> bool,
) -> Result<T> {
    let reached = tokio::time::timeout(limit, watched.wait_for(enough)).await;
    match reached.map(|value| value.map(|value| value.clone())) {
        Ok(value) => value.with_context(|| format!("the source of `{what}` is gone")),
        Err(_) => anyhow::bail!("no {what} within {limit:?}; last seen: {:?}", *watched.borrow()),
    }
}

/// Looks now and after each signal, until there is something to see. The look may take locks that the
/// sender of the signal holds.
///
/// # Errors
/// After `limit`.
pub async fn look<T, S>(
    what: &str,
    limit: Duration,
    signal: &mut watch::Receiver<S>,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T> {
    let looking = async {
        loop {
            signal.mark_unchanged();
            if let Some(found) = look() {
                return Ok(found);
            }
            signal.changed().await.with_context(|| format!("the source of `{what}` is gone"))?;
        }
    };
    tokio::time::timeout(limit, looking).await.with_context(|| format!("no {what} within {limit:?}"))?
}

/// Asks again and again until there is an answer: for state that announces no change (files, a foreign
/// process's HTTP answer).
///
/// # Errors
/// After `limit`, with the last refusal.
pub async fn poll<T, F: Future<Output = Result<T>>>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> F,
) -> Result<T> {
    let deadline = tokio::time::Instant::now() + limit;
    let mut every = tokio::time::interval(Duration::from_millis(10));
    loop {
        every.tick().await;
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(refusal) if tokio::time::Instant::now() >= deadline => {
                return Err(refusal).with_context(|| format!("no {what} within {limit:?}"));
            }
            Err(_) => {}
        }
    }
}
