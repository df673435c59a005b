//! The operator's side: what the daemon knows of its node, asked by the command line over a unix socket that only the
//! driver's user may open; and the one thing that only a person may decide, to release an orphan. HTTP/1 with JSON, one
//! request a connection.
//!
//! Translates and calls the driver; decides nothing, stores nothing. Never on TCP.
//!
//! Reading order: `report` (the document), `assemble` (how it comes about), `decisions` (what is remembered), this file and `server`, `client`.

mod assemble;
mod client;
mod decisions;
#[cfg(test)]
pub(crate) mod fixtures;
mod list;
mod report;
mod server;
#[cfg(test)]
mod tests;

pub(crate) use assemble::Sources;
pub use client::{Client, LiveError};
pub use decisions::{
    AnswerReport, DECISIONS_SCHEMA, DecisionReport, DecisionsReport, GrantReport, ReplayReport, RequestReport,
};
pub use report::*;

use crate::dra::{SocketError, SocketFile};
use dracpu_cpuset::CpuSet;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// The report; with `?fresh=true` the API server is asked for orphans before.
const NODE: &str = "/node";
/// Releases an orphan.
const RELEASE: &str = "/claims/release";
/// What is remembered of claims that were to be prepared.
const DECISIONS: &str = "/decisions";
/// Asks a remembered question again.
const REPLAY: &str = "/decisions/replay";
/// What a client takes of an answer. A node with a thousand containers makes it half a megabyte.
const ANSWER_BYTES: usize = 64 << 20;
/// For a connection with all that is asked on it. The API server is waited for 10 s at most.
const CONNECTION: Duration = Duration::from_secs(30);
/// For the API server, when orphans are asked for.
const ASK: Duration = Duration::from_secs(10);

/// A claim that something is asked for.
#[derive(Debug, Serialize, Deserialize)]
struct OfClaim {
    uid: String,
}

/// A claim that was released, and what it held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Its UID.
    pub uid: String,
    /// CPUs that are free again, unless another record names them too.
    #[serde(with = "list")]
    pub cpus: CpuSet,
    /// CPUs that are not blocked for it any more.
    #[serde(with = "list")]
    pub blocked: CpuSet,
}

/// Why something was not done.
#[derive(Debug, Serialize, Deserialize)]
struct Refused {
    error: String,
}

/// A socket that listens, for [`serve`]. Its file goes when this is dropped.
pub(crate) struct Listening {
    listener: UnixListener,
    file: SocketFile,
}

/// Listens, under the node lock.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn listen(socket: PathBuf) -> Result<Listening, SocketError> {
    let (listener, file) = SocketFile::bind_private(socket)?;
    Ok(Listening { listener, file })
}

/// Answers until `stop`, then removes the socket.
pub(crate) async fn serve(listening: Listening, sources: Sources, stop: CancellationToken) {
    let Listening { listener, file: _removed_at_the_end } = listening;
    server::serve(listener, sources, stop).await;
}
