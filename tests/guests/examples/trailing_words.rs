//! Answers with sets that are not canonical.

dracpu_test_guests::guest!("trailing-words", |decision, _, _| {
    for grant in &mut decision.grants {
        grant.cpus.push(0);
    }
});
