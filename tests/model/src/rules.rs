//! What must hold after every event, by name.

use std::fmt;

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $rule:ident = $name:literal,)+) => {
        /// A rule of the node.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule {
            $($(#[doc = $doc])+ $rule,)+
        }

        impl Rule {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$rule),+];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)+ }
            }
        }
    };
}

rules! {
    /// No CPU is held or blocked by two claims.
    OneOwner = "one-owner",
    /// A claim is given online CPUs that are not reserved, of its device, exactly as many as it asked for.
    AsAsked = "as-asked",
    /// A claim that nobody should serve is refused.
    WrongClaim = "wrong-claim",
    /// Claims leave `minSharedCPUs` to the others.
    Floor = "floor",
    /// Preparing again gives what it gave before.
    SameAnswer = "same-answer",
    /// An answered claim is held until it is unprepared.
    Forgotten = "forgotten",
    /// A claim that is not prepared holds nothing.
    Leaked = "leaked",
    /// An answered claim is recorded on disk, as it was answered.
    Recorded = "recorded",
    /// A claim that is not prepared has no record.
    RecordLeft = "record-left",
    /// The shared pool is what nobody holds and nobody reserves.
    SharedPool = "shared-pool",
    /// No container runs on CPUs that are offline, reserved, or a claim's of somebody else.
    Mask = "mask",
    /// A container runs on all that it should.
    MaskWhole = "mask-whole",
    /// A claim has one container.
    OneContainer = "one-container",
    /// A variable that a pod sets gives it nothing.
    Forged = "forged",
    /// What can be done is done.
    Needless = "needless-refusal",
    /// What is refused has changed nothing.
    Unchanged = "refusal-changes-nothing",
    /// A device offers at least what is held of it.
    Capacity = "capacity",
    /// Claims in trouble are told, and no others.
    Told = "told",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A rule that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub rule: Rule,
    /// How it shows.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// Whether the rules hold.
pub type Verdict = Result<(), Violation>;

impl Rule {
    /// The rule, unless `holds`.
    ///
    /// # Errors
    /// When it does not hold.
    pub fn unless(self, holds: bool, what: impl FnOnce() -> String) -> Verdict {
        if holds { Ok(()) } else { Err(self.broken(what())) }
    }

    /// The rule does not hold.
    #[must_use]
    pub fn broken(self, what: impl Into<String>) -> Violation {
        Violation { rule: self, what: what.into() }
    }
}
