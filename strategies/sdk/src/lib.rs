//! What an author of a CPU allocation strategy needs.
//!
//! Implement [`Strategy`], hand the type to [`export!`], build for `wasm32-unknown-unknown` and encode as
//! a component: that is a strategy for the host. The contract is `wit/strategy.wit`; here it is put in
//! terms of [`CpuSet`] and [`Machine`]. Everything also compiles natively, so an algorithm is tested with
//! plain `cargo test` and the machines of [`testkit`].
//!
//! Of the interface's `extra` lists the topology's key `offline` is passed on; others have no meaning yet.

extern crate self as dracpu_strategy_sdk;

pub mod bindings;
mod convert;
#[doc(hidden)]
pub mod guest;
mod json;
pub mod log;
mod machine;
mod order;
mod queries;
pub mod testkit;
mod types;
pub mod wishes;

pub use dracpu_cpuset::{CpuSet, MAX_CPU_ID};
pub use machine::{Cache, Cpu, CpuKind, Domain, Group, Machine, NumaNode, PcieRoot, Socket};
pub use order::{ascending, sorted};
pub use types::{
    Attribute, Decision, Denial, Description, ExplicitCpuset, Grant, Holding, NoOptions, Offer, Reason,
    Request, State, Strategy, counted, cpu_count, push_counted,
};
pub use wishes::{Isolate, Isolated, Kind, Memory, Terms, Threads, Wishes};

#[doc(hidden)]
pub mod __private {
    pub use wit_bindgen::rt;
}
