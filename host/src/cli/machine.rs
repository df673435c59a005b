//! `--machine`.

use super::Failure;
use crate::config::Config;
use dracpu_topology::Overlay;
use dracpu_topology::machine::{self, Machine, MachineError};
use std::path::Path;

/// The overlay of a file, or none.
///
/// # Errors
/// Bad usage when the file is no overlay.
pub(super) fn overlay(file: Option<&Path>) -> Result<Overlay, Failure> {
    let load = |file| Overlay::load(file).map_err(|error| Failure::Usage(error.into()));
    file.map(load).transpose().map(Option::unwrap_or_default)
}

/// As [`load`], with what the configuration reserves.
///
/// # Errors
/// As [`load`].
pub(super) fn load_reserved(what: Option<&str>, config: &Config) -> Result<Machine, Failure> {
    let machine = load(what, config)?;
    let reserved = machine.reserved.union(&config.reserved_cpus.on(&machine.topology));
    Ok(Machine { reserved, ..machine })
}

/// The machine that was named, or this host.
///
/// # Errors
/// Bad usage when the machine named is none; a failure when it cannot be read.
pub(super) fn load(what: Option<&str>, config: &Config) -> Result<Machine, Failure> {
    let overlay = overlay(config.sysfs_overlay.as_deref())?;
    let machine = match what {
        Some(what) => machine::load_with(what, &overlay),
        None => machine::host(&config.sysfs_root, &overlay),
    };
    machine.map_err(|error| match error {
        MachineError::Io { .. } | MachineError::Sysfs { .. } => Failure::Failed(error.into()),
        _ => Failure::Usage(error.into()),
    })
}
