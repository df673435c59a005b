use crate::booking::{Booking, ClaimUid, ContainerId, Node};
use crate::containers::{Entry, Who};
use dracpu_cpuset::CpuSet;
use std::collections::BTreeMap;

/// The node's CPUs: which claim holds which, and which container runs where.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub(crate) node: Node,
    pub(crate) floor: usize,
    pub(crate) claims: BTreeMap<ClaimUid, Held>,
    pub(crate) containers: BTreeMap<ContainerId, Entry>,
}

/// A booked claim; the sets are those of its booking, kept since every hook asks for them.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) booking: Booking,
    pub(crate) cpus: CpuSet,
    pub(crate) blocked: CpuSet,
    pub(crate) owner: Option<Who>,
}

/// Why a claim cannot have the CPUs; nothing has been booked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// The claim holds CPUs already.
    #[error("the claim holds CPUs {0} already")]
    AlreadyBooked(CpuSet),
    /// Two results of the claim would have the same CPU.
    #[error("CPUs {0} are in two results of the claim")]
    OverlapsItself(CpuSet),
    /// CPUs that no claim can have.
    #[error("CPUs {0} are offline, reserved or not of this node; ask for others")]
    Unavailable(CpuSet),
    /// Other claims have them.
    #[error("CPUs {cpus} are held by {} until it is unprepared; wait for its pod to end, or delete it", list(.holders))]
    Taken {
        /// The CPUs in question.
        cpus: CpuSet,
        /// The claims that hold them.
        holders: Vec<ClaimUid>,
    },
    /// A container that ran before this driver started may have them.
    #[error(
        "CPUs {0} are in use by a container whose claim has no record; the API server is asked about it, \
         try again"
    )]
    Unproven(CpuSet),
    /// The rest of the node needs CPUs too.
    #[error(
        "this would leave {left} CPUs to all containers without a claim, but minSharedCPUs is {floor}; ask \
         for fewer CPUs or lower minSharedCPUs in the driver's configuration"
    )]
    BelowFloor {
        /// CPUs that would be left.
        left: usize,
        /// The configured floor.
        floor: usize,
    },
}

fn list(holders: &[ClaimUid]) -> String {
    let names: Vec<String> = holders.iter().map(|uid| format!("claim {uid}")).collect();
    names.join(" and ")
}

impl Ledger {
    /// An empty ledger. `floor` is the least number of CPUs that claims must leave to the shared pool
    /// (`minSharedCPUs`).
    #[must_use]
    pub fn new(node: Node, floor: usize) -> Self {
        Self { node, floor, claims: BTreeMap::new(), containers: BTreeMap::new() }
    }

    /// Other CPUs are online, reserved or isolated. Claims keep what they hold.
    pub fn replace_node(&mut self, node: Node) {
        self.node = node;
    }

    /// Books the CPUs of a new claim.
    ///
    /// # Errors
    /// [`BookError`], and nothing is booked.
    pub fn book(&mut self, uid: ClaimUid, booking: Booking) -> Result<(), BookError> {
        if let Some(held) = self.claims.get(&uid) {
            return Err(BookError::AlreadyBooked(held.cpus.clone()));
        }
        let mut wanted = CpuSet::new();
        for set in booking.parts.iter().flat_map(|part| [&part.cpus, &part.blocked]) {
            if !wanted.is_disjoint(set) {
                return Err(BookError::OverlapsItself(wanted.intersection(set)));
            }
            wanted.extend_from(set);
        }
        let unavailable = wanted.difference(&self.allocatable());
        if !unavailable.is_empty() {
            return Err(BookError::Unavailable(unavailable));
        }
        let taken = wanted.intersection(&self.booked());
        if !taken.is_empty() {
            let holders = self.holders(&taken).into_iter().map(|(uid, _)| uid).collect();
            return Err(BookError::Taken { cpus: taken, holders });
        }
        let unproven = wanted.intersection(&self.unproven());
        if !unproven.is_empty() {
            return Err(BookError::Unproven(unproven));
        }
        let (shared, floor) = self.pool_and_floor();
        let left = shared.difference(&wanted).len();
        if left < shared.len() && left < floor {
            return Err(BookError::BelowFloor { left, floor });
        }
        self.insert(uid, booking);
        Ok(())
    }

    /// Takes over what a record says. Never fails: a record that overlaps another one is kept too, and
    /// both show in [`conflicted`](Self::conflicted).
    pub fn adopt(&mut self, uid: ClaimUid, booking: Booking) {
        self.insert(uid, booking);
    }

    /// Replaces what is known of a booked claim without changing its CPUs: its results have become known.
    /// False, and nothing changes, when the claim is not booked or the CPUs differ.
    pub fn describe(&mut self, uid: &ClaimUid, booking: Booking) -> bool {
        let Some(held) = self.claims.get_mut(uid).filter(|held| held.cpus == booking.cpus()) else {
            return false;
        };
        held.blocked = booking.blocked();
        held.booking = booking;
        true
    }

    fn insert(&mut self, uid: ClaimUid, booking: Booking) {
        let held = Held { cpus: booking.cpus(), blocked: booking.blocked(), owner: None, booking };
        self.claims.insert(uid, held);
    }

    /// Frees the CPUs of a claim and returns what it held; none for an unknown claim. Containers that
    /// still run on them get the shared pool with the next [`updates`](Self::updates).
    pub fn release(&mut self, uid: &ClaimUid) -> Option<Booking> {
        for entry in self.containers.values_mut() {
            entry.forget_claim(uid);
        }
        self.claims.remove(uid).map(|held| held.booking)
    }

    /// What a claim holds.
    #[must_use]
    pub fn booking(&self, uid: &ClaimUid) -> Option<&Booking> {
        self.claims.get(uid).map(|held| &held.booking)
    }

    /// All claims, by UID.
    pub fn bookings(&self) -> impl Iterator<Item = (&ClaimUid, &Booking)> {
        self.claims.iter().map(|(uid, held)| (uid, &held.booking))
    }

    /// The container that a claim belongs to; none before the first.
    #[must_use]
    pub fn owner(&self, uid: &ClaimUid) -> Option<&Who> {
        self.claims.get(uid).and_then(|held| held.owner.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::booking::Part;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn ledger(online: &str, reserved: &str, isolated: &str, floor: usize) -> Ledger {
        let node = Node { online: cpus(online), reserved: cpus(reserved), isolated: cpus(isolated) };
        Ledger::new(node, floor)
    }

    fn with_blocked(own: &str, blocked: &str) -> Booking {
        let part = Part { cpus: cpus(own), blocked: cpus(blocked), device: "d".into(), ..Part::default() };
        Booking { parts: vec![part], ..Booking::default() }
    }

    #[test]
    fn a_claim_is_refused_for_each_reason_and_books_nothing() {
        let mut ledger = ledger("0-7", "0", "6-7", 2);
        ledger.book("held".into(), with_blocked("1", "2")).unwrap();
        let twice =
            Booking { parts: vec![Booking::plain(cpus("3")).parts.remove(0); 2], ..Booking::default() };
        for (name, booking, expected) in [
            ("held", Booking::plain(cpus("3")), BookError::AlreadyBooked(cpus("1"))),
            ("itself", twice, BookError::OverlapsItself(cpus("3"))),
            ("reserved", Booking::plain(cpus("0,3")), BookError::Unavailable(cpus("0"))),
            ("unknown", Booking::plain(cpus("99")), BookError::Unavailable(cpus("99"))),
            (
                "taken",
                Booking::plain(cpus("1,3")),
                BookError::Taken { cpus: cpus("1"), holders: vec!["held".into()] },
            ),
            (
                "blocked",
                Booking::plain(cpus("2")),
                BookError::Taken { cpus: cpus("2"), holders: vec!["held".into()] },
            ),
            (
                "blocks",
                with_blocked("3", "1"),
                BookError::Taken { cpus: cpus("1"), holders: vec!["held".into()] },
            ),
            ("floor", Booking::plain(cpus("3-4")), BookError::BelowFloor { left: 1, floor: 2 }),
        ] {
            let before = ledger.free();
            assert_eq!(ledger.book(name.into(), booking), Err(expected), "{name}");
            assert_eq!(ledger.free(), before, "{name}");
        }
    }

    #[test]
    fn the_floor_error_names_the_knob_and_both_numbers() {
        let text =
            ledger("0-3", "0", "", 1).book("a".into(), Booking::plain(cpus("1-3"))).unwrap_err().to_string();
        assert!(text.contains("minSharedCPUs is 1") && text.contains("leave 0 CPUs"), "{text}");
    }

    #[test]
    fn isolated_cpus_are_not_counted_against_the_floor() {
        let mut ledger = ledger("0-3", "", "2-3", 2);
        ledger.book("a".into(), Booking::plain(cpus("2-3"))).unwrap();
        assert_eq!(ledger.shared_pool(), cpus("0-1"));
    }

    #[test]
    fn release_of_an_unknown_claim_is_ok() {
        assert_eq!(ledger("0-3", "", "", 1).release(&"never".into()), None);
    }

    #[test]
    fn overlapping_records_are_kept_and_free_nothing_until_both_are_gone() {
        let mut ledger = ledger("0-7", "", "", 1);
        ledger.adopt("a".into(), Booking::plain(cpus("2-3")));
        ledger.adopt("b".into(), Booking::plain(cpus("3-4")));
        assert_eq!(ledger.conflicted(), (cpus("3"), vec!["a".into(), "b".into()]));
        assert_eq!(ledger.shared_pool(), cpus("0-1,5-7"));
        ledger.release(&"a".into());
        assert_eq!((ledger.free(), ledger.conflicted().1), (cpus("0-2,5-7"), vec![]));
        ledger.release(&"b".into());
        assert_eq!(ledger.free(), cpus("0-7"));
    }

    #[test]
    fn a_claim_on_cpus_that_became_reserved_is_stranded_and_stays_out_of_every_pool() {
        let mut ledger = ledger("0-7", "", "", 1);
        ledger.book("a".into(), Booking::plain(cpus("2-3"))).unwrap();
        ledger.replace_node(Node { online: cpus("0-7"), reserved: cpus("2"), isolated: CpuSet::new() });
        assert_eq!(ledger.stranded(), vec![ClaimUid::from("a")]);
        ledger.release(&"a".into());
        assert_eq!((ledger.free(), ledger.stranded()), (cpus("0-1,3-7"), vec![]));
    }

    #[test]
    fn results_of_an_adopted_claim_can_be_learned_but_never_other_cpus() {
        let mut ledger = ledger("0-7", "", "", 1);
        ledger.adopt("a".into(), Booking::plain(cpus("2-3")));
        assert!(!ledger.describe(&"a".into(), with_blocked("2-4", "")));
        assert!(!ledger.describe(&"b".into(), with_blocked("2-3", "")));
        assert!(ledger.describe(&"a".into(), with_blocked("2-3", "")));
        assert!(!ledger.booking(&"a".into()).unwrap().is_plain());
    }

    #[test]
    fn memory_is_left_alone_unless_every_part_names_nodes() {
        let part = |mems: &[u32]| Part { mems: mems.to_vec(), ..Part::default() };
        let mems = |parts: Vec<Part>| Booking { parts, ..Booking::default() }.mems();
        assert_eq!(mems(vec![part(&[1, 0]), part(&[1])]), [0, 1]);
        assert_eq!(mems(vec![part(&[1]), part(&[])]), Vec::<u32>::new());
    }
}
