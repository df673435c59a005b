//! What `/readyz` answers: each part of the daemon states whether it serves now, and why not.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A part whose state decides readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Registered with the kubelet now.
    Registration,
    /// Connected to the container runtime and synchronized now.
    Nri,
    /// The node's name is one that the API server knows.
    NodeName,
    /// A strategy is loaded.
    Strategy,
    /// The kubelet's own CPU manager leaves CPUs alone.
    CpuManager,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registration => "registration",
            Self::Nri => "nri",
            Self::NodeName => "node name",
            Self::Strategy => "strategy",
            Self::CpuManager => "kubelet CPU manager",
        })
    }
}

/// The state of all parts. Starts with registration and NRI not ready.
#[derive(Debug)]
pub struct Readiness {
    problems: Mutex<BTreeMap<Part, String>>,
    notes: Mutex<BTreeMap<Part, String>>,
}

impl Default for Readiness {
    fn default() -> Self {
        let problems = [
            (Part::Registration, "the kubelet has not contacted this driver yet"),
            (Part::Nri, "not connected to the container runtime yet"),
        ];
        let problems = problems.map(|(part, why)| (part, why.to_owned())).into();
        Self { problems: Mutex::new(problems), notes: Mutex::default() }
    }
}

impl Readiness {
    /// The part serves.
    pub fn ready(&self, part: Part) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).remove(&part);
    }

    /// The part does not serve, and why: one clause that says what to do if something can be done.
    pub fn not_ready(&self, part: Part, why: impl Into<String>) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).insert(part, why.into());
    }

    /// Whether the part serves or not, this is not as configured; none when all is.
    pub fn note(&self, part: Part, what: Option<String>) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            Some(what) => _ = notes.insert(part, what),
            None => _ = notes.remove(&part),
        }
    }

    /// What is not as configured.
    #[must_use]
    pub fn notes(&self) -> Vec<(Part, String)> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.iter().map(|(part, what)| (*part, what.clone())).collect()
    }

    /// The parts that do not serve, with their reasons; empty when ready.
    #[must_use]
    pub fn problems(&self) -> Vec<(Part, String)> {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.iter().map(|(part, why)| (*part, why.clone())).collect()
    }
}
