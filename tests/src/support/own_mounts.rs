//! Stories about real file systems: full, read-only, gone. Each is told by a process of its own in a mount namespace of
//! its own, so that nothing is left of its mounts, however it ends.

use anyhow::{Context, Result, ensure};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const INSIDE: &str = "DRACPU_OWN_MOUNTS";

/// Whether this user can have a mount namespace.
static POSSIBLE: LazyLock<bool> = LazyLock::new(|| {
    let mounted = unshare().args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    mounted.is_ok_and(|output| output.status.success())
});

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]);
    command
}

/// Tells a story in a mount namespace of its own; `test` is the full name of the test that calls this. Where that needs
/// rights that this user does not have, says so by name and counts it.
///
/// # Errors
/// The story's.
pub fn in_own_mounts(test: &str, story: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    if inside(test) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        return runtime.block_on(story());
    }
    if !possible() {
        static SKIPPED: AtomicUsize = AtomicUsize::new(0);
        let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
        // past the capture of a test's output: nobody reads what a test that passes has written
        let _closed = writeln!(std::io::stderr(), "{test} skipped: needs root ({count} skipped so far)");
        return Ok(());
    }
    again(test).map(|_output| ())
}

/// Whether this process has a mount namespace of its own for this test.
#[must_use]
pub fn inside(test: &str) -> bool {
    std::env::var(INSIDE).is_ok_and(|inside| inside == test)
}

/// Whether this user can have one.
#[must_use]
pub fn possible() -> bool {
    *POSSIBLE
}

/// Runs the test once more, in a process with a mount namespace of its own. What it has printed.
///
/// # Errors
/// When it fails there.
pub fn again(test: &str) -> Result<String> {
    let this = std::env::current_exe()?;
    let output = unshare()
        .arg(this)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, test)
        .output()
        .context("cannot run this test again")?;
    let words = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(output.status.success(), "{test} ended with {}:\n{}\n{}", output.status, words[0], words[1]);
    let [printed, _] = words;
    ensure!(printed.contains("1 passed"), "no test is called {test}:\n{printed}");
    Ok(printed)
}

/// A mount; taken away when dropped.
pub struct Mount(PathBuf);

impl Mount {
    /// An empty file system of these bytes and inodes.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn tiny(at: &Path, bytes: u32, inodes: u32) -> Result<Self> {
        std::fs::create_dir_all(at)?;
        let options = format!("size={bytes},nr_inodes={inodes},mode=0700");
        mount(&["-t", "tmpfs", "-o", &options, "tmpfs", &at.display().to_string()])?;
        Ok(Self(at.to_owned()))
    }

    /// A directory, or a file over one that is there, at another place, too.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn bind(what: &Path, at: &Path) -> Result<Self> {
        if !at.exists() {
            std::fs::create_dir_all(at)?;
        }
        mount(&["--bind", &what.display().to_string(), &at.display().to_string()])?;
        Ok(Self(at.to_owned()))
    }

    /// Lets nobody write, or everybody again.
    ///
    /// # Errors
    /// When it cannot be mounted so.
    pub fn read_only(&self, read_only: bool) -> Result<()> {
        let options = if read_only { "remount,bind,ro" } else { "remount,bind,rw" };
        mount(&["-o", options, &self.0.display().to_string()])
    }

    /// The same for the file system itself, not for this way to it.
    ///
    /// # Errors
    /// When it cannot be mounted so.
    pub fn file_system_read_only(&self, read_only: bool) -> Result<()> {
        let options = if read_only { "remount,ro" } else { "remount,rw" };
        mount(&["-o", options, &self.0.display().to_string()])
    }

    /// Leaves no byte free; the file is to be removed for room.
    ///
    /// # Errors
    /// When it fails otherwise.
    pub fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path)?;
        loop {
            match file.write(&[0; 512]) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(path),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Leaves no inode free; the directory is to be removed for new files.
    ///
    /// # Errors
    /// When it fails otherwise.
    pub fn use_all_inodes(&self) -> Result<PathBuf> {
        let directory = self.0.join("filler");
        std::fs::create_dir(&directory)?;
        for n in 0.. {
            match std::fs::File::create(directory.join(n.to_string())) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(directory)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _gone_with_the_namespace = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

fn mount(args: &[&str]) -> Result<()> {
    let output = Command::new("mount").args(args).output().context("cannot run mount")?;
    ensure!(output.status.success(), "mount {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
