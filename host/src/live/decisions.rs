//! The decisions that the daemon remembers, as it tells them.

use super::list;
use super::report::{PodReport, StrategyIdentity};
use crate::driver::{PastDecision, PastQuestion, Replay, StrategyInfo};
use crate::strategy::question::Question;
use crate::strategy::{Decision, Request};
use dracpu_cpuset::CpuSet;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// [`DecisionsReport::schema`].
pub const DECISIONS_SCHEMA: &str = "dracpu.decisions/v1";

/// What a daemon remembers of claims that were to be prepared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionsReport {
    /// [`DECISIONS_SCHEMA`].
    pub schema: String,
    /// One for each claim, the latest last.
    pub decisions: Vec<DecisionReport>,
}

/// What became of a claim that was to be prepared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionReport {
    /// The claim's UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The pods that it was reserved for; none where its object could not be read.
    #[serde(default)]
    pub pods: Vec<PodReport>,
    /// When, as in RFC 3339.
    pub at: String,
    /// Why it was refused, and what to do; none when it was prepared.
    pub refusal: Option<String>,
    /// It has been unprepared since: nobody asks for it any more.
    #[serde(default)]
    pub over: bool,
    /// Who was asked; none when it did not come to that, or the scheduler had chosen the CPUs.
    pub strategy: Option<StrategyIdentity>,
    /// What it asked for; empty when nobody was asked.
    pub requests: Vec<RequestReport>,
    /// The question, as `strategy decide` takes it.
    pub question: Option<Value>,
    /// The answer; none when the strategy refused.
    pub answer: Option<AnswerReport>,
}

/// A request of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestReport {
    /// Its name, with subrequest.
    pub name: String,
    /// The device that the scheduler has chosen.
    pub device: String,
    /// CPUs asked for.
    pub count: u32,
    /// The CPUs that the claim names.
    #[serde(with = "list::optional")]
    pub cpuset: Option<CpuSet>,
    /// The CPUs of the device.
    #[serde(with = "list")]
    pub group: CpuSet,
    /// Those that were free.
    #[serde(with = "list")]
    pub free: CpuSet,
}

/// A strategy's decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerReport {
    /// One for each request, in order.
    pub grants: Vec<GrantReport>,
    /// The container also runs on the shared pool.
    pub joins_shared_pool: bool,
    /// The strategy's own sentence.
    pub why: String,
}

/// What a request got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantReport {
    /// Its CPUs.
    #[serde(with = "list")]
    pub cpus: CpuSet,
    /// CPUs that nobody may use while the claim lives.
    #[serde(with = "list")]
    pub blocked: CpuSet,
    /// NUMA nodes of its memory; empty = any.
    pub mems: Vec<u32>,
}

/// A question that was asked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayReport {
    /// Who answered: the strategy that has the name by now.
    pub strategy: StrategyIdentity,
    /// Its answer; none when it refused.
    pub answer: Option<AnswerReport>,
    /// Why it refused.
    pub refusal: Option<String>,
}

pub(super) fn decisions(past: Vec<PastDecision>) -> DecisionsReport {
    let decisions = past.into_iter().map(decision).collect();
    DecisionsReport { schema: DECISIONS_SCHEMA.to_owned(), decisions }
}

fn decision(past: PastDecision) -> DecisionReport {
    let PastDecision { claim, pods, at, question, decision, refusal, over } = past;
    let pods = pods.into_iter();
    let pods = pods.map(|pod| PodReport { namespace: claim.namespace.clone(), name: pod.name, uid: pod.uid });
    DecisionReport {
        pods: pods.collect(),
        question: question.as_deref().map(|question| line(question, &claim.uid)),
        uid: claim.uid,
        namespace: claim.namespace,
        name: claim.name,
        at: Timestamp::try_from(at).map(|at| format!("{at:.0}")).unwrap_or_default(),
        refusal,
        over,
        strategy: question.as_deref().map(|question| identity(&question.strategy)),
        requests: question.as_deref().map(requests).unwrap_or_default(),
        answer: decision.map(answer),
    }
}

fn line(question: &PastQuestion, uid: &str) -> Value {
    let PastQuestion { options, topology, groups, requests, state, .. } = question;
    let question = Question { id: uid.into(), ..Question::of(topology, groups, options, requests, state) };
    json!(question)
}

fn requests(question: &PastQuestion) -> Vec<RequestReport> {
    let request = |request: &Request| {
        let group = question.groups.get(request.group).cloned();
        let (device, group) = group.map(|group| (group.device, group.cpus)).unwrap_or_default();
        RequestReport {
            name: request.name.clone(),
            device,
            count: request.count,
            cpuset: request.cpuset.clone(),
            free: group.intersection(&question.state.free),
            group,
        }
    };
    question.requests.iter().map(request).collect()
}

fn answer(decision: Decision) -> AnswerReport {
    let grants = decision.grants.into_iter();
    AnswerReport {
        grants: grants
            .map(|grant| GrantReport { cpus: grant.cpus, blocked: grant.blocked, mems: grant.mems })
            .collect(),
        joins_shared_pool: decision.join_shared_pool,
        why: decision.why,
    }
}

pub(super) fn replay(Replay { strategy, answer: answered }: Replay) -> ReplayReport {
    let strategy = identity(&strategy);
    match answered {
        Ok(decision) => ReplayReport { strategy, answer: Some(answer(decision)), refusal: None },
        Err(undecided) => ReplayReport { strategy, answer: None, refusal: Some(undecided.message) },
    }
}

/// Which strategy it is.
pub(super) fn identity(info: &StrategyInfo) -> StrategyIdentity {
    let StrategyInfo { name, version, digest, .. } = info.clone();
    StrategyIdentity { name, version: Some(version), digest }
}
