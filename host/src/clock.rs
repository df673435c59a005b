//! Time, for what waits for it: passed in, so that a test need not wait.

use futures::future::BoxFuture;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant, SystemTime};

/// Somebody's time.
pub trait Clock: Send + Sync {
    /// Ends after so long.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;

    /// What it is. The machine's, unless a test says otherwise.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// For how much has passed: nobody sets this one.
    fn instant(&self) -> Instant {
        Instant::now()
    }
}

/// The time that everybody has.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }
}

/// The pause, a quarter more or less: nodes that lost the API server together do not come back together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 512;
    pause * (768 + u32::try_from(random).unwrap_or_default()) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn pauses_differ_by_a_quarter_at_most() {
        let pauses: BTreeSet<Duration> = (0..100).map(|_| jittered(Duration::from_secs(4))).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
        assert!(pauses.iter().all(|pause| (3_000..5_000).contains(&pause.as_millis())), "{pauses:?}");
    }
}
