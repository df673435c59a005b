use super::Asked;
use crate::config::{DeviceMode, GroupBy};
use crate::device::{self, Group};
use crate::strategy::{Holding, Request, State};
use crate::words::quoted;
use anyhow::{Context as _, bail, ensure};
use dracpu_cpuset::CpuSet;
use dracpu_topology::machine::Machine;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A question as it stands in a line. Sets are CPU lists.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Question {
    /// Comes back in the answer as it is.
    #[serde(default)]
    pub(super) id: Value,
    pub(super) topology: Option<String>,
    available: String,
    #[serde(default)]
    options: Map<String, Value>,
    pub(super) requests: Vec<Wanted>,
    #[serde(default)]
    others: Vec<Held>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Wanted {
    pub(super) name: String,
    count: u32,
    group: Option<String>,
    cpuset: Option<String>,
    #[serde(default)]
    pcie_roots: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Held {
    #[serde(default)]
    cpus: String,
    #[serde(default)]
    blocked: String,
}

/// The id of a line that is no question, as far as it is JSON.
pub(super) fn id_of(line: &[u8]) -> Value {
    let line: Value = serde_json::from_slice(line).unwrap_or_default();
    line.get("id").cloned().unwrap_or_default()
}

impl Question {
    /// The question in the host's terms. What it says must fit the machine: a wrong answer to a question
    /// that was silently changed would mislead.
    pub(super) fn asked(&self, machine: &Machine) -> anyhow::Result<Asked> {
        ensure!(!self.requests.is_empty(), "`requests` is empty: a claim has at least one");
        let free = usable(machine, &self.available).context("available")?;
        let others = self.others.iter().map(|held| holding(machine, held));
        let others = others.collect::<anyhow::Result<Vec<_>>>().context("others")?;
        for holding in &others {
            let both = free.intersection(&holding.cpus.union(&holding.blocked));
            ensure!(both.is_empty(), "others: CPUs {both} are in `available` too; no CPU is held and free");
        }
        let mut groups = Vec::new();
        let mut requests = Vec::new();
        for wanted in &self.requests {
            let request = self.request(wanted, machine, &mut groups);
            requests.push(request.with_context(|| format!("request {}", quoted(&wanted.name)))?);
        }
        Ok(Asked { groups, requests, state: State { free, others } })
    }

    fn request(
        &self,
        wanted: &Wanted,
        machine: &Machine,
        groups: &mut Vec<Group>,
    ) -> anyhow::Result<Request> {
        let group = group(machine, wanted.group.as_deref()).context("group")?;
        let at = groups.iter().position(|other| *other == group).unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        });
        let cpuset = wanted.cpuset.as_deref().map(str::parse).transpose().context("cpuset")?;
        let roots = &machine.topology.pcie_roots;
        let root = |name: &String| {
            let at = roots.iter().position(|root| root.name == *name);
            at.with_context(|| format!("pcieRoots: the machine has no root `{}`", quoted(name)))
        };
        Ok(Request {
            name: wanted.name.clone(),
            group: at,
            count: wanted.count,
            cpuset,
            options: self.options.clone(),
            pcie_roots: wanted.pcie_roots.iter().map(root).collect::<anyhow::Result<_>>()?,
        })
    }
}

/// What another claim holds: CPUs that the machine has. They may be offline or reserved since.
fn holding(machine: &Machine, held: &Held) -> anyhow::Result<Holding> {
    let held = Holding { cpus: held.cpus.parse()?, blocked: held.blocked.parse()? };
    let there = machine.topology.online().union(&machine.topology.offline);
    let nowhere = held.cpus.union(&held.blocked).difference(&there);
    ensure!(nowhere.is_empty(), "CPUs {nowhere} are not there on the machine {}", machine.name);
    Ok(held)
}

/// A list of CPUs that are online and not reserved.
fn usable(machine: &Machine, list: &str) -> anyhow::Result<CpuSet> {
    let cpus: CpuSet = list.parse()?;
    let offline = cpus.difference(&machine.topology.online());
    ensure!(offline.is_empty(), "CPUs {offline} are not online on the machine {}", machine.name);
    let reserved = cpus.intersection(&machine.reserved);
    ensure!(reserved.is_empty(), "CPUs {reserved} are reserved on the machine {}", machine.name);
    Ok(cpus)
}

/// A group by list or by device name; every CPU that can be given out when it is left out.
fn group(machine: &Machine, what: Option<&str>) -> anyhow::Result<Group> {
    let mut devices = GroupBy::ALL
        .into_iter()
        .flat_map(|by| device::groups(&machine.topology, DeviceMode::Grouped(by), &machine.reserved));
    match what {
        None => Ok(listed(machine.topology.online().difference(&machine.reserved))),
        Some(blank) if blank.trim().is_empty() => {
            bail!("it is empty: name CPUs or a device, or leave `group` out for every CPU")
        }
        Some(list) if !list.starts_with(|first: char| first.is_ascii_alphabetic()) => {
            usable(machine, list).map(listed)
        }
        Some(name) => devices.find(|group| group.device == name).with_context(|| {
            format!("`{}` is neither a CPU list nor a device of the machine {}", quoted(name), machine.name)
        }),
    }
}

fn listed(cpus: CpuSet) -> Group {
    Group { device: cpus.to_string(), kind: "list", cpus }
}
