//! What monitoring is told of the strategies: which one is active, and what is not as configured.

use crate::driver::{Driver, StrategyInfo, Unusable};
use crate::http::metrics::Metrics;
use crate::readiness::{Part, Readiness};
use crate::reload::{Happened, News, Standing};
use crate::words::{listed, names};
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Report {
    pub(crate) driver: Arc<Driver>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Arc<Readiness>,
}

impl Report {
    /// The active strategy may be another one, or be unusable.
    pub(crate) fn active(&self) {
        match self.driver.strategy() {
            Ok(strategy) => {
                if let Some(StrategyInfo { name, version, digest, .. }) = strategy {
                    self.metrics.strategy(&name, &version, &digest);
                }
                self.readiness.ready(Part::Strategy);
            }
            Err(why) => self.readiness.not_ready(Part::Strategy, why),
        }
    }

    /// The driver has started with its configuration and components, or they have been read again.
    pub(crate) fn configured(&self, news: News<'_>) {
        let News { standing, failed, happened } = news;
        self.active();
        let active = self.driver.strategy().ok().flatten();
        let active = active.map(|active| format!("{} {} {}", active.name, active.version, active.digest));
        let active = active.unwrap_or_else(|| "none".to_owned());
        for Unusable { strategy, why } in &failed {
            self.metrics.strategy_failure(strategy, "load");
            tracing::error!(active, "{why}");
        }
        let Standing { unreadable, unusable, compiling, restart } = standing;
        let mut notes: Vec<String> =
            unreadable.iter().chain(unusable).map(|fault| fault.why.clone()).collect();
        if !compiling.is_empty() {
            let note = format!("still compiling: {}", names(compiling));
            tracing::info!(active, "{note}; what was loaded before goes on");
            notes.push(note);
        } else if happened != Happened::Started && failed.is_empty() {
            tracing::info!(active, "strategies reloaded");
        }
        if !restart.is_empty() {
            let keys = restart.join(", ");
            tracing::warn!("changed in the configuration, needs a restart: {keys}");
            notes.push(format!("needs a restart: {keys}"));
        }
        self.readiness.note(Part::Strategy, Some(listed(&notes)).filter(|_| !notes.is_empty()));
    }
}
