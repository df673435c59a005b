//! One driver a node: whoever holds the lock of the file does its work, another one waits.
//!
//! The lock is the kernel's (`flock`), so it ends with its process, however that ends. The file stays: a
//! lock on a file that is gone would exclude nobody.

use dracpu_topology::expect_regular;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// Why the node could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The file cannot be used.
    #[error("cannot lock {}; the driver must be able to make and write this file", path.display())]
    File {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another instance has it.
    #[error(
        "another driver runs on this node: {holder} holds {} and did not end within {} s; end it, or wait longer \
         with --lock-timeout", path.display(), waited.as_secs_f64()
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// What it wrote of itself.
        holder: String,
        /// How long this instance waited.
        waited: Duration,
    },
}

/// The lock; it ends when this is dropped.
#[derive(Debug)]
pub struct NodeLock {
    _file: File,
}

impl NodeLock {
    /// Locks the file, at once or as soon as its holder ends, and writes `identity` into it: that is what
    /// the next one to wait is told. Where it cannot be written (the disk is full), the next one is told less.
    ///
    /// # Errors
    /// [`LockError::Held`] after `timeout`.
    pub async fn acquire(path: &Path, timeout: Duration, identity: &str) -> Result<Self, LockError> {
        let failed = |source: io::Error| LockError::File { path: path.to_owned(), source };
        let file = open(path).map_err(failed)?;
        let file = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => file,
            Err(Errno::WOULDBLOCK) => {
                let holder = holder(path);
                tracing::warn!(lock = %path.display(), %holder, ?timeout, "another driver runs on this node, waiting for its end");
                match tokio::time::timeout(timeout, wait(file)).await {
                    Ok(locked) => locked.map_err(failed)?,
                    Err(_elapsed) => {
                        return Err(LockError::Held { path: path.to_owned(), holder, waited: timeout });
                    }
                }
            }
            Err(error) => return Err(failed(error.into())),
        };
        // The lock is what counts, and a full disk must not keep the driver from serving the claims that there are.
        if let Err(error) = write_identity(&file, identity) {
            tracing::warn!(lock = %path.display(), %error, "cannot write who holds the node; one that waits will not be told");
        }
        Ok(Self { _file: file })
    }

    /// Who holds the lock of the file; none when nobody does. Looks by sharing the lock for a moment: one who wants it
    /// just then waits that long.
    ///
    /// # Errors
    /// When the file cannot be looked at; one that is not there is held by nobody.
    pub fn holder(path: &Path) -> io::Result<Option<String>> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => expect_regular(found?.file_type())?,
        }
        let file = File::open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(None),
            Err(Errno::WOULDBLOCK) => Ok(Some(holder(path))),
            Err(error) => Err(error.into()),
        }
    }
}

/// What is written into the lock file must not end up where a link leads.
fn open(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) => expect_regular(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(no_link);
    options.open(path)
}

/// Waits in a thread of its own, which nobody joins: it may outlive the patience of the caller, and ends
/// with the process.
async fn wait(file: File) -> io::Result<File> {
    let (sender, locked) = oneshot::channel();
    std::thread::Builder::new().name("node-lock".to_owned()).spawn(move || {
        let result = loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                result => break result,
            }
        };
        // Whoever has stopped waiting does not want the lock: dropping the file gives it back.
        let _gone = sender.send(result.map(|()| file).map_err(io::Error::from));
    })?;
    locked.await.unwrap_or_else(|_| Err(io::Error::other("the waiting thread ended")))
}

fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(512).read_to_string(&mut text));
    match (read, text.trim()) {
        (Ok(_), text) if !text.is_empty() => text.to_owned(),
        _ => "a process that did not say who it is".to_owned(),
    }
}

fn write_identity(mut file: &File, identity: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(identity.as_bytes())?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn second_one_leaves_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let _first = NodeLock::acquire(&path, LONG, "pid 1, pod kube-system/dracpu-a").await.unwrap();
        let error = NodeLock::acquire(&path, Duration::from_millis(20), "pid 2").await.unwrap_err();
        assert!(
            matches!(&error, LockError::Held { holder, .. } if holder == "pid 1, pod kube-system/dracpu-a")
        );
        assert!(error.to_string().contains("pid 1, pod kube-system/dracpu-a holds "), "{error}");
    }

    #[tokio::test]
    async fn second_one_follows_when_the_holder_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = NodeLock::acquire(&path, LONG, "a rather long identity of the first").await.unwrap();
        let waiting = tokio::spawn({
            let path = path.clone();
            async move { NodeLock::acquire(&path, LONG, "second").await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let _second = waiting.await.unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second\n");
    }

    #[tokio::test]
    async fn the_holder_is_known_without_waiting_and_nobody_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(NodeLock::holder(&path).unwrap(), None, "there is no file");
        let first = NodeLock::acquire(&path, LONG, "pid 1").await.unwrap();
        assert_eq!(NodeLock::holder(&path).unwrap().as_deref(), Some("pid 1"));
        drop(first);
        assert_eq!(NodeLock::holder(&path).unwrap(), None, "what it wrote is left");
        NodeLock::acquire(&path, LONG, "pid 2").await.unwrap();
    }

    #[tokio::test]
    async fn who_gave_up_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = NodeLock::acquire(&path, LONG, "first").await.unwrap();
        NodeLock::acquire(&path, Duration::from_millis(1), "impatient").await.unwrap_err();
        drop(first);
        NodeLock::acquire(&path, LONG, "third").await.unwrap();
    }

    #[tokio::test]
    async fn only_a_file_is_locked_and_a_link_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("elsewhere"), "precious").unwrap();
        std::os::unix::fs::symlink("elsewhere", at("link")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), pipe, rustix::fs::Mode::RWXU, 0).unwrap();
        for (name, what) in
            [("link", "a symbolic link"), ("directory", "a directory"), ("pipe", "a named pipe")]
        {
            let error = NodeLock::acquire(&at(name), LONG, "x").await.unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(cause, format!("it is {what}, not a regular file"));
            let error = NodeLock::holder(&at(name)).unwrap_err();
            assert_eq!(error.to_string(), cause);
        }
        assert_eq!(fs::read_to_string(at("elsewhere")).unwrap(), "precious");
    }

    #[tokio::test]
    async fn missing_directory_is_named() {
        let error = NodeLock::acquire(Path::new("/no/such/dir/lock"), LONG, "x").await.unwrap_err();
        assert!(error.to_string().contains("/no/such/dir/lock"));
    }
}
