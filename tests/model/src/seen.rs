//! What can be seen of a node from outside after an event.

use anyhow::{Context as _, Result};
use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The answer to one call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// None: it was done. Else why not.
    pub refused: Option<String>,
    /// CPUs that a claim or a container was given.
    pub cpus: Option<CpuSet>,
    /// CPUs that nobody may use while the claim lives.
    pub blocked: CpuSet,
    /// Masks that containers were given, by name.
    pub updates: BTreeMap<String, CpuSet>,
    /// The answers of a batch, by claim.
    pub results: Option<BTreeMap<String, Answer>>,
}

/// What the driver says that it holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Books {
    /// The CPUs of containers without a claim.
    pub shared: CpuSet,
    /// The CPUs of each claim.
    pub claims: BTreeMap<String, CpuSet>,
    /// Claims with offline CPUs.
    pub unhealthy: BTreeSet<String>,
    /// Claims with CPUs that have become reserved.
    pub stranded: BTreeSet<String>,
    /// Claims that nobody will unprepare.
    pub orphans: BTreeSet<String>,
    /// Claims whose records overlap.
    pub conflicted: BTreeSet<String>,
}

/// All that can be seen after an event.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The event's answer.
    pub answer: Answer,
    /// Masks given since the answer.
    pub later: BTreeMap<String, CpuSet>,
    /// Where containers run, by name, when the runtime can be asked; else it follows from the answers.
    pub masks: Option<BTreeMap<String, CpuSet>>,
    /// The driver's own word, where it can be asked for it.
    pub books: Option<Books>,
    /// Published capacity by device.
    pub capacity: BTreeMap<String, u64>,
    /// Files of the CDI directory, but for those that mount device metadata.
    pub files: BTreeMap<String, String>,
}

impl Answer {
    /// Reads an answer of `dracpu simulate`.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(answer: &Value) -> Result<Self> {
        let results = answer.get("results").and_then(Value::as_object).map(|results| {
            results.iter().map(|(uid, answer)| Ok((uid.clone(), Self::read(answer)?))).collect::<Result<_>>()
        });
        let refused = match answer.get("ok").and_then(Value::as_bool) {
            Some(true) => None,
            Some(false) => Some(answer["error"].as_str().context("a refusal without `error`")?.to_owned()),
            None if results.is_some() => None,
            None => anyhow::bail!("an answer without `ok`: {answer}"),
        };
        Ok(Self {
            refused,
            cpus: answer.get("cpus").map(cpus).transpose()?,
            blocked: answer.get("blocked").map(cpus).transpose()?.unwrap_or_default(),
            updates: answer
                .get("updates")
                .and_then(Value::as_object)
                .map(sets)
                .transpose()?
                .unwrap_or_default(),
            results: results.transpose()?,
        })
    }

    /// Whether it was done.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.refused.is_none()
    }
}

impl Books {
    /// Reads them from an answer of `dracpu simulate`.
    ///
    /// # Errors
    /// When they are not there.
    pub fn read(answer: &Value) -> Result<Self> {
        let list = |key: &str| -> BTreeSet<String> {
            let list = answer[key].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Ok(Self {
            shared: cpus(&answer["shared"])?,
            claims: sets(answer["claims"].as_object().context("no `claims`")?)?,
            unhealthy: list("unhealthy"),
            stranded: list("stranded"),
            orphans: list("orphans"),
            conflicted: list("conflicted"),
        })
    }
}

fn cpus(value: &Value) -> Result<CpuSet> {
    let text = value.as_str().with_context(|| format!("{value} is not a CPU list"))?;
    text.parse().with_context(|| format!("`{text}` is not a CPU list"))
}

fn sets(map: &Map<String, Value>) -> Result<BTreeMap<String, CpuSet>> {
    map.iter().map(|(key, value)| Ok((key.clone(), cpus(value)?))).collect()
}
