//! A question as a line of JSON: what `strategy decide` reads, `strategy check` writes, and a daemon tells of the
//! decisions that it remembers.

use super::{Holding, Request, State};
use crate::device::Group;
use dracpu_topology::Topology;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A question as it stands in a line. Sets are CPU lists.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Question {
    /// Comes back in the answer as it is.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) id: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) topology: Option<String>,
    /// The strategy is opened with every device of this grouping, and requests name one of them. Left out:
    /// with the groups that the requests name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group_by: Option<String>,
    /// In place of `--options`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_options: Option<Map<String, Value>>,
    pub(crate) available: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) options: Map<String, Value>,
    pub(crate) requests: Vec<Wanted>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<Held>,
    /// Asked first, of an instance that is fresh then and gets no second chance; only the answer to the last
    /// question counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<Vec<Question>>,
    /// What `strategy check` found; for people.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) violation: Value,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpuset: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pcie_roots: Vec<String>,
    /// Over those of the question.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) options: Map<String, Value>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Held {
    #[serde(default)]
    pub(crate) cpus: String,
    #[serde(default)]
    pub(crate) blocked: String,
}

impl Question {
    /// A question that a node has asked, for the machine and the groups that it was asked about.
    pub(crate) fn of(
        topology: &Topology,
        groups: &[Group],
        node_options: &Map<String, Value>,
        requests: &[Request],
        state: &State,
    ) -> Self {
        let root = |at: &usize| topology.pcie_roots.get(*at).map(|root| root.name.clone());
        let wanted = |request: &Request| Wanted {
            name: request.name.clone(),
            count: request.count,
            group: groups.get(request.group).map(|group| group.device.clone()),
            cpuset: request.cpuset.as_ref().map(ToString::to_string),
            pcie_roots: request.pcie_roots.iter().filter_map(root).collect(),
            options: request.options.clone(),
        };
        let held = |held: &Holding| Held { cpus: held.cpus.to_string(), blocked: held.blocked.to_string() };
        Self {
            group_by: groups.first().map(|group| group.kind.to_owned()),
            node_options: Some(node_options.clone()),
            available: state.free.to_string(),
            requests: requests.iter().map(wanted).collect(),
            others: state.others.iter().map(held).collect(),
            ..Self::default()
        }
    }
}
