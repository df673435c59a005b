//! Takes over what a changed configuration, or a changed component, says about strategies, without a restart.
//!
//! Nothing wakes who waits for a file on every file system (ConfigMap mounts swap a link, some network mounts tell
//! nobody), so the few files are looked at every second. A change is taken over when it has stayed the same from one look
//! to the next, or has not come to rest for a while, and at SIGHUP at once.
//!
//! What is to be compiled first is taken over when that is done. A change meanwhile calls it off.

use crate::config::{Config, ConfigFlags, DeviceMode, Selection};
use crate::driver::{Driver, LoadedOnce, Strategies, Unusable};
use crate::strategy::Catalogue;
use serde_json::{Map, Value};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::Signal;
use tokio::task::JoinError;
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

/// What came of the start, or of one reload: what is not as configured.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Whether something was read again.
    pub(crate) is_reload: bool,
    pub(crate) faults: Vec<Unusable>,
    /// Faults that were told before.
    pub(crate) known: Vec<Unusable>,
    /// Strategies that are still to be compiled.
    pub(crate) compiling: Vec<String>,
    /// Keys that only a restart can change.
    pub(crate) restart: Vec<String>,
}

/// A selection of which strategies are still to be compiled.
#[derive(Clone)]
struct Pending {
    selection: Selection,
    strategies: Arc<LoadedOnce>,
    restart: Vec<String>,
}

/// Watches for ever. `watched` is what was there before it was read first; `strategies` are what the driver has started
/// with. `told` is called at the start, and after each reload.
pub(crate) async fn watch(
    reload: Reload,
    watched: Watched,
    strategies: Arc<LoadedOnce>,
    hangup: Signal,
    told: impl Fn(&Outcome),
) {
    let reload = Arc::new(reload);
    let selection = reload.started.selection.clone();
    let started = Pending { selection, strategies, restart: Vec::new() };
    let faults = reload.driver.unusable();
    let (outcome, mut pending) = started.outcome(faults, false);
    told(&outcome);
    let mut changes = Changes::new(watched, hangup);
    let mut unreadable = Vec::new();
    loop {
        let done = match pending.clone() {
            None => {
                changes.next().await;
                None
            }
            Some(of) => {
                let called_off = CancellationToken::new();
                let until = called_off.clone();
                let work = Arc::clone(&reload);
                let mut work = tokio::task::spawn_blocking(move || work.complete(&of, &until));
                tokio::select! {
                    done = &mut work => Some(done),
                    () = changes.next() => {
                        called_off.cancel();
                        let _of_no_use = work.await;
                        None
                    }
                }
            }
        };
        let outcome = match done {
            Some(done) => {
                pending = None;
                let outcome = done.unwrap_or_else(|error| reload.broken(&error));
                Outcome { known: unreadable.clone(), ..outcome }
            }
            None => {
                let work = Arc::clone(&reload);
                let before = changes.last.again();
                let read = tokio::task::spawn_blocking(move || work.reload()).await;
                match read.unwrap_or_else(|error| Err(reload.broken(&error))) {
                    Ok(read) => {
                        changes.read(read.watched);
                        unreadable.clear();
                        pending = read.pending;
                        read.outcome
                    }
                    // What was to be compiled still is.
                    Err(outcome) => {
                        changes.read(before);
                        unreadable.clone_from(&outcome.faults);
                        outcome
                    }
                }
            }
        };
        told(&outcome);
    }
}

/// All has been read again.
struct Read {
    outcome: Outcome,
    pending: Option<Pending>,
    /// What was there before it was read.
    watched: Watched,
}

impl Pending {
    /// What is not as configured, and what is still to be done.
    fn outcome(self, faults: Vec<Unusable>, is_reload: bool) -> (Outcome, Option<Self>) {
        let compiling = self.strategies.compiling();
        let faults = faults.into_iter().filter(|fault| !compiling.contains(&fault.strategy)).collect();
        let restart = self.restart.clone();
        let pending = Some(self).filter(|_| !compiling.is_empty());
        (Outcome { is_reload, faults, compiling, restart, known: Vec::new() }, pending)
    }
}

impl Reload {
    /// Reads all again. The error: the configuration cannot be read.
    fn reload(&self) -> Result<Read, Outcome> {
        let mut watched = Watched::new(&self.flags);
        let read = self.flags.load_again(self.started.mode, &Map::new());
        let (config, selection) =
            read.map_err(|error| self.failed(format!("{:#}", anyhow::Error::new(error))))?;
        watched.add(&selection);
        let restart = changed_keys(&self.started, &config);
        let (outcome, pending) = match self.started.mode {
            DeviceMode::Individual => (Outcome { is_reload: true, restart, ..Outcome::default() }, None),
            DeviceMode::Grouped(_) => {
                let catalogue = self.catalogue.with_configured(&selection.strategies);
                // Without a wait: what is not compiled yet is when everything else has been taken over.
                let strategies = Arc::new(LoadedOnce::until(Instant::now(), catalogue, selection.names()));
                let read = Pending { selection, strategies, restart };
                let faults = self.select(&read);
                read.outcome(faults, true)
            }
        };
        Ok(Read { outcome, pending, watched })
    }

    /// Takes over what had to be compiled first.
    fn complete(&self, pending: &Pending, called_off: &CancellationToken) -> Outcome {
        pending.strategies.complete(called_off);
        let faults = self.select(pending);
        pending.clone().outcome(faults, true).0
    }

    fn select(&self, read: &Pending) -> Vec<Unusable> {
        let strategies: Arc<dyn Strategies> = read.strategies.clone();
        self.driver.select(read.selection.clone(), &strategies).err().unwrap_or_default()
    }

    /// Nothing could be read again.
    fn failed(&self, why: String) -> Outcome {
        let strategy = self.driver.selection().allocator;
        Outcome { is_reload: true, faults: vec![Unusable { strategy, why }], ..Outcome::default() }
    }

    fn broken(&self, error: &JoinError) -> Outcome {
        self.failed(format!("the driver failed: {error}; report it"))
    }
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
        let mut watched = Self(Vec::new());
        watched.add(selection);
        watched
    }

    /// The component files of a selection, too.
    pub(crate) fn add(&mut self, selection: &Selection) {
        let used =
            selection.strategies.iter().filter(|entry| selection.names().any(|name| name == entry.name));
        self.0.extend(used.filter_map(|entry| entry.path.clone()).map(|path| {
            let stamp = stamp(&path);
            (path, stamp)
        }));
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
