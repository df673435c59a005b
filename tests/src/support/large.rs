//! Large machines, for the cost of calls.

use anyhow::{Context as _, Result, ensure};
use dracpu_topology::{Topology, machine};

/// A machine of so many CPUs, in multiples of 128: two sockets of four NUMA nodes, caches of eight cores, two threads
/// a core, numbered as servers are.
///
/// # Errors
/// When no such machine can be made.
pub fn machine(cpus: u32) -> Result<Topology> {
    ensure!(cpus > 0 && cpus.is_multiple_of(128), "{cpus} CPUs are no whole caches in eight NUMA nodes");
    let file = tempfile::NamedTempFile::new()?;
    let caches = cpus / 128;
    let shape = format!("shape: socket:2 numa:4(64G) l3:{caches} core:8 thread:2\nnumbering: thread *\n");
    std::fs::write(file.path(), shape)?;
    let path = file.path().to_str().context("a path that is no text")?;
    Ok(machine::load(path)?.topology)
}
