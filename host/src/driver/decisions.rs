//! The last decisions, for people: what was asked for a claim and of whom, what came back, and why a claim was
//! refused. One for each claim, in memory only, so many and so much; a decision can be asked for again.

use super::claim::{ClaimRef, PodRef};
use super::core::Driver;
use super::decide::{StrategyInfo, Undecided};
use super::error::PrepareError;
use super::locks::lock;
use crate::device::Group;
use crate::strategy::{Decision, Grant, Request, State};
use crate::words::chain;
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// So many claims are remembered.
const MOST: usize = 64;
/// So many bytes of questions and answers, by and large; the last one whatever it takes.
const MOST_BYTES: usize = 1 << 20;

/// What became of a claim that was to be prepared.
#[derive(Debug, Clone)]
pub struct PastDecision {
    /// Whose.
    pub claim: ClaimRef,
    /// The pods that it was reserved for; none where its object could not be read.
    pub pods: Vec<PodRef>,
    /// When.
    pub at: SystemTime,
    /// What the strategy was asked; none when it did not come to that, or the scheduler had chosen the CPUs.
    pub question: Option<Arc<PastQuestion>>,
    /// What it decided; none when it refused.
    pub decision: Option<Decision>,
    /// Why the claim was not prepared, and what to do; none when it was.
    pub refusal: Option<String>,
    /// It has been unprepared since: nobody asks for it any more.
    pub over: bool,
}

/// What a strategy was asked, with what it had been opened with.
#[derive(Debug)]
pub struct PastQuestion {
    /// Who was asked.
    pub strategy: StrategyInfo,
    /// The node's options.
    pub options: Map<String, Value>,
    /// The machine.
    pub topology: Arc<Topology>,
    /// CPUs that are never given out.
    pub reserved: CpuSet,
    /// The groups that requests point at.
    pub groups: Arc<Vec<Group>>,
    /// What the claim asked for.
    pub requests: Vec<Request>,
    /// What was given out.
    pub state: State,
}

/// A question asked again.
#[derive(Debug)]
pub struct Replay {
    /// Who answered: the strategy that has the name by now.
    pub strategy: StrategyInfo,
    /// What it said.
    pub answer: Result<Decision, Undecided>,
}

/// Why a decision cannot be asked for again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It is not in memory.
    #[error(
        "the daemon remembers no question for this claim: it was asked before the daemon's start, or long ago"
    )]
    Forgotten,
    /// The strategy is not there any more.
    #[error("{0}")]
    NoStrategy(String),
}

/// The decisions, oldest first.
#[derive(Default)]
pub(super) struct Decisions(Mutex<VecDeque<PastDecision>>);

impl Decisions {
    /// A strategy has been asked.
    pub(super) fn asked(
        &self,
        claim: &ClaimRef,
        pods: Vec<PodRef>,
        question: PastQuestion,
        decision: Option<&Decision>,
    ) {
        let mut past = lock(&self.0);
        past.retain(|other| other.claim.uid != claim.uid);
        past.push_back(PastDecision {
            claim: claim.clone(),
            pods,
            at: SystemTime::now(),
            question: Some(Arc::new(question)),
            decision: decision.cloned(),
            refusal: None,
            over: false,
        });
        bound(&mut past);
    }

    /// A claim has been prepared.
    pub(super) fn prepared(&self, uid: &str) {
        if let Some(known) = lock(&self.0).iter_mut().find(|known| known.claim.uid == uid) {
            (known.refusal, known.over) = (None, false);
        }
    }

    /// A claim has been refused. What its strategy was asked belongs to that when it came first.
    pub(super) fn refused(&self, claim: &ClaimRef, mut pods: Vec<PodRef>, error: &PrepareError) {
        // The kubelet has taken the call back.
        if matches!(error, PrepareError::Overtaken) {
            return;
        }
        let mut past = lock(&self.0);
        let before =
            past.iter().position(|known| known.claim.uid == claim.uid).and_then(|at| past.remove(at));
        if let (true, Some(before)) = (pods.is_empty(), &before) {
            pods.clone_from(&before.pods);
        }
        let (question, decision) = match before {
            Some(before) if error.follows_question() => (before.question, before.decision),
            _ => (None, None),
        };
        let refusal = Some(chain(error));
        past.push_back(PastDecision {
            claim: claim.clone(),
            pods,
            at: SystemTime::now(),
            question,
            decision,
            refusal,
            over: false,
        });
        bound(&mut past);
    }

    /// A claim has been unprepared.
    pub(super) fn over(&self, uid: &str) {
        if let Some(known) = lock(&self.0).iter_mut().find(|known| known.claim.uid == uid) {
            known.over = true;
        }
    }

    fn of(&self, uid: &str) -> Option<PastDecision> {
        lock(&self.0).iter().find(|known| known.claim.uid == uid).cloned()
    }
}

fn bound(past: &mut VecDeque<PastDecision>) {
    let mut bytes: usize = past.iter().map(size).sum();
    while past.len() > MOST || (bytes > MOST_BYTES && past.len() > 1) {
        bytes -= past.pop_front().as_ref().map_or(0, size);
    }
}

/// About how much memory a decision takes; the machine and its groups are shared.
fn size(past: &PastDecision) -> usize {
    let set = |cpus: &CpuSet| size_of::<CpuSet>() + size_of_val(cpus.words());
    // Options come from the API server, which bounds them; as text they are about as large as in memory.
    let options = |options: &Map<String, Value>| match options.is_empty() {
        true => 0,
        false => serde_json::to_string(options).map_or(0, |text| 2 * text.len()),
    };
    let request = |request: &Request| {
        size_of::<Request>()
            + request.name.len()
            + request.cpuset.as_ref().map_or(0, set)
            + options(&request.options)
    };
    let question = past.question.as_ref().map_or(0, |question| {
        let others: usize =
            question.state.others.iter().map(|other| set(&other.cpus) + set(&other.blocked)).sum();
        let requests: usize = question.requests.iter().map(request).sum();
        size_of::<PastQuestion>() + others + requests + set(&question.state.free) + options(&question.options)
    });
    let grant = |grant: &Grant| set(&grant.cpus) + set(&grant.blocked) + size_of_val(&*grant.mems);
    let decision = past
        .decision
        .as_ref()
        .map_or(0, |decision| decision.why.len() + decision.grants.iter().map(grant).sum::<usize>());
    let ClaimRef { uid, namespace, name } = &past.claim;
    let text = uid.len() + namespace.len() + name.len() + past.refusal.as_ref().map_or(0, String::len);
    let pods: usize = past.pods.iter().map(|pod| size_of::<PodRef>() + pod.uid.len() + pod.name.len()).sum();
    size_of::<PastDecision>() + question + decision + text + pods
}

impl Driver {
    /// What is remembered of claims that were to be prepared, the latest last.
    #[must_use]
    pub fn past_decisions(&self) -> Vec<PastDecision> {
        lock(&self.decisions.0).iter().cloned().collect()
    }

    /// Asks the question of a claim again, of a fresh instance of the strategy that has the name by now, on the machine as
    /// it was. Changes nothing, and no claim waits for it. Blocking: for as long as a strategy takes, and the lock that it
    /// is looked up under may be held as long.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn replay(&self, uid: &str) -> Result<Replay, ReplayError> {
        let question = self.decisions.of(uid).and_then(|past| past.question).ok_or(ReplayError::Forgotten)?;
        let PastQuestion { strategy, options, topology, reserved, groups, requests, state } = &*question;
        let source = self.allocation().source(&strategy.name);
        let gone =
            || ReplayError::NoStrategy(format!("strategy {} is not used here any more", strategy.name));
        let source = source.ok_or_else(gone)?;
        let opened = source.open(&strategy.name, topology, reserved, groups, options);
        let mut opened = opened.map_err(ReplayError::NoStrategy)?;
        Ok(Replay { strategy: opened.info(), answer: opened.decide(requests, state) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Holding;

    fn claim(uid: &str) -> ClaimRef {
        ClaimRef { uid: uid.to_owned(), namespace: "ns".to_owned(), name: uid.to_owned() }
    }

    fn question(others: usize) -> PastQuestion {
        let wide: CpuSet = (0..8192).collect();
        PastQuestion {
            strategy: StrategyInfo {
                name: "s".to_owned(),
                version: "1.0.0".to_owned(),
                digest: "sha256:00".to_owned(),
                publishes: Vec::new(),
            },
            options: Map::new(),
            topology: Arc::default(),
            reserved: CpuSet::new(),
            groups: Arc::default(),
            requests: Vec::new(),
            state: State {
                free: CpuSet::new(),
                others: vec![Holding { cpus: wide, blocked: CpuSet::new() }; others],
            },
        }
    }

    fn uids(decisions: &Decisions) -> Vec<String> {
        lock(&decisions.0).iter().map(|past| past.claim.uid.clone()).collect()
    }

    #[test]
    fn the_last_claims_are_remembered_each_once_and_no_more_than_fit() {
        let decisions = Decisions::default();
        for n in 0..=MOST {
            decisions.asked(&claim(&n.to_string()), Vec::new(), question(0), None);
        }
        decisions.refused(&claim("5"), Vec::new(), &PrepareError::NotAllocated);
        let known = uids(&decisions);
        assert_eq!(known.len(), MOST);
        assert!(!known.contains(&"0".to_owned()) && known.last() == Some(&"5".to_owned()), "{known:?}");

        // A thousand claims on a machine with 8192 CPUs are a megabyte of sets.
        for uid in ["a", "b", "c"] {
            decisions.asked(&claim(uid), Vec::new(), question(600), None);
        }
        assert_eq!(uids(&decisions), ["c"], "one of them fits, and then nothing else does");
        decisions.asked(&claim("small"), Vec::new(), question(0), None);
        assert_eq!(uids(&decisions), ["c", "small"]);
        decisions.asked(&claim("huge"), Vec::new(), question(6000), None);
        assert_eq!(uids(&decisions), ["huge"], "the last one is always there");
    }

    #[test]
    fn a_refusal_keeps_the_question_that_led_to_it_and_no_older_one() {
        let decisions = Decisions::default();
        decisions.asked(&claim("a"), Vec::new(), question(0), None);
        let undecided = Undecided {
            strategy: "s".to_owned(),
            kind: "denied",
            for_lack_of_cpus: true,
            message: "no room".to_owned(),
        };
        decisions.refused(
            &claim("a"),
            Vec::new(),
            &PrepareError::Undecided { asked: Vec::new(), undecided, held: Vec::new() },
        );
        let past = decisions.of("a").unwrap();
        assert_eq!((past.question.is_some(), past.refusal.as_deref()), (true, Some("no room")));
        decisions.refused(&claim("a"), Vec::new(), &PrepareError::Overtaken);
        assert_eq!(
            decisions.of("a").unwrap().refusal.as_deref(),
            Some("no room"),
            "that is no answer to anybody"
        );
        decisions.refused(&claim("a"), Vec::new(), &PrepareError::NotAllocated);
        assert!(decisions.of("a").unwrap().question.is_none(), "it did not come to a question");
        decisions.prepared("a");
        assert_eq!(decisions.of("a").unwrap().refusal, None);
    }
}
