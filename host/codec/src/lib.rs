//! What others write, read and checked: text and bytes into the driver's types, and what the driver says into text and bytes. Every byte is taken for hostile.
//!
//! Decides nothing, owns nothing, waits for nothing. Builds without wasmtime, kube and tonic, so that it can be
//! fuzzed. Reads no file but the one that `--config` names.
//!
//! Reading order: [`words`] (how others are quoted); [`cdi`] (spec files and the record in them); [`claim`] (the
//! types), [`quantity`] and [`opaque`] (what a claim asks for); [`container`] (the types) and [`env`](mod@env) (what
//! a container says it holds); [`nri`] (the runtime's wire and messages); [`strategy`] (what a strategy says of
//! itself and answers); [`config`].

pub mod cdi;
pub mod claim;
pub mod config;
pub mod container;
pub mod env;
pub mod nri;
pub mod opaque;
pub mod quantity;
pub mod strategy;
pub mod words;

/// The driver's name: in slices, claims and the kubelet's plugin registry.
pub const DRIVER_NAME: &str = "dra.cpu";
