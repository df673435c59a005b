//! The stand-ins and the harness, in reading order: [`cpus`], [`clock`], [`machine`] and [`large`] (what the node is made of),
//! [`api_server`], [`kubelet`], [`cdi_reader`], [`runtime`], [`scheduler`], [`guests`] (strategies), [`daemon`] (the real driver as a child
//! process), [`node`] (all of them together); then [`own_mounts`] (disks that are full or read-only), [`process_clock`] (clocks that jump), [`random`], [`books`] (what must hold on a node whatever happens to
//! it) and [`load`] (claims and containers that come and go).

pub mod api_server;
pub mod books;
pub mod cdi_reader;
pub mod clock;
pub mod cpus;
pub mod daemon;
pub mod guests;
pub mod kubelet;
pub mod large;
pub mod load;
pub mod machine;
pub mod node;
pub mod own_mounts;
mod percent;
pub mod process_clock;
pub mod random;
pub mod runtime;
pub mod scheduler;
pub mod wait;
