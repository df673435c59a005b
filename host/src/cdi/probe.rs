use std::io;
use std::sync::Arc;

macro_rules! steps {
    ($($(#[$group_doc:meta])* $group:ident { $($(#[$doc:meta])* $step:ident,)* })*) => {
        /// A point that the driver has reached. At each of them the process may die, and tests make it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Step {
            $($($(#[$doc])* $step,)*)*
        }

        impl Step {
            $($(#[$group_doc])* pub const $group: &[Self] = &[$(Self::$step),*];)*
            /// The groups.
            pub const ALL: &[&[Self]] = &[$(Self::$group),*];
        }
    };
}

steps! {
    /// While a claim is prepared, in order.
    PREPARE {
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
    }
    /// While a claim is unprepared, in order.
    UNPREPARE {
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
    /// At the start of the daemon, in order.
    START {
        /// The node is this daemon's.
        NodeLocked,
        /// Sockets of earlier drivers are gone.
        WayCleared,
        /// A temporary file of an interrupted write is gone.
        TempSwept,
        /// A recorded claim is taken over.
        Adopted,
        /// All records are taken over.
        RecordsRead,
        /// The DRA socket is there.
        DraBound,
        /// The registration socket is there.
        RegistrationBound,
        /// The runtime is about to be told the masks of all containers.
        Synchronized,
    }
    /// For containers.
    CONTAINER {
        /// A new container has its CPUs, and the runtime is about to be told.
        ContainerPlaced,
        /// The end of a container is noted, and the runtime is about to be told what changes for others.
        ContainerStopped,
        /// Masks count as sent, and are about to be.
        MasksTaken,
        /// A running container's claim has its record again.
        Proven,
    }
    /// While a compiled strategy is put into the cache, in order.
    CACHE {
        /// The temporary file exists and is empty.
        CacheTempCreated,
        /// The temporary file is written.
        CacheTempWritten,
        /// The temporary file is on the disk.
        CacheTempSynced,
        /// The file has its name.
        CacheRenamed,
    }
}

/// A change of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A spec is about to be written.
    Write,
    /// The temporary file, which exists, is about to be written.
    TempWrite,
    /// The temporary file is about to be brought to the disk.
    TempSync,
    /// The temporary file is about to get its name.
    Rename,
    /// A spec is about to be removed.
    Remove,
    /// The directory is about to be brought to the disk.
    DirectorySync,
    /// A file about a claim's devices, or the spec that mounts it, is about to be written.
    WriteMetadata,
    /// They are about to be removed.
    RemoveMetadata,
}

/// Where tests and `dracpu simulate` can watch, fail or kill the driver.
pub trait Probe: Send + Sync {
    /// Called when a step is done.
    fn reached(&self, step: Step) {
        let _ = step;
    }

    /// Called before files are touched.
    ///
    /// # Errors
    /// This part of the change then fails with this error.
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
