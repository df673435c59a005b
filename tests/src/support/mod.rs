//! The stand-ins and the harness, in reading order: [`cpus`], [`clock`], [`machine`] (what the node is made of),
//! [`api_server`], [`kubelet`], [`cdi_reader`], [`runtime`], [`scheduler`], [`guests`] (strategies), [`daemon`] (the real driver as a child
//! process), [`node`] (all of them together).

pub mod api_server;
pub mod cdi_reader;
pub mod clock;
pub mod cpus;
pub mod daemon;
pub mod guests;
pub mod kubelet;
pub mod machine;
pub mod node;
mod percent;
pub mod runtime;
pub mod scheduler;
pub mod wait;
