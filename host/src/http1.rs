//! A server of HTTP/1 and nothing else: so many connections at once, each within bounds.

use crate::words::chain;
use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What callers may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Connections that are served at once; more wait in the socket's queue.
    pub(crate) connections: usize,
    /// For a request's head; where connections are kept, also for the next request.
    pub(crate) head: Duration,
    /// Bytes of a request's head.
    pub(crate) head_bytes: usize,
    /// For a connection that serves one request; none: connections are kept as long as requests come.
    pub(crate) one_request: Option<Duration>,
}

/// Answers until `stop`; what is being answered then is finished.
pub(crate) async fn serve(
    mut listener: impl Listener,
    router: Router,
    bounds: Bounds,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(bounds.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = room.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, (stream, _)) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
            Some(_ended) = connections.join_next() => continue,
        };
        let connection = connection(stream, router.clone(), bounds, stop.clone());
        connections.spawn(async move {
            let _one_of_so_many = permit;
            match bounds.one_request {
                Some(within) => _ = tokio::time::timeout(within, connection).await,
                None => connection.await,
            }
        });
    }
    // Nobody is let wait for an answer that does not come.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    router: Router,
    bounds: Bounds,
    stop: CancellationToken,
) {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(bounds.head_bytes)
        .keep_alive(bounds.one_request.is_none());
    let serving = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut serving = pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    match ended {
        // A connection that was kept, and nobody has asked anything on it since.
        Err(error) if error.is_timeout() => {}
        Err(error) => tracing::debug!("a connection failed: {}", chain(&error)),
        Ok(()) => {}
    }
}
