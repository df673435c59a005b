//! A driver that notes what it is asked and answers what it was told to.

use crate::driver::{Container, Created, Update, Updated};
use crate::nri::{Hook, Hooks, Observer};
use dracpu_cpuset::CpuSet;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Notify;

/// Create: CPUs 2-3, exclusive, one other container. Update: 2-3. Stop, Synchronize: one container to 0-1.
/// A container named `refused` is refused, one named `panics` makes every hook panic.
#[derive(Default)]
pub(super) struct Driver {
    calls: Mutex<Vec<String>>,
    observed: Mutex<Vec<String>>,
    created: Mutex<Option<Created>>,
    updated: Mutex<Option<Updated>>,
    masks: Mutex<Vec<Update>>,
    due: Notify,
}

pub(super) fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

pub(super) fn update(id: &str, list: &str) -> Update {
    Update { container_id: id.into(), cpus: cpus(list) }
}

pub(super) fn pinned() -> Created {
    Created {
        cpus: cpus("2-3"),
        mems: vec![],
        exclusive: true,
        remove_cfs_quota: false,
        updates: vec![update("other", "0-1")],
    }
}

impl Driver {
    /// What creation answers from now on.
    pub(super) fn creates(&self, created: Created) {
        *self.created.lock().unwrap() = Some(created);
    }

    /// What an update answers from now on.
    pub(super) fn updates(&self, updated: Updated) {
        *self.updated.lock().unwrap() = Some(updated);
    }

    /// Masks become due.
    pub(super) fn owes(&self, masks: Vec<Update>) {
        *self.masks.lock().unwrap() = masks;
        self.due.notify_one();
    }

    /// The calls since the last look.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// What the observer was told since the last look.
    pub(super) fn observed(&self) -> Vec<String> {
        std::mem::take(&mut *self.observed.lock().unwrap())
    }

    fn note(&self, call: String, name: &str) {
        self.calls.lock().unwrap().push(call);
        assert_ne!(name, "panics", "asked to");
    }
}

fn shown(container: &Container) -> String {
    let Container { id, name, pod, env, cdi_devices, cpus, quota, started } = container;
    let cpus = cpus.as_ref().map_or_else(|| "none".to_owned(), CpuSet::to_string);
    let mut shown = format!(
        "{id} {}/{}/{name} {} env={env:?} cdi={cdi_devices:?} cpus={cpus}",
        pod.namespace, pod.name, pod.uid
    );
    for (what, quota) in [("quota", quota), ("pod quota", &pod.quota)] {
        if let Some(quota) = quota {
            shown += &format!(" {what}={quota}");
        }
    }
    if let Some(started) = started {
        let since = started.duration_since(std::time::UNIX_EPOCH).unwrap();
        shown += &format!(" started={}", since.as_secs());
    }
    shown
}

fn list(cpus: Option<&CpuSet>) -> String {
    cpus.map_or_else(|| "none".to_owned(), CpuSet::to_string)
}

impl Hooks for Driver {
    fn connected(&self, may_name_devices: bool) {
        if !may_name_devices {
            self.note("connected: no devices".to_owned(), "");
        }
    }

    fn create_container(&self, container: &Container) -> anyhow::Result<Created> {
        self.note(format!("create {}", shown(container)), &container.name);
        anyhow::ensure!(container.name != "refused", "claim c1: no such claim; prepare it first");
        Ok(self.created.lock().unwrap().clone().unwrap_or_else(pinned))
    }

    fn update_container(&self, container: &Container, wanted: Option<&CpuSet>) -> Updated {
        self.note(format!("update {} wanted={}", container.id, list(wanted)), &container.name);
        let default = || Updated { cpus: Some(cpus("2-3")), updates: vec![] };
        self.updated.lock().unwrap().clone().unwrap_or_else(default)
    }

    fn start_container(&self, container: &Container) {
        self.note(format!("start {}", container.id), &container.name);
    }

    fn stop_container(&self, id: &str) -> Vec<Update> {
        self.note(format!("stop {id}"), id);
        vec![update("other", "0-1")]
    }

    fn remove_container(&self, id: &str) {
        self.note(format!("remove {id}"), id);
    }

    fn synchronize(&self, containers: Vec<Container>) -> Vec<Update> {
        for container in &containers {
            self.note(format!("exists {}", shown(container)), &container.name);
        }
        self.note(format!("synchronize {}", containers.len()), "");
        containers.iter().map(|container| update(&container.id, "0-1")).collect()
    }

    fn validate_container(&self, container: &Container, final_cpus: Option<&CpuSet>) -> anyhow::Result<()> {
        self.note(format!("validate {} final={}", container.id, list(final_cpus)), &container.name);
        anyhow::ensure!(final_cpus == Some(&cpus("2-3")), "the final mask is {}, not 2-3", list(final_cpus));
        Ok(())
    }

    fn masks_due(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.due.notified())
    }

    fn take_masks(&self) -> Vec<Update> {
        std::mem::take(&mut *self.masks.lock().unwrap())
    }

    fn masks_set(&self, sent: &[Update], failed: &BTreeSet<String>) {
        let sent: Vec<_> =
            sent.iter().map(|update| format!("{}={}", update.container_id, update.cpus)).collect();
        self.note(format!("set {sent:?} failed {failed:?}"), "");
    }
}

impl Observer for Driver {
    fn nri_hook(&self, hook: Hook, ok: bool, exclusive: bool, _: Duration) {
        let (ok, mode) = (if ok { "ok" } else { "error" }, if exclusive { "exclusive" } else { "shared" });
        self.observed.lock().unwrap().push(format!("{hook:?} {ok} {mode}"));
    }

    fn nri_synchronize(&self, ok: bool, _: Duration) {
        self.observed.lock().unwrap().push(format!("Synchronize {}", if ok { "ok" } else { "error" }));
    }
}
