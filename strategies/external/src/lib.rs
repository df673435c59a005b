//! The strategy `external`: a claim names its CPUs itself, chosen by a scheduler or a person that read
//! the published `dra.cpu/cpuIDs` and `dra.cpu/smtLayout`; here the choice is checked.
//!
//! Reading order: `algorithm` (the rules, each with its sentence), `strategy` (requests and offers).

mod algorithm;
mod strategy;

pub use algorithm::named_cpus;
pub use strategy::External;

dracpu_strategy_sdk::export!(External);
