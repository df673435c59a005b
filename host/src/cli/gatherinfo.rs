//! `dracpu gatherinfo`: the machine and the running driver's configuration, for a bug report.

use super::Failure;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the machine's CPUs and the running driver's configuration to a file, for a bug report
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dracpu gatherinfo --output-dir /tmp\n  dracpu gatherinfo --stdout > node.yaml\n\n\
                        The file is a machine for other verbs: dracpu topology --machine node.yaml"
)]
pub(super) struct Args {
    /// Where the file goes [default: the current directory]
    #[arg(long, value_name = "DIR", conflicts_with = "stdout")]
    output_dir: Option<PathBuf>,

    /// Write to standard output
    #[arg(long)]
    stdout: bool,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let _ = args;
    super::print("---\n")
}
