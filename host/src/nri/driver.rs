//! The node's driver behind the hooks.

use super::hooks::Hooks;
use crate::driver::{Container, Created, Driver, Update, Updated};
use dracpu_cpuset::CpuSet;

impl Hooks for Driver {
    fn create_container(&self, container: &Container) -> anyhow::Result<Created> {
        Ok(Self::create_container(self, container)?)
    }

    fn update_container(&self, container: &Container, wanted: Option<&CpuSet>) -> Updated {
        Self::update_container(self, container, wanted)
    }

    fn start_container(&self, id: &str) {
        Self::start_container(self, id);
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
}
