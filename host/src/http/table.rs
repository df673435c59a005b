//! What the metrics are called. The names of the first part are those of the Go driver for `dra.cpu`:
//! dashboards know them.

use serde_json::{Value, json};

/// A metric as `dracpu introspect metrics` shows it.
pub(super) struct Definition {
    pub(super) name: &'static str,
    kind: Kind,
    /// `STABLE`: name and labels stay; `ALPHA`: they may change.
    stability: &'static str,
    pub(super) help: &'static str,
    labels: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

macro_rules! definitions {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $stability:ident $help:literal;)*) => {
        $(pub(super) const $constant: Definition = Definition {
            name: $name,
            kind: Kind::$kind,
            stability: stringify!($stability),
            help: $help,
            labels: &[$($label),*],
        };)*
        const TABLE: &[Definition] = &[$($constant),*];
    };
}

definitions! {
    ALLOCATED: Gauge "dra_cpu_allocated_cpus" [] STABLE "CPUs that claims hold";
    AVAILABLE: Gauge "dra_cpu_available_cpus" [] STABLE "CPUs that claims can still get";
    RESERVED: Gauge "dra_cpu_reserved_cpus" [] STABLE "CPUs that are reserved by configuration";
    ACTIVE: Gauge "dra_cpu_resource_claims_active" [] STABLE "Claims that are prepared";
    PREPARE: Counter "dra_cpu_prepare_claims_total" ["result"] STABLE "Claims that the kubelet asked to prepare";
    UNPREPARE: Counter "dra_cpu_unprepare_claims_total" ["result"] STABLE "Claims that the kubelet asked to unprepare";
    PREPARE_SECONDS: Histogram "dra_cpu_prepare_claim_duration_seconds" [] STABLE "Time to prepare a claim";
    UNPREPARE_SECONDS: Histogram "dra_cpu_unprepare_claim_duration_seconds" [] STABLE "Time to unprepare a claim";
    CLAIM_CPUS: Histogram "dra_cpu_claim_allocated_cpus" [] STABLE "CPUs of a claim that was prepared";
    SYNCHRONIZE: Histogram "dra_cpu_nri_synchronize_duration_seconds" ["result"] STABLE
        "Time to answer Synchronize of the container runtime";
    CREATE: Histogram "dra_cpu_nri_create_container_duration_seconds" ["result", "cpu_allocation_mode"] STABLE
        "Time to answer CreateContainer of the container runtime";
    STOP: Histogram "dra_cpu_nri_stop_container_duration_seconds" ["result", "cpu_allocation_mode"] STABLE
        "Time to answer StopContainer of the container runtime";
    REMOVE: Histogram "dra_cpu_nri_remove_container_duration_seconds" ["result", "cpu_allocation_mode"] STABLE
        "Time to answer RemoveContainer of the container runtime";
    STRATEGY_INFO: Gauge "dra_cpu_strategy_info" ["name", "version", "digest"] ALPHA
        "The active strategy; the value is 1";
    STRATEGY_FAILURES: Counter "dra_cpu_strategy_failures_total" ["strategy", "kind"] ALPHA
        "Claims for which a strategy gave no CPUs, and changes of strategies that were not taken over (kind load)";
    REGISTERED: Gauge "dra_cpu_registered" [] ALPHA "1 while registered with the kubelet";
    NRI_CONNECTED: Gauge "dra_cpu_nri_connected" [] ALPHA
        "1 while connected to the container runtime and synchronized";
    STRANDED: Gauge "dra_cpu_stranded_cpus" [] ALPHA
        "CPUs of claims that the configuration reserves since they were prepared";
    CONFLICTED: Gauge "dra_cpu_conflicted_cpus" [] ALPHA "CPUs that records of several claims name";
    ORPHANED: Gauge "dra_cpu_orphaned_claims" [] ALPHA
        "Prepared claims without a claim object and without a container";
    OVERLAP: Counter "dra_cpu_overlap_seconds_total" [] ALPHA
        "Time in which containers ran on CPUs that claims hold for others, as far as it is known: since their start for those \
         that started while the driver was away (where the runtime tells it, NRI 0.10), and until a new mask was \
         handed to the runtime";
    EVENTS: Counter "dra_cpu_events_total" ["result"] ALPHA
        "Kubernetes events about claims and pods: written, each repetition that was written too, or dropped since too many \
         waited or the API server took none";
    PENDING: Gauge "dra_cpu_shared_pool_pending" [] ALPHA
        "Containers that have yet to be told of a change of the shared pool: at the next hook, where the runtime bears no \
         other updates";
}

/// The table of metrics as JSON.
#[must_use]
pub(crate) fn table() -> Value {
    let metrics: Vec<Value> = TABLE
        .iter()
        .map(|metric| {
            json!({
                "name": metric.name,
                "type": metric.kind.name(),
                "stability": metric.stability,
                "help": metric.help,
                "labels": metric.labels,
            })
        })
        .collect();
    json!({"schema": "dracpu.metrics/v1", "metrics": metrics})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::metrics::{Metrics, NodeState};
    use std::collections::BTreeSet;

    #[test]
    fn table_is_what_is_served() {
        let metrics = Metrics::default();
        metrics.strategy("packed", "1.0.0", "sha256:0");
        metrics.strategy_failure("packed", "trap");
        let text = metrics.render(&NodeState::default());
        let served: BTreeSet<(&str, &str)> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let table: BTreeSet<_> = TABLE.iter().map(|metric| (metric.name, metric.kind.name())).collect();
        assert_eq!(served, table);
        for metric in TABLE {
            for label in metric.labels {
                let labelled = format!("{label}=\"");
                assert!(
                    text.lines().any(|line| line.starts_with(metric.name) && line.contains(&labelled)),
                    "{} {label}",
                    metric.name
                );
            }
        }
    }
}
