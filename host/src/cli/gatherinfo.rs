//! `dracpu gatherinfo`: the machine and the running driver's configuration, for a bug report.

use super::Failure;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> Result<ExitCode, Failure> {
    super::print("---\n")
}
