//! WebAssembly → machine code: from the cache, else by a child of this process with what memory is left, since a few
//! kilobytes can take the compiler minutes and gigabytes. What is built in is compiled by this process itself.

mod cache;
pub(crate) mod child;
mod memory;

pub use cache::{Cache, CacheError};

use crate::strategy::component::{self, ComponentFault};
use child::Child;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Components up to this size in bytes are mostly compiled in tenths of a second.
const SMALL: usize = 1 << 20;

/// A compiler that has not ended by then never will: the largest components take half a minute.
const LONGEST: Duration = Duration::from_mins(15);

/// How long a caller can wait.
#[derive(Debug, Clone)]
pub(crate) enum Patience {
    /// Until then: what takes longer is left, and what is large is not begun.
    Until(Instant),
    /// Minutes, if nobody calls it off.
    Unless(CancellationToken),
}

/// Whose component it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// Ours: it is known what it takes.
    Driver,
    /// Anybody.
    Stranger,
}

/// Compiles components.
#[derive(Debug, Clone)]
pub(crate) struct Compiler {
    engine: Engine,
    cache: Option<Cache>,
    /// Where the components of strangers are compiled.
    strangers: Place,
}

/// Where a component is compiled.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In this process, which may be any that uses this library.
    Here,
    /// In a child, which this process can be since it is `dracpu`.
    Child {
        /// Where cgroups are mounted.
        cgroups: PathBuf,
    },
}

impl Compiler {
    pub(crate) fn new(engine: Engine, cache: Option<Cache>, strangers: Place) -> Self {
        Self { engine, cache, strangers }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Compiles a component of this digest.
    pub(crate) fn compile(
        &self,
        bytes: &[u8],
        digest: &str,
        author: Author,
        patience: &Patience,
    ) -> Result<Component, ComponentFault> {
        if let Some(component) = self.cache.as_ref().and_then(|cache| cache.load(&self.engine, digest)) {
            return Ok(component);
        }
        if author == Author::Stranger
            && let Patience::Until(end) = patience
            && (bytes.len() > SMALL || Instant::now() >= *end)
        {
            return Err(ComponentFault::Compiling);
        }
        match &self.strangers {
            Place::Child { cgroups } if author == Author::Stranger => {
                let child = Child { memory: memory::left(cgroups), patience, longest: LONGEST };
                self.compile_in_child(bytes, digest, &child)
            }
            _ => {
                let component = component::compile(&self.engine, bytes)?;
                self.keep(digest, || component.serialize().map_err(io::Error::other));
                Ok(component)
            }
        }
    }

    fn compile_in_child(
        &self,
        bytes: &[u8],
        digest: &str,
        compiler: &Child<'_>,
    ) -> Result<Component, ComponentFault> {
        if let Some(cache) = &self.cache {
            match self.compile_into(cache, bytes, digest, compiler)? {
                Ok(component) => return Ok(component),
                Err(error) => not_kept(&error),
            }
        }
        let unusable =
            |error: io::Error| ComponentFault::NotCompiled(format!("no file for the compiled code: {error}"));
        let file = rustix::fs::memfd_create("dracpu-strategy", MemfdFlags::CLOEXEC);
        let file = file.map(File::from).map_err(|error| unusable(error.into()))?;
        compiler.compile(bytes, &file)?.map_err(unusable)?;
        let invalid = |error: wasmtime::Error| ComponentFault::NotCompiled(component::clause(&error));
        cache::deserialize(&self.engine, &file).map_err(invalid)
    }

    /// The inner error: the cache cannot take what was compiled.
    fn compile_into(
        &self,
        cache: &Cache,
        bytes: &[u8],
        digest: &str,
        compiler: &Child<'_>,
    ) -> Result<io::Result<Component>, ComponentFault> {
        let file = match cache.file() {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = compiler.compile(bytes, file.as_file())? {
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
