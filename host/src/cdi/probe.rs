use std::io;
use std::sync::Arc;

/// A point that a claim operation has reached. At each of them the process may die, and a test makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// The claim object has been read.
    ClaimRead,
    /// The strategy has answered.
    Decided,
    /// The CPUs are booked, nothing is written.
    Booked,
    /// A file about the claim's devices is written, under a temporary name.
    MetadataTempWritten,
    /// That file has its name.
    MetadataRenamed,
    /// The spec that mounts it is written, under a temporary name.
    MetadataSpecTempWritten,
    /// That spec has its name; the claim's own is not written yet.
    MetadataSpecRenamed,
    /// The temporary file exists and is empty.
    TempCreated,
    /// The temporary file is written.
    TempWritten,
    /// The temporary file is on the disk.
    TempSynced,
    /// The spec has its name: the claim is prepared.
    Renamed,
    /// The directory is on the disk.
    WriteSynced,
    /// The answer is about to be given.
    Answering,
    /// Unprepare holds the allocation lock.
    Removing,
    /// A spec that mounts a file about the claim's devices is gone.
    MetadataUnmounted,
    /// Those files are gone; the claim's own spec is still there.
    MetadataRemoved,
    /// The spec has no name any more: the claim is unprepared.
    Unlinked,
    /// The directory is on the disk.
    RemovalSynced,
    /// The CPUs are free.
    Released,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 19] = [
        Self::ClaimRead,
        Self::Decided,
        Self::Booked,
        Self::MetadataTempWritten,
        Self::MetadataRenamed,
        Self::MetadataSpecTempWritten,
        Self::MetadataSpecRenamed,
        Self::TempCreated,
        Self::TempWritten,
        Self::TempSynced,
        Self::Renamed,
        Self::WriteSynced,
        Self::Answering,
        Self::Removing,
        Self::MetadataUnmounted,
        Self::MetadataRemoved,
        Self::Unlinked,
        Self::RemovalSynced,
        Self::Released,
    ];
}

/// A change of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A spec is about to be written.
    Write,
    /// A spec is about to be removed.
    Remove,
    /// A file about a claim's devices, or the spec that mounts it, is about to be written.
    WriteMetadata,
    /// They are about to be removed.
    RemoveMetadata,
}

/// Where tests and `dracpu simulate` can watch, fail or kill a claim operation.
pub trait Probe: Send + Sync {
    /// Called when a step is done.
    fn reached(&self, step: Step) {
        let _ = step;
    }

    /// Called before files are touched.
    ///
    /// # Errors
    /// The change then fails with this error, and nothing has been touched.
    fn before(&self, access: Access) -> io::Result<()> {
        let _ = access;
        Ok(())
    }
}

/// Watches nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProbe;

impl Probe for NoProbe {}

/// Ends the process without any clean-up at the n-th time a step is reached.
#[cfg(debug_assertions)]
struct Abort {
    step: String,
    left: std::sync::atomic::AtomicUsize,
}

#[cfg(debug_assertions)]
impl Probe for Abort {
    fn reached(&self, step: Step) {
        use std::sync::atomic::Ordering;
        if format!("{step:?}") == self.step && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            std::process::abort();
        }
    }
}

/// The probe of the daemon: none, but for builds with debug assertions, where `DRACPU_CRASH_AT=Renamed`
/// (or `Renamed:3`, the third time) makes the process die at that [`Step`].
#[must_use]
pub fn from_environment() -> Arc<dyn Probe> {
    #[cfg(debug_assertions)]
    if let Ok(at) = std::env::var("DRACPU_CRASH_AT") {
        let (step, times) = at.split_once(':').unwrap_or((&at, "1"));
        let left = times.parse::<usize>().unwrap_or(1).into();
        return Arc::new(Abort { step: step.to_owned(), left });
    }
    Arc::new(NoProbe)
}
