use crate::error::ReadError;
use crate::facts::PcieRoot;
use crate::tree::Tree;

/// The PCIe roots with the CPUs local to them: `devices/pciDDDD:BB/pci_bus/DDDD:BB/cpulistaffinity`.
/// Domains have four or more digits.
pub(crate) fn read(tree: &Tree<'_>) -> Result<Vec<PcieRoot>, ReadError> {
    let mut roots = Vec::new();
    for name in tree.names("devices")? {
        let Some(bus) = name.strip_prefix("pci").filter(|bus| is_bus(bus)) else { continue };
        let dir = format!("devices/{name}/pci_bus/{bus}");
        if let Some(cpus) = tree.first_cpu_set(&dir, &["cpulistaffinity"], &["cpuaffinity"])? {
            roots.push(PcieRoot { name, cpus });
        }
    }
    Ok(roots)
}

/// Whether text is a PCI domain and bus, `0000:3a`.
pub(crate) fn is_bus(text: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split_once(':')
        .is_some_and(|(domain, bus)| domain.len() >= 4 && hex(domain) && bus.len() == 2 && hex(bus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_bridges_are_roots() {
        assert!(is_bus("0000:00") && is_bus("10000:e1"));
        assert!(!is_bus("0000:000") && !is_bus("_bus") && !is_bus("0000") && !is_bus("00:00"));
    }
}
