//! Reads the files beside it. Included by path in the tests of the algorithm and of the component, so that
//! the crate of the algorithm depends on no other for it.

#[path = "lines.rs"]
mod files;
use files::Row;
pub(crate) use files::lines;

use serde::Deserialize;

/// A line of `topologies.jsonl.gz`.
#[derive(Deserialize)]
pub(crate) struct Machine {
    pub(crate) id: String,
    pub(crate) cpus: Vec<Row>,
}

/// A line of `cases.jsonl.gz`.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) topology: String,
    pub(crate) function: String,
    pub(crate) strategy: String,
    #[serde(default)]
    pub(crate) prefer_l3: bool,
    #[serde(default)]
    pub(crate) group: usize,
    pub(crate) available: String,
    pub(crate) n: usize,
    result: Option<String>,
    error: Option<String>,
    corrected: Option<String>,
    #[serde(default)]
    pub(crate) known_defect: bool,
}

/// The right answer to a case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Cpus(String),
    NotEnough,
}

impl Case {
    /// What is to come out; none where the vectors do not say: the original was too slow.
    pub(crate) fn expected(&self) -> Option<Answer> {
        let result = if self.known_defect { &self.corrected } else { &self.result };
        match (result, self.error.as_deref()) {
            (Some(cpus), _) => Some(Answer::Cpus(cpus.clone())),
            (None, Some("not_enough")) => Some(Answer::NotEnough),
            (None, Some("too_slow")) => None,
            (None, error) => panic!("a case without an answer, error {error:?}"),
        }
    }
}
