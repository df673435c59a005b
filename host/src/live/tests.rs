//! The client against whoever may be at the socket.

use super::*;
use crate::driver::ClaimState;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;

/// Somebody who answers each connection with these bytes, whatever is asked.
fn answering(socket: &Path, answer: Vec<u8>) {
    let listener = StdListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let _asked = stream.read(&mut head);
            let _gone = stream.write_all(&answer);
        }
    });
}

fn http(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

fn asked(answer: Vec<u8>) -> Result<NodeReport, LiveError> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    answering(&socket, answer);
    Client::new(socket).node()
}

#[test]
fn a_report_is_read_as_it_was_written_and_keys_of_newer_daemons_are_passed_over() {
    let claim = fixtures::claim("u", "c", ClaimState::Stranded, "0-1,4", "2");
    let report = fixtures::node(vec![claim]);
    let mut json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["claims"][0]["state"], "stranded");
    assert_eq!(json["claims"][0]["cpus"], "0-1,4");
    json["fromTheFuture"] = true.into();
    assert_eq!(asked(http("200 OK", &json.to_string())).unwrap(), report);
}

#[test]
fn without_a_daemon_the_error_says_where_it_was_looked_for_and_how_it_is_asked_on_a_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let missing = Client::new(&socket).node().unwrap_err();
    drop(StdListener::bind(&socket).unwrap());
    let dead = Client::new(&socket).node().unwrap_err();
    for error in [missing, dead] {
        assert!(matches!(error, LiveError::NoDaemon { .. }), "{error}");
        let text = error.to_string();
        assert_eq!(format!("{:#}", anyhow::Error::new(error)), text, "the cause stands in it once");
        assert!(text.contains(&socket.display().to_string()) && text.contains("kubectl exec"), "{text}");
    }
}

#[test]
fn a_daemon_that_more_ask_than_it_takes_is_busy_and_not_away() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _listener = {
        let _within = runtime.enter();
        let listener = tokio::net::UnixSocket::new_stream().unwrap();
        listener.bind(&socket).unwrap();
        listener.listen(0).unwrap()
    };
    let _waits = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let error = Client::new(&socket).node().unwrap_err();
    assert!(matches!(error, LiveError::Busy { .. }) && error.to_string().contains("try again"), "{error}");
}

#[test]
fn answers_that_are_none_are_errors_that_say_so() {
    for (what, answer) in [
        ("nothing", Vec::new()),
        ("no HTTP", b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()),
        ("zeros", vec![0; 70_000]),
        ("half an answer", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{".to_vec()),
        ("an endless head", [b"HTTP/1.1 200 OK\r\n".to_vec(), b"a: b\r\n".repeat(200_000)].concat()),
        ("no JSON", http("200 OK", "<html>")),
        ("another status", http("404 Not Found", "")),
        ("a report that lacks nearly everything", http("200 OK", r#"{"schema":"dracpu.node/v1"}"#)),
    ] {
        let error = asked(answer).unwrap_err();
        assert!(matches!(error, LiveError::NoAnswer { .. }), "{what}: {error}");
        assert!(error.to_string().len() < 500, "{what}: {error}");
    }
    for (what, body) in [("newer", r#"{"schema":"dracpu.node/v2"}"#), ("none", "{}"), ("a list", "[]")] {
        let error = asked(http("200 OK", body)).unwrap_err();
        assert!(matches!(error, LiveError::OtherVersion { .. }), "{what}: {error}");
        assert!(error.to_string().contains("dracpu.node/v1"), "{what}: {error}");
    }
    let refused = asked(http("409 Conflict", r#"{"error":"not now"}"#)).unwrap_err();
    assert_eq!(refused.to_string(), "not now");
    let refused = asked(http("409 Conflict", "{\"error\":\"a\\u001b[2Jb\"}")).unwrap_err();
    assert_eq!(refused.to_string(), "a\\u{1b}[2Jb", "nothing writes to the terminal but as text");
}

#[tokio::test]
async fn the_socket_is_its_owners_alone_from_the_first_moment_and_goes_with_its_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut socket = Socket::at(path.clone()).await;
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(Socket::at(path.clone()).await.listening.is_none(), "it is served");
    socket.listening = None;
    assert!(!path.exists());
    // What cannot be taken away ends nothing.
    std::fs::create_dir(&path).unwrap();
    socket.listen().await;
    assert!(socket.listening.is_none() && socket.told);
    std::fs::remove_dir(&path).unwrap();
    socket.listen().await;
    assert!(socket.listening.is_some() && !socket.told);
    // Another file in its place is not its own.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    socket.listening = None;
    assert!(path.exists());
}
