//! What a strategy says, word for word as the interface carries it and before anything of it is believed. The fields
//! are those of `wit/strategy.wit`.
#![allow(missing_docs, reason = "wit/strategy.wit says what the fields are")]

use super::{ExplicitCpuset, Reason};

/// What it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    pub name: String,
    pub version: String,
    pub summary: String,
    pub options_schema: String,
    pub explicit_cpuset: ExplicitCpuset,
    pub publishes: Vec<String>,
    pub needs: Vec<String>,
}

/// What one group offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub capacity: u32,
    pub step: u32,
    pub attributes: Vec<(String, Attribute)>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Int(i64),
    Truth(bool),
    Text(String),
    Version(String),
}

/// CPUs for the requests of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub grants: Vec<Grant>,
    pub join_shared_pool: bool,
    pub why: String,
}

/// CPUs for one request. Sets are words of 64 CPUs each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub cpus: Vec<u64>,
    pub blocked: Vec<u64>,
    pub mems: Vec<u32>,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    pub reason: Reason,
    pub request: Option<u32>,
    pub message: String,
}
