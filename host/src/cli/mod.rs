//! The command line: `dracpu [flags]` and `dracpu run` are the daemon, every other verb answers a question.
//! A verb has its own file with its flags (`Args`) and its work (`run`).
//!
//! Answers go to standard output, messages to standard error. Exit codes: 0 ok, 1 failed or violated, 64
//! bad usage or configuration, 75 another instance holds the node.

mod claims;
mod completion;
mod doctor;
mod explain;
mod gatherinfo;
mod introspect;
mod live;
mod machine;
mod process;
mod simulate;
mod slices;
mod strategy;
mod text;
mod topology;
mod version;

use crate::config::{ConfigError, go_flags};
use crate::run;
use clap::{CommandFactory as _, FromArgMatches as _};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Bad usage or configuration (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;
/// Another instance holds the node: try again later (`EX_TEMPFAIL` of sysexits.h).
const BUSY: u8 = 75;

/// Why a verb failed, by exit code.
#[derive(Debug)]
pub enum Failure {
    /// Bad usage or configuration: exit code 64.
    Usage(anyhow::Error),
    /// It did not work, or something is violated: exit code 1.
    Failed(anyhow::Error),
    /// Another instance holds the node: exit code 75.
    Busy(anyhow::Error),
}

impl Failure {
    /// The reason, for who does not end with it.
    fn into_reason(self) -> anyhow::Error {
        match self {
            Self::Usage(reason) | Self::Failed(reason) | Self::Busy(reason) => reason,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.into())
    }
}

/// Form of an answer.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

/// DRA driver for CPUs: the daemon of one node, and questions about what it does.
#[derive(Debug, clap::Parser)]
#[command(
    name = "dracpu",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    after_help = "Without a command the daemon runs, as with `dracpu run`.\n\n\
                  Example: dracpu --config=/etc/dracpu/config.yaml --v=4"
)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: run::Args,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Run(run::Args),
    Topology(topology::Args),
    Slices(slices::Args),
    Strategy(strategy::Args),
    Simulate(simulate::Args),
    Claims(claims::Args),
    Doctor(doctor::Args),
    Explain(explain::Args),
    Gatherinfo(gatherinfo::Args),
    Introspect(introspect::Args),
    Completion(completion::Args),
    Version(version::Args),
}

/// Runs what the arguments (the program's name first) say.
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output, errors to standard error; nobody is left to tell when that fails.
            let _unwritable = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    dispatch(cli).unwrap_or_else(|failure| report(&failure))
}

fn dispatch(cli: Cli) -> Result<ExitCode, Failure> {
    let verb = cli.verb.unwrap_or(Verb::Run(cli.run));
    if !matches!(verb, Verb::Run(_)) {
        crate::logging::start_plain();
    }
    match verb {
        Verb::Run(args) => run::run(args),
        Verb::Topology(args) => topology::run(args),
        Verb::Slices(args) => slices::run(args),
        Verb::Strategy(args) => strategy::run(args),
        Verb::Simulate(args) => simulate::run(args),
        Verb::Claims(args) => claims::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Gatherinfo(args) => gatherinfo::run(args),
        Verb::Introspect(args) => introspect::run(args),
        Verb::Completion(args) => completion::run(args),
        Verb::Version(args) => version::run(args),
    }
}

/// Parses arguments in Go's syntax. Started as `dracpu-gatherinfo`, the program is that verb.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    command.build();
    let mut args = go_flags::normalise(args, &command);
    let name = args.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|name| name == "dracpu-gatherinfo") {
        args.insert(1, "gatherinfo".into());
    }
    let matches = match Cli::command().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => {
            let Some(hint) = go_flags::split_boolean(&args, &command) else { return Err(error) };
            return Err(command.error(error.kind(), hint));
        }
        Err(help) => return Err(help),
    };
    Cli::from_arg_matches(&matches)
}

/// The one place where a failure becomes words and an exit code.
fn report(failure: &Failure) -> ExitCode {
    let (error, code) = match failure {
        Failure::Usage(error) => (error, USAGE),
        Failure::Failed(error) => (error, 1),
        Failure::Busy(error) => (error, BUSY),
    };
    let _unwritable = writeln!(std::io::stderr(), "dracpu: {error:#}");
    ExitCode::from(code)
}

/// Writes an answer to standard output. A reader that has gone away wants no more of it: that is no failure.
pub(crate) fn print(answer: &str) -> Result<ExitCode, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(answer.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests;
