//! The order of the locks is asserted where a driver runs in a build with debug assertions.

use super::support::Home;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn panics(work: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    panic.downcast_ref::<String>().cloned().or(text).unwrap()
}

#[test]
fn the_wrong_order_and_waiting_under_the_ledger_lock_are_noticed() {
    let home = Home::new();
    let driver = home.start();
    let under_ledger = |work: &dyn Fn()| {
        panics(|| {
            let _ledger = driver.ledger();
            work();
        })
    };
    for (work, words) in [
        (&(|| drop(driver.allocation())) as &dyn Fn(), "the allocation lock may keep"),
        (&|| drop(driver.ledger()), "wait for itself"),
        (&|| assert!(!driver.specs().path().as_os_str().is_empty()), "a file may keep"),
        (&|| drop(driver.api().claim("n", "c")), "the API server may keep"),
    ] {
        let panic = under_ledger(work);
        assert!(panic.contains(words), "{panic}");
    }
    let twice = panics(|| {
        let _allocation = driver.allocation();
        drop(driver.allocation());
    });
    assert!(twice.contains("wait for itself"), "{twice}");
    // The right order; and whoever panicked above holds nothing.
    let _allocation = driver.allocation();
    let _ledger = driver.ledger();
}
