//! What many nodes ask of one API server. Every node's publisher is the real one, the server is a function that counts,
//! and the clock is virtual: ten thousand nodes and an hour take seconds.
//!
//! `NODES=10000 cargo test --workspace --test scale -- --nocapture` prints the figures in `docs/scaling.md`.

#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

use anyhow::Result;
use dracpu::device::{Attribute, Capacity, Device};
use dracpu::readiness::Readiness;
use dracpu::slices::{Pool, run};
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long a server keeps a watch whose client names no time.
const WATCH: Duration = Duration::from_secs(290);
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Stores slices by node, and counts.
struct Server {
    /// Requests of one second beyond these are refused with 429.
    a_second: usize,
    state: Mutex<State>,
    /// Rises when the server goes away: every watch ends.
    gone: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    away_until: Option<Instant>,
    revision: u64,
    nodes: BTreeMap<String, Node>,
    count: Count,
}

/// What the server stores of one node.
#[derive(Default)]
struct Node {
    slices: BTreeMap<String, Value>,
    /// The last event: a node's publisher is the only one who writes.
    event: watch::Sender<Option<Value>>,
}

/// What was asked since the last look.
#[derive(Debug, Default)]
struct Count {
    /// All requests, by second.
    seconds: BTreeMap<u64, usize>,
    /// Those that were answered, by kind.
    answered: BTreeMap<&'static str, usize>,
    /// Requests that name no node: they would cost as much as there are nodes.
    broad: Vec<String>,
}

impl Count {
    fn total(&self) -> usize {
        self.seconds.values().sum()
    }

    fn peak(&self) -> usize {
        self.seconds.values().copied().max().unwrap_or_default()
    }

    fn writes(&self) -> usize {
        ["create", "update", "delete"].iter().filter_map(|kind| self.answered.get(kind)).sum()
    }

    fn refused(&self) -> usize {
        self.total() - self.answered.values().sum::<usize>()
    }
}

impl Server {
    fn new(a_second: usize) -> Arc<Self> {
        Arc::new(Self { a_second, state: Mutex::default(), gone: watch::Sender::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What was asked since the last call.
    fn count(&self) -> Count {
        std::mem::take(&mut self.state().count)
    }

    fn published(&self) -> usize {
        self.state().nodes.values().filter(|node| !node.slices.is_empty()).count()
    }

    /// Every watch ends, and nobody answers for so long.
    fn go_away(&self, time: Duration) {
        self.state().away_until = Some(Instant::now() + time);
        self.gone.send_modify(|times| *times += 1);
    }

    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
                server.answer(&parts.method, &parts.uri.to_string(), &body)
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, uri: &str, body: &[u8]) -> io::Result<Answer> {
        let now = Instant::now();
        let state = &mut *self.state();
        let sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let selected =
            uri.split_once("spec.nodeName%3D").map(|(_, rest)| rest.split('&').next().unwrap_or(rest));
        let (kind, node) = match (method, uri.split('?').next().unwrap_or(uri)) {
            (&Method::GET, path) if path.starts_with("/api/v1/nodes/") => {
                ("get node", path.rsplit('/').next())
            }
            (&Method::GET, SLICES) if uri.contains("watch=") => ("watch", selected),
            (&Method::GET, SLICES) => ("list", selected),
            (&Method::POST, SLICES) => ("create", sent["spec"]["nodeName"].as_str()),
            (&Method::PUT, _) => ("update", sent["spec"]["nodeName"].as_str()),
            _ => ("delete", None),
        };
        let Some(node) = node else {
            state.count.broad.push(format!("{method} {uri}"));
            return Ok(refusal(400));
        };
        let second = state.count.seconds.entry(second_of(now)).or_default();
        *second += 1;
        if state.away_until.is_some_and(|until| now < until) {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens"));
        }
        if *second > self.a_second {
            return Ok(refusal(429));
        }
        *state.count.answered.entry(kind).or_default() += 1;
        state.revision += u64::from(matches!(kind, "create" | "update"));
        let revision = state.revision.to_string();
        let name = node.to_owned();
        let node = state.nodes.entry(name.clone()).or_default();
        Ok(match kind {
            "get node" => answer(&json!({"apiVersion": "v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": name, "uid": format!("uid-of-{name}")}})),
            "list" => {
                let items: Vec<&Value> = node.slices.values().collect();
                answer(&json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
                    "metadata": {"resourceVersion": revision}, "items": items}))
            }
            "watch" => watching(node.event.subscribe(), self.gone.subscribe(), now + WATCH),
            _ => {
                let mut slice = sent;
                let place = node.slices.len();
                let meta = &mut slice["metadata"];
                if meta["name"].is_null() {
                    meta["name"] = format!("{}{place}", meta["generateName"].as_str().unwrap()).into();
                    meta["uid"] = format!("uid-{revision}").into();
                }
                meta["resourceVersion"] = revision.into();
                let event = if kind == "create" { "ADDED" } else { "MODIFIED" };
                node.event.send_replace(Some(json!({"type": event, "object": slice})));
                node.slices.insert(slice["metadata"]["name"].as_str().unwrap().to_owned(), slice.clone());
                answer(&slice)
            }
        })
    }
}

fn second_of(now: Instant) -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    now.saturating_duration_since(*BEGAN.get_or_init(Instant::now)).as_secs()
}

fn answer(value: &Value) -> Answer {
    Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync())
}

fn refusal(code: u16) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": "TooManyRequests", "message": "the server has received too many requests"});
    Response::builder().status(code).body(Full::new(Bytes::from(status.to_string())).boxed_unsync()).unwrap()
}

/// Events until the time is over, or the server gone.
fn watching(
    mut events: watch::Receiver<Option<Value>>,
    mut gone: watch::Receiver<u64>,
    until: Instant,
) -> Answer {
    events.mark_unchanged();
    gone.mark_unchanged();
    let next = move |(mut events, mut gone): (watch::Receiver<Option<Value>>, watch::Receiver<u64>)| async move {
        let event = tokio::select! {
            () = sleep_until(until) => None,
            _ = gone.changed() => None,
            changed = events.changed() => changed.ok().and_then(|()| events.borrow_and_update().clone()),
        };
        let line = format!("{}\n", event?);
        Some((Ok(Frame::data(Bytes::from(line))), (events, gone)))
    };
    Response::new(StreamBody::new(stream::unfold((events, gone), next)).boxed_unsync())
}

/// The devices of a usual server: two NUMA nodes.
fn devices(cpus: u32) -> Arc<Vec<Device>> {
    let device = |node: u32| Device {
        name: format!("cpudevnuma{node:03}"),
        cpus: format!("{}-{}", node * cpus, node * cpus + cpus - 1).parse().unwrap(),
        attributes: BTreeMap::from([("dra.cpu/numaNodeID".to_owned(), Attribute::Int(node.into()))]),
        capacity: Some(Capacity { cpus, step: 1, kept: 0 }),
    };
    Arc::new((0..2).map(device).collect())
}

/// A cluster: each node has a publisher that can be stopped and started.
struct Cluster {
    server: Arc<Server>,
    nodes: Vec<Running>,
    tasks: JoinSet<anyhow::Result<()>>,
}

struct Running {
    stop: CancellationToken,
    devices: watch::Sender<Arc<Vec<Device>>>,
}

impl Cluster {
    fn start(server: Arc<Server>, nodes: usize) -> Self {
        let mut cluster = Self { server, nodes: Vec::new(), tasks: JoinSet::new() };
        cluster.nodes = (0..nodes).map(|node| cluster.begin(node)).collect();
        cluster
    }

    fn begin(&mut self, node: usize) -> Running {
        let stop = CancellationToken::new();
        let devices = watch::Sender::new(devices(32));
        let pool = Pool { node_name: format!("node-{node:05}"), map_node_allocatable: false };
        let readiness = Arc::new(Readiness::default());
        self.tasks.spawn(run(
            self.server.client(),
            pool,
            devices.subscribe(),
            readiness,
            Arc::default(),
            stop.clone(),
        ));
        Running { stop, devices }
    }

    fn restart(&mut self, node: usize) {
        self.nodes[node].stop.cancel();
        self.nodes[node] = self.begin(node);
    }

    /// Lets the time pass until every node is published; how long that took.
    async fn published(&self) -> Duration {
        let began = Instant::now();
        while self.server.published() < self.nodes.len() {
            sleep(Duration::from_millis(100)).await;
            assert!(began.elapsed() < Duration::from_secs(3600), "{} are published", self.server.published());
        }
        began.elapsed()
    }
}

fn report(what: &str, nodes: usize, count: &Count) {
    assert_eq!(count.broad, [""; 0], "requests that no node is named in");
    let each = |requests: usize| requests as f64 / nodes as f64;
    println!(
        "{what}: {} requests, {:.2} a node, {} in the busiest second, {} refused; {:?}",
        count.total(),
        each(count.total()),
        count.peak(),
        count.refused(),
        count.answered
    );
}

#[tokio::test(start_paused = true)]
async fn many_nodes_ask_only_for_their_own_and_give_way() -> Result<()> {
    let nodes: usize = std::env::var("NODES").map_or(Ok(300), |nodes| nodes.parse())?;
    // As much as a tenth of the nodes ask in one second, and no more.
    let server = Server::new(nodes / 10);
    let mut cluster = Cluster::start(server.clone(), nodes);
    let took = cluster.published().await;
    sleep(Duration::from_secs(120)).await;
    let count = server.count();
    report(&format!("all of {nodes} nodes start at once, published within {took:?}"), nodes, &count);
    assert_eq!(count.writes(), nodes);
    assert!(count.total() < 20 * nodes, "each tries again a few times, with growing pauses");
    assert!(took < Duration::from_secs(300), "{took:?}");

    sleep(Duration::from_secs(3600)).await;
    let count = server.count();
    report("an hour in which nothing changes", nodes, &count);
    assert_eq!(count.writes(), 0);
    assert_eq!(
        count.answered.keys().collect::<Vec<_>>(),
        [&"watch"],
        "watches are begun anew, and nothing else"
    );

    let few = (nodes / 100).max(1);
    for node in 0..few {
        cluster.restart(node * 100 % nodes);
    }
    sleep(Duration::from_secs(60)).await;
    let count = server.count();
    report(&format!("a minute in which {few} of the drivers are restarted"), nodes, &count);
    assert_eq!(count.writes(), 0, "what is there is right");

    for node in 0..few {
        cluster.nodes[node].devices.send_replace(devices(31));
    }
    sleep(Duration::from_secs(60)).await;
    let count = server.count();
    report(&format!("a minute in which the CPUs of {few} nodes change"), nodes, &count);
    assert_eq!(count.writes(), few);

    server.go_away(Duration::from_secs(120));
    sleep(Duration::from_secs(120)).await;
    report("two minutes in which the server is away", nodes, &server.count());
    sleep(Duration::from_secs(300)).await;
    let count = server.count();
    report("five minutes after it is back", nodes, &count);
    assert_eq!(count.writes(), 0);
    assert!(count.peak() <= nodes / 5, "they do not come back all at once: {}", count.peak());
    Ok(())
}
