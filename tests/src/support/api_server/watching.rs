//! Lists and watches: selection by field, and the stream of events.

use super::Shared;
use super::status::{Refusal, refusal};
use super::store::{Resource, Store};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// `a=b,c!=d` over the fields that the resource supports.
#[derive(Debug, Clone)]
pub(super) struct Selector {
    resource: Resource,
    namespace: Option<String>,
    terms: Vec<(String, String, bool)>,
}

impl Selector {
    pub(super) fn parse(resource: Resource, namespace: Option<String>, text: &str) -> Result<Self, Refusal> {
        let known: &[&str] = match resource {
            Resource::ResourceSlices => &["metadata.name", "spec.driver", "spec.nodeName"],
            Resource::Pods => &["metadata.name", "metadata.namespace", "spec.nodeName"],
            Resource::ResourceClaims => &["metadata.name", "metadata.namespace"],
            Resource::Events => &["metadata.name", "metadata.namespace", "regarding.name", "regarding.kind"],
            Resource::Nodes | Resource::DeviceClasses => &["metadata.name"],
        };
        let mut terms = Vec::new();
        for term in text.split(',').filter(|term| !term.is_empty()) {
            let Some((field, value)) = term.split_once('=') else {
                let message = format!("invalid field selector \"{text}\"; can't understand '{term}'");
                return Err(refusal(400, "BadRequest", &message, None));
            };
            let (field, equal) = match field.strip_suffix('!') {
                Some(field) => (field, false),
                None => (field, true),
            };
            if !known.contains(&field) {
                let message = format!("field label not supported: {field}");
                return Err(refusal(400, "BadRequest", &message, None));
            }
            terms.push((field.to_owned(), value.strip_prefix('=').unwrap_or(value).to_owned(), equal));
        }
        Ok(Self { resource, namespace, terms })
    }

    fn selects(&self, object: &Value) -> bool {
        let at = |field: &str| {
            let pointer = format!("/{}", field.replace('.', "/"));
            object.pointer(&pointer).and_then(Value::as_str).unwrap_or("").to_owned()
        };
        self.namespace.as_ref().is_none_or(|namespace| at("metadata.namespace") == *namespace)
            && self.terms.iter().all(|(field, value, equal)| (at(field) == *value) == *equal)
    }

    pub(super) fn list(&self, store: &Store) -> Value {
        let (_, _, kind) = self.resource.names();
        let mut items: Vec<_> = store.list(self.resource, None).into_iter().cloned().collect();
        items.retain(|item| self.selects(item));
        for item in &mut items {
            let item = item.as_object_mut().expect("stored objects are objects");
            item.remove("apiVersion"); // items of a list carry neither
            item.remove("kind");
        }
        json!({
            "kind": format!("{kind}List"), "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": store.revision().to_string()}, "items": items,
        })
    }
}

/// The parameters of a watch.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) selector: Selector,
    /// None = start with what is there.
    pub(super) from: Option<u64>,
    pub(super) bookmarks: bool,
    /// `sendInitialEvents`: what is there, then a marked bookmark.
    pub(super) initial_events: bool,
    pub(super) timeout: Option<Duration>,
}

type Events = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

struct Gone;

async fn send(events: &Events, kind: &str, object: &Value) -> Result<(), Gone> {
    let line = format!("{}\n", json!({"type": kind, "object": object}));
    events.send(Ok(Frame::data(Bytes::from(line)))).await.map_err(|_| Gone)
}

impl Watch {
    /// Feeds the events until the client is gone, the time is up, or the revision is forgotten.
    pub(super) async fn run(self, shared: Arc<Shared>, events: Events) {
        let limit = self.timeout.unwrap_or(Duration::from_secs(3600));
        let _ended_either_way = tokio::time::timeout(limit, self.feed(&shared, &events)).await;
    }

    async fn feed(&self, shared: &Shared, events: &Events) -> Result<(), Gone> {
        let mut feed = shared.state().store.feed();
        let mut bookmarks = shared.bookmarks.subscribe();
        let mut ended = shared.ended.subscribe();
        let (mut revision, present) = {
            let state = shared.state();
            let present: Vec<_> =
                state.store.list(self.selector.resource, None).into_iter().cloned().collect();
            (self.from.unwrap_or(state.store.revision()), present)
        };
        if self.from.is_none() {
            for object in present.iter().filter(|object| self.selector.selects(object)) {
                send(events, "ADDED", object).await?;
            }
        }
        if self.initial_events {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            send(events, "BOOKMARK", &self.bookmark(revision, annotations)).await?;
        }
        loop {
            let changes = {
                let state = shared.state();
                state.store.since(revision).map(<[_]>::to_vec)
            };
            let changes = match changes {
                Ok(changes) => changes,
                Err(expired) => return send(events, "ERROR", &expired.body).await,
            };
            for change in changes {
                revision = change.revision;
                if change.resource == self.selector.resource && self.selector.selects(&change.object) {
                    send(events, change.kind, &change.object).await?;
                }
            }
            tokio::select! {
                () = events.closed() => return Err(Gone),
                changed = feed.changed() => changed.map_err(|_| Gone)?,
                ended = ended.changed() => return ended.map_err(|_| Gone),
                marked = bookmarks.changed() => {
                    marked.map_err(|_| Gone)?;
                    if self.bookmarks {
                        send(events, "BOOKMARK", &self.bookmark(revision, json!({}))).await?;
                    }
                }
            }
        }
    }

    fn bookmark(&self, revision: u64, annotations: Value) -> Value {
        let (_, _, kind) = self.selector.resource.names();
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if annotations.as_object().is_some_and(|all| !all.is_empty()) {
            metadata["annotations"] = annotations;
        }
        json!({"kind": kind, "apiVersion": self.selector.resource.api_version(), "metadata": metadata})
    }
}
