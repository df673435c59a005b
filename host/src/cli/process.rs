//! The processes of running drivers, as `/proc` shows them.

use super::{Cli, Verb, parse};
use crate::config::ConfigFlags;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The process name of a driver, this one's and the Go driver's.
const NAME: &str = "dracpu";

/// A driver that runs.
pub(super) struct DriverProcess {
    pub(super) pid: u32,
    pub(super) arguments: Vec<OsString>,
    /// The default ones where the arguments are not understood.
    pub(super) flags: ConfigFlags,
}

/// The drivers that can be seen from here, by process id; other verbs of the program are none.
pub(super) fn running(proc: &Path) -> impl Iterator<Item = DriverProcess> {
    let own = std::process::id();
    let processes = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| driver(proc, pid))
}

fn driver(proc: &Path, pid: u32) -> Option<DriverProcess> {
    let process = proc.join(pid.to_string());
    if std::fs::read_to_string(process.join("comm")).ok()?.trim_end() != NAME {
        return None;
    }
    let command_line = std::fs::read(process.join("cmdline")).ok()?;
    let arguments: Vec<OsString> = command_line
        .strip_suffix(b"\0")?
        .split(|byte| *byte == 0)
        .map(|argument| OsStr::from_bytes(argument).to_owned())
        .collect();
    let flags = daemon_flags(arguments.clone())?;
    Some(DriverProcess { pid, arguments, flags })
}

/// The configuration flags in the arguments of a process that is a daemon; arguments that are not understood
/// may be those of another version, and say nothing.
fn daemon_flags(args: Vec<OsString>) -> Option<ConfigFlags> {
    match parse(args) {
        Ok(Cli { verb: None, run } | Cli { verb: Some(Verb::Run(run)), .. }) => Some(run.into_config()),
        Ok(_) => None,
        Err(_) => Some(ConfigFlags::default()),
    }
}
