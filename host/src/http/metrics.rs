//! The metrics, and the methods with which the edges observe. Labels come from closed sets.

use super::table::{self, Definition};
use crate::nri::{Hook, Observer};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Prometheus' default buckets, in seconds.
const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const MODES: [&str; 2] = ["shared", "exclusive"];
const WRITTEN: Labels<1> = [("result", "written")];
const DROPPED: Labels<1> = [("result", "dropped")];

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    /// It worked.
    Success,
    /// It did not.
    Error,
    /// Nobody waited for its end: the kubelet dropped the call.
    Unknown,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Success, Self::Error, Self::Unknown];

    fn of(ok: bool) -> Self {
        if ok { Self::Success } else { Self::Error }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Unknown => "unknown",
        }
    }
}

/// An operation on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOperation {
    /// `NodePrepareResources`
    Prepare,
    /// `NodeUnprepareResources`
    Unprepare,
}

impl ClaimOperation {
    /// As in the spans of the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Unprepare => "unprepare",
        }
    }
}

/// What the gauges show: the node's state at the time of a scrape.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeState {
    /// CPUs that claims hold.
    pub allocated_cpus: usize,
    /// CPUs that claims can still get.
    pub available_cpus: usize,
    /// CPUs that are reserved by configuration.
    pub reserved_cpus: usize,
    /// Claims that are prepared.
    pub active_claims: usize,
    /// CPUs of claims that are reserved since.
    pub stranded_cpus: usize,
    /// CPUs that records of several claims name.
    pub conflicted_cpus: usize,
    /// Claims without object and container.
    pub orphaned_claims: usize,
    /// Containers that have yet to be told of a change of the shared pool.
    pub shared_pool_pending: usize,
    /// For how long containers ran on CPUs that claims hold for others, since the start.
    pub overlap: Duration,
    /// Registered with the kubelet now.
    pub registered: bool,
    /// Connected to the runtime and synchronized now.
    pub nri_connected: bool,
}

type Labels<const N: usize> = [(&'static str, &'static str); N];
type Owned<const N: usize> = [(&'static str, String); N];
type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// All metrics of the daemon.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The gauges are set and written under it, so that a scrape sees one state.
    scrape: Mutex<()>,
    gauges: Gauges,
    prepare: Family<Labels<1>, Counter>,
    unprepare: Family<Labels<1>, Counter>,
    prepare_seconds: Histogram,
    unprepare_seconds: Histogram,
    claim_cpus: Histogram,
    synchronize: Histograms<1>,
    create: Histograms<2>,
    stop: Histograms<2>,
    remove: Histograms<2>,
    strategy_info: Family<Owned<3>, Gauge>,
    strategy_failures: Family<Owned<2>, Counter>,
    overlap: Counter<f64, AtomicU64>,
    events: Family<Labels<1>, Counter>,
}

#[derive(Debug, Default)]
struct Gauges {
    allocated: Gauge,
    available: Gauge,
    reserved: Gauge,
    active: Gauge,
    stranded: Gauge,
    conflicted: Gauge,
    orphaned: Gauge,
    pending: Gauge,
    registered: Gauge,
    nri_connected: Gauge,
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// Adds a metric under its defined name. The library itself adds `_total` to counters and a full stop to
/// the help text.
fn add<M: Metric + Clone>(registry: &mut Registry, definition: &Definition, metric: M) -> M {
    let name = definition.name.strip_suffix("_total").unwrap_or(definition.name);
    registry.register(name, definition.help, metric.clone());
    metric
}

fn results(result: Outcome) -> Labels<1> {
    [("result", result.name())]
}

fn results_and_mode(result: Outcome, mode: &'static str) -> Labels<2> {
    [("result", result.name()), ("cpu_allocation_mode", mode)]
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let r = &mut registry;
        let gauges = Gauges {
            allocated: add(r, &table::ALLOCATED, Gauge::default()),
            available: add(r, &table::AVAILABLE, Gauge::default()),
            reserved: add(r, &table::RESERVED, Gauge::default()),
            active: add(r, &table::ACTIVE, Gauge::default()),
            stranded: add(r, &table::STRANDED, Gauge::default()),
            conflicted: add(r, &table::CONFLICTED, Gauge::default()),
            orphaned: add(r, &table::ORPHANED, Gauge::default()),
            pending: add(r, &table::PENDING, Gauge::default()),
            registered: add(r, &table::REGISTERED, Gauge::default()),
            nri_connected: add(r, &table::NRI_CONNECTED, Gauge::default()),
        };
        let metrics = Self {
            gauges,
            scrape: Mutex::default(),
            prepare: add(r, &table::PREPARE, Family::default()),
            unprepare: add(r, &table::UNPREPARE, Family::default()),
            prepare_seconds: add(r, &table::PREPARE_SECONDS, seconds()),
            unprepare_seconds: add(r, &table::UNPREPARE_SECONDS, seconds()),
            claim_cpus: add(r, &table::CLAIM_CPUS, Histogram::new(exponential_buckets(1.0, 2.0, 11))),
            synchronize: add(
                r,
                &table::SYNCHRONIZE,
                Family::new_with_constructor(seconds as fn() -> Histogram),
            ),
            create: add(r, &table::CREATE, Family::new_with_constructor(seconds as fn() -> Histogram)),
            stop: add(r, &table::STOP, Family::new_with_constructor(seconds as fn() -> Histogram)),
            remove: add(r, &table::REMOVE, Family::new_with_constructor(seconds as fn() -> Histogram)),
            strategy_info: add(r, &table::STRATEGY_INFO, Family::default()),
            strategy_failures: add(r, &table::STRATEGY_FAILURES, Family::default()),
            overlap: add(r, &table::OVERLAP, Counter::default()),
            events: add(r, &table::EVENTS, Family::default()),
            registry,
        };
        metrics.create_series();
        metrics
    }
}

impl Metrics {
    /// Makes every series of a closed set, so that rates start from zero.
    fn create_series(&self) {
        for result in [WRITTEN, DROPPED] {
            drop(self.events.get_or_create(&result));
        }
        for result in Outcome::ALL {
            drop(self.prepare.get_or_create(&results(result)));
            drop(self.unprepare.get_or_create(&results(result)));
            drop(self.synchronize.get_or_create(&results(result)));
            for mode in MODES {
                for hook in [&self.create, &self.stop, &self.remove] {
                    drop(hook.get_or_create(&results_and_mode(result, mode)));
                }
            }
        }
    }

    /// Starts the clock of an operation on a claim; the operation is counted when the timer is dropped.
    #[must_use]
    pub fn claim_operation(&self, operation: ClaimOperation) -> ClaimTimer<'_> {
        ClaimTimer { metrics: self, operation, started: Instant::now(), outcome: Outcome::Unknown }
    }

    /// A claim was prepared with so many CPUs.
    pub fn claim_cpus(&self, cpus: usize) {
        self.claim_cpus.observe(u32::try_from(cpus).unwrap_or(u32::MAX).into());
    }

    /// A strategy gave no CPUs; `kind` is from a closed set.
    pub fn strategy_failure(&self, strategy: &str, kind: &str) {
        let labels = [("strategy", strategy.to_owned()), ("kind", kind.to_owned())];
        self.strategy_failures.get_or_create(&labels).inc();
    }

    /// The strategy that is active.
    pub fn strategy(&self, name: &str, version: &str, digest: &str) {
        self.strategy_info.clear();
        let labels =
            [("name", name.to_owned()), ("version", version.to_owned()), ("digest", digest.to_owned())];
        self.strategy_info.get_or_create(&labels).set(1);
    }

    /// An event was written.
    pub fn event_written(&self) {
        self.events.get_or_create(&WRITTEN).inc();
    }

    /// So many events will not be written.
    pub fn events_dropped(&self, count: u64) {
        self.events.get_or_create(&DROPPED).inc_by(count);
    }

    /// Everything in the Prometheus text format, the gauges as in `state`.
    pub(crate) fn render(&self, state: &NodeState) -> String {
        let _one_at_a_time = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        let gauges = &self.gauges;
        for (gauge, value) in [
            (&gauges.allocated, state.allocated_cpus),
            (&gauges.available, state.available_cpus),
            (&gauges.reserved, state.reserved_cpus),
            (&gauges.active, state.active_claims),
            (&gauges.stranded, state.stranded_cpus),
            (&gauges.conflicted, state.conflicted_cpus),
            (&gauges.orphaned, state.orphaned_claims),
            (&gauges.pending, state.shared_pool_pending),
            (&gauges.registered, state.registered.into()),
            (&gauges.nri_connected, state.nri_connected.into()),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        // Under the lock, so that nobody else adds to it meanwhile.
        self.overlap.inc_by((state.overlap.as_secs_f64() - self.overlap.get()).max(0.0));
        let mut text = String::new();
        // Fails only when the writer does; a string does not.
        let _infallible = prometheus_text::encode(&mut text, &self.registry);
        text
    }
}

impl Observer for Metrics {
    fn nri_hook(&self, hook: Hook, ok: bool, exclusive: bool, duration: Duration) {
        let family = match hook {
            Hook::Create => &self.create,
            Hook::Stop => &self.stop,
            Hook::Remove => &self.remove,
        };
        let mode = if exclusive { "exclusive" } else { "shared" };
        family.get_or_create(&results_and_mode(Outcome::of(ok), mode)).observe(duration.as_secs_f64());
    }

    fn nri_synchronize(&self, ok: bool, duration: Duration) {
        self.synchronize.get_or_create(&results(Outcome::of(ok))).observe(duration.as_secs_f64());
    }
}

/// Observes an operation on a claim when dropped, as `unknown` unless told otherwise.
#[derive(Debug)]
pub struct ClaimTimer<'a> {
    metrics: &'a Metrics,
    operation: ClaimOperation,
    started: Instant,
    outcome: Outcome,
}

impl ClaimTimer<'_> {
    /// How the operation ended.
    pub fn finish(mut self, ok: bool) {
        self.outcome = Outcome::of(ok);
    }
}

impl Drop for ClaimTimer<'_> {
    fn drop(&mut self) {
        let (count, seconds) = match self.operation {
            ClaimOperation::Prepare => (&self.metrics.prepare, &self.metrics.prepare_seconds),
            ClaimOperation::Unprepare => (&self.metrics.unprepare, &self.metrics.unprepare_seconds),
        };
        count.get_or_create(&results(self.outcome)).inc();
        seconds.observe(self.started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_series_starts_at_zero() {
        let text = Metrics::default().render(&NodeState::default());
        for result in ["success", "error", "unknown"] {
            for name in ["dra_cpu_prepare_claims_total", "dra_cpu_unprepare_claims_total"] {
                let line = format!("{name}{{result=\"{result}\"}} 0");
                assert!(text.lines().any(|found| found == line), "{line}");
            }
            let line = format!("dra_cpu_nri_synchronize_duration_seconds_count{{result=\"{result}\"}} 0");
            assert!(text.lines().any(|found| found == line), "{line}");
            for mode in MODES {
                let line = format!(
                    "dra_cpu_nri_create_container_duration_seconds_count{{result=\"{result}\",cpu_allocation_mode=\"{mode}\"}} 0"
                );
                assert!(text.lines().any(|found| found == line), "{line}");
            }
        }
    }

    #[test]
    fn dropped_operation_is_unknown() {
        let metrics = Metrics::default();
        drop(metrics.claim_operation(ClaimOperation::Prepare));
        metrics.claim_operation(ClaimOperation::Prepare).finish(true);
        metrics.claim_operation(ClaimOperation::Unprepare).finish(false);
        let text = metrics.render(&NodeState { allocated_cpus: 3, registered: true, ..NodeState::default() });
        for line in [
            "dra_cpu_prepare_claims_total{result=\"unknown\"} 1",
            "dra_cpu_prepare_claims_total{result=\"success\"} 1",
            "dra_cpu_unprepare_claims_total{result=\"error\"} 1",
            "dra_cpu_prepare_claim_duration_seconds_count 2",
            "dra_cpu_allocated_cpus 3",
            "dra_cpu_registered 1",
            "dra_cpu_nri_connected 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
    }

    #[test]
    fn the_overlap_is_that_of_the_state_and_never_goes_back() {
        let metrics = Metrics::default();
        let shown = |seconds: f64| {
            let overlap = Duration::from_secs_f64(seconds);
            let text = metrics.render(&NodeState { overlap, ..NodeState::default() });
            let line = text.lines().find_map(|line| line.strip_prefix("dra_cpu_overlap_seconds_total "));
            line.unwrap().parse::<f64>().unwrap()
        };
        assert_eq!((shown(0.0), shown(1.5), shown(1.0), shown(2.25)), (0.0, 1.5, 1.5, 2.25));
    }

    #[test]
    fn buckets_are_those_that_dashboards_know() {
        let metrics = Metrics::default();
        metrics.claim_cpus(3);
        let text = metrics.render(&NodeState::default());
        for line in [
            "dra_cpu_claim_allocated_cpus_bucket{le=\"2\"} 0",
            "dra_cpu_claim_allocated_cpus_bucket{le=\"4\"} 1",
            "dra_cpu_claim_allocated_cpus_bucket{le=\"1024\"} 1",
            "dra_cpu_prepare_claim_duration_seconds_bucket{le=\"0.005\"} 0",
            "dra_cpu_prepare_claim_duration_seconds_bucket{le=\"10\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
    }
}
