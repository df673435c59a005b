//! Builds strategy crates of this workspace as WebAssembly components, for build scripts and tests.
//!
//! A nested cargo for `wasm32-unknown-unknown` into a target directory of its own (two cargos on
//! one directory would wait for each other's lock), then the component encoding in process: no tool
//! besides cargo and the Rust target is needed. Cargo itself decides what is stale; a build script passes
//! [`Built::inputs`] on as `rerun-if-changed`.
//!
//! The result depends on sources, lock file and toolchain alone: flags, wrappers and target settings of
//! the outer build (linter, coverage, another target) do not reach the nested one, and paths of the
//! machine are taken out, so that the same commit has the same digest everywhere.

mod cargo;
mod encode;

pub use encode::encode;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The Rust target of guests: no WASI, the smallest component.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// The profile of guests, defined in the workspace's manifest.
pub const PROFILE: &str = "guest";

/// Why guests were not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The toolchain lacks the standard library for guests.
    #[error("the Rust target {TARGET} is not installed for this toolchain; run `rustup target add {TARGET}`")]
    TargetMissing,
    /// The nested build failed; its messages are on standard error.
    #[error("`{command}` failed ({status}); its messages are above")]
    Cargo {
        /// The command as started.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The module is no guest: it lacks the interface's exports, or is no WebAssembly.
    #[error("{path}: cannot be encoded as a component: {reason}")]
    Encode {
        /// The module.
        path: PathBuf,
        /// The encoder's words.
        reason: String,
    },
    /// A file or process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// The file or command.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// No target directory above the given path.
    #[error("{0} is not inside a cargo target directory (no `build` or `deps` directory above it)")]
    NoTargetDirectory(PathBuf),
}

/// Which artifacts of a workspace to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guests<'a> {
    /// The workspace's root directory.
    pub workspace: &'a Path,
    /// Where the nested build keeps its files; see [`guests_directory`].
    pub target_directory: &'a Path,
    /// Packages whose library is a guest, by package name.
    pub packages: &'a [&'a str],
    /// Whether to build the packages' examples (`cdylib`) in place of their libraries.
    pub examples: bool,
}

/// What was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The components by artifact name (a library's has `_` for `-`), in that order.
    pub components: Vec<(String, Vec<u8>)>,
    /// Every file that the components were made from, manifests included.
    pub inputs: BTreeSet<PathBuf>,
}

impl Guests<'_> {
    /// Builds and encodes them. Quick when nothing changed.
    ///
    /// # Errors
    /// [`BuildError`]; what the compiler had to say went to standard error.
    pub fn build(&self) -> Result<Built, BuildError> {
        let modules = cargo::build(self)?;
        let mut inputs =
            BTreeSet::from([self.workspace.join("Cargo.toml"), self.workspace.join("Cargo.lock")]);
        let mut components = Vec::new();
        for (name, path) in modules {
            let module = read(&path)?;
            let component = encode(&module)
                .map_err(|reason| BuildError::Encode { path: path.clone(), reason: format!("{reason:#}") })?;
            inputs.extend(cargo::inputs(&path)?);
            components.push((name, component));
        }
        Ok(Built { components, inputs })
    }
}

/// The target directory for guests beside the profile directory that holds `path`: a build script's
/// `OUT_DIR` or a test's executable. It follows `--target-dir` and `CARGO_TARGET_DIR` of the outer build; a
/// build for another target (which has a directory of its own, named in `TARGET`) shares it.
///
/// # Errors
/// [`BuildError::NoTargetDirectory`] for a path of another kind.
pub fn guests_directory(path: &Path) -> Result<PathBuf, BuildError> {
    path.ancestors()
        .filter(|above| above.ends_with("build") || above.ends_with("deps"))
        .find_map(|above| above.parent()?.parent())
        .and_then(|root| {
            if std::env::var_os("TARGET").as_deref() == root.file_name() { root.parent() } else { Some(root) }
        })
        .map(|root| root.join("guests"))
        .ok_or_else(|| BuildError::NoTargetDirectory(path.to_owned()))
}

fn read(path: &Path) -> Result<Vec<u8>, BuildError> {
    std::fs::read(path).map_err(|source| BuildError::Io { what: path.display().to_string(), source })
}
