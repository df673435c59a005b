//! What the runtime calls: reads the request, asks the driver, writes the answer. Pure but for the driver.

use super::hooks::{Hook, Hooks, Observer};
use super::peer::{Peer, Runtime};
use super::version::{self, Version};
use super::{CallError, convert};
use crate::driver::{Container, Pod, Update};
use dracpu_proto::nri::{
    ConfigureRequest, ConfigureResponse, CreateContainerRequest, CreateContainerResponse, Event,
    PostStartContainerRequest, PostStartContainerResponse, RemoveContainerRequest, RemoveContainerResponse,
    StateChangeEvent, StopContainerRequest, StopContainerResponse, SynchronizeRequest, SynchronizeResponse,
    UpdateContainerRequest, UpdateContainerResponse, UpdateContainersResponse,
    ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse,
};
use dracpu_proto::{nri, ttrpc};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of one connection.
pub(super) struct Plugin {
    hooks: Arc<dyn Hooks>,
    observer: Arc<dyn Observer>,
    peer: Arc<Peer>,
    /// For the log: who is on the other side.
    runtime: String,
    /// Whether the runtime bears updates outside of hooks.
    bears_pushes: bool,
    /// The parts of Synchronize so far.
    listing: Listing,
    synchronized: bool,
}

/// Pods and containers, which need not be in the same part. By id, so that a runtime which repeats itself
/// costs nothing.
#[derive(Default)]
struct Listing {
    pods: HashMap<String, Pod>,
    containers: BTreeMap<String, nri::Container>,
}

impl Plugin {
    pub(super) fn new(hooks: Arc<dyn Hooks>, observer: Arc<dyn Observer>, peer: Arc<Peer>) -> Self {
        let (runtime, listing) = Default::default();
        Self { hooks, observer, peer, runtime, bears_pushes: false, listing, synchronized: false }
    }

    /// Whether the last part of Synchronize has been handled.
    pub(super) fn is_synchronized(&self) -> bool {
        self.synchronized
    }

    /// Waits for masks that are due outside of hooks, where the runtime bears such updates; else for ever.
    pub(super) async fn masks_due(&self) {
        if !self.synchronized || !self.bears_pushes {
            std::future::pending::<()>().await;
        }
        self.hooks.masks_due().await;
    }

    /// The masks that are due.
    pub(super) fn take_masks(&self) -> Vec<Update> {
        self.hooks.take_masks()
    }

    /// The runtime's answer to setting them.
    pub(super) fn masks_set(&self, sent: &[Update], answer: Result<Vec<u8>, String>) {
        let answer = answer.and_then(|payload| {
            UpdateContainersResponse::decode(&*payload).map_err(|error| error.to_string())
        });
        let failed: BTreeSet<String> = match answer {
            Ok(answer) => answer.failed.into_iter().map(|update| update.container_id).collect(),
            // Which ones, it does not say.
            Err(why) => {
                tracing::warn!(runtime = self.runtime, why, "the runtime did not set the masks it was sent");
                sent.iter().map(|update| update.container_id.clone()).collect()
            }
        };
        tracing::info!(containers = sent.len(), failed = failed.len(), "set masks outside of hooks");
        self.hooks.masks_set(sent, &failed);
    }

    /// Answers a ttrpc request.
    ///
    /// # Errors
    /// What the runtime is told instead; the connection goes on.
    pub(super) fn call(&mut self, request: &[u8]) -> Result<Vec<u8>, CallError> {
        let ttrpc::Request { service, method, payload, .. } = ttrpc::Request::decode(request)?;
        if service != dracpu_proto::NRI_PLUGIN_SERVICE {
            return Err(CallError::UnknownMethod { service, method });
        }
        match &*method {
            "Configure" => answer(&payload, |request| Ok(self.configure(&request))),
            "Synchronize" => answer(&payload, |request| self.synchronize(request)),
            "CreateContainer" => answer(&payload, |request| self.create_container(request)),
            "ValidateContainerAdjustment" => answer(&payload, |request| self.validate(request)),
            "UpdateContainer" => answer(&payload, |request| self.update_container(request)),
            "StopContainer" => answer(&payload, |request| self.stop_container(request)),
            "RemoveContainer" => answer(&payload, |RemoveContainerRequest { pod, container }| {
                self.remove_container(pod, container)?;
                Ok(RemoveContainerResponse {})
            }),
            "PostStartContainer" => answer(&payload, |PostStartContainerRequest { pod, container }| {
                self.start_container(pod, container)?;
                Ok(PostStartContainerResponse {})
            }),
            "StateChange" => answer(&payload, |request| self.state_change(request)),
            // Not in the event mask, but "unimplemented" would fail the kubelet's call or switch the runtime
            // back to StateChange. All answers are empty messages.
            "RunPodSandbox"
            | "UpdatePodSandbox"
            | "PostUpdatePodSandbox"
            | "StopPodSandbox"
            | "RemovePodSandbox"
            | "PostCreateContainer"
            | "StartContainer"
            | "PostUpdateContainer"
            | "Shutdown" => Ok(Vec::new()),
            _ => Err(CallError::UnknownMethod { service, method }),
        }
    }

    fn configure(&mut self, request: &ConfigureRequest) -> ConfigureResponse {
        let nri = version::nri_version(request);
        let shown = nri.map_or_else(|| "unknown".to_owned(), |version| version.to_string());
        self.runtime = format!("{} {} (NRI {shown})", request.runtime_name, request.runtime_version);
        let (name, version) = (request.runtime_name.clone(), request.runtime_version.clone());
        self.peer.is(Runtime { name, version, nri });
        if nri.is_some_and(|version| version < Version::LEAST) {
            tracing::warn!(
                runtime = self.runtime,
                "this runtime can dead-lock when a plugin registers while containers start; upgrade to one with \
                 NRI {} (containerd 1.7.16, CRI-O 1.31)",
                Version::LEAST
            );
        }
        self.bears_pushes = nri.is_some_and(|version| version >= Version::BEARS_PUSHES);
        self.hooks.connected(nri.is_none_or(|version| version >= Version::NAMES_DEVICES));
        ConfigureResponse { events: event_mask(&request.nri_version) }
    }

    fn synchronize(&mut self, request: SynchronizeRequest) -> Result<SynchronizeResponse, CallError> {
        let pods = request.pods.into_iter().map(|pod| (pod.id.clone(), convert::pod(pod)));
        self.listing.pods.extend(pods);
        // Some runtimes list containers that have ended.
        let ended = i32::from(nri::ContainerState::ContainerStopped);
        let containers = request.containers.into_iter().filter(|container| container.state != ended);
        self.listing.containers.extend(containers.map(|container| (container.id.clone(), container)));
        if request.more {
            // The runtime closes the connection if anything else comes back.
            return Ok(SynchronizeResponse { update: Vec::new(), more: true });
        }
        let Listing { pods, containers } = std::mem::take(&mut self.listing);
        let of_pod = |container: nri::Container| {
            let pod = pods.get(&container.pod_sandbox_id).cloned().unwrap_or_default();
            convert::of_pod(pod, container)
        };
        let containers: Vec<_> = containers.into_values().map(of_pod).collect();
        let count = containers.len();
        let (updates, duration) = guarded(|| Ok(self.hooks.synchronize(containers)));
        self.observer.nri_synchronize(updates.is_ok(), duration);
        let update = convert::updates(updates?, None);
        self.synchronized = true;
        tracing::info!(
            runtime = self.runtime,
            containers = count,
            updates = update.len(),
            "synchronized with the container runtime"
        );
        Ok(SynchronizeResponse { update, more: false })
    }

    fn create_container(
        &self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, CallError> {
        let container = convert::container(request.pod, request.container)?;
        let (created, duration) =
            guarded(|| self.hooks.create_container(&container).map_err(CallError::Refused));
        let exclusive =
            created.as_ref().map_or_else(|_| claims_cpus(&container), |created| created.exclusive);
        let answer = created.and_then(|created| {
            if created.exclusive {
                tracing::info!(container = %Named(&container), cpus = %created.cpus, "container gets its claimed CPUs");
            }
            convert::created(&container.id, created)
        });
        self.observer.nri_hook(Hook::Create, answer.is_ok(), exclusive, duration);
        answer.inspect_err(|error| {
            tracing::warn!(container = %Named(&container), error = format!("{error:#}"), "refused to create a container");
        })
    }

    fn validate(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<ValidateContainerAdjustmentResponse, CallError> {
        let container = convert::container(request.pod, request.container)?;
        let cpus = request.adjust.and_then(|adjust| convert::cpus(adjust.linux?.resources));
        let (verdict, _) =
            guarded(|| self.hooks.validate_container(&container, cpus.as_ref()).map_err(CallError::Refused));
        match verdict {
            Ok(()) => Ok(ValidateContainerAdjustmentResponse::default()),
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::warn!(container = %Named(&container), reason, "rejected the adjustment of a container");
                Ok(ValidateContainerAdjustmentResponse { reject: true, reason })
            }
        }
    }

    fn update_container(
        &self,
        request: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, CallError> {
        let container = convert::container(request.pod, request.container)?;
        let wanted = convert::cpus(request.linux_resources);
        let (updated, _) = guarded(|| Ok(self.hooks.update_container(&container, wanted.as_ref())));
        Ok(convert::updated(&container.id, updated?))
    }

    fn stop_container(&self, request: StopContainerRequest) -> Result<StopContainerResponse, CallError> {
        let container = convert::container(request.pod, request.container)?;
        let (updates, duration) = guarded(|| Ok(self.hooks.stop_container(&container.id)));
        self.observer.nri_hook(Hook::Stop, updates.is_ok(), claims_cpus(&container), duration);
        Ok(StopContainerResponse { update: convert::updates(updates?, Some(&container.id)) })
    }

    fn start_container(
        &self,
        pod: Option<nri::PodSandbox>,
        container: Option<nri::Container>,
    ) -> Result<(), CallError> {
        let container = convert::container(pod, container)?;
        let (started, _) = guarded(|| {
            self.hooks.start_container(&container);
            Ok(())
        });
        started
    }

    fn remove_container(
        &self,
        pod: Option<nri::PodSandbox>,
        container: Option<nri::Container>,
    ) -> Result<(), CallError> {
        let container = convert::container(pod, container)?;
        let (removed, duration) = guarded(|| {
            self.hooks.remove_container(&container.id);
            Ok(())
        });
        self.observer.nri_hook(Hook::Remove, removed.is_ok(), claims_cpus(&container), duration);
        removed
    }

    /// Of the events that the plugin asks for, those that older runtimes have no method for.
    fn state_change(&self, request: StateChangeEvent) -> Result<nri::Empty, CallError> {
        match request.event() {
            Event::PostStartContainer => self.start_container(request.pod, request.container)?,
            Event::RemoveContainer => self.remove_container(request.pod, request.container)?,
            _ => {}
        }
        Ok(nri::Empty {})
    }
}

/// The events that the plugin asks for.
///
/// With the validation event a runtime refuses the container whose CreateContainer hook was too slow or died;
/// without, it starts the container as if the plugin had said nothing. Runtimes before NRI 0.10 refuse a
/// plugin that asks for it; one that states its NRI version (0.12) knows it.
fn event_mask(nri_version: &str) -> i32 {
    let always = [
        Event::CreateContainer,
        Event::PostStartContainer,
        Event::UpdateContainer,
        Event::StopContainer,
        Event::RemoveContainer,
    ];
    let validate = (!nri_version.is_empty()).then_some(Event::ValidateContainerAdjustment);
    always.into_iter().chain(validate).fold(0, |mask, event| mask | 1 << (i32::from(event) - 1))
}

/// Decodes the request, encodes the answer.
fn answer<Q: Message + Default, A: Message>(
    payload: &[u8],
    call: impl FnOnce(Q) -> Result<A, CallError>,
) -> Result<Vec<u8>, CallError> {
    Ok(call(Q::decode(payload)?)?.encode_to_vec())
}

/// Runs a hook of the driver. A panic fails this call, not the connection: without the connection every
/// container would start unpinned.
fn guarded<T>(hook: impl FnOnce() -> Result<T, CallError>) -> (Result<T, CallError>, Duration) {
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(hook)).unwrap_or(Err(CallError::Panicked));
    (result, started.elapsed())
}

/// Whether the container's environment speaks of claimed CPUs, true or not: tells the two kinds apart where
/// the driver's answer does not.
fn claims_cpus(container: &Container) -> bool {
    container.env.iter().any(|variable| variable.starts_with("DRA_CPUSET_"))
}

/// Names a container for a person.
struct Named<'a>(&'a Container);

impl std::fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Container { id, name, pod, .. } = self.0;
        write!(f, "{}/{}/{name} ({id})", pod.namespace, pod.name)
    }
}
