//! Notices that CPUs go offline or come back, and tells the driver.
//!
//! sysfs wakes nobody when a file changes, so the list of online CPUs, one small file, is looked at every second. The
//! rest of the tree is read when the list has changed and stays the same from one look to the next: while the
//! kernel takes a CPU down, its directories go one after the other.

use crate::driver::Driver;
use dracpu_cpuset::CpuSet;
use dracpu_topology::machine::{self, MachineError};
use dracpu_topology::{Overlay, ReadError, Topology};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

const LOOK: Duration = Duration::from_secs(1);

/// Where the machine is described.
#[derive(Debug, Clone)]
pub(crate) struct Sysfs {
    /// `--sysfs-root`.
    pub(crate) root: PathBuf,
    /// `sysfsOverlay`.
    pub(crate) overlay: Overlay,
}

impl Sysfs {
    /// The whole machine.
    pub(crate) fn topology(&self) -> Result<Topology, MachineError> {
        Ok(machine::host(&self.root, &self.overlay)?.topology)
    }

    fn online(&self) -> Result<CpuSet, ReadError> {
        dracpu_topology::online(&self.root, &self.overlay)
    }
}

/// Watches for ever. `changed` is called after the driver was told of a change.
pub(crate) async fn watch(sysfs: Arc<Sysfs>, driver: Arc<Driver>, changed: impl Fn()) {
    let mut known = driver.status().online;
    let mut last = known.clone();
    let mut trouble = None;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let looked = look(&sysfs, &driver, &known, &last).await;
        let failed = looked.as_ref().err().map(|error| format!("{error:#}"));
        if let Some(why) = failed.as_ref().filter(|why| trouble.as_ref() != Some(*why)) {
            tracing::warn!("a change of the online CPUs cannot be followed: {why}");
        }
        trouble = failed;
        let Ok((online, told)) = looked else { continue };
        if told {
            let (gone, back) = (known.difference(&online), online.difference(&known));
            tracing::info!(%online, %gone, %back, "the online CPUs have changed");
            known.clone_from(&online);
            changed();
        }
        last = online;
    }
}

/// One look: the CPUs that are online, and whether the driver was told so.
async fn look(
    sysfs: &Arc<Sysfs>,
    driver: &Arc<Driver>,
    known: &CpuSet,
    last: &CpuSet,
) -> anyhow::Result<(CpuSet, bool)> {
    let online = sysfs.online()?;
    if online == *known || online != *last {
        return Ok((online, false));
    }
    let (sysfs, driver) = (Arc::clone(sysfs), Arc::clone(driver));
    let tell = move || {
        let topology = sysfs.topology()?;
        let found = topology.online();
        // Changed again meanwhile: the next look will see.
        let at_rest = found == online;
        if at_rest {
            driver.machine_changed(topology);
        }
        anyhow::Ok((found, at_rest))
    };
    tokio::task::spawn_blocking(tell).await?
}
