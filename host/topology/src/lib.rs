//! CPU topology of a Linux machine: sysfs (or a description of a machine in JSON or YAML) into plain
//! facts. Exact sets, never averages: a core is its thread siblings, a cache is the CPUs that share it.
//!
//! Never decides anything, never writes, knows no driver, protocol or configuration.
//!
//! Reading order: `facts` (the types), then the readers.

mod facts;

pub use facts::{Cache, Cpu, CpuKind, NumaNode, PcieRoot, Socket, Topology, Warning};
