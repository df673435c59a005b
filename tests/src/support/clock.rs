//! Time for stand-ins that wait long: the machine's own, or one that a test moves.

use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Somebody's time.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's, since then.
    Machine(Instant),
    /// Whatever the test says.
    Told(watch::Receiver<Duration>),
}

impl Clock {
    /// The machine's own time.
    #[must_use]
    pub fn machine() -> Self {
        Self::Machine(Instant::now())
    }

    /// A time that stands still until it is moved.
    #[must_use]
    pub fn told() -> (Self, Hands) {
        let (hands, time) = watch::channel(Duration::ZERO);
        (Self::Told(time), Hands(hands))
    }

    /// The time since some moment.
    #[must_use]
    pub fn now(&self) -> Duration {
        match self {
            Self::Machine(begin) => begin.elapsed(),
            Self::Told(time) => *time.borrow(),
        }
    }

    /// Ends so long after this call.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        let end = self.now() + time;
        let clock = self.clone();
        async move {
            match clock {
                Self::Machine(_) => tokio::time::sleep(time).await,
                Self::Told(mut now) => {
                    let reached = now.wait_for(|now| *now >= end).await.is_ok();
                    if !reached {
                        std::future::pending().await // without hands it never gets there
                    }
                }
            }
        }
    }
}

/// Moves a told time.
#[derive(Debug)]
pub struct Hands(watch::Sender<Duration>);

impl Hands {
    /// So much later.
    pub fn advance(&self, time: Duration) {
        self.0.send_modify(|now| *now += time);
    }
}
