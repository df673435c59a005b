//! The pump against a stand-in for the API server: a small store behind real HTTP.

use super::{Pool, Progress, Published, run};
use crate::device::{Attribute, Capacity, Device};
use crate::readiness::{Part, Readiness};
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

#[derive(Default)]
struct Store {
    version: u64,
    slices: BTreeMap<String, Value>,
    /// (resource version, watch event)
    events: Vec<(u64, Value)>,
    /// Verbs as they came: `list`, `create`, `update`, `delete`, `node`.
    calls: Vec<&'static str>,
    node_uid: Option<&'static str>,
    /// Answer the next call of this verb with this status.
    fail: Option<(&'static str, u16)>,
    /// As with the feature gate DRAConsumableCapacity off.
    strip: bool,
}

impl Store {
    /// Notes the call; gives the status that it must fail with.
    fn call(&mut self, verb: &'static str) -> Option<u16> {
        self.calls.push(verb);
        self.fail.take_if(|(failing, _)| *failing == verb).map(|(_, status)| status)
    }

    fn write(&mut self, name: &str, mut slice: Value, event: &str) -> Value {
        self.version += 1;
        slice["metadata"]["name"] = json!(name);
        slice["metadata"]["uid"] = json!(format!("uid of {name}"));
        slice["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if self.strip {
            for device in slice["spec"]["devices"].as_array_mut().unwrap() {
                device.as_object_mut().unwrap().remove("allowMultipleAllocations");
            }
        }
        self.events.push((self.version, json!({"type": event, "object": slice.clone()})));
        match event {
            "DELETED" => self.slices.remove(name),
            _ => self.slices.insert(name.to_owned(), slice.clone()),
        };
        slice
    }

    fn count(&self, verb: &str) -> usize {
        self.calls.iter().filter(|call| **call == verb).count()
    }

    fn generations(&self) -> Vec<i64> {
        self.slices.values().map(|slice| slice["spec"]["pool"]["generation"].as_i64().unwrap()).collect()
    }
}

fn failure(status: u16) -> Response {
    let body =
        json!({"kind": "Status", "status": "Failure", "code": status, "message": "as the test wants it"});
    (StatusCode::from_u16(status).unwrap(), Json(body)).into_response()
}

#[derive(Clone)]
struct Api {
    store: Arc<Mutex<Store>>,
    /// Told after every change of the store.
    changed: watch::Sender<()>,
    url: OnceLock<String>,
}

impl Api {
    fn with<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let result = change(&mut self.store.lock().unwrap());
        self.changed.send_replace(());
        result
    }

    async fn until(&self, what: &str, holds: impl Fn(&Store) -> bool) {
        let mut changed = self.changed.subscribe();
        let wait = async {
            while !holds(&self.store.lock().unwrap()) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), wait).await.is_err() {
            panic!("no {what}: {:?}", self.store.lock().unwrap().calls);
        }
    }

    async fn serve() -> Self {
        let api = Self { store: Arc::default(), changed: watch::channel(()).0, url: OnceLock::new() };
        api.with(|store| store.node_uid = Some("node-uid"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        api.url.set(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let router = Router::new()
            .route("/api/v1/nodes/{name}", get(node))
            .route(SLICES, get(list_or_watch).post(create))
            .route(&format!("{SLICES}/{{name}}"), put(update).delete(delete))
            .with_state(api.clone());
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        api
    }

    fn client(&self) -> kube::Client {
        kube::Client::try_from(kube::Config::new(self.url.get().unwrap().parse().unwrap())).unwrap()
    }
}

async fn node(State(api): State<Api>, Path(name): Path<String>) -> Response {
    api.with(|store| match (store.call("node"), store.node_uid) {
        (Some(status), _) => failure(status),
        (None, Some(uid)) => Json(json!({"metadata": {"name": name, "uid": uid}})).into_response(),
        (None, None) => failure(404),
    })
}

async fn list_or_watch(State(api): State<Api>, Query(query): Query<BTreeMap<String, String>>) -> Response {
    assert_eq!(query["fieldSelector"], "spec.driver=dra.cpu,spec.nodeName=n");
    if query.get("watch").is_none_or(|watch| watch != "true") {
        return api.with(|store| match store.call("list") {
            Some(status) => failure(status),
            None => {
                let items: Vec<_> = store.slices.values().collect();
                let version = store.version.to_string();
                Json(json!({"metadata": {"resourceVersion": version}, "items": items})).into_response()
            }
        });
    }
    let from: u64 = query["resourceVersion"].parse().unwrap();
    let changed = api.changed.subscribe();
    let events = futures::stream::unfold((api, changed, from), |(api, mut changed, from)| async move {
        loop {
            let next = api.store.lock().unwrap().events.iter().find(|(version, _)| *version > from).cloned();
            if let Some((version, event)) = next {
                return Some((Ok::<_, std::io::Error>(format!("{event}\n")), (api, changed, version)));
            }
            changed.changed().await.ok()?;
        }
    });
    Body::from_stream(events).into_response()
}

async fn create(State(api): State<Api>, Json(slice): Json<Value>) -> Response {
    api.with(|store| {
        if let Some(status) = store.call("create") {
            return failure(status);
        }
        let name = format!("{}{}", slice["metadata"]["generateName"].as_str().unwrap(), store.version);
        Json(store.write(&name, slice, "ADDED")).into_response()
    })
}

async fn update(State(api): State<Api>, Path(name): Path<String>, Json(slice): Json<Value>) -> Response {
    api.with(|store| {
        if let Some(status) = store.call("update") {
            return failure(status);
        }
        let Some(stored) = store.slices.get(&name) else { return failure(404) };
        if stored["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"] {
            return failure(409);
        }
        Json(store.write(&name, slice, "MODIFIED")).into_response()
    })
}

async fn delete(State(api): State<Api>, Path(name): Path<String>, Json(options): Json<Value>) -> Response {
    api.with(|store| {
        if let Some(status) = store.call("delete") {
            return failure(status);
        }
        let Some(slice) = store.slices.get(&name).cloned() else { return failure(404) };
        assert_eq!(options["preconditions"]["uid"], slice["metadata"]["uid"]);
        Json(store.write(&name, slice, "DELETED")).into_response()
    })
}

fn devices(capacity: u32) -> Arc<Vec<Device>> {
    Arc::new(vec![Device {
        name: "cpudevnuma000".to_owned(),
        cpus: [0].into(),
        attributes: [("dra.cpu/numCPUs".to_owned(), Attribute::Int(8))].into(),
        capacity: Some(Capacity { cpus: capacity, step: 1, kept: 0 }),
    }])
}

struct Pump {
    api: Api,
    devices: watch::Sender<Arc<Vec<Device>>>,
    readiness: Arc<Readiness>,
    progress: Arc<Progress>,
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Pump {
    /// Against an API server as `prepare` leaves it.
    async fn start(prepare: impl FnOnce(&mut Store)) -> Self {
        let api = Api::serve().await;
        api.with(prepare);
        Self::start_on(api)
    }

    fn start_on(api: Api) -> Self {
        let (devices, receiver) = watch::channel(devices(8));
        let (readiness, stop) = (Arc::new(Readiness::default()), CancellationToken::new());
        let progress: Arc<Progress> = Arc::default();
        let pool = Pool { node_name: "n".to_owned(), map_node_allocatable: false };
        let task = tokio::spawn(run(
            api.client(),
            pool,
            receiver,
            readiness.clone(),
            progress.clone(),
            stop.clone(),
        ));
        Self { api, devices, readiness, progress, stop, task }
    }

    /// Waits until the pump says so of what it did.
    async fn until_told(&self, what: &str, holds: impl Fn(&Progress) -> bool) {
        let wait = async {
            while !holds(&self.progress) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), wait).await.is_err() {
            panic!("no {what}: {:?}", self.progress);
        }
    }

    /// Ends the pump; the API server is left as it is.
    async fn stop(self) -> Api {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
        self.api
    }
}

#[tokio::test]
async fn a_pool_is_published_changed_and_created_again_when_it_vanishes() {
    let pump = Pump::start(|_| {}).await;
    pump.api.until("slice", |store| store.slices.len() == 1).await;
    pump.api.with(|store| {
        let slice = store.slices.values().next().unwrap();
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "node-uid");
        assert!(slice["metadata"]["name"].as_str().unwrap().starts_with("00000-dra.cpu-n-"));
    });
    let one = Published { generation: 1, slices: 1, devices: 1 };
    pump.until_told("word of the slice", |progress| progress.last() == Some(one)).await;
    assert_eq!((pump.progress.problem(), pump.progress.fields_left_out()), (None, vec![]));

    pump.devices.send_replace(devices(6));
    pump.api.until("update", |store| store.count("update") == 1).await;
    assert_eq!(pump.api.with(|store| store.generations()), [1], "one slice changes within its generation");

    pump.api.with(|store| {
        store.node_uid = Some("another-uid");
        let (name, slice) = store.slices.pop_first().unwrap();
        store.write(&name, slice, "DELETED");
    });
    pump.api.until("second slice", |store| store.count("create") == 2).await;
    let api = pump.stop().await;
    api.with(|store| {
        let slice = store.slices.values().next().unwrap();
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "another-uid", "the Node is read anew");
        assert_eq!(slice["spec"]["devices"][0]["capacity"]["dra.cpu/cpu"]["value"], "6");
        assert_eq!((store.count("update"), store.count("delete")), (1, 0));
    });
}

#[tokio::test]
async fn slices_of_an_earlier_run_are_left_alone_when_they_are_right() {
    let pump = Pump::start(|_| {}).await;
    pump.api.until("slice", |store| store.slices.len() == 1).await;
    let api = pump.stop().await;
    assert_eq!(api.with(|store| store.slices.len()), 1, "shutdown does not remove them");

    let passes = api.with(|store| store.count("list"));
    let pump = Pump::start_on(api);
    // The first pass, the list that starts the watch, and the pass that follows it.
    pump.api.until("third list", |store| store.count("list") >= passes + 3).await;
    let api = pump.stop().await;
    assert_eq!(api.with(|store| store.version), 1, "nothing is written");
}

#[tokio::test]
async fn a_field_that_the_server_drops_is_not_sent_for_ever() {
    let pump = Pump::start(|store| store.strip = true).await;
    // The first pass, the list that starts the watch, and the pass that follows it.
    pump.api.until("third list", |store| store.count("list") >= 3).await;
    pump.api.until("slice", |store| store.slices.len() == 1).await;
    assert_eq!(pump.api.with(|store| store.version), 1);
    let left_out = pump.progress.fields_left_out();
    assert!(left_out.iter().all(|(_, consequence)| consequence.contains("feature gate")), "{left_out:?}");
    assert!(!left_out.is_empty());
    pump.devices.send_replace(devices(6));
    pump.api.until("update", |store| store.version == 2).await;
    let api = pump.stop().await;
    assert_eq!(api.with(|store| store.count("update")), 1);
}

#[tokio::test]
async fn failures_are_retried_until_the_slices_are_there() {
    for (verb, status) in [("list", 503), ("create", 403), ("node", 500)] {
        let pump = Pump::start(|store| store.fail = Some((verb, status))).await;
        pump.api.until("slice", |store| store.slices.len() == 1).await;
        pump.stop().await;
    }
    for status in [404, 409, 410] {
        let pump = Pump::start(|_| {}).await;
        pump.api.until("slice", |store| store.slices.len() == 1).await;
        pump.until_told("success", |progress| progress.last().is_some()).await;
        pump.api.with(|store| store.fail = Some(("update", status)));
        pump.devices.send_replace(devices(6));
        pump.api.until("second update", |store| store.version == 2).await;
        let api = pump.stop().await;
        assert_eq!(api.with(|store| (store.count("update"), store.generations())), (2, vec![1]));
    }
}

#[tokio::test]
async fn a_node_that_the_server_does_not_know_is_not_ready_until_it_is_known() {
    let pump = Pump::start(|store| store.node_uid = None).await;
    pump.api.until("question for the node", |store| store.count("node") == 2).await;
    let problems = pump.readiness.problems();
    assert!(
        problems.iter().any(|(part, why)| *part == Part::NodeName && why.contains("`n`")),
        "{problems:?}"
    );
    pump.until_told("failure", |progress| progress.problem().is_some_and(|why| why.contains("`n`"))).await;
    pump.api.with(|store| store.node_uid = Some("late"));
    pump.api.until("slice", |store| store.slices.len() == 1).await;
    assert!(pump.readiness.problems().iter().all(|(part, _)| *part != Part::NodeName));
    pump.until_told("end of the failure", |progress| progress.problem().is_none()).await;
    pump.stop().await;
}
