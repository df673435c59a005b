//! The API server stand-in keeps the API server's rules.

use dracpu_tests::support::api_server::{ApiServer, Gates, Presence, Resource, Verb};
use dracpu_tests::support::wait::SOON;
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

async fn send(
    api: &ApiServer,
    method: Method,
    path: &str,
    body: &Value,
) -> anyhow::Result<Response<Incoming>> {
    let stream = TcpStream::connect(api.url().trim_start_matches("http://")).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let body = Full::new(Bytes::from(if body.is_null() { String::new() } else { body.to_string() }));
    let request = Request::builder().method(method).uri(path).header("host", "api");
    let request = request.header("content-type", "application/json").body(body)?;
    Ok(sender.send_request(request).await?)
}

async fn call(api: &ApiServer, method: Method, path: &str, body: Value) -> (u16, Value) {
    let response = send(api, method, path, &body).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

/// Events of a watch, one by one.
struct Watching(Response<Incoming>, Vec<u8>);

impl Watching {
    async fn begin(api: &ApiServer, query: &str) -> Self {
        let response = send(api, Method::GET, &format!("{SLICES}?watch=true&{query}"), &Value::Null).await;
        Self(response.unwrap(), Vec::new())
    }

    /// Type, name (or reason), resourceVersion; none at the end.
    async fn next(&mut self) -> Option<(String, String, u64)> {
        loop {
            if let Some(end) = self.1.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.1.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
                let object = &event["object"];
                let name =
                    if event["type"] == "ERROR" { &object["reason"] } else { &object["metadata"]["name"] };
                let revision = text(&object["metadata"]["resourceVersion"]).parse().unwrap_or(0);
                return Some((text(&event["type"]), text(name), revision));
            }
            let frame = tokio::time::timeout(SOON, self.0.frame()).await.unwrap()?;
            self.1.extend(frame.unwrap().into_data().unwrap());
        }
    }
}

async fn server(minor: u8) -> ApiServer {
    ApiServer::start(Gates::defaults_of(minor)).await.unwrap()
}

fn slice(devices: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"generateName": "00000-dra.cpu-n-"},
        "spec": {"driver": "dra.cpu", "nodeName": "n", "devices": devices,
                 "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}},
    })
}

fn numa() -> Value {
    json!([{
        "name": "cpudevnuma000", "allowMultipleAllocations": true,
        "attributes": {"dra.cpu/numCPUs": {"int": 8}, "dra.cpu/smtEnabled": {"bool": true}},
        "capacity": {"dra.cpu/cpu": {"value": "8000m",
            "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}}},
    }])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_gets_name_uid_and_revision_and_its_quantities_are_canonical() {
    let api = server(36).await;
    let (code, stored) = call(&api, Method::POST, SLICES, slice(&numa())).await;
    assert_eq!(code, 201, "{stored}");
    let metadata = &stored["metadata"];
    let name = metadata["name"].as_str().unwrap();
    assert!(name.starts_with("00000-dra.cpu-n-") && name.len() == "00000-dra.cpu-n-".len() + 5);
    assert!(!metadata["uid"].as_str().unwrap().is_empty());
    assert_eq!(stored["spec"]["devices"][0]["capacity"]["dra.cpu/cpu"]["value"], "8");
    let (code, list) = call(
        &api,
        Method::GET,
        &format!("{SLICES}?fieldSelector=spec.driver%3Ddra.cpu%2Cspec.nodeName%3Dn"),
        Value::Null,
    )
    .await;
    assert_eq!((code, list["items"].as_array().unwrap().len()), (200, 1));
    let (_, list) =
        call(&api, Method::GET, &format!("{SLICES}?fieldSelector=spec.nodeName=other"), Value::Null).await;
    assert!(list["items"].as_array().unwrap().is_empty());
    let (code, status) =
        call(&api, Method::GET, &format!("{SLICES}?fieldSelector=spec.pool.name=n"), Value::Null).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (400, "field label not supported: spec.pool.name")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_update_conflicts_an_equal_one_changes_nothing_and_preconditions_hold() {
    let api = server(36).await;
    let (_, first) = call(&api, Method::POST, SLICES, slice(&numa())).await;
    let path = format!("{SLICES}/{}", first["metadata"]["name"].as_str().unwrap());
    let (code, same) = call(&api, Method::PUT, &path, first.clone()).await;
    assert_eq!((code, &same["metadata"]["resourceVersion"]), (200, &first["metadata"]["resourceVersion"]));
    let mut changed = first.clone();
    changed["spec"]["pool"]["generation"] = 2.into();
    let (code, second) = call(&api, Method::PUT, &path, changed.clone()).await;
    assert_eq!(code, 200);
    assert_ne!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let (code, status) = call(&api, Method::PUT, &path, changed).await;
    assert_eq!((code, &status["reason"]), (409, &json!("Conflict")));
    for (field, value, wanted) in [
        ("uid", "other".into(), 409),
        ("resourceVersion", first["metadata"]["resourceVersion"].clone(), 409),
        ("uid", first["metadata"]["uid"].clone(), 200),
    ] {
        let options = json!({"preconditions": {field: value}});
        assert_eq!(call(&api, Method::DELETE, &path, options).await.0, wanted);
    }
    assert_eq!(call(&api, Method::DELETE, &path, Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_rules_are_refused_with_the_field() {
    let api = server(36).await;
    let named = |count: usize, more: &Value| -> Value {
        let device = |n: usize| {
            let mut device = more.clone();
            device["name"] = format!("d{n}").into();
            device
        };
        (0..count).map(device).collect()
    };
    let attributes = |count: usize| -> Value {
        let all = (0..count).map(|n| (format!("dra.cpu/a{n}"), json!({"int": n})));
        json!({"attributes": all.collect::<serde_json::Map<_, _>>()})
    };
    let policy = |policy: Value| {
        let capacity = json!({"dra.cpu/cpu": {"value": "8", "requestPolicy": policy}});
        json!([{"name": "d", "allowMultipleAllocations": true, "capacity": capacity}])
    };
    let long = "x".repeat(65);
    for (devices, field) in [
        (named(129, &json!({})), "spec.devices"),
        (json!([{"name": "d"}, {"name": "d"}]), "spec.devices[1].name"),
        (json!([{"name": "D_1"}]), "spec.devices[0].name"),
        (named(1, &attributes(33)), "spec.devices[0]"),
        (
            json!([{"name": "d", "attributes": {"dra.cpu/s": {"string": long}}}]),
            "spec.devices[0].attributes[dra.cpu/s].string",
        ),
        (json!([{"name": "d", "attributes": {"dra.cpu/s": {}}}]), "spec.devices[0].attributes[dra.cpu/s]"),
        (
            json!([{"name": "d", "attributes": {"dra.cpu/s": {"int": 1, "bool": true}}}]),
            "spec.devices[0].attributes[dra.cpu/s]",
        ),
        (
            json!([{"name": "d", "attributes": {"dra.cpu/no-c": {"int": 1}}}]),
            "spec.devices[0].attributes[dra.cpu/no-c]",
        ),
        (
            json!([{"name": "d", "attributes": {"dra.cpu/v": {"version": "1.0"}}}]),
            "spec.devices[0].attributes[dra.cpu/v].version",
        ),
        // list attributes are dropped, as their gate is off, and what is left has no value
        (
            json!([{"name": "d", "attributes": {"resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00"]}}}]),
            "spec.devices[0].attributes[resource.kubernetes.io/pcieRoot]",
        ),
        (
            json!([{"name": "d", "capacity": {"dra.cpu/cpu": {"value": "x"}}}]),
            "spec.devices[0].capacity[dra.cpu/cpu].value",
        ),
        (
            json!([{"name": "d", "capacity": {"dra.cpu/cpu": {"value": "8", "requestPolicy": {"default": "1"}}}}]),
            "spec.devices[0].capacity[dra.cpu/cpu].requestPolicy",
        ),
        (
            policy(json!({"validRange": {"min": "2", "step": "2"}})),
            "spec.devices[0].capacity[dra.cpu/cpu].requestPolicy.default",
        ),
        (
            policy(json!({"default": "3", "validRange": {"min": "2", "step": "2"}})),
            "spec.devices[0].capacity[dra.cpu/cpu].requestPolicy.default",
        ),
        (
            policy(json!({"default": "8", "validRange": {"min": "8", "step": "8"}})),
            "spec.devices[0].capacity[dra.cpu/cpu].requestPolicy.validRange.step",
        ),
    ] {
        let (code, status) = call(&api, Method::POST, SLICES, slice(&devices)).await;
        let fields: Vec<_> =
            status["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
        assert_eq!((code, fields), (422, vec![&json!(field)]), "{status}");
    }
    let mut nowhere = slice(&json!([]));
    nowhere["spec"].as_object_mut().unwrap().remove("nodeName");
    assert_eq!(call(&api, Method::POST, SLICES, nowhere).await.0, 422);
    let (_, stored) = call(&api, Method::POST, SLICES, slice(&json!([]))).await;
    let mut moved = stored.clone();
    moved["spec"]["nodeName"] = "other".into();
    let path = format!("{SLICES}/{}", stored["metadata"]["name"].as_str().unwrap());
    let (code, status) = call(&api, Method::PUT, &path, moved).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.nodeName")));
    assert!(api.warnings().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_disabled_features_are_dropped_without_a_word_and_unknown_ones_with_a_warning() {
    let api = server(35).await;
    let mut devices = numa();
    devices[0]["numberOfCores"] = 4.into();
    let (code, stored) = call(&api, Method::POST, SLICES, slice(&devices)).await;
    let device = &stored["spec"]["devices"][0];
    assert_eq!(code, 201);
    assert_eq!(device.get("allowMultipleAllocations"), None);
    assert_eq!(device["capacity"]["dra.cpu/cpu"], json!({"value": "8"}));
    let warnings: Vec<_> = api.warnings().into_iter().collect();
    assert_eq!(warnings, ["unknown field \"spec.devices[0].numberOfCores\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_lists_a_slice_holds_64_devices_and_a_device_48_values() {
    let api = server(37).await;
    api.set_gates(Gates { list_type_attributes: true, ..Gates::defaults_of(37) });
    let roots = |count: usize| {
        let roots: Vec<_> = (0..count).map(|n| format!("pci0000:{n:02x}")).collect();
        json!({"resource.kubernetes.io/pcieRoot": {"strings": roots}})
    };
    let many = |count: usize| -> Value {
        (0..count).map(|n| json!({"name": format!("d{n}"), "attributes": roots(1)})).collect()
    };
    let one = |values: usize| json!([{"name": "d", "attributes": roots(values)}]);
    for (devices, wanted) in [(many(64), 201), (many(65), 422), (one(48), 201), (one(49), 422)] {
        assert_eq!(call(&api, Method::POST, SLICES, slice(&devices)).await.0, wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_changes_from_its_revision_on_and_ends_with_410_when_that_is_forgotten() {
    let api = server(36).await;
    let (_, first) = call(&api, Method::POST, SLICES, slice(&numa())).await;
    let name = first["metadata"]["name"].as_str().unwrap().to_owned();
    let revision: u64 = first["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let mut from_start = Watching::begin(&api, "allowWatchBookmarks=true").await;
    assert_eq!(from_start.next().await, Some(("ADDED".to_owned(), name.clone(), revision)));
    let mut from_revision =
        Watching::begin(&api, &format!("resourceVersion={revision}&fieldSelector=spec.nodeName=n")).await;
    let mut elsewhere =
        Watching::begin(&api, &format!("resourceVersion={revision}&fieldSelector=spec.nodeName=other")).await;
    api.delete(Resource::ResourceSlices, "", &name);
    for watch in [&mut from_start, &mut from_revision] {
        let (kind, gone, deleted) = watch.next().await.unwrap();
        assert_eq!((kind.as_str(), gone), ("DELETED", name.clone()));
        assert!(deleted > revision);
    }
    api.send_bookmarks();
    let (kind, _, marked) = from_start.next().await.unwrap();
    assert_eq!((kind.as_str(), marked > revision), ("BOOKMARK", true));
    api.compact();
    for watch in [&mut from_start, &mut elsewhere] {
        assert_eq!(watch.next().await, Some(("ERROR".to_owned(), "Expired".to_owned(), 0)));
        assert_eq!(watch.next().await, None);
    }
    let path = format!("{SLICES}?watch=1&resourceVersion={revision}");
    assert_eq!(call(&api, Method::GET, &path, Value::Null).await.0, 410);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let api = server(36).await;
    call(&api, Method::POST, SLICES, slice(&numa())).await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = Watching::begin(&api, query).await;
    assert_eq!(watch.next().await.unwrap().0, "ADDED");
    assert_eq!(watch.next().await.unwrap().0, "BOOKMARK");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_drivers_role_grants_is_allowed_and_only_on_its_own_node() {
    let api = server(36).await;
    api.confine_slices_to("m");
    for (method, path, wanted) in [
        (Method::GET, "/apis/resource.k8s.io/v1/resourceclaims", 403),
        (Method::GET, "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/x", 404),
        (Method::GET, "/api/v1/nodes", 403),
        (Method::GET, "/api/v1/nodes/n", 404),
        (Method::GET, "/api/v1/namespaces/default/pods/p", 404),
        (Method::PATCH, "/apis/resource.k8s.io/v1/resourceslices/x", 403),
        (Method::GET, "/apis/apps/v1/deployments", 404),
    ] {
        assert_eq!(call(&api, method, path, Value::Null).await.0, wanted, "{path}");
    }
    let (code, status) = call(&api, Method::POST, SLICES, slice(&numa())).await;
    assert_eq!(code, 403);
    assert!(status["message"].as_str().unwrap().contains("ValidatingAdmissionPolicy"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_on_demand_are_counted_down() {
    let api = server(36).await;
    for code in [409, 410, 422, 503] {
        api.refuse(Verb::Create, Resource::ResourceSlices, code, Some(1));
    }
    for wanted in [409, 410, 422, 503, 201] {
        assert_eq!(call(&api, Method::POST, SLICES, slice(&numa())).await.0, wanted);
    }
    assert_eq!(api.count(Verb::Create, Resource::ResourceSlices), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_can_be_away_and_come_back_on_the_same_port() {
    let api = server(36).await;
    api.set_presence(Presence::Refusing).await.unwrap();
    assert!(send(&api, Method::GET, SLICES, &Value::Null).await.is_err());
    api.set_presence(Presence::Hanging).await.unwrap();
    let (hanging, back) = tokio::join!(send(&api, Method::GET, SLICES, &Value::Null), async {
        let first = send(&api, Method::GET, SLICES, &Value::Null);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(100), first).await.is_err());
        api.set_presence(Presence::Here).await
    });
    assert_eq!(hanging.unwrap().status(), 200);
    back.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_gets_can_be_held_until_many_are_in_flight() {
    let api = server(36).await;
    api.put(Resource::ResourceClaims, json!({"metadata": {"namespace": "default", "name": "c"}}));
    api.hold_claim_gets_until(5);
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c";
    let all = join_all((0..5).map(|_| call(&api, Method::GET, path, Value::Null))).await;
    assert!(all.iter().all(|(code, _)| *code == 200));
    let gets = *api.claim_gets().borrow();
    assert_eq!((gets.peak, gets.in_flight), (5, 0));
}
