//! Bytes on the trunk.

use crate::nri::WireError;
use crate::nri::mux::{Connection, Inbox, write_message};
use crate::nri::ttrpc::{Kind, MAX_DATA, Message, answer};
use proptest::prelude::*;

fn message(kind: Kind, stream: u32, data: &[u8]) -> Message {
    Message { kind, stream, data: data.to_vec() }
}

fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&id.to_be_bytes(), &length.to_be_bytes(), payload].concat()
}

fn drain(inbox: &mut Inbox) -> Vec<(Connection, Message)> {
    std::iter::from_fn(|| inbox.pop()).collect()
}

#[test]
fn a_message_is_a_header_frame_and_a_data_frame() {
    let mut out = Vec::new();
    write_message(Connection::Runtime, &message(Kind::Request, 1, b"abc"), &mut out);
    write_message(Connection::Plugin, &message(Kind::Response, 0x0102_0305, &[7; 300]), &mut out);
    let first =
        [0, 0, 0, 2, 0, 0, 0, 10, 0, 0, 0, 3, 0, 0, 0, 1, 1, 0, 0, 0, 0, 2, 0, 0, 0, 3, b'a', b'b', b'c'];
    let second = [0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 1, 44, 1, 2, 3, 5, 2, 0, 0, 0, 0, 1, 0, 0, 1, 44];
    assert_eq!(out, [&first[..], &second, &[7; 300]].concat());
}

#[test]
fn a_message_without_data_is_a_header_frame_alone() {
    let mut out = Vec::new();
    write_message(Connection::Plugin, &message(Kind::Response, 3, b""), &mut out);
    assert_eq!(out, [0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0]);
}

#[test]
fn the_largest_message_is_read_from_one_frame_or_two() {
    let large = message(Kind::Request, 9, &vec![5; MAX_DATA]);
    let whole = [&large.header()[..], &large.data].concat();
    let mut inbox = Inbox::default();
    inbox.feed(&frame(1, &whole)).unwrap();
    inbox.feed(&frame(1, &whole[..4096])).unwrap();
    inbox.feed(&frame(1, &whole[4096..])).unwrap();
    assert!(drain(&mut inbox) == [(Connection::Plugin, large.clone()), (Connection::Plugin, large)]);
}

#[test]
fn frames_of_other_connections_are_skipped() {
    let request = message(Kind::Request, 1, b"abc");
    let whole = [&request.header()[..], b"abc"].concat();
    let bytes = [
        frame(0, b"?"),
        frame(1, &whole[..4]),
        frame(7, &[0xff; 5000]),
        frame(u32::MAX, b""),
        frame(1, &whole[4..]),
    ];
    let mut inbox = Inbox::default();
    inbox.feed(&bytes.concat()).unwrap();
    assert_eq!(drain(&mut inbox), [(Connection::Plugin, request)]);
}

#[test]
fn hostile_lengths_are_errors_before_any_of_the_bytes_arrive() {
    let refusal = |bytes: &[u8]| Inbox::default().feed(bytes).unwrap_err();
    let most = u32::try_from(MAX_DATA).unwrap();
    let frame_of = |length: u32| [1u32.to_be_bytes(), length.to_be_bytes()].concat();
    assert!(
        matches!(refusal(&frame_of(most + 11)), WireError::FrameTooLarge { length, .. } if length == most + 11)
    );
    assert!(matches!(refusal(&frame_of(u32::MAX)), WireError::FrameTooLarge { .. }));
    let header = |length: u32, kind: u8| [&length.to_be_bytes()[..], &[0, 0, 0, 1, kind, 0]].concat();
    let error = refusal(&frame(1, &header(most + 1, 1)));
    assert!(matches!(error, WireError::MessageTooLarge { length, .. } if length == most + 1), "{error}");
    assert!(matches!(refusal(&frame(2, &header(u32::MAX, 2))), WireError::MessageTooLarge { .. }));
    assert!(matches!(refusal(&frame(1, &header(0, 3))), WireError::NotUnary { kind: 3 }));
}

fn messages() -> impl Strategy<Value = Vec<(bool, Message)>> {
    let kind = prop_oneof![Just(Kind::Request), Just(Kind::Response)];
    let data = prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 0..40), Just(vec![1; 5000])];
    let message = (kind, any::<u32>(), data).prop_map(|(kind, stream, data)| Message { kind, stream, data });
    prop::collection::vec((any::<bool>(), message), 0..12)
}

fn connection(plugin: bool) -> Connection {
    if plugin { Connection::Plugin } else { Connection::Runtime }
}

proptest! {
    /// However the runtime cuts its messages into frames, and the kernel the frames into reads: the messages
    /// of each connection come out whole and in order.
    #[test]
    fn any_cut_of_the_byte_stream_gives_the_same_messages(
        sent in messages(),
        frames in prop::collection::vec((any::<bool>(), 1..60usize), 1..40),
        reads in prop::collection::vec(1..200usize, 1..20),
    ) {
        let mut streams = [Vec::new(), Vec::new()];
        for (plugin, message) in &sent {
            let stream = &mut streams[usize::from(!plugin)];
            stream.extend(message.header());
            stream.extend(&message.data);
        }
        let mut trunk = Vec::new();
        let mut rest = [&streams[0][..], &streams[1][..]];
        for (plugin, length) in frames.iter().cycle() {
            if rest.iter().all(|rest| rest.is_empty()) {
                break;
            }
            let which = usize::from(!plugin);
            let which = if rest[which].is_empty() { 1 - which } else { which };
            let (payload, left) = rest[which].split_at((*length).min(rest[which].len()));
            rest[which] = left;
            trunk.extend(frame(u32::try_from(which).unwrap() + 1, payload));
        }
        let (mut inbox, mut unread, mut received) = (Inbox::default(), &trunk[..], Vec::new());
        for length in reads.iter().cycle() {
            if unread.is_empty() {
                break;
            }
            let (bytes, left) = unread.split_at((*length).min(unread.len()));
            unread = left;
            inbox.feed(bytes).unwrap();
            received.extend(drain(&mut inbox));
        }
        for plugin in [true, false] {
            let sent: Vec<_> = sent.iter().filter(|(p, _)| *p == plugin).map(|(_, message)| message).collect();
            let received: Vec<_> =
                received.iter().filter(|(c, _)| *c == connection(plugin)).map(|(_, message)| message).collect();
            prop_assert_eq!(received, sent);
        }
    }

    /// What we write, we read; and the frame that a message begins in is never longer than 4096 bytes.
    #[test]
    fn written_messages_are_read_back(sent in messages()) {
        let mut bytes = Vec::new();
        for (plugin, message) in &sent {
            let start = bytes.len();
            write_message(connection(*plugin), message, &mut bytes);
            prop_assert_eq!(&bytes[start + 4..start + 8], [0, 0, 0, 10]);
        }
        let mut inbox = Inbox::default();
        inbox.feed(&bytes).unwrap();
        let sent: Vec<_> = sent.into_iter().map(|(plugin, message)| (connection(plugin), message)).collect();
        prop_assert_eq!(drain(&mut inbox), sent);
    }

    /// A runtime gone mad is an error at most.
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()], 0..200)) {
        let mut inbox = Inbox::default();
        let _ = inbox.feed(&bytes);
        drain(&mut inbox);
    }
}

#[test]
fn an_answer_that_no_message_can_hold_is_an_error() {
    let response = Message::response(5, Ok(vec![0; MAX_DATA]));
    let status = answer(&response).unwrap_err();
    assert_eq!((response.stream, status.code), (5, 8), "{}", status.message);
    assert_eq!(answer(&Message::response(5, Ok(vec![1; 5000]))).unwrap(), [1; 5000]);
}
