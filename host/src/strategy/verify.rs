//! The rules that every answer is held against. A strategy is free to choose, not to err: an answer
//! that breaks one of these fails the claim by name.

use crate::strategy::bindings::dracpu::strategy::types as wit;
use crate::strategy::{Decision, Grant, Request, State, log};
use dracpu_cpuset::CpuSet;

/// An answer against the rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum Lie {
    #[error("{given} grants for {asked} requests")]
    GrantCount { asked: usize, given: usize },
    #[error("{place}: the set is not canonical (it ends in a zero word, or names a CPU above {})", dracpu_cpuset::MAX_CPU_ID)]
    NotCanonical { place: String },
    #[error("request {request}: {} CPUs ({cpus}) where {asked} were asked, too few", cpus.len())]
    TooFew { request: String, asked: u32, cpus: CpuSet },
    #[error("request {request}: {} CPUs ({cpus}) where {asked} were asked, too many", cpus.len())]
    TooMany { request: String, asked: u32, cpus: CpuSet },
    #[error("{place}: CPUs {cpus} are not online on this machine")]
    Offline { place: String, cpus: CpuSet },
    #[error("{place}: CPUs {cpus} are reserved")]
    Reserved { place: String, cpus: CpuSet },
    #[error("request {request}: CPUs {cpus} are outside its group {group}")]
    ForeignGroup { request: String, group: String, cpus: CpuSet },
    #[error("{place}: CPUs {cpus} are taken by other claims")]
    Taken { place: String, cpus: CpuSet },
    #[error("{place}: CPUs {cpus} are given twice within the claim")]
    Overlap { place: String, cpus: CpuSet },
    #[error("request {request}: memory node {index} of a machine that has {nodes}")]
    NoSuchNode { request: String, index: u32, nodes: usize },
    #[error("a denial of request {index} where there are {requests}")]
    NoSuchRequest { index: u32, requests: usize },
    #[error("{offers} offers for {groups} groups")]
    OfferCount { offers: usize, groups: usize },
    #[error("group {group}: a capacity of {capacity} where the group has {size} CPUs")]
    Capacity { group: String, capacity: u32, size: usize },
    #[error("group {group}: a step of 0; the least is 1")]
    Step { group: String },
    #[error("group {group}: attribute `{name}`: {why}")]
    Attribute { group: String, name: String, why: &'static str },
    #[error("group {group}: {count} attributes, at most {} are allowed", super::offer::MOST_ATTRIBUTES)]
    Attributes { group: String, count: usize },
}

/// What answers are checked against; fixed while a strategy is open.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) online: CpuSet,
    pub(crate) reserved: CpuSet,
    /// Name and CPUs of each group.
    pub(crate) groups: Vec<(String, CpuSet)>,
    /// Kernel ids of the NUMA nodes as the strategy counts them; none for one that the kernel lacks.
    pub(crate) nodes: Vec<Option<u32>>,
}

impl Rules {
    /// The decision, if it keeps every rule.
    pub(crate) fn decision(&self, requests: &[Request], state: &State, answer: wit::Decision) -> Result<Decision, Lie> {
        if answer.grants.len() != requests.len() {
            return Err(Lie::GrantCount { asked: requests.len(), given: answer.grants.len() });
        }
        let mut given = CpuSet::new();
        let mut grants = Vec::with_capacity(requests.len());
        for (request, grant) in requests.iter().zip(answer.grants) {
            let name = &request.name;
            let cpus = self.available(grant.cpus, state, &given, || format!("request {name}"), |cpus| {
                self.in_group(request, cpus)
            })?;
            size_is_exact(request, &cpus)?;
            given.extend_from(&cpus);
            let blocked =
                self.available(grant.blocked, state, &given, || format!("blocked CPUs of request {name}"), |_| Ok(()))?;
            given.extend_from(&blocked);
            grants.push(Grant { cpus, blocked, mems: self.mems(name, &grant.mems)? });
        }
        Ok(Decision { grants, join_shared_pool: answer.join_shared_pool, why: log::plain(&answer.why) })
    }

    /// Words of the guest as a set of CPUs that can be given. The order makes the message the most
    /// telling one: a reserved CPU is also outside every group, a foreign one may also be taken.
    fn available(
        &self,
        words: Vec<u64>,
        state: &State,
        given: &CpuSet,
        place: impl Fn() -> String,
        in_group: impl FnOnce(&CpuSet) -> Result<(), Lie>,
    ) -> Result<CpuSet, Lie> {
        let canonical = words.last() != Some(&0);
        let cpus = CpuSet::from_words(words).filter(|_| canonical).ok_or_else(|| Lie::NotCanonical { place: place() })?;
        let offline = cpus.difference(&self.online);
        if !offline.is_empty() {
            return Err(Lie::Offline { place: place(), cpus: offline });
        }
        let reserved = cpus.intersection(&self.reserved);
        if !reserved.is_empty() {
            return Err(Lie::Reserved { place: place(), cpus: reserved });
        }
        in_group(&cpus)?;
        let taken = cpus.difference(&state.free);
        if !taken.is_empty() {
            return Err(Lie::Taken { place: place(), cpus: taken });
        }
        let twice = cpus.intersection(given);
        if !twice.is_empty() {
            return Err(Lie::Overlap { place: place(), cpus: twice });
        }
        Ok(cpus)
    }

    fn in_group(&self, request: &Request, cpus: &CpuSet) -> Result<(), Lie> {
        let nothing = (String::new(), CpuSet::new());
        let (group, members) = self.groups.get(request.group).unwrap_or(&nothing);
        let foreign = cpus.difference(members);
        if foreign.is_empty() {
            return Ok(());
        }
        Err(Lie::ForeignGroup { request: request.name.clone(), group: group.clone(), cpus: foreign })
    }

    /// Kernel ids of memory nodes, ascending. Empty when one of them is a node that the kernel lacks:
    /// where its memory is, is not known, so memory is left alone.
    fn mems(&self, request: &str, indices: &[u32]) -> Result<Vec<u32>, Lie> {
        let mut ids = Vec::with_capacity(indices.len());
        for &index in indices {
            let node = usize::try_from(index).ok().and_then(|at| self.nodes.get(at));
            let nodes = self.nodes.len();
            ids.push(*node.ok_or_else(|| Lie::NoSuchNode { request: request.to_owned(), index, nodes })?);
        }
        let mut ids: Vec<u32> = ids.into_iter().collect::<Option<_>>().unwrap_or_default();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

fn size_is_exact(request: &Request, cpus: &CpuSet) -> Result<(), Lie> {
    let (asked, given) = (request.count, cpus.len());
    let (request, cpus) = (request.name.clone(), cpus.clone());
    match usize::try_from(asked).unwrap_or(usize::MAX).cmp(&given) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(Lie::TooFew { request, asked, cpus }),
        std::cmp::Ordering::Less => Err(Lie::TooMany { request, asked, cpus }),
    }
}
