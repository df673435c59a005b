//! One connection to the runtime, from the call to register to its end.

use super::mux::{Connection, Inbox, write_message};
use super::plugin::Plugin;
use super::ttrpc::{self, Kind, Message};
use super::{SessionError, convert};
use crate::DRIVER_NAME;
use crate::driver::Update;
use crate::readiness::{Part, Readiness};
use dracpu_proto::nri::{RegisterPluginRequest, UpdateContainersRequest};
use prost::Message as _;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// First in the order of plugins.
const PLUGIN_INDEX: &str = "00";

/// The NRI version that the plugin is written for.
const NRI_VERSION: &str = "v0.12.2";

/// Stream of the plugin's first call. Later ones take higher odd numbers, in the order in which they are
/// written.
const REGISTER_STREAM: u32 = 1;

/// A runtime that takes no answer for so long has given the plugin up.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// The runtime sets masks one after another, some ten milliseconds each, and lets hooks go first.
const PUSH_LIMIT: Duration = Duration::from_secs(60);

/// Connects, registers and answers calls until `stop`.
///
/// Calls are answered one after another, in the order in which they came: the runtime makes one at a time.
///
/// # Errors
/// Why the connection ended.
pub(super) async fn serve(
    socket: &Path,
    plugin: &mut Plugin,
    readiness: &Readiness,
    stop: &CancellationToken,
) -> Result<(), SessionError> {
    let mut trunk = Trunk::connect(socket).await?;
    readiness.not_ready(Part::Nri, "connected to the container runtime, which has not synchronized yet");
    trunk.send(Connection::Runtime, &register()).await?;
    let mut pushes = Pushes { stream: REGISTER_STREAM, pending: None };
    loop {
        let (connection, message) = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            received = trunk.receive() => received?,
            () = pushes.overdue() => {
                pushes.end(plugin, Err(format!("no answer within {} s", PUSH_LIMIT.as_secs())));
                continue;
            }
            () = plugin.masks_due(), if pushes.pending.is_none() => {
                if let Some(message) = pushes.begin(plugin.take_masks()) {
                    trunk.send(Connection::Runtime, &message).await?;
                }
                continue;
            }
        };
        match (connection, message.kind) {
            (Connection::Plugin, Kind::Request) => {
                let was_synchronized = plugin.is_synchronized();
                let answer = plugin.call(&message.data);
                trunk.send(connection, &Message::response(message.stream, answer)).await?;
                if plugin.is_synchronized() && !was_synchronized {
                    readiness.ready(Part::Nri);
                }
            }
            // May come at any time: before, between and after the first calls of the runtime.
            (Connection::Runtime, Kind::Response) if message.stream == REGISTER_STREAM => {
                ttrpc::answer(&message)
                    .map_err(|status| SessionError::Refused { code: status.code, message: status.message })?;
            }
            (Connection::Runtime, Kind::Response) if pushes.awaits(message.stream) => {
                let answer = ttrpc::answer(&message);
                pushes.end(
                    plugin,
                    answer.map_err(|status| format!("{} (code {})", status.message, status.code)),
                );
            }
            (_, kind) => {
                tracing::debug!(
                    ?connection,
                    ?kind,
                    stream = message.stream,
                    "ignored a message that nothing waits for"
                );
            }
        }
    }
}

/// Updates that no hook asked for, one call at a time.
struct Pushes {
    /// Of the latest call.
    stream: u32,
    pending: Option<Pending>,
}

struct Pending {
    sent: Vec<Update>,
    deadline: Instant,
}

impl Pushes {
    /// The call that sets these masks; none when there are none.
    fn begin(&mut self, masks: Vec<Update>) -> Option<Message> {
        let update = convert::updates(masks.clone(), None);
        if update.is_empty() {
            return None;
        }
        self.stream += 2;
        self.pending = Some(Pending { sent: masks, deadline: Instant::now() + PUSH_LIMIT });
        let request = UpdateContainersRequest { update, evict: Vec::new() };
        let payload = request.encode_to_vec();
        Some(Message::request(self.stream, dracpu_proto::NRI_RUNTIME_SERVICE, "UpdateContainers", payload))
    }

    fn awaits(&self, stream: u32) -> bool {
        self.pending.is_some() && self.stream == stream
    }

    /// Waits until the call has no answer for too long.
    async fn overdue(&self) {
        match &self.pending {
            Some(pending) => tokio::time::sleep_until(pending.deadline).await,
            None => std::future::pending().await,
        }
    }

    fn end(&mut self, plugin: &Plugin, answer: Result<Vec<u8>, String>) {
        if let Some(Pending { sent, .. }) = self.pending.take() {
            plugin.masks_set(&sent, answer);
        }
    }
}

fn register() -> Message {
    let request = RegisterPluginRequest {
        plugin_name: DRIVER_NAME.to_owned(),
        plugin_idx: PLUGIN_INDEX.to_owned(),
        nri_version: NRI_VERSION.to_owned(),
    };
    Message::request(
        REGISTER_STREAM,
        dracpu_proto::NRI_RUNTIME_SERVICE,
        "RegisterPlugin",
        request.encode_to_vec(),
    )
}

/// The socket with all logical connections.
struct Trunk {
    socket: UnixStream,
    inbox: Inbox,
    buffer: Vec<u8>,
}

impl Trunk {
    async fn connect(path: &Path) -> Result<Self, SessionError> {
        let socket = UnixStream::connect(path)
            .await
            .map_err(|source| SessionError::Unreachable { socket: path.to_owned(), source })?;
        Ok(Self { socket, inbox: Inbox::default(), buffer: vec![0; 64 << 10] })
    }

    /// The next message. May be dropped while it waits: nothing is lost.
    async fn receive(&mut self) -> Result<(Connection, Message), SessionError> {
        loop {
            if let Some(received) = self.inbox.pop() {
                return Ok(received);
            }
            let length = self.socket.read(&mut self.buffer).await?;
            match self.buffer.get(..length) {
                Some([]) | None => return Err(SessionError::Closed),
                Some(bytes) => self.inbox.feed(bytes)?,
            }
        }
    }

    /// Sends a message. Must not be dropped while it waits: half a message would be the last.
    async fn send(&mut self, connection: Connection, message: &Message) -> Result<(), SessionError> {
        let mut bytes = Vec::new();
        write_message(connection, message, &mut bytes);
        tokio::time::timeout(SEND_LIMIT, self.socket.write_all(&bytes))
            .await
            .map_err(|_| SessionError::Stalled(SEND_LIMIT))??;
        Ok(())
    }
}
