//! Keeps the node's ResourceSlices at the API server as they should be: one pool, named after the node.
//!
//! Never decides what is published; never removes slices at shutdown, since a restart would then cost the
//! node its devices (the API server removes them with the Node object).
//!
//! Reading order: `desired` (devices → slices), `plan` (what to write, pure), `publish` (the pump), `progress` (what it
//! last did), `error`.

mod desired;
mod error;
mod plan;
mod progress;
mod publish;
#[cfg(test)]
mod tests;

pub use desired::{Pool, generate_name};
pub use progress::{Progress, Published};
pub use publish::run;
