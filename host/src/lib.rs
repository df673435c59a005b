//! The node daemon of the `dra.cpu` DRA driver, and its command line.
//!
//! Reading order, the direction of data: `dracpu_topology` → [`device`] → [`slices`]; then `dracpu_codec` (what others
//! write, read and checked, for all of these) and [`dra`] → [`driver`] → [`strategy`] → `dracpu_ledger` → [`metadata`] → [`cdi`] → [`nri`]; `hotplug` brings a changed machine to
//! [`driver`], `reload` changed strategies, [`events`] what people should hear of to the API server. Edges ([`dra`], [`nri`], [`slices`], [`events`], [`http`], [`live`], [`cli`]) depend on [`driver`]; nothing depends on
//! an edge.

pub mod cdi;
pub mod cli;
pub mod clock;
pub mod device;
pub mod dra;
pub mod driver;
pub mod events;
mod hotplug;
pub mod http;
mod http1;
pub mod live;
mod logging;
mod memory;
pub mod metadata;
pub mod nri;
pub mod readiness;
mod reload;
mod report;
pub mod run;
pub mod slices;
pub mod strategy;

use dracpu_codec::words;
pub use dracpu_codec::{DRIVER_NAME, config};

#[cfg(test)]
mod tests {
    #[test]
    fn the_configuration_knows_which_strategies_need_no_file() {
        let names: Vec<&str> = dracpu_built_in::BUILT_IN.iter().map(|built_in| built_in.name).collect();
        assert_eq!(names, crate::config::BUILT_IN);
    }
}
