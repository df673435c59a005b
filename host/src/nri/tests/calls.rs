//! What the runtime calls, without a connection.

use super::driver::{Driver, cpus, pinned, update};
use crate::driver::{Created, Updated};
use crate::nri::plugin::Plugin;
use crate::nri::ttrpc::{Message as Envelope, answer};
use dracpu_proto::nri::{self, Event};
use dracpu_proto::ttrpc;
use prost::Message;
use std::sync::Arc;

struct Runtime {
    driver: Arc<Driver>,
    plugin: Plugin,
}

impl Runtime {
    fn new() -> Self {
        let driver = Arc::new(Driver::default());
        Self { plugin: Plugin::new(driver.clone(), driver.clone(), Arc::default()), driver }
    }

    /// Calls, and reads what the runtime would read.
    fn call<A: Message + Default>(
        &mut self,
        method: &str,
        request: &impl Message,
    ) -> Result<A, (i32, String)> {
        self.call_raw(method, request.encode_to_vec()).map(|payload| A::decode(&*payload).unwrap())
    }

    fn call_raw(&mut self, method: &str, payload: Vec<u8>) -> Result<Vec<u8>, (i32, String)> {
        let request = Envelope::request(1, "nri.pkg.api.v1alpha1.Plugin", method, payload);
        let response = Envelope::response(1, self.plugin.call(&request.data));
        answer(&response).map_err(|status| (status.code, status.message))
    }
}

fn pod() -> nri::PodSandbox {
    let (id, name, uid, namespace) = ("sandbox".into(), "pod".into(), "uid".into(), "ns".into());
    nri::PodSandbox { id, name, uid, namespace, ..Default::default() }
}

fn resources(cpus: &str) -> nri::LinuxResources {
    let cpu = nri::LinuxCpu { cpus: cpus.into(), ..Default::default() };
    nri::LinuxResources { cpu: Some(cpu), ..Default::default() }
}

fn container(name: &str, env: &[&str]) -> nri::Container {
    nri::Container {
        id: format!("id-{name}"),
        pod_sandbox_id: "sandbox".into(),
        name: name.into(),
        env: env.iter().map(|variable| (*variable).to_owned()).collect(),
        ..Default::default()
    }
}

fn create(container: nri::Container) -> nri::CreateContainerRequest {
    nri::CreateContainerRequest { pod: Some(pod()), container: Some(container) }
}

/// The masks in updates, and which of them may fail.
fn masks(updates: &[nri::ContainerUpdate]) -> Vec<(&str, &str, bool)> {
    updates
        .iter()
        .map(|update| {
            let resources = update.linux.as_ref().unwrap().resources.as_ref().unwrap();
            (&*update.container_id, &*resources.cpu.as_ref().unwrap().cpus, update.ignore_failure)
        })
        .collect()
}

fn adjusted(response: &nri::CreateContainerResponse) -> &nri::LinuxCpu {
    let linux = response.adjust.as_ref().unwrap().linux.as_ref().unwrap();
    linux.resources.as_ref().unwrap().cpu.as_ref().unwrap()
}

#[test]
fn the_event_mask_asks_for_validation_only_where_the_runtime_states_its_nri_version() {
    for (version, mask) in [("", 0x6c8), ("v0.12.3", 0x26c8), ("(devel)", 0x26c8), ("unknown", 0x26c8)] {
        let request = nri::ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: "2.4.2+unknown".into(),
            nri_version: version.into(),
            ..Default::default()
        };
        let response: nri::ConfigureResponse = Runtime::new().call("Configure", &request).unwrap();
        assert_eq!(response.events, mask, "{version}");
    }
}

#[test]
fn the_driver_is_told_which_runtimes_never_name_cdi_devices() {
    for (runtime, version, nri, may) in [
        ("containerd", "2.1.9", "", false),
        ("containerd", "2.4.2", "v0.12.3", true),
        ("containerd", "2.3.0", "", true),
        ("something", "1.0", "", true),
        ("something", "1.0", "v0.11.0", false),
    ] {
        let request = nri::ConfigureRequest {
            runtime_name: runtime.into(),
            runtime_version: version.into(),
            nri_version: nri.into(),
            ..Default::default()
        };
        let mut peer = Runtime::new();
        let _: nri::ConfigureResponse = peer.call("Configure", &request).unwrap();
        let told = if may { vec![] } else { vec!["connected: no devices"] };
        assert_eq!(peer.driver.calls(), told, "{runtime} {version} {nri}");
    }
}

#[test]
fn limits_and_the_time_of_the_start_reach_the_driver() {
    let mut runtime = Runtime::new();
    let limited = |quota: i64, period: Option<u64>| nri::LinuxResources {
        cpu: Some(nri::LinuxCpu {
            quota: Some(nri::OptionalInt64 { value: quota }),
            period: period.map(|value| nri::OptionalUInt64 { value }),
            ..Default::default()
        }),
        ..Default::default()
    };
    for (own, pods, started, shown) in [
        (
            limited(75_000, Some(50_000)),
            limited(200_000, None),
            1_700_000_000_999_999_999,
            " quota=1.5 pod quota=2 started=1700000000",
        ),
        (limited(-1, Some(100_000)), limited(0, Some(100_000)), 0, ""),
        (limited(i64::MIN, Some(0)), limited(1000, Some(0)), i64::MIN, " pod quota=0.01"),
    ] {
        let linux = nri::LinuxPodSandbox { pod_resources: Some(pods), ..Default::default() };
        let request = nri::CreateContainerRequest {
            pod: Some(nri::PodSandbox { linux: Some(linux), ..pod() }),
            container: Some(nri::Container {
                linux: Some(nri::LinuxContainer { resources: Some(own), ..Default::default() }),
                started_at: started,
                ..container("a", &[])
            }),
        };
        runtime.call::<nri::CreateContainerResponse>("CreateContainer", &request).unwrap();
        let call = runtime.driver.calls().remove(0);
        assert!(call.ends_with(&format!(" cpus=none{shown}")), "{call}");
    }
}

#[test]
fn a_created_container_gets_its_mask_in_the_adjustment_and_others_theirs_as_updates() {
    let mut runtime = Runtime::new();
    let mut asked = container("app", &["DRA_CPUSET_c1=2-3", "DRA_CPUSET_c1=0-7"]);
    asked.cdi_devices = vec![nri::CdiDevice { name: "dra.k8s.io/cpu=claim-c1".into() }];
    asked.linux = Some(nri::LinuxContainer { resources: Some(resources("0-7")), ..Default::default() });
    let response: nri::CreateContainerResponse = runtime.call("CreateContainer", &create(asked)).unwrap();
    let cpu = nri::LinuxCpu { cpus: "2-3".into(), ..Default::default() };
    assert_eq!(*adjusted(&response), cpu, "nothing else is touched");
    assert_eq!(masks(&response.update), [("other", "0-1", true)]);
    assert_eq!(
        runtime.driver.calls(),
        ["create id-app ns/pod/app uid env=[\"DRA_CPUSET_c1=2-3\", \"DRA_CPUSET_c1=0-7\"] \
             cdi=[\"dra.k8s.io/cpu=claim-c1\"] cpus=0-7"]
    );
    assert_eq!(runtime.driver.observed(), ["Create ok exclusive"]);
}

#[test]
fn memory_nodes_and_the_lifted_quota_go_into_the_adjustment() {
    let mut runtime = Runtime::new();
    runtime.driver.creates(Created { mems: vec![0, 2], remove_cfs_quota: true, ..pinned() });
    let response: nri::CreateContainerResponse =
        runtime.call("CreateContainer", &create(container("app", &[]))).unwrap();
    let cpu = adjusted(&response);
    assert_eq!((&*cpu.cpus, &*cpu.mems), ("2-3", "0,2"));
    assert_eq!(cpu.quota, Some(nri::OptionalInt64 { value: -1 }));
}

#[test]
fn no_answer_names_a_container_twice_or_the_one_being_created() {
    let mut runtime = Runtime::new();
    let others =
        vec![update("id-app", "0"), update("other", "0-1"), update("other", "0"), update("more", "")];
    runtime.driver.creates(Created { updates: others.clone(), ..pinned() });
    let response: nri::CreateContainerResponse =
        runtime.call("CreateContainer", &create(container("app", &[]))).unwrap();
    assert_eq!(masks(&response.update), [("other", "0-1", true)]);

    runtime.driver.updates(Updated { cpus: Some(cpus("2-3")), updates: others });
    let response: nri::UpdateContainerResponse = runtime.call("UpdateContainer", &resize("0-7")).unwrap();
    assert_eq!(masks(&response.update), [("id-app", "2-3", false), ("other", "0-1", true)]);
}

#[test]
fn an_empty_mask_is_an_error_since_it_would_leave_the_container_unpinned() {
    let mut runtime = Runtime::new();
    runtime.driver.creates(Created { cpus: cpus(""), ..pinned() });
    let error = runtime
        .call::<nri::CreateContainerResponse>("CreateContainer", &create(container("app", &[])))
        .unwrap_err();
    assert_eq!(error.0, 13, "{error:?}");
    assert_eq!(runtime.driver.observed(), ["Create error exclusive"]);
}

#[test]
fn a_refused_container_carries_the_drivers_text() {
    let mut runtime = Runtime::new();
    let request = create(container("refused", &["DRA_CPUSET_c1=2-3"]));
    let error = runtime.call::<nri::CreateContainerResponse>("CreateContainer", &request).unwrap_err();
    assert_eq!(error, (9, "claim c1: no such claim; prepare it first".to_owned()));
    assert_eq!(runtime.driver.observed(), ["Create error exclusive"]);
}

fn resize(wanted: &str) -> nri::UpdateContainerRequest {
    nri::UpdateContainerRequest {
        pod: Some(pod()),
        container: Some(container("app", &[])),
        linux_resources: Some(resources(wanted)),
    }
}

#[test]
fn an_update_puts_our_mask_in_place_of_the_one_asked_for() {
    let mut runtime = Runtime::new();
    for (wanted, seen) in [("0-7", "0-7"), ("", "none"), ("7-0", "none")] {
        let response: nri::UpdateContainerResponse =
            runtime.call("UpdateContainer", &resize(wanted)).unwrap();
        assert_eq!(masks(&response.update), [("id-app", "2-3", false)]);
        assert_eq!(runtime.driver.calls(), [format!("update id-app wanted={seen}")]);
    }
    runtime.driver.updates(Updated { cpus: None, updates: vec![] });
    let response: nri::UpdateContainerResponse = runtime.call("UpdateContainer", &resize("0-7")).unwrap();
    assert_eq!(response, nri::UpdateContainerResponse::default(), "nothing to change, nothing said");
}

#[test]
fn starts_stops_and_removals_reach_the_driver_by_their_own_methods() {
    let mut runtime = Runtime::new();
    let exclusive = container("app", &["DRA_CPUSET_c1=2-3"]);
    let request = nri::PostStartContainerRequest { pod: Some(pod()), container: Some(exclusive.clone()) };
    assert_eq!(runtime.call("PostStartContainer", &request), Ok(nri::PostStartContainerResponse {}));
    let request = nri::StopContainerRequest { pod: Some(pod()), container: Some(exclusive) };
    let response: nri::StopContainerResponse = runtime.call("StopContainer", &request).unwrap();
    assert_eq!(masks(&response.update), [("other", "0-1", true)]);
    let request = nri::RemoveContainerRequest {
        pod: Some(pod()),
        container: Some(container("app", &["DRA_CPUSETS=x"])),
    };
    assert_eq!(runtime.call("RemoveContainer", &request), Ok(nri::RemoveContainerResponse {}));
    assert_eq!(runtime.driver.calls(), ["start id-app", "stop id-app", "remove id-app"]);
    assert_eq!(runtime.driver.observed(), ["Stop ok exclusive", "Remove ok shared"]);
}

#[test]
fn older_runtimes_tell_of_starts_and_removals_by_state_change() {
    let mut runtime = Runtime::new();
    for event in (0..=14).chain([99]) {
        let request =
            nri::StateChangeEvent { event, pod: Some(pod()), container: Some(container("app", &[])) };
        assert_eq!(runtime.call("StateChange", &request), Ok(nri::Empty {}), "{event}");
        let expected: &[&str] = match Event::try_from(event) {
            Ok(Event::PostStartContainer) => &["start id-app"],
            Ok(Event::RemoveContainer) => &["remove id-app"],
            _ => &[],
        };
        assert_eq!(runtime.driver.calls(), expected, "{event}");
    }
}

#[test]
fn events_that_were_not_asked_for_are_answered_with_nothing() {
    let mut runtime = Runtime::new();
    for method in [
        "RunPodSandbox",
        "UpdatePodSandbox",
        "PostUpdatePodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "PostCreateContainer",
        "StartContainer",
        "PostUpdateContainer",
        "Shutdown",
    ] {
        let request =
            nri::PostCreateContainerRequest { pod: Some(pod()), container: Some(container("app", &[])) };
        assert_eq!(runtime.call(method, &request), Ok(nri::Empty {}), "{method}");
    }
    assert!(runtime.driver.calls().is_empty());
}

#[test]
fn unknown_methods_and_services_are_unimplemented() {
    let mut runtime = Runtime::new();
    let error = runtime.call::<nri::Empty>("DoSomethingNew", &nri::Empty {}).unwrap_err();
    assert_eq!(error.0, 12, "{error:?}");
    let elsewhere = Envelope::request(1, "nri.pkg.api.v1alpha1.Runtime", "Configure", Vec::new());
    let response = Envelope::response(1, runtime.plugin.call(&elsewhere.data));
    assert_eq!(answer(&response).unwrap_err().code, 12);
}

#[test]
fn validation_compares_the_sum_of_all_adjustments() {
    let mut runtime = Runtime::new();
    for (sum, reject, reason) in [
        ("2-3", false, ""),
        ("0-7", true, "the final mask is 0-7, not 2-3"),
        ("", true, "the final mask is none, not 2-3"),
    ] {
        let linux = nri::LinuxContainerAdjustment { resources: Some(resources(sum)), ..Default::default() };
        let request = nri::ValidateContainerAdjustmentRequest {
            pod: Some(pod()),
            container: Some(container("app", &[])),
            adjust: Some(nri::ContainerAdjustment { linux: Some(linux), ..Default::default() }),
            ..Default::default()
        };
        let response: nri::ValidateContainerAdjustmentResponse =
            runtime.call("ValidateContainerAdjustment", &request).unwrap();
        let expected = nri::ValidateContainerAdjustmentResponse { reject, reason: reason.into() };
        assert_eq!(response, expected, "{sum}");
    }
}

#[test]
fn parts_of_synchronize_are_joined_and_answered_once() {
    let mut runtime = Runtime::new();
    let part = |pods: &[nri::PodSandbox], containers: &[nri::Container], more| nri::SynchronizeRequest {
        pods: pods.to_vec(),
        containers: containers.to_vec(),
        more,
    };
    let empty = nri::SynchronizeResponse { update: vec![], more: true };
    // The pod comes in the part behind its container's; a container comes twice.
    for containers in [vec![container("a", &["X=1"])], vec![container("a", &["X=1"]), container("b", &[])]] {
        let response: nri::SynchronizeResponse =
            runtime.call("Synchronize", &part(&[], &containers, true)).unwrap();
        assert_eq!(response, empty);
    }
    assert!(runtime.driver.calls().is_empty() && !runtime.plugin.is_synchronized());
    let mut stray = container("c", &[]);
    stray.pod_sandbox_id = "unlisted".into();
    let mut ended = container("d", &[]);
    ended.set_state(nri::ContainerState::ContainerStopped);
    let response: nri::SynchronizeResponse =
        runtime.call("Synchronize", &part(&[pod()], &[stray, ended], false)).unwrap();
    assert!(!response.more && runtime.plugin.is_synchronized());
    assert_eq!(
        masks(&response.update),
        [("id-a", "0-1", true), ("id-b", "0-1", true), ("id-c", "0-1", true)]
    );
    assert_eq!(
        runtime.driver.calls(),
        [
            "exists id-a ns/pod/a uid env=[\"X=1\"] cdi=[] cpus=none",
            "exists id-b ns/pod/b uid env=[] cdi=[] cpus=none",
            "exists id-c //c  env=[] cdi=[] cpus=none",
            "synchronize 3",
        ]
    );
    assert_eq!(runtime.driver.observed(), ["Synchronize ok"]);
    let again: nri::SynchronizeResponse = runtime.call("Synchronize", &part(&[], &[], false)).unwrap();
    assert_eq!(again, nri::SynchronizeResponse::default(), "nothing of the last listing is left");
}

#[test]
fn invalid_text_is_an_error_of_that_call_alone() {
    let mut runtime = Runtime::new();
    let mut payload = create(container("app", &["KEY=?"])).encode_to_vec();
    let position = payload.iter().position(|byte| *byte == b'?').unwrap();
    payload[position] = 0xff;
    let error = runtime.call_raw("CreateContainer", payload).unwrap_err();
    assert_eq!(error.0, 3, "{error:?}");
    let error = runtime.call_raw("StopContainer", Vec::new()).unwrap_err();
    assert_eq!(error, (3, "the request names no container".to_owned()));
    let garbage = Envelope::response(1, runtime.plugin.call(b"\xff\xff"));
    assert_eq!(answer(&garbage).unwrap_err().code, 3);
    runtime.call::<nri::CreateContainerResponse>("CreateContainer", &create(container("app", &[]))).unwrap();
}

#[test]
fn a_panic_in_the_driver_fails_that_call_alone() {
    let mut runtime = Runtime::new();
    let broken = container("panics", &[]);
    let error =
        runtime.call::<nri::CreateContainerResponse>("CreateContainer", &create(broken.clone())).unwrap_err();
    assert_eq!(error.0, 13, "{error:?}");
    let request = nri::SynchronizeRequest { containers: vec![broken.clone()], ..Default::default() };
    let error = runtime.call::<nri::SynchronizeResponse>("Synchronize", &request).unwrap_err();
    assert_eq!(error.0, 13, "{error:?}");
    assert!(!runtime.plugin.is_synchronized());
    let request = nri::ValidateContainerAdjustmentRequest { container: Some(broken), ..Default::default() };
    let verdict: nri::ValidateContainerAdjustmentResponse =
        runtime.call("ValidateContainerAdjustment", &request).unwrap();
    assert!(verdict.reject);
    assert_eq!(runtime.driver.observed(), ["Create error shared", "Synchronize error"]);
    runtime.call::<nri::CreateContainerResponse>("CreateContainer", &create(container("app", &[]))).unwrap();
}

#[test]
fn trace_metadata_and_unknown_fields_do_not_matter() {
    let mut runtime = Runtime::new();
    let metadata = vec![ttrpc::KeyValue { key: "traceparent".into(), value: "00-1".into() }];
    let mut payload = create(container("app", &[])).encode_to_vec();
    payload.extend([15 << 3 | 2, 1, b'x']);
    let request = ttrpc::Request {
        service: "nri.pkg.api.v1alpha1.Plugin".into(),
        method: "CreateContainer".into(),
        payload,
        timeout_nano: 1_999_000_000,
        metadata,
    };
    assert!(runtime.plugin.call(&request.encode_to_vec()).is_ok());
}
