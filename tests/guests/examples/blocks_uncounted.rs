//! Offers every CPU, but keeps one idle for each claim. No rule of the interface is against it.

use dracpu_test_guests::{Vices, machine, members, set};

dracpu_test_guests::guest!("blocks-uncounted", vices: Vices {
    decide: |decision, requests, now| {
        for (grant, request) in decision.grants.iter_mut().zip(requests) {
            let group = machine().groups.get(request.group as usize).cloned().unwrap_or_default();
            let own: Vec<u32> = members(&grant.cpus).collect();
            let free = dracpu_test_guests::intersection(&now.free, &group);
            grant.blocked = set(members(&free).filter(|cpu| !own.contains(cpu)).take(1));
        }
    },
    due: |requests| requests.len() == 1,
    ..Vices::ALWAYS
});
