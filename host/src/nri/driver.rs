//! The node's driver behind the hooks.

use super::hooks::Hooks;
use crate::driver::{Container, Created, Driver, Update, Updated};
use dracpu_cpuset::CpuSet;
use futures::future::BoxFuture;
use std::collections::BTreeSet;

impl Hooks for Driver {
    fn connected(&self, may_name_devices: bool) {
        Self::connected(self, may_name_devices);
    }

    fn create_container(&self, container: &Container) -> anyhow::Result<Created> {
        Ok(Self::create_container(self, container)?)
    }

    fn update_container(&self, container: &Container, wanted: Option<&CpuSet>) -> Updated {
        Self::update_container(self, container, wanted)
    }

    fn start_container(&self, container: &Container) {
        Self::start_container(self, container);
    }

    fn stop_container(&self, id: &str) -> Vec<Update> {
        Self::stop_container(self, id)
    }

    fn remove_container(&self, id: &str) {
        Self::remove_container(self, id);
    }

    fn synchronize(&self, containers: Vec<Container>) -> Vec<Update> {
        Self::synchronize(self, containers)
    }

    fn validate_container(&self, container: &Container, cpus: Option<&CpuSet>) -> anyhow::Result<()> {
        Ok(Self::validate_container(self, container, cpus)?)
    }

    fn masks_due(&self) -> BoxFuture<'_, ()> {
        Box::pin(Self::masks_due(self))
    }

    fn take_masks(&self) -> Vec<Update> {
        self.take_pending_updates()
    }

    fn masks_set(&self, sent: &[Update], failed: &BTreeSet<String>) {
        self.pushed(sent, failed);
    }
}
