//! Answers the last request twice.

dracpu_test_guests::guest!("duplicate-request", |decision, _, _| {
    let last = decision.grants.last().cloned();
    decision.grants.extend(last);
});
