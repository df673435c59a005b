//! The hooks: asking one plugin after another, and applying what they answer.

use super::super::cpus::parse;
use super::adjust::{CpuChange, HookResult};
use super::session::Plugin;
use super::ttrpc::{RpcError, UNIMPLEMENTED};
use super::{ContainerRecord, HookCall, Shared};
use anyhow::{Context, Result, anyhow, bail};
use dracpu_proto::nri;
use nri::Event;
use prost::Message;
use std::sync::Arc;
use std::time::Instant;

/// Masks of an answer, for the log of calls.
pub(super) fn masks(
    adjust: Option<(&str, &nri::ContainerAdjustment)>,
    updates: &[nri::ContainerUpdate],
) -> Vec<(String, String)> {
    let adjusted = adjust.map(|(id, adjust)| {
        let resources = adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        (id.to_owned(), CpuChange::of(resources).cpus)
    });
    let updated = updates.iter().map(|update| {
        let resources = update.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        (update.container_id.clone(), CpuChange::of(resources).cpus)
    });
    adjusted.into_iter().chain(updated).collect()
}

impl Shared {
    /// The plugins that are there, in the order of their indexes.
    pub(super) fn live(&self) -> Vec<Arc<Plugin>> {
        let mut state = self.state();
        state.plugins.retain(|plugin| plugin.is_open());
        state.plugins.clone()
    }

    /// Asks one plugin. `Ok(None)`: it failed and is closed, and the hook goes on without it.
    pub(super) async fn ask<A: Message + Default>(
        &self,
        plugin: &Plugin,
        method: &str,
        container: &str,
        request: &impl Message,
        masks: impl Fn(&A) -> Vec<(String, String)>,
    ) -> Result<Option<A>, RpcError> {
        let began = Instant::now();
        let answer: Result<A, RpcError> =
            plugin.client.call(method, request, self.config.request_timeout).await;
        let call = HookCall {
            plugin: plugin.name.clone(),
            method: method.to_owned(),
            container: container.to_owned(),
            took: began.elapsed(),
            masks: answer.as_ref().map(masks).unwrap_or_default(),
            failure: answer.as_ref().err().map(ToString::to_string),
        };
        let outcome = match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(status @ RpcError::Status { .. }) => Err(status),
            Err(fatal) => {
                plugin.close(&fatal.to_string()).await;
                Ok(None)
            }
        };
        self.state().calls.push(call);
        self.changed();
        outcome
    }

    /// One of the nine events that a plugin can only refuse or take.
    pub(super) async fn tell(
        &self,
        event: Event,
        pod: &nri::PodSandbox,
        container: Option<&nri::Container>,
    ) -> Result<()> {
        let method = match event {
            Event::RunPodSandbox => "RunPodSandbox",
            Event::StopPodSandbox => "StopPodSandbox",
            Event::RemovePodSandbox => "RemovePodSandbox",
            Event::PostCreateContainer => "PostCreateContainer",
            Event::StartContainer => "StartContainer",
            Event::PostStartContainer => "PostStartContainer",
            Event::PostUpdateContainer => "PostUpdateContainer",
            Event::RemoveContainer => "RemoveContainer",
            other => bail!("{other:?} is no event of this sort"),
        };
        let id = container.map_or("", |container| &container.id);
        for plugin in self.live().iter().filter(|plugin| plugin.wants(event)) {
            let mut outcome = Ok(());
            if !plugin.speaks_by_state_change() {
                // all of these requests have the pod as field 1, and where there is one, the container as 2
                let request =
                    nri::StartContainerRequest { pod: Some(pod.clone()), container: container.cloned() };
                outcome =
                    self.ask::<nri::Empty>(plugin, method, id, &request, |_| Vec::new()).await.map(|_| ());
                if matches!(outcome, Err(RpcError::Status { code: UNIMPLEMENTED, .. })) {
                    plugin.fall_back_to_state_change();
                    let deprecated =
                        format!("{}: {method} is not implemented: StateChange is deprecated", plugin.name);
                    self.odd(deprecated);
                }
            }
            if plugin.speaks_by_state_change() {
                let request = nri::StateChangeEvent {
                    event: event.into(),
                    pod: Some(pod.clone()),
                    container: container.cloned(),
                };
                outcome = self
                    .ask::<nri::Empty>(plugin, "StateChange", id, &request, |_| Vec::new())
                    .await
                    .map(|_| ());
            }
            let decides = matches!(event, Event::RunPodSandbox | Event::StartContainer);
            if let Err(why) = outcome {
                if decides {
                    bail!("NRI {method} failed: {why}");
                }
                self.state().refusals.push(format!("{}: {method}: {why}", plugin.name));
            }
        }
        Ok(())
    }

    /// Applies the updates of a hook; one that fails is logged, the others are applied.
    pub(super) fn finish(&self, result: &HookResult) {
        let mut state = self.state();
        state.oddities.extend(result.oddities.iter().cloned());
        for update in &result.updates {
            let resources = update.linux.as_ref().and_then(|linux| linux.resources.as_ref());
            let change = CpuChange::of(resources);
            let failing = state.failing_updates.contains(&update.container_id);
            let Some(container) = state.containers.get_mut(&update.container_id) else {
                continue; // an unknown id is skipped without a word
            };
            let applied =
                if failing { Err("runc update failed".to_owned()) } else { self.apply(container, &change) };
            match applied {
                Ok(true) => {}
                Ok(false) => {
                    let odd = format!("the update of {} repeats {change:?}", update.container_id);
                    state.oddities.push(odd);
                }
                Err(why) => state.refusals.push(format!("update of {} failed: {why}", update.container_id)),
            }
        }
        drop(state);
        self.changed();
    }

    /// Ok(false) when it changes nothing.
    pub(super) fn apply(&self, container: &mut ContainerRecord, change: &CpuChange) -> Result<bool, String> {
        let mask = parse(&change.cpus).map_err(|error| format!("cpuset.cpus: {error:#}"))?;
        if !mask.is_subset(&self.config.online) {
            return Err(format!("failed to write \"{}\": numerical result out of range", change.cpus));
        }
        let before = container.clone();
        if !mask.is_empty() {
            container.cpus.clone_from(&change.cpus);
        }
        if !change.mems.is_empty() {
            container.mems.clone_from(&change.mems);
        }
        container.quota = change.quota.unwrap_or(container.quota);
        container.period = change.period.unwrap_or(container.period);
        container.shares = change.shares.unwrap_or(container.shares);
        Ok(*container != before)
    }

    pub(super) fn pod_of(&self, id: &str) -> Result<nri::PodSandbox> {
        let state = self.state();
        let pod = state.pods.get(id).with_context(|| format!("no pod sandbox {id}"))?;
        Ok(pod.shown(id))
    }

    /// A container and its pod, as plugins see them.
    pub(super) fn shown(&self, id: &str) -> Result<(nri::PodSandbox, nri::Container)> {
        let state = self.state();
        let container = state.containers.get(id).with_context(|| format!("no container {id}"))?;
        let pod = state.pods.get(&container.pod_id).context("a container has a pod")?;
        Ok((pod.shown(&container.pod_id), container.shown(self.version())))
    }

    /// CreateContainer over all plugins, then their validation.
    pub(super) async fn create_hook(
        &self,
        pod: &nri::PodSandbox,
        container: &nri::Container,
    ) -> Result<HookResult> {
        let mut result = HookResult::new(&container.id, true);
        let mut shown = container.clone();
        let plugins = self.live();
        for plugin in plugins.iter().filter(|plugin| plugin.wants(Event::CreateContainer)) {
            let request =
                nri::CreateContainerRequest { pod: Some(pod.clone()), container: Some(shown.clone()) };
            let masks = |answer: &nri::CreateContainerResponse| {
                masks(answer.adjust.as_ref().map(|adjust| (container.id.as_str(), adjust)), &answer.update)
            };
            let failed = |why: String| anyhow!("failed to get NRI adjustment for container: {why}");
            let answer = self.ask(plugin, "CreateContainer", &container.id, &request, masks).await;
            let answer = answer.map_err(|status| failed(status.to_string()))?;
            let Some(answer) = answer else { continue };
            if let Some(adjust) = &answer.adjust {
                result.adjust(&plugin.name, adjust).map_err(failed)?;
            }
            result.update(&plugin.name, &answer.update).map_err(failed)?;
            // the next plugin sees the container as changed by this one
            let mut seen = CpuChange::of(shown.linux.as_ref().and_then(|linux| linux.resources.as_ref()));
            seen.overlay(&result.change);
            shown.linux.get_or_insert_default().resources = Some(seen.shown());
        }
        let request = nri::ValidateContainerAdjustmentRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            adjust: Some(nri::ContainerAdjustment {
                linux: Some(nri::LinuxContainerAdjustment {
                    resources: Some(result.change.shown()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            update: result.updates.clone(),
            owners: Some(result.owning()),
            plugins: plugins
                .iter()
                .map(|plugin| nri::PluginInstance {
                    index: plugin.name[..2].to_owned(),
                    name: plugin.name[3..].to_owned(),
                })
                .collect(),
        };
        for plugin in plugins.iter().filter(|plugin| plugin.wants(Event::ValidateContainerAdjustment)) {
            // a plugin that was closed in this very hook cannot validate: the container is refused
            let failed = |why: String| {
                anyhow!(
                    "failed to get NRI adjustment for container: validator plugin {} failed: {why}",
                    plugin.name
                )
            };
            let answer = self.ask::<nri::ValidateContainerAdjustmentResponse>(
                plugin,
                "ValidateContainerAdjustment",
                &container.id,
                &request,
                |_| Vec::new(),
            );
            match answer.await.map_err(|status| failed(status.to_string()))? {
                None => return Err(failed("ttrpc: closed".to_owned())),
                Some(answer) if answer.reject => bail!(
                    "failed to get NRI adjustment for container: validator \"{}\" rejected container adjustment, reason: {}",
                    plugin.name,
                    answer.reason
                ),
                Some(_) => {}
            }
        }
        Ok(result)
    }

    /// StopContainer over all plugins.
    pub(super) async fn stop_hook(&self, pod: &nri::PodSandbox, container: &nri::Container) {
        let mut result = HookResult::new(&container.id, false);
        for plugin in self.live().iter().filter(|plugin| plugin.wants(Event::StopContainer)) {
            let request =
                nri::StopContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
            let masks = |answer: &nri::StopContainerResponse| masks(None, &answer.update);
            let answer = self.ask(plugin, "StopContainer", &container.id, &request, masks).await;
            let outcome = match answer {
                Ok(Some(answer)) => result.update(&plugin.name, &answer.update),
                Ok(None) => Ok(()),
                Err(status) => Err(status.to_string()),
            };
            if let Err(why) = outcome {
                self.state().refusals.push(format!("{}: StopContainer: {why}", plugin.name));
            }
        }
        self.finish(&result);
    }
}
