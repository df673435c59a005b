//! `--machine`.

use super::Failure;
use crate::config::Config;
use dracpu_topology::Overlay;
use dracpu_topology::machine::{self, Machine, MachineError};

/// The machine that was named, or this host.
///
/// # Errors
/// Bad usage when the machine named is none; a failure when it cannot be read.
pub(super) fn load(what: Option<&str>, config: &Config) -> Result<Machine, Failure> {
    let overlay = match &config.sysfs_overlay {
        Some(path) => Overlay::load(path).map_err(|error| Failure::Usage(error.into()))?,
        None => Overlay::default(),
    };
    let machine = match what {
        Some(what) => machine::load_with(what, &overlay),
        None => machine::host(&config.sysfs_root, &overlay),
    };
    machine.map_err(|error| match error {
        MachineError::Io { .. } | MachineError::Sysfs { .. } => Failure::Failed(error.into()),
        _ => Failure::Usage(error.into()),
    })
}
