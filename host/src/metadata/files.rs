//! The order of a claim's files, request by request:
//!
//! 1. the file, under a name that nothing mounts, then its own,
//! 2. the CDI spec that mounts it, under a name that no runtime reads, then its own.
//!
//! Removal is the other way round, so that no spec ever mounts a file that is not there. None of it is
//! forced to the disk: what a crash of the machine spoils is seen when the claim is prepared again, and
//! written anew.

use super::document::{self, Attributes};
use super::spec;
use crate::cdi::{Access, Probe, Step, new_file};
use dracpu_codec::opaque::main_request;
use dracpu_ledger::{Booking, ClaimUid, Part};
use dracpu_topology::read_regular;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most that a file may hold. One about a device with all CPUs that Linux can have is a tenth of it.
const MAX_BYTES: u64 = 4 << 20;

/// Longest name of a file (`NAME_MAX` of limits.h, in bytes).
const NAME_MAX: usize = 255;

const FILE: &str = "metadata.json";

/// What a file's name ends with until it is complete.
const TEMP_END: &str = ".tmp";

/// The files about claims on this node, and the specs that mount them.
#[derive(Clone)]
pub struct MetadataFiles {
    root: PathBuf,
    cdi_dir: PathBuf,
    probe: Arc<dyn Probe>,
}

/// A file that could not be written.
#[derive(Debug)]
pub struct WriteError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl MetadataFiles {
    /// Files below `root`, specs in `cdi_dir`. Neither need exist yet.
    #[must_use]
    pub fn new(root: PathBuf, cdi_dir: PathBuf, probe: Arc<dyn Probe>) -> Self {
        Self { root, cdi_dir, probe }
    }

    /// Where the files are.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes what is missing of a claim's files and specs.
    ///
    /// # Errors
    /// [`WriteError`]. Some files may be there then: see [`remove`](Self::remove).
    pub fn write(
        &self,
        uid: &ClaimUid,
        booking: &Booking,
        attributes: Attributes<'_>,
    ) -> Result<(), WriteError> {
        for (request, parts) in requests(booking) {
            let file = self.file(uid, booking, request);
            if !whole(uid, &file) {
                let text = document::text(uid, booking, &parts, attributes);
                let steps = [Step::MetadataTempWritten, Step::MetadataRenamed];
                self.put(&file, &text, steps).map_err(|source| WriteError { path: file.clone(), source })?;
            }
            let text = spec::text(uid, request, booking, &file);
            let spec = self.spec(uid, request);
            if !holds(&spec, &text) {
                let steps = [Step::MetadataSpecTempWritten, Step::MetadataSpecRenamed];
                self.put(&spec, &text, steps).map_err(|source| WriteError { path: spec.clone(), source })?;
            }
        }
        Ok(())
    }

    /// Whether all files and specs of a claim are there.
    #[must_use]
    pub fn holds(&self, uid: &ClaimUid, booking: &Booking) -> bool {
        requests(booking).into_keys().all(|request| {
            let file = self.file(uid, booking, request);
            whole(uid, &file) && holds(&self.spec(uid, request), &spec::text(uid, request, booking, &file))
        })
    }

    /// Removes a claim's specs and files. What is not there is removed. The directory is named after the
    /// claim's name, which another claim may have by now: with `keep_files` it stays.
    ///
    /// # Errors
    /// [`WriteError`]: what could not be removed.
    pub fn remove(
        &self,
        uid: &ClaimUid,
        namespace: &str,
        name: &str,
        keep_files: bool,
    ) -> Result<(), WriteError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| WriteError { path, source }
        };
        self.probe.before(Access::RemoveMetadata).map_err(failed(&self.root))?;
        for spec in self.specs().map_err(failed(&self.cdi_dir))? {
            if spec::claim_of(&spec) == Some(uid.clone()) {
                let path = self.cdi_dir.join(spec);
                gone(fs::remove_file(&path)).map_err(failed(&path))?;
                self.probe.reached(Step::MetadataUnmounted);
            }
        }
        if !keep_files {
            let directory = self.directory(uid, namespace, name);
            gone(fs::remove_dir_all(&directory)).map_err(failed(&directory))?;
        }
        self.probe.reached(Step::MetadataRemoved);
        Ok(())
    }

    /// Removes what is left of claims that are not known any more, and what interrupted writes left behind.
    /// Returns how many files and directories.
    ///
    /// # Errors
    /// [`WriteError`]: what could not be listed or removed.
    pub fn sweep(&self, known: &BTreeSet<ClaimUid>) -> Result<usize, WriteError> {
        let at = |path: PathBuf| move |source| WriteError { path, source };
        let mut removed = 0;
        let mut mounted = BTreeSet::new();
        for name in self.specs().map_err(at(self.cdi_dir.clone()))? {
            let path = self.cdi_dir.join(&name);
            if spec::claim_of(&name).is_some_and(|uid| known.contains(&uid)) {
                let files = read_regular(&path, MAX_BYTES).map(|bytes| spec::mounted(&bytes));
                mounted.extend(files.unwrap_or_default());
            } else {
                gone(fs::remove_file(&path)).map_err(at(path))?;
                removed += 1;
            }
        }
        let directories = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(removed),
            entries => entries.map_err(at(self.root.clone()))?,
        };
        for entry in directories {
            let path = entry.map_err(at(self.root.clone()))?.path();
            if !mounted.iter().any(|file| file.starts_with(&path)) {
                gone(fs::remove_dir_all(&path)).map_err(at(path))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// The names of this driver's specs of metadata, unfinished ones too.
    fn specs(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.cdi_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string().ok().filter(|name| name.starts_with(spec::PREFIX)));
        }
        Ok(names)
    }

    fn spec(&self, uid: &ClaimUid, request: &str) -> PathBuf {
        self.cdi_dir.join(spec::file_name(uid, request))
    }

    fn file(&self, uid: &ClaimUid, booking: &Booking, request: &str) -> PathBuf {
        self.directory(uid, &booking.namespace, &booking.name).join(request).join(FILE)
    }

    /// The directory of a claim: with its name, or with its UID where its name cannot be a directory's.
    fn directory(&self, uid: &ClaimUid, namespace: &str, name: &str) -> PathBuf {
        let directory = format!("{namespace}_{name}");
        let fits = directory.len() <= NAME_MAX && !directory.contains('/');
        if fits { self.root.join(directory) } else { self.root.join(uid.as_str()) }
    }

    /// Puts a file in place in one step. Everybody may read it, as the containers' users must.
    fn put(&self, path: &Path, text: &str, [written, renamed]: [Step; 2]) -> io::Result<()> {
        self.probe.before(Access::WriteMetadata)?;
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut temp = path.as_os_str().to_owned();
        temp.push(TEMP_END);
        let temp = PathBuf::from(temp);
        let write = || {
            let mut file = new_file(&temp)?;
            file.write_all(text.as_bytes())?;
            file.set_permissions(Permissions::from_mode(0o644))?;
            self.probe.reached(written);
            fs::rename(&temp, path)
        };
        write().inspect_err(|_| {
            // What is left of it is swept at the next start at the latest.
            let _ = fs::remove_file(&temp);
        })?;
        self.probe.reached(renamed);
        Ok(())
    }
}

/// The parts of a claim by the request that they belong to, without its subrequest.
fn requests(booking: &Booking) -> BTreeMap<&str, Vec<&Part>> {
    let mut requests: BTreeMap<&str, Vec<&Part>> = BTreeMap::new();
    for part in &booking.parts {
        requests.entry(main_request(&part.request)).or_default().push(part);
    }
    requests
}

fn whole(uid: &ClaimUid, file: &Path) -> bool {
    read_regular(file, MAX_BYTES).is_ok_and(|bytes| document::is_of(uid, &bytes))
}

fn holds(file: &Path, text: &str) -> bool {
    read_regular(file, MAX_BYTES).is_ok_and(|bytes| bytes == text.as_bytes())
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdi::NoProbe;
    use dracpu_topology::Topology;

    struct Dirs {
        root: tempfile::TempDir,
        files: MetadataFiles,
    }

    impl Dirs {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let at = |name: &str| root.path().join(name);
            let files = MetadataFiles::new(at("metadata"), at("cdi"), Arc::new(NoProbe));
            Self { root, files }
        }

        fn write(&self, uid: &str, booking: &Booking) {
            let attributes = Attributes { topology: &Topology::default(), published: &[] };
            self.files.write(&uid.into(), booking, attributes).unwrap();
        }

        /// All files, relative to the root.
        fn all(&self) -> Vec<String> {
            let mut found = Vec::new();
            let mut open = vec![self.root.path().to_owned()];
            while let Some(directory) = open.pop() {
                for entry in fs::read_dir(directory).into_iter().flatten() {
                    let path = entry.unwrap().path();
                    if path.is_dir() {
                        open.push(path);
                    } else {
                        let path = path.strip_prefix(self.root.path()).unwrap();
                        found.push(path.to_str().unwrap().to_owned());
                    }
                }
            }
            found.sort();
            found
        }
    }

    fn booking(name: &str, requests: &[&str]) -> Booking {
        let part = |request: &&str| Part {
            request: (*request).to_owned(),
            pool: "n".to_owned(),
            device: "d".to_owned(),
            cpus: [2].into(),
            ..Part::default()
        };
        let parts = requests.iter().map(part).collect();
        Booking { namespace: "ns".to_owned(), name: name.to_owned(), parts, ..Booking::default() }
    }

    #[test]
    fn each_request_has_a_file_that_everybody_can_read_and_a_spec() {
        let dirs = Dirs::new();
        let claim = booking("claim", &["a", "b/one", "a"]);
        assert!(!dirs.files.holds(&"u-1".into(), &claim));
        dirs.write("u-1", &claim);
        let expected = [
            "cdi/dra.cpu_metadata_u-1_a.json",
            "cdi/dra.cpu_metadata_u-1_b.json",
            "metadata/ns_claim/a/metadata.json",
            "metadata/ns_claim/b/metadata.json",
        ];
        assert_eq!(dirs.all(), expected);
        assert!(dirs.files.holds(&"u-1".into(), &claim));
        let file = dirs.root.path().join("metadata/ns_claim/a/metadata.json");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        let document: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(document["requests"][0]["devices"].as_array().unwrap().len(), 2);

        dirs.files.remove(&"u-1".into(), "ns", "claim", false).unwrap();
        dirs.files.remove(&"u-1".into(), "ns", "claim", false).unwrap();
        assert_eq!(dirs.all(), [""; 0]);
    }

    #[test]
    fn what_is_missing_or_damaged_is_written_again_and_the_rest_is_left_alone() {
        let dirs = Dirs::new();
        let claim = booking("claim", &["a"]);
        dirs.write("u-1", &claim);
        let all = dirs.all();
        let modified = |path: &str| fs::metadata(dirs.root.path().join(path)).unwrap().modified().unwrap();
        for lost in &all {
            let path = dirs.root.path().join(lost);
            let others: Vec<_> =
                all.iter().filter(|other| *other != lost).map(|o| (o, modified(o))).collect();
            for damage in ["", "{"] {
                fs::write(&path, damage).unwrap();
                assert!(!dirs.files.holds(&"u-1".into(), &claim), "{lost}");
                dirs.write("u-1", &claim);
                assert!(dirs.files.holds(&"u-1".into(), &claim), "{lost}");
            }
            fs::remove_file(&path).unwrap();
            dirs.write("u-1", &claim);
            assert!(dirs.files.holds(&"u-1".into(), &claim), "{lost}");
            assert!(others.into_iter().all(|(other, before)| modified(other) == before), "{lost}");
        }
        assert_eq!(dirs.all(), all);
    }

    #[test]
    fn a_sweep_leaves_what_known_claims_mount_whoever_wrote_it() {
        let dirs = Dirs::new();
        dirs.write("known", &booking("of-known", &["a"]));
        dirs.write("gone", &booking("of-gone", &["a"]));
        let at = |name: &str| dirs.root.path().join(name);
        fs::write(at("cdi/dra.cpu_metadata_known_b.json.tmp"), "{").unwrap();
        fs::write(at("cdi/other.json"), "{").unwrap();
        fs::create_dir_all(at("metadata/ns_half/a")).unwrap();
        fs::write(at("metadata/ns_half/a/metadata.json.tmp"), "{").unwrap();
        let known = BTreeSet::from(["known".into()]);
        assert_eq!(dirs.files.sweep(&known).unwrap(), 4);
        let expected =
            ["cdi/dra.cpu_metadata_known_a.json", "cdi/other.json", "metadata/ns_of-known/a/metadata.json"];
        assert_eq!(dirs.all(), expected);
        assert_eq!(dirs.files.sweep(&known).unwrap(), 0);
    }

    #[test]
    fn a_name_that_is_too_long_for_a_directory_does_not_keep_a_claim_from_its_files() {
        let dirs = Dirs::new();
        let claim = booking(&"x".repeat(253), &["a"]);
        dirs.write("u-1", &claim);
        assert!(dirs.files.holds(&"u-1".into(), &claim));
        assert_eq!(dirs.all()[1], "metadata/u-1/a/metadata.json");
        dirs.files.remove(&"u-1".into(), "ns", &claim.name, false).unwrap();
        assert_eq!(dirs.all(), [""; 0]);
    }

    #[test]
    fn files_of_a_name_that_another_claim_has_by_now_stay() {
        let dirs = Dirs::new();
        dirs.write("old", &booking("same", &["a"]));
        dirs.write("new", &booking("same", &["a"]));
        dirs.files.remove(&"old".into(), "ns", "same", true).unwrap();
        assert!(dirs.files.holds(&"new".into(), &booking("same", &["a"])));
        assert_eq!(dirs.all().len(), 2);
    }
}
