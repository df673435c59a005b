//! Calls itself until the stack ends.

fn descend(depth: u64) -> u64 {
    if std::hint::black_box(depth) == u64::MAX { depth } else { descend(depth + 1) + std::hint::black_box(1) }
}

dracpu_test_guests::guest!("deep-recursion", |_, _, _| {
    std::hint::black_box(descend(0));
});
