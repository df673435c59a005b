//! The pump: reads what is there, takes the steps of `plan`, waits for a change. Nothing is sent while
//! nothing changes.
//!
//! A new desired state is published at once. Other hands (the kubelet deletes slices when it starts) are
//! answered after a pause, in which their changes settle. Failures are retried with growing pauses.

use super::desired::Pool;
use super::error::{PublishError, consequence};
use super::plan::{Step, plan, same};
use super::progress::{Progress, Published};
use crate::DRIVER_NAME;
use crate::device::Device;
use crate::readiness::{Part, Readiness};
use crate::words::chain;
use anyhow::Context as _;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device as ApiDevice, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, DefaultBackoff, watcher};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// In which the changes of others settle.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Until the same object is sent again to a server that refused it.
const AFTER_REFUSAL: Duration = Duration::from_secs(600);
/// For all calls of one pass.
const PASS: Duration = Duration::from_secs(60);

/// Publishes the devices and keeps them published, until `stop`. The slices stay.
///
/// The readiness part `node name` follows from whether the API server knows the node.
///
/// # Errors
/// When the source of devices is gone. Whatever the API server does is logged and retried.
pub async fn run(
    client: Client,
    pool: Pool,
    mut devices: watch::Receiver<Arc<Vec<Device>>>,
    readiness: Arc<Readiness>,
    progress: Arc<Progress>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut publisher = Publisher::new(client, pool, readiness, progress);
    // Where the watch begins matters little, since each pass lists anew: a server's cache will do.
    let config = watcher::Config::default().fields(&publisher.ours).any_semantic();
    let mut changes = pin!(watcher(publisher.slices.clone(), config).default_backoff());
    let mut watching = Problem::default();
    let mut publishing = Problem::default();
    let mut retries = DefaultBackoff::default();
    let mut due = Some(Instant::now());
    // The watch begins after the first pass: a server that cannot keep up is asked by one hand only.
    let mut published = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            changed = devices.changed() => {
                changed.context("nobody says any more which devices the node has")?;
                due = Some(Instant::now());
            }
            () = publisher.progress.wanted.notified() => due = Some(Instant::now()),
            () = sleep_until(due) => {
                let wanted = devices.borrow_and_update().clone();
                let pass = tokio::time::timeout(PASS, publisher.publish(&wanted));
                let Some(result) = stop.run_until_cancelled(pass).await else { return Ok(()) };
                let result = result.unwrap_or_else(|_| {
                    let message = format!("no answer within {} s", PASS.as_secs());
                    Err(PublishError::Unavailable { verb: "finish the publication of slices", message })
                });
                due = match result {
                    Ok(()) => {
                        publishing.solved("slices are as they should be");
                        retries = DefaultBackoff::default();
                        published = true;
                        None
                    }
                    Err(error) => {
                        let pause = match error {
                            PublishError::Invalid { .. } => AFTER_REFUSAL,
                            _ => retries.next().unwrap_or(DEBOUNCE),
                        };
                        publishing.report(&format!("slices are not published: {error}"));
                        publisher.progress.failed(error.to_string());
                        Some(Instant::now() + pause)
                    }
                };
            }
            change = changes.try_next(), if published => match change {
                // The end of a new list counts: what vanished while the watch was broken has no event.
                Ok(Some(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone)) => {
                    watching.solved("the watch of slices is back");
                    let soon = Instant::now() + DEBOUNCE;
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                Ok(Some(watcher::Event::Init | watcher::Event::InitApply(_))) => {}
                Ok(None) => anyhow::bail!("the watch of slices ended"),
                Err(error) => {
                    let why = format!("the watch of slices is interrupted: {}", chain(&error));
                    watching.report(&why);
                    publisher.progress.unwatched(why);
                    // A watch that goes on where it was says nothing: a pass that succeeds tells that the server is back.
                    let pause = Instant::now() + retries.next().unwrap_or(DEBOUNCE);
                    due = Some(due.map_or(pause, |due| due.min(pause)));
                }
            },
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Something that may fail many times for one reason: logged when the reason changes.
#[derive(Default)]
struct Problem(Option<String>);

impl Problem {
    fn report(&mut self, text: &str) {
        if self.0.as_deref() == Some(text) {
            tracing::debug!("{text}");
        } else {
            tracing::warn!("{text}");
            self.0 = Some(text.to_owned());
        }
    }

    fn solved(&mut self, text: &str) {
        if self.0.take().is_some() {
            tracing::info!("{text}");
        }
    }
}

struct Publisher {
    slices: Api<ResourceSlice>,
    nodes: Api<Node>,
    pool: Pool,
    /// Field selector of this driver's slices on this node.
    ours: String,
    readiness: Arc<Readiness>,
    progress: Arc<Progress>,
    /// The Node object, as last read.
    owner: Option<OwnerReference>,
    /// By place in the pool, where the server stored something else than it was sent: what was sent, and
    /// what is then as good. Sending it again would change nothing, for ever.
    accepted: BTreeMap<usize, (ResourceSliceSpec, ResourceSliceSpec)>,
}

impl Publisher {
    fn new(client: Client, pool: Pool, readiness: Arc<Readiness>, progress: Arc<Progress>) -> Self {
        Self {
            slices: Api::all(client.clone()),
            nodes: Api::all(client),
            ours: format!("spec.driver={DRIVER_NAME},spec.nodeName={}", pool.node_name),
            pool,
            readiness,
            progress,
            owner: None,
            accepted: BTreeMap::new(),
        }
    }

    /// One pass: brings the slices to what the devices demand, or says why not.
    async fn publish(&mut self, devices: &[Device]) -> Result<(), PublishError> {
        let desired = self.pool.desired(devices).into_iter().enumerate();
        let desired: Vec<ResourceSliceSpec> =
            desired.map(|(place, spec)| self.as_accepted(place, spec)).collect();
        let (owner, fresh) = match self.owner.clone() {
            Some(owner) => (owner, false),
            None => (self.read_owner().await?, true),
        };
        let observed = self.list().await?;
        let mut steps = plan(&desired, &observed, &owner);
        if !fresh && steps.iter().any(|step| matches!(step, Step::Create(..))) {
            // A slice vanished: perhaps with its Node object, and a new one has the name.
            let owner = self.read_owner().await?;
            steps = plan(&desired, &observed, &owner);
        }
        let (count, generation) = (steps.len(), steps.iter().rev().find_map(Step::generation));
        for step in steps {
            self.take(step).await?;
        }
        let (devices, slices) = (devices.len(), desired.len());
        let seen = observed.iter().map(|slice| slice.spec.pool.generation).max();
        let published = Published { generation: generation.or(seen).unwrap_or_default(), slices, devices };
        self.progress.published(published);
        if count > 0 {
            tracing::info!(devices, slices, generation, writes = count, "published the node's devices");
        }
        Ok(())
    }

    fn as_accepted(&self, place: usize, spec: ResourceSliceSpec) -> ResourceSliceSpec {
        match self.accepted.get(&place) {
            Some((sent, stored)) if same(sent, &spec) => stored.clone(),
            _ => spec,
        }
    }

    async fn list(&self) -> Result<Vec<ResourceSlice>, PublishError> {
        match self.slices.list(&ListParams::default().fields(&self.ours)).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(PublishError::NotServed),
            Err(error) => Err(PublishError::of("list slices", &error)),
        }
    }

    /// Reads the Node object anew: what slices belong to, so that they go when it does.
    async fn read_owner(&mut self) -> Result<OwnerReference, PublishError> {
        let name = &self.pool.node_name;
        self.owner = None;
        let node = match self.nodes.get_metadata(name).await {
            Ok(node) => node,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let unknown = PublishError::NodeUnknown { name: name.clone() };
                self.readiness.not_ready(Part::NodeName, unknown.to_string());
                return Err(unknown);
            }
            Err(error) => return Err(PublishError::of("read the node", &error)),
        };
        // Whatever answered, it was no API server; a slice without a real owner would be refused.
        let Some(uid) = node.metadata.uid.filter(|uid| !uid.is_empty()) else {
            let message = "the answer is no Node object: it has no UID".to_owned();
            return Err(PublishError::Unavailable { verb: "read the node", message });
        };
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: name.clone(),
            uid,
            controller: Some(true),
            block_owner_deletion: None,
        };
        self.readiness.ready(Part::NodeName);
        self.owner = Some(owner.clone());
        Ok(owner)
    }

    async fn take(&mut self, step: Step) -> Result<(), PublishError> {
        let (place, sent, stored) = match step {
            Step::Delete(slice) => return self.delete(&slice).await,
            Step::Update(place, slice) => {
                let name = slice.metadata.name.clone().unwrap_or_default();
                let stored = self.slices.replace(&name, &PostParams::default(), &slice).await;
                (
                    place,
                    slice,
                    stored.map_err(|error| PublishError::of_write("update a slice", &name, &error))?,
                )
            }
            Step::Create(place, slice) => {
                let name = slice.metadata.generate_name.clone().unwrap_or_default();
                let stored = self.slices.create(&PostParams::default(), &slice).await;
                (
                    place,
                    slice,
                    stored.map_err(|error| PublishError::of_write("create a slice", &name, &error))?,
                )
            }
        };
        if !same(&sent.spec, &stored.spec) {
            self.report_left_out(&sent.spec, &stored.spec);
            self.accepted.insert(place, (sent.spec, stored.spec));
        }
        Ok(())
    }

    async fn delete(&self, slice: &ResourceSlice) -> Result<(), PublishError> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let as_seen = Preconditions {
            uid: slice.metadata.uid.clone(),
            resource_version: slice.metadata.resource_version.clone(),
        };
        match self.slices.delete(name, &DeleteParams::default().preconditions(as_seen)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(PublishError::of_write("delete a slice", name, &error)),
        }
    }

    fn report_left_out(&mut self, sent: &ResourceSliceSpec, stored: &ResourceSliceSpec) {
        type Has = fn(&ApiDevice) -> bool;
        let gated: [(&'static str, Has); 3] = [
            ("allowMultipleAllocations", |device| device.allow_multiple_allocations.is_some()),
            ("requestPolicy", |device| {
                device.capacity.iter().flatten().any(|(_, capacity)| capacity.request_policy.is_some())
            }),
            ("nodeAllocatableResources", |device| device.node_allocatable_resources.is_some()),
        ];
        let any = |spec: &ResourceSliceSpec, has: Has| spec.devices.iter().flatten().any(has);
        let fields = gated.into_iter().filter(|(_, has)| any(sent, *has) && !any(stored, *has));
        let mut fields: Vec<&'static str> = fields.map(|(field, _)| field).collect();
        if fields.is_empty() {
            fields.push("a part");
        }
        for field in fields {
            if self.progress.left_out(field, || consequence(field)) {
                tracing::warn!("{}", consequence(field));
            }
        }
    }
}
