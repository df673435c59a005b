//! Time, for what waits for it: passed in, so that a test need not wait.

use futures::future::BoxFuture;
use std::time::Duration;

/// Somebody's time.
pub trait Clock: Send + Sync {
    /// Ends after so long.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;
}

/// The time that everybody has.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }
}
