//! Kubernetes events: what the driver has to tell people, on the claims and pods where they look.
//!
//! Decides when what is written, and writes it; what is told is the driver's. What happens again and again is one
//! event with a count, written anew after pauses that grow. The API server may be away, or refuse: nobody but this
//! room notices.
//!
//! Reading order: this file (the loop), `series` (what is due when), `object` (what an event looks like), `server`
//! (where it goes).

mod object;
mod series;
mod server;

#[cfg(test)]
mod tests;

pub use server::KubeEvents;

use crate::clock::{Clock, jittered};
use crate::driver::{Driver, Notice};
use crate::http::metrics::Metrics;
use futures::StreamExt as _;
use futures::future::{BoxFuture, pending};
use futures::stream::FuturesUnordered;
use serde_json::Value;
use series::{Key, Series};
use std::sync::Arc;
use std::time::Duration;

/// Between two tries to reach a server that is away.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What there is to tell.
pub trait Told: Send + Sync {
    /// Waits for notices: all that wait, and how many were lost since the last time. Nothing is lost when it is
    /// dropped.
    fn next(&self) -> BoxFuture<'_, (Vec<Notice>, u64)>;
}

impl Told for Driver {
    fn next(&self) -> BoxFuture<'_, (Vec<Notice>, u64)> {
        Box::pin(self.next_notices())
    }
}

/// Where events go.
pub trait Server: Send + Sync {
    /// Makes an event; one of its name that is there already is this one.
    ///
    /// # Errors
    /// [`Failure`], within a bounded time.
    fn create<'a>(&'a self, namespace: &'a str, event: &'a Value) -> BoxFuture<'a, Result<(), Failure>>;

    /// Merges these fields into an event.
    ///
    /// # Errors
    /// [`Failure`], within a bounded time.
    fn patch<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        fields: &'a Value,
    ) -> BoxFuture<'a, Result<(), Failure>>;
}

/// Why an event is not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// There is no such event, or no such namespace, any more.
    Gone,
    /// The server does not answer, or not now.
    Away(String),
    /// The server does not take this one.
    Refused(String),
}

/// Writes what is told on this node. Ends never.
pub async fn run(
    told: Arc<dyn Told>,
    node: String,
    server: Arc<dyn Server>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
) {
    let mut writer = Writer {
        node,
        server,
        metrics,
        clock,
        series: Series::default(),
        rests: FuturesUnordered::new(),
        trouble: false,
    };
    let mut pause = FIRST_PAUSE;
    let mut away: Option<BoxFuture<'static, ()>> = None;
    loop {
        if away.is_none() {
            if writer.write_all().await {
                pause = FIRST_PAUSE;
            } else {
                away = Some(writer.clock.sleep(jittered(pause)));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        let back = async {
            match &mut away {
                Some(sleep) => sleep.await,
                None => pending().await,
            }
        };
        tokio::select! {
            (notices, lost) = told.next() => {
                let now = writer.clock.now();
                let too_many = notices.into_iter().filter_map(|notice| writer.series.told(notice, now));
                let lost = lost + too_many.map(u64::from).sum::<u64>();
                writer.metrics.events_dropped(lost);
            }
            Some(key) = writer.rests.next() => writer.series.rested(&key),
            () = back => away = None,
        }
    }
}

struct Writer {
    node: String,
    server: Arc<dyn Server>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    series: Series,
    /// The pauses of those that have been written, or cannot be.
    rests: FuturesUnordered<BoxFuture<'static, Key>>,
    /// The last write has failed, and that was logged.
    trouble: bool,
}

impl Writer {
    /// Writes what is due; false when the server is away.
    async fn write_all(&mut self) -> bool {
        while let Some((key, event)) = self.series.due() {
            let namespace = &key.0.namespace;
            let written = match &event.again {
                None => self.server.create(namespace, &object::new(&key, &event, &self.node)).await,
                Some(_) => self.server.patch(namespace, &event.name, &object::again(&event)).await,
            };
            match written {
                Ok(()) => {
                    self.metrics.event_written();
                    if std::mem::take(&mut self.trouble) {
                        tracing::info!("events are written");
                    }
                    let rest = self.series.written(&key, event);
                    self.rest(key, rest);
                }
                Err(Failure::Gone) => self.metrics.events_dropped(self.series.gone(&key).into()),
                Err(Failure::Away(why)) => {
                    self.warn(&why);
                    return false;
                }
                Err(Failure::Refused(why)) => {
                    self.warn(&why);
                    match self.series.refused(&key) {
                        Ok(rest) => self.rest(key, rest),
                        Err(times) => self.metrics.events_dropped(times.into()),
                    }
                }
            }
        }
        true
    }

    fn rest(&self, key: Key, pause: Duration) {
        let over = self.clock.sleep(pause);
        self.rests.push(Box::pin(async move {
            over.await;
            key
        }));
    }

    /// Once, until one is written.
    fn warn(&mut self, why: &str) {
        if !std::mem::replace(&mut self.trouble, true) {
            tracing::warn!("an event about a claim or pod is not written yet, everything else works: {why}");
        }
    }
}
