//! The two locks of the driver and their order: the allocation lock first, then the ledger's, each once. The ledger
//! lock is never held across anything that waits: a strategy, a file, the API server, the other lock.
//!
//! The compiler sees to it that no guard is held across an `await` of a task (guards stay on their thread). The rest
//! is asserted in builds with debug assertions, so that every test is a test of the order.

use super::allocation::Allocation;
use dracpu_ledger::Ledger;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The allocation and the ledger of a driver.
pub(super) struct Locks {
    allocation: Mutex<Allocation>,
    ledger: Mutex<Ledger>,
}

impl Locks {
    pub(super) fn new(allocation: Allocation, ledger: Ledger) -> Self {
        Self { allocation: Mutex::new(allocation), ledger: Mutex::new(ledger) }
    }

    /// Blocking: it may be held for as long as a strategy and a file take.
    pub(super) fn allocation(&self) -> Guard<'_, Allocation> {
        may_wait("the allocation lock");
        Guard::new(&self.allocation, Which::Allocation)
    }

    /// Held for no longer than a look or a change takes.
    pub(super) fn ledger(&self) -> Guard<'_, Ledger> {
        Guard::new(&self.ledger, Which::Ledger)
    }
}

/// Asserts, in builds with debug assertions, that the caller may wait for this: it does not hold the ledger lock.
pub(super) fn may_wait(what: &str) {
    #[cfg(debug_assertions)]
    held::assert_no_ledger(what);
    #[cfg(not(debug_assertions))]
    let _ = what;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Allocation,
    Ledger,
}

/// A lock that is held; it ends when this is dropped.
pub(super) struct Guard<'a, T> {
    held: MutexGuard<'a, T>,
    #[cfg(debug_assertions)]
    _noted: held::Noted,
}

impl<'a, T> Guard<'a, T> {
    fn new(mutex: &'a Mutex<T>, which: Which) -> Self {
        #[cfg(debug_assertions)]
        let _noted = held::Noted::new(which);
        #[cfg(not(debug_assertions))]
        let _ = which;
        Self {
            held: lock(mutex),
            #[cfg(debug_assertions)]
            _noted,
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}

/// A lock whose holder panicked is taken over: what the holders change is changed in one step, and a driver
/// that refuses every later claim would be worse.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which locks this thread holds.
#[cfg(debug_assertions)]
mod held {
    use super::Which;
    use std::cell::Cell;

    thread_local! {
        static ALLOCATION: Cell<bool> = const { Cell::new(false) };
        static LEDGER: Cell<bool> = const { Cell::new(false) };
    }

    fn note(which: Which) -> &'static std::thread::LocalKey<Cell<bool>> {
        match which {
            Which::Allocation => &ALLOCATION,
            Which::Ledger => &LEDGER,
        }
    }

    pub(super) fn assert_no_ledger(what: &str) {
        assert!(!LEDGER.get(), "the ledger lock is held, and {what} may keep everybody waiting");
    }

    pub(super) struct Noted(Which);

    impl Noted {
        pub(super) fn new(which: Which) -> Self {
            assert!(
                !note(which).replace(true),
                "this thread holds the lock already, and would wait for itself"
            );
            Self(which)
        }
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            note(self.0).set(false);
        }
    }
}
