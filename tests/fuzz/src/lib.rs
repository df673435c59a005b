//! What must hold for whatever others write: for each kind of input a function of its bytes, which panics where the
//! code under test breaks a promise. The same functions are fuzzed (`make fuzz`, `targets`) and replayed
//! over the corpus by `cargo test` (`tests/replay.rs`).
//!
//! Every input is also held to a bound: what reading and checking it may allocate in all, set free or not.
//!
//! Reading order: this file, then a file for each room whose input it is.

mod cdi;
mod claims;
mod config;
mod cpus;
mod nri;
mod strategy;
mod sysfs;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A kind of input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// What the target and the directory of its corpus are called.
    pub name: &'static str,
    /// Panics where a promise is broken.
    check: fn(&[u8]),
    /// What a check may allocate in all, whatever the input: in kilobytes.
    fixed_kib: usize,
    /// And for each byte of it.
    per_byte: usize,
    /// Words that such input is made of.
    pub words: &'static [&'static str],
}

/// All kinds.
pub static TARGETS: &[Target] = &[
    cpus::LISTS,
    sysfs::TREES,
    cdi::SPECS,
    cdi::RECORDS,
    claims::ENV,
    claims::OPAQUE,
    claims::QUANTITIES,
    config::FILES,
    nri::FRAMES,
    nri::MESSAGES,
    strategy::DECISIONS,
    strategy::OFFERS,
    strategy::DESCRIPTIONS,
];

impl Target {
    /// The target of this name.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn named(name: &str) -> &'static Self {
        let found = TARGETS.iter().find(|target| target.name == name);
        found.unwrap_or_else(|| panic!("no target is called {name}"))
    }

    /// Checks one input.
    ///
    /// # Panics
    /// When a promise is broken.
    pub fn run(&self, input: &[u8]) {
        let ((), allocated) = allocated(|| (self.check)(input));
        let most = (self.fixed_kib << 10) + self.per_byte * input.len();
        assert!(
            allocated <= most,
            "{} bytes took {allocated} bytes of memory, {most} are allowed",
            input.len()
        );
    }
}

/// What is said to a person must be short, whatever was quoted: at most two sets of all CPUs.
fn is_short(error: &impl std::fmt::Display) {
    let text = error.to_string();
    assert!(text.len() <= 48 << 10, "{} bytes of message: {}…", text.len(), text.get(..300).unwrap_or(&text));
}

/// What code allocates in all, set free or not, beside what it gives.
fn allocated<T>(code: impl FnOnce() -> T) -> (T, usize) {
    let region = Region::new(ALLOCATOR);
    let given = code();
    (given, region.change().bytes_allocated)
}

/// The input as text, where it is.
fn text(input: &[u8]) -> &str {
    std::str::from_utf8(input).unwrap_or_default()
}
