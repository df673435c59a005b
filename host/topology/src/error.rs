use std::io;

/// Why a machine's sysfs could not be read. Missing files are no error: see [`crate::Warning`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file or directory is there, but cannot be read.
    #[error("cannot read {path}")]
    Io {
        /// The file.
        path: String,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// A file holds something that is no value of its kind.
    #[error("{path} holds `{text}`: {fault}")]
    Malformed {
        /// The file.
        path: String,
        /// Its content, the first 80 characters.
        text: String,
        /// What is wrong with it.
        fault: String,
    },
    /// There is no online CPU in the tree.
    #[error("{root} shows no online CPU; is it the directory that holds devices/system/cpu?")]
    NoCpus {
        /// The directory that should be a sysfs root.
        root: String,
    },
}

/// Why an overlay file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The file cannot be read.
    #[error("cannot read the sysfs overlay {path}")]
    Io {
        /// The file.
        path: String,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The file is not a YAML map from text to text.
    #[error("not a YAML map of sysfs paths to file contents: {0}")]
    NotAMap(String),
    /// A key is not a file below `/sys`.
    #[error("`{0}` is not an absolute path of a file below /sys, like /sys/devices/system/cpu/online")]
    NotASysfsPath(String),
    /// A key is a directory of another key.
    #[error("`{file}` is given as a file, and as a directory by `{below}`")]
    FileAndDirectory {
        /// The key that is given as a file.
        file: String,
        /// The key below it.
        below: String,
    },
}
