//! The layer under ttrpc: one socket (the *trunk*) carries several logical connections as frames of
//! connection id and length (u32 each, big endian) and payload. There is no handshake: a connection
//! exists as soon as a side uses its id. Pure: bytes in, bytes out.

use super::WireError;
use super::ttrpc::{self, Message};
use std::collections::VecDeque;

/// Payload of a frame at most: a whole ttrpc message, header and data.
const MAX_FRAME: usize = ttrpc::HEADER_LEN + ttrpc::MAX_DATA;

const FRAME_HEADER_LEN: usize = 8;

/// A logical connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// Id 1: the plugin serves, the runtime calls.
    Plugin,
    /// Id 2: the runtime serves, the plugin calls.
    Runtime,
}

impl Connection {
    const fn id(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }
}

/// Appends a ttrpc message to `out`: its header in one frame, its data, if any, in a second.
///
/// Not in one, because the reader of released runtimes takes the frame that a message begins in into a
/// buffer of 4096 bytes and drops the connection when it does not fit; a frame behind it may have any size.
pub fn write_message(connection: Connection, message: &Message, out: &mut Vec<u8>) {
    write_frame(connection, &message.header(), out);
    if !message.data.is_empty() {
        write_frame(connection, &message.data, out);
    }
}

fn write_frame(connection: Connection, payload: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).expect("messages are at most MAX_DATA long");
    out.extend(connection.id().to_be_bytes());
    out.extend(length.to_be_bytes());
    out.extend(payload);
}

/// Cuts what comes from the trunk into messages, however it is split into reads and frames.
///
/// Holds what has arrived of incomplete messages, never what a length only announces; payload of unknown
/// connections is skipped.
#[derive(Debug, Default)]
pub struct Inbox {
    /// The frame header as far as it is here.
    header: Vec<u8>,
    /// The frame being read: its connection, and how much of it is still to come.
    frame: Option<(u32, usize)>,
    plugin: ttrpc::Assembler,
    runtime: ttrpc::Assembler,
    complete: VecDeque<(Connection, Message)>,
}

impl Inbox {
    /// Takes the next bytes of the trunk.
    ///
    /// # Errors
    /// A frame or message with a length that no runtime sends; the trunk is useless from here on.
    pub fn feed(&mut self, mut input: &[u8]) -> Result<(), WireError> {
        while !input.is_empty() {
            match self.frame {
                None => self.read_header(&mut input)?,
                Some((id, left)) => {
                    let (payload, rest) = input.split_at(left.min(input.len()));
                    input = rest;
                    self.frame = (payload.len() < left).then(|| (id, left - payload.len()));
                    self.read_payload(id, payload)?;
                }
            }
        }
        Ok(())
    }

    /// The oldest message that is complete.
    pub fn pop(&mut self) -> Option<(Connection, Message)> {
        self.complete.pop_front()
    }

    fn read_header(&mut self, input: &mut &[u8]) -> Result<(), WireError> {
        let missing = FRAME_HEADER_LEN - self.header.len();
        let (bytes, rest) = input.split_at(missing.min(input.len()));
        *input = rest;
        self.header.extend(bytes);
        if let [a, b, c, d, e, f, g, h] = *self.header {
            self.header.clear();
            let (id, announced) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
            self.frame = match usize::try_from(announced) {
                Ok(0) => None, // no payload to wait for
                Ok(length) if length <= MAX_FRAME => Some((id, length)),
                _ => return Err(WireError::FrameTooLarge { length: announced, limit: MAX_FRAME }),
            };
        }
        Ok(())
    }

    fn read_payload(&mut self, id: u32, mut payload: &[u8]) -> Result<(), WireError> {
        let (connection, assembler) = match id {
            1 => (Connection::Plugin, &mut self.plugin),
            2 => (Connection::Runtime, &mut self.runtime),
            _ => return Ok(()),
        };
        while let Some(message) = assembler.take(&mut payload)? {
            self.complete.push_back((connection, message));
        }
        Ok(())
    }
}
