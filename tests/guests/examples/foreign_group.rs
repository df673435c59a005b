//! Grants a CPU of another group in place of its first one.

use dracpu_test_guests::{machine, members, set};

dracpu_test_guests::guest!("foreign-group", |decision, _, _| {
    let foreign = machine().groups.last().and_then(|group| members(group).last());
    for grant in &mut decision.grants {
        grant.cpus = set(members(&grant.cpus).skip(1).chain(foreign));
    }
});
