//! The API server: real HTTP on a loopback port, the resources that a node driver touches, and every rule
//! by which the real server would refuse, prune or end something.
//!
//! Reading order: this file (the handle with its switches), `http` (requests to answers), `access`, `store`
//! (objects, revisions, watches), `slice_rules`, `gates`, `quantity`, `claim_status`, `event_rules`, `status`.

mod access;
mod claim_status;
mod event_rules;
mod gates;
mod http;
mod quantity;
mod slice_rules;
mod status;
mod store;
mod watching;

pub use gates::Gates;
pub use store::Resource;

use anyhow::{Context, Result};
use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use store::{Key, Store};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What an API server of 1.37 that knows list attributes has against a slice: a field and a reason each.
#[must_use]
pub fn faults_of_slice(slice: &ResourceSlice) -> Vec<String> {
    let gates = Gates { list_type_attributes: true, ..Gates::defaults_of(37) };
    let faults = slice_rules::faults(slice, &gates);
    faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
}

/// What a request wants, as authorization names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object.
    Get,
    /// All of a kind.
    List,
    /// Changes from a revision on.
    Watch,
    /// POST
    Create,
    /// PUT
    Update,
    /// PATCH
    Patch,
    /// DELETE
    Delete,
}

/// A request that arrived, and what it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What it wanted.
    pub verb: Verb,
    /// Of which kind.
    pub resource: Resource,
    /// `status`, or empty.
    pub subresource: String,
    /// The object; empty for list, watch and create.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
}

/// Whether the server can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// As it should be.
    Here,
    /// Nothing listens on the port.
    Refusing,
    /// Connections are taken, and nothing is ever answered.
    Hanging,
    /// Every answer takes so long.
    Slow(Duration),
}

/// Requests that are answered otherwise on demand.
#[derive(Debug, Clone)]
struct Fault {
    verb: Verb,
    resource: Resource,
    reply: Reply,
    left: Option<u32>,
}

/// What a request gets instead of its answer.
#[derive(Debug, Clone)]
enum Reply {
    /// A refusal with this status.
    Refusal(u16),
    /// This status with this body.
    Body(u16, String),
}

/// How many claim GETs are being answered, the most there were, and how many a held GET waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimGets {
    /// Now.
    pub in_flight: usize,
    /// At most, ever.
    pub peak: usize,
    /// GETs are held back until the peak reaches this.
    pub held_until: usize,
}

struct State {
    store: Store,
    gates: Gates,
    faults: Vec<Fault>,
    seen: Vec<Seen>,
    warnings: BTreeSet<String>,
    allowed: Option<BTreeSet<(Verb, Resource, &'static str)>>,
    confined_to: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    presence: watch::Sender<Presence>,
    claim_gets: watch::Sender<ClaimGets>,
    requests: watch::Sender<usize>,
    bookmarks: watch::Sender<u64>,
    ended: watch::Sender<u64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// A running API server; ends when dropped.
pub struct ApiServer {
    shared: Arc<Shared>,
    port: u16,
    serving: Mutex<Option<JoinHandle<()>>>,
}

const CLAIM_STATUS: [(Verb, Resource, &str); 2] =
    [(Verb::Patch, Resource::ResourceClaims, "status"), (Verb::Patch, Resource::ResourceClaims, "driver")];
const EVENTS: [(Verb, Resource, &str); 2] =
    [(Verb::Create, Resource::Events, ""), (Verb::Patch, Resource::Events, "")];

/// What the driver's role may do: no more than its chart grants it, and the Go driver's chart before it. `driver`
/// stands for the verb `associated-node:…` on `resourceclaims/driver`.
fn driver_role() -> BTreeSet<(Verb, Resource, &'static str)> {
    let slices = [Verb::List, Verb::Watch, Verb::Create, Verb::Update, Verb::Delete];
    let pods = [Verb::Get, Verb::List, Verb::Watch];
    let mut role: BTreeSet<_> = [Resource::Nodes, Resource::ResourceClaims, Resource::DeviceClasses]
        .map(|resource| (Verb::Get, resource, ""))
        .into();
    role.extend(slices.map(|verb| (verb, Resource::ResourceSlices, "")));
    role.extend(pods.map(|verb| (verb, Resource::Pods, "")));
    role.extend(CLAIM_STATUS);
    role.extend(EVENTS);
    role
}

impl ApiServer {
    /// Starts a server that grants the driver's role and knows no objects.
    ///
    /// # Errors
    /// When no loopback port is free.
    pub async fn start(gates: Gates) -> Result<Self> {
        let state = State {
            store: Store::new(),
            gates,
            faults: Vec::new(),
            seen: Vec::new(),
            warnings: BTreeSet::new(),
            allowed: Some(driver_role()),
            confined_to: None,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            presence: watch::channel(Presence::Here).0,
            claim_gets: watch::channel(ClaimGets::default()).0,
            requests: watch::channel(0).0,
            bookmarks: watch::channel(0).0,
            ended: watch::channel(0).0,
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no free loopback port")?;
        let port = listener.local_addr()?.port();
        let serving = Mutex::new(Some(http::serve(listener, Arc::clone(&shared))));
        Ok(Self { shared, port, serving })
    }

    /// `http://127.0.0.1:…`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)))
    }

    /// Writes a kubeconfig that leads here.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "embedded",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url()}}],
            "users": [{"name": "driver", "user": {}}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "driver"}}],
        });
        std::fs::write(path, config.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }

    // ---- switches

    /// Lets the server vanish, hang, or come back.
    ///
    /// # Errors
    /// When the port was taken by another process meanwhile.
    pub async fn set_presence(&self, presence: Presence) -> Result<()> {
        let running = self.serving.lock().unwrap().take();
        if presence == Presence::Refusing {
            if let Some(task) = running {
                task.abort();
                let _cancelled = task.await;
            }
        } else if running.is_none() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await?;
            *self.serving.lock().unwrap() = Some(http::serve(listener, Arc::clone(&self.shared)));
        } else {
            *self.serving.lock().unwrap() = running;
        }
        self.shared.presence.send_replace(presence);
        Ok(())
    }

    /// Refuses requests of this sort with an HTTP status: so many, or for ever.
    pub fn refuse(&self, verb: Verb, resource: Resource, code: u16, times: Option<u32>) {
        let reply = Reply::Refusal(code);
        self.shared.state().faults.push(Fault { verb, resource, reply, left: times });
    }

    /// Answers requests of this sort with this status and text.
    pub fn answer_with(&self, verb: Verb, resource: Resource, code: u16, body: &str) {
        let reply = Reply::Body(code, body.to_owned());
        self.shared.state().faults.push(Fault { verb, resource, reply, left: None });
    }

    /// Ends all [`Self::refuse`] and [`Self::answer_with`].
    pub fn refuse_nothing(&self) {
        self.shared.state().faults.clear();
    }

    /// Other gates from now on.
    pub fn set_gates(&self, gates: Gates) {
        self.shared.state().gates = gates;
    }

    /// Lets a caller write slices of this node only, as the usual admission policy does.
    pub fn confine_slices_to(&self, node: &str) {
        self.shared.state().confined_to = Some(node.to_owned());
    }

    /// Takes the leave to write the status of claims away, or gives it back.
    pub fn allow_claim_status(&self, allow: bool) {
        self.allow(CLAIM_STATUS, allow);
    }

    /// Takes the leave to write events away, or gives it back.
    pub fn allow_events(&self, allow: bool) {
        self.allow(EVENTS, allow);
    }

    fn allow<const N: usize>(&self, rules: [(Verb, Resource, &'static str); N], allow: bool) {
        let mut state = self.shared.state();
        let Some(allowed) = &mut state.allowed else { return };
        for rule in rules {
            if allow {
                allowed.insert(rule)
            } else {
                allowed.remove(&rule)
            };
        }
    }

    /// Switches authorization off.
    pub fn allow_everything(&self) {
        self.shared.state().allowed = None;
    }

    /// Forgets the past: lagging and running watches end with 410, as after a compaction.
    pub fn compact(&self) {
        self.shared.state().store.compact();
    }

    /// Closes all watches without an error, as the server does after a while.
    pub fn end_watches(&self) {
        self.shared.ended.send_modify(|n| *n += 1);
    }

    /// Sends a bookmark on each watch that takes them.
    pub fn send_bookmarks(&self) {
        self.shared.bookmarks.send_modify(|n| *n += 1);
    }

    /// Holds claim GETs back until so many of them wait together.
    pub fn hold_claim_gets_until(&self, together: usize) {
        self.shared
            .claim_gets
            .send_modify(|gets| *gets = ClaimGets { held_until: together, peak: 0, ..*gets });
    }

    // ---- what was seen

    /// Claim GETs in flight.
    #[must_use]
    pub fn claim_gets(&self) -> watch::Receiver<ClaimGets> {
        self.shared.claim_gets.subscribe()
    }

    /// All requests so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.clone()
    }

    /// How many of a sort there were.
    #[must_use]
    pub fn count(&self, verb: Verb, resource: Resource) -> usize {
        self.shared.state().seen.iter().filter(|seen| seen.verb == verb && seen.resource == resource).count()
    }

    /// A number that rises with each answered request.
    #[must_use]
    pub fn requests(&self) -> watch::Receiver<usize> {
        self.shared.requests.subscribe()
    }

    /// Fields that were sent and that no API version knows.
    #[must_use]
    pub fn warnings(&self) -> BTreeSet<String> {
        self.shared.state().warnings.clone()
    }

    // ---- objects, as an administrator or a controller would handle them: no authorization, no limits

    /// Puts an object in place of whatever has its name; gives it a UID if it has none.
    ///
    /// # Panics
    /// When it has no name.
    pub fn put(&self, resource: Resource, object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().expect("an object has a name").to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
        let key = Key { resource, namespace, name };
        let mut state = self.shared.state();
        let same = |old: &Value| {
            object["metadata"]["uid"].is_null() || object["metadata"]["uid"] == old["metadata"]["uid"]
        };
        if state.store.get(&key).is_some_and(same) {
            return state.store.replace(&key, object).expect("no precondition can fail");
        }
        if state.store.get(&key).is_some() {
            state.store.delete(&key, &Value::Null).expect("it is there");
        }
        state.store.create(resource, object).expect("the name is free")
    }

    /// Changes an object, between two changes by others; false when there is none.
    ///
    /// # Panics
    /// When the change takes the object's name or version away.
    pub fn change(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> bool {
        let key = Key { resource, namespace: namespace.to_owned(), name: name.to_owned() };
        let mut state = self.shared.state();
        let Some(mut object) = state.store.get(&key).cloned() else { return false };
        change(&mut object);
        state.store.replace(&key, object).expect("nobody was in between");
        true
    }

    /// One object.
    #[must_use]
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        let key = Key { resource, namespace: namespace.to_owned(), name: name.to_owned() };
        self.shared.state().store.get(&key).cloned()
    }

    /// All objects of a kind.
    #[must_use]
    pub fn list(&self, resource: Resource) -> Vec<Value> {
        self.shared.state().store.list(resource, None).into_iter().cloned().collect()
    }

    /// Deletes an object; false when there was none.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> bool {
        let key = Key { resource, namespace: namespace.to_owned(), name: name.to_owned() };
        self.shared.state().store.delete(&key, &Value::Null).is_ok()
    }

    /// Deletes the slices of a node (of one driver, or of all), as the kubelet does.
    pub fn delete_slices(&self, node: &str, driver: Option<&str>) {
        for slice in self.list(Resource::ResourceSlices) {
            let spec = &slice["spec"];
            if spec["nodeName"] == node && driver.is_none_or(|driver| spec["driver"] == driver) {
                self.delete(Resource::ResourceSlices, "", slice["metadata"]["name"].as_str().unwrap());
            }
        }
    }

    /// A number that rises with each change of an object.
    #[must_use]
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.shared.state().store.feed()
    }

    /// Waits until the slices are as wanted and returns them.
    ///
    /// # Errors
    /// After `limit`, with the slices as they are then.
    pub async fn wait_for_slices(
        &self,
        what: &str,
        limit: Duration,
        enough: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        let mut revisions = self.revisions();
        let seen = super::wait::look(what, limit, &mut revisions, || {
            let slices = self.list(Resource::ResourceSlices);
            enough(&slices).then_some(slices)
        });
        let now = || Value::from(self.list(Resource::ResourceSlices));
        seen.await.with_context(|| format!("slices are: {}", now()))
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(task) = self.serving.lock().unwrap().take() {
            task.abort();
        }
    }
}
