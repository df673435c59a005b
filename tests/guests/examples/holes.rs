//! Takes CPU numbers for consecutive, on machines where they have holes.

use dracpu_test_guests::{Vices, machine, members, set};

dracpu_test_guests::guest!("holes", vices: Vices {
    due: |requests| {
        let mut all: Vec<u32> = machine().groups.iter().flat_map(members).collect();
        all.sort_unstable();
        requests.len() == 1 && all.iter().zip(all.iter().skip(1)).any(|(cpu, next)| *next > cpu + 1)
    },
    decide: |decision, requests, _| {
        for (grant, request) in decision.grants.iter_mut().zip(requests) {
            let first = members(&grant.cpus).next().unwrap_or_default();
            grant.cpus = set(first..first + request.count);
        }
    },
    ..Vices::NONE
});
