use crate::booking::{Booking, ClaimUid, ContainerId, union};
use crate::ledger::{Held, Ledger};
use dracpu_cpuset::CpuSet;
use std::collections::{BTreeMap, BTreeSet};

/// Which container this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The runtime's id.
    pub id: ContainerId,
    /// The container's name in the pod spec.
    pub name: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The pod's namespace.
    pub pod_namespace: String,
    /// The pod's name.
    pub pod_name: String,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "container {} of pod {}/{}", self.name, self.pod_namespace, self.pod_name)
    }
}

/// A container that exists, or is being made.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    who: Who,
    claims: BTreeSet<ClaimUid>,
    /// What its environment says of claims without a record. While any is left, the container is left
    /// alone.
    pub(crate) unproven: BTreeMap<ClaimUid, CpuSet>,
    /// The mask that it was made with; none when somebody else made it.
    given: Option<CpuSet>,
    /// The mask believed to be in place.
    mask: Option<CpuSet>,
    started: bool,
    stopped: bool,
}

impl Entry {
    pub(crate) fn forget_claim(&mut self, uid: &ClaimUid) {
        self.claims.remove(uid);
        self.unproven.remove(uid);
    }
}

/// A container that exists already, as the runtime shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which one.
    pub who: Who,
    /// Claims and CPUs that it says it has.
    pub entries: Vec<(ClaimUid, CpuSet)>,
    /// The mask that the runtime shows.
    pub mask: Option<CpuSet>,
}

impl Seen {
    fn runs_where_it_says(&self) -> bool {
        self.mask.as_ref() == Some(&union(self.entries.iter().map(|(_, cpus)| cpus)))
    }
}

/// Where a new container runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Its CPUs; never empty.
    pub cpus: CpuSet,
    /// Kernel ids of NUMA nodes for `cpuset.mems`; empty = leave memory alone.
    pub mems: Vec<u32>,
    /// Whether it runs on claimed CPUs.
    pub exclusive: bool,
}

/// Why what a container says of a claim is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// No such claim is prepared here.
    #[error("claim {0} is not prepared on this node; if the pod sets DRA_CPUSET_{0} itself, take that out")]
    Unknown(ClaimUid),
    /// The record says otherwise.
    #[error("claim {uid} holds CPUs {recorded}, not {said}")]
    Mismatch {
        /// The claim.
        uid: ClaimUid,
        /// CPUs that the container says it has.
        said: CpuSet,
        /// CPUs of the record.
        recorded: CpuSet,
    },
    /// A claim belongs to one container.
    #[error("claim {uid} belongs to {owner}; give each container a claim of its own")]
    Owned {
        /// The claim.
        uid: ClaimUid,
        /// Who has it.
        owner: Box<Who>,
    },
}

/// Why a container cannot be made; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// One of its claims.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// An empty mask would mean "any CPU".
    #[error(
        "no CPU is left for containers without a claim (reserved {reserved}, claims hold the rest); \
         unprepare a claim or lower what claims may take with minSharedCPUs"
    )]
    NothingShared {
        /// The reserved CPUs.
        reserved: CpuSet,
    },
    /// An empty mask would mean "any CPU".
    #[error("all CPUs of its claims ({0}) are offline; bring them back or delete the pod")]
    AllOffline(CpuSet),
}

/// A container as the ledger knows it, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known<'a> {
    /// Which one.
    pub who: &'a Who,
    /// The claims whose CPUs it has.
    pub claims: &'a BTreeSet<ClaimUid>,
    /// What it says of claims without a record. While there are any, it is left alone.
    pub unproven: &'a BTreeMap<ClaimUid, CpuSet>,
    /// The mask that it should have; none when it has ended or is left alone.
    pub wanted: Option<CpuSet>,
    /// The mask believed to be in place; none when that is not known.
    pub believed: Option<&'a CpuSet>,
    /// Whether its process has been started.
    pub started: bool,
    /// Whether it has ended.
    pub stopped: bool,
}

/// A container that is not believed in something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which one.
    pub who: Who,
    /// In what.
    pub error: EntryError,
}

impl Ledger {
    /// A container is about to be made with these claims; without any it runs on the shared pool. All of
    /// its claims become its own, or none.
    ///
    /// # Errors
    /// [`CreateError`], and nothing has changed.
    pub fn create(&mut self, who: Who, entries: &[(ClaimUid, CpuSet)]) -> Result<Placement, CreateError> {
        for entry in entries {
            self.check(&who, entry)?;
        }
        let claims: BTreeSet<ClaimUid> = entries.iter().map(|(uid, _)| uid.clone()).collect();
        let cpus = self.mask_of(&claims, &self.shared_pool());
        if cpus.is_empty() && claims.is_empty() {
            return Err(CreateError::NothingShared { reserved: self.node.reserved.clone() });
        } else if cpus.is_empty() {
            return Err(CreateError::AllOffline(self.union_of(&claims)));
        }
        let placement = Placement { mems: self.mems_of(&claims), exclusive: !claims.is_empty(), cpus };
        let given = Some(placement.cpus.clone());
        self.own(&who, &claims);
        let entry = Entry {
            claims,
            unproven: BTreeMap::new(),
            mask: given.clone(),
            given,
            started: false,
            stopped: false,
            who,
        };
        self.containers.insert(entry.who.id.clone(), entry);
        Ok(placement)
    }

    /// All containers that the runtime has; others are forgotten. Claims stay booked whatever is missing
    /// here. Ask for [`updates`](Self::updates) afterwards. Returns whom not to believe in what.
    pub fn synchronize(&mut self, seen: Vec<Seen>) -> Vec<Refusal> {
        let mut before = std::mem::take(&mut self.containers);
        let mut refused = Vec::new();
        // Owners first, so that nobody follows one that comes later in the list. Then those that run where they say:
        // what was made without this driver runs elsewhere, whatever it says.
        let owns = |seen: &Seen| self.claims.values().any(|held| held.owner.as_ref() == Some(&seen.who));
        let mut seen = seen;
        seen.sort_by_key(|seen| (!owns(seen), !seen.runs_where_it_says()));
        for seen in seen {
            let started = before.remove(&seen.who.id).is_none_or(|entry| entry.started);
            refused.extend(self.admit(seen, started));
        }
        refused
    }

    /// A container that exists already but is not known: its claims are believed only as far as the
    /// records go. Returns whom not to believe in what.
    pub fn adopt_container(&mut self, seen: Seen) -> Vec<Refusal> {
        self.admit(seen, true)
    }

    fn admit(&mut self, seen: Seen, started: bool) -> Vec<Refusal> {
        let Seen { who, entries, mask } = seen;
        let (mut claims, mut unproven, mut refused) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        let contradicts = |(uid, cpus): &(ClaimUid, CpuSet)| {
            entries.iter().any(|(other, others)| other == uid && others != cpus)
        };
        for entry in &entries {
            match self.check(&who, entry) {
                Ok(()) => {
                    claims.insert(entry.0.clone());
                }
                Err(EntryError::Unknown(uid)) if !entry.1.is_empty() && !contradicts(entry) => {
                    unproven.insert(uid, entry.1.clone());
                }
                Err(error) => refused.push(Refusal { who: who.clone(), error }),
            }
        }
        self.own(&who, &claims);
        let entry = Entry { claims, unproven, given: None, mask, started, stopped: false, who };
        self.containers.insert(entry.who.id.clone(), entry);
        refused
    }

    /// A container's process runs, on `mask` if the runtime shows one. An update sent while the container was
    /// being made can have been lost: then the mask shows it.
    pub fn start(&mut self, id: &ContainerId, mask: Option<CpuSet>) {
        if let Some(entry) = self.containers.get_mut(id) {
            entry.started = true;
            entry.mask = mask.or_else(|| entry.mask.take());
        }
    }

    /// A container has ended. Its claims stay booked, and stay its own until another container of its pod
    /// asks for them.
    pub fn stop(&mut self, id: &ContainerId) {
        if let Some(entry) = self.containers.get_mut(id) {
            entry.stopped = true;
        }
    }

    /// A container is gone. One that was never started leaves no claim owned.
    pub fn remove(&mut self, id: &ContainerId) {
        let Some(entry) = self.containers.remove(id).filter(|entry| !entry.started) else { return };
        for uid in &entry.claims {
            if let Some(held) = self.claims.get_mut(uid) {
                held.owner.take_if(|owner| owner.id == *id);
            }
        }
    }

    /// All containers that the runtime has told of, by id.
    pub fn containers(&self) -> impl Iterator<Item = Known<'_>> {
        let shared = self.shared_pool();
        self.containers.values().map(move |entry| Known {
            who: &entry.who,
            claims: &entry.claims,
            unproven: &entry.unproven,
            wanted: (!entry.stopped).then(|| self.wanted(entry, &shared)).flatten(),
            believed: entry.mask.as_ref(),
            started: entry.started,
            stopped: entry.stopped,
        })
    }

    /// Whether the ledger knows this container.
    #[must_use]
    pub fn knows(&self, id: &ContainerId) -> bool {
        self.containers.contains_key(id)
    }

    /// Somebody else is about to set a mask: the one that belongs in its place, none when the container is
    /// not known or nothing can be said about it.
    #[must_use]
    pub fn mask(&self, id: &ContainerId) -> Option<CpuSet> {
        let entry = self.containers.get(id)?;
        self.wanted(entry, &self.shared_pool()).or_else(|| entry.mask.clone())
    }

    /// The mask believed to be in place.
    #[must_use]
    pub fn believed(&self, id: &ContainerId) -> Option<&CpuSet> {
        self.containers.get(id)?.mask.as_ref()
    }

    /// The mask that a container was [created](Self::create) with, whatever it should be since.
    #[must_use]
    pub fn given(&self, id: &ContainerId) -> Option<&CpuSet> {
        self.containers.get(id)?.given.as_ref()
    }

    /// Notes the mask that a container has, whoever set it.
    pub fn note_mask(&mut self, id: &ContainerId, mask: Option<CpuSet>) {
        if let Some(entry) = self.containers.get_mut(id) {
            entry.mask = mask;
        }
    }

    /// The masks to set: of containers that run on other CPUs than they should. Counts them as set, so
    /// asking twice gives nothing. Never an empty mask.
    pub fn updates(&mut self) -> Vec<(ContainerId, CpuSet)> {
        let updates: Vec<(ContainerId, CpuSet)> = self.pending().collect();
        for (id, mask) in &updates {
            self.note_mask(id, Some(mask.clone()));
        }
        updates
    }

    /// How many containers run on other CPUs than they should.
    #[must_use]
    pub fn pending_updates(&self) -> usize {
        self.pending().count()
    }

    fn pending(&self) -> impl Iterator<Item = (ContainerId, CpuSet)> {
        let shared = self.shared_pool();
        let live = self.containers.iter().filter(|(_, entry)| !entry.stopped);
        live.filter_map(move |(id, entry)| {
            let mask = self.wanted(entry, &shared).filter(|mask| entry.mask.as_ref() != Some(mask))?;
            Some((id.clone(), mask))
        })
    }

    /// Containers that say they have a claim without a record, to be proven or disproven.
    pub fn unproven_claims(&self) -> impl Iterator<Item = (&Who, &ClaimUid, &CpuSet)> {
        self.containers
            .values()
            .flat_map(|entry| entry.unproven.iter().map(|(uid, cpus)| (&entry.who, uid, cpus)))
    }

    /// The claim without a record is real, and this pod's: it holds these CPUs, and the pod's containers that say
    /// so are its own. Others that say so stay in question. A claim that overlaps it by now shows in
    /// [`conflicted`](Self::conflicted).
    pub fn prove(&mut self, uid: &ClaimUid, booking: Booking, pod_uid: &str) {
        self.adopt(uid.clone(), booking);
        self.settle(uid, pod_uid);
    }

    /// This pod does not have the claim, or it holds other CPUs: the pod's containers that say so are treated as
    /// what the rest of their claims makes them.
    pub fn disprove(&mut self, uid: &ClaimUid, pod_uid: &str) {
        self.settle(uid, pod_uid);
    }

    fn settle(&mut self, uid: &ClaimUid, pod_uid: &str) {
        let said: Vec<(Who, CpuSet)> = self
            .containers
            .values_mut()
            .filter(|entry| entry.who.pod_uid == pod_uid)
            .filter_map(|entry| Some((entry.who.clone(), entry.unproven.remove(uid)?)))
            .collect();
        for (who, cpus) in said {
            if self.check(&who, &(uid.clone(), cpus)).is_ok() {
                if let Some(entry) = self.containers.get_mut(&who.id) {
                    entry.claims.insert(uid.clone());
                }
                self.own(&who, &BTreeSet::from([uid.clone()]));
            }
        }
    }

    /// Whether a container that has this claim is alive.
    #[must_use]
    pub fn in_use(&self, uid: &ClaimUid) -> Option<&Who> {
        let live = self.containers.values().filter(|entry| !entry.stopped);
        live.filter(|entry| entry.claims.contains(uid)).map(|entry| &entry.who).next()
    }

    /// How many containers run on CPUs that live containers have by their claims, as far as their masks are known: they
    /// have yet to be told. A claim that waits for its container shares its CPUs with nobody who could mind.
    #[must_use]
    pub fn overlapping(&self) -> usize {
        let booked = self.booked();
        let live = self.containers.values().filter(|entry| !entry.stopped);
        let used: BTreeSet<&ClaimUid> = live.clone().flat_map(|entry| &entry.claims).collect();
        let live = live.filter(|entry| entry.started);
        let overlaps = |entry: &&Entry| {
            let mask = entry.mask.as_ref().filter(|mask| !mask.is_disjoint(&booked));
            mask.is_some_and(|mask| self.others_on(entry, mask).any(|uid| used.contains(uid)))
        };
        live.filter(overlaps).count()
    }

    /// The claims that hold CPUs of `mask` for others than this container. None for one that may have a claim without
    /// a record.
    pub fn others_claims(&self, id: &ContainerId, mask: &CpuSet) -> impl Iterator<Item = &ClaimUid> {
        let entry = self.containers.get(id);
        entry.into_iter().flat_map(|entry| self.others_on(entry, mask))
    }

    fn others_on(&self, entry: &Entry, mask: &CpuSet) -> impl Iterator<Item = &ClaimUid> {
        let own = self.union_of(&entry.claims);
        let others = if entry.unproven.is_empty() { mask.difference(&own) } else { CpuSet::new() };
        let holds = move |held: &Held| !others.is_disjoint(&held.cpus) || !others.is_disjoint(&held.blocked);
        self.claims.iter().filter(move |(_, held)| holds(held)).map(|(uid, _)| uid)
    }

    fn check(&self, who: &Who, (uid, said): &(ClaimUid, CpuSet)) -> Result<(), EntryError> {
        let held = self.claims.get(uid).ok_or_else(|| EntryError::Unknown(uid.clone()))?;
        if held.cpus != *said {
            let (said, recorded) = (said.clone(), held.cpus.clone());
            return Err(EntryError::Mismatch { uid: uid.clone(), said, recorded });
        }
        match &held.owner {
            Some(owner) if !self.may_follow(who, owner) => {
                Err(EntryError::Owned { uid: uid.clone(), owner: Box::new(owner.clone()) })
            }
            _ => Ok(()),
        }
    }

    /// The same container again, or another one of the pod once the owner has ended (init, then app).
    fn may_follow(&self, who: &Who, owner: &Who) -> bool {
        let alive = || self.containers.get(&owner.id).is_some_and(|entry| !entry.stopped);
        owner.pod_uid == who.pod_uid && (owner.name == who.name || !alive())
    }

    fn own(&mut self, who: &Who, claims: &BTreeSet<ClaimUid>) {
        for uid in claims {
            if let Some(held) = self.claims.get_mut(uid) {
                held.owner = Some(who.clone());
            }
        }
    }

    /// None: leave it alone.
    fn wanted(&self, entry: &Entry, shared: &CpuSet) -> Option<CpuSet> {
        let mask = entry.unproven.is_empty().then(|| self.mask_of(&entry.claims, shared))?;
        (!mask.is_empty()).then_some(mask)
    }

    /// The CPUs of a container with these claims, as far as they are online.
    fn mask_of(&self, claims: &BTreeSet<ClaimUid>, shared: &CpuSet) -> CpuSet {
        if claims.is_empty() {
            return shared.clone();
        }
        let mut mask = self.union_of(claims).intersection(&self.node.online);
        let joins = |uid: &ClaimUid| self.booking(uid).is_some_and(|booking| booking.joins_shared_pool);
        if claims.iter().any(joins) {
            mask.extend_from(shared);
        }
        mask
    }

    fn union_of(&self, claims: &BTreeSet<ClaimUid>) -> CpuSet {
        let mut all = CpuSet::new();
        for held in claims.iter().filter_map(|uid| self.claims.get(uid)) {
            all.extend_from(&held.cpus);
        }
        all
    }

    fn mems_of(&self, claims: &BTreeSet<ClaimUid>) -> Vec<u32> {
        let mut parts = claims.iter().filter_map(|uid| self.booking(uid)).flat_map(|b| &b.parts).peekable();
        if parts.peek().is_none() {
            return Vec::new();
        }
        Booking { parts: parts.cloned().collect(), ..Booking::default() }.mems()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::booking::{Node, Part};

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn node(online: &str) -> Node {
        Node { online: cpus(online), ..Node::default() }
    }

    /// A ledger of 8 CPUs with claims of a letter each.
    fn ledger(claims: &[(&str, &str)]) -> Ledger {
        let mut ledger = Ledger::new(node("0-7"), 1);
        for (uid, list) in claims {
            ledger.book((*uid).into(), Booking::plain(cpus(list))).unwrap();
        }
        ledger
    }

    fn who(id: &str, pod: &str, name: &str) -> Who {
        Who {
            id: id.into(),
            name: name.into(),
            pod_uid: format!("uid-{pod}"),
            pod_namespace: "ns".into(),
            pod_name: pod.into(),
        }
    }

    fn says(entries: &[(&str, &str)]) -> Vec<(ClaimUid, CpuSet)> {
        entries.iter().map(|(uid, list)| ((*uid).into(), cpus(list))).collect()
    }

    fn seen(who: Who, entries: &[(&str, &str)], mask: &str) -> Seen {
        Seen { who, entries: says(entries), mask: Some(cpus(mask)) }
    }

    fn updates(ledger: &mut Ledger) -> Vec<(String, String)> {
        ledger.updates().into_iter().map(|(id, mask)| (id.to_string(), mask.to_string())).collect()
    }

    fn update(id: &str, mask: &str) -> (String, String) {
        (id.to_owned(), mask.to_owned())
    }

    #[test]
    fn a_container_with_claims_gets_their_union_and_the_others_shrink_once() {
        let mut ledger = ledger(&[]);
        assert_eq!(ledger.create(who("b", "q", "b"), &[]).unwrap().cpus, cpus("0-7"));
        ledger.book("A".into(), Booking::plain(cpus("2-3"))).unwrap();
        ledger.book("B".into(), Booking::plain(cpus("5"))).unwrap();
        let placed = ledger.create(who("a", "p", "a"), &says(&[("A", "2-3"), ("B", "5")])).unwrap();
        assert_eq!((placed.cpus, placed.exclusive), (cpus("2-3,5"), true));
        assert_eq!(updates(&mut ledger), [update("b", "0-1,4,6-7")]);
        assert_eq!(updates(&mut ledger), []);
    }

    #[test]
    fn entries_must_name_a_prepared_claim_and_its_exact_cpus() {
        let mut ledger = ledger(&[("A", "2-3")]);
        for (name, entries) in [
            ("unknown", vec![("made-up", "0-7")]),
            ("larger", vec![("A", "0-7")]),
            ("smaller", vec![("A", "2")]),
            ("empty", vec![("A", "")]),
            ("second of a list", vec![("A", "2-3"), ("made-up", "5")]),
        ] {
            assert!(ledger.create(who("f", "evil", "f"), &says(&entries)).is_err(), "{name}");
            assert!(!ledger.knows(&"f".into()) && ledger.owner(&"A".into()).is_none(), "{name}");
        }
    }

    #[test]
    fn a_claim_has_one_owner_and_the_refusal_names_it() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("1", "x", "main"), &says(&[("A", "2-3")])).unwrap();
        for other in [who("2", "x", "second"), who("3", "y", "main")] {
            let error = ledger.create(other, &says(&[("A", "2-3")])).unwrap_err().to_string();
            assert!(error.contains("container main of pod ns/x"), "{error}");
        }
    }

    #[test]
    fn a_restarted_container_may_come_before_the_stop_of_its_predecessor() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("1", "p", "a"), &says(&[("A", "2-3")])).unwrap();
        ledger.create(who("2", "p", "a"), &says(&[("A", "2-3")])).unwrap();
        ledger.stop(&"1".into());
        ledger.remove(&"1".into());
        assert!(ledger.create(who("3", "p", "other"), &says(&[("A", "2-3")])).is_err());
    }

    #[test]
    fn another_container_of_the_pod_follows_once_the_owner_has_stopped() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("1", "p", "init"), &says(&[("A", "2-3")])).unwrap();
        ledger.start(&"1".into(), None);
        assert!(ledger.create(who("2", "p", "app"), &says(&[("A", "2-3")])).is_err());
        ledger.stop(&"1".into());
        assert!(ledger.create(who("3", "other", "app"), &says(&[("A", "2-3")])).is_err());
        assert!(ledger.create(who("4", "p", "app"), &says(&[("A", "2-3")])).is_ok());
        ledger.remove(&"1".into());
        assert_eq!(ledger.owner(&"A".into()), Some(&who("4", "p", "app")));
    }

    #[test]
    fn an_update_lost_while_the_container_was_made_is_due_again_once_it_runs() {
        let mut ledger = ledger(&[]);
        ledger.create(who("1", "p", "one"), &[]).unwrap();
        ledger.book("A".into(), Booking::plain(cpus("0-1"))).unwrap();
        assert_eq!(updates(&mut ledger), [("1".to_owned(), "2-7".to_owned())]);
        ledger.start(&"1".into(), None);
        assert_eq!(updates(&mut ledger), []);
        ledger.start(&"1".into(), Some(cpus("0-7")));
        assert_eq!(updates(&mut ledger), [("1".to_owned(), "2-7".to_owned())]);
    }

    #[test]
    fn a_refused_create_owns_nothing_and_one_never_started_leaves_nothing_owned() {
        let mut ledger = ledger(&[("A", "2-3"), ("B", "5")]);
        ledger.create(who("1", "p1", "one"), &says(&[("A", "2-3")])).unwrap();
        assert!(ledger.create(who("2", "p2", "two"), &says(&[("B", "5"), ("A", "2-3")])).is_err());
        ledger.create(who("3", "p3", "three"), &says(&[("B", "5")])).unwrap();
        ledger.remove(&"3".into());
        ledger.create(who("4", "p4", "four"), &says(&[("B", "5")])).unwrap();
        ledger.start(&"4".into(), None);
        ledger.stop(&"4".into());
        ledger.remove(&"4".into());
        assert!(ledger.create(who("5", "p5", "five"), &says(&[("B", "5")])).is_err());
    }

    #[test]
    fn an_empty_pool_refuses_shared_containers_and_leaves_those_that_run_alone() {
        let mut ledger = Ledger::new(node("0-3"), 0);
        ledger.create(who("b", "q", "b"), &[]).unwrap();
        ledger.book("A".into(), Booking::plain(cpus("0-3"))).unwrap();
        assert!(matches!(ledger.create(who("c", "q", "c"), &[]), Err(CreateError::NothingShared { .. })));
        assert_eq!(updates(&mut ledger), []);
        ledger.release(&"A".into());
        assert!(ledger.create(who("c", "q", "c"), &[]).is_ok());
    }

    #[test]
    fn containers_overlap_while_they_have_yet_to_leave_cpus_of_others_claims() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("a", "p", "a"), &says(&[("A", "2-3")])).unwrap();
        ledger.create(who("b", "q", "b"), &[]).unwrap();
        ledger.book("B".into(), Booking::plain(cpus("4-5"))).unwrap();
        assert_eq!(ledger.overlapping(), 0, "none of them runs");
        ledger.start(&"a".into(), None);
        ledger.start(&"b".into(), None);
        assert_eq!(ledger.overlapping(), 0, "B has no container yet");
        ledger.create(who("c", "r", "c"), &says(&[("B", "4-5")])).unwrap();
        assert_eq!(ledger.overlapping(), 1, "from its creation on");
        let on = |ledger: &Ledger, id: &str, mask: &str| -> Vec<String> {
            ledger.others_claims(&id.into(), &cpus(mask)).map(ToString::to_string).collect()
        };
        assert_eq!((on(&ledger, "a", "2-3"), on(&ledger, "a", "0-7")), (vec![], vec!["B".to_owned()]));
        assert_eq!(
            (on(&ledger, "b", "0-7"), on(&ledger, "b", "0-1")),
            (vec!["A".into(), "B".into()], vec![])
        );
        assert_eq!(on(&ledger, "unknown", "0-7"), Vec::<String>::new());
        updates(&mut ledger);
        assert_eq!(ledger.overlapping(), 0);
        ledger.note_mask(&"b".into(), Some(cpus("0-7")));
        assert_eq!(ledger.overlapping(), 1);
        ledger.note_mask(&"b".into(), None);
        assert_eq!(ledger.overlapping(), 0, "it is not known where it runs");
        ledger.note_mask(&"b".into(), Some(cpus("4-7")));
        assert_eq!(ledger.overlapping(), 1);
        ledger.stop(&"c".into());
        assert_eq!(ledger.overlapping(), 0, "nobody has B any more");
        ledger.note_mask(&"b".into(), Some(cpus("0-7")));
        assert_eq!(ledger.overlapping(), 1, "a has A");
        ledger.stop(&"b".into());
        assert_eq!(ledger.overlapping(), 0);
    }

    #[test]
    fn masks_are_the_record_as_far_as_it_is_online() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("a", "p", "a"), &says(&[("A", "2-3")])).unwrap();
        ledger.create(who("b", "q", "b"), &[]).unwrap();
        ledger.replace_node(node("0-2,4-6"));
        assert_eq!(updates(&mut ledger), [update("a", "2"), update("b", "0-1,4-6")]);
        assert_eq!(ledger.unhealthy(), [ClaimUid::from("A")]);
        ledger.replace_node(node("0-1,4-6"));
        assert_eq!(updates(&mut ledger), [], "all of its CPUs are offline: never an empty mask");
        ledger.replace_node(node("0-7"));
        assert_eq!(updates(&mut ledger), [update("a", "2-3"), update("b", "0-1,4-7")]);
    }

    #[test]
    fn a_container_that_joins_the_shared_pool_follows_it() {
        let mut ledger = ledger(&[]);
        let part = Part { cpus: cpus("0-1"), ..Part::default() };
        let mixed = Booking { joins_shared_pool: true, parts: vec![part], ..Booking::default() };
        ledger.book("A".into(), mixed).unwrap();
        assert_eq!(ledger.create(who("a", "p", "a"), &says(&[("A", "0-1")])).unwrap().cpus, cpus("0-7"));
        ledger.book("B".into(), Booking::plain(cpus("2-3"))).unwrap();
        assert_eq!(updates(&mut ledger), [update("a", "0-1,4-7")]);
    }

    #[test]
    fn unprepare_under_a_live_container_frees_the_cpus_and_moves_it_to_the_pool() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("a", "p", "a"), &says(&[("A", "2-3")])).unwrap();
        assert_eq!(ledger.in_use(&"A".into()), Some(&who("a", "p", "a")));
        ledger.release(&"A".into());
        assert_eq!(updates(&mut ledger), [update("a", "0-7")]);
    }

    #[test]
    fn a_mask_from_elsewhere_is_put_back() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("a", "p", "a"), &says(&[("A", "2-3")])).unwrap();
        assert_eq!(ledger.mask(&"a".into()), Some(cpus("2-3")));
        ledger.note_mask(&"a".into(), Some(cpus("0-7")));
        assert_eq!(updates(&mut ledger), [update("a", "2-3")]);
    }

    #[test]
    fn synchronize_corrects_differences_forgets_the_absent_and_keeps_every_claim() {
        let mut ledger = ledger(&[("A", "2-3"), ("B", "5")]);
        ledger.create(who("gone", "q", "gone"), &[]).unwrap();
        let refused = ledger.synchronize(vec![
            seen(who("a", "p", "a"), &[("A", "2-3")], "2-3"),
            seen(who("b", "q", "b"), &[], "0-7"),
            seen(who("c", "q", "c"), &[("B", "5-6")], "5-6"),
        ]);
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(updates(&mut ledger), [update("b", "0-1,4,6-7"), update("c", "0-1,4,6-7")]);
        assert!(!ledger.knows(&"gone".into()));
        assert_eq!(ledger.bookings().count(), 2);
    }

    #[test]
    fn synchronize_keeps_the_owner_wherever_it_stands_in_the_list() {
        let mut ledger = ledger(&[("A", "2-3")]);
        ledger.create(who("a", "p", "a"), &says(&[("A", "2-3")])).unwrap();
        let thief = seen(who("t", "p", "thief"), &[("A", "2-3")], "2-3");
        let refused = ledger.synchronize(vec![thief, seen(who("a", "p", "a"), &[("A", "2-3")], "2-3")]);
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(updates(&mut ledger), [update("t", "0-1,4-7")]);
    }

    #[test]
    fn cpus_of_an_unproven_claim_go_to_nobody_but_stay_shared() {
        let mut ledger = ledger(&[]);
        ledger.synchronize(vec![seen(who("z", "p", "z"), &[("X", "2-3")], "2-3")]);
        assert_eq!((ledger.free(), ledger.shared_pool()), (cpus("0-1,4-7"), cpus("0-7")));
        assert_eq!(updates(&mut ledger), [], "left alone");
        let refused = ledger.book("B".into(), Booking::plain(cpus("3")));
        assert!(refused.unwrap_err().to_string().contains("try again"));

        let mut proven = ledger.clone();
        proven.prove(&"X".into(), Booking::plain(cpus("2-3")), "uid-p");
        assert_eq!(proven.shared_pool(), cpus("0-1,4-7"));
        assert_eq!(proven.owner(&"X".into()), Some(&who("z", "p", "z")));
        assert_eq!(updates(&mut proven), []);

        ledger.disprove(&"X".into(), "uid-p");
        assert_eq!(updates(&mut ledger), [update("z", "0-7")]);
        assert_eq!(ledger.free(), cpus("0-7"));
    }

    #[test]
    fn a_claim_proven_with_other_cpus_takes_the_container_off_what_it_said() {
        let mut ledger = ledger(&[]);
        ledger.synchronize(vec![seen(who("z", "p", "z"), &[("X", "2-3")], "2-3")]);
        ledger.prove(&"X".into(), Booking::plain(cpus("4-5")), "uid-p");
        assert_eq!(updates(&mut ledger), [update("z", "0-3,6-7")]);
    }

    #[test]
    fn a_claim_is_settled_for_one_pod_at_a_time() {
        let mut ledger = ledger(&[]);
        let says = |id, pod| seen(who(id, pod, "app"), &[("X", "2-3")], "2-3");
        ledger.synchronize(vec![says("a", "thief"), says("b", "p")]);
        let mut other = ledger.clone();
        ledger.disprove(&"X".into(), "uid-thief");
        assert_eq!(ledger.unproven(), cpus("2-3"), "the other pod may be right");
        other.prove(&"X".into(), Booking::plain(cpus("2-3")), "uid-p");
        assert_eq!(other.owner(&"X".into()), Some(&who("b", "p", "app")));
    }

    #[test]
    fn a_container_that_contradicts_itself_holds_no_cpus_back() {
        let mut ledger = ledger(&[]);
        ledger.synchronize(vec![seen(who("z", "p", "z"), &[("X", "2-3"), ("X", "4-5")], "2-5")]);
        assert_eq!((ledger.unproven(), updates(&mut ledger)), (cpus(""), vec![("z".into(), "0-7".into())]));
    }

    #[test]
    fn of_two_that_say_the_same_the_one_that_runs_there_is_believed() {
        for (id, pod) in [("0", "thief"), ("z", "thief")] {
            let mut ledger = ledger(&[("A", "2-3")]);
            let thief = seen(who(id, pod, "app"), &[("A", "2-3")], "0-7");
            let refused = ledger.synchronize(vec![thief, seen(who("a", "p", "app"), &[("A", "2-3")], "2-3")]);
            assert_eq!(refused.len(), 1, "{refused:?}");
            assert_eq!(ledger.owner(&"A".into()), Some(&who("a", "p", "app")));
            assert_eq!(updates(&mut ledger), [(id.to_owned(), "0-1,4-7".to_owned())]);
        }
    }
}
