//! The container runtime of a story: what it knows of its containers. It survives the driver.

use crate::cdi::{device_id, spec_file_name};
use crate::driver::{Container, Pod, Update};
use crate::nri::Version;
use anyhow::Context as _;
use dracpu_cpuset::CpuSet;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) struct Runtime {
    nri: Version,
    /// By name; the latest of that name.
    containers: BTreeMap<String, Known>,
    made: usize,
}

pub(super) struct Known {
    pub(super) container: Container,
    pub(super) started: bool,
}

impl Default for Runtime {
    fn default() -> Self {
        Self { nri: Version::BEARS_PUSHES, containers: BTreeMap::new(), made: 0 }
    }
}

impl Runtime {
    pub(super) fn set_nri(&mut self, version: &str) -> anyhow::Result<()> {
        self.nri = Version::parse(version)
            .with_context(|| format!("`{version}` is not a version such as {}", Version::BEARS_PUSHES))?;
        Ok(())
    }

    /// The container as hooks show it: its CDI devices are named by newer runtimes only, whichever one made it.
    pub(super) fn shown(&self, container: &Container) -> Container {
        let mut shown = container.clone();
        if !self.names_devices() {
            shown.cdi_devices.clear();
        }
        shown
    }

    pub(super) fn names_devices(&self) -> bool {
        self.nri >= Version::NAMES_DEVICES
    }

    pub(super) fn bears_pushes(&self) -> bool {
        self.nri >= Version::BEARS_PUSHES
    }

    /// The containers end with the machine.
    pub(super) fn reboot(&mut self) {
        self.containers.clear();
    }

    /// A new container: the variables of its claims' CDI specs beside its own.
    pub(super) fn inject(
        &mut self,
        name: &str,
        pod: &str,
        env: Vec<String>,
        claims: &[String],
        cdi_dir: &Path,
    ) -> anyhow::Result<Container> {
        self.made += 1;
        let mut container = Container {
            id: format!("{name}#{}", self.made),
            name: name.to_owned(),
            pod: Pod {
                uid: pod.to_owned(),
                namespace: "default".to_owned(),
                name: pod.to_owned(),
                quota: None,
            },
            env,
            ..Container::default()
        };
        for claim in claims {
            let device = device_id(&claim.as_str().into());
            let variables = variables(cdi_dir, claim)
                .with_context(|| format!("unresolvable CDI devices {device}: is the claim prepared?"))?;
            container.env.extend(variables);
            container.cdi_devices.push(device);
        }
        Ok(container)
    }

    /// The container exists; one of the same name is forgotten.
    pub(super) fn add(&mut self, container: Container) {
        self.containers.insert(container.name.clone(), Known { container, started: false });
    }

    pub(super) fn get(&self, name: &str) -> anyhow::Result<&Known> {
        self.containers.get(name).with_context(|| unknown(name))
    }

    pub(super) fn get_mut(&mut self, name: &str) -> anyhow::Result<&mut Known> {
        self.containers.get_mut(name).with_context(|| unknown(name))
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.containers.remove(name);
    }

    /// Carries out updates. Gives the containers by name.
    pub(super) fn apply(&mut self, updates: Vec<Update>) -> BTreeMap<String, CpuSet> {
        let mut applied = BTreeMap::new();
        for Update { container_id, cpus } in updates {
            let known = self.containers.values_mut().find(|known| known.container.id == container_id);
            // As a real one: an update of a container that is gone is skipped.
            if let Some(known) = known {
                known.container.cpus = Some(cpus.clone());
                applied.insert(known.container.name.clone(), cpus);
            }
        }
        applied
    }
}

fn unknown(name: &str) -> String {
    format!("the runtime has no container {name}")
}

/// The variables of a claim's device, as a runtime reads them from its spec.
fn variables(cdi_dir: &Path, claim: &str) -> anyhow::Result<Vec<String>> {
    let path = cdi_dir.join(spec_file_name(&claim.into())?);
    let spec: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let env =
        spec.pointer("/devices/0/containerEdits/env").and_then(Value::as_array).context("no variables")?;
    Ok(env.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}
