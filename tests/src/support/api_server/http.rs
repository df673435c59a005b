//! From an HTTP request to an answer.

use super::super::percent;
use super::claim_status::{self, Fault, Write};
use super::event_rules;
use super::quantity::Quantity;
use super::slice_rules::{faults, immutable};
use super::status::{Refusal, refusal};
use super::store::{Key, Resource, metadata};
use super::watching::{Selector, Watch};
use super::{Presence, Reply, Seen, Shared, State, Verb};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;

type Body = BoxBody<Bytes, Infallible>;

/// Accepts and serves; aborting the task closes every connection.
pub(super) fn serve(listener: TcpListener, shared: Arc<Shared>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let shared = Arc::clone(&shared);
            connections.spawn(async move {
                let service = service_fn(|request| answer(Arc::clone(&shared), request));
                let connection = hyper::server::conn::http1::Builder::new();
                let _closed_by_either_side = connection.serve_connection(TokioIo::new(stream), service).await;
            });
            while connections.try_join_next().is_some() {}
        }
    })
}

/// A request for a resource, as its path and query say.
pub(super) struct Call {
    pub(super) verb: Verb,
    pub(super) resource: Resource,
    namespace: Option<String>,
    pub(super) name: String,
    pub(super) subresource: String,
    query: BTreeMap<String, String>,
}

impl Call {
    fn key(&self) -> Key {
        let namespace = self.namespace.clone().unwrap_or_default();
        Key { resource: self.resource, namespace, name: self.name.clone() }
    }

    fn parse<B>(request: &Request<B>) -> Option<Self> {
        let query = request.uri().query().unwrap_or("");
        let query: BTreeMap<_, _> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (percent::decoded(key), percent::decoded(&value.replace('+', " "))))
            .collect();
        let path = percent::decoded(request.uri().path());
        let path: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (rest, group) = match path.as_slice() {
            ["api", "v1", rest @ ..] => (rest, ""),
            ["apis", group @ ("resource.k8s.io" | "events.k8s.io"), "v1", rest @ ..] => (rest, *group),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return None,
        };
        let all = [
            Resource::Nodes,
            Resource::Pods,
            Resource::DeviceClasses,
            Resource::ResourceClaims,
            Resource::ResourceSlices,
            Resource::Events,
        ];
        let resource = all.into_iter().find(|resource| {
            let (its_group, its_plural, _) = resource.names();
            its_group == group && its_plural == plural
        })?;
        let over_all_namespaces = resource.namespaced() && namespace.is_none() && name.is_empty();
        if resource.namespaced() != namespace.is_some() && !over_all_namespaces {
            return None;
        }
        let watching = matches!(query.get("watch").map(String::as_str), Some("1" | "true"));
        let verb = match (request.method(), name.is_empty()) {
            (&Method::GET, true) if watching => Verb::Watch,
            (&Method::GET, true) => Verb::List,
            (&Method::GET, false) => Verb::Get,
            (&Method::POST, true) => Verb::Create,
            (&Method::PUT, false) => Verb::Update,
            (&Method::PATCH, false) => Verb::Patch,
            (&Method::DELETE, false) => Verb::Delete,
            _ => return None,
        };
        let (name, subresource) = (name.to_owned(), subresource.to_owned());
        Some(Self { verb, resource, namespace: namespace.map(str::to_owned), name, subresource, query })
    }
}

fn json_answer(code: StatusCode, value: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(value.to_string())).boxed())
        .expect("status and header are valid")
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let mut presence = shared.presence.subscribe();
    let now = presence.wait_for(|presence| *presence != Presence::Hanging).await.map(|presence| *presence);
    if let Ok(Presence::Slow(pause)) = now {
        tokio::time::sleep(pause).await;
    }
    let Some(call) = Call::parse(&request) else {
        let message = "the server could not find the requested resource";
        let refusal = refusal(404, "NotFound", message, None);
        return Ok(json_answer(refusal.code, &refusal.body));
    };
    let patch_type = request.headers().get("content-type").and_then(|value| value.to_str().ok());
    let patch_type = patch_type.unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.map(|all| all.to_bytes()).unwrap_or_default();
    let counted = (call.verb, call.resource) == (Verb::Get, Resource::ResourceClaims);
    let held = if counted { Some(ClaimGet::count_in(&shared).await) } else { None };
    let response = {
        // one step: who sees what a request has changed finds the request counted
        let mut state = shared.state();
        let answered = respond(&shared, &mut state, &call, &body, &patch_type);
        let response = answered.unwrap_or_else(|refusal| json_answer(refusal.code, &refusal.body));
        state.seen.push(Seen {
            verb: call.verb,
            resource: call.resource,
            subresource: call.subresource,
            name: call.name,
            code: response.status().as_u16(),
        });
        response
    };
    drop(held);
    shared.requests.send_modify(|n| *n += 1);
    Ok(response)
}

/// A claim GET in flight; counted out when answered or when the client is gone.
struct ClaimGet<'a>(&'a Shared);

impl<'a> ClaimGet<'a> {
    /// Counts in, and waits while a barrier says so.
    async fn count_in(shared: &'a Shared) -> Self {
        shared.claim_gets.send_modify(|gets| {
            gets.in_flight += 1;
            gets.peak = gets.peak.max(gets.in_flight);
        });
        let this = Self(shared);
        drop(shared.claim_gets.subscribe().wait_for(|gets| gets.peak >= gets.held_until).await);
        this
    }
}

impl Drop for ClaimGet<'_> {
    fn drop(&mut self) {
        self.0.claim_gets.send_modify(|gets| gets.in_flight -= 1);
    }
}

fn respond(
    shared: &Arc<Shared>,
    state: &mut State,
    call: &Call,
    body: &[u8],
    patch_type: &str,
) -> Result<Response<Body>, Refusal> {
    state.authorize(call)?;
    if let Some(answer) = state.answer_on_demand(call)? {
        return Ok(answer);
    }
    let subject = call.resource.subject(&call.name);
    let ok = |value: Value| Ok(json_answer(StatusCode::OK, &value));
    match (call.verb, call.resource, call.subresource.as_str()) {
        (Verb::Get, _, "") => ok(state.store.get(&call.key()).ok_or_else(|| subject.not_found())?.clone()),
        (Verb::List, _, "") => ok(selector(call)?.list(&state.store)),
        (Verb::Watch, _, "") => {
            let watch = watch(call)?;
            if let Some(from) = watch.from {
                state.store.since(from)?; // a forgotten revision is refused before the stream starts
            }
            let (events, stream) = mpsc::channel(64);
            tokio::spawn(watch.run(Arc::clone(shared), events));
            let body = StreamBody::new(ReceiverStream::new(stream));
            Ok(Response::builder()
                .header("content-type", "application/json")
                .body(BodyExt::boxed(body))
                .expect("the header is valid"))
        }
        (Verb::Create, Resource::ResourceSlices, "") => {
            let slice = state.checked_slice(call, body, None)?;
            Ok(json_answer(StatusCode::CREATED, &state.store.create(call.resource, slice)?))
        }
        (Verb::Update, Resource::ResourceSlices, "") => {
            let Some(old) = state.store.get(&call.key()).cloned() else { return Err(subject.not_found()) };
            let slice = state.checked_slice(call, body, Some(old))?;
            ok(state.store.replace(&call.key(), slice)?)
        }
        (Verb::Delete, Resource::ResourceSlices, "") => {
            let options: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
            let node = state.store.get(&call.key()).map(|slice| slice["spec"]["nodeName"].clone());
            state.confine(call, &node.unwrap_or_default())?;
            ok(state.store.delete(&call.key(), &options["preconditions"])?)
        }
        (Verb::Update | Verb::Patch, Resource::ResourceClaims, "status") => {
            let sent: Value = serde_json::from_slice(body).map_err(|error| bad_request(&error))?;
            let Some(old) = state.store.get(&call.key()).cloned() else { return Err(subject.not_found()) };
            state.authorize_devices(call, &sent)?;
            let parameter = |name: &str| call.query.get(name).map(String::as_str).unwrap_or_default();
            let (manager, force) = (parameter("fieldManager").to_owned(), parameter("force") == "true");
            let how = if patch_type == "application/apply-patch+yaml" {
                Write::Apply { manager, force }
            } else {
                Write::Replace
            };
            let written = claim_status::written(&old, &sent, &how).map_err(|fault| match fault {
                Fault::Invalid(errors) => subject.invalid(&errors),
                Fault::Conflict(why) => subject.refusal(409, "Conflict", &why),
                Fault::BadRequest(why) => bad_request(&why),
            });
            let mut claim = written?;
            for field in ["uid", "resourceVersion"] {
                if let Some(value) = sent["metadata"][field].as_str() {
                    metadata(&mut claim).insert(field.to_owned(), value.into());
                }
            }
            ok(state.store.replace(&call.key(), claim)?)
        }
        (Verb::Create, Resource::Events, "") => {
            let mut event = state.known_event(body)?;
            let namespace = call.namespace.clone().unwrap_or_default();
            let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if !matches!(event["metadata"]["namespace"].as_str(), Some(given) if given == namespace) {
                let message =
                    "the namespace of the provided object does not match the namespace sent on the request";
                return Err(refusal(400, "BadRequest", message, None));
            }
            let faults = event_rules::faults(&event, &namespace);
            if !faults.is_empty() {
                return Err(call.resource.subject(&name).invalid(&faults));
            }
            metadata(&mut event).shift_remove("resourceVersion");
            Ok(json_answer(StatusCode::CREATED, &state.store.create(call.resource, event)?))
        }
        (Verb::Patch, Resource::Events, "") => {
            if patch_type != "application/merge-patch+json" {
                let message = "the stand-in merges patches of events";
                return Err(subject.refusal(415, "UnsupportedMediaType", message));
            }
            let Some(old) = state.store.get(&call.key()).cloned() else { return Err(subject.not_found()) };
            let sent: Value = serde_json::from_slice(body).map_err(|error| bad_request(&error))?;
            let merged = event_rules::merged(&old, &sent);
            let event = state.known_event(merged.to_string().as_bytes())?;
            let faults = event_rules::changes(&old, &event);
            if !faults.is_empty() {
                return Err(subject.invalid(&faults));
            }
            ok(state.store.replace(&call.key(), event)?)
        }
        _ => {
            let message = "the server does not allow this method on the requested resource";
            Err(subject.refusal(405, "MethodNotAllowed", message))
        }
    }
}

fn bad_request(error: &dyn std::fmt::Display) -> Refusal {
    refusal(400, "BadRequest", &format!("the body cannot be understood: {error}"), None)
}

fn selector(call: &Call) -> Result<Selector, Refusal> {
    let text = call.query.get("fieldSelector").map_or("", String::as_str);
    if call.query.get("labelSelector").is_some_and(|labels| !labels.is_empty()) {
        return Err(refusal(501, "NotImplemented", "the stand-in knows no label selectors", None));
    }
    Selector::parse(call.resource, call.namespace.clone(), text)
}

fn watch(call: &Call) -> Result<Watch, Refusal> {
    let flag = |name: &str| matches!(call.query.get(name).map(String::as_str), Some("1" | "true"));
    let number = |name: &str| -> Result<Option<u64>, Refusal> {
        let text = call.query.get(name).map_or("", String::as_str);
        let parsed = if text.is_empty() { Ok(None) } else { text.parse().map(Some) };
        parsed.map_err(|_| refusal(400, "BadRequest", &format!("invalid {name}: {text}"), None))
    };
    let initial_events = flag("sendInitialEvents");
    if initial_events && call.query.get("resourceVersionMatch").map(String::as_str) != Some("NotOlderThan") {
        let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(refusal(422, "Invalid", message, None));
    }
    let from = number("resourceVersion")?.filter(|revision| *revision > 0 && !initial_events);
    Ok(Watch {
        selector: selector(call)?,
        from,
        bookmarks: flag("allowWatchBookmarks"),
        initial_events,
        timeout: number("timeoutSeconds")?.map(Duration::from_secs),
    })
}

impl State {
    fn answer_on_demand(&mut self, call: &Call) -> Result<Option<Response<Body>>, Refusal> {
        let matching = |fault: &&mut super::Fault| {
            fault.verb == call.verb && fault.resource == call.resource && fault.left != Some(0)
        };
        let Some(fault) = self.faults.iter_mut().find(matching) else { return Ok(None) };
        fault.left = fault.left.map(|left| left - 1);
        let code = match &fault.reply {
            Reply::Refusal(code) => *code,
            Reply::Body(code, body) => {
                let answer =
                    Response::builder().status(*code).body(Full::new(Bytes::from(body.clone())).boxed());
                return Ok(Some(answer.expect("a status of a test is one")));
            }
        };
        let reason = match code {
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            _ => "InternalError",
        };
        let message = format!("refused on demand with {code}");
        Err(call.resource.subject(&call.name).refusal(code, reason, &message))
    }

    /// An event that can be read; fields that no event has are noted.
    fn known_event(&mut self, body: &[u8]) -> Result<Value, Refusal> {
        let sent: Value = serde_json::from_slice(body).map_err(|error| bad_request(&error))?;
        if let Some(why) = event_rules::unreadable_time(&sent) {
            return Err(bad_request(&why));
        }
        let event: Event = serde_json::from_value(sent.clone()).map_err(|error| bad_request(&error))?;
        let known = serde_json::to_value(&event).map_err(|error| bad_request(&error))?;
        unknown_fields("", &sent, &known, &mut self.warnings);
        Ok(sent)
    }

    /// What the server would store of a sent slice, or why it refuses it.
    fn checked_slice(&mut self, call: &Call, body: &[u8], old: Option<Value>) -> Result<Value, Refusal> {
        let sent: Value = serde_json::from_slice(body).map_err(|error| bad_request(&error))?;
        let mut slice: ResourceSlice = serde_json::from_value(sent.clone()).map_err(|e| bad_request(&e))?;
        let known = serde_json::to_value(&slice).map_err(|error| bad_request(&error))?;
        unknown_fields("", &sent, &known, &mut self.warnings);
        self.gates.drop_disabled(&mut slice);
        let name = slice.metadata.name.clone().or(slice.metadata.generate_name.clone()).unwrap_or_default();
        let mut errors = faults(&slice, &self.gates);
        if let Some(old) = old {
            if name != call.name {
                let message = format!(
                    "the name of the object ({name}) does not match the name on the URL ({})",
                    call.name
                );
                return Err(refusal(400, "BadRequest", &message, None));
            }
            let old: ResourceSlice = serde_json::from_value(old).expect("stored slices are slices");
            errors.extend(immutable(&old, &slice));
        }
        if !errors.is_empty() {
            return Err(call.resource.subject(&name).invalid(&errors));
        }
        self.confine(call, &json!(slice.spec.node_name))?;
        canonicalize(&mut slice);
        Ok(serde_json::to_value(&slice).expect("a slice is JSON"))
    }
}

fn canonicalize(slice: &mut ResourceSlice) {
    let fix = |text: &mut Text| {
        if let Some(quantity) = Quantity::parse(&text.0) {
            text.0 = quantity.canonical();
        }
    };
    for device in slice.spec.devices.iter_mut().flatten() {
        for capacity in device.capacity.iter_mut().flat_map(|all| all.values_mut()) {
            fix(&mut capacity.value);
            let Some(policy) = &mut capacity.request_policy else { continue };
            policy.default.iter_mut().chain(policy.valid_values.iter_mut().flatten()).for_each(fix);
            let Some(range) = &mut policy.valid_range else { continue };
            [Some(&mut range.min), range.max.as_mut(), range.step.as_mut()]
                .into_iter()
                .flatten()
                .for_each(fix);
        }
        for resource in device.node_allocatable_resources.iter_mut().flat_map(|all| all.values_mut()) {
            let Some(mapping) = &mut resource.mapping else { continue };
            mapping.capacity_multiplier.iter_mut().chain(&mut mapping.device_multiplier).for_each(fix);
        }
    }
}

/// Fields that were sent and are not part of the type: the server prunes them with a warning.
pub(super) fn unknown_fields(path: &str, sent: &Value, known: &Value, found: &mut BTreeSet<String>) {
    match (sent, known) {
        (Value::Object(sent), Value::Object(known)) => {
            for (key, value) in sent.iter().filter(|(_, value)| !value.is_null()) {
                let path = format!("{path}.{key}");
                match known.get(key) {
                    Some(known) => unknown_fields(&path, value, known, found),
                    None => {
                        found.insert(format!("unknown field \"{}\"", &path[1..]));
                    }
                }
            }
        }
        (Value::Array(sent), Value::Array(known)) => {
            for (n, (sent, known)) in sent.iter().zip(known).enumerate() {
                unknown_fields(&format!("{path}[{n}]"), sent, known, found);
            }
        }
        _ => {}
    }
}
