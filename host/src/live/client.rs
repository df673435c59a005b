use super::report::{NODE_SCHEMA, NodeReport};
use super::{
    ANSWER_BYTES, CONNECTION, DECISIONS, DECISIONS_SCHEMA, DecisionsReport, NODE, OfClaim, RELEASE, REPLAY,
    Refused, Released, ReplayReport,
};
use crate::words::plain;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// For a question with its answer: longer than the daemon takes at most, so that its answer comes in time.
const DEADLINE: Duration = CONNECTION.saturating_add(Duration::from_secs(10));

/// Why the daemon did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// Nobody is there.
    #[error(
        "no dracpu answers on {}: {why}; run this where the driver runs, with its --kubelet-root-dir if it has one; \
         on a cluster: kubectl exec -n NAMESPACE POD -- /dracpu …, with the driver's pod on that node",
        socket.display()
    )]
    NoDaemon {
        /// Where somebody should be.
        socket: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// More ask than it takes.
    #[error("the daemon at {} is busy: others are asking it; try again", socket.display())]
    Busy {
        /// Where it was asked.
        socket: PathBuf,
    },
    /// The socket is its owner's alone.
    #[error("{} may be asked by root only: run this as the user of the driver", socket.display())]
    NotAllowed {
        /// The socket.
        socket: PathBuf,
    },
    /// Somebody is there, and gives no answer that can be used.
    #[error("the daemon at {} gives no answer that can be used: {why}", socket.display())]
    NoAnswer {
        /// Where it was asked.
        socket: PathBuf,
        /// What happened.
        why: String,
    },
    /// A daemon of another version.
    #[error(
        "the daemon at {} answers with `{schema}`, and this dracpu {} knows `{known}`; use the dracpu of the driver's \
         own image",
        socket.display(),
        env!("CARGO_PKG_VERSION")
    )]
    OtherVersion {
        /// Where it was asked.
        socket: PathBuf,
        /// What it says.
        schema: String,
        /// What was expected.
        known: &'static str,
    },
    /// It will not do it; nothing has changed.
    #[error("{0}")]
    Refused(String),
}

/// The command line's way to the daemon of this node. Blocking.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The daemon that serves this socket ([`Config::live_socket`](crate::config::Config::live_socket)). Asks nobody yet.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Where it asks.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the daemon knows.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn node(&self) -> Result<NodeReport, LiveError> {
        self.ask_for(NODE, NODE_SCHEMA)
    }

    /// The same, after the daemon has asked the API server which claims are orphans by now. Where the API server does
    /// not answer in time, what was known before counts.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn node_afresh(&self) -> Result<NodeReport, LiveError> {
        self.ask_for(&format!("{NODE}?fresh=true"), NODE_SCHEMA)
    }

    /// What the daemon remembers of claims that were to be prepared.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn decisions(&self) -> Result<DecisionsReport, LiveError> {
        self.ask_for(DECISIONS, DECISIONS_SCHEMA)
    }

    /// Lets the daemon ask the strategy of a claim what it asked it then.
    ///
    /// # Errors
    /// [`LiveError`]; [`Refused`](LiveError::Refused) when it does not remember the question, or the strategy is gone.
    pub fn replay(&self, uid: &str) -> Result<ReplayReport, LiveError> {
        self.tell(REPLAY, uid)
    }

    /// Frees the CPUs of an orphan.
    ///
    /// # Errors
    /// [`LiveError`]; [`Refused`](LiveError::Refused) for every claim that is none.
    pub fn release(&self, uid: &str) -> Result<Released, LiveError> {
        self.tell(RELEASE, uid)
    }

    fn ask_for<T: DeserializeOwned>(&self, path: &str, known: &'static str) -> Result<T, LiveError> {
        let answer: Value = self.ask(Method::GET, path, Vec::new())?;
        let schema = answer.get("schema").and_then(Value::as_str).unwrap_or("no schema");
        if schema != known {
            let schema = schema.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(LiveError::OtherVersion { socket: self.socket.clone(), schema, known });
        }
        serde_json::from_value(answer).map_err(|error| self.no_answer(error))
    }

    fn tell<T: DeserializeOwned>(&self, path: &str, uid: &str) -> Result<T, LiveError> {
        let body = serde_json::to_vec(&OfClaim { uid: uid.to_owned() });
        self.ask(Method::POST, path, body.map_err(|error| self.no_answer(error))?)
    }

    fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T, LiveError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.no_answer(error))?;
        let asking = async { tokio::time::timeout(DEADLINE, self.exchange(method, path, body)).await };
        let late = |_| self.no_answer(format!("none within {} s", DEADLINE.as_secs()));
        let (status, bytes) = runtime.block_on(asking).map_err(late)??;
        if status == StatusCode::OK {
            return serde_json::from_slice(&bytes).map_err(|error| self.no_answer(error));
        }
        match serde_json::from_slice(&bytes) {
            Ok(Refused { error }) => Err(LiveError::Refused(plain(&error))),
            Err(_) => Err(self.no_answer(format!("HTTP status {status} for {path}"))),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), LiveError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|why| match why.kind() {
            io::ErrorKind::PermissionDenied => LiveError::NotAllowed { socket: self.socket.clone() },
            io::ErrorKind::WouldBlock => LiveError::Busy { socket: self.socket.clone() },
            _ => LiveError::NoDaemon { socket: self.socket.clone(), why },
        })?;
        let io = TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.map_err(|error| self.no_answer(error))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, "dracpu")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.no_answer(error))?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(|error| self.no_answer(error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| self.no_answer(error))?;
            Ok((status, body.to_bytes()))
        };
        let drive = async {
            // Its errors are those of the exchange.
            let _ended = connection.await;
            std::future::pending().await
        };
        tokio::select! {
            answer = exchange => answer,
            never = drive => never,
        }
    }

    fn no_answer(&self, why: impl ToString) -> LiveError {
        LiveError::NoAnswer { socket: self.socket.clone(), why: plain(&why.to_string()) }
    }
}
