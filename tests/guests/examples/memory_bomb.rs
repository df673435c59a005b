//! Takes memory until it gets no more.

dracpu_test_guests::guest!("memory-bomb", |_, _, _| {
    let mut hoard = Vec::new();
    loop {
        hoard.push(vec![1_u8; 1 << 20]);
        std::hint::black_box(&hoard);
    }
});
