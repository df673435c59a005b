//! What monitoring is told of the strategies: which one is active, and what is not as configured.

use crate::driver::{Driver, StrategyInfo, Unusable};
use crate::http::metrics::Metrics;
use crate::readiness::{Part, Readiness};
use crate::reload::Outcome;
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
    pub(crate) fn configured(&self, outcome: &Outcome) {
        let Outcome { is_reload, faults, known, compiling, restart } = outcome;
        self.active();
        let active = self.driver.strategy().ok().flatten();
        let active = active.map(|active| format!("{} {} {}", active.name, active.version, active.digest));
        let active = active.unwrap_or_else(|| "none".to_owned());
        let note = |Unusable { why, .. }: &Unusable| match is_reload {
            true => format!("not reloaded: {why}"),
            false => why.clone(),
        };
        for fault in faults {
            self.metrics.strategy_failure(&fault.strategy, "load");
            tracing::error!(active, "{}", note(fault));
        }
        let mut notes: Vec<String> = known.iter().chain(faults).map(note).collect();
        if !compiling.is_empty() {
            let note = format!("still compiling: {}", names(compiling));
            tracing::info!(active, "{note}; claims that need it are refused until it is done");
            notes.push(note);
        } else if *is_reload && faults.is_empty() {
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
