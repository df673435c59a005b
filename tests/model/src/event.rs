//! What can happen to a node, in the words of `dracpu simulate`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the command line's documentation describes them")]
pub enum Event {
    Prepare(Prepare),
    Unprepare {
        claim: String,
    },
    Delete {
        claim: String,
    },
    Release {
        claim: String,
    },
    Create(NewContainer),
    Update {
        container: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpuset: Option<String>,
    },
    Start {
        container: String,
    },
    Stop {
        container: String,
    },
    Remove {
        container: String,
    },
    Sync {
        containers: Vec<Synced>,
    },
    Offline {
        cpus: String,
    },
    Online {
        cpus: String,
    },
    Crash {},
    Reboot {
        /// What stands in the CDI directory outlasts it, which is not so on `simulate`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        records: bool,
    },
    Config {
        set: Map<String, Value>,
    },
    Reload {
        set: Map<String, Value>,
    },
    State {},
    Fail {
        what: What,
        on: bool,
    },
    Spec {
        claim: String,
        how: Damage,
    },
    Runtime {
        nri: String,
    },
    /// Not of `simulate`, which has no kubelet: it starts anew.
    Kubelet {},
    /// Not of `simulate`: the clocks of the driver's process jump, that of the day by so many seconds either way, the
    /// one that only goes forward by so many.
    Clock {
        day: i64,
        forward: u64,
    },
}

/// A call for one claim, or for several.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// The only claim.
    #[serde(flatten)]
    pub one: Option<NewClaim>,
    /// The claims of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims: Option<Vec<NewClaim>>,
    /// Each in a call of its own, all at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel: bool,
}

impl Prepare {
    /// The claims, however they are called for.
    pub fn all(&self) -> impl Iterator<Item = &NewClaim> {
        self.one.iter().chain(self.claims.iter().flatten())
    }
}

/// A claim as its object says it; without requests it is as it was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NewClaim {
    /// Its UID.
    pub claim: String,
    /// Allocation results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<Request>>,
    /// Opaque parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Vec<Opaque>>,
}

/// An allocation result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The request's name.
    pub name: String,
    /// The device.
    pub device: String,
    /// The consumed capacity, as the API carries it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Opaque parameter of the claim for this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<String>,
    /// Another driver than ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Another pool than ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

/// Opaque parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Opaque {
    /// `FromClass` or `FromClaim`.
    pub source: String,
    /// Whom they are for; none = all.
    #[serde(default)]
    pub requests: Vec<String>,
    /// What they say.
    pub cpu_config: Value,
}

/// A container that is to be made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NewContainer {
    /// Its name.
    pub container: String,
    /// Its pod.
    pub pod: String,
    /// Claims that it is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// Variables of the pod's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

/// A container that the runtime shows when it connects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Synced {
    /// As the runtime last had it.
    Named(String),
    /// One that the driver has not seen being made.
    Described(Described),
}

/// A container that was made while no driver looked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// What it is.
    #[serde(flatten)]
    pub container: NewContainer,
    /// Its mask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<String>,
}

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the command line's documentation describes them")]
pub enum What {
    CdiWrite,
    CdiRemove,
    Api,
}

/// What can become of a spec file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the command line's documentation describes them")]
pub enum Damage {
    Truncate,
    Garble,
    Newer,
    Remove,
}
