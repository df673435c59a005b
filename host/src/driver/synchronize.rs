//! Synchronize. The runtime has just connected and says what exists:
//!
//! 1. What is absent is forgotten; no recorded claim goes with it.
//! 2. What a container says of its claims is believed as far as the records go. Where there is no record
//!    the container is left alone, and the API server is asked outside the hook ([`prove`](super::prove)).
//! 3. For how long containers that come new ran on CPUs of others' claims is counted.
//! 4. Every container whose mask is not the one it should have gets it; the others get nothing.

use super::container::{Container, Update, updates};
use super::core::Driver;
use crate::cdi::Step;

impl Driver {
    /// All containers that exist, with the masks that they have. New masks for those that need one.
    pub fn synchronize(&self, containers: Vec<Container>) -> Vec<Update> {
        self.learn(&containers);
        let seen: Vec<_> = containers.iter().map(|container| self.seen(container)).collect();
        let updates = {
            let mut ledger = self.ledger();
            let met: Vec<&Container> =
                containers.iter().filter(|container| !ledger.knows(&container.id.as_str().into())).collect();
            self.warn_about(ledger.synchronize(seen));
            self.overlap.ran_before(&met, &ledger);
            self.tell_unproven(&ledger);
            self.containers_known.send_replace(true);
            updates(&mut ledger)
        };
        self.probe.reached(Step::Synchronized);
        updates
    }
}
