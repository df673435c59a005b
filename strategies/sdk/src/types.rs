use crate::{CpuSet, Machine};
use serde::de::DeserializeOwned;

/// A CPU allocation strategy. Implement it and hand the type to [`export!`](crate::export).
///
/// A strategy is pure: what it answers depends only on what [`open`](Self::open) and the call at hand
/// were given. The host checks every answer and fails the claim on a wrong one.
pub trait Strategy: Sized + 'static {
    /// The strategy's options; [`NoOptions`] when it has none. The host has checked them against
    /// [`Description::options_schema`] before; what does not parse all the same is denied as invalid.
    /// Options that are left out must be allowed: the empty object is what a node without settings sends.
    type Options: DeserializeOwned + Clone;

    /// What the strategy says of itself. Constant; also called where there is no node.
    fn describe() -> Description;

    /// Called once, with the machine and the node's options; returns the strategy and one offer per
    /// group of the machine, in order.
    ///
    /// # Errors
    /// A denial when the strategy cannot serve this machine with these options.
    fn open(machine: Machine, options: Self::Options) -> Result<(Self, Vec<Offer>), Denial>;

    /// Chooses CPUs for all requests of one claim, at least one. Grants of one decision must not overlap.
    ///
    /// # Errors
    /// A denial when the claim cannot be served.
    fn allocate(&self, requests: &[Request<Self::Options>], now: &State) -> Result<Decision, Denial>;
}

/// The options of a strategy that has none: the empty object, anything else is denied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

impl NoOptions {
    /// The schema of the empty object.
    pub const SCHEMA: &'static str = r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","additionalProperties":false}"#;
}

/// What a strategy says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// DNS label; what `allocator` and claims say.
    pub name: &'static str,
    /// Semantic version of the strategy.
    pub version: &'static str,
    /// One sentence for people.
    pub summary: &'static str,
    /// JSON Schema 2020-12 of the options object.
    pub options_schema: &'static str,
    /// What becomes of a claim's own cpuset.
    pub explicit_cpuset: ExplicitCpuset,
    /// Attributes that the host computes for each group: `dra.cpu/cpuIDs`, `dra.cpu/smtLayout`.
    pub publishes: &'static [&'static str],
    /// Costly inputs, sent only when named: `other-claims`.
    pub needs: &'static [&'static str],
}

/// What becomes of a claim's `cpuConfig.cpuset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplicitCpuset {
    /// The host refuses it.
    Refused,
    /// Passed on if there.
    Accepted,
    /// The host demands it.
    Required,
}

/// What one group offers the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Most CPUs that claims can hold in the group together; at most its size.
    pub capacity: u32,
    /// Requests become multiples of it; 1 = no policy.
    pub step: u32,
    /// Attributes of the strategy's own, by a name qualified with the author's domain.
    pub attributes: Vec<(String, Attribute)>,
}

impl Offer {
    /// An offer without step and attributes.
    #[must_use]
    pub fn of(capacity: u32) -> Self {
        Self { capacity, step: 1, attributes: Vec::new() }
    }

    /// An offer of as many CPUs as these.
    #[must_use]
    pub fn of_all(cpus: &CpuSet) -> Self {
        Self::of(u32::try_from(cpus.len()).unwrap_or(u32::MAX))
    }
}

/// The value of a device attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// A whole number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
    /// At most 64 bytes.
    Text(String),
    /// A semantic version.
    Version(String),
}

/// One allocation result of a claim on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<O> {
    /// With subrequest; several may share it.
    pub name: String,
    /// Position in [`Machine::groups`]; see [`Machine::group`].
    pub group: usize,
    /// How many CPUs. 0 comes only from `dracpu strategy decide` and is answered with an empty grant.
    pub count: u32,
    /// The claim's own cpuset.
    pub cpuset: Option<CpuSet>,
    /// Effective options: the claim's over its class's over the node's.
    pub options: O,
    /// Positions in [`Machine::pcie_roots`] that other devices of the claim were matched on; empty =
    /// unknown. A preference, not a demand.
    pub pcie_roots: Vec<usize>,
}

/// What is given out already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Whole machine: online, not reserved, held or blocked by no claim. Intersect with the group.
    pub free: CpuSet,
    /// What other claims hold, by lowest CPU; empty unless the strategy needs `other-claims`.
    pub others: Vec<Holding>,
}

/// What another claim holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holding {
    /// Its CPUs.
    pub cpus: CpuSet,
    /// CPUs blocked for it.
    pub blocked: CpuSet,
}

/// What one request gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    /// Exactly as many as asked: free, in the group, in no other grant.
    pub cpus: CpuSet,
    /// Free CPUs that nobody may use while the claim lives. May lie outside the group.
    pub blocked: CpuSet,
    /// Positions in [`Machine::numa_nodes`] for `cpuset.mems`; empty = leave memory alone.
    pub mems: Vec<usize>,
}

impl From<CpuSet> for Grant {
    /// A grant that blocks nothing and leaves memory alone.
    fn from(cpus: CpuSet) -> Self {
        Self { cpus, ..Self::default() }
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// One per request, in order.
    pub grants: Vec<Grant>,
    /// The container also runs on the shared pool.
    pub join_shared_pool: bool,
    /// One sentence for logs and `dracpu explain`.
    pub why: String,
}

/// Why a claim, or a machine, was refused. Made by [`deny!`](crate::deny).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// For the host to act on.
    pub reason: Reason,
    /// Position of the request at fault.
    pub request: Option<usize>,
    /// One sentence with the values and what to do; reaches `kubectl describe pod`.
    pub message: String,
}

impl Denial {
    /// The same denial, for the request at this position.
    #[must_use]
    pub fn of_request(self, position: usize) -> Self {
        Self { request: Some(position), ..self }
    }
}

/// The kind of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Can never work on this machine as asked.
    Invalid,
    /// Fewer CPUs are free in the group than asked.
    NotEnough,
    /// Enough are free, but not in the shape that the options demand.
    NoFit,
}

/// Makes a [`Denial`] from a [`Reason`] and a sentence with values, as `format!` takes it.
///
/// ```
/// use dracpu_strategy_sdk::{Reason, deny};
/// let denial = deny!(NotEnough, "{} CPUs asked, {} free; ask for fewer", 4, 3);
/// assert_eq!(denial.reason, Reason::NotEnough);
/// ```
#[macro_export]
macro_rules! deny {
    ($reason:ident, $($message:tt)+) => {
        $crate::Denial {
            reason: $crate::Reason::$reason,
            request: ::core::option::Option::None,
            message: ::std::format!($($message)+),
        }
    };
}

/// `1 CPU`, `2 CPUs`: for sentences.
#[must_use]
pub fn cpu_count(count: usize) -> String {
    counted(count, "CPU")
}

/// `1 core`, `2 cores`.
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    let mut text = String::new();
    push_counted(&mut text, count, noun);
    text
}

/// The same at the end of a text: without the formatter, which costs a component more than all the rest of a short
/// sentence.
pub fn push_counted(text: &mut String, count: usize, noun: &str) {
    push_number(text, count);
    text.push(' ');
    text.push_str(noun);
    if count != 1 {
        text.push('s');
    }
}

fn push_number(text: &mut String, number: usize) {
    if number > 9 {
        push_number(text, number / 10);
    }
    text.extend(u32::try_from(number % 10).ok().and_then(|digit| char::from_digit(digit, 10)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_counted_in_words() {
        assert_eq!(counted(0, "core"), "0 cores");
        assert_eq!(counted(1, "core"), "1 core");
        assert_eq!(cpu_count(8190), "8190 CPUs");
        assert_eq!(cpu_count(usize::MAX), format!("{} CPUs", usize::MAX));
    }
}
