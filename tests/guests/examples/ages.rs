//! Works once per instance; what it keeps then is in the way of every later answer.

use std::sync::atomic::{AtomicBool, Ordering};

static USED: AtomicBool = AtomicBool::new(false);

dracpu_test_guests::guest!("ages", |_, _, _| {
    assert!(!USED.swap(true, Ordering::Relaxed), "used before");
});
