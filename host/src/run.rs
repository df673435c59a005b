//! The daemon.

use crate::cli::Failure;
use crate::config::ConfigFlags;
use crate::logging;
use std::process::ExitCode;

/// Run the daemon: serve the kubelet and the container runtime of this node
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: dracpu run --config=/etc/dracpu/config.yaml --v=4")]
pub struct Args {
    #[command(flatten)]
    config: ConfigFlags,

    /// Form of log lines
    #[arg(long, value_enum, default_value_t)]
    log_format: logging::Format,
}

/// Runs until a signal or a fault ends it.
///
/// # Errors
/// [`Failure`] with the reason.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    logging::start(args.config.verbosity, args.log_format);
    let config = args.config.load()?;
    tracing::info!(config = %config.describe(), "effective configuration");
    Ok(ExitCode::SUCCESS)
}
