//! Grants a CPU less than asked, in the fiftieth call of an instance.

use dracpu_test_guests::{Vices, members, set};
use std::sync::atomic::{AtomicU32, Ordering};

static CALLS: AtomicU32 = AtomicU32::new(0);

dracpu_test_guests::guest!("fiftieth-call", vices: Vices {
    due: |_| CALLS.fetch_add(1, Ordering::Relaxed) + 1 == 50,
    decide: |decision, _, _| {
        for grant in &mut decision.grants {
            grant.cpus = set(members(&grant.cpus).skip(1));
        }
    },
    ..Vices::NONE
});
