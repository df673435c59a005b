use crate::facts::Topology;
use std::fmt::Write;

impl Topology {
    /// A short text that changes when anything changes that allocations depend on: which CPUs are online,
    /// and which core, socket, NUMA node and last-level cache each is in. Sizes, distances, kinds and
    /// warnings do not count. The same in every version and on every machine, so that it can be recorded.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hash = Fnv1a::default();
        for cpu in &self.cpus {
            let socket = self.sockets.get(cpu.socket).map(|socket| socket.id);
            let node = cpu.numa_node.and_then(|at| self.numa_nodes.get(at)).map(|node| node.id);
            let written = writeln!(hash, "{} {} {socket:?} {node:?} {:?}", cpu.id, cpu.core, cpu.llc);
            debug_assert!(written.is_ok(), "a hash takes any text");
        }
        format!("{:016x}", hash.0)
    }
}

/// The 64-bit FNV-1a hash (RFC 9923). Not for secrets: it tells machines apart, it does not resist forgery.
struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Write for Fnv1a {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::load;

    #[test]
    fn the_fingerprint_is_that_of_the_allocation_facts() {
        let machine = load("two-socket").unwrap().topology;
        let same = machine.clone();
        assert_eq!(machine.fingerprint(), same.fingerprint());
        assert_eq!(machine.fingerprint().len(), 16);

        let mut memory = machine.clone();
        memory.numa_nodes[0].memory_bytes += 1;
        memory.caches[0].size_bytes += 1;
        memory.warnings.clear();
        assert_eq!(memory.fingerprint(), machine.fingerprint());

        let mut offline = machine.clone();
        offline.cpus.pop();
        let mut moved = machine.clone();
        moved.cpus[0].llc = Some(1);
        let mut renumbered = machine.clone();
        renumbered.numa_nodes[1].id = 8;
        for other in [offline, moved, renumbered] {
            assert_ne!(other.fingerprint(), machine.fingerprint());
        }
    }
}
