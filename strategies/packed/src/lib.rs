//! The strategy `packed`: the kubelet's static CPU manager policy, by exact sets.
//!
//! Reading order: `algorithm` (packing), `distributed` (even split over NUMA nodes), `layout` (the machine's units) and
//! `free` (the orders both use), `options` (the kubelet's names beside the shared wishes), `strategy` (requests, groups, preferences,
//! denials).

pub mod algorithm;
pub mod distributed;
mod free;
mod layout;
mod options;
mod strategy;

pub use layout::Layout;
pub use options::Options;
pub use strategy::Packed;

dracpu_strategy_sdk::export!(Packed);
