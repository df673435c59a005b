//! Reads the files beside it. Included by path in the tests of the algorithm and of the component, so that
//! the crate of the algorithm depends on no other for it.

use flate2::read::GzDecoder;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

/// A line of `topologies.jsonl.gz`.
#[derive(Deserialize)]
pub(crate) struct Machine {
    pub(crate) id: String,
    /// CPU, core, socket, NUMA node, L3 (-1: none).
    pub(crate) cpus: Vec<(u32, u32, i64, u32, i64)>,
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

/// The lines of a file in the directory of the vectors.
pub(crate) fn lines<T: for<'a> Deserialize<'a>>(directory: &str, file: &str) -> impl Iterator<Item = T> {
    let file = File::open(Path::new(directory).join(file)).unwrap();
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}
