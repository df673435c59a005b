//! Grants a CPU less than asked.

use dracpu_test_guests::{members, set};

dracpu_test_guests::guest!("too-few", |decision, _, _| {
    for grant in &mut decision.grants {
        grant.cpus = set(members(&grant.cpus).skip(1));
    }
});
