//! `dracpu strategy`: what strategies there are, what a component file is, what a strategy decides, whether it
//! keeps the rules, and what it costs.
//!
//! Beside a file per verb: `machines` and `question` (what `decide` reads and `check` writes), `cases` (the questions
//! that `check` and `bench` draw).

mod bench;
mod build;
mod cases;
mod check;
mod decide;
mod inspect;
mod list;
mod machines;
mod new;
mod question;

use super::text::{aligned, short_digest};
use super::{Failure, Output};
use crate::config::{Config, strategy_name};
use crate::strategy::compiler::child;
use crate::strategy::{Cache, Catalogue, LoadFault, Loaded};
use std::process::ExitCode;

/// List, inspect, question, try and write strategies: the components that decide which CPUs a claim gets
#[derive(Debug, clap::Args)]
#[command(after_help = "From nothing to a strategy that is tried on example machines:\n  \
                        dracpu strategy new mine --sdk ~/dracpu && cd mine && cargo test\n  \
                        dracpu strategy build && dracpu strategy check mine.wasm\n  \
                        dracpu strategy list            # those that are built in, and the configuration's")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    List(list::Args),
    Inspect(inspect::Args),
    Decide(decide::Args),
    Check(check::Args),
    Bench(bench::Args),
    New(new::Args),
    Build(build::Args),
    /// Compile the component on standard input; the daemon's own use
    #[command(hide = true)]
    Compile(child::Args),
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.verb {
        Verb::List(args) => list::run(&args),
        Verb::Inspect(args) => inspect::run(&args),
        Verb::Decide(args) => decide::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::New(args) => new::run(&args),
        Verb::Build(args) => build::run(&args),
        Verb::Compile(args) => Ok(child::run(&args)),
    }
}

/// Loads a strategy by name, or else a file. What is not there was misnamed, what is not what the configuration says is
/// misconfigured; a file that is no strategy is a failure.
fn load(catalogue: &Catalogue, what: &str) -> Result<Loaded, Failure> {
    catalogue.load_any(&strategy_name(what.to_owned())).map_err(|error| match error.fault {
        LoadFault::Unknown(_)
        | LoadFault::Read { .. }
        | LoadFault::Digest { .. }
        | LoadFault::OtherName { .. } => Failure::Usage(error.into()),
        _ => Failure::Failed(error.into()),
    })
}

/// The strategies of this binary and of a configuration.
fn catalogue(configured: &[crate::config::StrategyConfig]) -> Result<Catalogue, Failure> {
    Catalogue::new(configured).map_err(|error| Failure::Failed(error.into()))
}

/// The strategies of a configuration, with what the daemon on this host has compiled of them.
pub(super) fn catalogue_of(config: &Config) -> Result<Catalogue, Failure> {
    let cache = Cache::existing(&config.cache_dir).ok();
    Ok(catalogue(&config.selection.strategies)?.in_program(cache, &config.sysfs_root))
}

/// A JSON object with the keys of another one added.
fn extended(mut answer: serde_json::Value, more: serde_json::Value) -> serde_json::Value {
    if let (Some(answer), serde_json::Value::Object(more)) = (answer.as_object_mut(), more) {
        answer.extend(more);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_loaded_is_told_apart_from_what_is_not_there() {
        let load = |what: &str| super::load(&catalogue(&[]).unwrap(), what).unwrap_err();
        assert!(matches!(load("./none.wasm"), Failure::Usage(_)));
        assert!(matches!(load("nobody"), Failure::Usage(_)));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(load(file.path().to_str().unwrap()), Failure::Failed(_)));
    }
}
