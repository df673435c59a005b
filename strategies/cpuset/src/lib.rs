//! Sets of logical CPUs, in the one form that host and strategies share.
//!
//! A [`CpuSet`] is a bit set over the kernel's CPU numbers. Its words are canonical (no trailing zero
//! word), so that two equal sets are equal as data, and can be handed over the strategy interface as
//! they are. Text is the kernel's list format (`0-3,8`; Linux
//! `Documentation/admin-guide/cputopology.rst`), with the strided ranges of `bitmap_parselist`
//! (`0-46:1/2`) understood and, on request, written.

mod draw;
mod parse;
mod set;

pub use draw::Draw;
pub use parse::{CpuListError, StridedList};
pub use set::{CpuSet, Iter};

/// The highest logical CPU number that a set can hold. Linux is built for at most 8192 CPUs.
pub const MAX_CPU_ID: u32 = 8191;
