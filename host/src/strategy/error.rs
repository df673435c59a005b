use crate::strategy::limits::Limits;
use dracpu_codec::strategy::{Denial, Lie, OptionsError};
use std::fmt;
use std::sync::Arc;
use wasmtime::Trap;

/// Which strategy, for messages: `packed 0.1.0 (sha256:1f3a5c7e9b0d)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// DNS label.
    pub name: Arc<str>,
    /// Semantic version; empty until the strategy has described itself.
    pub version: Arc<str>,
    /// `sha256:` and 64 hexadecimal digits, of the component.
    pub digest: Arc<str>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = self.digest.get(.."sha256:".len() + 12).unwrap_or(&self.digest);
        write!(f, "{}", self.name)?;
        if !self.version.is_empty() {
            write!(f, " {}", self.version)?;
        }
        write!(f, " ({short})")
    }
}

/// A strategy gave no decision. Fails the claim that asked and nothing else.
#[derive(Debug, thiserror::Error)]
#[error("strategy {strategy}: {fault}{}", last_line.as_ref().map(|line| format!("; its last log line: {line}")).unwrap_or_default())]
pub struct StrategyError {
    /// Who was asked.
    pub strategy: Identity,
    /// What happened.
    pub fault: Box<Fault>,
    /// What the guest said last during the call.
    pub last_line: Option<String>,
}

impl StrategyError {
    /// What happened, from a closed set, for metrics and scripts: `denied`, `options`, `cpuset`,
    /// `out-of-fuel`, `deadline`, `memory`, `trap`, `bad-answer`; `host` when this machine could not run it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.fault.kind()
    }

    /// The strategy's own refusal; none for any other fault.
    #[must_use]
    pub fn denial(&self) -> Option<&Denial> {
        match &*self.fault {
            Fault::Denied(denial) => Some(denial),
            _ => None,
        }
    }

    /// Whether this machine was at fault, neither the question nor the strategy.
    #[must_use]
    pub fn is_of_host(&self) -> bool {
        matches!(&*self.fault, Fault::Host(_))
    }

    /// Whether the question was at fault (denied, options, cpuset), not the strategy.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(&*self.fault, Fault::Denied(_) | Fault::Options(_) | Fault::Cpuset(_))
    }
}

/// Why a strategy gave no decision.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It refused, as it may.
    #[error("{0}")]
    Denied(Denial),
    /// The options do not fit its schema; it was not asked.
    #[error("{0}")]
    Options(OptionsError),
    /// A claim's own cpuset where none may be, or none where one must be; it was not asked.
    #[error("{0}")]
    Cpuset(CpusetRule),
    /// It worked more than one call may.
    #[error("used up the {} units of fuel of one call; raise `limits.fuel`, or report it to the strategy's author", .0.fuel)]
    OutOfFuel(Limits),
    /// It took longer than one call may.
    #[error("did not answer within {:?}; raise `limits.deadlineMillis`, or report it to the strategy's author", .0.deadline)]
    DeadlineExceeded(Limits),
    /// It wanted more memory than an instance may have.
    #[error(
        "wanted {wanted} bytes of memory, {} are allowed; raise `limits.memoryBytes`, or report it to the strategy's author",
        limits.memory_bytes
    )]
    OutOfMemory {
        /// The total it would have come to.
        wanted: u64,
        /// Its limits.
        limits: Limits,
    },
    /// It crashed.
    #[error("crashed: {0}; report it to the strategy's author")]
    Trapped(Trap),
    /// It called a function that a strategy may not.
    #[error(
        "called `{0}`, which no strategy may: it has neither files, clock nor environment; report it to the strategy's author"
    )]
    Forbidden(String),
    /// This machine could not start an instance, or go on with one.
    #[error(
        "this host cannot run an instance of it: {0}; each of its memories takes 4 GiB of address space, whatever \
         it uses: raise the process's limit of virtual memory (`ulimit -v`, `LimitAS` of systemd), or free memory \
         on the node"
    )]
    Host(String),
    /// No instance of it can be: it asks for what no strategy gets.
    #[error("cannot be started: {0}; report it to the strategy's author")]
    Unstartable(String),
    /// Its answer cannot be taken over: malformed, or larger than allowed.
    #[error(
        "its answer cannot be taken over (malformed, or more than the {} bytes of `limits.transferBytes`): {reason}",
        limits.transfer_bytes
    )]
    Unreadable {
        /// The runtime's words.
        reason: String,
        /// Its limits.
        limits: Limits,
    },
    /// It answered, against the rules.
    #[error("gave a wrong answer: {0}; report it to the strategy's author")]
    BadAnswer(Lie),
}

impl Fault {
    fn kind(&self) -> &'static str {
        match self {
            Self::Denied(_) => "denied",
            Self::Options(_) => "options",
            Self::Cpuset(_) => "cpuset",
            Self::OutOfFuel(_) => "out-of-fuel",
            Self::DeadlineExceeded(_) => "deadline",
            Self::OutOfMemory { .. } => "memory",
            Self::Trapped(_) | Self::Forbidden(_) | Self::Unstartable(_) => "trap",
            Self::Host(_) => "host",
            Self::Unreadable { .. } | Self::BadAnswer(_) => "bad-answer",
        }
    }

    /// Whether the instance's age may be the cause: memory used up over many calls. A guest with WASI imports
    /// aborts by way of one of them.
    pub(crate) fn may_come_from_age(&self) -> bool {
        let abort = matches!(self, Self::Trapped(Trap::UnreachableCodeReached) | Self::Forbidden(_));
        abort || matches!(self, Self::OutOfMemory { .. })
    }
}

/// A claim's own cpuset against what the strategy says of cpusets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpusetRule {
    /// The strategy chooses CPUs itself.
    #[error(
        "request {request}: cpuset {cpuset} is not for this strategy, which chooses the CPUs itself; leave `cpuset` out, or use a strategy that takes one, such as `external`"
    )]
    Refused {
        /// The request's name.
        request: String,
        /// What it asked for.
        cpuset: dracpu_cpuset::CpuSet,
    },
    /// The strategy needs to be told the CPUs.
    #[error(
        "request {request}: the strategy needs the CPUs named; add `cpuConfig.cpuset` for this request to the claim's opaque parameters"
    )]
    Required {
        /// The request's name.
        request: String,
    },
}
