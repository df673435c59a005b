//! The parts of an allocated ResourceClaim that are read here.

use serde_json::Value;

/// One entry of `status.allocation.devices.results`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationResult {
    /// `request` or `request/subrequest`.
    pub request: String,
    /// Whose device it is.
    pub driver: String,
    /// The pool of the device.
    pub pool: String,
    /// The device's name.
    pub device: String,
    /// The share of a device that allows multiple allocations.
    pub share_id: Option<String>,
    /// Access that takes nothing; this driver refuses it.
    pub admin_access: bool,
    /// `consumedCapacity["dra.cpu/cpu"]`, the quantity as the API carries it.
    pub consumed_cpus: Option<String>,
}

/// Opaque parameters of this driver.
#[derive(Debug, Clone, PartialEq)]
pub struct OpaqueConfig {
    /// Where the entry comes from.
    pub source: ConfigSource,
    /// Request names it is for; empty = all.
    pub requests: Vec<String>,
    /// The parameters as they stand in the claim.
    pub parameters: Value,
}

/// Where opaque parameters come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSource {
    /// `FromClass`
    Class,
    /// `FromClaim`
    Claim,
}
