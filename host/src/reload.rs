//! Takes over what a changed configuration, or a changed component, says about strategies, without a restart.
//!
//! Nothing wakes who waits for a file on every file system (ConfigMap mounts swap a link, some network mounts tell
//! nobody), so the few files are looked at every second. A change is taken over when it has stayed the same from one look
//! to the next, and at SIGHUP at once.

use crate::config::{Config, ConfigFlags, DeviceMode, Selection};
use crate::driver::{Driver, LoadedOnce, Strategies, Unusable};
use crate::strategy::Catalogue;
use serde_json::Value;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::Signal;
use tokio::time::MissedTickBehavior;

const LOOK: Duration = Duration::from_secs(1);

/// What is read again.
pub(crate) struct Reload {
    pub(crate) flags: ConfigFlags,
    /// The configuration that the daemon has started with.
    pub(crate) started: Config,
    pub(crate) catalogue: Catalogue,
    pub(crate) driver: Arc<Driver>,
}

/// What came of one reload: what is not as configured.
pub(crate) struct Outcome {
    pub(crate) faults: Vec<Unusable>,
    /// Keys that only a restart can change.
    pub(crate) restart: Vec<String>,
}

/// Watches for ever. `watched` is what was there before it was read first; `due`: something is still to be loaded.
/// `told` is called after each reload.
pub(crate) async fn watch(
    reload: Reload,
    mut watched: Watched,
    mut due: bool,
    mut hangup: Signal,
    told: impl Fn(&Outcome),
) {
    let reload = Arc::new(reload);
    let mut last = watched.clone();
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if !due {
            due = tokio::select! {
                _ = looks.tick() => {
                    let now = last.again();
                    let settled = now == last && now != watched;
                    last = now;
                    settled
                }
                Some(()) = hangup.recv() => true,
            };
            if !due {
                continue;
            }
        }
        due = false;
        let work = Arc::clone(&reload);
        let before = last.again();
        let done = tokio::task::spawn_blocking(move || work.reload()).await;
        let (outcome, looked) = done
            .unwrap_or_else(|error| (reload.failed(format!("the driver failed: {error}; report it")), None));
        watched = looked.unwrap_or(before);
        last = watched.clone();
        told(&outcome);
    }
}

impl Reload {
    /// Reads all again. Also what was there before it was read, once it is known what that is.
    fn reload(&self) -> (Outcome, Option<Watched>) {
        let mut watched = Watched::new(&self.flags);
        let config = match self.flags.load() {
            Ok(config) => config,
            Err(error) => return (self.failed(format!("{:#}", anyhow::Error::new(error))), None),
        };
        watched.add(&config.selection);
        let restart = changed_keys(&self.started, &config);
        let faults = match self.started.mode {
            DeviceMode::Individual => Vec::new(),
            DeviceMode::Grouped(_) => self.select(config.selection).err().unwrap_or_default(),
        };
        (Outcome { faults, restart }, Some(watched))
    }

    /// Nothing could be read again.
    fn failed(&self, why: String) -> Outcome {
        let strategy = self.started.selection.allocator.clone();
        Outcome { faults: vec![Unusable { strategy, why }], restart: Vec::new() }
    }

    fn select(&self, selection: Selection) -> Result<(), Vec<Unusable>> {
        let catalogue = self.catalogue.with_configured(&selection.strategies);
        let loaded: Arc<dyn Strategies> = Arc::new(LoadedOnce::all(catalogue, selection.names()));
        self.driver.select(selection, &loaded)
    }
}

/// The keys, other than those of strategies, that say something else than at the start.
fn changed_keys(started: &Config, now: &Config) -> Vec<String> {
    let now = Config { selection: started.selection.clone(), ..now.clone() };
    let (Value::Object(started), Value::Object(now)) = (started.describe(), now.describe()) else {
        return Vec::new();
    };
    now.into_iter().filter(|(key, value)| started.get(key) != Some(value)).map(|(key, _)| key).collect()
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
