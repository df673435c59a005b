//! The CRI calls, as a kubelet makes them.

use super::super::cdi_reader::Registry;
use super::super::cpus::parse;
use super::adjust::{CpuChange, HookResult};
use super::containers::{inject, mounts};
use super::hooks::masks;
use super::{ContainerRecord, ContainerSpec, ContainerState, PodSpec, Runtime};
use anyhow::{Context, Result, anyhow, bail};
use dracpu_proto::nri;
use nri::Event;
use std::time::SystemTime;

impl Runtime {
    /// RunPodSandbox; the sandbox's id.
    ///
    /// # Errors
    /// When a plugin refuses.
    pub async fn run_pod_sandbox(&self, pod: PodSpec) -> Result<String> {
        let _alone = self.shared.alone().await?;
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
        let _alone = shared.alone().await?;
        let version = shared.version();
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
                mounts: mounts(&edits),
                cdi_devices: spec.cdi_devices.clone(),
                cpus: spec.cpus.clone(),
                mems: String::new(),
                quota,
                period,
                shares: 2,
                state: ContainerState::Created,
                created: state.made,
                started: None,
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
        let _alone = self.shared.alone().await?;
        let (pod, shown) = self.shared.shown(id)?;
        self.shared.tell(Event::StartContainer, &pod, Some(&shown)).await?;
        let container = self.container(id);
        for mount in &container.mounts {
            if !std::path::Path::new(&mount.host_path).exists() {
                bail!("error mounting \"{}\": no such file or directory", mount.host_path);
            }
        }
        let mask = container.cpus;
        if !parse(&mask)?.is_subset(&self.shared.config.online) {
            bail!("failed to write \"{mask}\": numerical result out of range");
        }
        self.set_state(id, ContainerState::Running);
        self.set_started(id, SystemTime::now());
        let (pod, shown) = self.shared.shown(id)?;
        self.shared.tell(Event::PostStartContainer, &pod, Some(&shown)).await
    }

    /// UpdateContainerResources, as the kubelet calls it for a resize.
    ///
    /// # Errors
    /// When a plugin refuses, or its mask is impossible: nothing is changed then.
    pub async fn update_container(&self, id: &str, asked: CpuChange) -> Result<()> {
        let shared = &self.shared;
        let _alone = shared.alone().await?;
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
        let _alone = self.shared.alone().await?;
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
        let _alone = self.shared.alone().await?;
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
        let _alone = self.shared.alone().await?;
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
