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

use crate::dra::{SocketFile, clear};
use crate::words::chain;
use dracpu_cpuset::CpuSet;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// The report; with `?fresh=true` the API server is asked before, for orphans and for the slices.
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
/// Between two looks at the socket's file.
const LOOK: Duration = Duration::from_secs(5);
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

/// The socket, as far as it can be served: nothing that the node does waits for it. For [`serve`].
pub(crate) struct Socket {
    path: PathBuf,
    /// None when it cannot be made.
    listening: Option<(UnixListener, SocketFile)>,
    /// That it cannot be made has been logged.
    told: bool,
}

impl Socket {
    /// Listens, under the node lock; or says in the log why not.
    pub(crate) async fn at(path: PathBuf) -> Self {
        let mut socket = Self { path, listening: None, told: false };
        socket.listen().await;
        socket
    }

    async fn listen(&mut self) {
        let listening = match clear(&self.path).await {
            Ok(()) => SocketFile::bind_private(self.path.clone()),
            Err(error) => Err(error),
        };
        match listening {
            Ok(listening) => {
                if std::mem::take(&mut self.told) {
                    tracing::info!(socket = %self.path.display(), "the command line is served");
                }
                self.listening = Some(listening);
            }
            Err(error) if !self.told => {
                let error = chain(&error);
                tracing::warn!(%error, "`dracpu claims` and other verbs cannot ask this driver; it goes on without, and tries again");
                self.told = true;
            }
            Err(_as_before) => {}
        }
    }
}

/// Answers until `stop`, then removes the socket. One that is not there, or not any more, is made.
pub(crate) async fn serve(mut socket: Socket, sources: Sources, stop: CancellationToken) {
    loop {
        match socket.listening.take() {
            Some((listener, file)) => {
                let until = stop.child_token();
                let mut serving = pin!(server::serve(listener, sources.clone(), until.clone()));
                tokio::select! {
                    () = serving.as_mut() => {}
                    () = taken_away(&file) => {
                        tracing::warn!(socket = %socket.path.display(), "somebody took the socket away; it is made again");
                        until.cancel();
                        serving.await;
                    }
                }
            }
            None => _ = stop.run_until_cancelled(tokio::time::sleep(LOOK)).await,
        }
        if stop.is_cancelled() {
            return;
        }
        socket.listen().await;
    }
}

async fn taken_away(file: &SocketFile) {
    while file.is_in_place() {
        tokio::time::sleep(LOOK).await;
    }
}
