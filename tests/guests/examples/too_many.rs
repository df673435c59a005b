//! Grants a CPU more than asked.

use dracpu_test_guests::{machine, members, set};

dracpu_test_guests::guest!("too-many", |decision, _, _| {
    let group = machine().groups.into_iter().next().unwrap_or_default();
    for grant in &mut decision.grants {
        let last = members(&group).last();
        grant.cpus = set(members(&grant.cpus).chain(last));
    }
});
