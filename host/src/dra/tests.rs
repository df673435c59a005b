//! The kubelet's side of the sockets, as the kubelet does it.

use super::service::Results;
use super::*;
use crate::cdi::NoProbe;
use crate::clock::SystemClock;
use crate::config::ConfigFlags;
use crate::driver::{ClaimRef, DeviceHealth, DevicesHealth, Prepared, PreparedDevice};
use crate::http::Health;
use crate::http::metrics::{Metrics, NodeState};
use crate::readiness::{Part, Readiness};
use dracpu_proto::registration::registration_client::RegistrationClient;
use dracpu_proto::registration::{InfoRequest, RegistrationStatus};
use dracpu_proto::{dra_v1, dra_v1beta1, health_v1, health_v1alpha1};
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint, Uri};

/// Prepares every claim but `bad`; `slow` waits for a nudge.
#[derive(Default)]
struct Stub {
    started: Notify,
    nudge: Notify,
}

impl Claims for Stub {
    fn prepare(self: Arc<Self>, claims: Vec<ClaimRef>) -> BoxFuture<'static, Results<Prepared>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for claim in claims {
                if claim.uid == "slow" {
                    self.started.notify_one();
                    self.nudge.notified().await;
                }
                let answer = if claim.uid == "bad" {
                    let strategy_failure = Some(("packed".to_owned(), "denied"));
                    Err(Refusal { message: "no CPUs left".to_owned(), strategy_failure })
                } else {
                    Ok(Prepared { devices: vec![device(&claim.uid)] })
                };
                answers.push((claim, answer));
            }
            answers
        })
    }

    fn unprepare(self: Arc<Self>, claims: Vec<ClaimRef>) -> BoxFuture<'static, Results<()>> {
        let refusal = Refusal { message: "file cannot be removed".to_owned(), strategy_failure: None };
        let answer = |claim: &ClaimRef| if claim.uid == "bad" { Err(refusal.clone()) } else { Ok(()) };
        let answers = claims.into_iter().map(|claim| (claim.clone(), answer(&claim))).collect();
        Box::pin(async move { answers })
    }
}

fn device(uid: &str) -> PreparedDevice {
    PreparedDevice {
        request: "r/sub".to_owned(),
        pool: "node".to_owned(),
        device: "cpudevnuma000".to_owned(),
        share_id: Some("share".to_owned()),
        cdi_device_ids: vec![format!("dra.k8s.io/cpu=claim-{uid}")],
        cpus: [2, 3].into(),
    }
}

/// Devices `d0`, `d1`, … with these troubles.
fn health_of(troubles: &[Option<&str>]) -> DevicesHealth {
    let device = |(n, trouble): (usize, &Option<&str>)| DeviceHealth {
        pool: "node".to_owned(),
        device: format!("d{n}"),
        trouble: trouble.map(str::to_owned),
    };
    Arc::new(troubles.iter().enumerate().map(device).collect())
}

/// A driver that serves a kubelet's directory.
struct Served {
    dir: tempfile::TempDir,
    config: Config,
    stub: Arc<Stub>,
    devices: watch::Sender<DevicesHealth>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    health: Arc<Health>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

fn config(root: &Path) -> Config {
    let flags = ConfigFlags {
        kubelet_root_dir: Some(root.to_owned()),
        hostname_override: Some("node".to_owned()),
        ..ConfigFlags::default()
    };
    flags.load().unwrap()
}

fn kubelet_dir() -> (tempfile::TempDir, Config) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    std::fs::create_dir(config.registry_dir()).unwrap();
    prepare_directories(&config).unwrap();
    (dir, config)
}

impl Served {
    async fn start() -> Self {
        let (dir, config) = kubelet_dir();
        let (stub, metrics, readiness, health) =
            <(Arc<Stub>, Arc<Metrics>, Arc<Readiness>, Arc<Health>)>::default();
        let stop = CancellationToken::new();
        let plugin = Plugin::new(stub.clone(), metrics.clone());
        let endpoint = config.dra_socket().to_str().unwrap().to_owned();
        let registrar = Registrar::new(endpoint, readiness.clone(), health.clone());
        let devices = watch::Sender::new(health_of(&[None, None]));
        let reported = Reported { devices: devices.subscribe(), clock: Arc::new(SystemClock) };
        let task =
            tokio::spawn(serve(config.clone(), plugin, reported, registrar, Arc::new(NoProbe), stop.clone()));
        while !config.registration_socket().exists() {
            tokio::task::yield_now().await;
        }
        Self { dir, config, stub, devices, metrics, readiness, health, stop, task }
    }

    fn readiness(&self) -> Option<String> {
        self.readiness
            .problems()
            .into_iter()
            .find(|(part, _)| *part == Part::Registration)
            .map(|(_, why)| why)
    }

    fn has_metric(&self, line: &str) -> bool {
        self.metrics.render(&NodeState::default()).lines().any(|found| found == line)
    }
}

/// Dials as the kubelet's plugin manager does: grpc-go derives `:authority` from the path, percent-encoded.
async fn dial(socket: &Path) -> Channel {
    let path = socket.to_str().unwrap().to_owned();
    let authority = path.replace('/', "%2F");
    let origin: Uri = format!("http://{authority}").parse().unwrap();
    let connect = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    Endpoint::from_static("http://kubelet").origin(origin).connect_with_connector(connect).await.unwrap()
}

fn claims<T>(uids: &[&str], make: impl Fn(String, String, String) -> T) -> Vec<T> {
    uids.iter().map(|uid| make("ns".to_owned(), (*uid).to_owned(), format!("claim-{uid}"))).collect()
}

fn v1_claims(uids: &[&str]) -> Vec<dra_v1::Claim> {
    claims(uids, |namespace, uid, name| dra_v1::Claim { namespace, uid, name })
}

#[tokio::test]
async fn kubelet_registers_through_its_own_authority() {
    let served = Served::start().await;
    assert_eq!(served.readiness().unwrap(), "the kubelet has not contacted this driver yet");
    let mut kubelet = RegistrationClient::new(dial(&served.config.registration_socket()).await);
    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "dra.cpu"));
    assert_eq!(Path::new(&info.endpoint), served.config.dra_socket());
    let services =
        ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];
    assert_eq!(info.supported_versions, services);
    assert!(served.readiness().unwrap().contains("not yet said"));

    let refused = RegistrationStatus { plugin_registered: false, error: "name is taken".to_owned() };
    kubelet.notify_registration_status(refused).await.unwrap();
    assert_eq!(served.readiness().unwrap(), "the kubelet refused the registration: name is taken");

    let accepted = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(accepted).await.unwrap();
    assert_eq!(served.readiness(), None);
    assert_eq!(served.health.problem(), None);
}

#[tokio::test]
async fn each_claim_has_its_own_result() {
    let served = Served::start().await;
    let channel = dial(&served.config.dra_socket()).await;
    let mut kubelet = dra_v1::dra_plugin_client::DraPluginClient::new(channel);
    let request = dra_v1::NodePrepareResourcesRequest { claims: v1_claims(&["a", "bad", "c", "a"]) };
    let answers = kubelet.node_prepare_resources(request).await.unwrap().into_inner().claims;
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["a", "bad", "c"]);
    let prepared = dra_v1::Device {
        request_names: vec!["r".to_owned()],
        pool_name: "node".to_owned(),
        device_name: "cpudevnuma000".to_owned(),
        cdi_device_ids: vec!["dra.k8s.io/cpu=claim-a".to_owned()],
        share_id: Some("share".to_owned()),
    };
    assert_eq!((&answers["a"].devices[..], answers["a"].error.as_str()), (&[prepared][..], ""));
    assert_eq!(answers["bad"].error, "claim ns/claim-bad (bad): no CPUs left");
    assert!(answers["bad"].devices.is_empty());
    for line in [
        "dra_cpu_prepare_claims_total{result=\"success\"} 2",
        "dra_cpu_prepare_claims_total{result=\"error\"} 1",
        "dra_cpu_claim_allocated_cpus_sum 4.0",
        "dra_cpu_strategy_failures_total{strategy=\"packed\",kind=\"denied\"} 1",
    ] {
        assert!(served.has_metric(line), "{line}");
    }

    let request = dra_v1::NodeUnprepareResourcesRequest { claims: v1_claims(&["a", "bad"]) };
    let answers = kubelet.node_unprepare_resources(request).await.unwrap().into_inner().claims;
    assert_eq!(answers["a"].error, "");
    assert_eq!(answers["bad"].error, "claim ns/claim-bad (bad): file cannot be removed");
}

#[tokio::test]
async fn older_version_has_the_same_answers_without_shares() {
    let served = Served::start().await;
    let channel = dial(&served.config.dra_socket()).await;
    let mut kubelet = dra_v1beta1::dra_plugin_client::DraPluginClient::new(channel);
    let make = |namespace, uid, name| dra_v1beta1::Claim { namespace, uid, name };
    let request = dra_v1beta1::NodePrepareResourcesRequest { claims: claims(&["a", "bad"], make) };
    let answers = kubelet.node_prepare_resources(request).await.unwrap().into_inner().claims;
    let prepared = dra_v1beta1::Device {
        request_names: vec!["r".to_owned()],
        pool_name: "node".to_owned(),
        device_name: "cpudevnuma000".to_owned(),
        cdi_device_ids: vec!["dra.k8s.io/cpu=claim-a".to_owned()],
    };
    assert_eq!(answers["a"].devices, [prepared]);
    assert!(answers["bad"].error.contains("no CPUs left"));
    let request = dra_v1beta1::NodeUnprepareResourcesRequest { claims: claims(&["a"], make) };
    let answers = kubelet.node_unprepare_resources(request).await.unwrap().into_inner().claims;
    assert_eq!(answers["a"].error, "");
}

#[tokio::test]
async fn running_call_is_finished_at_the_end_and_the_sockets_are_gone() {
    let served = Served::start().await;
    let channel = dial(&served.config.dra_socket()).await;
    let call = tokio::spawn(async move {
        let mut kubelet = dra_v1::dra_plugin_client::DraPluginClient::new(channel);
        let request = dra_v1::NodePrepareResourcesRequest { claims: v1_claims(&["slow"]) };
        kubelet.node_prepare_resources(request).await
    });
    served.stub.started.notified().await;
    served.stop.cancel();
    while served.config.registration_socket().exists() {
        tokio::task::yield_now().await;
    }
    assert!(!served.task.is_finished(), "a call runs");
    served.stub.nudge.notify_one();
    assert!(call.await.unwrap().unwrap().into_inner().claims.contains_key("slow"));
    served.task.await.unwrap().unwrap();
    assert!(!served.config.dra_socket().exists());
    drop(served.dir);
}

/// Device, health, lease and text of each device of a report.
fn told(report: health_v1::NodeWatchResourcesResponse) -> Vec<(String, i32, i64, String)> {
    let device = |device: health_v1::DeviceHealth| {
        let id = device.device.unwrap();
        assert_eq!(id.pool_name, "node");
        assert!(device.last_updated_time > 1_600_000_000, "{}", device.last_updated_time);
        (id.device_name, device.health, device.health_check_timeout_seconds, device.message)
    };
    report.devices.into_iter().map(device).collect()
}

fn expected(health: &[(&str, i32, &str)]) -> Vec<(String, i32, i64, String)> {
    let device =
        |(name, health, text): &(&str, i32, &str)| ((*name).to_owned(), *health, 20, (*text).to_owned());
    health.iter().map(device).collect()
}

#[tokio::test]
async fn every_subscriber_is_told_of_all_devices_at_once_and_on_each_change() {
    use health_v1::dra_resource_health_client::DraResourceHealthClient as V1;
    use health_v1alpha1::dra_resource_health_client::DraResourceHealthClient as V1alpha1;
    let served = Served::start().await;
    let channel = dial(&served.config.dra_socket()).await;
    let request = health_v1::NodeWatchResourcesRequest {};
    let mut first = V1::new(channel.clone()).node_watch_resources(request).await.unwrap().into_inner();
    let request = health_v1alpha1::NodeWatchResourcesRequest {};
    let mut second = V1alpha1::new(channel).node_watch_resources(request).await.unwrap().into_inner();
    let well = expected(&[("d0", 1, "device initialized"), ("d1", 1, "device initialized")]);
    assert_eq!(told(first.message().await.unwrap().unwrap()), well);
    assert_eq!(second.message().await.unwrap().unwrap().devices.len(), 2);

    served.devices.send_replace(health_of(&[None, Some("offline: CPU 1 of claim a/b")]));
    let ill = expected(&[("d0", 1, "device initialized"), ("d1", 2, "offline: CPU 1 of claim a/b")]);
    assert_eq!(told(first.message().await.unwrap().unwrap()), ill);
    let report = second.message().await.unwrap().unwrap();
    assert_eq!(report.devices[1].health, health_v1alpha1::HealthStatus::Unhealthy as i32);
    assert_eq!(report.devices[1].message, "offline: CPU 1 of claim a/b");

    served.devices.send_replace(health_of(&[None, None]));
    assert_eq!(told(first.message().await.unwrap().unwrap()), well);
}

#[tokio::test]
async fn a_stream_of_health_leaves_nothing_behind_and_does_not_keep_the_server_from_ending() {
    use health_v1::dra_resource_health_client::DraResourceHealthClient as V1;
    let served = Served::start().await;
    let request = || health_v1::NodeWatchResourcesRequest {};
    let mut kubelet = V1::new(dial(&served.config.dra_socket()).await);
    let before = served.devices.receiver_count();
    let mut stream = kubelet.node_watch_resources(request()).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    assert_eq!(served.devices.receiver_count(), before + 1);
    drop(stream);
    let gone = async {
        while served.devices.receiver_count() > before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.unwrap();

    let mut stream = kubelet.node_watch_resources(request()).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    served.stop.cancel();
    assert!(stream.message().await.unwrap().is_none(), "it ends without an error");
    served.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn call_that_the_kubelet_drops_counts_as_unknown() {
    let served = Served::start().await;
    let channel = dial(&served.config.dra_socket()).await;
    let mut kubelet = dra_v1::dra_plugin_client::DraPluginClient::new(channel);
    let request = dra_v1::NodePrepareResourcesRequest { claims: v1_claims(&["slow"]) };
    tokio::select! {
        _ = kubelet.node_prepare_resources(request) => panic!("nobody nudged it"),
        () = served.stub.started.notified() => {}
    }
    let line = "dra_cpu_prepare_claims_total{result=\"unknown\"} 1";
    let counted = async {
        while !served.has_metric(line) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), counted).await.unwrap();
}

#[tokio::test]
async fn leftover_sockets_are_removed_under_every_name() {
    let (_dir, config) = kubelet_dir();
    let sockets = [
        config.registration_socket(),
        config.dra_socket(),
        config.registry_dir().join("dra.cpu-reg.sock"),
        config.plugin_dir().join("dra.sock"),
    ];
    for socket in &sockets {
        drop(UnixListener::bind(socket).unwrap());
        assert!(socket.exists());
    }
    clear_the_way(&config).await.unwrap();
    assert!(sockets.iter().all(|socket| !socket.exists()));
    clear_the_way(&config).await.unwrap();
}

#[tokio::test]
async fn socket_that_answers_is_another_drivers() {
    let (_dir, config) = kubelet_dir();
    let socket = config.registry_dir().join("dra.cpu-reg.sock");
    let _theirs = UnixListener::bind(&socket).unwrap();
    let error = clear_the_way(&config).await.unwrap_err();
    assert!(matches!(&error, SocketError::AnotherDriver(path) if *path == socket));
    assert!(error.to_string().contains("another driver runs here"), "{error}");
    assert!(socket.exists());
}

#[tokio::test]
async fn links_in_the_sockets_places_are_taken_away_and_what_they_lead_to_is_left() {
    let (dir, config) = kubelet_dir();
    let foreign = dir.path().join("foreign.sock");
    let listener = UnixListener::bind(&foreign).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    for (target, link) in [
        (foreign.as_path(), config.registration_socket()),
        (file.as_path(), config.dra_socket()),
        (Path::new("/no/such/socket"), config.plugin_dir().join("dra.sock")),
    ] {
        std::os::unix::fs::symlink(target, link).unwrap();
    }
    clear_the_way(&config).await.unwrap();
    for socket in [config.registration_socket(), config.dra_socket(), config.plugin_dir().join("dra.sock")] {
        assert!(std::fs::symlink_metadata(&socket).is_err(), "{}", socket.display());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    UnixStream::connect(&foreign).await.unwrap();
    drop(listener);
}

#[test]
fn directory_of_no_kubelet_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = prepare_directories(&config(dir.path())).unwrap_err();
    assert!(matches!(error, SocketError::NoRegistry(_)));
    assert!(error.to_string().contains("--kubelet-root-dir"), "{error}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing was made");
}
