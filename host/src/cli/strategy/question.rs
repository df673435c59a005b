//! A question that was read, in the host's terms.

use crate::config::{DeviceMode, GroupBy};
use crate::device::{self, Group};
pub(super) use crate::strategy::question::{Held, Question, Wanted};
use crate::strategy::{Holding, Request, State};
use crate::words::quoted;
use anyhow::{Context as _, bail, ensure};
use dracpu_cpuset::CpuSet;
use dracpu_topology::machine::Machine;
use serde_json::{Map, Value};

/// A question in the host's terms, for one machine.
#[derive(Debug)]
pub(super) struct Asked {
    /// What the strategy is opened with.
    pub(super) groups: Vec<Group>,
    /// Requests and state of the questions that are asked before.
    pub(super) before: Vec<(Vec<Request>, State)>,
    pub(super) requests: Vec<Request>,
    pub(super) state: State,
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
        let mut groups = Groups::new(machine, self.group_by.as_deref())?;
        let mut before = Vec::new();
        for (earlier, number) in self.before.iter().flatten().zip(1..) {
            let own = earlier.topology.is_none()
                && earlier.group_by.is_none()
                && earlier.node_options.is_none()
                && earlier.before.is_none();
            ensure!(
                own,
                "before: question {number} says `topology`, `groupBy`, `nodeOptions` or `before`: all questions have \
                 those of the last one"
            );
            before.push(
                earlier.claim(machine, &mut groups).with_context(|| format!("before: question {number}"))?,
            );
        }
        let (requests, state) = self.claim(machine, &mut groups)?;
        Ok(Asked { groups: groups.opened, before, requests, state })
    }

    /// The requests and the state.
    fn claim(&self, machine: &Machine, groups: &mut Groups) -> anyhow::Result<(Vec<Request>, State)> {
        ensure!(!self.requests.is_empty(), "`requests` is empty: a claim has at least one");
        let free = usable(machine, &self.available).context("available")?;
        let others = self.others.iter().map(|held| holding(machine, held));
        let others = others.collect::<anyhow::Result<Vec<_>>>().context("others")?;
        for holding in &others {
            let both = free.intersection(&holding.cpus.union(&holding.blocked));
            ensure!(both.is_empty(), "others: CPUs {both} are in `available` too; no CPU is held and free");
        }
        let mut requests = Vec::new();
        for wanted in &self.requests {
            let request = self.request(wanted, machine, groups);
            requests.push(request.with_context(|| format!("request {}", quoted(&wanted.name)))?);
        }
        Ok((requests, State { free, others }))
    }

    fn request(&self, wanted: &Wanted, machine: &Machine, groups: &mut Groups) -> anyhow::Result<Request> {
        let at = groups.position(machine, wanted.group.as_deref()).context("group")?;
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
            options: merged(&self.options, &wanted.options),
            pcie_roots: wanted.pcie_roots.iter().map(root).collect::<anyhow::Result<_>>()?,
        })
    }
}

/// Options with others over them.
fn merged(under: &Map<String, Value>, over: &Map<String, Value>) -> Map<String, Value> {
    let mut options = under.clone();
    options.extend(over.clone());
    options
}

/// What a strategy is opened with: the devices of a grouping, or what the requests name.
struct Groups {
    by: Option<GroupBy>,
    opened: Vec<Group>,
}

impl Groups {
    fn new(machine: &Machine, by: Option<&str>) -> anyhow::Result<Self> {
        let Some(name) = by else { return Ok(Self { by: None, opened: Vec::new() }) };
        let by = GroupBy::ALL.into_iter().find(|by| by.name() == name).with_context(|| {
            let known = GroupBy::ALL.map(GroupBy::name).join(", ");
            format!("groupBy `{}` is none of {known}", quoted(name))
        })?;
        let opened = device::groups(&machine.topology, DeviceMode::Grouped(by), &machine.reserved);
        Ok(Self { by: Some(by), opened })
    }

    /// The position of the group that a request names.
    fn position(&mut self, machine: &Machine, what: Option<&str>) -> anyhow::Result<usize> {
        if let Some(by) = self.by {
            let name = what.context("it is missing: with `groupBy` each request names one of the devices")?;
            let at = self.opened.iter().position(|group| group.device == name);
            return at.with_context(|| {
                format!("`{}` is no device of the machine {} by {}", quoted(name), machine.name, by.name())
            });
        }
        let group = group(machine, what)?;
        Ok(self.opened.iter().position(|other| *other == group).unwrap_or_else(|| {
            self.opened.push(group);
            self.opened.len() - 1
        }))
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
