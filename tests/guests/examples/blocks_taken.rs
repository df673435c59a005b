//! Blocks every CPU of the group, also those that are not free.

use dracpu_test_guests::{Vices, machine, members, set};

dracpu_test_guests::guest!("blocks-taken", vices: Vices {
    decide: |decision, requests, _| {
        for (grant, request) in decision.grants.iter_mut().zip(requests) {
            let group = machine().groups.get(request.group as usize).cloned().unwrap_or_default();
            let own: Vec<u32> = members(&grant.cpus).collect();
            grant.blocked = set(members(&group).filter(|cpu| !own.contains(cpu)));
        }
    },
    due: |requests| requests.len() == 1,
    ..Vices::NONE
});
