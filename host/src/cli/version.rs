//! `dracpu version`: what this binary is.

use super::{Failure, Output};
use serde_json::json;
use std::process::ExitCode;

/// The interface that strategies are written against.
const STRATEGY_INTERFACE: &str = "dracpu:strategy@0.1.0";
/// The release of wasmtime that is linked; the crate does not export it.
const ENGINE_VERSION: &str = "48.0.8";

/// Print the version, the strategy interface and the WebAssembly engine
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: dracpu version -o json")]
pub(super) struct Args {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let commit = option_env!("DRACPU_COMMIT");
    super::print(&match args.output {
        Output::Text => {
            format!(
                "dracpu {version}\ncommit: {}\nstrategy interface: {STRATEGY_INTERFACE}\nengine: wasmtime {}\n",
                commit.unwrap_or("unknown"),
                ENGINE_VERSION
            )
        }
        Output::Json => {
            let answer = json!({
                "schema": "dracpu.version/v1",
                "version": version,
                "commit": commit,
                "strategyInterface": STRATEGY_INTERFACE,
                "engine": {"name": "wasmtime", "version": ENGINE_VERSION},
            });
            format!("{answer:#}\n")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_version_is_the_locked_one() {
        let lock = include_str!("../../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{ENGINE_VERSION}\"\n")));
    }

    #[test]
    fn strategy_interface_is_the_one_in_wit() {
        let wit = include_str!("../../../wit/strategy.wit");
        assert!(wit.lines().any(|line| line == format!("package {STRATEGY_INTERFACE};")));
    }
}
