//! Whatever happens in whatever order: no CPU has two owners, no mask is empty, nothing leaks.

use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, ContainerId, Ledger, Node, Part, Seen, Who};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Event {
    Book { claim: u8, cpus: CpuSet, blocked: CpuSet, joins: bool },
    Release(u8),
    Create { id: u8, claims: Vec<u8> },
    Forge { id: u8, claim: u8, cpus: CpuSet },
    Start(u8),
    Stop(u8),
    Remove(u8),
    Settle { claim: u8, real: bool },
    Synchronize { forged: Option<(u8, CpuSet)> },
    Node { online: CpuSet, reserved: CpuSet },
}

fn some_cpus() -> impl Strategy<Value = CpuSet> {
    proptest::collection::vec(0..12u32, 0..5).prop_map(|ids| ids.into_iter().collect())
}

fn event() -> impl Strategy<Value = Event> {
    let id = || 0..4u8;
    prop_oneof![
        4 => (id(), some_cpus(), some_cpus(), any::<bool>())
            .prop_map(|(claim, cpus, blocked, joins)| Event::Book { claim, cpus, blocked, joins }),
        2 => id().prop_map(Event::Release),
        4 => (id(), proptest::collection::vec(id(), 0..3)).prop_map(|(id, claims)| Event::Create { id, claims }),
        1 => (id(), id(), some_cpus()).prop_map(|(id, claim, cpus)| Event::Forge { id, claim, cpus }),
        1 => id().prop_map(Event::Start),
        2 => id().prop_map(Event::Stop),
        2 => id().prop_map(Event::Remove),
        1 => (id(), any::<bool>()).prop_map(|(claim, real)| Event::Settle { claim, real }),
        1 => proptest::option::of((id(), some_cpus())).prop_map(|forged| Event::Synchronize { forged }),
        1 => (some_cpus(), some_cpus()).prop_map(|(offline, reserved)| Event::Node {
            online: all().difference(&offline),
            reserved,
        }),
    ]
}

fn all() -> CpuSet {
    (0..12).collect()
}

fn uid(claim: u8) -> ClaimUid {
    format!("claim-{claim}").into()
}

fn who(id: u8) -> Who {
    let pod = id % 2;
    Who {
        id: format!("c{id}").into(),
        name: format!("n{id}"),
        pod_uid: format!("p{pod}"),
        pod_namespace: "ns".into(),
        pod_name: format!("p{pod}"),
    }
}

fn booking(cpus: CpuSet, blocked: CpuSet, joins_shared_pool: bool) -> Booking {
    let part = Part { cpus, blocked, device: "d".into(), ..Part::default() };
    Booking { joins_shared_pool, parts: vec![part], ..Booking::default() }
}

/// Masks as the runtime has them.
type Masks = BTreeMap<ContainerId, CpuSet>;

fn play(ledger: &mut Ledger, masks: &mut Masks, event: Event) {
    match event {
        Event::Book { claim, cpus, blocked, joins } => {
            let _ = ledger.book(uid(claim), booking(cpus, blocked, joins));
        }
        Event::Release(claim) => {
            ledger.release(&uid(claim));
        }
        Event::Create { id, claims } => {
            let said: Vec<_> = claims
                .iter()
                .map(|claim| {
                    (uid(*claim), ledger.booking(&uid(*claim)).map_or_else(CpuSet::new, Booking::cpus))
                })
                .collect();
            if let Ok(placement) = ledger.create(who(id), &said) {
                assert!(!placement.cpus.is_empty());
                masks.insert(who(id).id, placement.cpus);
            }
        }
        Event::Forge { id, claim, cpus } => {
            let before = ledger.booking(&uid(claim)).map(Booking::cpus);
            let created = ledger.create(who(id), &[(uid(claim), cpus.clone())]);
            assert!(created.is_err() || before == Some(cpus), "a forged entry was believed");
            if let Ok(placement) = created {
                masks.insert(who(id).id, placement.cpus);
            }
        }
        Event::Start(id) => ledger.start(&who(id).id, masks.get(&who(id).id).cloned()),
        Event::Stop(id) => ledger.stop(&who(id).id),
        Event::Remove(id) => {
            ledger.remove(&who(id).id);
            masks.remove(&who(id).id);
        }
        Event::Settle { claim, real } => {
            let said = ledger
                .unproven_claims()
                .find(|(_, said, _)| **said == uid(claim))
                .map(|(who, _, cpus)| (who.pod_uid.clone(), cpus.clone()));
            let Some((pod, cpus)) = said else { return };
            if real && cpus.is_subset(&ledger.free().union(&ledger.unproven())) {
                ledger.prove(&uid(claim), booking(cpus, CpuSet::new(), false), &pod);
            } else {
                ledger.disprove(&uid(claim), &pod);
            }
        }
        Event::Synchronize { forged } => {
            let seen = (0..4).filter(|id| masks.contains_key(&who(*id).id)).map(|id| {
                let entries =
                    forged.iter().filter(|_| id == 0).map(|(claim, cpus)| (uid(*claim), cpus.clone()));
                Seen { who: who(id), entries: entries.collect(), mask: masks.get(&who(id).id).cloned() }
            });
            ledger.synchronize(seen.collect());
        }
        Event::Node { online, reserved } => {
            ledger.replace_node(Node { online, reserved, isolated: CpuSet::from([11]) });
        }
    }
}

proptest! {
    #[test]
    fn no_cpu_has_two_owners_and_no_mask_is_empty(events in proptest::collection::vec(event(), 1..60)) {
        let node = Node { online: all(), reserved: CpuSet::from([0]), isolated: CpuSet::from([11]) };
        let mut ledger = Ledger::new(node, 1);
        let mut masks = Masks::new();
        for event in events {
            play(&mut ledger, &mut masks, event);

            let mut booked = CpuSet::new();
            for (uid, booking) in ledger.bookings() {
                for set in [booking.cpus(), booking.blocked()] {
                    prop_assert!(booked.is_disjoint(&set), "{uid} shares {set}");
                    booked.extend_from(&set);
                }
            }
            let shared = ledger.shared_pool();
            prop_assert!(shared.is_disjoint(&booked));
            prop_assert!(shared.is_disjoint(&ledger.node().reserved.union(&ledger.node().isolated)));
            prop_assert!(shared.is_subset(&ledger.node().online));
            prop_assert!(ledger.free().is_disjoint(&booked.union(&ledger.node().reserved)));
            prop_assert!(ledger.conflicted().1.is_empty());

            for (id, mask) in ledger.updates() {
                prop_assert!(!mask.is_empty());
                prop_assert!(mask.is_subset(&ledger.node().online));
                prop_assert_ne!(masks.insert(id, mask.clone()), Some(mask), "repeats the mask that is there");
            }
            prop_assert_eq!(ledger.updates(), vec![]);
        }
    }

    #[test]
    fn prepare_and_unprepare_leave_nothing(cpus in some_cpus(), blocked in some_cpus()) {
        let mut ledger = Ledger::new(Node { online: all(), ..Node::default() }, 1);
        let (free, shared) = (ledger.free(), ledger.shared_pool());
        if ledger.book(uid(1), booking(cpus.clone(), blocked.clone(), false)).is_ok() {
            prop_assert_eq!(ledger.free(), free.difference(&cpus).difference(&blocked));
            let _ = ledger.create(who(1), &[(uid(1), cpus)]);
            ledger.release(&uid(1));
        }
        prop_assert_eq!((ledger.free(), ledger.shared_pool()), (free, shared));
        prop_assert_eq!(ledger.bookings().count(), 0);
    }

    #[test]
    fn adopted_records_never_fail_and_are_in_no_pool(sets in proptest::collection::vec(some_cpus(), 0..5)) {
        let mut ledger = Ledger::new(Node { online: all(), ..Node::default() }, 1);
        for (n, cpus) in (0..).zip(&sets) {
            ledger.adopt(uid(n), Booking::plain(cpus.clone()));
        }
        for cpus in &sets {
            prop_assert!(ledger.free().is_disjoint(cpus) && ledger.shared_pool().is_disjoint(cpus));
        }
        for (n, _) in (0..).zip(&sets) {
            ledger.release(&uid(n));
        }
        prop_assert_eq!(ledger.free(), all());
    }
}
