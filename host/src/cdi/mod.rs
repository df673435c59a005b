//! CDI spec files: one per claim, and the node's durable record of who holds which CPUs. The container
//! runtime reads from them the variable that a claim's containers get; the driver reads from them what it
//! had given out before it was restarted.
//!
//! Blocking I/O. Never decides anything, touches no file that does not carry this driver's prefix, and
//! never fails as a whole because of what one file holds.
//!
//! Reading order: `dracpu_codec::cdi` (names, the record, the text of a file), `spec_dir` (the directory), `probe`
//! (where tests can look or break in).

mod probe;
mod spec_dir;

pub use dracpu_codec::cdi::{
    BadUid, Content, ENV_PREFIX, Record, SpecFault, claim_of_device, device_id, spec_file_name,
};
pub use probe::{Access, NoProbe, Probe, Step, from_environment};
pub use spec_dir::{Found, NotWritten, SpecDir, new_file};
