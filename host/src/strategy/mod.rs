//! Loads, limits, calls and verifies a strategy: a WebAssembly component that decides which CPUs a claim
//! gets. Links no algorithm; built-in components load as a user's file does.
//!
//! Never books, never writes; what it returns has been verified against the facts it was given.
//!
//! Reading order: `dracpu_codec::strategy` (the types, what a strategy says of itself, the rules for its answers),
//! `catalogue`, `compiler` and `component` (loading), `engine` and `limits`, `opened` (the use) and `call`, `convert`,
//! `log`, `error`; `question` (one as a line of text).

mod bindings;
mod call;
mod catalogue;
pub(crate) mod compiler;
mod component;
mod convert;
mod engine;
mod error;
mod limits;
mod log;
mod opened;
pub(crate) mod question;

pub use catalogue::{Catalogue, ComponentBytes, EngineError, Inspection, LoadError, LoadFault, Source};
pub use compiler::{Cache, CacheError};
pub use component::{ComponentFault, digest};
pub(crate) use dracpu_codec::strategy::description::is_dns_label;
pub use dracpu_codec::strategy::{
    Decision, Denial, Description, DescriptionFault, ExplicitCpuset, Grant, Holding, Lie, OptionsError,
    Reason, Request, State,
};
pub use error::{CpusetRule, Fault, Identity, StrategyError};
pub use limits::Limits;
pub use opened::{Loaded, Opened};

pub use crate::device::Offer;
