//! Topology → what the node publishes: groups of CPUs (or single CPUs) as devices with attributes and
//! capacity. Never talks to the API server, never decides which CPUs a claim gets.
//!
//! Reading order: this file (the types), `grouped`, `individual`, `smt_layout`.

use dracpu_cpuset::CpuSet;
use std::collections::BTreeMap;

/// A group of CPUs that is, or may be, published as one device; what the strategy calls a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The device's name, e.g. `cpudevnuma000`.
    pub device: String,
    /// `numanode`, `socket`, `machine`.
    pub kind: &'static str,
    /// Online and not reserved; isolated CPUs are in.
    pub cpus: CpuSet,
}

/// A device as the node publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Unique in the pool, a DNS label.
    pub name: String,
    /// Its CPUs: online and not reserved.
    pub cpus: CpuSet,
    /// Attributes by qualified name.
    pub attributes: BTreeMap<String, Attribute>,
    /// Of grouped devices: what the strategy offers of `dra.cpu/cpu`.
    pub capacity: Option<Capacity>,
}

/// The capacity `dra.cpu/cpu` of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Whole CPUs.
    pub cpus: u32,
    /// Requests become multiples of it; 1 = no request policy.
    pub step: u32,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// `int`
    Int(i64),
    /// `bool`
    Bool(bool),
    /// `string`
    Text(String),
    /// `version`
    Version(String),
    /// `strings`
    Texts(Vec<String>),
}
