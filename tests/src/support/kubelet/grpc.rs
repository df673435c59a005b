//! gRPC calls over a unix socket, as grpc-go makes them: one request, one answer or a stream of them.
//! Source: the gRPC over HTTP/2 specification.

use super::super::percent;
use super::authority::{Announced, Dialing, GoWire, Pending, authority};
use http_body_util::{BodyExt, Full};
use hyper::HeaderMap;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::marker::PhantomData;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinHandle;

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server's own status.
    #[error("rpc error: code = {code} desc = {message}")]
    Status {
        /// A gRPC code.
        code: i32,
        /// The server's words.
        message: String,
    },
    /// Not a gRPC answer, or none at all.
    #[error("transport: {0}")]
    Transport(String),
    /// The caller's limit.
    #[error("context deadline exceeded ({0:?})")]
    Deadline(Duration),
}

/// An HTTP/2 connection to a plugin.
pub struct Connection {
    sender: Mutex<http2::SendRequest<Full<Bytes>>>,
    pending: Pending,
    authority: String,
    driving: JoinHandle<()>,
    closed: watch::Receiver<bool>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

fn transport(error: &dyn std::error::Error) -> CallError {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(below) = source {
        text = format!("{text}: {below}");
        source = below.source();
    }
    CallError::Transport(text)
}

/// Hands the answer over. A request whose caller goes away is sent all the same, and reset then, as grpc-go does: one
/// that was announced and never sent would leave its header fields to the next.
async fn answer_or_reset<R>(
    response: impl Future<Output = R>,
    on_its_way: oneshot::Receiver<()>,
    mut answering: oneshot::Sender<R>,
) {
    let mut response = pin!(response);
    let gone = async {
        answering.closed().await;
        let _connection_over = on_its_way.await;
    };
    tokio::select! {
        biased;
        answer = &mut response => {
            let _gone_meanwhile = answering.send(answer);
        }
        () = gone => {}
    }
}

impl Connection {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// When the socket refuses, or within `limit`.
    pub async fn dial(path: &Path, dialing: Dialing, limit: Duration) -> Result<Self, CallError> {
        let dial = async {
            let stream = UnixStream::connect(path).await.map_err(|error| transport(&error))?;
            let pending = Pending::default();
            let wire = TokioIo::new(GoWire::new(stream, Pending::clone(&pending)));
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), wire).await.map_err(|error| transport(&error))?;
            let (closing, closed) = watch::channel(false);
            let driving = tokio::spawn(async move {
                let _closed_by_either_side = connection.await;
                closing.send_replace(true);
            });
            sender.ready().await.map_err(|error| transport(&error))?;
            let authority = authority(path, dialing);
            Ok(Self { sender: Mutex::new(sender), pending, authority, driving, closed })
        };
        tokio::time::timeout(limit, dial).await.unwrap_or(Err(CallError::Deadline(limit)))
    }

    /// Waits for the end of the connection.
    pub async fn closed(&self) {
        drop(self.closed.clone().wait_for(|closed| *closed).await);
    }

    /// Calls `path` (`/service/method`).
    ///
    /// # Errors
    /// [`CallError`]
    pub async fn call<Answer: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<Answer, CallError> {
        let call = self.exchange(path, request.encode_to_vec(), limit);
        let answer = tokio::time::timeout(limit, call).await.unwrap_or(Err(CallError::Deadline(limit)))?;
        Answer::decode(answer).map_err(|error| transport(&error))
    }

    /// Calls `path`, whose answer is a stream that may last.
    ///
    /// # Errors
    /// [`CallError`]
    pub async fn open<Answer: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<Messages<Answer>, CallError> {
        let (headers, body) = self.send(path, request.encode_to_vec(), None).await?;
        Ok(Messages { headers, body, bytes: Vec::new(), answers: PhantomData })
    }

    async fn exchange(&self, path: &str, message: Vec<u8>, limit: Duration) -> Result<Bytes, CallError> {
        let (headers, body) = self.send(path, message, Some(limit)).await?;
        let body = body.collect().await.map_err(|error| transport(&error))?;
        status(body.trailers(), &headers)?;
        let body = body.to_bytes();
        match framed(&body)? {
            Some(end) if end == body.len() => Ok(body.slice(PREFIX..)),
            Some(end) => Err(CallError::Transport(format!("{} bytes behind the message", body.len() - end))),
            None => Err(CallError::Transport(format!("a message that ends after {} bytes", body.len()))),
        }
    }

    /// Sends a message; the answer's headers and body, which are gRPC's.
    async fn send(
        &self,
        path: &str,
        message: Vec<u8>,
        limit: Option<Duration>,
    ) -> Result<(HeaderMap, Incoming), CallError> {
        let mut body = vec![0]; // not compressed
        body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend(message);
        let request = hyper::Request::post("http://replaced-on-the-wire/").body(Full::new(Bytes::from(body)));
        let mut fields = vec![
            (":method", "POST".to_owned()),
            (":scheme", "http".to_owned()),
            (":path", path.to_owned()),
            (":authority", self.authority.clone()),
            ("content-type", "application/grpc".to_owned()),
            ("user-agent", "grpc-go/1.80.0".to_owned()),
            ("te", "trailers".to_owned()),
        ];
        fields.extend(limit.map(|l| ("grpc-timeout", format!("{}u", l.as_micros().min(99_999_999)))));
        let (answering, answer) = oneshot::channel();
        {
            let mut sender = self.sender.lock().await; // one order for announced and sent requests
            let (sent, on_its_way) = oneshot::channel();
            self.pending.lock().unwrap().push_back(Announced { fields, sent });
            let response = sender.send_request(request.expect("the request is valid"));
            tokio::spawn(answer_or_reset(response, on_its_way, answering));
        }
        let response = answer.await.map_err(|error| transport(&error))?.map_err(|error| transport(&error))?;
        let (parts, body) = response.into_parts();
        let kind = parts.headers.get("content-type").and_then(|value| value.to_str().ok());
        if parts.status != hyper::StatusCode::OK
            || !kind.is_some_and(|kind| kind.starts_with("application/grpc"))
        {
            let text = format!("unexpected HTTP status {} with content type {kind:?}", parts.status);
            return Err(CallError::Transport(text));
        }
        Ok((parts.headers, body))
    }
}

/// The messages of a stream.
pub struct Messages<Answer> {
    headers: HeaderMap,
    body: Incoming,
    /// Arrived, not yet a whole message.
    bytes: Vec<u8>,
    answers: PhantomData<fn() -> Answer>,
}

impl<Answer: Message + Default> Messages<Answer> {
    /// The next message; none when the server has ended the stream without an error.
    ///
    /// # Errors
    /// [`CallError`]
    pub async fn next(&mut self) -> Result<Option<Answer>, CallError> {
        loop {
            if let Some(end) = framed(&self.bytes)? {
                let message: Vec<u8> = self.bytes.drain(..end).collect();
                return Answer::decode(&message[PREFIX..]).map(Some).map_err(|error| transport(&error));
            }
            let Some(frame) = self.body.frame().await else {
                return status(None, &self.headers).map(|()| None);
            };
            match frame.map_err(|error| transport(&error))?.into_data() {
                Ok(data) => self.bytes.extend(data),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return status(Some(&trailers), &self.headers).map(|()| None);
                }
            }
        }
    }
}

/// What stands before each message.
const PREFIX: usize = 5;

/// Where the first message ends; none when it is not whole yet.
fn framed(bytes: &[u8]) -> Result<Option<usize>, CallError> {
    match bytes.get(..PREFIX) {
        None => Ok(None),
        Some([0, length @ ..]) => {
            let length = u32::from_be_bytes(length.try_into().unwrap());
            let end = PREFIX + usize::try_from(length).unwrap();
            Ok(Some(end).filter(|end| bytes.len() >= *end))
        }
        Some(_) => Err(CallError::Transport("a compressed message".to_owned())),
    }
}

/// How the server says that the call has ended: behind the body, or in place of it.
fn status(trailers: Option<&HeaderMap>, headers: &HeaderMap) -> Result<(), CallError> {
    let field = |name: &str| {
        let value = trailers.and_then(|trailers| trailers.get(name)).or_else(|| headers.get(name));
        value.and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    match field("grpc-status").as_deref().map(str::parse) {
        Some(Ok(0)) => Ok(()),
        Some(Ok(code)) => {
            let message = field("grpc-message").unwrap_or_default();
            Err(CallError::Status { code, message: percent::decoded(&message) })
        }
        _ => Err(CallError::Transport("server closed the stream without sending trailers".into())),
    }
}
