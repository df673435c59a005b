//! The use cases, in the order in which kubelet and runtime call them: prepare, create container, update,
//! stop, unprepare, synchronize. Owns the order of durable steps (see each file's list).
//!
//! Knows no protocol: the edges translate to and from the types here.
//!
//! Reading order: this file and `claim` (the types), `prepare`, `unprepare`, `container`, `synchronize`.

mod claim;
mod container;

pub use claim::{AllocationResult, Claim, ClaimRef, ConfigSource, OpaqueConfig, Prepared, PreparedDevice};
pub use container::{Container, Created, Pod, Update, Updated};
