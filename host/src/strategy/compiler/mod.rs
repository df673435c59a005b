//! WebAssembly → machine code: from the cache, else by this process when the component is small, else by a child of
//! its own with what memory is left.

mod cache;
pub(crate) mod child;
mod memory;

pub use cache::{Cache, CacheError};

use crate::strategy::component::{self, ComponentFault};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Components up to this size in bytes are compiled in this process: it takes tenths of a second and a few megabytes.
const SMALL: usize = 1 << 20;

/// How long a caller can wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Tenths of a second: what takes longer is left.
    Short,
    /// Minutes.
    Long,
}

/// Compiles components.
#[derive(Debug, Clone)]
pub(crate) struct Compiler {
    engine: Engine,
    cache: Option<Cache>,
    /// Where cgroups are mounted.
    cgroups: PathBuf,
}

impl Compiler {
    pub(crate) fn new(engine: Engine, cache: Option<Cache>, cgroups: PathBuf) -> Self {
        Self { engine, cache, cgroups }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Compiles a component of this digest.
    pub(crate) fn compile(
        &self,
        bytes: &[u8],
        digest: &str,
        patience: Patience,
    ) -> Result<Component, ComponentFault> {
        if let Some(component) = self.cache.as_ref().and_then(|cache| cache.load(&self.engine, digest)) {
            return Ok(component);
        }
        if bytes.len() <= SMALL {
            let component = component::compile(&self.engine, bytes)?;
            self.keep(digest, || component.serialize().map_err(io::Error::other));
            return Ok(component);
        }
        match patience {
            Patience::Short => Err(ComponentFault::Compiling),
            Patience::Long => self.compile_in_child(bytes, digest),
        }
    }

    fn compile_in_child(&self, bytes: &[u8], digest: &str) -> Result<Component, ComponentFault> {
        let memory = memory::left(&self.cgroups);
        if let Some(cache) = &self.cache {
            match self.compile_into(cache, bytes, digest, memory)? {
                Ok(component) => return Ok(component),
                Err(error) => not_kept(&error),
            }
        }
        let unusable =
            |error: io::Error| ComponentFault::NotCompiled(format!("no file for the compiled code: {error}"));
        let file = rustix::fs::memfd_create("dracpu-strategy", MemfdFlags::CLOEXEC);
        let file = file.map(File::from).map_err(|error| unusable(error.into()))?;
        child::compile(bytes, &file, memory)?.map_err(unusable)?;
        let invalid = |error: wasmtime::Error| ComponentFault::NotCompiled(component::clause(&error));
        cache::deserialize(&self.engine, &file).map_err(invalid)
    }

    /// The inner error: the cache cannot take what was compiled.
    fn compile_into(
        &self,
        cache: &Cache,
        bytes: &[u8],
        digest: &str,
        memory: Option<u64>,
    ) -> Result<io::Result<Component>, ComponentFault> {
        let file = match cache.file() {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = child::compile(bytes, file.as_file(), memory)? {
            return Ok(Err(error));
        }
        let kept = cache.keep(&self.engine, digest, file);
        let load = || cache.load(&self.engine, digest).ok_or_else(|| io::Error::other("it has disappeared"));
        Ok(kept.and_then(|()| load()))
    }

    /// Keeps compiled code; without it the next start compiles again.
    fn keep(&self, digest: &str, code: impl FnOnce() -> io::Result<Vec<u8>>) {
        let Some(cache) = &self.cache else { return };
        let kept = code().and_then(|code| {
            let mut file = cache.file()?;
            file.write_all(&code)?;
            cache.keep(&self.engine, digest, file)
        });
        if let Err(error) = kept {
            not_kept(&error);
        }
    }
}

/// The cache only saves time.
fn not_kept(error: &io::Error) {
    tracing::warn!(
        "a compiled strategy cannot be kept in the cache, the next start compiles it again: {error}"
    );
}
