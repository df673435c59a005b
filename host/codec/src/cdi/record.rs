use crate::words::quoted;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, Part, StrategyId};
use serde::{Deserialize, Serialize};

/// The annotation that holds the record.
pub(crate) const ANNOTATION: &str = "dra.cpu/record";

/// Raised when an older driver must not read the record as if it understood it.
const VERSION: u64 = 1;

/// What is written down of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The boot in which the CPUs were given out (`/proc/sys/kernel/random/boot_id`): containers do not
    /// outlive it.
    pub boot_id: String,
    /// Fingerprint of the machine at that time.
    pub topology_hash: String,
    /// The CPUs and whose they are.
    pub booking: Booking,
}

/// Why a record is not believed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordFault {
    #[error("its record is damaged")]
    Damaged(#[source] serde_json::Error),
    #[error("its record names CPUs `{}`, which is not a CPU list", quoted(.0))]
    NotCpus(String),
    #[error("its record has version {0}, this driver knows {VERSION}")]
    Newer(u64),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Json {
    v: u64,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_claim_name: Option<String>,
    #[serde(rename = "bootID")]
    boot_id: String,
    topology_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<JsonStrategy>,
    join_shared_pool: bool,
    results: Vec<JsonResult>,
}

#[derive(Serialize, Deserialize)]
struct JsonStrategy {
    name: String,
    digest: String,
}

#[derive(Serialize, Deserialize)]
struct JsonResult {
    request: String,
    pool: String,
    device: String,
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    share_id: Option<String>,
    cpus: String,
    blocked: String,
    mems: Vec<u32>,
}

#[derive(Deserialize)]
struct Version {
    v: u64,
}

impl Record {
    /// The record as it stands in the annotation.
    pub(crate) fn to_json(&self) -> String {
        let Booking { namespace, name, pod_claim_name, strategy, joins_shared_pool, parts } =
            self.booking.clone();
        let json = Json {
            v: VERSION,
            namespace,
            name,
            pod_claim_name,
            boot_id: self.boot_id.clone(),
            topology_hash: self.topology_hash.clone(),
            strategy: strategy.map(|StrategyId { name, digest }| JsonStrategy { name, digest }),
            join_shared_pool: joins_shared_pool,
            results: parts.into_iter().map(JsonResult::from).collect(),
        };
        serde_json::to_string(&json).expect("strings, numbers and lists always serialize")
    }

    pub(crate) fn from_json(text: &str) -> Result<Self, RecordFault> {
        let Version { v } = serde_json::from_str(text).map_err(RecordFault::Damaged)?;
        if v > VERSION {
            return Err(RecordFault::Newer(v));
        }
        let json: Json = serde_json::from_str(text).map_err(RecordFault::Damaged)?;
        let parts: Result<Vec<Part>, RecordFault> = json.results.into_iter().map(Part::try_from).collect();
        let booking = Booking {
            namespace: json.namespace,
            name: json.name,
            pod_claim_name: json.pod_claim_name,
            strategy: json.strategy.map(|JsonStrategy { name, digest }| StrategyId { name, digest }),
            joins_shared_pool: json.join_shared_pool,
            parts: parts?,
        };
        Ok(Self { boot_id: json.boot_id, topology_hash: json.topology_hash, booking })
    }
}

impl From<Part> for JsonResult {
    fn from(part: Part) -> Self {
        let Part { request, pool, device, share_id, cpus, blocked, mems } = part;
        Self { request, pool, device, share_id, cpus: cpus.to_string(), blocked: blocked.to_string(), mems }
    }
}

impl TryFrom<JsonResult> for Part {
    type Error = RecordFault;

    fn try_from(json: JsonResult) -> Result<Self, RecordFault> {
        let JsonResult { request, pool, device, share_id, cpus, blocked, mems } = json;
        let list = |text: String| text.parse::<CpuSet>().map_err(|_| RecordFault::NotCpus(text));
        Ok(Self { request, pool, device, share_id, cpus: list(cpus)?, blocked: list(blocked)?, mems })
    }
}
