//! The container runtime's wire and messages (Node Resource Interface). Pure: bytes in, bytes out.
//!
//! Reading order: this file (what can be wrong), `mux` and `ttrpc` (the wire), `convert` (messages and the driver's
//! types), `version` (which NRI a runtime speaks).

pub mod convert;
pub mod mux;
#[cfg(test)]
mod tests;
pub mod ttrpc;
pub mod version;

pub use version::Version;

use crate::words::quoted;

/// Bytes that no runtime sends; the connection is useless from here on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum WireError {
    #[error("the container runtime sent a frame of {length} bytes; {limit} are the most")]
    FrameTooLarge { length: u32, limit: usize },
    #[error("the container runtime sent a message of {length} bytes; {limit} are the most")]
    MessageTooLarge { length: u32, limit: usize },
    #[error(
        "the container runtime sent a message of kind {kind}; only requests (1) and responses (2) are known"
    )]
    NotUnary { kind: u8 },
}

/// Why a call of the runtime fails; the connection goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum CallError {
    #[error("this plugin has no method {}/{}", quoted(.service), quoted(.method))]
    UnknownMethod { service: String, method: String },
    #[error("the request cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
    #[error("the request names no {missing}")]
    Incomplete { missing: &'static str },
    /// The driver's decision.
    #[error(transparent)]
    Refused(anyhow::Error),
    #[error("the driver gave the container no CPUs; this is a fault of the driver")]
    NoCpus,
    #[error("the driver failed in this hook; its log has the reason")]
    Panicked,
    #[error("the answer has {length} bytes, more than a message can have")]
    TooLarge { length: usize },
}
