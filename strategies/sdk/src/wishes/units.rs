use crate::{Cpu, CpuSet, Domain, Machine};

/// The CPUs of a machine by unit: a core, or a last-level cache and what stands for one.
#[derive(Debug)]
pub(super) struct Units {
    /// CPUs, ascending, each with the position of its unit.
    cpus: Vec<(u32, usize)>,
    /// By unit, in the order of lowest CPUs.
    sizes: Vec<usize>,
}

impl Units {
    pub(super) fn cores(machine: &Machine) -> Self {
        Self::of(machine, &|cpu| cpu.core)
    }

    pub(super) fn caches(machine: &Machine) -> Self {
        Self::of(machine, &|cpu| machine.number_of(machine.domain_of(cpu, Domain::CACHES)))
    }

    /// Units by a number that CPUs of the same one share.
    fn of(machine: &Machine, number: &dyn Fn(&Cpu) -> usize) -> Self {
        let mut known: Vec<Option<usize>> = Vec::new();
        let mut units = Self { cpus: Vec::with_capacity(machine.cpus.len()), sizes: Vec::new() };
        for cpu in &machine.cpus {
            let number = number(cpu);
            if number >= known.len() {
                known.resize(number + 1, None);
            }
            let Some(known) = known.get_mut(number) else { continue };
            let unit = *known.get_or_insert_with(|| {
                units.sizes.push(0);
                units.sizes.len() - 1
            });
            units.cpus.push((cpu.id, unit));
            if let Some(size) = units.sizes.get_mut(unit) {
                *size += 1;
            }
        }
        units
    }

    /// How many of the CPUs are in each unit.
    pub(super) fn counts(&self, cpus: &CpuSet) -> Vec<usize> {
        let mut counts = vec![0; self.sizes.len()];
        for (_, unit) in self.cpus.iter().filter(|(cpu, _)| cpus.contains(*cpu)) {
            if let Some(count) = counts.get_mut(*unit) {
                *count += 1;
            }
        }
        counts
    }

    /// The CPUs of every unit that lies in `cpus` with all of its own.
    pub(super) fn whole(&self, cpus: &CpuSet) -> CpuSet {
        let counts = self.counts(cpus);
        self.members(&|unit| counts.get(unit) == self.sizes.get(unit))
    }

    /// The CPUs of every unit that has one of `cpus`.
    pub(super) fn touched(&self, cpus: &CpuSet) -> CpuSet {
        let counts = self.counts(cpus);
        self.members(&|unit| counts.get(unit).is_some_and(|count| *count > 0))
    }

    fn members(&self, wanted: &dyn Fn(usize) -> bool) -> CpuSet {
        self.cpus.iter().filter(|(_, unit)| wanted(*unit)).map(|(cpu, _)| *cpu).collect()
    }

    /// The parts of `cpus` that lie in one unit each, in the order of the units.
    pub(super) fn parts(&self, cpus: &CpuSet) -> Vec<CpuSet> {
        let mut parts = vec![CpuSet::new(); self.sizes.len()];
        for (cpu, unit) in self.cpus.iter().filter(|(cpu, _)| cpus.contains(*cpu)) {
            if let Some(part) = parts.get_mut(*unit) {
                part.insert(*cpu);
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// The lowest CPU of each unit.
    pub(super) fn first_cpus(&self) -> CpuSet {
        let mut next = 0;
        let is_first = |(_, unit): &&(u32, usize)| {
            let first = *unit == next;
            next += usize::from(first);
            first
        };
        self.cpus.iter().filter(is_first).map(|(cpu, _)| *cpu).collect()
    }

    /// CPUs that are a unit of their own.
    pub(super) fn alone(&self) -> CpuSet {
        self.members(&|unit| self.sizes.get(unit) == Some(&1))
    }
}
