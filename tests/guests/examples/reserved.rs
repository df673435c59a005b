//! Grants a reserved CPU in place of its first one.

use dracpu_test_guests::{machine, members, set};

dracpu_test_guests::guest!("reserved", |decision, _, _| {
    let reserved = members(&machine().reserved).next();
    for grant in &mut decision.grants {
        grant.cpus = set(members(&grant.cpus).skip(1).chain(reserved));
    }
});
