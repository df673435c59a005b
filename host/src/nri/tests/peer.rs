//! The runtime's side of the socket, written from the description of the wire and sharing no code with the
//! plugin. Reads as released runtimes do, with their limit on the frame that a message begins in.

use dracpu_proto::{nri, ttrpc};
use prost::Message;
use std::collections::VecDeque;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// What the runtime reads a message's first frame into.
const READ_BUFFER: usize = 4096;

/// Fails a test instead of hanging it.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what).await.expect("took too long")
}

pub(super) struct Runtime {
    directory: tempfile::TempDir,
    listener: UnixListener,
}

impl Runtime {
    pub(super) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("nri.sock")).unwrap();
        Self { directory, listener }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("nri.sock")
    }

    /// Ends, and leaves the directory.
    pub(super) fn end(self) -> tempfile::TempDir {
        std::fs::remove_file(self.socket()).unwrap();
        self.directory
    }

    /// Starts again in a directory that one has ended in.
    pub(super) fn start_again(directory: tempfile::TempDir) -> Self {
        let listener = UnixListener::bind(directory.path().join("nri.sock")).unwrap();
        Self { directory, listener }
    }

    pub(super) async fn accept(&self) -> Peer {
        let (socket, _) = soon(self.listener.accept()).await.unwrap();
        Peer { socket, queues: Default::default(), streams: 0, cut: None }
    }
}

/// A connected plugin, as the runtime sees it.
pub(super) struct Peer {
    socket: UnixStream,
    /// Unread frames of connection 1 and 2.
    queues: [VecDeque<Vec<u8>>; 2],
    streams: u32,
    /// The length of frames that the runtime writes; none = 4096 and the rest.
    pub(super) cut: Option<usize>,
}

/// A ttrpc message as it stands on the wire.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) stream: u32,
    pub(super) kind: u8,
    pub(super) data: Vec<u8>,
}

impl Peer {
    /// The next frame of connection `id`; none = the plugin closed the connection.
    async fn frame(&mut self, id: u32) -> Option<Vec<u8>> {
        loop {
            if let Some(frame) = self.queues[id as usize - 1].pop_front() {
                return Some(frame);
            }
            let from = soon(self.socket.read_u32()).await.ok()?;
            let length = soon(self.socket.read_u32()).await.unwrap();
            let mut payload = vec![0; length as usize];
            soon(self.socket.read_exact(&mut payload)).await.unwrap();
            self.queues[from as usize - 1].push_back(payload);
        }
    }

    /// The next message of connection `id`; none = the plugin closed the connection.
    pub(super) async fn message(&mut self, id: u32) -> Option<Raw> {
        let first = self.frame(id).await?;
        assert!(first.len() <= READ_BUFFER, "cannot allocate memory: {} bytes in one frame", first.len());
        let (header, data) = first.split_at(10);
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let (length, stream, kind) = (number(&header[..4]), number(&header[4..8]), header[8]);
        assert_eq!(header[9], 0, "flags of a unary message");
        let mut data = data.to_vec();
        while data.len() < length as usize {
            data.extend(self.frame(id).await.expect("the rest of a message"));
        }
        assert_eq!(
            data.len(),
            length as usize,
            "a frame holds the end of one message and the start of another"
        );
        Some(Raw { stream, kind, data })
    }

    async fn write(&mut self, id: u32, stream: u32, kind: u8, data: &[u8]) {
        let length = u32::try_from(data.len()).unwrap();
        let message = [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[kind, 0], data].concat();
        let first = message.len().min(READ_BUFFER);
        let pieces: Vec<&[u8]> = match self.cut {
            Some(length) => message.chunks(length).collect(),
            None => vec![&message[..first], &message[first..]],
        };
        for piece in pieces {
            soon(self.write_frame(id, piece)).await;
        }
    }

    pub(super) async fn write_frame(&mut self, id: u32, payload: &[u8]) {
        self.socket.write_u32(id).await.unwrap();
        self.socket.write_u32(u32::try_from(payload.len()).unwrap()).await.unwrap();
        self.socket.write_all(payload).await.unwrap();
    }

    /// Sends a call without waiting for the answer.
    pub(super) async fn ask(&mut self, method: &str, payload: Vec<u8>) {
        self.streams += if self.streams == 0 { 1 } else { 2 };
        let (service, method) = ("nri.pkg.api.v1alpha1.Plugin".to_owned(), method.to_owned());
        let request =
            ttrpc::Request { service, method, payload, timeout_nano: 2_000_000_000, ..Default::default() };
        self.write(1, self.streams, 1, &request.encode_to_vec()).await;
    }

    /// The answer to the last call.
    pub(super) async fn answer<A: Message + Default>(&mut self) -> Result<A, ttrpc::Status> {
        let raw = self.message(1).await.expect("an answer");
        assert_eq!((raw.stream, raw.kind), (self.streams, 2));
        match ttrpc::Response::decode(&*raw.data).unwrap() {
            ttrpc::Response { status: Some(status), payload } if status.code != 0 => {
                assert!(payload.is_empty(), "an error has no payload");
                Err(status)
            }
            ttrpc::Response { payload, .. } => Ok(A::decode(&*payload).unwrap()),
        }
    }

    pub(super) async fn call<A: Message + Default>(
        &mut self,
        method: &str,
        request: &impl Message,
    ) -> Result<A, ttrpc::Status> {
        self.ask(method, request.encode_to_vec()).await;
        self.answer().await
    }

    /// Waits for the plugin's call to register.
    pub(super) async fn registration(&mut self) -> nri::RegisterPluginRequest {
        let raw = self.message(2).await.expect("a registration");
        assert_eq!((raw.stream, raw.kind), (1, 1));
        let request = ttrpc::Request::decode(&*raw.data).unwrap();
        assert_eq!((&*request.service, &*request.method), ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin"));
        nri::RegisterPluginRequest::decode(&*request.payload).unwrap()
    }

    /// Answers the registration.
    pub(super) async fn registered(&mut self, status: Option<ttrpc::Status>) {
        let response = ttrpc::Response { status, payload: Vec::new() };
        self.write(2, 1, 2, &response.encode_to_vec()).await;
    }

    /// Waits for a call of the plugin: its stream and the masks that it sets.
    pub(super) async fn push(&mut self) -> (u32, Vec<nri::ContainerUpdate>) {
        let raw = self.message(2).await.expect("a call");
        assert_eq!(raw.kind, 1);
        let request = ttrpc::Request::decode(&*raw.data).unwrap();
        assert_eq!(
            (&*request.service, &*request.method),
            ("nri.pkg.api.v1alpha1.Runtime", "UpdateContainers")
        );
        (raw.stream, nri::UpdateContainersRequest::decode(&*request.payload).unwrap().update)
    }

    /// Answers a call of the plugin.
    pub(super) async fn pushed(&mut self, stream: u32, response: ttrpc::Response) {
        self.write(2, stream, 2, &response.encode_to_vec()).await;
    }

    pub(super) async fn configure(&mut self) -> i32 {
        self.configure_as("2.4.2+unknown", "v0.12.3").await
    }

    pub(super) async fn configure_as(&mut self, containerd: &str, nri_version: &str) -> i32 {
        let request = nri::ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: containerd.into(),
            nri_version: nri_version.into(),
            ..Default::default()
        };
        self.call::<nri::ConfigureResponse>("Configure", &request).await.unwrap().events
    }

    pub(super) async fn synchronize(&mut self, containers: Vec<nri::Container>) -> Vec<nri::ContainerUpdate> {
        let request = nri::SynchronizeRequest { containers, ..Default::default() };
        self.call::<nri::SynchronizeResponse>("Synchronize", &request).await.unwrap().update
    }
}
