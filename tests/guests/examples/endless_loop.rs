//! Never ends: stopped by fuel, or by the deadline where fuel is plenty.

dracpu_test_guests::guest!("endless-loop", |_, _, _| {
    let mut turns = 0_u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
});
