//! The strategy `llc-first`: a claim in as few last-level caches as possible.
//!
//! Reading order: `layout` (what stands for a cache in a group), `algorithm` (the choice), `options`,
//! `strategy` (requests, preferences, denials).

pub mod algorithm;
pub mod layout;
mod options;
mod strategy;
#[cfg(test)]
mod tests;

pub use options::{Align, Options};
pub use strategy::LlcFirst;

dracpu_strategy_sdk::export!(LlcFirst);
