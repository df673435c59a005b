use super::{dra_v1, dra_v1beta1, health_v1, health_v1alpha1, nri, pod_resources, registration, ttrpc};
use prost::Message;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// Notes the path of each call and answers "unimplemented".
#[derive(Clone, Default)]
struct Paths(Arc<Mutex<Vec<String>>>);

impl Service<http::Request<Body>> for Paths {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.lock().unwrap().push(request.uri().path().to_owned());
        ready(Ok(tonic::Status::unimplemented("").into_http()))
    }
}

/// Polls a call that never has to wait.
fn finish<T>(call: impl Future<Output = T>) -> T {
    match Box::pin(call).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the call waits"),
    }
}

#[test]
fn services_have_the_names_that_the_kubelet_dials() {
    assert_eq!(
        <dra_v1::dra_plugin_server::DraPluginServer<()> as NamedService>::NAME,
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    );
    assert_eq!(
        <dra_v1beta1::dra_plugin_server::DraPluginServer<()> as NamedService>::NAME,
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
    );
    assert_eq!(
        <registration::registration_server::RegistrationServer<()> as NamedService>::NAME,
        "pluginregistration.Registration"
    );
    assert_eq!(
        <health_v1::dra_resource_health_server::DraResourceHealthServer<()> as NamedService>::NAME,
        "v1.DRAResourceHealth"
    );
    assert_eq!(
        <health_v1alpha1::dra_resource_health_server::DraResourceHealthServer<()> as NamedService>::NAME,
        "v1alpha1.DRAResourceHealth"
    );
}

#[test]
fn calls_go_to_the_documented_paths() {
    let paths = Paths::default();
    let mut v1 = dra_v1::dra_plugin_client::DraPluginClient::new(paths.clone());
    finish(v1.node_prepare_resources(dra_v1::NodePrepareResourcesRequest::default())).unwrap_err();
    finish(v1.node_unprepare_resources(dra_v1::NodeUnprepareResourcesRequest::default())).unwrap_err();
    let mut v1beta1 = dra_v1beta1::dra_plugin_client::DraPluginClient::new(paths.clone());
    finish(v1beta1.node_prepare_resources(dra_v1beta1::NodePrepareResourcesRequest::default())).unwrap_err();
    finish(v1beta1.node_unprepare_resources(dra_v1beta1::NodeUnprepareResourcesRequest::default()))
        .unwrap_err();
    let mut registration = registration::registration_client::RegistrationClient::new(paths.clone());
    finish(registration.get_info(registration::InfoRequest {})).unwrap_err();
    finish(registration.notify_registration_status(registration::RegistrationStatus::default())).unwrap_err();
    let mut health = health_v1::dra_resource_health_client::DraResourceHealthClient::new(paths.clone());
    finish(health.node_watch_resources(health_v1::NodeWatchResourcesRequest {})).unwrap_err();
    let mut health = health_v1alpha1::dra_resource_health_client::DraResourceHealthClient::new(paths.clone());
    finish(health.node_watch_resources(health_v1alpha1::NodeWatchResourcesRequest {})).unwrap_err();
    let mut kubelet =
        pod_resources::pod_resources_lister_client::PodResourcesListerClient::new(paths.clone());
    finish(kubelet.get_allocatable_resources(pod_resources::AllocatableResourcesRequest {})).unwrap_err();
    assert_eq!(
        *paths.0.lock().unwrap(),
        [
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
            "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
            "/pluginregistration.Registration/GetInfo",
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            "/v1.DRAResourceHealth/NodeWatchResources",
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            "/v1.PodResourcesLister/GetAllocatableResources",
        ]
    );
}

/// The bytes of a length-delimited field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    assert!(number < 16 && length < 128, "one byte each");
    [&[number << 3 | 2, length], content].concat()
}

#[test]
fn kubelet_messages_have_the_documented_field_numbers() {
    let answer = dra_v1::NodePrepareResourcesResponse {
        claims: [(
            "u".to_owned(),
            dra_v1::NodePrepareResourceResponse {
                devices: vec![dra_v1::Device {
                    request_names: vec!["r".into()],
                    pool_name: "p".into(),
                    device_name: "d".into(),
                    cdi_device_ids: vec!["c".into()],
                    share_id: Some("s".into()),
                }],
                error: "e".into(),
            },
        )]
        .into(),
    };
    let device = [field(1, b"r"), field(2, b"p"), field(3, b"d"), field(4, b"c"), field(5, b"s")].concat();
    let claim = [field(1, &device), field(2, b"e")].concat();
    let entry = [field(1, b"u"), field(2, &claim)].concat();
    assert_eq!(answer.encode_to_vec(), field(1, &entry));

    let claim = dra_v1beta1::Claim { namespace: "n".into(), uid: "u".into(), name: "m".into() };
    assert_eq!(claim.encode_to_vec(), [field(1, b"n"), field(2, b"u"), field(3, b"m")].concat());

    let answer =
        dra_v1::NodeUnprepareResourcesResponse { claims: [("u".to_owned(), Default::default())].into() };
    let entry = field(1, b"u");
    let decoded = dra_v1::NodeUnprepareResourcesResponse::decode(&*field(1, &entry)).unwrap();
    assert_eq!(decoded, answer, "a claim that succeeded is a key without content");

    let info = registration::PluginInfo {
        r#type: "t".into(),
        name: "n".into(),
        endpoint: "e".into(),
        supported_versions: vec!["v".into(), "w".into()],
    };
    let bytes = [field(1, b"t"), field(2, b"n"), field(3, b"e"), field(4, b"v"), field(4, b"w")].concat();
    assert_eq!(info.encode_to_vec(), bytes);
    let status = registration::RegistrationStatus { plugin_registered: true, error: "e".into() };
    assert_eq!(status.encode_to_vec(), [vec![0x08, 1], field(2, b"e")].concat());

    let health = health_v1::DeviceHealth {
        device: Some(health_v1::DeviceIdentifier { pool_name: "p".into(), device_name: "d".into() }),
        health: health_v1::HealthStatus::Unhealthy.into(),
        last_updated_time: 5,
        health_check_timeout_seconds: 20,
        message: "m".into(),
    };
    let device = [field(1, b"p"), field(2, b"d")].concat();
    let bytes = [field(1, &device), vec![0x10, 2, 0x18, 5, 0x20, 20], field(5, b"m")].concat();
    assert_eq!(health.encode_to_vec(), bytes);
    assert_eq!(health_v1alpha1::DeviceHealth::decode(&*bytes).unwrap().encode_to_vec(), bytes);

    // Devices (1) and memory (3) are skipped.
    let bytes = [field(1, b"d"), field(2, &[0, 5]), field(3, b"m")].concat();
    let allocatable = pod_resources::AllocatableResourcesResponse::decode(&*bytes).unwrap();
    assert_eq!(allocatable.cpu_ids, [0, 5]);
}

#[test]
fn runtime_messages_have_the_documented_field_numbers() {
    let mask = nri::ConfigureResponse { events: 0x2688 };
    assert_eq!(mask.encode_to_vec(), [0x10, 0x88, 0x4d]);

    let register = nri::RegisterPluginRequest {
        plugin_name: "n".into(),
        plugin_idx: "00".into(),
        nri_version: "v".into(),
    };
    assert_eq!(register.encode_to_vec(), [field(1, b"n"), field(2, b"00"), field(3, b"v")].concat());

    let configure = nri::ConfigureRequest {
        config: "c".into(),
        runtime_name: "r".into(),
        runtime_version: "v".into(),
        registration_timeout: 5,
        request_timeout: 2,
        nri_version: "n".into(),
    };
    let bytes =
        [field(1, b"c"), field(2, b"r"), field(3, b"v"), vec![0x20, 5, 0x28, 2], field(6, b"n")].concat();
    assert_eq!(configure.encode_to_vec(), bytes);

    let resources = |cpu| nri::LinuxResources { cpu: Some(cpu), ..Default::default() };
    let created = nri::CreateContainerResponse {
        adjust: Some(nri::ContainerAdjustment {
            linux: Some(nri::LinuxContainerAdjustment {
                resources: Some(resources(nri::LinuxCpu {
                    quota: Some(nri::OptionalInt64 { value: 0 }),
                    cpus: "2-3".into(),
                    mems: "1".into(),
                    ..Default::default()
                })),
                ..Default::default()
            }),
            ..Default::default()
        }),
        update: vec![nri::ContainerUpdate {
            container_id: "i".into(),
            linux: Some(nri::LinuxContainerUpdate {
                resources: Some(resources(nri::LinuxCpu { cpus: "0".into(), ..Default::default() })),
            }),
            ignore_failure: true,
        }],
        evict: vec![],
    };
    let cpu = [field(2, b""), field(6, b"2-3"), field(7, b"1")].concat();
    let adjust = field(6, &field(2, &field(2, &cpu)));
    let linux = field(1, &field(2, &field(6, b"0")));
    let update = [field(1, b"i"), field(2, &linux), vec![0x18, 1]].concat();
    assert_eq!(created.encode_to_vec(), [field(1, &adjust), field(2, &update)].concat());

    let synchronize = nri::SynchronizeRequest {
        pods: vec![nri::PodSandbox {
            id: "i".into(),
            name: "n".into(),
            uid: "u".into(),
            namespace: "s".into(),
            ..Default::default()
        }],
        containers: vec![nri::Container {
            id: "c".into(),
            pod_sandbox_id: "i".into(),
            name: "n".into(),
            state: nri::ContainerState::ContainerRunning.into(),
            env: vec!["A=1".into(), "A=2".into()],
            cdi_devices: vec![nri::CdiDevice { name: "d".into() }],
            ..Default::default()
        }],
        more: true,
    };
    let pod = [field(1, b"i"), field(2, b"n"), field(3, b"u"), field(4, b"s")].concat();
    let names = [field(1, b"c"), field(2, b"i"), field(3, b"n")].concat();
    let devices = [vec![0xa2, 0x01, 3], field(1, b"d")].concat(); // field 20
    let container = [names, vec![0x20, 3], field(8, b"A=1"), field(8, b"A=2"), devices].concat();
    assert_eq!(synchronize.encode_to_vec(), [field(1, &pod), field(2, &container), vec![0x18, 1]].concat());

    let event = nri::StateChangeEvent { event: nri::Event::RemoveContainer.into(), ..Default::default() };
    assert_eq!(event.encode_to_vec(), [0x08, 11]);
    let verdict = nri::ValidateContainerAdjustmentResponse { reject: true, reason: "r".into() };
    assert_eq!(verdict.encode_to_vec(), [vec![0x08, 1], field(2, b"r")].concat());
}

#[test]
fn ttrpc_envelopes_have_the_documented_field_numbers() {
    let request = ttrpc::Request {
        service: "s".into(),
        method: "m".into(),
        payload: vec![9],
        timeout_nano: 1,
        metadata: vec![ttrpc::KeyValue { key: "k".into(), value: "v".into() }],
    };
    let pair = [field(1, b"k"), field(2, b"v")].concat();
    let bytes = [field(1, b"s"), field(2, b"m"), field(3, &[9]), vec![0x20, 1], field(5, &pair)].concat();
    assert_eq!(request.encode_to_vec(), bytes);

    let status = ttrpc::Status {
        code: 12,
        message: "m".into(),
        details: vec![ttrpc::Any { type_url: "t".into(), value: vec![7] }],
    };
    let response = ttrpc::Response { status: Some(status), payload: vec![9] };
    let detail = [field(1, b"t"), field(2, &[7])].concat();
    let status = [vec![0x08, 12], field(2, b"m"), field(3, &detail)].concat();
    assert_eq!(response.encode_to_vec(), [field(1, &status), field(2, &[9])].concat());
}

#[test]
fn a_string_that_is_not_utf8_is_refused() {
    let container = nri::Container::decode(&*field(8, b"A=\xff"));
    assert!(container.is_err(), "{container:?}");
}

#[test]
fn unknown_fields_are_ignored() {
    let claim = [field(2, b"u"), field(15, b"new")].concat();
    assert_eq!(dra_v1::Claim::decode(&*claim).unwrap().uid, "u");
}
