//! What operators and monitoring ask over HTTP: `/healthz` (liveness), `/readyz` (readiness, with reasons),
//! `/metrics`. Never changes anything.
//!
//! Reading order: this file, `table` (what the metrics are called), `metrics`.

pub mod metrics;
mod table;

pub(crate) use table::table;

use crate::http1::{self, Bounds};
use crate::readiness::{Part, Readiness};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics::{Metrics, NodeState};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Whether the daemon lives, for the kubelet's liveness probe.
#[derive(Debug, Default)]
pub struct Health(Mutex<Life>);

#[derive(Debug, Default)]
enum Life {
    /// Not registered with the kubelet since the start.
    #[default]
    Starting,
    /// Registered at least once.
    Alive,
    /// A part failed for good.
    Failed(String),
}

impl Health {
    /// The kubelet accepted the registration.
    pub fn registered(&self) {
        let mut life = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*life, Life::Starting) {
            *life = Life::Alive;
        }
    }

    /// A part failed for good: the process is about to end.
    pub fn failed(&self, reason: impl fmt::Display) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Life::Failed(reason.to_string());
    }

    /// What is wrong; none while alive.
    pub(crate) fn problem(&self) -> Option<String> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Life::Starting => Some("not registered with the kubelet since the start".to_owned()),
            Life::Alive => None,
            Life::Failed(reason) => Some(reason.clone()),
        }
    }
}

/// What the answers are made of.
#[derive(Clone)]
pub struct Sources {
    /// Liveness.
    pub health: Arc<Health>,
    /// Readiness.
    pub readiness: Arc<Readiness>,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// The node's state for the gauges, asked at each scrape; `registered` and `nri_connected` are filled
    /// in from the readiness.
    pub state: Arc<dyn Fn() -> NodeState + Send + Sync>,
}

/// Listens on the address. Where the machine has no IPv6, every address is every IPv4 address.
///
/// # Errors
/// When the address is taken, or not this machine's.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.ip().is_unspecified() && address.is_ipv6() && is_unsupported(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// Probes and scrapers keep their connections; nobody else may keep so many that they find none.
const BOUNDS: Bounds =
    Bounds { connections: 1024, head: Duration::from_secs(90), head_bytes: 16 << 10, one_request: None };

/// Answers until `stop`.
pub async fn serve(listener: TcpListener, sources: Sources, stop: CancellationToken) {
    http1::serve(listener, router(sources), BOUNDS, stop).await;
}

fn router(sources: Sources) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(sources)
}

async fn healthz(State(sources): State<Sources>) -> (StatusCode, String) {
    match sources.health.problem() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

async fn readyz(State(sources): State<Sources>) -> (StatusCode, String) {
    let (problems, notes) = (sources.readiness.problems(), sources.readiness.notes());
    let lines =
        |of: &[(Part, String)]| of.iter().map(|(part, why)| format!("{part}: {why}\n")).collect::<String>();
    match problems.is_empty() {
        true => (StatusCode::OK, format!("ready\n{}", lines(&notes))),
        false => (StatusCode::SERVICE_UNAVAILABLE, lines(&problems) + &lines(&notes)),
    }
}

async fn scrape(State(sources): State<Sources>) -> impl IntoResponse {
    let problems = sources.readiness.problems();
    let ready = |part| problems.iter().all(|(problem, _)| *problem != part);
    let state = NodeState {
        registered: ready(Part::Registration),
        nri_connected: ready(Part::Nri),
        ..(sources.state)()
    };
    let content_type = prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
    ([(header::CONTENT_TYPE, content_type)], sources.metrics.render(&state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    struct Served {
        address: SocketAddr,
        sources: Sources,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    impl Served {
        async fn start() -> Self {
            let sources = Sources {
                health: Arc::default(),
                readiness: Arc::default(),
                metrics: Arc::default(),
                state: Arc::new(|| NodeState { reserved_cpus: 5, ..NodeState::default() }),
            };
            let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let address = listener.local_addr().unwrap();
            let stop = CancellationToken::new();
            let task = tokio::spawn(serve(listener, sources.clone(), stop.clone()));
            Self { address, sources, stop, task }
        }

        async fn get(&self, path: &str) -> (u16, String) {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
        }
    }

    #[tokio::test]
    async fn healthz_is_unavailable_until_registered_and_after_a_fatal_fault() {
        let served = Served::start().await;
        assert_eq!(
            served.get("/healthz").await,
            (503, "not registered with the kubelet since the start\n".to_owned())
        );
        served.sources.health.registered();
        served.sources.readiness.not_ready(Part::Registration, "the kubelet restarted");
        assert_eq!(served.get("/healthz").await.0, 200);
        served.sources.health.failed("the DRA socket is gone");
        served.sources.health.registered();
        assert_eq!(served.get("/healthz").await, (503, "the DRA socket is gone\n".to_owned()));
    }

    #[tokio::test]
    async fn readyz_lists_the_reasons() {
        let served = Served::start().await;
        let (status, body) = served.get("/readyz").await;
        assert_eq!(status, 503);
        assert!(
            body.contains("registration: the kubelet has not contacted this driver yet\nnri: "),
            "{body}"
        );
        served.sources.readiness.ready(Part::Registration);
        served.sources.readiness.ready(Part::Nri);
        assert_eq!(served.get("/readyz").await, (200, "ready\n".to_owned()));
        served.sources.readiness.note(Part::Strategy, Some("the file is damaged".to_owned()));
        assert_eq!(served.get("/readyz").await, (200, "ready\nstrategy: the file is damaged\n".to_owned()));
        served.sources.readiness.note(Part::Strategy, None);
        assert_eq!(served.get("/readyz").await.1, "ready\n");
    }

    #[tokio::test]
    async fn metrics_show_state_and_readiness() {
        let served = Served::start().await;
        served.sources.readiness.ready(Part::Nri);
        let (status, body) = served.get("/metrics").await;
        assert_eq!(status, 200);
        for line in ["dra_cpu_reserved_cpus 5", "dra_cpu_registered 0", "dra_cpu_nri_connected 1"] {
            assert!(body.lines().any(|found| found == line), "{line} in {body}");
        }
    }

    #[tokio::test]
    async fn server_ends_when_told_to_also_while_connections_are_kept() {
        let served = Served::start().await;
        let mut kept = TcpStream::connect(served.address).await.unwrap();
        for _ in 0..2 {
            kept.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut answer = [0; 1024];
            let read = kept.read(&mut answer).await.unwrap();
            assert!(answer[..read].starts_with(b"HTTP/1.1 503"), "{}", answer[..read].escape_ascii());
        }
        served.stop.cancel();
        served.task.await.unwrap();
    }
}
