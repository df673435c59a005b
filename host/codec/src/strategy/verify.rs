//! The rules that every answer is held against. A strategy is free to choose, not to err: an answer
//! that breaks one of these fails the claim by name.

use crate::strategy::{Decision, Grant, Request, State, answer};
use crate::words::plain;
use dracpu_cpuset::CpuSet;

/// An answer against the rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum Lie {
    #[error("{given} grants for {asked} requests")]
    GrantCount { asked: usize, given: usize },
    #[error(
        "{place}: the set is not canonical (it ends in a zero word, or names a CPU above {})",
        dracpu_cpuset::MAX_CPU_ID
    )]
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
pub struct Rules {
    /// CPUs that can run anything.
    pub online: CpuSet,
    /// CPUs that nobody gets.
    pub reserved: CpuSet,
    /// Name and CPUs of each group.
    pub groups: Vec<(String, CpuSet)>,
    /// The NUMA nodes as the strategy counts them.
    pub nodes: Vec<MemoryNode>,
}

/// What a container can be given of a NUMA node's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryNode {
    /// The node of this id in the kernel.
    Id(u32),
    /// Nothing: the node has none, and the kernel takes no such node for `cpuset.mems`.
    Empty,
    /// The kernel lacks the node: where its memory is, is not known.
    Unknown,
}

impl Rules {
    /// The decision, if it keeps every rule.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn decision(
        &self,
        requests: &[Request],
        state: &State,
        answer: answer::Decision,
    ) -> Result<Decision, Lie> {
        if answer.grants.len() != requests.len() {
            return Err(Lie::GrantCount { asked: requests.len(), given: answer.grants.len() });
        }
        let mut given = CpuSet::new();
        let mut grants = Vec::with_capacity(requests.len());
        for (request, grant) in requests.iter().zip(answer.grants) {
            let name = &request.name;
            let cpus = self.available(
                grant.cpus,
                state,
                &given,
                || format!("request {name}"),
                |cpus| self.in_group(request, cpus),
            )?;
            size_is_exact(request, &cpus)?;
            given.extend_from(&cpus);
            let blocked = self.available(
                grant.blocked,
                state,
                &given,
                || format!("blocked CPUs of request {name}"),
                |_| Ok(()),
            )?;
            given.extend_from(&blocked);
            grants.push(Grant { cpus, blocked, mems: self.mems(name, &grant.mems)? });
        }
        Ok(Decision { grants, join_shared_pool: answer.join_shared_pool, why: plain(&answer.why) })
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
        let cpus = CpuSet::from_words(words)
            .filter(|_| canonical)
            .ok_or_else(|| Lie::NotCanonical { place: place() })?;
        if let Some(cpus) = beyond(&cpus, &self.online) {
            return Err(Lie::Offline { place: place(), cpus });
        }
        if let Some(cpus) = common(&cpus, &self.reserved) {
            return Err(Lie::Reserved { place: place(), cpus });
        }
        in_group(&cpus)?;
        if let Some(cpus) = beyond(&cpus, &state.free) {
            return Err(Lie::Taken { place: place(), cpus });
        }
        if let Some(cpus) = common(&cpus, given) {
            return Err(Lie::Overlap { place: place(), cpus });
        }
        Ok(cpus)
    }

    fn in_group(&self, request: &Request, cpus: &CpuSet) -> Result<(), Lie> {
        let nothing = (String::new(), CpuSet::new());
        let (group, members) = self.groups.get(request.group).unwrap_or(&nothing);
        let Some(cpus) = beyond(cpus, members) else { return Ok(()) };
        Err(Lie::ForeignGroup { request: request.name.clone(), group: group.clone(), cpus })
    }

    /// Kernel ids of memory nodes, ascending, without those that have none. Empty when one of them is a node that the
    /// kernel lacks: memory is left alone then.
    fn mems(&self, request: &str, indices: &[u32]) -> Result<Vec<u32>, Lie> {
        let mut ids = Vec::with_capacity(indices.len());
        for &index in indices {
            let node = usize::try_from(index).ok().and_then(|at| self.nodes.get(at));
            let nodes = self.nodes.len();
            match *node.ok_or_else(|| Lie::NoSuchNode { request: request.to_owned(), index, nodes })? {
                MemoryNode::Id(id) => ids.push(Some(id)),
                MemoryNode::Empty => {}
                MemoryNode::Unknown => ids.push(None),
            }
        }
        let mut ids: Vec<u32> = ids.into_iter().collect::<Option<_>>().unwrap_or_default();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

fn size_is_exact(request: &Request, cpus: &CpuSet) -> Result<(), Lie> {
    let asked = request.count;
    let order = usize::try_from(asked).unwrap_or(usize::MAX).cmp(&cpus.len());
    if order.is_eq() {
        return Ok(());
    }
    let (request, cpus) = (request.name.clone(), cpus.clone());
    match order.is_gt() {
        true => Err(Lie::TooFew { request, asked, cpus }),
        false => Err(Lie::TooMany { request, asked, cpus }),
    }
}

/// Those of the CPUs that are not allowed, if there are any.
fn beyond(cpus: &CpuSet, allowed: &CpuSet) -> Option<CpuSet> {
    (!cpus.is_subset(allowed)).then(|| cpus.difference(allowed))
}

/// Those of the CPUs that are in the other set too, if there are any.
fn common(cpus: &CpuSet, others: &CpuSet) -> Option<CpuSet> {
    (!cpus.is_disjoint(others)).then(|| cpus.intersection(others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CPUs 0 to 15 online, 0 reserved, 15 offline; groups 1-7 and 8-14; memory nodes 0 and 8.
    fn rules() -> Rules {
        Rules {
            online: (0..15).collect(),
            reserved: CpuSet::from([0]),
            groups: vec![("a".to_owned(), (1..8).collect()), ("b".to_owned(), (8..15).collect())],
            nodes: vec![MemoryNode::Id(0), MemoryNode::Id(8)],
        }
    }

    fn request(group: usize, count: u32) -> Request {
        let name = format!("r{group}");
        Request { name, group, count, cpuset: None, options: serde_json::Map::new(), pcie_roots: Vec::new() }
    }

    fn grant(cpus: &[u32], blocked: &[u32], mems: &[u32]) -> answer::Grant {
        let words = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>().into_words();
        answer::Grant { cpus: words(cpus), blocked: words(blocked), mems: mems.to_vec() }
    }

    /// The verdict on grants for requests of the right sizes, of the groups in turn, with CPU 7 taken.
    fn verdict(grants: Vec<answer::Grant>, sizes: &[u32]) -> Result<Decision, Lie> {
        let requests: Vec<Request> =
            sizes.iter().enumerate().map(|(group, size)| request(group, *size)).collect();
        let free = rules().online.difference(&CpuSet::from([0, 7]));
        let answer = answer::Decision { grants, join_shared_pool: true, why: "so\n".to_owned() };
        rules().decision(&requests, &State { free, others: Vec::new() }, answer)
    }

    #[test]
    fn a_right_answer_is_taken_over() {
        let decision =
            verdict(vec![grant(&[1, 2], &[3], &[1, 1, 0]), grant(&[9], &[], &[])], &[2, 1]).unwrap();
        assert_eq!(decision.grants[0], Grant { cpus: [1, 2].into(), blocked: [3].into(), mems: vec![0, 8] });
        assert!(decision.join_shared_pool);
        assert_eq!(decision.why, "so\\n");
    }

    #[test]
    fn each_lie_has_its_name() {
        let place = || "request r0".to_owned();
        let blocked = || "blocked CPUs of request r0".to_owned();
        let r0 = || "r0".to_owned();
        let cases = [
            (vec![], Lie::GrantCount { asked: 1, given: 0 }),
            (vec![grant(&[1], &[], &[])], Lie::TooFew { request: r0(), asked: 2, cpus: [1].into() }),
            (
                vec![grant(&[1, 2, 3], &[], &[])],
                Lie::TooMany { request: r0(), asked: 2, cpus: [1, 2, 3].into() },
            ),
            (vec![grant(&[1, 15], &[], &[])], Lie::Offline { place: place(), cpus: [15].into() }),
            (vec![grant(&[0, 1], &[], &[])], Lie::Reserved { place: place(), cpus: [0].into() }),
            (
                vec![grant(&[1, 8], &[], &[])],
                Lie::ForeignGroup { request: r0(), group: "a".to_owned(), cpus: [8].into() },
            ),
            (vec![grant(&[1, 7], &[], &[])], Lie::Taken { place: place(), cpus: [7].into() }),
            (vec![grant(&[1, 2], &[2], &[])], Lie::Overlap { place: blocked(), cpus: [2].into() }),
            (vec![grant(&[1, 2], &[7], &[])], Lie::Taken { place: blocked(), cpus: [7].into() }),
            (vec![grant(&[1, 2], &[0], &[])], Lie::Reserved { place: blocked(), cpus: [0].into() }),
            (vec![grant(&[1, 2], &[], &[2])], Lie::NoSuchNode { request: r0(), index: 2, nodes: 2 }),
        ];
        for (grants, lie) in cases {
            assert_eq!(verdict(grants, &[2]), Err(lie));
        }
    }

    #[test]
    fn blocked_cpus_may_lie_outside_the_group_but_in_no_other_grant() {
        assert!(verdict(vec![grant(&[1], &[8], &[]), grant(&[9], &[], &[])], &[1, 1]).is_ok());
        let twice = verdict(vec![grant(&[1], &[8], &[]), grant(&[8], &[], &[])], &[1, 1]);
        assert_eq!(twice, Err(Lie::Overlap { place: "request r1".to_owned(), cpus: [8].into() }));
    }

    #[test]
    fn words_must_be_canonical() {
        for words in [vec![2, 0], vec![1; 129]] {
            let given = answer::Grant { cpus: words, blocked: Vec::new(), mems: Vec::new() };
            assert_eq!(verdict(vec![given], &[1]), Err(Lie::NotCanonical { place: "request r0".to_owned() }));
        }
    }

    #[test]
    fn memory_of_an_unknown_place_is_left_alone() {
        let rules =
            Rules { nodes: vec![MemoryNode::Id(0), MemoryNode::Unknown, MemoryNode::Empty], ..rules() };
        assert_eq!(rules.mems("r", &[0, 1]), Ok(Vec::new()));
        assert_eq!(rules.mems("r", &[2, 0]), Ok(vec![0]), "what has no memory is left out");
        assert_eq!(rules.mems("r", &[2]), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_is_taken_over_keeps_every_rule(
            sets in proptest::collection::vec(proptest::collection::vec(0..16u32, 0..4), 4),
            sizes in proptest::collection::vec(0..4u32, 2),
        ) {
            let grants = vec![grant(&sets[0], &sets[1], &[]), grant(&sets[2], &sets[3], &[])];
            if let Ok(decision) = verdict(grants, &sizes) {
                let mut given = CpuSet::from([0, 7, 15]);
                for (at, grant) in decision.grants.iter().enumerate() {
                    prop_assert_eq!(grant.cpus.len(), sizes[at] as usize);
                    prop_assert!(grant.cpus.is_subset(&rules().groups[at].1));
                    for set in [&grant.cpus, &grant.blocked] {
                        prop_assert!(set.is_disjoint(&given));
                        given.extend_from(set);
                    }
                }
            }
        }
    }
}
