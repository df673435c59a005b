use super::api::ApiError;
use super::decide::Undecided;
use super::env::EnvFault;
use super::opaque::ConfigFault;
use super::quantity::QuantityFault;
use crate::cdi::BadUid;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{BookError, ClaimUid, CreateError, Who};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a claim cannot be prepared. Nothing is booked for it, unless the text says so. The edge puts the
/// claim before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// No CDI device can carry its name.
    #[error(transparent)]
    Uid(#[from] BadUid),
    /// The claim object could not be read; a retry may help.
    #[error("the claim object cannot be read, and the driver has no full record of the claim")]
    Api(#[source] ApiError),
    /// Another claim has the same name by now.
    #[error("the claim object of this name has UID {0}: the claim has been deleted and made again")]
    Replaced(String),
    /// Since the driver's start; a retry may help.
    #[error(
        "the container runtime has not said within {} s which containers run, so it is not known which CPUs are in use; \
         the claim is tried again, and /readyz says how the connection to the runtime is", .0.as_secs_f64()
    )]
    ContainersUnknown(Duration),
    /// The kubelet has called unprepare while prepare was under way.
    #[error(
        "the claim was unprepared while it was being prepared; the kubelet prepares it again if it is still needed"
    )]
    Overtaken,
    /// The scheduler has not been there yet.
    #[error("the claim is not allocated yet")]
    NotAllocated,
    /// One of its results.
    #[error("request {request}, device {device}")]
    Result {
        /// The request.
        request: String,
        /// The device.
        device: String,
        /// What is wrong.
        #[source]
        fault: ResultFault,
    },
    /// Its opaque parameters.
    #[error(transparent)]
    Config(#[from] ConfigFault),
    /// No strategy can be used.
    #[error("no CPUs can be given: {0}")]
    NoStrategy(String),
    /// The strategy gave no CPUs.
    #[error("{}{undecided}{}", asks(.asked), held_by(.held))]
    Undecided {
        /// What the claim asks for.
        asked: Vec<Asked>,
        /// The strategy's words.
        undecided: Undecided,
        /// Claims that hold CPUs where it looked.
        held: Vec<(ClaimUid, CpuSet)>,
    },
    /// Another strategy than the node's would take what the node's has offered.
    #[error(
        "strategy {strategy} would give CPUs {given}{}, after which {active}, by which this node's devices offer CPUs, could \
         not serve the {owed} CPUs of {device} that are still on offer; name {active}, or options or CPUs with which \
         nothing is kept idle and cores and caches stay whole",
        kept_idle(.idle)
    )]
    Unkept {
        /// Who decides for the claim.
        strategy: String,
        /// Who decides where a claim says nothing.
        active: String,
        /// The device.
        device: String,
        /// What the scheduler would still give of it.
        owed: u32,
        /// What the claim would get.
        given: CpuSet,
        /// What nobody could use meanwhile.
        idle: CpuSet,
    },
    /// The CPUs cannot be given out.
    #[error("{}{fault}", asks(.asked))]
    Book {
        /// What the claim asks for.
        asked: Vec<Asked>,
        /// Why not.
        fault: BookError,
    },
    /// The CPUs in the record are not what the claim's allocation asks for.
    #[error(
        "CPUs {0} are recorded for the claim, which do not fit its allocation; delete its pods, so that it \
         is unprepared"
    )]
    RecordMismatch(CpuSet),
    /// A file could not be written.
    #[error(
        "{file} {} cannot be written{}; {}",
        path.display(),
        if *.booked { ", the claim keeps its CPUs" } else { ", no CPU was given out" },
        remedy(.source)
    )]
    Write {
        /// What it is.
        file: &'static str,
        /// The file.
        path: PathBuf,
        /// Whether the CPUs stay booked: they were before, or what is left of the file cannot be removed.
        booked: bool,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A fault of this driver.
    #[error("the driver failed: {0}; report it")]
    Internal(String),
}

/// CPUs that a request asks for, and what there is of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The request.
    pub request: String,
    /// The device that the scheduler chose for it.
    pub device: String,
    /// So many CPUs.
    pub cpus: u32,
    /// CPUs of the device that nobody has.
    pub free: usize,
    /// CPUs of the device that claims can have.
    pub all: usize,
}

impl PrepareError {
    /// Whether the claim has its CPUs all the same.
    pub(super) fn keeps_cpus(&self) -> bool {
        matches!(self, Self::Write { booked: true, .. })
    }

    /// Whether a strategy has been asked for the claim before.
    pub(super) fn follows_question(&self) -> bool {
        match self {
            Self::Undecided { .. } | Self::Unkept { .. } | Self::Write { .. } => true,
            Self::Book { asked, .. } => !asked.is_empty(),
            _ => false,
        }
    }

    /// The strategy that gave no decision and what happened, for metrics; none for all other errors.
    #[must_use]
    pub fn strategy_failure(&self) -> Option<(&str, &'static str)> {
        match self {
            Self::Undecided { undecided, .. } => Some((&undecided.strategy, undecided.kind)),
            _ => None,
        }
    }
}

/// What a person can do about a file that cannot be changed. The kubelet tries again by itself.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on its file system, see `df` and `df -i`"
        }
        io::ErrorKind::ReadOnlyFilesystem => "mount its file system for writing",
        io::ErrorKind::FileTooLarge => "raise the driver's limit on file sizes (RLIMIT_FSIZE)",
        io::ErrorKind::NotFound => {
            "its directory has been taken away from under the driver, restart the driver's pod"
        }
        io::ErrorKind::PermissionDenied => "let the driver write to its directory",
        _ => "look at its file system and the kernel's log",
    }
}

/// The first requests, and how many more there are.
fn asks(asked: &[Asked]) -> String {
    const MOST: usize = 4;
    let mut text = String::new();
    for Asked { request, device, cpus, free, all } in asked.iter().take(MOST) {
        let plural = if *cpus == 1 { "" } else { "s" };
        text += &format!(
            "request {request} asks for {cpus} CPU{plural} of device {device}, {free} of {all} are free; "
        );
    }
    match asked.len().saturating_sub(MOST) {
        0 => text,
        more => text + &format!("and {more} requests more; "),
    }
}

fn kept_idle(idle: &CpuSet) -> String {
    if idle.is_empty() { String::new() } else { format!(" and keep {idle} idle") }
}

fn held_by(held: &[(ClaimUid, CpuSet)]) -> String {
    if held.is_empty() {
        return String::new();
    }
    let held: Vec<String> = held.iter().map(|(uid, cpus)| format!("CPUs {cpus} by claim {uid}")).collect();
    format!("; held until unprepared: {}", held.join(", "))
}

/// What is wrong with an allocation result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResultFault {
    /// A request of a name that no API server stores. It becomes part of file names.
    #[error("the request's name is none: lower-case letters, digits and `-`, with a subrequest behind a `/`")]
    RequestName,
    /// No device of that name.
    #[error("this node has no such device; it has {0}")]
    UnknownDevice(String),
    /// A pool of another node.
    #[error("pool {pool} is not this node's, which is {ours}")]
    ForeignPool {
        /// The result's pool.
        pool: String,
        /// This node's.
        ours: String,
    },
    /// Access that takes nothing.
    #[error("adminAccess is not supported: CPUs cannot be watched, only used; ask without it")]
    AdminAccess,
    /// No capacity.
    #[error("consumedCapacity has no dra.cpu/cpu; is the feature gate DRAConsumableCapacity on?")]
    NoCapacity,
    /// Not a number of CPUs.
    #[error("consumedCapacity dra.cpu/cpu")]
    Capacity(#[from] QuantityFault),
}

/// Why a claim cannot be unprepared; its CPUs stay booked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnprepareError {
    /// A file could not be removed.
    #[error("{file} {} cannot be removed, the CPUs stay booked; {}", path.display(), remedy(.source))]
    Remove {
        /// What it is.
        file: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A fault of this driver.
    #[error("the driver failed: {0}; report it")]
    Internal(String),
}

/// Why a claim is not released by hand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Nothing to release.
    #[error("no such claim is prepared on this node; `dracpu claims` lists those that are, by UID")]
    Unknown,
    /// Whether a container needs it is not known.
    #[error(
        "the container runtime has not said yet which containers run, so it is not known whether one has the claim; try \
         again, and /readyz says how the connection to the runtime is"
    )]
    ContainersUnknown,
    /// A container needs it.
    #[error("{0} still has it; delete the pod")]
    InUse(Box<Who>),
    /// The kubelet will unprepare it.
    #[error("the claim object still exists; the kubelet unprepares it when its pods are gone")]
    Claimed,
    /// Its object cannot be asked for.
    #[error(
        "its record is another driver's and says nothing but its CPUs, so it is not known whether its object still \
         exists; delete the pod that uses it, and the kubelet unprepares it"
    )]
    Nameless,
    /// Whether somebody needs it is not known.
    #[error(
        "whether the claim object still exists is not known, so nothing is freed; try again when the API server answers"
    )]
    Unsure(#[source] ApiError),
    /// As in unprepare.
    #[error(transparent)]
    Unprepare(#[from] UnprepareError),
}

/// Why a container must not be made, or not with this mask.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// A variable of this driver's that cannot be understood or believed.
    #[error(transparent)]
    Env(#[from] EnvFault),
    /// The ledger refuses.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Somebody else has changed the mask.
    #[error(
        "its CPUs would be {found}, but must be {wanted}: another NRI plugin or the runtime changed them"
    )]
    OtherCpus {
        /// What this driver set.
        wanted: CpuSet,
        /// What is to be set.
        found: CpuSet,
    },
    /// Nobody has set a mask.
    #[error("it has no mask from this driver: its creation was not seen; try again")]
    Unseen,
}
