//! The order in which a file changes hands:
//!
//! 1. temporary file in the same directory (a runtime sees only renames, removals and writes to `.json`
//!    and `.yaml` names there), with a name that no runtime reads,
//! 2. contents to the disk,
//! 3. rename: from here on the runtime and the next start of the driver see it,
//! 4. directory to the disk.
//!
//! Removal is an unlink and the directory to the disk. A file that is not there is removed.
//!
//! While step 4 of any change is due, a spec counts as missing and a removal as not done: the next one tries again.

use super::probe::{Access, Probe, Step};
use super::{BadUid, Content, Record, SpecFault};
use dracpu_codec::cdi::name::{FILE_PREFIX, SPEC_END, TEMP_END, check_uid, spec_file_name};
use dracpu_codec::cdi::spec;
use dracpu_ledger::{Booking, ClaimUid};
use dracpu_topology::read_regular;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// The most that a spec file may hold. One for all CPUs that Linux can have is a tenth of it.
const MAX_BYTES: u64 = 4 << 20;

/// The directory that the container runtime reads transient CDI specs from.
#[derive(Clone)]
pub struct SpecDir {
    path: PathBuf,
    probe: Arc<dyn Probe>,
    /// The last attempt to bring the directory to the disk has failed.
    unsynced: Arc<AtomicBool>,
}

/// Why a spec was not written.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct NotWritten {
    /// It has its name, and only step 4 failed: the next start would find it.
    pub named: bool,
    /// Why.
    pub source: io::Error,
}

/// A spec file with this driver's prefix.
#[derive(Debug)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// The claim that its name stands for, where it does.
    pub uid: Option<ClaimUid>,
    /// What it says.
    pub content: Result<Content, SpecFault>,
}

impl SpecDir {
    /// The directory at `path`; it need not exist yet.
    #[must_use]
    pub fn new(path: PathBuf, probe: Arc<dyn Probe>) -> Self {
        Self { path, probe, unsynced: Arc::default() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of a claim.
    ///
    /// # Errors
    /// When the UID cannot stand in a CDI device name or a file's.
    pub fn file(&self, uid: &ClaimUid) -> Result<PathBuf, BadUid> {
        Ok(self.path.join(spec_file_name(uid)?))
    }

    /// Writes a claim's spec, over one that is there.
    ///
    /// # Errors
    /// [`NotWritten`], which says whether the spec is there all the same.
    pub fn write(&self, uid: &ClaimUid, record: &Record) -> Result<(), NotWritten> {
        let unnamed = |source| NotWritten { named: false, source };
        self.write_named(uid, record).map_err(unnamed)?;
        self.sync().map_err(|source| NotWritten { named: true, source })?;
        self.probe.reached(Step::WriteSynced);
        Ok(())
    }

    /// Steps 1 to 3.
    fn write_named(&self, uid: &ClaimUid, record: &Record) -> io::Result<()> {
        let file = self.file(uid).map_err(io::Error::other)?;
        self.probe.before(Access::Write)?;
        fs::create_dir_all(&self.path)?;
        let temp = file.with_extension(format!("json{TEMP_END}"));
        let rename = |()| self.probe.before(Access::Rename).and_then(|()| fs::rename(&temp, &file));
        let written = self.write_temp(&temp, &spec::text(uid, record)).and_then(rename);
        if let Err(error) = written {
            // What is left of it is swept at the next start at the latest.
            let _ = fs::remove_file(&temp);
            return Err(error);
        }
        self.probe.reached(Step::Renamed);
        Ok(())
    }

    fn write_temp(&self, temp: &Path, text: &str) -> io::Result<()> {
        let mut file = new_file(temp)?;
        self.probe.reached(Step::TempCreated);
        self.probe.before(Access::TempWrite)?;
        file.write_all(text.as_bytes())?;
        self.probe.reached(Step::TempWritten);
        self.probe.before(Access::TempSync)?;
        file.sync_all()?;
        self.probe.reached(Step::TempSynced);
        Ok(())
    }

    /// When a claim's spec was written.
    ///
    /// # Errors
    /// I/O errors; there may be no such file.
    pub fn written_at(&self, uid: &ClaimUid) -> io::Result<SystemTime> {
        let file = self.file(uid).map_err(io::Error::other)?;
        fs::symlink_metadata(file)?.modified()
    }

    /// Removes a claim's spec; one that is not there, or could never have been, is removed.
    ///
    /// # Errors
    /// I/O errors.
    pub fn remove(&self, uid: &ClaimUid) -> io::Result<()> {
        let Ok(file) = self.file(uid) else { return Ok(()) };
        self.probe.before(Access::Remove)?;
        match fs::remove_file(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if self.unsynced.load(Ordering::Relaxed) { self.sync() } else { Ok(()) };
            }
            // A file system that is mounted read-only says so before it looks.
            Err(error)
                if fs::symlink_metadata(&file).is_err_and(|at| at.kind() == io::ErrorKind::NotFound) =>
            {
                tracing::debug!(%error, "there is no CDI spec to remove");
                return Ok(());
            }
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        self.probe.reached(Step::Unlinked);
        self.sync()?;
        self.probe.reached(Step::RemovalSynced);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self
            .probe
            .before(Access::DirectorySync)
            .and_then(|()| File::open(&self.path))
            .and_then(|directory| directory.sync_all());
        self.unsynced.store(synced.is_err(), Ordering::Relaxed);
        synced
    }

    /// Whether the claim's spec is there, will outlive a crash and says what is booked.
    #[must_use]
    pub fn holds(&self, uid: &ClaimUid, booking: &Booking) -> bool {
        if self.unsynced.load(Ordering::Relaxed) {
            return false;
        }
        let Ok(file) = self.file(uid) else { return false };
        match read_regular(&file, MAX_BYTES).map(|bytes| spec::parse(uid, &bytes)) {
            Ok(Ok(Content::Recorded(record))) => record.booking == *booking,
            Ok(Ok(Content::CpusOnly { cpus, doubt: None })) => booking.is_plain() && booking.cpus() == cpus,
            _ => false,
        }
    }

    /// All spec files with this driver's prefix, by name. A directory that is not there has none.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn scan(&self) -> io::Result<Vec<Found>> {
        let mut found: Vec<Found> = Vec::new();
        for name in self.own_names()? {
            let Some(uid) = name.strip_prefix(FILE_PREFIX).and_then(|rest| rest.strip_suffix(SPEC_END))
            else {
                continue;
            };
            let path = self.path.join(&name);
            let uid = Some(ClaimUid::from(uid)).filter(|uid| check_uid(uid).is_ok());
            let content = match (&uid, read_regular(&path, MAX_BYTES)) {
                (None, _) => Err(SpecFault::NoUid),
                (_, Err(error)) => Err(SpecFault::Unreadable(error)),
                (Some(uid), Ok(bytes)) => spec::parse(uid, &bytes),
            };
            found.push(Found { path, uid, content });
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// Removes temporary files that a write left behind when the process died. Returns how many.
    ///
    /// # Errors
    /// The first I/O error; one that cannot be removed keeps no other.
    pub fn sweep(&self) -> io::Result<usize> {
        let mut swept = Ok(0);
        for name in self.own_names()?.into_iter().filter(|name| name.ends_with(TEMP_END)) {
            let removed = fs::remove_file(self.path.join(name));
            if removed.is_ok() {
                self.probe.reached(Step::TempSwept);
            }
            swept = swept.and_then(|count| removed.map(|()| count + 1));
        }
        swept
    }

    fn own_names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // A name that is no UTF-8 does not begin with the prefix that is followed by a UID.
            names.extend(entry?.file_name().into_string().ok().filter(|name| name.starts_with(FILE_PREFIX)));
        }
        Ok(names)
    }
}

/// A new, empty file that only its owner can read, in place of whatever has its name.
///
/// # Errors
/// I/O errors.
pub fn new_file(path: &Path) -> io::Result<File> {
    // Never opened, only made: what lies there could be a named pipe, or lead elsewhere.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::super::NoProbe;
    use super::*;
    use dracpu_ledger::Part;
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;

    fn record(cpus: &str) -> Record {
        let part = Part { device: "d".into(), cpus: cpus.parse().unwrap(), ..Part::default() };
        let booking = Booking { parts: vec![part], ..Booking::default() };
        Record { boot_id: "b".into(), topology_hash: "t".into(), booking }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn dir() -> (tempfile::TempDir, SpecDir) {
        let root = tempfile::tempdir().unwrap();
        let dir = SpecDir::new(root.path().join("cdi"), Arc::new(NoProbe));
        (root, dir)
    }

    #[test]
    fn a_spec_has_the_name_of_a_transient_spec_and_leaves_no_other_file() {
        let (_root, dir) = dir();
        dir.write(&"u-1".into(), &record("2-3")).unwrap();
        dir.write(&"u-1".into(), &record("2-3")).unwrap();
        assert_eq!(names(dir.path()), ["dra.k8s.io-cpu_claim-u-1.json"]);
        assert!(dir.holds(&"u-1".into(), &record("2-3").booking));
        assert!(!dir.holds(&"u-1".into(), &record("2-4").booking));
        dir.remove(&"u-1".into()).unwrap();
        dir.remove(&"u-1".into()).unwrap();
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn only_files_with_the_own_prefix_are_read_or_swept() {
        let (_root, dir) = dir();
        assert_eq!(dir.scan().unwrap().len(), 0);
        dir.write(&"A".into(), &record("2")).unwrap();
        for (name, text) in [
            ("nvidia.json", "{}"),
            ("spec.1.tmp", ""),
            ("dra.k8s.io-cpu_claim-B.json.tmp", "{"),
            ("dra.k8s.io-cpu_claim-C.yaml", ""),
            ("dra.k8s.io-cpu_claim-.json", ""),
            ("dra.k8s.io-cpu_claim-D.json", "{"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let found: Vec<(Option<ClaimUid>, bool)> =
            dir.scan().unwrap().into_iter().map(|found| (found.uid, found.content.is_ok())).collect();
        assert_eq!(found, [(None, false), (Some("A".into()), true), (Some("D".into()), false)]);
        assert_eq!(dir.sweep().unwrap(), 1);
        assert_eq!(names(dir.path()).len(), 6);
    }

    #[test]
    fn what_is_no_file_of_a_specs_size_is_an_unreadable_spec_and_the_rest_is_read() {
        let (_root, dir) = dir();
        dir.write(&"A".into(), &record("2")).unwrap();
        let at = |name: &str| dir.path().join(name);
        pipe(&at("dra.k8s.io-cpu_claim-B.json"));
        symlink("/dev/zero", at("dra.k8s.io-cpu_claim-C.json")).unwrap();
        fs::create_dir(at("dra.k8s.io-cpu_claim-D.json")).unwrap();
        let large = File::create(at("dra.k8s.io-cpu_claim-E.json")).unwrap();
        large.set_len(MAX_BYTES + 1).unwrap();
        let found: Vec<String> = dir
            .scan()
            .unwrap()
            .into_iter()
            .map(|found| match found.content {
                Ok(_) => "read".to_owned(),
                Err(SpecFault::Unreadable(error)) => error.to_string(),
                Err(fault) => fault.to_string(),
            })
            .collect();
        let expected = [
            "read",
            "it is a named pipe, not a regular file",
            "it is a device, not a regular file",
            "it is a directory, not a regular file",
            "it has more than 4194304 bytes",
        ];
        assert_eq!(found, expected);
        assert!(!dir.holds(&"B".into(), &record("2").booking));
        assert!(!dir.holds(&"C".into(), &record("2").booking));
    }

    #[test]
    fn what_lies_in_the_way_of_a_temporary_file_is_taken_away() {
        let (root, dir) = dir();
        fs::create_dir(dir.path()).unwrap();
        let target = root.path().join("elsewhere");
        symlink(&target, dir.path().join("dra.k8s.io-cpu_claim-A.json.tmp")).unwrap();
        pipe(&dir.path().join("dra.k8s.io-cpu_claim-B.json.tmp"));
        for uid in ["A", "B"] {
            dir.write(&uid.into(), &record("2")).unwrap();
            assert!(dir.holds(&uid.into(), &record("2").booking), "{uid}");
        }
        assert!(!target.exists());
        assert_eq!(names(dir.path()), ["dra.k8s.io-cpu_claim-A.json", "dra.k8s.io-cpu_claim-B.json"]);
    }

    fn pipe(path: &Path) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    }

    #[test]
    fn a_uid_never_leads_out_of_the_directory() {
        let (_root, dir) = dir();
        assert!(dir.write(&"../../x".into(), &record("2")).is_err());
        dir.remove(&"../../x".into()).unwrap();
    }

    #[test]
    fn the_longest_uid_can_be_written_and_a_longer_one_has_nothing_to_remove() {
        let (_root, dir) = dir();
        let uid = |bytes| ClaimUid::from("a".repeat(bytes).as_str());
        let longest = (1..300).take_while(|bytes| dir.file(&uid(*bytes)).is_ok()).last().unwrap();
        dir.write(&uid(longest), &record("2")).unwrap();
        assert!(dir.holds(&uid(longest), &record("2").booking));
        dir.remove(&uid(longest)).unwrap();
        dir.remove(&uid(longest + 1)).unwrap();
        assert_eq!(names(dir.path()), [""; 0]);
    }

    struct Failing;

    impl Probe for Failing {
        fn before(&self, _: Access) -> io::Result<()> {
            Err(io::Error::other("no"))
        }
    }

    #[test]
    fn a_probe_can_make_every_change_fail() {
        let (root, dir) = dir();
        dir.write(&"A".into(), &record("2")).unwrap();
        let failing = SpecDir::new(root.path().join("cdi"), Arc::new(Failing));
        assert!(failing.write(&"B".into(), &record("3")).is_err() && failing.remove(&"A".into()).is_err());
        assert_eq!(names(dir.path()), ["dra.k8s.io-cpu_claim-A.json"]);
    }

    #[derive(Default)]
    struct Order(Mutex<Vec<Step>>);

    impl Probe for Order {
        fn reached(&self, step: Step) {
            self.0.lock().unwrap().push(step);
        }
    }

    #[test]
    fn the_steps_come_in_the_order_that_makes_the_file_safe() {
        let root = tempfile::tempdir().unwrap();
        let order = Arc::new(Order::default());
        let dir = SpecDir::new(root.path().to_owned(), order.clone());
        dir.write(&"A".into(), &record("2")).unwrap();
        dir.remove(&"A".into()).unwrap();
        let expected = [
            Step::TempCreated,
            Step::TempWritten,
            Step::TempSynced,
            Step::Renamed,
            Step::WriteSynced,
            Step::Unlinked,
            Step::RemovalSynced,
        ];
        assert_eq!(*order.0.lock().unwrap(), expected);
    }

    /// Fails at one kind of access while it is there.
    #[derive(Default)]
    struct FailingAt(Mutex<Option<Access>>);

    impl Probe for FailingAt {
        fn before(&self, access: Access) -> io::Result<()> {
            let fails = *self.0.lock().unwrap() == Some(access);
            if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    #[test]
    fn a_change_that_is_not_on_the_disk_is_not_done() {
        let root = tempfile::tempdir().unwrap();
        let failing = Arc::new(FailingAt::default());
        let dir = SpecDir::new(root.path().to_owned(), failing.clone());
        let fail_at = |access| *failing.0.lock().unwrap() = access;
        fail_at(Some(Access::DirectorySync));
        assert!(dir.write(&"A".into(), &record("2")).is_err());
        assert!(!dir.holds(&"A".into(), &record("2").booking), "its name is not on the disk");
        assert!(dir.remove(&"A".into()).is_err() && dir.remove(&"A".into()).is_err());
        assert_eq!(names(root.path()), [""; 0]);
        fail_at(None);
        dir.remove(&"A".into()).unwrap();
        dir.write(&"A".into(), &record("2")).unwrap();
        assert!(dir.holds(&"A".into(), &record("2").booking));
    }

    #[test]
    fn a_write_that_fails_before_its_name_leaves_nothing() {
        for access in [Access::Write, Access::TempWrite, Access::TempSync, Access::Rename] {
            let root = tempfile::tempdir().unwrap();
            let failing = Arc::new(FailingAt(Mutex::new(Some(access))));
            let dir = SpecDir::new(root.path().to_owned(), failing);
            let error = dir.write(&"A".into(), &record("2")).unwrap_err();
            assert_eq!((error.named, error.source.kind()), (false, io::ErrorKind::StorageFull), "{access:?}");
            assert_eq!(names(root.path()), [""; 0], "{access:?}");
        }
    }

    #[test]
    fn a_temporary_file_that_cannot_be_removed_keeps_no_other() {
        let (_root, dir) = dir();
        fs::create_dir_all(dir.path().join("dra.k8s.io-cpu_claim-A.json.tmp")).unwrap();
        for uid in ["0", "B"] {
            fs::write(dir.path().join(format!("dra.k8s.io-cpu_claim-{uid}.json.tmp")), "").unwrap();
        }
        assert!(dir.sweep().is_err());
        assert_eq!(names(dir.path()), ["dra.k8s.io-cpu_claim-A.json.tmp"]);
    }
}
