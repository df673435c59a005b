//! The node daemon of the `dra.cpu` DRA driver, and its command line.
//!
//! Reading order, the direction of data: `dracpu_topology` → [`device`] → [`slices`]; then [`dra`] →
//! [`driver`] → [`strategy`] → `dracpu_ledger` → [`metadata`] → [`cdi`] → [`nri`]; `hotplug` brings a changed machine to
//! [`driver`], `reload` changed strategies. Edges ([`dra`], [`nri`], [`slices`], [`http`], [`cli`]) depend on [`driver`]; nothing depends on
//! an edge.

pub mod cdi;
pub mod cli;
pub mod clock;
pub mod config;
pub mod device;
pub mod dra;
pub mod driver;
mod hotplug;
pub mod http;
mod logging;
pub mod metadata;
pub mod nri;
pub mod readiness;
mod reload;
mod report;
pub mod run;
pub mod slices;
pub mod strategy;
mod words;

/// The driver's name: in slices, claims and the kubelet's plugin registry.
pub const DRIVER_NAME: &str = "dra.cpu";
