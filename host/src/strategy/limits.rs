use crate::config::LimitsConfig;
use crate::strategy::engine::TICK;
use std::time::Duration;
use wasmtime::ResourceLimiter;

/// What a strategy may use. Fuel, deadline and transfer are per call, memory for an instance's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Work of one call, in the runtime's units: about one per instruction, the same on every node.
    pub fuel: u64,
    /// Wall-clock time of one call; the backstop behind fuel.
    pub deadline: Duration,
    /// Linear memory and tables, summed over all of an instance.
    pub memory_bytes: u64,
    /// Data that one call may hand over.
    pub transfer_bytes: u64,
    /// Size of the component file.
    pub component_bytes: u64,
}

impl Default for Limits {
    /// Enough for guests in interpreted languages, far more than the built-in strategies use.
    fn default() -> Self {
        Self {
            fuel: 100_000_000,
            deadline: Duration::from_secs(1),
            memory_bytes: 64 << 20,
            transfer_bytes: 1 << 20,
            component_bytes: 32 << 20,
        }
    }
}

impl From<&LimitsConfig> for Limits {
    fn from(config: &LimitsConfig) -> Self {
        let default = Self::default();
        Self {
            fuel: config.fuel.unwrap_or(default.fuel),
            deadline: config.deadline.unwrap_or(default.deadline),
            memory_bytes: config.memory_bytes.unwrap_or(default.memory_bytes),
            transfer_bytes: config.transfer_bytes.unwrap_or(default.transfer_bytes),
            component_bytes: config.component_bytes.unwrap_or(default.component_bytes),
        }
    }
}

impl Limits {
    /// The deadline in ticks of the engine's clock, one more for the tick in progress.
    pub(crate) fn deadline_ticks(&self) -> u64 {
        let ticks = self.deadline.as_nanos().div_ceil(TICK.as_nanos());
        u64::try_from(ticks).unwrap_or(u64::MAX / 2).saturating_add(1)
    }
}

/// Sums what all memories and tables of an instance take, and remembers a refusal: a guest that is
/// refused memory aborts like any other, so its trap does not say why.
#[derive(Debug)]
pub(crate) struct MemoryMeter {
    limit: u64,
    used: u64,
    /// The total that was refused during this call.
    refused: Option<u64>,
}

/// What one element of a table takes in the host.
const TABLE_ELEMENT_BYTES: u64 = 8;

/// Instances, memories and tables of one strategy. Each memory reserves gigabytes of address space
/// whatever its size, so their number is limited apart from their sum.
const MOST_PARTS: usize = 64;

impl MemoryMeter {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: 0, refused: None }
    }

    pub(crate) fn forget_refusal(&mut self) {
        self.refused = None;
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn refused(&self) -> Option<u64> {
        self.refused
    }

    fn grow(&mut self, now: usize, want: usize, unit: u64) -> bool {
        // What cannot be counted does not fit.
        let more = u64::try_from(want.saturating_sub(now)).unwrap_or(u64::MAX).saturating_mul(unit);
        let total = self.used.saturating_add(more);
        if total > self.limit {
            self.refused = Some(total);
            return false;
        }
        self.used = total;
        true
    }
}

impl ResourceLimiter for MemoryMeter {
    fn memory_growing(&mut self, now: usize, want: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(now, want, 1))
    }

    fn table_growing(&mut self, now: usize, want: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(now, want, TABLE_ELEMENT_BYTES))
    }

    fn instances(&self) -> usize {
        MOST_PARTS
    }

    fn tables(&self) -> usize {
        MOST_PARTS
    }

    fn memories(&self) -> usize {
        MOST_PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_summed_over_all_memories_and_tables() {
        let mut meter = MemoryMeter::new(300);
        assert!(meter.memory_growing(0, 100, None).unwrap());
        assert!(meter.memory_growing(0, 100, None).unwrap());
        assert!(meter.table_growing(0, 10, None).unwrap());
        assert!(!meter.memory_growing(100, 150, None).unwrap());
        assert_eq!(meter.refused(), Some(330));
        meter.forget_refusal();
        assert!(meter.memory_growing(100, 120, None).unwrap());
        assert_eq!(meter.refused(), None);
    }

    #[test]
    fn a_deadline_covers_the_tick_in_progress() {
        let limits = |millis| Limits { deadline: Duration::from_millis(millis), ..Limits::default() };
        assert_eq!(limits(1000).deadline_ticks(), 101);
        assert_eq!(limits(1).deadline_ticks(), 2);
    }
}
