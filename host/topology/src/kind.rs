use crate::assemble::{Draft, DraftCpu};
use crate::error::ReadError;
use crate::facts::CpuKind;
use crate::read::CPU;
use crate::tree::Tree;
use dracpu_cpuset::CpuSet;
use std::collections::BTreeMap;

/// The performance monitors of hybrid processors, which name the CPUs of a kind, and what each is called
/// in `dra.cpu/coreType`. Low-power efficiency cores are efficiency cores of another speed.
const MONITORS: [(&str, &str); 3] =
    [("cpu_core", "p-core"), ("cpu_atom", "e-core"), ("cpu_lowpower", "e-core")];

/// What tells the speed of a CPU, the best witness first: the scheduler's own capacity (ARM, RISC-V), the
/// firmware's highest performance, the highest frequency.
const SPEEDS: [&str; 3] = ["cpu_capacity", "acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq"];

/// What stands for a kind while reading: a monitor's position, the capacity file's value, and on hybrid
/// processors whether there is an L3.
type Key = (Option<usize>, u64, bool);

/// Gives each CPU its kind.
///
/// Hybrid x86 processors name the kinds, and the fastest member gives a kind its capacity. Low-power
/// efficiency cores that the kernel counts among the others are those outside the L3. Everywhere
/// else all cores are `standard`, told apart by `cpu_capacity` alone: frequencies and firmware values
/// differ between cores of the same kind, too.
pub(crate) fn read(tree: &Tree<'_>, online: &CpuSet, draft: &mut Draft) -> Result<(), ReadError> {
    let mut monitors: Vec<(usize, CpuSet)> = Vec::new();
    for (at, (monitor, _)) in MONITORS.iter().enumerate() {
        if let Some(cpus) = tree.cpu_list(&format!("devices/{monitor}/cpus"))? {
            monitors.push((at, cpus.intersection(online)));
        }
    }
    let hybrid = monitors.iter().any(|(_, cpus)| !cpus.is_empty());
    let speed =
        |cpu: u32, file: &str| tree.hint(&format!("{CPU}/cpu{cpu}/{file}")).filter(|speed| *speed > 0);

    let mut kind_of: BTreeMap<u32, Key> = BTreeMap::new();
    for DraftCpu { id: cpu, llc, .. } in &draft.cpus {
        let cpu = *cpu;
        let mut named = monitors.iter().filter(|(_, cpus)| cpus.contains(cpu)).map(|(at, _)| *at);
        let monitor = named.next();
        if named.next().is_some() {
            draft.warnings.note("kinds-disagree", cpu);
        }
        let capacity = if hybrid { 0 } else { speed(cpu, "cpu_capacity").unwrap_or(0) };
        let has_l3 = llc.as_ref().is_some_and(|cache| cache.level == 3);
        kind_of.insert(cpu, (monitor, capacity, hybrid && has_l3));
    }

    let mut speeds: BTreeMap<Key, u64> = BTreeMap::new();
    if hybrid {
        // One witness for all, so that values are comparable; none where a kind has no value of it.
        speeds = SPEEDS
            .iter()
            .map(|file| {
                let mut speeds = BTreeMap::new();
                for (cpu, kind) in &kind_of {
                    let fastest = speeds.entry(*kind).or_insert(0);
                    *fastest = speed(*cpu, file).unwrap_or(0).max(*fastest);
                }
                speeds
            })
            .find(|speeds| speeds.values().all(|speed| *speed > 0))
            .unwrap_or_default();
    } else {
        speeds.extend(kind_of.values().map(|kind| (*kind, kind.1)));
    }
    let fastest = speeds.values().copied().max().unwrap_or(0);
    for cpu in &mut draft.cpus {
        let Some(kind) = kind_of.get(&cpu.id) else { continue };
        let name = kind.0.and_then(|at| MONITORS.get(at)).map_or("standard", |(_, name)| name);
        let speed = speeds.get(kind).copied().unwrap_or(0);
        cpu.kind = CpuKind { name: name.to_owned(), capacity: relative(speed, fastest) };
    }
    Ok(())
}

/// A speed on the scale where the fastest is 1024; unknown speeds count as the fastest.
pub(crate) fn relative(speed: u64, fastest: u64) -> u32 {
    if speed == 0 || fastest == 0 {
        return CpuKind::FASTEST;
    }
    let scaled = u128::from(speed) * u128::from(CpuKind::FASTEST) / u128::from(fastest);
    u32::try_from(scaled).unwrap_or(CpuKind::FASTEST).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_relative_to_the_fastest() {
        assert_eq!(relative(250, 1000), 256);
        assert_eq!(relative(1000, 1000), 1024);
        assert_eq!(relative(0, 1000), 1024);
        assert_eq!(relative(1, u64::MAX), 1);
    }
}
