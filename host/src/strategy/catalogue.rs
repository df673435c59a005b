//! The strategies that a node can use, by name: those of the configuration and the built-in ones. Both
//! are component files to the host and are loaded the same way.

use crate::config::StrategyConfig;
use crate::strategy::call::{Failed, Instance};
use crate::strategy::compiler::{Author, Cache, Compiler, Patience, Place};
use crate::strategy::component::{self, ComponentFault, digest};
use crate::strategy::engine;
use crate::strategy::error::{Identity, StrategyError};
use crate::strategy::limits::Limits;
use crate::strategy::opened::{Loaded, Parts};
use crate::strategy::{DescriptionFault, convert};
use dracpu_codec::strategy::description;
use dracpu_topology::read_regular;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Where a component comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Shipped inside the binary.
    BuiltIn,
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A strategy that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("strategy {name}: {fault}")]
pub struct LoadError {
    /// The name it was asked for by, or its file.
    pub name: String,
    /// What is wrong with it.
    pub fault: LoadFault,
}

/// What is wrong with a strategy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadFault {
    /// Nothing has that name.
    #[error("there is none of this name; the configuration and this binary have {}; correct the name, or add an entry with name and path to `strategies`", .0.join(", "))]
    Unknown(Vec<String>),
    /// The file cannot be read.
    #[error("cannot read {path}: {}", why_not(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not the one that the configuration names.
    #[error(
        "{origin} has the digest {found}, the configuration demands {wanted}: install the file that was meant, or correct `digest`"
    )]
    Digest {
        /// Where it comes from.
        origin: Source,
        /// Of the configuration.
        wanted: String,
        /// Of the file.
        found: String,
    },
    /// The file is no strategy for this host.
    #[error("{origin}: {fault}")]
    Component {
        /// Where it comes from.
        origin: Source,
        /// Why not.
        fault: ComponentFault,
    },
    /// It crashed while it was asked to describe itself.
    #[error("{origin}: cannot describe itself: {error}")]
    Describe {
        /// Where it comes from.
        origin: Source,
        /// The crash.
        error: Box<StrategyError>,
    },
    /// It describes itself wrongly.
    #[error("{origin}: {fault}; report it to the strategy's author")]
    Description {
        /// Where it comes from.
        origin: Source,
        /// What is wrong.
        fault: DescriptionFault,
    },
    /// It is another strategy than the one asked for.
    #[error("{origin} calls itself `{found}`: use that name, or give the file that was meant")]
    OtherName {
        /// Where it comes from.
        origin: Source,
        /// What it calls itself.
        found: String,
    },
}

fn why_not(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    }
}

impl LoadError {
    /// Whether [`Catalogue::load`] is still to tell.
    #[must_use]
    pub fn is_compiling(&self) -> bool {
        matches!(&self.fault, LoadFault::Component { fault: ComponentFault::Compiling, .. })
    }
}

/// The WebAssembly runtime does not work on this machine.
#[derive(Debug, thiserror::Error)]
#[error("the WebAssembly runtime cannot start on this machine: {0}")]
pub struct EngineError(String);

/// What a component is, whether or not this host can run it.
#[derive(Debug)]
pub struct Inspection {
    /// Where it comes from.
    pub source: Source,
    /// Its size in bytes, and `sha256:` with 64 hexadecimal digits; none when it cannot be read.
    pub content: Option<(usize, String)>,
    /// What it imports.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
    /// The loaded strategy, or why it cannot be.
    pub loaded: Result<Loaded, LoadError>,
}

/// The strategies of a node.
#[derive(Debug, Clone)]
pub struct Catalogue {
    compiler: Compiler,
    built_in: Vec<(&'static str, ComponentBytes)>,
    entries: Vec<Entry>,
}

/// The component of a strategy that comes with the program.
#[derive(Debug, Clone)]
pub enum ComponentBytes {
    /// One of those that are built in.
    BuiltIn(&'static dracpu_built_in::BuiltIn),
    /// Any other.
    Plain(Vec<u8>),
}

impl From<Vec<u8>> for ComponentBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Plain(bytes)
    }
}

/// One strategy of a catalogue; not loaded yet.
#[derive(Debug, Clone)]
struct Entry {
    name: String,
    origin: Origin,
    /// That it must have.
    digest: Option<String>,
    limits: Limits,
    options: Map<String, Value>,
}

#[derive(Debug, Clone)]
enum Origin {
    BuiltIn(ComponentBytes),
    File(PathBuf),
}

impl Entry {
    /// An entry that nothing is configured for.
    fn plain(name: &str, origin: Origin) -> Self {
        Self { name: name.to_owned(), origin, digest: None, limits: Limits::default(), options: Map::new() }
    }

    fn author(&self) -> Author {
        match &self.origin {
            Origin::BuiltIn(_) => Author::Driver,
            Origin::File(_) => Author::Stranger,
        }
    }

    fn source(&self) -> Source {
        match &self.origin {
            Origin::BuiltIn(_) => Source::BuiltIn,
            Origin::File(path) => Source::File(path.clone()),
        }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>, LoadFault> {
        match &self.origin {
            Origin::BuiltIn(ComponentBytes::Plain(bytes)) => Ok(Cow::Borrowed(bytes)),
            Origin::BuiltIn(ComponentBytes::BuiltIn(built_in)) => Ok(Cow::Owned(built_in.component())),
            Origin::File(path) => read(path, &self.limits).map(Cow::Owned),
        }
    }
}

impl Catalogue {
    /// The built-in strategies, and those configured. A configured one takes the place of a built-in one
    /// of the same name.
    ///
    /// # Errors
    /// When the WebAssembly runtime does not work on this machine.
    pub fn new(configured: &[StrategyConfig]) -> Result<Self, EngineError> {
        let built_in = dracpu_built_in::BUILT_IN.iter();
        Self::with_built_in(built_in.map(|one| (one.name, ComponentBytes::BuiltIn(one))), configured)
    }

    /// A catalogue with other built-in strategies.
    ///
    /// # Errors
    /// As [`Catalogue::new`].
    pub fn with_built_in(
        built_in: impl IntoIterator<Item = (&'static str, ComponentBytes)>,
        configured: &[StrategyConfig],
    ) -> Result<Self, EngineError> {
        let engine = engine::start().map_err(|error| EngineError(format!("{error:#}")))?;
        let built_in: Vec<_> = built_in.into_iter().collect();
        let compiler = Compiler::new(engine, None, Place::Here);
        Ok(Self { compiler, entries: entries(configured, &built_in), built_in })
    }

    /// For a process of the program `dracpu`: compiles what is not built in in a child of this process, and keeps it
    /// in the cache.
    ///
    /// `sysfs_root` is where sysfs is mounted: what memory is left for compiling is read below it.
    #[must_use]
    pub fn in_program(mut self, cache: Option<Cache>, sysfs_root: &Path) -> Self {
        let child = Place::Child { cgroups: sysfs_root.join("fs/cgroup") };
        self.compiler = Compiler::new(self.compiler.engine().clone(), cache, child);
        self
    }

    /// The same built-in strategies, with others configured.
    #[must_use]
    pub fn with_configured(&self, configured: &[StrategyConfig]) -> Self {
        let (compiler, built_in) = (self.compiler.clone(), self.built_in.clone());
        Self { compiler, entries: entries(configured, &built_in), built_in }
    }

    /// Name and source of every strategy: the configured ones first.
    pub fn list(&self) -> impl Iterator<Item = (&str, Source)> {
        self.entries.iter().map(|entry| (entry.name.as_str(), entry.source()))
    }

    /// The digest of a strategy's component as it is now; none when it cannot be read.
    #[must_use]
    pub fn digest(&self, name: &str) -> Option<String> {
        self.entry(name).ok()?.bytes().ok().map(|bytes| digest(&bytes))
    }

    /// Whether a strategy is configured as in another catalogue.
    #[must_use]
    pub fn has_same(&self, name: &str, other: &Self) -> bool {
        let of = |catalogue: &Self| {
            let entry = catalogue.entry(name).ok()?;
            Some((entry.source(), entry.digest.clone(), entry.limits, entry.options.clone()))
        };
        of(self).is_some_and(|own| of(other) == Some(own))
    }

    /// Loads a strategy by name: reads, compiles, links and describes it. Blocking, and slow for large
    /// components: at start, never on the path of a claim.
    ///
    /// # Errors
    /// [`LoadError`], which names the strategy, the fault and the remedy.
    pub fn load(&self, name: &str) -> Result<Loaded, LoadError> {
        self.load_with(name, &long())
    }

    /// As [`load`](Self::load), unless somebody calls it off: then the fault is that it is still compiling
    /// ([`LoadError::is_compiling`]).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_unless(&self, name: &str, called_off: &CancellationToken) -> Result<Loaded, LoadError> {
        self.load_with(name, &Patience::Unless(called_off.clone()))
    }

    /// As [`load`](Self::load), unless compiling would take longer than until then: then the fault is that it is still
    /// compiling ([`LoadError::is_compiling`]), and `load` is to be called where it can take its time.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_until(&self, name: &str, end: Instant) -> Result<Loaded, LoadError> {
        self.load_with(name, &Patience::Until(end))
    }

    fn load_with(&self, name: &str, patience: &Patience) -> Result<Loaded, LoadError> {
        let failed = |fault| LoadError { name: name.to_owned(), fault };
        let entry = self.entry(name).map_err(failed)?;
        let component = self.compiled(entry, &entry.bytes().map_err(failed)?, patience).map_err(failed)?;
        self.described(entry, &component, Some(name)).map_err(failed)
    }

    /// Loads a strategy by name, or else a component file: that under whatever name it gives itself, with
    /// the default limits.
    ///
    /// # Errors
    /// As [`Catalogue::load`].
    pub fn load_any(&self, what: &str) -> Result<Loaded, LoadError> {
        let failed = |fault| LoadError { name: what.to_owned(), fault };
        let (entry, wanted) = self.entry_or_file(what).map_err(failed)?;
        let bytes = entry.bytes().map_err(failed)?;
        let component = self.compiled(&entry, &bytes, &long()).map_err(failed)?;
        self.described(&entry, &component, wanted).map_err(failed)
    }

    /// Looks at a strategy, by name or else by path. Also at a file that is none, or cannot be read: that is
    /// then in `loaded`.
    ///
    /// # Errors
    /// When nothing has this name, and it is no path either.
    pub fn inspect(&self, what: &str) -> Result<Inspection, LoadError> {
        let failed = |fault| LoadError { name: what.to_owned(), fault };
        let (entry, wanted) = self.entry_or_file(what).map_err(failed)?;
        let mut content = None;
        let (mut imports, mut exports) = (Vec::new(), Vec::new());
        let as_far_as_it_goes = || {
            let bytes = entry.bytes()?;
            content = Some((bytes.len(), digest(&bytes)));
            let component = self.compiled(&entry, &bytes, &long())?;
            let engine = self.compiler.engine();
            imports = component::imports(engine, &component.compiled).map(|(name, _)| name).collect();
            exports = component::exports(engine, &component.compiled).collect();
            self.described(&entry, &component, wanted)
        };
        let loaded = { as_far_as_it_goes }().map_err(failed);
        Ok(Inspection { source: entry.source(), content, imports, exports, loaded })
    }

    /// What a person calls a strategy: one of the catalogue with the name that it must have, or a file.
    fn entry_or_file<'a>(&self, what: &'a str) -> Result<(Entry, Option<&'a str>), LoadFault> {
        let path = Path::new(what);
        match self.entry(what) {
            Ok(entry) => Ok((entry.clone(), Some(what))),
            Err(_) if looks_like_a_path(what) || path.is_file() => {
                Ok((Entry::plain(what, Origin::File(path.to_owned())), None))
            }
            Err(unknown) => Err(unknown),
        }
    }

    fn entry(&self, name: &str) -> Result<&Entry, LoadFault> {
        self.entries
            .iter()
            .find(|entry| entry.name == name)
            .ok_or_else(|| LoadFault::Unknown(self.entries.iter().map(|entry| entry.name.clone()).collect()))
    }

    /// The component of an entry, compiled.
    fn compiled(&self, entry: &Entry, bytes: &[u8], patience: &Patience) -> Result<Compiled, LoadFault> {
        let origin = entry.source();
        let digest = digest(bytes);
        if let Some(wanted) = entry.digest.as_ref().filter(|wanted| **wanted != digest) {
            return Err(LoadFault::Digest { origin, wanted: wanted.clone(), found: digest });
        }
        let compiled = component::check(bytes, &entry.limits)
            .and_then(|()| self.compiler.compile(bytes, &digest, entry.author(), patience))
            .map_err(|fault| LoadFault::Component { origin, fault })?;
        Ok(Compiled { compiled, digest })
    }

    /// Links a component and asks it what it is. `wanted` is the name it must have.
    fn described(
        &self,
        entry: &Entry,
        component: &Compiled,
        wanted: Option<&str>,
    ) -> Result<Loaded, LoadFault> {
        let source = entry.source();
        let limits = entry.limits;
        let pre = component::link(self.compiler.engine(), &component.compiled)
            .map_err(|fault| LoadFault::Component { origin: source.clone(), fault })?;
        let identity = Identity {
            name: Arc::from(&*entry.name),
            version: Arc::from(""),
            digest: Arc::from(&*component.digest),
        };
        let described = Instance::start(&pre, identity.name.clone(), limits)
            .and_then(|mut instance| {
                instance.call(|strategy, store| strategy.dracpu_strategy_policy().call_describe(store))
            })
            .map_err(|Failed { fault, last_line }| {
                let error = StrategyError { strategy: identity.clone(), fault: Box::new(fault), last_line };
                LoadFault::Describe { origin: source.clone(), error: Box::new(error) }
            })?;
        let (description, schema) = description::checked(convert::description(described))
            .map_err(|fault| LoadFault::Description { origin: source.clone(), fault })?;
        if wanted.is_some_and(|wanted| wanted != description.name) {
            return Err(LoadFault::OtherName { origin: source, found: description.name });
        }
        let identity = Identity {
            name: Arc::from(&*description.name),
            version: Arc::from(&*description.version),
            digest: identity.digest,
        };
        let options = entry.options.clone();
        Ok(Loaded(Arc::new(Parts { pre, identity, description, schema, limits, source, options })))
    }
}

struct Compiled {
    compiled: wasmtime::component::Component,
    digest: String,
}

/// The configured strategies, then the built-in ones that nothing is configured for.
fn entries(configured: &[StrategyConfig], built_in: &[(&'static str, ComponentBytes)]) -> Vec<Entry> {
    let of_name = |name: &str| built_in.iter().find(|(built_in, _)| *built_in == name);
    let configured_entries = configured.iter().filter_map(|config| {
        let origin = match &config.path {
            Some(path) => Origin::File(path.clone()),
            None => Origin::BuiltIn(of_name(&config.name)?.1.clone()),
        };
        let StrategyConfig { name, digest, limits, options, .. } = config.clone();
        Some(Entry { name, origin, digest, limits: Limits::from(&limits), options })
    });
    let plain = built_in
        .iter()
        .filter(|(name, _)| configured.iter().all(|config| config.name != *name))
        .map(|(name, bytes)| Entry::plain(name, Origin::BuiltIn(bytes.clone())));
    configured_entries.chain(plain).collect()
}

/// Of somebody who waits as long as it takes.
fn long() -> Patience {
    Patience::Unless(CancellationToken::new())
}

/// Whether somebody who wrote this meant a file: names of strategies have neither slash nor dot.
fn looks_like_a_path(what: &str) -> bool {
    what.contains('/') || what.ends_with(".wasm")
}

/// Reads a file, but not one that is larger than a component may be.
fn read(path: &Path, limits: &Limits) -> Result<Vec<u8>, LoadFault> {
    let cannot_read = |source| LoadFault::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(cannot_read)?.len();
    if size > limits.component_bytes {
        let fault = ComponentFault::TooLarge { size, limit: limits.component_bytes };
        return Err(LoadFault::Component { origin: Source::File(path.to_owned()), fault });
    }
    read_regular(path, limits.component_bytes).map_err(cannot_read)
}
