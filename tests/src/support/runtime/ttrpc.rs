//! Unary ttrpc in both directions over a trunk, as ttrpc-go speaks it.
//! Source: `containerd/ttrpc` (`PROTOCOL.md`, `channel.go`, `server.go`, `client.go`).

use super::mux::{GoReader, MESSAGE_HEADER, MESSAGE_LIMIT, PLUGIN, RUNTIME, Trunk};
use dracpu_proto::ttrpc::{Request, Response, Status};
use dracpu_proto::{NRI_PLUGIN_SERVICE, NRI_RUNTIME_SERVICE};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// gRPC codes that matter here.
pub(super) const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const RESOURCE_EXHAUSTED: i32 = 8;
pub(super) const UNIMPLEMENTED: i32 = 12;

/// Why a call to a plugin has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RpcError {
    /// The plugin's own refusal.
    #[error("rpc error: code = {} desc = {message}", code_name(*code))]
    Status { code: i32, message: String },
    /// No answer in time.
    #[error("context deadline exceeded")]
    Timeout,
    /// Not an answer.
    #[error("ttrpc: closed ({0})")]
    Closed(String),
}

fn code_name(code: i32) -> String {
    match code {
        UNKNOWN => "Unknown".to_owned(),
        INVALID_ARGUMENT => "InvalidArgument".to_owned(),
        RESOURCE_EXHAUSTED => "ResourceExhausted".to_owned(),
        UNIMPLEMENTED => "Unimplemented".to_owned(),
        code => format!("Code({code})"),
    }
}

/// A message's parts: stream id, type, data.
async fn read_message(reader: &mut GoReader) -> Result<(u32, u8, Vec<u8>), String> {
    let header = reader.read_full(MESSAGE_HEADER).await.map_err(|error| error.to_string())?;
    let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    let length = usize::try_from(number(0)).unwrap();
    if length > MESSAGE_LIMIT {
        return Err(format!("a message of {length} bytes; at most {MESSAGE_LIMIT}"));
    }
    let data = reader.read_full(length).await.map_err(|error| error.to_string())?;
    Ok((number(4), header[8], data))
}

fn message(stream: u32, kind: u8, data: &[u8]) -> Vec<u8> {
    let mut message = u32::try_from(data.len()).unwrap().to_be_bytes().to_vec();
    message.extend(stream.to_be_bytes());
    message.extend([kind, 0]);
    message.extend(data);
    message
}

/// Calls the plugin.
pub(super) struct Client {
    pub(super) trunk: Arc<Trunk>,
    /// Numbered and written under one lock.
    next: tokio::sync::Mutex<u32>,
    waiting: Mutex<BTreeMap<u32, oneshot::Sender<Response>>>,
}

impl Client {
    pub(super) fn new(trunk: Arc<Trunk>, mut reader: GoReader) -> Arc<Self> {
        let client = Arc::new(Self { trunk, next: tokio::sync::Mutex::new(1), waiting: Mutex::default() });
        let this = Arc::clone(&client);
        tokio::spawn(async move {
            let read = async {
                loop {
                    let (stream, kind, data) = read_message(&mut reader).await?;
                    if kind != RESPONSE {
                        return Err(format!("a message of type {kind} where answers are expected"));
                    }
                    let response = Response::decode(data.as_slice()).map_err(|error| error.to_string())?;
                    // an answer that nobody waits for any more: "inactive stream"
                    let waiting = this.waiting.lock().unwrap().remove(&stream);
                    let _gave_up = waiting.map(|waiting| waiting.send(response));
                }
            };
            let ended: Result<std::convert::Infallible, String> = tokio::select! {
                ended = read => ended,
                () = this.trunk.closed() => Err("closed".to_owned()),
            };
            let Err(why) = ended;
            this.trunk.close(why);
            this.waiting.lock().unwrap().clear();
        });
        client
    }

    pub(super) async fn call<Answer: Message + Default>(
        &self,
        method: &str,
        argument: &impl Message,
        limit: Duration,
    ) -> Result<Answer, RpcError> {
        let exchange = self.exchange(method, argument.encode_to_vec(), limit);
        let response = tokio::time::timeout(limit, exchange).await.unwrap_or(Err(RpcError::Timeout))?;
        if let Some(status) = response.status.filter(|status| status.code != 0) {
            return Err(RpcError::Status { code: status.code, message: status.message });
        }
        Answer::decode(response.payload.as_slice()).map_err(|error| RpcError::Closed(error.to_string()))
    }

    async fn exchange(&self, method: &str, payload: Vec<u8>, limit: Duration) -> Result<Response, RpcError> {
        let request = Request {
            service: NRI_PLUGIN_SERVICE.to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano: i64::try_from(limit.as_nanos()).unwrap(),
            metadata: Vec::new(),
        };
        let data = request.encode_to_vec();
        if data.len() > MESSAGE_LIMIT {
            let message =
                format!("message length {} exceed maximum message size of {MESSAGE_LIMIT}", data.len());
            return Err(RpcError::Status { code: RESOURCE_EXHAUSTED, message });
        }
        let (answered, answer) = oneshot::channel();
        let closed = |trunk: &Trunk| RpcError::Closed(trunk.why_closed().unwrap_or_default());
        {
            let mut next = self.next.lock().await;
            let stream = *next;
            *next += 2;
            self.waiting.lock().unwrap().insert(stream, answered);
            let written = self.trunk.write(PLUGIN, &message(stream, REQUEST, &data)).await;
            written.map_err(|error| RpcError::Closed(error.to_string()))?;
        }
        if self.trunk.why_closed().is_some() {
            return Err(closed(&self.trunk));
        }
        answer.await.map_err(|_| closed(&self.trunk))
    }
}

/// A call by the plugin.
pub(super) struct Incoming {
    pub(super) method: String,
    pub(super) payload: Vec<u8>,
    pub(super) reply: Reply,
}

/// Where its answer goes; dropping it answers nothing.
pub(super) struct Reply {
    trunk: Arc<Trunk>,
    stream: u32,
}

impl Reply {
    pub(super) async fn ok(self, answer: &impl Message) {
        self.send(Response { status: None, payload: answer.encode_to_vec() }).await;
    }

    pub(super) async fn error(self, code: i32, message: &str) {
        let status = Status { code, message: message.to_owned(), details: Vec::new() };
        self.send(Response { status: Some(status), payload: Vec::new() }).await;
    }

    async fn send(self, response: Response) {
        let message = message(self.stream, RESPONSE, &response.encode_to_vec());
        if let Err(error) = self.trunk.write(RUNTIME, &message).await {
            self.trunk.close(error.to_string());
        }
    }
}

/// Serves the runtime service: hands on each valid call.
pub(super) fn serve(trunk: Arc<Trunk>, mut reader: GoReader) -> mpsc::Receiver<Incoming> {
    let (calls, incoming) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut last = 0;
        let read = async {
            loop {
                let (stream, kind, data) = read_message(&mut reader).await?;
                let reply = Reply { trunk: Arc::clone(&trunk), stream };
                if stream % 2 != 1 {
                    reply.error(INVALID_ARGUMENT, "StreamID must be odd for client initiated streams").await;
                } else if stream <= last {
                    reply.error(INVALID_ARGUMENT, "StreamID cannot be re-used and must increment").await;
                } else if kind != REQUEST {
                    reply
                        .error(INVALID_ARGUMENT, &format!("a message of type {kind} is no unary call"))
                        .await;
                } else {
                    last = stream;
                    match Request::decode(data.as_slice()) {
                        Err(error) => reply.error(INVALID_ARGUMENT, &error.to_string()).await,
                        Ok(request) if request.service != NRI_RUNTIME_SERVICE => {
                            reply.error(UNIMPLEMENTED, &format!("service {}", request.service)).await;
                        }
                        Ok(request) => {
                            let (method, payload) = (request.method, request.payload);
                            let call = Incoming { method, payload, reply };
                            calls.send(call).await.map_err(|_| "the runtime went away".to_owned())?;
                        }
                    }
                }
            }
        };
        let ended: Result<std::convert::Infallible, String> = tokio::select! {
            ended = read => ended,
            () = trunk.closed() => return,
        };
        let Err(why) = ended;
        trunk.close(why);
    });
    incoming
}
