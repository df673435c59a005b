//! What monitoring is told of the strategies: which one is active, and what is not as configured.

use crate::driver::{Driver, StrategyInfo, Unusable};
use crate::http::metrics::Metrics;
use crate::readiness::{Part, Readiness};
use crate::reload::Outcome;
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

    /// Configuration and components have been read again.
    pub(crate) fn reloaded(&self, Outcome { faults, restart }: &Outcome) {
        self.active();
        let active = self.driver.strategy().ok().flatten();
        let active = active.map(|active| format!("{} {} {}", active.name, active.version, active.digest));
        let active = active.unwrap_or_else(|| "none".to_owned());
        let mut notes = Vec::new();
        for Unusable { strategy, why } in faults {
            self.metrics.strategy_failure(strategy, "load");
            tracing::error!(active, "not reloaded: {why}");
            notes.push(format!("not reloaded: {why}"));
        }
        if faults.is_empty() {
            tracing::info!(active, "strategies reloaded");
        }
        if !restart.is_empty() {
            let keys = restart.join(", ");
            tracing::warn!("changed in the configuration, needs a restart: {keys}");
            notes.push(format!("needs a restart: {keys}"));
        }
        self.readiness.note(Part::Strategy, Some(notes.join("; ")).filter(|notes| !notes.is_empty()));
    }
}
