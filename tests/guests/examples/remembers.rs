//! Keeps every rule, but answers by what it was asked before: from the second question on it gives the highest
//! CPUs of the group, not the lowest.

use dracpu_test_guests::{Vices, intersection, machine, members, set};
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

dracpu_test_guests::guest!("remembers", vices: Vices {
    decide: |decision, requests, now| {
        let (true, [request], [grant]) =
            (ASKED.swap(true, Ordering::Relaxed), requests, decision.grants.as_mut_slice())
        else {
            return;
        };
        let group = machine().groups.get(request.group as usize).cloned().unwrap_or_default();
        let free: Vec<u32> = members(&intersection(&group, &now.free)).collect();
        grant.cpus = set(free.into_iter().rev().take(request.count as usize));
    },
    ..Vices::ALWAYS
});
