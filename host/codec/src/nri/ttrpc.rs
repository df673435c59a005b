//! The unary part of ttrpc: messages of a 10-byte header (length u32, stream u32, kind u8, flags u8, numbers
//! big endian) and protobuf data. Pure: bytes in, bytes out.

use super::{CallError, WireError};
use dracpu_proto::ttrpc::{Request, Response, Status};
use prost::Message as _;

pub(super) const HEADER_LEN: usize = 10;

/// Data of a message at most, 4 MiB; senders refuse larger ones by themselves.
pub(super) const MAX_DATA: usize = 4 << 20;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 1
    Request,
    /// 2
    Response,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Request or response.
    pub kind: Kind,
    /// Pairs a response with its request; odd, and rising for each connection.
    pub stream: u32,
    /// An encoded envelope, at most 4 MiB.
    pub data: Vec<u8>,
}

impl Message {
    /// The request that calls a method, without time limit.
    #[must_use]
    pub fn request(stream: u32, service: &str, method: &str, payload: Vec<u8>) -> Self {
        let request =
            Request { service: service.to_owned(), method: method.to_owned(), payload, ..Default::default() };
        Self { kind: Kind::Request, stream, data: request.encode_to_vec() }
    }

    /// The answer to the request of the same stream.
    #[must_use]
    pub fn response(stream: u32, answer: Result<Vec<u8>, CallError>) -> Self {
        let response = match answer {
            Ok(payload) => Response { status: None, payload },
            Err(error) => Response { status: Some(status(&error)), payload: Vec::new() },
        };
        let message = Self { kind: Kind::Response, stream, data: response.encode_to_vec() };
        match message.data.len() {
            length if length > MAX_DATA => Self::response(stream, Err(CallError::TooLarge { length })),
            _ => message,
        }
    }

    /// The header of the message.
    pub(super) fn header(&self) -> [u8; HEADER_LEN] {
        let length = u32::try_from(self.data.len()).expect("messages are at most MAX_DATA long");
        let kind = match self.kind {
            Kind::Request => 1,
            Kind::Response => 2,
        };
        let ([a, b, c, d], [e, f, g, h]) = (length.to_be_bytes(), self.stream.to_be_bytes());
        [a, b, c, d, e, f, g, h, kind, 0]
    }
}

/// The payload that a response carries.
///
/// # Errors
/// The status, if the call failed.
pub fn answer(response: &Message) -> Result<Vec<u8>, Status> {
    match Response::decode(&*response.data) {
        Ok(Response { status: Some(status), .. }) if status.code != 0 => Err(status),
        Ok(response) => Ok(response.payload),
        Err(error) => Err(Status { code: code::INTERNAL, message: error.to_string(), details: Vec::new() }),
    }
}

mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    /// Runtimes with NRI 0.12 fall back to `StateChange` on exactly this code.
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const INTERNAL: i32 = 13;
}

/// The one place where an error becomes a ttrpc status; the runtime passes the text on to the kubelet.
fn status(error: &CallError) -> Status {
    let code = match error {
        CallError::UnknownMethod { .. } => code::UNIMPLEMENTED,
        CallError::Malformed(_) | CallError::Incomplete { .. } => code::INVALID_ARGUMENT,
        CallError::Refused(_) => code::FAILED_PRECONDITION,
        CallError::TooLarge { .. } => code::RESOURCE_EXHAUSTED,
        CallError::NoCpus | CallError::Panicked => code::INTERNAL,
    };
    Status { code, message: format!("{error:#}"), details: Vec::new() }
}

/// Joins the pieces of a logical connection's byte stream to messages.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// The header as far as it is here.
    header: Vec<u8>,
    /// The message whose data is being read, and how much of it is still to come.
    message: Option<(Message, usize)>,
}

impl Assembler {
    /// Takes bytes off `input` until a message is complete; none = the input is used up.
    ///
    /// # Errors
    /// A header that is none of a unary message; the connection is useless from here on.
    pub(super) fn take(&mut self, input: &mut &[u8]) -> Result<Option<Message>, WireError> {
        while !input.is_empty() {
            let (mut message, left) = match self.message.take() {
                Some(reading) => reading,
                None => match self.take_header(input)? {
                    Some(started) => started,
                    None => return Ok(None),
                },
            };
            let (bytes, rest) = input.split_at(left.min(input.len()));
            *input = rest;
            message.data.extend(bytes);
            if bytes.len() == left {
                return Ok(Some(message));
            }
            let left = left - bytes.len();
            self.message = Some((message, left));
        }
        Ok(None)
    }

    fn take_header(&mut self, input: &mut &[u8]) -> Result<Option<(Message, usize)>, WireError> {
        let missing = HEADER_LEN - self.header.len();
        let (bytes, rest) = input.split_at(missing.min(input.len()));
        *input = rest;
        self.header.extend(bytes);
        let [a, b, c, d, e, f, g, h, kind, _flags] = *self.header else { return Ok(None) };
        self.header.clear();
        let (announced, stream) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Response,
            kind => return Err(WireError::NotUnary { kind }),
        };
        match usize::try_from(announced) {
            Ok(length) if length <= MAX_DATA => {
                Ok(Some((Message { kind, stream, data: Vec::new() }, length)))
            }
            _ => Err(WireError::MessageTooLarge { length: announced, limit: MAX_DATA }),
        }
    }
}
