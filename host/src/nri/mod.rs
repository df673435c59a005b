//! The container runtime's side (Node Resource Interface): registers as a plugin, answers the runtime's hooks
//! from the driver, connects again when the connection ends.
//!
//! A hook waits for no strategy, file or API server: whoever is slower than 2 s is dropped by the runtime,
//! and the container then starts without its CPUs. Updates outside of hooks go only to runtimes whose NRI
//! bears them (0.12.1): older ones can dead-lock for good, and get them in the next hook's answer.
//!
//! Reading order: this file (when to connect), `session` (one connection), `plugin` (what the runtime
//! calls), `peer` (who the runtime is), `hooks` (what the driver must do), `driver` (that
//! it does); below them `dracpu_codec::nri` (the wire and the messages).

mod driver;
mod hooks;
mod peer;
mod plugin;
mod session;

#[cfg(test)]
mod tests;

pub use hooks::{Hook, Hooks, Observer};
pub use peer::{Peer, Runtime};
pub use version::Version;

use crate::readiness::{Part, Readiness};
use dracpu_codec::nri::{CallError, WireError, convert, mux, ttrpc, version};
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
    #[error(transparent)]
    Wire(#[from] WireError),
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
    peer: Arc<Peer>,
    stop: CancellationToken,
) {
    let mut pause = Pause::default();
    let mut last_problem = String::new();
    loop {
        let started = Instant::now();
        let mut plugin = Plugin::new(hooks.clone(), observer.clone(), peer.clone());
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
