//! Takes over what a changed configuration, or a changed component, says about strategies, without a restart.
//!
//! Nothing wakes who waits for a file on every file system (ConfigMap mounts swap a link, some network mounts tell
//! nobody), so the few files are looked at every second. A change is taken over when it has stayed the same from one look
//! to the next, or has not come to rest for a while, and at SIGHUP at once.
//!
//! What is to be compiled first is taken over when that is done. A change meanwhile calls it off.

use crate::config::{Config, ConfigFlags, DeviceMode, Selection, StrategyConfig};
use crate::driver::{Driver, LoadedOnce, Strategies, Unusable};
use crate::strategy::Catalogue;
use serde_json::{Map, Value};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::Signal;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

const LOOK: Duration = Duration::from_secs(1);

/// After so many looks a file that is written without a pause is read as it is.
const MOST_LOOKS: u32 = 10;

/// What is read again.
pub(crate) struct Reload {
    pub(crate) flags: ConfigFlags,
    /// The configuration that the daemon has started with.
    pub(crate) started: Config,
    pub(crate) catalogue: Catalogue,
    pub(crate) driver: Arc<Driver>,
}

/// What is not as configured.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Standing {
    /// The configuration cannot be read.
    pub(crate) unreadable: Option<Unusable>,
    /// Strategies that cannot be used.
    pub(crate) unusable: Vec<Unusable>,
    /// Strategies that are still to be compiled.
    pub(crate) compiling: Vec<String>,
    /// Keys that only a restart can change.
    pub(crate) restart: Vec<String>,
}

/// How things stand after something has happened.
pub(crate) struct News<'a> {
    pub(crate) standing: &'a Standing,
    /// What has failed just now.
    pub(crate) failed: Vec<Unusable>,
    pub(crate) happened: Happened,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    /// The daemon has started.
    Started,
    /// All has been read again, and what can be used is taken over.
    Reloaded,
    /// What had to be compiled first is taken over too.
    Compiled,
}

/// A selection of which strategies are still to be compiled.
#[derive(Clone)]
struct Pending {
    selection: Selection,
    strategies: Arc<LoadedOnce>,
    /// Whether it was read again, or is what the daemon has started with.
    is_again: bool,
}

/// Watches for ever. `watched` is what was there before it was read first; `strategies` are what the driver has started
/// with. `told` is called at the start, and after each reload.
pub(crate) async fn watch(
    reload: Reload,
    watched: Watched,
    strategies: Arc<LoadedOnce>,
    hangup: Signal,
    told: impl Fn(News<'_>),
) {
    let reload = Arc::new(reload);
    let selection = reload.started.selection.clone();
    let mut latest = Pending { selection, strategies, is_again: false };
    let mut standing = Standing { compiling: latest.strategies.compiling(), ..Standing::default() };
    standing.unusable = reload.driver.unusable();
    standing.unusable.retain(|fault| !standing.compiling.contains(&fault.strategy));
    told(News { failed: standing.unusable.clone(), standing: &standing, happened: Happened::Started });
    let mut changes = Changes::new(watched, hangup);
    let mut compiling: Option<Compiling> = None;
    loop {
        if compiling.is_none() && !standing.compiling.is_empty() {
            compiling = Some(Compiling::start(latest.clone()));
        }
        let compiled = tokio::select! {
            compiled = finished(&mut compiling) => Some(compiled),
            () = changes.next() => None,
        };
        let work = Arc::clone(&reload);
        let of = latest.clone();
        let (failed, happened) = if let Some(compiled) = compiled {
            compiling = None;
            // Read again meanwhile: what is compiled comes from the cache now.
            if compiled.is_ok() && !latest.strategies.compiling().is_empty() {
                continue;
            }
            let selected = tokio::task::spawn_blocking(move || work.select(&of)).await;
            let unusable = compiled.and(selected).unwrap_or_else(|error| vec![reload.broken(&error)]);
            let is_new = |fault: &&Unusable| !standing.unusable.contains(fault);
            let failed = unusable.iter().filter(is_new).cloned().collect();
            (standing.unusable, standing.compiling) = (unusable, Vec::new());
            (failed, Happened::Compiled)
        } else {
            let before = changes.last.again();
            let read = tokio::task::spawn_blocking(move || work.reload(&of.strategies)).await;
            match read.unwrap_or_else(|error| Err(reload.broken(&error))) {
                Ok(read) => {
                    changes.read(read.watched);
                    (latest, standing) = (read.latest, read.standing);
                }
                Err(fault) => {
                    changes.read(before);
                    standing.unreadable = Some(fault);
                }
            }
            if compiling.as_ref().is_some_and(|compiling| compiling.rest() != latest.subject()) {
                Compiling::call_off(compiling.take()).await;
            }
            let failed = match &standing.unreadable {
                Some(fault) => vec![fault.clone()],
                None => standing.unusable.clone(),
            };
            (failed, Happened::Reloaded)
        };
        told(News { standing: &standing, failed, happened });
    }
}

/// All has been read again.
struct Read {
    latest: Pending,
    standing: Standing,
    /// What was there before it was read.
    watched: Watched,
}

/// What is compiled: entries in the configuration, each with what its file is.
type Subject = Vec<(StrategyConfig, Option<Stamp>)>;

impl Pending {
    fn subject(&self) -> Subject {
        let names = self.strategies.compiling();
        let of_them = self.selection.strategies.iter().filter(|entry| names.contains(&entry.name));
        of_them.map(|entry| (entry.clone(), entry.path.as_deref().and_then(stamp))).collect()
    }
}

/// Strategies are being compiled.
struct Compiling {
    strategies: Arc<LoadedOnce>,
    /// At the beginning.
    subject: Subject,
    called_off: CancellationToken,
    work: JoinHandle<()>,
}

impl Compiling {
    fn start(pending: Pending) -> Self {
        let called_off = CancellationToken::new();
        let until = called_off.clone();
        let (subject, strategies) = (pending.subject(), pending.strategies.clone());
        let work = tokio::task::spawn_blocking(move || pending.strategies.complete(&until));
        Self { strategies, subject, called_off, work }
    }

    /// What is still to be done.
    fn rest(&self) -> Subject {
        let names = self.strategies.compiling();
        self.subject.iter().filter(|(entry, _)| names.contains(&entry.name)).cloned().collect()
    }

    async fn call_off(compiling: Option<Self>) {
        if let Some(Self { called_off, work, .. }) = compiling {
            called_off.cancel();
            let _of_no_use = work.await;
        }
    }
}

/// Waits for the end of what is compiled; for ever where nothing is.
async fn finished(compiling: &mut Option<Compiling>) -> Result<(), JoinError> {
    match compiling {
        Some(compiling) => (&mut compiling.work).await,
        None => std::future::pending().await,
    }
}

impl Reload {
    /// Reads all again; what is loaded already stays. The error: the configuration cannot be read.
    fn reload(&self, before: &LoadedOnce) -> Result<Read, Unusable> {
        let mut watched = Watched::new(&self.flags);
        let read = self.flags.load_again(self.started.mode, &Map::new());
        let (config, selection) =
            read.map_err(|error| self.failed(format!("{:#}", anyhow::Error::new(error))))?;
        watched.add(&selection);
        let names = selection.names().filter(|_| self.started.mode != DeviceMode::Individual);
        let catalogue = self.catalogue.with_configured(&selection.strategies);
        // Without a wait: what is not compiled yet is when everything else has been taken over.
        let strategies = Arc::new(LoadedOnce::until(Instant::now(), catalogue, names, Some(before)));
        let latest = Pending { selection, strategies, is_again: true };
        let compiling = latest.strategies.compiling();
        let mut unusable = self.select(&latest);
        unusable.retain(|fault| !compiling.contains(&fault.strategy));
        let restart = changed_keys(&self.started, &config);
        let standing = Standing { unreadable: None, unusable, compiling, restart };
        Ok(Read { latest, standing, watched })
    }

    fn select(&self, latest: &Pending) -> Vec<Unusable> {
        if self.started.mode == DeviceMode::Individual {
            return Vec::new();
        }
        let strategies: Arc<dyn Strategies> = latest.strategies.clone();
        let faults = self.driver.select(latest.selection.clone(), &strategies).err().unwrap_or_default();
        let told = |fault| if latest.is_again { not_reloaded(fault) } else { fault };
        faults.into_iter().map(told).collect()
    }

    fn failed(&self, why: String) -> Unusable {
        not_reloaded(Unusable { strategy: self.driver.selection().allocator, why })
    }

    fn broken(&self, error: &JoinError) -> Unusable {
        self.failed(format!("the driver failed: {error}; report it"))
    }
}

fn not_reloaded(fault: Unusable) -> Unusable {
    Unusable { why: format!("not reloaded: {}", fault.why), ..fault }
}

/// The keys, other than those of strategies, that say something else than at the start.
pub(crate) fn changed_keys(started: &Config, now: &Config) -> Vec<String> {
    let now = Config { selection: started.selection.clone(), ..now.clone() };
    let (Value::Object(started), Value::Object(now)) = (started.describe(), now.describe()) else {
        return Vec::new();
    };
    now.into_iter().filter(|(key, value)| started.get(key) != Some(value)).map(|(key, _)| key).collect()
}

/// Waits for changes.
struct Changes {
    /// What was there when it was read.
    watched: Watched,
    /// What was there at the last look.
    last: Watched,
    /// Looks since there was something else.
    looks: u32,
    tick: Interval,
    hangup: Signal,
}

impl Changes {
    fn new(watched: Watched, hangup: Signal) -> Self {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { last: watched.clone(), watched, looks: 0, tick, hangup }
    }

    /// Waits for one. Nothing is lost when that is given up.
    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.tick.tick() => {
                    let now = self.last.again();
                    let is_new = now != self.watched;
                    self.looks = if is_new { self.looks + 1 } else { 0 };
                    let has_settled = now == self.last || self.looks >= MOST_LOOKS;
                    self.last = now;
                    if is_new && has_settled {
                        return;
                    }
                }
                Some(()) = self.hangup.recv() => return,
            }
        }
    }

    /// This was there when all was read again.
    fn read(&mut self, watched: Watched) {
        self.last = watched.clone();
        self.watched = watched;
        self.looks = 0;
    }
}

/// Files, and what they were at some moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched(Vec<(PathBuf, Option<Stamp>)>);

/// Differs when a file has been written or replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Watched {
    /// The configuration file.
    pub(crate) fn new(flags: &ConfigFlags) -> Self {
        Self(flags.config.iter().map(|file| (file.clone(), stamp(file))).collect())
    }

    /// The component files of a selection alone.
    pub(crate) fn components(selection: &Selection) -> Self {
        let is_used = |entry: &&StrategyConfig| selection.names().any(|name| name == entry.name);
        let used = selection.strategies.iter().filter(is_used);
        Self(used.filter_map(|entry| entry.path.clone()).map(|path| (path.clone(), stamp(&path))).collect())
    }

    /// The component files of a selection, too.
    pub(crate) fn add(&mut self, selection: &Selection) {
        self.0.extend(Self::components(selection).0);
    }

    fn again(&self) -> Self {
        Self(self.0.iter().map(|(path, _)| (path.clone(), stamp(path))).collect())
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let stamp = |found: Metadata| Stamp {
        place: (found.dev(), found.ino()),
        size: found.size(),
        written: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    };
    std::fs::metadata(path).ok().map(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_link_and_a_written_file_are_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for (name, text) in [("1", "a"), ("2", "b")] {
            std::fs::create_dir(path(name)).unwrap();
            std::fs::write(path(name).join("config.yaml"), text).unwrap();
        }
        std::os::unix::fs::symlink("1", path("..data")).unwrap();
        std::os::unix::fs::symlink("..data/config.yaml", path("config.yaml")).unwrap();
        let flags = ConfigFlags { config: Some(path("config.yaml")), ..ConfigFlags::default() };
        let first = Watched::new(&flags);
        assert_eq!(first.again(), first);
        std::os::unix::fs::symlink("2", path("..data_tmp")).unwrap();
        std::fs::rename(path("..data_tmp"), path("..data")).unwrap();
        let second = first.again();
        assert_ne!(second, first);
        std::fs::write(path("2/config.yaml"), "other").unwrap();
        assert_ne!(second.again(), second);
        std::fs::remove_file(path("config.yaml")).unwrap();
        assert_eq!(second.again().0[0].1, None);
    }

    #[test]
    fn keys_that_need_a_restart_are_named() {
        let load = |changes: Value| {
            let Value::Object(changes) = changes else { panic!("an object") };
            ConfigFlags::default().load_with(&changes).unwrap()
        };
        let started = load(serde_json::json!({"allocator": "packed"}));
        let now = load(serde_json::json!({
            "allocator": "llc-first", "allowedStrategies": ["packed"], "groupBy": "socket", "reservedCPUs": "0"
        }));
        assert_eq!(changed_keys(&started, &now), ["groupBy", "reservedCPUs"]);
        assert!(changed_keys(&started, &started).is_empty());
    }
}
