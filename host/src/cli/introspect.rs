//! `dracpu introspect`: what the daemon exposes, for documentation and dashboards.

use super::Failure;
use std::process::ExitCode;

/// Print what the daemon exposes, as JSON
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: dracpu introspect metrics")]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Name, type, stability, help and labels of every metric
    #[command(after_help = "Example: dracpu introspect metrics | jq -r '.metrics[].name'")]
    Metrics,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let answer = match args.what {
        What::Metrics => crate::http::table(),
    };
    super::print(&format!("{answer:#}\n"))
}
