//! Who owns which CPU of the node: claims with their CPUs, containers with the mask that they run on, and
//! the shared pool that is left. A pure state machine: no I/O, no async, no clock, no protocol.
//!
//! It never gives a CPU to two claims, never hands out an empty mask, and frees CPUs for
//! [`Ledger::release`] and for nothing else.
//!
//! Reading order: `booking` (the types), `ledger` (claims), `shared_pool` (sets that follow from them),
//! `containers` (owners, masks and the differences to tell the runtime).

mod booking;
mod containers;
mod ledger;
mod shared_pool;

pub use booking::{Booking, ClaimUid, ContainerId, Node, Part, StrategyId};
pub use containers::{CreateError, EntryError, Known, Placement, Refusal, Seen, Who};
pub use ledger::{BookError, Ledger};
