//! Wants memory of a NUMA node that is not there.

dracpu_test_guests::guest!("no-such-node", |decision, _, _| {
    for grant in &mut decision.grants {
        grant.mems = vec![99];
    }
});
