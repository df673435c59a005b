//! The runtime stand-in keeps containerd's rules. The plugin here writes every frame by hand.

use dracpu_proto::{NRI_RUNTIME_SERVICE, nri, ttrpc};
use dracpu_tests::support::cpus::cpus;
use dracpu_tests::support::runtime::{
    ContainerSpec, CpuChange, PodSpec, RegisterOrder, Runtime, RuntimeConfig, RuntimeVersion,
};
use dracpu_tests::support::wait::{self, SOON};
use prost::Message;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// The runtime's patience with who never answers.
const IN_LIFE: Duration = Duration::from_secs(2);
const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;

/// How a plugin cuts its messages into frames.
#[derive(Clone, Copy)]
enum Framing {
    /// A 10-byte header frame, then the payload.
    HeaderThenPayload,
    /// The whole message in one frame.
    Whole,
}

/// What the plugin answers to one call.
enum Answer {
    Ok(Vec<u8>),
    Error(i32, &'static str),
    Silence,
}

fn request_to_runtime(method: &str, payload: &impl Message) -> Vec<u8> {
    let (service, method) = (NRI_RUNTIME_SERVICE.to_owned(), method.to_owned());
    let request = ttrpc::Request { service, method, payload: payload.encode_to_vec(), ..Default::default() };
    request.encode_to_vec()
}

fn ok(message: &impl Message) -> Answer {
    Answer::Ok(message.encode_to_vec())
}

type Answering = Arc<dyn Fn(&str, &[u8]) -> Answer + Send + Sync>;

/// A message header and its data, and the frames for them.
fn frames(id: u32, stream: u32, kind: u8, data: &[u8], framing: Framing) -> Vec<u8> {
    let mut header = u32::try_from(data.len()).unwrap().to_be_bytes().to_vec();
    header.extend(stream.to_be_bytes());
    header.extend([kind, 0]);
    let parts = match framing {
        Framing::HeaderThenPayload => vec![header, data.to_vec()],
        Framing::Whole => vec![[header, data.to_vec()].concat()],
    };
    let framed = parts.into_iter().filter(|part| !part.is_empty()).map(|part| {
        [id.to_be_bytes().to_vec(), u32::try_from(part.len()).unwrap().to_be_bytes().to_vec(), part].concat()
    });
    framed.collect::<Vec<_>>().concat()
}

/// Reads frames and hands out whole messages: connection id, stream id, data.
struct Reading {
    stream: OwnedReadHalf,
    streams: [Vec<u8>; 2],
    ready: VecDeque<(u32, u32, Vec<u8>)>,
}

impl Reading {
    async fn message(&mut self) -> Option<(u32, u32, Vec<u8>)> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let id = self.stream.read_u32().await.ok()?;
            let length = self.stream.read_u32().await.ok()?;
            let mut frame = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut frame).await.ok()?;
            let bytes = &mut self.streams[usize::try_from(id - 1).unwrap()];
            bytes.extend(frame);
            while bytes.len() >= 10 {
                let end = 10 + usize::try_from(u32::from_be_bytes(bytes[..4].try_into().unwrap())).unwrap();
                if bytes.len() < end {
                    break;
                }
                let stream = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
                let message: Vec<u8> = bytes.drain(..end).collect();
                self.ready.push_back((id, stream, message[10..].to_vec()));
            }
        }
    }
}

struct Stage {
    runtime: Runtime,
    directory: TempDir,
}

impl Stage {
    fn new(version: RuntimeVersion, change: impl Fn(&mut RuntimeConfig)) -> Self {
        let directory = tempfile::Builder::new().prefix("dr").tempdir_in("/tmp").unwrap();
        let (socket, cdi) = (directory.path().join("nri.sock"), directory.path().join("cdi"));
        std::fs::create_dir(&cdi).unwrap();
        let mut config = RuntimeConfig::new(socket, cdi, version, cpus("0-7"));
        // Who is to answer does so, however busy the machine is.
        config.request_timeout = SOON;
        config.registration_timeout = SOON;
        change(&mut config);
        Self { runtime: Runtime::start(config).unwrap(), directory }
    }

    async fn connect(&self) -> (Reading, OwnedWriteHalf) {
        let stream = UnixStream::connect(self.directory.path().join("nri.sock")).await.unwrap();
        let (reading, writing) = stream.into_split();
        (Reading { stream: reading, streams: [Vec::new(), Vec::new()], ready: VecDeque::new() }, writing)
    }

    /// Registers; serves until the connection ends. The answer to RegisterPlugin comes back on the channel.
    async fn plugin(
        &self,
        index: &str,
        name: &str,
        framing: Framing,
        answering: Answering,
    ) -> tokio::sync::mpsc::UnboundedReceiver<ttrpc::Response> {
        self.speaking_plugin(index, name, framing, answering).await.0
    }

    /// The same, which can make calls of its own: what is written to the pipe goes to the runtime.
    async fn speaking_plugin(
        &self,
        index: &str,
        name: &str,
        framing: Framing,
        answering: Answering,
    ) -> (tokio::sync::mpsc::UnboundedReceiver<ttrpc::Response>, DuplexStream) {
        let (mut reading, mut writing) = self.connect().await;
        let register = nri::RegisterPluginRequest {
            plugin_name: name.to_owned(),
            plugin_idx: index.to_owned(),
            ..Default::default()
        };
        let request = request_to_runtime("RegisterPlugin", &register);
        let call = frames(RUNTIME, 1, 1, &request, Framing::HeaderThenPayload);
        writing.write_all(&call).await.unwrap();
        let (own_calls, mut to_write) = tokio::io::duplex(1 << 16);
        let (replies, replied) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let (messages, mut arrived) = tokio::sync::mpsc::unbounded_channel();
            tokio::spawn(async move {
                while let Some(message) = reading.message().await {
                    let _connection_over = messages.send(message);
                }
            });
            let mut own = vec![0; 1 << 16];
            loop {
                let (id, stream, data) = tokio::select! {
                    message = arrived.recv() => match message {
                        Some(message) => message,
                        None => return,
                    },
                    // the test may have let go of its end: then there is nothing more to write
                    Ok(length @ 1..) = to_write.read(&mut own) => {
                        writing.write_all(&own[..length]).await.unwrap();
                        continue;
                    }
                };
                if id == RUNTIME {
                    let _test_over = replies.send(ttrpc::Response::decode(data.as_slice()).unwrap());
                    continue;
                }
                let request = ttrpc::Request::decode(data.as_slice()).unwrap();
                let response = match answering(&request.method, &request.payload) {
                    Answer::Ok(payload) => ttrpc::Response { status: None, payload },
                    Answer::Error(code, message) => {
                        let message = message.to_owned();
                        let status = Some(ttrpc::Status { code, message, details: vec![] });
                        ttrpc::Response { status, payload: vec![] }
                    }
                    Answer::Silence => continue,
                };
                let answer = frames(PLUGIN, stream, 2, &response.encode_to_vec(), framing);
                if writing.write_all(&answer).await.is_err() {
                    return;
                }
            }
        });
        (replied, own_calls)
    }

    async fn pod(&self) -> String {
        let pod = PodSpec { name: "p".to_owned(), uid: "u".to_owned(), ..PodSpec::default() };
        self.runtime.run_pod_sandbox(pod).await.unwrap()
    }

    async fn create(&self, pod: &str, name: &str) -> anyhow::Result<String> {
        let spec = ContainerSpec { name: name.to_owned(), ..ContainerSpec::default() };
        self.runtime.create_container(pod, &spec).await
    }
}

fn update(id: &str, mask: &str) -> nri::ContainerUpdate {
    let cpu = nri::LinuxCpu { cpus: mask.to_owned(), ..Default::default() };
    let resources = nri::LinuxResources { cpu: Some(cpu), ..Default::default() };
    let linux = Some(nri::LinuxContainerUpdate { resources: Some(resources) });
    nri::ContainerUpdate { container_id: id.to_owned(), linux, ignore_failure: false }
}

fn created(mask: &str, update: Vec<nri::ContainerUpdate>) -> nri::CreateContainerResponse {
    let cpu = nri::LinuxCpu { cpus: mask.to_owned(), ..Default::default() };
    let resources = nri::LinuxResources { cpu: Some(cpu), ..Default::default() };
    let linux = nri::LinuxContainerAdjustment { resources: Some(resources), ..Default::default() };
    let adjust = nri::ContainerAdjustment { linux: Some(linux), ..Default::default() };
    nri::CreateContainerResponse { adjust: Some(adjust), update, evict: vec![] }
}

/// Answers with a mask of events, nothing to Synchronize, `create` to CreateContainer, and nothing else.
fn pinning(events: i32, create: impl Fn() -> Answer + Send + Sync + 'static) -> Answering {
    Arc::new(move |method, _| match method {
        "Configure" => ok(&nri::ConfigureResponse { events }),
        "CreateContainer" => create(),
        _ => ok(&nri::Empty {}),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_works_in_all_three_orders() {
    for order in [RegisterOrder::AnswerFirst, RegisterOrder::ConfigureFirst, RegisterOrder::AnswerLast] {
        let stage = Stage::new(RuntimeVersion::Containerd24, |config| config.order = order);
        let pin = pinning(0x8, || ok(&created("2-3", vec![])));
        let mut replied = stage.plugin("10", "p", Framing::HeaderThenPayload, pin).await;
        stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
        assert_eq!(replied.recv().await.unwrap().status, None, "{order:?}");
        let pod = stage.pod().await;
        let id = stage.create(&pod, "a").await.unwrap();
        assert_eq!(stage.runtime.effective_cpus(&id), cpus("2-3"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_names_and_events_are_refused() {
    let stage = Stage::new(RuntimeVersion::Containerd24, |_| {});
    for (index, name) in [("1", "p"), ("ab", "p"), ("10", ""), ("10", "a/b")] {
        let nothing = pinning(0x8, || Answer::Silence);
        let mut replied = stage.plugin(index, name, Framing::HeaderThenPayload, nothing).await;
        let status = replied.recv().await.unwrap().status.unwrap();
        assert!(status.message.contains("invalid plugin"), "{status:?}");
    }
    for (version, events) in [
        (RuntimeVersion::Containerd24, 0x4000),
        (RuntimeVersion::Containerd24, -1),
        (RuntimeVersion::Containerd21, 0x2608),
    ] {
        let stage = Stage::new(version, |_| {});
        let nothing = pinning(events, || Answer::Silence);
        let _replied = stage.plugin("10", "p", Framing::HeaderThenPayload, nothing).await;
        let refused =
            || stage.runtime.refusals().iter().any(|why| why.contains("invalid plugin events")).then_some(());
        wait::look("refusal", SOON, &mut stage.runtime.changes(), refused).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mute_client_keeps_the_others_waiting_and_is_closed() {
    let stage = Stage::new(RuntimeVersion::Containerd24, |config| config.registration_timeout = IN_LIFE);
    let (mut mute, _writing) = stage.connect().await;
    let _replied =
        stage.plugin("10", "p", Framing::HeaderThenPayload, pinning(0x8, || Answer::Silence)).await;
    assert!(mute.message().await.is_none(), "EOF after the registration timeout");
    stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
    assert!(
        stage.runtime.refusals()[0].contains("no plugin registered within"),
        "{:?}",
        stage.runtime.refusals()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_4096_bytes_in_one_frame_kills_the_plugin_and_the_container_runs_unpinned() {
    let many = || (0..300).map(|n| update(&format!("unknown-{n}"), "0-1")).collect::<Vec<_>>();
    for (framing, pinned) in [(Framing::HeaderThenPayload, true), (Framing::Whole, false)] {
        let stage = Stage::new(RuntimeVersion::Containerd21, |_| {});
        let pin = pinning(0x8, move || ok(&created("2-3", many())));
        let _replied = stage.plugin("10", "p", framing, pin).await;
        stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
        let pod = stage.pod().await;
        let id = stage.create(&pod, "a").await.unwrap();
        let wanted = if pinned { cpus("2-3") } else { cpus("0-7") };
        assert_eq!(stage.runtime.effective_cpus(&id), wanted);
        assert_eq!(stage.runtime.plugins().len(), usize::from(pinned));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_hook_fails_open_without_and_closed_with_the_validation_event() {
    for (events, fails_open) in [(0x8, true), (0x2008, false)] {
        let stage = Stage::new(RuntimeVersion::Containerd24, |config| config.request_timeout = IN_LIFE);
        let _replied =
            stage.plugin("10", "p", Framing::HeaderThenPayload, pinning(events, || Answer::Silence)).await;
        stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
        let pod = stage.pod().await;
        let outcome = stage.create(&pod, "a").await;
        assert!(stage.runtime.plugins().is_empty(), "the plugin is closed");
        match outcome {
            Ok(id) => assert!(fails_open && stage.runtime.effective_cpus(&id) == cpus("0-7")),
            Err(refusal) => {
                assert!(!fails_open);
                assert!(refusal.to_string().contains("validator plugin 10-p failed"), "{refusal}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_the_caller_and_the_end_of_the_container_is_told() {
    let stage = Stage::new(RuntimeVersion::Containerd24, |_| {});
    let refusing = pinning(0x608, || Answer::Error(2, "claim x has no CPUs left"));
    let _replied = stage.plugin("10", "p", Framing::HeaderThenPayload, refusing).await;
    stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
    let pod = stage.pod().await;
    let refusal = stage.create(&pod, "a").await.unwrap_err().to_string();
    assert_eq!(
        refusal,
        "failed to get NRI adjustment for container: rpc error: code = Unknown desc = claim x has no CPUs left"
    );
    let methods: Vec<_> = stage.runtime.calls().into_iter().map(|call| call.method).collect();
    assert_eq!(methods, ["Synchronize", "CreateContainer", "StopContainer", "RemoveContainer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_without_the_methods_of_0_12_is_spoken_to_by_state_change_for_good() {
    for (version, methods) in [
        (RuntimeVersion::Containerd24, vec!["RunPodSandbox", "StateChange", "StateChange"]),
        (RuntimeVersion::Containerd21, vec!["StateChange", "StateChange"]),
    ] {
        let stage = Stage::new(version, |_| {});
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let seeing = Arc::clone(&seen);
        let answering: Answering = Arc::new(move |method, _| match method {
            "Configure" => ok(&nri::ConfigureResponse { events: 0x7 }),
            "Synchronize" => ok(&nri::Empty {}),
            method => {
                seeing.lock().unwrap().push(method.to_owned());
                if method == "StateChange" { ok(&nri::Empty {}) } else { Answer::Error(12, "no such method") }
            }
        });
        let _replied = stage.plugin("10", "p", Framing::HeaderThenPayload, answering).await;
        stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
        stage.pod().await;
        stage.pod().await;
        assert_eq!(*seen.lock().unwrap(), methods);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_plugins_that_set_the_mask_fail_the_creation() {
    let stage = Stage::new(RuntimeVersion::Containerd24, |_| {});
    let mut replies = Vec::new();
    for (index, name) in [("10", "one"), ("20", "two")] {
        let pin = pinning(0x8, || ok(&created("2-3", vec![])));
        replies.push(stage.plugin(index, name, Framing::HeaderThenPayload, pin).await);
        stage.runtime.wait_plugin(&format!("{index}-{name}"), SOON).await.unwrap();
    }
    let pod = stage.pod().await;
    let refusal = stage.create(&pod, "a").await.unwrap_err().to_string();
    assert!(refusal.contains("plugins \"20-two\" and \"10-one\" both tried to set CPUSetCPUs"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn synchronize_in_parts_wants_more_echoed_and_no_updates_before_the_last() {
    for honest in [true, false] {
        let stage = Stage::new(RuntimeVersion::Containerd24, |_| {});
        let pod = stage.pod().await;
        for name in ["a", "b", "c"] {
            stage.create(&pod, name).await.unwrap();
        }
        stage.runtime.synchronize_in_parts(2);
        let seen: Arc<Mutex<Vec<(usize, bool)>>> = Arc::default();
        let seeing = Arc::clone(&seen);
        let answering: Answering = Arc::new(move |method, payload| match method {
            "Configure" => ok(&nri::ConfigureResponse { events: 0x8 }),
            "Synchronize" => {
                let request = nri::SynchronizeRequest::decode(payload).unwrap();
                seeing.lock().unwrap().push((request.containers.len(), request.more));
                ok(&nri::SynchronizeResponse { update: vec![], more: request.more && honest })
            }
            _ => ok(&nri::Empty {}),
        });
        let _replied = stage.plugin("10", "p", Framing::HeaderThenPayload, answering).await;
        let settled =
            || (!stage.runtime.plugins().is_empty() || !stage.runtime.refusals().is_empty()).then_some(());
        wait::look("outcome", SOON, &mut stage.runtime.changes(), settled).await.unwrap();
        assert_eq!(stage.runtime.plugins().len(), usize::from(honest));
        let parts = if honest { vec![(1, true), (2, false)] } else { vec![(1, true)] };
        assert_eq!(*seen.lock().unwrap(), parts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_overrides_the_asked_mask_and_an_empty_one_changes_nothing() {
    let stage = Stage::new(RuntimeVersion::Containerd24, |_| {});
    let answering: Answering = Arc::new(move |method, payload| match method {
        "Configure" => ok(&nri::ConfigureResponse { events: 0x88 }),
        "CreateContainer" => ok(&created("2-3", vec![])),
        "UpdateContainer" => {
            let request = nri::UpdateContainerRequest::decode(payload).unwrap();
            let id = request.container.unwrap().id;
            ok(&nri::UpdateContainerResponse { update: vec![update(&id, "2-3")], evict: vec![] })
        }
        _ => ok(&nri::Empty {}),
    });
    let _replied = stage.plugin("10", "p", Framing::HeaderThenPayload, answering).await;
    stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
    let pod = stage.pod().await;
    let id = stage.create(&pod, "a").await.unwrap();
    let asked = CpuChange { cpus: "0-7".to_owned(), shares: Some(700), ..CpuChange::default() };
    stage.runtime.update_container(&id, asked).await.unwrap();
    let container = stage.runtime.container(&id);
    assert_eq!((container.cpus.as_str(), container.shares), ("2-3", 700));
    stage.runtime.stop().await;
    stage.runtime.update_container(&id, CpuChange { shares: Some(2), ..CpuChange::default() }).await.unwrap();
    assert_eq!(stage.runtime.container(&id).cpus, "2-3", "an empty mask is no change");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unresolvable_cdi_device_refuses_the_container_before_any_hook() {
    let stage = Stage::new(RuntimeVersion::Containerd24, |_| {});
    let pod = stage.pod().await;
    let spec = ContainerSpec {
        name: "a".to_owned(),
        cdi_devices: vec!["dra.k8s.io/cpu=claim-x".to_owned()],
        ..ContainerSpec::default()
    };
    let refusal = stage.runtime.create_container(&pod, &spec).await.unwrap_err().to_string();
    assert!(refusal.contains("unresolvable CDI devices dra.k8s.io/cpu=claim-x"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_outside_of_hooks_set_masks_or_dead_lock_an_older_runtime_until_it_restarts() {
    for version in [RuntimeVersion::Containerd24, RuntimeVersion::Containerd21] {
        let stage = Stage::new(version, |_| {});
        let pod = stage.pod().await;
        let id = stage.create(&pod, "a").await.unwrap();
        let quiet = pinning(0x8, || ok(&created("2-3", vec![])));
        let (mut replies, mut calls) =
            stage.speaking_plugin("10", "p", Framing::HeaderThenPayload, quiet).await;
        stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
        replies.recv().await.unwrap();
        let request = nri::UpdateContainersRequest { update: vec![update(&id, "4")], evict: vec![] };
        let request = request_to_runtime("UpdateContainers", &request);
        let call = frames(RUNTIME, 3, 1, &request, Framing::HeaderThenPayload);
        calls.write_all(&call).await.unwrap();
        if version == RuntimeVersion::Containerd24 {
            assert_eq!(replies.recv().await.unwrap().status, None);
            assert_eq!(stage.runtime.effective_cpus(&id), cpus("4"));
            stage.create(&pod, "b").await.unwrap();
            continue;
        }
        let stuck = || async {
            let outcome = stage.create(&pod, "b").await.map_err(|error| error.to_string());
            anyhow::ensure!(outcome.as_ref().is_err_and(|why| why.contains("dead-locked")), "{outcome:?}");
            Ok(())
        };
        wait::poll("dead-lock", SOON, stuck).await.unwrap();
        assert_eq!(stage.runtime.effective_cpus(&id), cpus("0-7"), "not set");
        stage.runtime.restart().await.unwrap();
        stage.create(&pod, "b").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_survive_a_restart_and_plugins_do_not() {
    let stage = Stage::new(RuntimeVersion::Containerd24, |_| {});
    let pin = || pinning(0x8, || ok(&created("2-3", vec![])));
    let _replied = stage.plugin("10", "p", Framing::HeaderThenPayload, pin()).await;
    stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
    let pod = stage.pod().await;
    let id = stage.create(&pod, "a").await.unwrap();
    stage.runtime.restart().await.unwrap();
    assert!(stage.runtime.plugins().is_empty());
    assert_eq!(stage.runtime.effective_cpus(&id), cpus("2-3"));
    let _replied = stage.plugin("10", "p", Framing::HeaderThenPayload, pin()).await;
    stage.runtime.wait_plugin("10-p", SOON).await.unwrap();
}
