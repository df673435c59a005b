//! Device metadata files: what the containers of a claim can read of their devices, as Kubernetes' KEP-5304
//! has it. One file for each request of a claim, on the host, and a CDI spec that mounts it.
//!
//! Blocking I/O. Decides nothing, and touches nothing that does not carry this driver's name. A file is
//! written once, and is in place before the claim's own CDI spec makes the claim prepared.
//!
//! Sources: `k8s.io/dynamic-resource-allocation/api/metadata` (the form of a file), and the Kubernetes
//! helper library for drivers (paths, names and the CDI spec), Kubernetes 1.37.
//!
//! Reading order: `document` (the text of a file), `spec` (what mounts it), `files` (both on the disk).

mod document;
mod files;
mod spec;

pub use document::Attributes;
pub use files::{MetadataFiles, WriteError};
pub use spec::device_id;
