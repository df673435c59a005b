//! The CRI calls, and the hooks that plugins get for them.

use super::super::cdi_reader::Registry;
use super::super::cpus::parse;
use super::adjust::{CpuChange, HookResult};
use super::containers::inject;
use super::session::Plugin;
use super::ttrpc::{RpcError, UNIMPLEMENTED};
use super::{ContainerRecord, ContainerSpec, ContainerState, HookCall, PodSpec, Runtime, Shared};
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
    fn live(&self) -> Vec<Arc<Plugin>> {
        let mut state = self.state();
        state.plugins.retain(|plugin| plugin.is_open());
        state.plugins.clone()
    }

    /// Asks one plugin. `Ok(None)`: it failed and is closed, and the hook goes on without it.
    async fn ask<A: Message + Default>(
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
    async fn tell(
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
    fn apply(&self, container: &mut ContainerRecord, change: &CpuChange) -> Result<bool, String> {
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

    fn pod_of(&self, id: &str) -> Result<nri::PodSandbox> {
        let state = self.state();
        let pod = state.pods.get(id).with_context(|| format!("no pod sandbox {id}"))?;
        Ok(pod.shown(id))
    }

    /// A container and its pod, as plugins see them.
    fn shown(&self, id: &str) -> Result<(nri::PodSandbox, nri::Container)> {
        let state = self.state();
        let container = state.containers.get(id).with_context(|| format!("no container {id}"))?;
        let pod = state.pods.get(&container.pod_id).context("a container has a pod")?;
        Ok((pod.shown(&container.pod_id), container.shown(self.config.version)))
    }

    /// CreateContainer over all plugins, then their validation.
    async fn create_hook(&self, pod: &nri::PodSandbox, container: &nri::Container) -> Result<HookResult> {
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
    async fn stop_hook(&self, pod: &nri::PodSandbox, container: &nri::Container) {
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

impl Runtime {
    /// RunPodSandbox; the sandbox's id.
    ///
    /// # Errors
    /// When a plugin refuses.
    pub async fn run_pod_sandbox(&self, pod: PodSpec) -> Result<String> {
        let _alone = self.shared.hooks.lock().await;
        let id = {
            let mut state = self.shared.state();
            state.made += 1;
            format!("{:016x}", 0xdead_0000 + state.made)
        };
        self.shared.tell(Event::RunPodSandbox, &pod.shown(&id), None).await?;
        let mut state = self.shared.state();
        state.pods.insert(id.clone(), pod);
        state.pods_of_this_run.insert(id.clone());
        drop(state);
        self.shared.changed();
        Ok(id)
    }

    /// CreateContainer: CDI first, then the hooks; the container's id.
    ///
    /// # Errors
    /// The text that a kubelet would see.
    pub async fn create_container(&self, pod_id: &str, spec: &ContainerSpec) -> Result<String> {
        let shared = &self.shared;
        let _alone = shared.hooks.lock().await;
        let version = shared.config.version;
        let registry = Registry::scan(&shared.config.cdi_dirs, version.newest_cdi());
        for (path, error) in &registry.errors {
            shared.odd(format!("CDI spec {}: {error}", path.display()));
        }
        let edits = registry.edits(&spec.cdi_devices)?;
        let pod = shared.pod_of(pod_id)?;
        let (quota, period) = spec.quota.unwrap_or((-1, 100_000));
        let mut container = {
            let mut state = shared.state();
            state.made += 1;
            ContainerRecord {
                id: format!("{:016x}", 0xc0de_0000 + state.made),
                pod_id: pod_id.to_owned(),
                name: spec.name.clone(),
                env: inject(&spec.env, &edits, version),
                cdi_devices: spec.cdi_devices.clone(),
                cpus: spec.cpus.clone(),
                mems: String::new(),
                quota,
                period,
                shares: 2,
                state: ContainerState::Created,
                created: state.made,
            }
        };
        let mut shown = container.shown(version);
        shown.state = nri::ContainerState::ContainerUnknown.into();
        match shared.create_hook(&pod, &shown).await {
            Ok(result) => {
                shared.finish(&result);
                // a mask that the machine does not have is found at the start only
                if shared.apply(&mut container, &result.change).is_err() {
                    container.cpus.clone_from(&result.change.cpus);
                }
                let id = container.id.clone();
                shared.state().containers.insert(id.clone(), container);
                shared.tell(Event::PostCreateContainer, &pod, Some(&shown)).await?;
                shared.changed();
                Ok(id)
            }
            Err(refusal) => {
                // the id was never created, and yet its end is told
                shared.stop_hook(&pod, &shown).await;
                shared.tell(Event::RemoveContainer, &pod, Some(&shown)).await?;
                Err(refusal)
            }
        }
    }

    /// StartContainer.
    ///
    /// # Errors
    /// When a plugin refuses, or the mask names CPUs that the machine does not have.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        let _alone = self.shared.hooks.lock().await;
        let (pod, shown) = self.shared.shown(id)?;
        self.shared.tell(Event::StartContainer, &pod, Some(&shown)).await?;
        let mask = self.shared.state().containers[id].cpus.clone();
        if !parse(&mask)?.is_subset(&self.shared.config.online) {
            bail!("failed to write \"{mask}\": numerical result out of range");
        }
        self.set_state(id, ContainerState::Running);
        let (pod, shown) = self.shared.shown(id)?;
        self.shared.tell(Event::PostStartContainer, &pod, Some(&shown)).await
    }

    /// UpdateContainerResources, as the kubelet calls it for a resize.
    ///
    /// # Errors
    /// When a plugin refuses, or its mask is impossible: nothing is changed then.
    pub async fn update_container(&self, id: &str, asked: CpuChange) -> Result<()> {
        let shared = &self.shared;
        let _alone = shared.hooks.lock().await;
        let (pod, shown) = shared.shown(id)?;
        let mut result = HookResult::new(id, false);
        let failed = |why: String| anyhow!("NRI container update failed: {why}");
        for plugin in shared.live().iter().filter(|plugin| plugin.wants(Event::UpdateContainer)) {
            let request = nri::UpdateContainerRequest {
                pod: Some(pod.clone()),
                container: Some(shown.clone()),
                linux_resources: Some(asked.shown()),
            };
            let masks = |answer: &nri::UpdateContainerResponse| masks(None, &answer.update);
            let answer = shared.ask(plugin, "UpdateContainer", id, &request, masks).await;
            if let Some(answer) = answer.map_err(|status| failed(status.to_string()))? {
                result.update(&plugin.name, &answer.update).map_err(failed)?;
            }
        }
        let mut change = asked;
        change.overlay(&result.change);
        {
            let mut state = shared.state();
            let container = state.containers.get_mut(id).context("the container is still there")?;
            shared.apply(container, &change).map_err(|why| anyhow!(why))?;
        }
        shared.finish(&result);
        let (pod, shown) = shared.shown(id)?;
        shared.tell(Event::PostUpdateContainer, &pod, Some(&shown)).await
    }

    /// StopContainer, or the exit of its process; a container is told stopped once.
    ///
    /// # Errors
    /// When there is no such container.
    pub async fn stop_container(&self, id: &str) -> Result<()> {
        let _alone = self.shared.hooks.lock().await;
        let (pod, shown) = self.shared.shown(id)?;
        if self.container(id).state == ContainerState::Exited {
            return Ok(());
        }
        self.set_state(id, ContainerState::Exited);
        self.shared.stop_hook(&pod, &shown).await;
        Ok(())
    }

    /// RemoveContainer.
    ///
    /// # Errors
    /// When there is no such container.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let _alone = self.shared.hooks.lock().await;
        let (pod, shown) = self.shared.shown(id)?;
        self.shared.state().containers.remove(id);
        self.shared.tell(Event::RemoveContainer, &pod, Some(&shown)).await
    }

    /// StopPodSandbox and RemovePodSandbox, with the containers that are left.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn remove_pod_sandbox(&self, pod_id: &str) -> Result<()> {
        let all = self.containers();
        for id in all.values().filter(|container| container.pod_id == pod_id).map(|container| &container.id) {
            self.stop_container(id).await?;
            self.remove_container(id).await?;
        }
        let _alone = self.shared.hooks.lock().await;
        let pod = self.shared.pod_of(pod_id)?;
        // of a pod from before a restart only its containers' ends are told
        if self.shared.state().pods_of_this_run.remove(pod_id) {
            self.shared.tell(Event::StopPodSandbox, &pod, None).await?;
            self.shared.tell(Event::RemovePodSandbox, &pod, None).await?;
        }
        self.shared.state().pods.remove(pod_id);
        self.shared.changed();
        Ok(())
    }

    /// A container ends while the runtime is down: no plugin ever hears of it.
    pub fn lose_container(&self, id: &str) {
        self.shared.state().containers.remove(id);
        self.shared.changed();
    }

    fn set_state(&self, id: &str, to: ContainerState) {
        if let Some(container) = self.shared.state().containers.get_mut(id) {
            container.state = to;
        }
        self.shared.changed();
    }
}
