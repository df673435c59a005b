//! The kubelet stand-in keeps a kubelet's rules. The plugin here is a plain tonic server, as a driver's is.

use dracpu_proto::dra_v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use dracpu_proto::dra_v1::{
    Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use dracpu_proto::health_v1::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use dracpu_proto::health_v1::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use dracpu_proto::registration::registration_server::{Registration, RegistrationServer};
use dracpu_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use dracpu_tests::support::api_server::{ApiServer, Gates, Resource};
use dracpu_tests::support::clock::{Clock, Hands};
use dracpu_tests::support::kubelet::{ClaimRef, DraApi, Health, Kubelet, KubeletConfig, KubeletVersion};
use dracpu_tests::support::wait::{self, SOON};
use futures::StreamExt as _;
use futures::future::ready;
use futures::stream::BoxStream;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

const DRIVER: &str = "cpu.example.org";

/// A driver that answers whatever it is told to.
#[derive(Clone)]
struct Plugin {
    endpoint: PathBuf,
    versions: Vec<String>,
    answer: Arc<Mutex<BTreeMap<String, NodePrepareResourceResponse>>>,
    told: Arc<watch::Sender<Option<RegistrationStatus>>>,
    /// The next report; none ends the stream.
    health: Arc<watch::Sender<Option<NodeWatchResourcesResponse>>>,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.to_str().unwrap().to_owned(),
            supported_versions: self.versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.told.send_replace(Some(request.into_inner()));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Plugin {
    async fn node_prepare_resources(
        &self,
        _: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = self.answer.lock().unwrap().clone();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        _: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        Err(Status::internal("100% of it failed"))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Plugin {
    type NodeWatchResourcesStream = BoxStream<'static, Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let reports = WatchStream::new(self.health.subscribe());
        let reports = reports.take_while(|report| ready(report.is_some()));
        Ok(Response::new(reports.filter_map(|report| ready(report.map(Ok))).boxed()))
    }
}

/// Serves all services on a socket until cancelled: connections are ended then.
fn serve(plugin: &Plugin, socket: &Path) -> CancellationToken {
    let listener = UnixListener::bind(socket).unwrap();
    let (registration, dra) = (RegistrationServer::new(plugin.clone()), DraPluginServer::new(plugin.clone()));
    let health = plugin.versions.iter().any(|version| version == "v1.DRAResourceHealth");
    let health = health.then(|| DraResourceHealthServer::new(plugin.clone()));
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    tokio::spawn(async move {
        tonic::transport::Server::builder()
            .add_service(registration)
            .add_service(dra)
            .add_optional_service(health)
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
            .await
            .unwrap();
    });
    stop
}

struct Stage {
    api: Arc<ApiServer>,
    kubelet: Kubelet,
    /// Of leases.
    hands: Hands,
    directory: TempDir,
}

impl Stage {
    async fn new(version: KubeletVersion, slice_grace: Duration) -> Self {
        let directory = tempfile::Builder::new().prefix("dk").tempdir_in("/tmp").unwrap();
        let api = Arc::new(ApiServer::start(Gates::defaults_of(36)).await.unwrap());
        let (clock, hands) = Clock::told();
        let kubelet = Kubelet::start(KubeletConfig {
            root: directory.path().to_owned(),
            node: "n".to_owned(),
            version,
            api: Arc::clone(&api),
            slice_grace,
            clock,
        });
        Self { api, kubelet: kubelet.unwrap(), hands, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn plugin(&self, versions: &[&str]) -> Plugin {
        Plugin {
            endpoint: self.path("plugins/dra@dra.sock"),
            versions: versions.iter().map(|version| (*version).to_owned()).collect(),
            answer: Arc::default(),
            told: Arc::new(watch::channel(None).0),
            health: Arc::new(watch::channel(report(&[])).0),
        }
    }

    fn put_slice(&self) {
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": DRIVER, "nodeName": "n"}});
        self.api.put(Resource::ResourceSlices, slice);
    }
}

fn claim(uid: &str) -> ClaimRef {
    ClaimRef { namespace: "default".to_owned(), name: format!("claim-{uid}"), uid: uid.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_socket_without_an_at_sign_is_never_registered_by_a_tonic_server() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v1.DRAPlugin"]);
    let socket = stage.path("plugins_registry/cpu-reg.sock");
    let _dra = serve(&plugin, &plugin.endpoint);
    let _registration = serve(&plugin, &socket);
    let refused = |plugins: &dracpu_tests::support::kubelet::Plugins| plugins.refusals.contains_key(&socket);
    let plugins = wait::until("refusal", SOON, &mut stage.kubelet.plugins(), refused).await.unwrap();
    assert!(
        plugins.refusals[&socket].contains("PROTOCOL_ERROR")
            || plugins.refusals[&socket].contains("protocol error"),
        "{plugins:?}"
    );
    assert!(plugins.drivers.is_empty());
    assert_eq!(*plugin.told.borrow(), None, "GetInfo never arrived, so nothing could be told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_with_an_at_sign_is_asked_told_and_connected() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v2.DRAPlugin", "v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    let _dra = serve(&plugin, &plugin.endpoint);
    let _hidden = serve(&plugin, &stage.path("plugins_registry/.cpu@reg.sock"));
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    let registered = stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    assert_eq!(registered.api, DraApi::V1, "the first version that it knows");
    let told =
        wait::until("notification", SOON, &mut plugin.told.subscribe(), Option::is_some).await.unwrap();
    assert_eq!(told, Some(RegistrationStatus { plugin_registered: true, error: String::new() }));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_kubelet_dials_the_bare_path_and_knows_v1beta1_only() {
    let stage = Stage::new(KubeletVersion::V133, SOON).await;
    let mut plugin = stage.plugin(&["v1.DRAPlugin"]);
    plugin.endpoint = stage.path("plugins/dra@dra.sock");
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    let told =
        wait::until("notification", SOON, &mut plugin.told.subscribe(), Option::is_some).await.unwrap();
    assert!(told.is_some_and(|told| !told.plugin_registered && told.error.contains("v1.DRAPlugin")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_at_any_moment_leaves_the_next_one_its_own_answer() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v1.DRAPlugin"]);
    let _dra = serve(&plugin, &plugin.endpoint);
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    let claims = [claim("a")];
    for micros in 0..200 {
        let call = stage.kubelet.prepare(DRIVER, &claims);
        let _dropped = tokio::time::timeout(Duration::from_micros(micros), call).await;
        let refusal = stage.kubelet.unprepare(DRIVER, &claims).await.unwrap_err();
        assert!(format!("{refusal:#}").contains("100% of it failed"), "{micros}: {refusal:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_checked_as_a_kubelet_checks_them() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v1.DRAPlugin"]);
    let _dra = serve(&plugin, &plugin.endpoint);
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    let device = |name: &str, id: &str| NodePrepareResourceResponse {
        devices: vec![Device {
            pool_name: "n".to_owned(),
            device_name: name.to_owned(),
            cdi_device_ids: vec![id.to_owned()],
            ..Device::default()
        }],
        error: String::new(),
    };
    let refused = NodePrepareResourceResponse { devices: vec![], error: "no CPUs left".to_owned() };
    let good = device("d", "example.org/cpu=a");
    for (answer, asked, complaint) in [
        (vec![("a", good.clone())], vec!["a", "b"], "skipped 1 ResourceClaims"),
        (vec![("a", good.clone()), ("x", good.clone())], vec!["a"], "claim x, which was not asked"),
        (vec![("a", device("", "example.org/cpu=a"))], vec!["a"], "without pool or device name"),
        (vec![("a", device("d", "cpu=a"))], vec!["a"], "CDI device id `cpu=a`"),
        (vec![("a", good.clone()), ("b", refused)], vec!["a", "b"], ""),
    ] {
        let answer = answer.into_iter().map(|(uid, answer)| (uid.to_owned(), answer));
        *plugin.answer.lock().unwrap() = answer.collect();
        let asked: Vec<_> = asked.into_iter().map(claim).collect();
        let result = stage.kubelet.prepare(DRIVER, &asked).await;
        if complaint.is_empty() {
            let answers = result.unwrap();
            assert_eq!(answers["a"].as_ref().unwrap()[0].device_name, "d");
            assert_eq!(answers["b"], Err("no CPUs left".to_owned()));
        } else {
            let text = format!("{:#}", result.unwrap_err());
            assert!(text.contains(complaint), "{text}");
        }
    }
    let text = format!("{:#}", stage.kubelet.unprepare(DRIVER, &[claim("a")]).await.unwrap_err());
    assert!(text.contains("code = 13 desc = 100% of it failed"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_go_when_the_driver_is_gone_for_the_grace_period_and_not_when_it_is_back_in_time() {
    let stage = Stage::new(KubeletVersion::Current, Duration::from_secs(2)).await;
    let plugin = stage.plugin(&["v1.DRAPlugin"]);
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    let dra = serve(&plugin, &plugin.endpoint);
    stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    stage.put_slice();
    let stop = async |dra: CancellationToken| {
        dra.cancel();
        stage.kubelet.wait_disconnected(DRIVER, SOON).await.unwrap();
        std::fs::remove_file(&plugin.endpoint).unwrap();
    };
    stop(dra).await;
    let dra = serve(&plugin, &plugin.endpoint);
    stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    assert_eq!(stage.api.list(Resource::ResourceSlices).len(), 1, "back in time");
    stop(dra).await;
    stage.api.wait_for_slices("deletion", SOON, <[_]>::is_empty).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_deletes_all_slices_of_the_node_and_registers_anew() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v1.DRAPlugin"]);
    let _dra = serve(&plugin, &plugin.endpoint);
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    stage.put_slice();
    stage.kubelet.restart().await;
    assert!(stage.api.list(Resource::ResourceSlices).is_empty());
    let registered = stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    assert_eq!(registered.registrations, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_socket_deregisters_and_a_replaced_one_registers_again() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v1.DRAPlugin"]);
    let _dra = serve(&plugin, &plugin.endpoint);
    let socket = stage.path("plugins_registry/cpu@reg.sock");
    let _registration = serve(&plugin, &socket);
    stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
    std::fs::remove_file(&socket).unwrap();
    let _again = serve(&plugin, &socket);
    let again = |plugins: &dracpu_tests::support::kubelet::Plugins| {
        plugins.drivers.get(DRIVER).is_some_and(|driver| driver.registrations == 2 && driver.connected)
    };
    wait::until("second registration", SOON, &mut stage.kubelet.plugins(), again).await.unwrap();
    std::fs::remove_file(&socket).unwrap();
    let gone = |plugins: &dracpu_tests::support::kubelet::Plugins| plugins.drivers.is_empty();
    wait::until("deregistration", SOON, &mut stage.kubelet.plugins(), gone).await.unwrap();
}

/// A report: device, health, lease in seconds, words.
fn report(devices: &[(&str, HealthStatus, i64, &str)]) -> Option<NodeWatchResourcesResponse> {
    let device = |(name, health, lease, message): &(&str, HealthStatus, i64, &str)| DeviceHealth {
        device: Some(DeviceIdentifier { pool_name: "p".to_owned(), device_name: (*name).to_owned() }),
        health: (*health).into(),
        last_updated_time: 1, // not what a lease is counted from
        health_check_timeout_seconds: *lease,
        message: (*message).to_owned(),
    };
    Some(NodeWatchResourcesResponse { devices: devices.iter().map(device).collect() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reported_device_is_known_until_its_lease_ends_and_other_devices_keep_their_state() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v1.DRAPlugin", "v1.DRAResourceHealth"]);
    let _dra = serve(&plugin, &plugin.endpoint);
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    let health = |device: &str| stage.kubelet.device_health(DRIVER, "p", device);
    let wait = async |device: &str, health| {
        stage.kubelet.wait_health(DRIVER, "p", device, health, SOON).await.unwrap()
    };
    let first = report(&[("a", HealthStatus::Healthy, 0, ""), ("b", HealthStatus::Healthy, 20, "fine")]);
    plugin.health.send_replace(first);
    assert_eq!(wait("b", Health::Healthy).await, "fine");
    assert_eq!(health("c").0, Health::Unknown, "never reported");

    stage.hands.advance(Duration::from_secs(19));
    plugin.health.send_replace(report(&[("a", HealthStatus::Unhealthy, -1, &"x".repeat(1030))]));
    let words = wait("a", Health::Unhealthy).await;
    assert!(words.len() == 1024 && words.ends_with("x..."), "{words}");
    assert_eq!(health("b").0, Health::Healthy, "it was not in the report");
    stage.hands.advance(Duration::from_secs(1));
    assert_eq!(health("b"), (Health::Unknown, String::new()));
    stage.hands.advance(Duration::from_secs(28));
    assert_eq!(health("a").0, Health::Unhealthy, "30 s where a report says nothing else");
    stage.hands.advance(Duration::from_secs(1));
    assert_eq!(health("a").0, Health::Unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_stream_of_health_loses_all_it_told_and_is_opened_again() {
    let stage = Stage::new(KubeletVersion::Current, SOON).await;
    let plugin = stage.plugin(&["v1.DRAPlugin", "v1.DRAResourceHealth"]);
    let _dra = serve(&plugin, &plugin.endpoint);
    let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
    let wait = async |health| stage.kubelet.wait_health(DRIVER, "p", "a", health, SOON).await.unwrap();
    plugin.health.send_replace(report(&[("a", HealthStatus::Healthy, 20, "")]));
    wait(Health::Healthy).await;
    let before = stage.kubelet.reports().borrow().streams[DRIVER];
    plugin.health.send_replace(None);
    wait(Health::Unknown).await;
    plugin.health.send_replace(report(&[("a", HealthStatus::Healthy, 20, "")]));
    // it waits for 5 s, counted from a moment that shows nowhere
    let mut reports = stage.kubelet.reports();
    while reports.borrow_and_update().streams[DRIVER] == before {
        stage.hands.advance(Duration::from_secs(5));
        tokio::task::yield_now().await;
    }
    wait(Health::Healthy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_kubelet_of_1_36_asks_a_driver_for_health_that_does_not_offer_it() {
    for (version, offers, streams) in [
        (KubeletVersion::Current, "v1.DRAPlugin", None),
        (KubeletVersion::V136, "v1.DRAPlugin", Some(2)),
        (KubeletVersion::V133, "v1beta1.DRAPlugin", None),
    ] {
        let stage = Stage::new(version, SOON).await;
        let plugin = stage.plugin(&[offers]);
        let _dra = serve(&plugin, &plugin.endpoint);
        let _registration = serve(&plugin, &stage.path("plugins_registry/cpu@reg.sock"));
        stage.kubelet.wait_registered(DRIVER, SOON).await.unwrap();
        let mut reports = stage.kubelet.reports();
        while reports.borrow_and_update().streams.get(DRIVER).copied() < streams {
            stage.hands.advance(Duration::from_secs(5));
            tokio::task::yield_now().await;
        }
        assert_eq!(reports.borrow().streams.contains_key(DRIVER), streams.is_some(), "{version:?}");
    }
}
