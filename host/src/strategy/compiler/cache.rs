//! Compiled components on disk. What lies there runs as the driver itself, so only what this program wrote is taken:
//! the directory must be its own and nobody else's to write, and each file has the digest of its content in its name.

use crate::cdi::{NoProbe, Probe, Step};
use crate::strategy::component::hex_digest;
use rustix::fs::{Mode, OFlags};
use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Seek as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use wasmtime::Engine;
use wasmtime::component::Component;

const SUFFIX: &str = ".cwasm";
/// Files that are being written.
const TEMPORARY: &str = ".tmp-";
/// What is kept, in bytes: what was used last. One component is kept whatever its size.
const MOST_BYTES: u64 = 256 << 20;

/// A directory of compiled components.
#[derive(Clone)]
pub struct Cache {
    path: PathBuf,
    probe: Arc<dyn Probe>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cache").field(&self.path).finish()
    }
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// It cannot be made or looked at.
    #[error("cannot use the directory {}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody else can write there.
    #[error(
        "the directory {} must belong to the user of this process and be closed to all others (mode 0700), has owner {owner} and \
         mode {mode:04o}; remove it, or give another --cache-dir", path.display()
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// User id.
        owner: u32,
        /// Permission bits.
        mode: u32,
    },
}

impl Cache {
    /// Uses a directory, which is made if it is missing; what an interrupted write has left is removed.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn create(path: &Path) -> Result<Self, CacheError> {
        let io = |source| CacheError::Io { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        let cache = Self::existing(path)?;
        for name in cache.names().filter(|name| name.starts_with(TEMPORARY)) {
            let _gone_meanwhile = std::fs::remove_file(path.join(name));
        }
        Ok(cache)
    }

    /// Uses a directory that is there.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn existing(path: &Path) -> Result<Self, CacheError> {
        let io = |source| CacheError::Io { path: path.to_owned(), source };
        let found = std::fs::symlink_metadata(path).map_err(io)?;
        if !found.is_dir() {
            return Err(io(io::ErrorKind::NotADirectory.into()));
        }
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        if owner != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 {
            return Err(CacheError::NotPrivate { path: path.to_owned(), owner, mode });
        }
        Ok(Self { path: path.to_owned(), probe: Arc::new(NoProbe) })
    }

    /// The same, where tests can look or break in.
    #[must_use]
    pub fn probed(self, probe: Arc<dyn Probe>) -> Self {
        Self { probe, ..self }
    }

    /// The compiled form of the component with this digest. What is there but cannot be used is removed.
    pub(super) fn load(&self, engine: &Engine, digest: &str) -> Option<Component> {
        let key = key(engine, digest);
        let name = self.names().find(|name| name.starts_with(&key) && name.ends_with(SUFFIX))?;
        let path = self.path.join(&name);
        let loaded = open(&path).and_then(|mut file| {
            if content_name(&key, &mut file)? != name {
                return Err(io::Error::other("its content is not what was written"));
            }
            let component = deserialize(engine, &file).map_err(io::Error::other)?;
            // On a file system that is mounted read-only nothing is removed for its age either.
            let _not_noted = file.set_modified(SystemTime::now());
            Ok(component)
        });
        loaded
            .inspect_err(|error| {
                tracing::warn!("removed the compiled strategy {}: {error}", path.display());
                let _gone_meanwhile = std::fs::remove_file(&path);
            })
            .ok()
    }

    /// A file for a compiled component, for [`keep`](Self::keep).
    pub(super) fn file(&self) -> io::Result<tempfile::NamedTempFile> {
        let file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.path)?;
        self.probe.reached(Step::CacheTempCreated);
        Ok(file)
    }

    /// Keeps what was written as the compiled form of the component with this digest.
    pub(super) fn keep(
        &self,
        engine: &Engine,
        digest: &str,
        mut file: tempfile::NamedTempFile,
    ) -> io::Result<()> {
        self.probe.reached(Step::CacheTempWritten);
        let name = content_name(&key(engine, digest), file.as_file_mut())?;
        file.as_file().sync_all()?;
        self.probe.reached(Step::CacheTempSynced);
        file.persist(self.path.join(name))?;
        self.probe.reached(Step::CacheRenamed);
        self.shrink(MOST_BYTES);
        Ok(())
    }

    /// Removes what was not used for longest, down to so many bytes.
    fn shrink(&self, most: u64) {
        let found = self.names().filter(|name| name.ends_with(SUFFIX)).filter_map(|name| {
            let path = self.path.join(name);
            let found = std::fs::symlink_metadata(&path).ok()?;
            Some((found.modified().ok()?, found.len(), path))
        });
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let mut kept = 0;
        for (at, (_, size, path)) in found.iter().enumerate() {
            kept += size;
            if at > 0 && kept > most {
                let _gone_meanwhile = std::fs::remove_file(path);
            }
        }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }
}

/// What the names of a component's files begin with: its digest, and all that the compiled form depends on.
fn key(engine: &Engine, digest: &str) -> String {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    (env!("CARGO_PKG_VERSION"), option_env!("DRACPU_COMMIT")).hash(&mut hasher);
    format!("{}-{:016x}-", digest.trim_start_matches("sha256:"), hasher.finish())
}

fn content_name(key: &str, file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut name = key.to_owned();
    let _always_writes = write!(name, "{}{SUFFIX}", hex_digest(file)?);
    Ok(name)
}

/// Opens a file of this user that nobody else can write.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("others could have written it"));
    }
    Ok(file)
}

/// Maps compiled code. The file must be this program's own work, which nobody writes to from then on.
#[allow(unsafe_code, reason = "wasmtime cannot check machine code; the callers and this module's rules do")]
pub(super) fn deserialize(engine: &Engine, file: &File) -> wasmtime::Result<Component> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the bytes come from `precompile_component` or `serialize` of this very program: they were written by a
    // child of it into a file without a name (memfd), or into a directory that only its user can write, where the name
    // holds the digest of the content, which was compared through the same descriptor. wasmtime compares version,
    // settings and CPU features itself. Nobody truncates or writes: files are replaced by rename only.
    unsafe { Component::deserialize_file(engine, path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::engine;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;

    const DIGEST: &str = "sha256:00";

    fn filled(dir: &Path) -> (Engine, Cache, PathBuf) {
        let engine = engine::start().unwrap();
        let cache = Cache::create(dir).unwrap();
        let mut file = cache.file().unwrap();
        file.write_all(&engine.precompile_component(b"\0asm\x0d\0\x01\0").unwrap()).unwrap();
        cache.keep(&engine, DIGEST, file).unwrap();
        let path = dir.join(cache.names().next().unwrap());
        (engine, cache, path)
    }

    #[test]
    fn what_was_kept_is_loaded_until_there_is_too_much() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/b");
        let (engine, cache, path) = filled(&dir);
        assert!(cache.load(&engine, DIGEST).is_some());
        assert!(cache.load(&engine, "sha256:01").is_none());
        let other = path.with_file_name("other.cwasm");
        std::fs::copy(&path, &other).unwrap();
        let long_ago = SystemTime::now() - std::time::Duration::from_secs(60);
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        cache.shrink(u64::MAX);
        assert!(path.exists());
        // Used since.
        assert!(cache.load(&engine, DIGEST).is_some());
        cache.shrink(0);
        assert!(path.exists() && !other.exists());
    }

    #[test]
    fn what_was_changed_since_is_removed_and_not_run() {
        let damages: [fn(&Path); 4] = [
            |path| std::fs::write(path, b"other code").unwrap(),
            |path| File::options().write(true).open(path).unwrap().set_len(100).unwrap(),
            |path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap(),
            |path| {
                let elsewhere = path.with_extension("elsewhere");
                std::fs::rename(path, &elsewhere).unwrap();
                std::os::unix::fs::symlink(elsewhere, path).unwrap();
            },
        ];
        for damage in damages {
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
            let (engine, cache, path) = filled(dir.path());
            damage(&path);
            assert!(cache.load(&engine, DIGEST).is_none());
            assert!(std::fs::symlink_metadata(path).is_err());
        }
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o750)).unwrap();
        let error = Cache::create(dir.path()).unwrap_err().to_string();
        assert!(error.contains("0750"), "{error}");
        assert!(matches!(Cache::create(Path::new("/dev/null")), Err(CacheError::Io { .. })));
    }

    #[test]
    fn half_written_files_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let (_, cache, _) = filled(&dir.path().join("c"));
        let (_, left) = cache.file().unwrap().keep().unwrap();
        Cache::create(left.parent().unwrap()).unwrap();
        assert!(!left.exists() && cache.names().count() == 1);
    }
}
