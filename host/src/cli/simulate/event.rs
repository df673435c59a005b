//! One event of a story.

use crate::driver::{AllocationResult, ConfigSource, OpaqueConfig};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Event {
    Prepare {
        claim: Option<String>,
        name: Option<String>,
        requests: Option<Vec<Request>>,
        config: Option<Vec<Opaque>>,
        claims: Option<Vec<NewClaim>>,
        #[serde(default)]
        parallel: bool,
    },
    Unprepare {
        claim: String,
    },
    /// The claim object is gone from the API.
    Delete {
        claim: String,
    },
    /// An operator frees an orphan.
    Release {
        claim: String,
    },
    Create(NewContainer),
    Update {
        container: String,
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
    Reboot {},
    Config {
        set: Map<String, Value>,
    },
    /// What a changed configuration says of strategies is taken over without a restart; the rest waits for one.
    Reload {
        set: Map<String, Value>,
    },
    State {},
    Fail {
        what: What,
        on: bool,
    },
    /// Something damages or removes a claim's CDI spec.
    Spec {
        claim: String,
        how: Damage,
    },
    Runtime {
        nri: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewClaim {
    pub(super) claim: String,
    pub(super) name: Option<String>,
    pub(super) requests: Option<Vec<Request>>,
    pub(super) config: Option<Vec<Opaque>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Request {
    name: String,
    device: String,
    /// The consumed capacity as the API carries it.
    cpus: Option<String>,
    /// Short for a FromClaim entry of this request.
    cpuset: Option<String>,
    driver: Option<String>,
    pool: Option<String>,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
    #[serde(default)]
    admin_access: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Opaque {
    source: Source,
    #[serde(default)]
    requests: Vec<String>,
    cpu_config: Value,
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum Source {
    FromClass,
    FromClaim,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewContainer {
    pub(super) container: String,
    pub(super) pod: String,
    #[serde(default)]
    pub(super) claims: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Synced {
    /// As the runtime last had it.
    Named(String),
    Described(Described),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Described {
    pub(super) container: String,
    pub(super) pod: String,
    #[serde(default)]
    pub(super) claims: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<String>,
    pub(super) cpuset: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    CdiWrite,
    CdiRemove,
    Api,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Damage {
    Truncate,
    Garble,
    Newer,
    Remove,
}

impl Request {
    /// The allocation result, and the opaque parameters that the short form stands for.
    pub(super) fn split(self, pool: &str) -> (AllocationResult, Option<OpaqueConfig>) {
        let config = self.cpuset.map(|cpuset| OpaqueConfig {
            source: ConfigSource::Claim,
            requests: vec![self.name.clone()],
            parameters: parameters(&json!({ "cpuset": cpuset })),
        });
        let result = AllocationResult {
            request: self.name,
            driver: self.driver.unwrap_or_else(|| crate::DRIVER_NAME.to_owned()),
            pool: self.pool.unwrap_or_else(|| pool.to_owned()),
            device: self.device,
            share_id: self.share_id,
            admin_access: self.admin_access,
            consumed_cpus: self.cpus,
        };
        (result, config)
    }
}

impl From<Opaque> for OpaqueConfig {
    fn from(opaque: Opaque) -> Self {
        let source = match opaque.source {
            Source::FromClass => ConfigSource::Class,
            Source::FromClaim => ConfigSource::Claim,
        };
        Self { source, requests: opaque.requests, parameters: parameters(&opaque.cpu_config) }
    }
}

fn parameters(cpu_config: &Value) -> Value {
    json!({ "apiVersion": "v1alpha1", "cpuConfig": cpu_config })
}
