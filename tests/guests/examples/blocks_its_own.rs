//! Blocks the CPUs that it grants.

dracpu_test_guests::guest!("blocks-its-own", |decision, _, _| {
    for grant in &mut decision.grants {
        grant.blocked = grant.cpus.clone();
    }
});
