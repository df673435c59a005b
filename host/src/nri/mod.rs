//! The container runtime's side (Node Resource Interface): registers as a plugin, answers the runtime's hooks
//! from the driver, connects again when the connection ends.
//!
//! A hook waits for no strategy, file or API server: whoever is slower than 2 s is dropped by the runtime,
//! and the container then starts without its CPUs. Updates outside of hooks go only to runtimes whose NRI
//! bears them (0.12.1): older ones can dead-lock for good, and get them in the next hook's answer.
//!
//! Reading order: this file (when to connect), `session` (one connection), `plugin` (what the runtime
//! calls), `convert`, `hooks` (what the driver must do), `driver` (that
//! it does), `version`; below them `mux` and `ttrpc` (the wire).

mod convert;
mod driver;
mod hooks;
mod mux;
mod plugin;
mod session;
mod ttrpc;
mod version;

#[cfg(test)]
mod tests;

pub use hooks::{Hook, Hooks, Observer};
pub(crate) use version::Version;

use crate::readiness::{Part, Readiness};
use plugin::Plugin;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a connection to the runtime ended; the way on is always a new one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum SessionError {
    #[error(
        "no container runtime answers at {}: {source}; NRI must be enabled in the runtime, and the directory of its \
         socket visible to this driver",
        .socket.display()
    )]
    Unreachable { socket: PathBuf, source: std::io::Error },
    #[error("the container runtime refused this plugin: {message} (code {code})")]
    Refused { code: i32, message: String },
    #[error("the container runtime closed the connection")]
    Closed,
    #[error("the connection to the container runtime failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("the container runtime took no answer for {} s", .0.as_secs())]
    Stalled(Duration),
    #[error("the container runtime sent a frame of {length} bytes; {limit} are the most")]
    FrameTooLarge { length: u32, limit: usize },
    #[error("the container runtime sent a message of {length} bytes; {limit} are the most")]
    MessageTooLarge { length: u32, limit: usize },
    #[error(
        "the container runtime sent a message of kind {kind}; only requests (1) and responses (2) are known"
    )]
    NotUnary { kind: u8 },
}

/// Why a call of the runtime fails; the connection goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum CallError {
    #[error("this plugin has no method {service}/{method}")]
    UnknownMethod { service: String, method: String },
    #[error("the request cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
    #[error("the request names no {missing}")]
    Incomplete { missing: &'static str },
    /// The driver's decision.
    #[error(transparent)]
    Refused(anyhow::Error),
    #[error("the driver gave the container no CPUs; this is a fault of the driver")]
    NoCpus,
    #[error("the driver failed in this hook; its log has the reason")]
    Panicked,
    #[error("the answer has {length} bytes, more than a message can have")]
    TooLarge { length: usize },
}

/// Serves the runtime behind `socket` until `stop`, through any number of connections.
///
/// [`Part::Nri`] is ready while a connection is synchronized: from the answer to the last part of
/// Synchronize to the end of the connection. A socket that is missing, or a runtime that refuses the plugin,
/// is the reason there and is tried again.
pub async fn run(
    socket: PathBuf,
    hooks: Arc<dyn Hooks>,
    observer: Arc<dyn Observer>,
    readiness: Arc<Readiness>,
    stop: CancellationToken,
) {
    let mut pause = Pause::default();
    let mut last_problem = String::new();
    loop {
        let started = Instant::now();
        let mut plugin = Plugin::new(hooks.clone(), observer.clone());
        let Err(error) = session::serve(&socket, &mut plugin, &readiness, &stop).await else { break };
        let problem = error.to_string();
        readiness.not_ready(Part::Nri, &problem);
        let served = plugin.is_synchronized().then(|| started.elapsed());
        log_problem(&socket, &problem, served.is_some() || problem != last_problem);
        last_problem = problem;
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause.after(served)) => {}
        }
    }
    readiness.not_ready(Part::Nri, "the driver is stopping");
    tracing::info!(socket = %socket.display(), "disconnected from the container runtime");
}

/// Speaks up for a new problem, not for each attempt that ends in it.
fn log_problem(socket: &Path, problem: &str, new: bool) {
    if new {
        tracing::warn!(socket = %socket.display(), problem, "not connected to the container runtime, will retry");
    } else {
        tracing::debug!(socket = %socket.display(), problem, "still not connected to the container runtime");
    }
}

/// How long to wait before the next connection: not at all the first time, since containers created
/// meanwhile are not pinned; then longer each time.
#[derive(Debug, Default)]
struct Pause(Duration);

impl Pause {
    const SHORTEST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);

    /// The wait after a connection that was synchronized for so long, if at all. One that lasted begins anew.
    fn after(&mut self, served: Option<Duration>) -> Duration {
        if served >= Some(Self::LONGEST) {
            self.0 = Duration::ZERO;
        }
        let pause = self.0;
        self.0 = (pause * 2).clamp(Self::SHORTEST, Self::LONGEST);
        pause
    }
}
