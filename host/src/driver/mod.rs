//! The use cases, in the order in which kubelet and runtime call them: prepare, create container, update,
//! stop, unprepare, synchronize. Owns the order of durable steps (see each file's list).
//!
//! Knows no protocol: the edges translate to and from the types here. Two locks (`locks`): the *allocation lock*
//! spans strategy calls and files, and is taken in blocking tasks only; the *ledger lock* spans neither,
//! and is all that a container hook takes.
//!
//! Reading order: `dracpu_codec`'s `claim` and `container` (types) with `quantity`, `opaque` and `env` (what a claim asks
//! for, what a container says); here `claim` (more types) and `container` (the hooks), `core` (the parts and
//! their start), `locks` (their order), `floor` and `allocation` (who decides, and on what), `api`, `decide`, `loaded` and `view` (what the driver asks), `wanted` (what
//! a claim asks for), `pcie` (what its other devices say), `under_way`, `prepare`, `unprepare`, `synchronize`, `prove`, `mend`, `health`, `claim_status`, `notices`, `overlap`, `status`, `inventory`, `decisions`, `error`.

mod allocation;
mod api;
mod claim;
mod claim_status;
mod container;
mod core;
mod decide;
mod decisions;
mod error;
mod floor;
mod health;
mod inventory;
mod loaded;
mod locks;
mod mend;
mod notices;
mod overlap;
mod pcie;
mod prepare;
mod prove;
mod status;
mod synchronize;
mod under_way;
mod unprepare;
mod view;
mod wanted;

#[cfg(test)]
mod tests;

use dracpu_codec::{env, opaque, quantity};

pub use allocation::{Unusable, published};
pub use api::{Api, ApiError, ClaimStatus, DeviceStatus};
pub use claim::{
    AllocationResult, Claim, ClaimRef, ConfigSource, OpaqueConfig, PodRef, Prepared, PreparedDevice,
};
pub use container::{Container, Created, Pod, Quota, Update, Updated};
pub use core::{Driver, DriverParts, StartError};
pub use decide::{Decide, Strategies, StrategyInfo, Undecided};
pub use decisions::{PastDecision, PastQuestion, Replay, ReplayError};
pub use env::EnvFault;
pub use error::{Asked, ContainerError, PrepareError, ReleaseError, ResultFault, UnprepareError};
pub use floor::NothingShared;
pub use health::{DeviceHealth, DevicesHealth};
pub use inventory::{ClaimState, HeldClaim, Inventory, KnownContainer};
pub use loaded::LoadedOnce;
pub use notices::{Kind, Matter, Notice, Subject};
pub use opaque::ConfigFault;
pub use prove::Round;
pub use quantity::QuantityFault;
pub use status::Status;
