//! What grpc-go puts on the wire for a call over a unix socket: HTTP/2 requests whose `:authority` is the
//! socket's path, percent-encoded. Rust's HTTP types cannot even hold most such values, so the header
//! block is written here, and put in place of the one that the HTTP library wrote.
//!
//! Sources: grpc-go `clientconn.go` (`encodeAuthority`), RFC 9113 section 4 (frames), RFC 7541 section 6.2.2
//! (literal header fields).

use std::collections::VecDeque;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// How a kubelet names the endpoint that it dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialing {
    /// The bare path as target with a dialer of its own: registration in all kubelets, and the DRA socket
    /// up to 1.33.
    BarePath,
    /// `unix:<path>` as target: the DRA socket in newer kubelets.
    UnixScheme,
}

/// The `:authority` that grpc-go sends.
#[must_use]
pub fn authority(path: &Path, dialing: Dialing) -> String {
    match dialing {
        Dialing::UnixScheme => "localhost".to_owned(),
        Dialing::BarePath => {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&b);
            let path = path.to_str().expect("socket paths of this crate are text");
            let encode = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
            path.bytes().map(encode).collect()
        }
    }
}

/// The header fields of requests that are about to be sent, in their order.
pub(super) type Pending = Arc<Mutex<VecDeque<Announced>>>;

/// A request that is about to be sent.
pub(super) struct Announced {
    /// Its header fields.
    pub(super) fields: Vec<(&'static str, String)>,
    /// Told when they are on their way.
    pub(super) sent: oneshot::Sender<()>,
}

const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// A connection whose outgoing HEADERS frames carry the fields of [`Pending`].
pub(super) struct GoWire<S> {
    inner: S,
    pending: Pending,
    /// Written by the HTTP library, not yet a whole frame.
    unframed: Vec<u8>,
    preface_left: usize,
    outgoing: Vec<u8>,
}

impl<S> GoWire<S> {
    pub(super) fn new(inner: S, pending: Pending) -> Self {
        Self { inner, pending, unframed: Vec::new(), preface_left: PREFACE, outgoing: Vec::new() }
    }

    /// Moves whole frames over, with other header blocks.
    fn rewrite(&mut self) {
        let preface = self.preface_left.min(self.unframed.len());
        self.outgoing.extend(self.unframed.drain(..preface));
        self.preface_left -= preface;
        while let [a, b, c, kind, flags, id @ ..] = self.unframed.as_slice() {
            let end = FRAME_HEADER + usize::from(*a) * 65536 + usize::from(*b) * 256 + usize::from(*c);
            if self.unframed.len() < end {
                return;
            }
            match *kind {
                HEADERS => {
                    let request = self.pending.lock().unwrap().pop_front().expect("a request was announced");
                    let block = literal_block(&request.fields);
                    let _nobody_waits = request.sent.send(());
                    let length = u32::try_from(block.len()).unwrap().to_be_bytes();
                    self.outgoing.extend(&length[1..]);
                    self.outgoing.extend([HEADERS, END_HEADERS | (flags & END_STREAM)]);
                    self.outgoing.extend(&id[..4]);
                    self.outgoing.extend(block);
                }
                CONTINUATION => {} // the end of a block that was replaced
                _ => self.outgoing.extend(&self.unframed[..end]),
            }
            self.unframed.drain(..end);
        }
    }
}

impl<S: AsyncWrite + Unpin> GoWire<S> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while !self.outgoing.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.outgoing))?;
            self.outgoing.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

/// Fields as literals that are never indexed, without Huffman coding: every decoder must take them.
fn literal_block(fields: &[(&'static str, String)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name.as_bytes(), value.as_bytes()] {
            let mut length = text.len();
            if length < 127 {
                block.push(u8::try_from(length).unwrap());
            } else {
                block.push(127);
                length -= 127;
                while length >= 128 {
                    block.push(u8::try_from(length % 128).unwrap() | 128);
                    length /= 128;
                }
                block.push(u8::try_from(length).unwrap());
            }
            block.extend(text);
        }
    }
    block
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GoWire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.unframed.extend(buf);
        self.rewrite();
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(buf.len())), // what could not be written yet goes with the flush
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GoWire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_is_the_escaped_path_and_an_at_sign_stays() {
        let path = Path::new("/var/lib/kubelet/plugins_registry/dra.cpu@reg.sock");
        assert_eq!(
            authority(path, Dialing::BarePath),
            "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fdra.cpu@reg.sock"
        );
        assert_eq!(authority(path, Dialing::UnixScheme), "localhost");
    }

    #[test]
    fn long_values_have_their_length_in_several_bytes() {
        let block = literal_block(&[("a", "x".repeat(127 + 200))]);
        assert_eq!(block[..6], [0, 1, b'a', 127, 72 | 128, 1]); // 200 = 72 + 1 * 128
    }
}
