//! CDI spec files as text: one per claim, with the record of who holds which CPUs.
//!
//! Names and format: CDI specification 0.6.0 (`cncf-tags/container-device-interface`, `SPEC.md`).
//!
//! Reading order: `name`, `record`, `frame`, `spec` (the text of a file).

mod frame;
pub mod name;
mod record;
pub mod spec;

pub use frame::{Device, Spec};
pub use name::{BadUid, ENV_PREFIX, claim_of_device, device_id, spec_file_name};
pub use record::Record;
pub use spec::{Content, SpecFault};
