//! CDI spec files: one per claim, and the node's durable record of who holds which CPUs. The container
//! runtime reads from them the variable that a claim's containers get; the driver reads from them what it
//! had given out before it was restarted.
//!
//! Blocking I/O. Never decides anything, touches no file that does not carry this driver's prefix, and
//! never fails as a whole because of what one file holds.
//!
//! Names and format: CDI specification 0.6.0 (`cncf-tags/container-device-interface`, `SPEC.md`).
//!
//! Reading order: `name`, `record`, `spec` (the text of a file), `spec_dir` (the directory), `probe`
//! (where tests can look or break in).

mod name;
mod probe;
mod record;
mod spec;
mod spec_dir;

pub use name::{BadUid, ENV_PREFIX, claim_of_device, device_id, spec_file_name};
pub use probe::{Access, NoProbe, Probe, Step, from_environment};
pub use record::Record;
pub use spec::{Content, SpecFault};
pub use spec_dir::{Found, SpecDir, new_file};
