//! Where log lines go: to standard error, as text or JSON.

use dracpu_topology::Warning;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How a log line is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// An object a line.
    Json,
}

/// Starts the log of the daemon. `verbosity` is that of `--v`.
pub(crate) fn start(verbosity: i32, format: Format) {
    let registry = tracing_subscriber::registry().with(filter(verbosity));
    let layer = fmt::layer().with_writer(std::io::stderr);
    // Fails when a log is running already, as in a test that starts two daemons: then that one serves.
    let _already_running = match format {
        Format::Text => registry.with(layer).try_init(),
        Format::Json => registry.with(layer.json()).try_init(),
    };
}

/// Starts the log of a verb that answers a question: warnings alone, without time.
pub(crate) fn start_plain() {
    let layer = fmt::layer().with_writer(std::io::stderr).without_time().with_target(false);
    let _already_running = tracing_subscriber::registry().with(LevelFilter::WARN).with(layer).try_init();
}

/// Logs what is odd about a machine, or about what is published of it.
pub(crate) fn warn_all<'a>(warnings: impl IntoIterator<Item = &'a Warning>) {
    for warning in warnings {
        tracing::warn!(code = warning.code, "{}", warning.message);
    }
}

/// 0-3 info, 4-5 debug, 6 and up trace, for this project's own crates: all have the prefix. The client for
/// the API server calls every failed request an error, and repeats whole answers; who made the request says what it means.
fn filter(verbosity: i32) -> Targets {
    let (own, foreign, client) = match verbosity {
        ..=3 => (LevelFilter::INFO, LevelFilter::WARN, LevelFilter::OFF),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::WARN, LevelFilter::OFF),
        6.. => (LevelFilter::TRACE, LevelFilter::INFO, LevelFilter::INFO),
    };
    Targets::new().with_default(foreign).with_target("dracpu", own).with_target("kube_client::client", client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn verbosity_concerns_own_crates_alone() {
        let cases = [
            (-1, Level::INFO),
            (0, Level::INFO),
            (3, Level::INFO),
            (4, Level::DEBUG),
            (5, Level::DEBUG),
            (6, Level::TRACE),
        ];
        for (verbosity, most) in cases {
            for level in [Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
                assert_eq!(
                    filter(verbosity).would_enable("dracpu_topology::read", &level),
                    level <= most,
                    "{verbosity}"
                );
                assert!(
                    !filter(verbosity).would_enable("h2::client", &level) || level <= Level::INFO,
                    "{verbosity}"
                );
            }
        }
    }
}
