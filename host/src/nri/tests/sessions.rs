//! Whole connections over a real socket.

use super::driver::{Driver, update};
use super::peer::{Peer, Runtime, soon};
use crate::nri::{self as edge, Hooks as _, Pause, run};
use crate::readiness::{Part, Readiness};
use dracpu_proto::{nri, ttrpc};
use prost::Message;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Plugin {
    driver: Arc<Driver>,
    readiness: Arc<Readiness>,
    peer: Arc<edge::Peer>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Plugin {
    fn start(socket: PathBuf) -> Self {
        let (driver, readiness, stop) =
            (Arc::new(Driver::default()), Arc::new(Readiness::default()), CancellationToken::new());
        let peer: Arc<edge::Peer> = Arc::default();
        let (hooks, observer) = (driver.clone(), driver.clone());
        let task = tokio::spawn(run(socket, hooks, observer, readiness.clone(), peer.clone(), stop.clone()));
        Self { driver, readiness, peer, stop, task }
    }

    /// Why NRI is not ready, if so.
    fn problem(&self) -> Option<String> {
        self.readiness.problems().into_iter().find(|(part, _)| *part == Part::Nri).map(|(_, why)| why)
    }

    /// Waits until the problem reads as wanted.
    async fn problem_becomes(&self, wanted: impl Fn(Option<&str>) -> bool) {
        soon(async {
            while !wanted(self.problem().as_deref()) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn end(self) {
        self.stop.cancel();
        soon(self.task).await.unwrap();
    }
}

fn container(id: &str) -> nri::Container {
    nri::Container { id: id.into(), name: "app".into(), ..Default::default() }
}

fn create(id: &str) -> nri::CreateContainerRequest {
    nri::CreateContainerRequest { container: Some(container(id)), ..Default::default() }
}

async fn served(peer: &mut Peer) {
    peer.registration().await;
    peer.registered(None).await;
    peer.configure().await;
    peer.synchronize(vec![]).await;
}

#[tokio::test]
async fn the_plugin_registers_with_the_name_and_index_of_the_driver() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let request = runtime.accept().await.registration().await;
    assert_eq!((&*request.plugin_name, &*request.plugin_idx), ("dra.cpu", "00"));
    assert_eq!(request.nri_version, "v0.12.2");
    plugin.end().await;
}

#[tokio::test]
async fn configure_and_synchronize_may_come_before_or_after_the_reply_to_the_registration() {
    for reply_before_step in 0..=2 {
        let runtime = Runtime::start();
        let plugin = Plugin::start(runtime.socket());
        let mut peer = runtime.accept().await;
        peer.registration().await;
        for step in 0..=2 {
            if step == reply_before_step {
                peer.registered(None).await;
            }
            match step {
                0 => assert_eq!(peer.configure().await, 0x26c8),
                1 => assert_eq!(peer.synchronize(vec![container("a")]).await.len(), 1),
                _ => drop(
                    peer.call::<nri::CreateContainerResponse>("CreateContainer", &create("b")).await.unwrap(),
                ),
            }
        }
        assert_eq!(plugin.problem(), None);
        plugin.end().await;
    }
}

#[tokio::test]
async fn nri_is_ready_from_the_last_part_of_synchronize_to_the_end_of_the_connection() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    assert_eq!(plugin.problem().as_deref(), Some("not connected to the container runtime yet"));
    let mut peer = runtime.accept().await;
    peer.registration().await;
    peer.registered(None).await;
    assert_eq!(plugin.peer.runtime(), None);
    peer.configure().await;
    let runtime_is = edge::Runtime {
        name: "containerd".to_owned(),
        version: "2.4.2+unknown".to_owned(),
        nri: Some(edge::Version(0, 12, 3)),
    };
    assert_eq!(plugin.peer.runtime(), Some(runtime_is));
    let waiting = "connected to the container runtime, which has not synchronized yet";
    assert_eq!(plugin.problem().as_deref(), Some(waiting));
    let part = nri::SynchronizeRequest { containers: vec![container("a")], more: true, ..Default::default() };
    let answer: nri::SynchronizeResponse = peer.call("Synchronize", &part).await.unwrap();
    assert_eq!(answer, nri::SynchronizeResponse { update: vec![], more: true });
    assert_eq!(plugin.problem().as_deref(), Some(waiting));
    peer.synchronize(vec![]).await;
    plugin.problem_becomes(|problem| problem.is_none()).await;
    let directory = runtime.end();
    drop(peer);
    plugin
        .problem_becomes(|problem| problem.is_some_and(|why| why.contains("no container runtime answers")))
        .await;
    drop(directory);
    plugin.end().await;
}

#[tokio::test]
async fn a_closed_connection_is_followed_by_a_new_one_with_all_steps() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    for _ in 0..3 {
        served(&mut runtime.accept().await).await;
        assert_eq!(plugin.driver.calls(), ["synchronize 0"]);
    }
    plugin.end().await;
}

#[tokio::test]
async fn a_runtime_that_starts_late_or_again_is_found() {
    let directory = Runtime::start().end();
    let plugin = Plugin::start(directory.path().join("nri.sock"));
    plugin.problem_becomes(|problem| problem.is_some_and(|why| why.contains("NRI must be enabled"))).await;
    let runtime = Runtime::start_again(directory);
    let mut peer = runtime.accept().await;
    served(&mut peer).await;
    let directory = runtime.end();
    drop(peer);
    let runtime = Runtime::start_again(directory);
    served(&mut runtime.accept().await).await;
    plugin.end().await;
}

#[tokio::test]
async fn a_refused_registration_is_the_reason_and_is_tried_again() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    peer.registration().await;
    let message = "invalid plugin name".to_owned();
    peer.registered(Some(ttrpc::Status { code: 2, message, details: vec![] })).await;
    assert!(peer.message(1).await.is_none(), "the plugin must close, the runtime does not");
    plugin
        .problem_becomes(|problem| problem.is_some_and(|why| why.contains("invalid plugin name (code 2)")))
        .await;
    served(&mut runtime.accept().await).await;
    plugin.problem_becomes(|problem| problem.is_none()).await;
    plugin.end().await;
}

#[tokio::test]
async fn answers_of_any_size_pass_the_runtimes_reader() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    peer.registration().await;
    peer.registered(None).await;
    peer.configure().await;
    for count in [0, 1, 40, 100, 5000] {
        let containers = (0..count).map(|number| container(&format!("{number:064}"))).collect();
        assert_eq!(peer.synchronize(containers).await.len(), count);
    }
    plugin.end().await;
}

#[tokio::test]
async fn requests_are_read_however_they_are_cut() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    served(&mut peer).await;
    for cut in [1, 7, 10, 4096, 5 << 20] {
        peer.cut = Some(cut);
        let mut request = create("a");
        let variable = format!("LONG={}", "x".repeat(if cut < 4096 { 50 } else { 1 << 20 }));
        request.container.as_mut().unwrap().env.push(variable);
        let answer: nri::CreateContainerResponse = peer.call("CreateContainer", &request).await.unwrap();
        assert!(answer.adjust.is_some());
    }
    plugin.end().await;
}

#[tokio::test]
async fn calls_that_were_not_waited_for_are_answered_in_order() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    served(&mut peer).await;
    for id in ["a", "b", "c"] {
        peer.ask("CreateContainer", create(id).encode_to_vec()).await;
    }
    for stream in [5, 7, 9] {
        let raw = peer.message(1).await.unwrap();
        assert_eq!((raw.stream, raw.kind), (stream, 2));
    }
    plugin.end().await;
}

#[tokio::test]
async fn errors_of_a_call_leave_the_connection_alone() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    served(&mut peer).await;
    let status = peer.call::<nri::Empty>("DoSomethingNew", &nri::Empty {}).await.unwrap_err();
    assert_eq!(status.code, 12);
    let mut request = create("panics");
    request.container.as_mut().unwrap().name = "panics".into();
    let status = peer.call::<nri::Empty>("CreateContainer", &request).await.unwrap_err();
    assert_eq!(status.code, 13);
    let mut payload = create("a?").encode_to_vec();
    let position = payload.iter().position(|byte| *byte == b'?').unwrap();
    payload[position] = 0xc0;
    peer.ask("CreateContainer", payload).await;
    assert_eq!(peer.answer::<nri::Empty>().await.unwrap_err().code, 3);
    peer.call::<nri::CreateContainerResponse>("CreateContainer", &create("b")).await.unwrap();
    assert_eq!(plugin.problem(), None);
    plugin.end().await;
}

#[tokio::test]
async fn masks_that_are_due_go_out_one_call_at_a_time_and_hooks_are_answered_meanwhile() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    served(&mut peer).await;
    plugin.driver.calls();
    plugin.driver.owes(vec![update("a", "0-3"), update("b", "0-3")]);
    let (stream, sent) = peer.push().await;
    assert_eq!((stream, sent.len(), &*sent[1].container_id), (3, 2, "b"));
    plugin.driver.owes(vec![update("a", "0-7")]);
    peer.call::<nri::CreateContainerResponse>("CreateContainer", &create("c")).await.unwrap();
    let failed = nri::UpdateContainersResponse { failed: vec![sent[1].clone()] };
    peer.pushed(3, ttrpc::Response { status: None, payload: failed.encode_to_vec() }).await;
    let (stream, sent) = peer.push().await;
    assert_eq!((stream, &*sent[0].container_id), (5, "a"));
    let status =
        ttrpc::Status { code: 2, message: "NRI update of some containers failed".into(), details: vec![] };
    peer.pushed(5, ttrpc::Response { status: Some(status), payload: vec![] }).await;
    peer.call::<nri::CreateContainerResponse>("CreateContainer", &create("d")).await.unwrap();
    let calls = plugin.driver.calls();
    assert!(calls[0].starts_with("create c") && calls[3].starts_with("create d"), "{calls:?}");
    assert_eq!(calls[1], r#"set ["a=0-3", "b=0-3"] failed {"b"}"#);
    assert_eq!(calls[2], r#"set ["a=0-7"] failed {"a"}"#);
    plugin.end().await;
}

#[tokio::test]
async fn runtimes_that_can_dead_lock_are_sent_nothing_outside_of_hooks() {
    for (containerd, nri_version) in [("2.1.9", ""), ("2.3.4", ""), ("2.4.0", "v0.12.0"), ("3.0", "")] {
        let runtime = Runtime::start();
        let plugin = Plugin::start(runtime.socket());
        let mut peer = runtime.accept().await;
        peer.registration().await;
        peer.registered(None).await;
        peer.configure_as(containerd, nri_version).await;
        peer.synchronize(vec![]).await;
        plugin.driver.owes(vec![update("a", "0-3")]);
        peer.call::<nri::CreateContainerResponse>("CreateContainer", &create("c")).await.unwrap();
        assert_eq!(plugin.driver.take_masks(), [update("a", "0-3")], "{containerd}: taken by nobody");
        plugin.end().await;
    }
}

#[tokio::test]
async fn a_runtime_that_breaks_the_protocol_is_left() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    peer.registration().await;
    peer.write_frame(1, &[0xff; 10]).await;
    assert!(peer.message(1).await.is_none());
    served(&mut runtime.accept().await).await;
    plugin.end().await;
}

#[tokio::test]
async fn stop_closes_the_connection_and_ends_the_task() {
    let runtime = Runtime::start();
    let plugin = Plugin::start(runtime.socket());
    let mut peer = runtime.accept().await;
    served(&mut peer).await;
    let readiness = plugin.readiness.clone();
    plugin.end().await;
    assert!(peer.message(1).await.is_none());
    assert!(readiness.problems().contains(&(Part::Nri, "the driver is stopping".to_owned())));
}

#[tokio::test]
async fn stop_ends_the_wait_for_a_runtime() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(directory.path().join("nri.sock"));
    plugin
        .problem_becomes(|problem| problem.is_some_and(|why| why.contains("no container runtime answers")))
        .await;
    plugin.end().await;
}

#[test]
fn the_first_new_attempt_is_immediate_and_the_later_ones_wait_longer() {
    let mut pause = Pause::default();
    let mut waits = |served: &[Option<Duration>]| -> Vec<u128> {
        served.iter().map(|served| pause.after(*served).as_millis()).collect()
    };
    assert_eq!(waits(&[None; 8]), [0, 50, 100, 200, 400, 800, 1000, 1000]);
    let (long, short) = (Some(Duration::from_secs(60)), Some(Duration::from_millis(3)));
    assert_eq!(waits(&[short, long, short, short, None, long]), [1000, 0, 50, 100, 200, 0]);
}
