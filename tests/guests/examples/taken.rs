//! Grants a CPU that another claim holds in place of its first one.

use dracpu_test_guests::{machine, members, set};

dracpu_test_guests::guest!("taken", |decision, _, now| {
    let group = machine().groups.into_iter().next().unwrap_or_default();
    let taken = members(&group).find(|cpu| !members(&now.free).any(|free| free == *cpu));
    for grant in &mut decision.grants {
        grant.cpus = set(members(&grant.cpus).skip(1).chain(taken));
    }
});
