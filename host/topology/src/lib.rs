//! CPU topology of a Linux machine: sysfs (or a description of a machine in JSON or YAML) into plain
//! facts. Exact sets, never averages: a core is its thread siblings, a cache is the CPUs that share it.
//!
//! Never decides anything, never writes, knows no driver, protocol or configuration.
//!
//! Reading order: `facts` (the types), `tree`, `regular` and `overlay` (access to files), `read` with `cache`, `numa`,
//! `kind` and `pcie` (sysfs), `assemble` (any source's facts made consistent, with `warnings`); then the
//! other sources, `described` (JSON), `gatherinfo` (YAML), `shape` (a machine in a few lines, `examples` of it
//! ship with the program), `drawn` (a machine from a number), `machines` (a table) and `archive`, which `machine` tells apart, and `bundle` (a machine's files, to be one elsewhere); `fingerprint` and `draw` for what is made of the facts.

mod archive;
mod assemble;
mod bundle;
mod cache;
mod described;
mod draw;
mod drawn;
mod error;
mod examples;
mod facts;
mod fingerprint;
mod gatherinfo;
mod kind;
pub mod machine;
pub mod machines;
mod numa;
mod overlay;
mod pcie;
mod printable;
mod read;
mod regular;
mod shape;
mod tree;
mod warnings;
pub mod yaml;

pub use bundle::Bundle;
pub use described::{SCHEMA, to_json};
pub use draw::{Drawing, Mark};
pub use drawn::random_name;
pub use error::{OverlayError, ReadError};
pub use examples::{Example, examples};
pub use facts::{Cache, Cpu, CpuKind, NumaNode, PcieRoot, Socket, Topology, Warning};
pub use overlay::Overlay;
pub use read::{online, read};
pub use regular::{expect_regular, read_regular};
