//! What plugins may change, who owns which change within one hook, and what then happens to containers.
//! Source: `containerd/nri pkg/adaptation/result.go`.

use dracpu_proto::nri;
use std::collections::BTreeMap;

/// CPU resources that someone asks for; empty or none = as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuChange {
    /// Mask.
    pub cpus: String,
    /// Memory nodes.
    pub mems: String,
    /// CFS quota.
    pub quota: Option<i64>,
    /// CFS period.
    pub period: Option<u64>,
    /// Shares.
    pub shares: Option<u64>,
}

impl CpuChange {
    pub(super) fn of(resources: Option<&nri::LinuxResources>) -> Self {
        let cpu = resources.and_then(|resources| resources.cpu.clone()).unwrap_or_default();
        Self {
            cpus: cpu.cpus,
            mems: cpu.mems,
            quota: cpu.quota.map(|quota| quota.value),
            period: cpu.period.map(|period| period.value),
            shares: cpu.shares.map(|shares| shares.value),
        }
    }

    pub(super) fn shown(&self) -> nri::LinuxResources {
        let cpu = nri::LinuxCpu {
            cpus: self.cpus.clone(),
            mems: self.mems.clone(),
            quota: self.quota.map(|value| nri::OptionalInt64 { value }),
            period: self.period.map(|value| nri::OptionalUInt64 { value }),
            shares: self.shares.map(|value| nri::OptionalUInt64 { value }),
            ..Default::default()
        };
        nri::LinuxResources { cpu: Some(cpu), ..Default::default() }
    }

    /// Lays a later change over this one.
    pub(super) fn overlay(&mut self, later: &Self) {
        if !later.cpus.is_empty() {
            self.cpus.clone_from(&later.cpus);
        }
        if !later.mems.is_empty() {
            self.mems.clone_from(&later.mems);
        }
        self.quota = later.quota.or(self.quota);
        self.period = later.period.or(self.period);
        self.shares = later.shares.or(self.shares);
    }

    /// Names and `nri.Field` numbers of what is set.
    fn fields(&self) -> Vec<(&'static str, i32)> {
        [
            (!self.cpus.is_empty(), ("CPUSetCPUs", 21)),
            (!self.mems.is_empty(), ("CPUSetMems", 22)),
            (self.quota.is_some(), ("CPUQuota", 17)),
            (self.period.is_some(), ("CPUPeriod", 18)),
            (self.shares.is_some(), ("CPUShares", 16)),
        ]
        .into_iter()
        .filter_map(|(set, field)| set.then_some(field))
        .collect()
    }
}

/// The answers of all plugins to one hook.
#[derive(Debug, Default)]
pub(super) struct HookResult {
    /// The container of the hook; empty for hooks that only update others.
    subject: String,
    creating: bool,
    /// (container, field number) → plugin.
    owners: BTreeMap<(String, i32), String>,
    /// The change of the subject.
    pub(super) change: CpuChange,
    /// Updates of other containers, in order.
    pub(super) updates: Vec<nri::ContainerUpdate>,
    /// Things that a runtime swallows and a driver should not send.
    pub(super) oddities: Vec<String>,
}

impl HookResult {
    pub(super) fn new(subject: &str, creating: bool) -> Self {
        Self { subject: subject.to_owned(), creating, ..Self::default() }
    }

    fn own(&mut self, plugin: &str, container: &str, change: &CpuChange) -> Result<(), String> {
        for (name, field) in change.fields() {
            let key = (container.to_owned(), field);
            if let Some(first) = self.owners.insert(key, plugin.to_owned()) {
                return Err(format!("plugins \"{plugin}\" and \"{first}\" both tried to set {name}"));
            }
        }
        Ok(())
    }

    /// The adjustment of the container that is being created.
    pub(super) fn adjust(&mut self, plugin: &str, adjust: &nri::ContainerAdjustment) -> Result<(), String> {
        let resources = adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let change = CpuChange::of(resources);
        let known = nri::ContainerAdjustment {
            linux: adjust.linux.as_ref().map(|_| nri::LinuxContainerAdjustment {
                resources: resources.map(|resources| nri::LinuxResources {
                    cpu: resources.cpu.clone(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        if *adjust != known {
            self.oddities
                .push(format!("{plugin}: an adjustment that the stand-in does not apply: {adjust:?}"));
        }
        let subject = self.subject.clone();
        self.own(plugin, &subject, &change)?;
        self.change.overlay(&change);
        Ok(())
    }

    /// Updates in an answer.
    pub(super) fn update(&mut self, plugin: &str, updates: &[nri::ContainerUpdate]) -> Result<(), String> {
        for update in updates {
            let id = &update.container_id;
            let resources = update.linux.as_ref().and_then(|linux| linux.resources.as_ref());
            let change = CpuChange::of(resources);
            if id.is_empty() {
                self.oddities.push(format!("{plugin}: an update without container id is ignored"));
                continue;
            }
            if change == CpuChange::default() {
                self.oddities.push(format!("{plugin}: the update of {id} changes nothing"));
            }
            if *id == self.subject && self.creating {
                return Err(format!("plugin \"{plugin}\" asked update of \"{id}\" during creation"));
            }
            self.own(plugin, id, &change)?;
            if *id == self.subject {
                self.change.overlay(&change);
            } else {
                self.updates.push(update.clone());
            }
        }
        Ok(())
    }

    /// For validators.
    pub(super) fn owning(&self) -> nri::OwningPlugins {
        let mut owners: BTreeMap<String, nri::FieldOwners> = BTreeMap::new();
        for ((container, field), plugin) in &self.owners {
            owners.entry(container.clone()).or_default().simple.insert(*field, plugin.clone());
        }
        nri::OwningPlugins { owners }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(id: &str, cpus: &str) -> nri::ContainerUpdate {
        let change = CpuChange { cpus: cpus.to_owned(), ..CpuChange::default() };
        let linux = Some(nri::LinuxContainerUpdate { resources: Some(change.shown()) });
        nri::ContainerUpdate { container_id: id.to_owned(), linux, ignore_failure: false }
    }

    #[test]
    fn a_field_has_one_owner_in_a_hook_even_within_one_answer() {
        let mut result = HookResult::new("new", true);
        let refusal = result.update("00-a", &[update("x", "0"), update("x", "0")]).unwrap_err();
        assert_eq!(refusal, "plugins \"00-a\" and \"00-a\" both tried to set CPUSetCPUs");
    }

    #[test]
    fn the_container_being_created_may_not_be_updated() {
        let refusal = HookResult::new("new", true).update("00-a", &[update("new", "0")]).unwrap_err();
        assert_eq!(refusal, "plugin \"00-a\" asked update of \"new\" during creation");
        assert!(HookResult::new("old", false).update("00-a", &[update("old", "0")]).is_ok());
    }

    #[test]
    fn updates_that_a_runtime_ignores_are_noticed() {
        let mut result = HookResult::new("new", true);
        result.update("00-a", &[update("", "0"), update("x", "")]).unwrap();
        assert_eq!(result.oddities.len(), 2);
    }
}
