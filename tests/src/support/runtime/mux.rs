//! The multiplexer under ttrpc, with the manners of the Go implementation: a logical connection hands out
//! one frame per read and fails when the reader's buffer is smaller, ttrpc reads through a buffer of 4096
//! bytes, and at most 256 frames wait.
//!
//! Sources: `containerd/nri pkg/net/multiplex/mux.go`, Go's `bufio.Reader.Read`.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The logical connection on which the plugin serves.
pub(super) const PLUGIN: u32 = 1;
/// The logical connection on which the runtime serves.
pub(super) const RUNTIME: u32 = 2;

/// ttrpc's own header.
pub(super) const MESSAGE_HEADER: usize = 10;
/// The longest ttrpc message, without header.
pub(super) const MESSAGE_LIMIT: usize = 4 << 20;
const FRAME_LIMIT: usize = MESSAGE_HEADER + MESSAGE_LIMIT;
const QUEUE: usize = 256;
const BUFFER: usize = 4096;

/// A connection that carries logical ones.
pub(super) struct Trunk {
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    closed: CancellationToken,
    why: Mutex<Option<String>>,
}

impl Trunk {
    /// Starts reading; returns the trunk and the readers of both logical connections.
    pub(super) fn open(stream: UnixStream) -> (Arc<Self>, GoReader, GoReader) {
        let (mut reading, writer) = stream.into_split();
        let trunk = Arc::new(Self {
            writer: tokio::sync::Mutex::new(writer),
            closed: CancellationToken::new(),
            why: Mutex::new(None),
        });
        let (to_plugin_service, plugin) = mpsc::channel(QUEUE);
        let (to_runtime_service, runtime) = mpsc::channel(QUEUE);
        let this = Arc::clone(&trunk);
        tokio::spawn(async move {
            let read = async {
                loop {
                    let id = reading.read_u32().await.map_err(|_| "EOF".to_owned())?;
                    let length = reading.read_u32().await.map_err(|_| "EOF".to_owned())?;
                    let length = usize::try_from(length).unwrap();
                    if length > FRAME_LIMIT {
                        return Err(format!("a frame of {length} bytes; at most {FRAME_LIMIT}"));
                    }
                    let mut frame = vec![0; length];
                    reading.read_exact(&mut frame).await.map_err(|_| "EOF in a frame".to_owned())?;
                    let queue = match id {
                        PLUGIN => &to_plugin_service,
                        RUNTIME => &to_runtime_service,
                        _ => continue, // dropped without a word
                    };
                    match queue.try_send(frame) {
                        Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
                        Err(mpsc::error::TrySendError::Full(_)) => {
                            return Err(format!("failed to queue payload: {QUEUE} frames wait already"));
                        }
                    }
                }
            };
            let ended: Result<std::convert::Infallible, String> = tokio::select! {
                ended = read => ended,
                () = this.closed.cancelled() => return,
            };
            let Err(why) = ended;
            this.close(why);
        });
        (trunk, GoReader::new(plugin), GoReader::new(runtime))
    }

    /// Closes the connection; the first reason is kept.
    pub(super) fn close(&self, why: impl Into<String>) {
        self.why.lock().unwrap().get_or_insert(why.into());
        self.closed.cancel();
    }

    /// Why it is closed; none while it is open.
    pub(super) fn why_closed(&self) -> Option<String> {
        self.why.lock().unwrap().clone()
    }

    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Writes a ttrpc message as ttrpc-go does: 4096 bytes in one frame, the rest in a second one.
    pub(super) async fn write(&self, id: u32, message: &[u8]) -> std::io::Result<()> {
        let mut writer = self.writer.lock().await;
        let (first, rest) = message.split_at(message.len().min(BUFFER));
        for part in [first, rest] {
            if !part.is_empty() {
                writer.write_u32(id).await?;
                writer.write_u32(u32::try_from(part.len()).unwrap()).await?;
                writer.write_all(part).await?;
            }
        }
        Ok(())
    }

    /// Ends the stream towards the plugin, so that it sees EOF.
    pub(super) async fn shut(&self) {
        let _gone_already = self.writer.lock().await.shutdown().await;
    }
}

/// Why a logical connection cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReadError {
    #[error("EOF")]
    Eof,
    #[error("cannot allocate memory: a frame of {frame} bytes for a buffer of {room}")]
    FrameTooLong { frame: usize, room: usize },
}

/// `bufio.Reader` of 4096 bytes over a logical connection, read with `io.ReadFull`.
pub(super) struct GoReader {
    frames: mpsc::Receiver<Vec<u8>>,
    buffered: Vec<u8>,
}

impl GoReader {
    fn new(frames: mpsc::Receiver<Vec<u8>>) -> Self {
        Self { frames, buffered: Vec::new() }
    }

    /// Exactly `wanted` bytes.
    pub(super) async fn read_full(&mut self, wanted: usize) -> Result<Vec<u8>, ReadError> {
        let mut read = Vec::with_capacity(wanted);
        while read.len() < wanted {
            let left = wanted - read.len();
            if self.buffered.is_empty() {
                let room = left.max(BUFFER); // a big read goes past the buffer
                let frame = self.frames.recv().await.ok_or(ReadError::Eof)?;
                if frame.len() > room {
                    return Err(ReadError::FrameTooLong { frame: frame.len(), room });
                }
                self.buffered = frame;
            }
            read.extend(self.buffered.drain(..left.min(self.buffered.len())));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames in, then a message of `size` bytes read as ttrpc does: header, then payload.
    async fn message(frames: Vec<usize>, size: usize) -> Result<(), ReadError> {
        let (queue, reader) = mpsc::channel(QUEUE);
        for frame in frames {
            queue.try_send(vec![0; frame]).unwrap();
        }
        let mut reader = GoReader::new(reader);
        reader.read_full(MESSAGE_HEADER).await?;
        reader.read_full(size - MESSAGE_HEADER).await.map(|_| ())
    }

    #[tokio::test]
    async fn a_frame_over_4096_bytes_that_holds_the_start_of_a_message_is_fatal() {
        assert_eq!(message(vec![4096], 4096).await, Ok(()));
        assert!(matches!(message(vec![4097], 4097).await, Err(ReadError::FrameTooLong { frame: 4097, .. })));
        assert!(message(vec![9000, 1000], 10_000).await.is_err());
    }

    #[tokio::test]
    async fn a_header_frame_and_a_payload_frame_of_any_size_pass() {
        for payload in [1, 4086, 4096, 4097, 100_000, MESSAGE_LIMIT] {
            assert_eq!(message(vec![10, payload], 10 + payload).await, Ok(()), "{payload}");
        }
        assert_eq!(message(vec![4096, 100_000], 104_096).await, Ok(()));
        assert_eq!(message(vec![4000; 25], 100_000).await, Ok(()));
    }
}
