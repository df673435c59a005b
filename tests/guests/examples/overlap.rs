//! Grants every request the CPUs of the first.

dracpu_test_guests::guest!("overlap", |decision, _, _| {
    let first = decision.grants.first().map(|grant| grant.cpus.clone());
    for grant in &mut decision.grants {
        grant.cpus = first.clone().unwrap_or_default();
    }
});
