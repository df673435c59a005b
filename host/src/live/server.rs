use super::assemble::Sources;
use super::report::NodeReport;
use super::{
    ASK, CONNECTION, DECISIONS, DecisionsReport, NODE, OfClaim, RELEASE, REPLAY, Refused, Released, decisions,
};
use crate::words::chain;
use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::LengthLimitError;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Served at once; more wait in the socket's queue.
const CONNECTIONS: usize = 8;
/// For a request's head.
const HEAD: Duration = Duration::from_secs(5);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;
/// Bytes of a request's body.
const BODY_BYTES: usize = 16 << 10;
/// For a request's body.
const BODY: Duration = Duration::from_secs(5);
/// The same once the daemon ends.
const BODY_AT_THE_END: Duration = Duration::from_secs(1);

/// Answers until `stop`; what is being answered then is finished.
pub(super) async fn serve(listener: UnixListener, sources: Sources, stop: CancellationToken) {
    let router = router(sources).layer(from_fn_with_state(stop.clone(), whole));
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = room.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
            Some(_ended) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = connection(stream, router.clone(), stop.clone());
                connections.spawn(async move {
                    let _one_of_so_many = permit;
                    let _ended = tokio::time::timeout(CONNECTION, connection).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection of the command line");
                tokio::time::sleep(HEAD).await;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: UnixStream, router: Router, stop: CancellationToken) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES).keep_alive(false);
    let serving = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut serving = pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection of the command line failed: {}", chain(&error));
    }
}

fn router(sources: Sources) -> Router {
    Router::new()
        .route(NODE, get(node))
        .route(RELEASE, post(release))
        .route(DECISIONS, get(past_decisions))
        .route(REPLAY, post(replay))
        .with_state(sources)
}

/// Takes a request's body before anything is done. One that does not come is not waited for.
async fn whole(State(stop): State<CancellationToken>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let at_the_end = async {
        stop.cancelled().await;
        tokio::time::sleep(BODY_AT_THE_END).await;
    };
    let body = tokio::select! {
        body = to_bytes(body, BODY_BYTES) => body,
        () = at_the_end => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        () = tokio::time::sleep(BODY) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    match body {
        Ok(body) => next.run(Request::from_parts(head, body.into())).await,
        Err(error) if error.source().is_some_and(|why| why.is::<LengthLimitError>()) => {
            StatusCode::PAYLOAD_TOO_LARGE.into_response()
        }
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}

#[derive(serde::Deserialize)]
struct Fresh {
    #[serde(default)]
    fresh: bool,
}

async fn node(State(sources): State<Sources>, Query(Fresh { fresh }): Query<Fresh>) -> Json<NodeReport> {
    if fresh {
        // Whom the API server does not tell about in time is as it was; that it does not answer, the slices tell.
        let orphans = tokio::time::timeout(ASK, sources.driver.find_orphans());
        let (_late, ()) = tokio::join!(orphans, sources.progress.look_again(ASK));
    }
    Json(sources.report())
}

async fn release(State(sources): State<Sources>, Json(OfClaim { uid }): Json<OfClaim>) -> Response {
    let held = sources.driver.claim(&uid).map(|(booking, _)| booking);
    match sources.driver.release(&uid).await {
        Ok(()) => {
            let booking = held.unwrap_or_default();
            tracing::info!(claim_uid = uid, cpus = %booking.cpus(), "released by hand");
            Json(Released { uid, cpus: booking.cpus(), blocked: booking.blocked() }).into_response()
        }
        Err(error) => refused(chain(&error)),
    }
}

async fn past_decisions(State(sources): State<Sources>) -> Json<DecisionsReport> {
    Json(decisions::decisions(sources.driver.past_decisions()))
}

async fn replay(State(sources): State<Sources>, Json(OfClaim { uid }): Json<OfClaim>) -> Response {
    // As long as a strategy takes, which is bounded.
    let replayed = tokio::task::spawn_blocking(move || sources.driver.replay(&uid)).await;
    match replayed {
        Ok(Ok(replayed)) => Json(decisions::replay(replayed)).into_response(),
        Ok(Err(error)) => refused(chain(&error)),
        Err(error) => refused(format!("the driver failed: {error}; report it")),
    }
}

fn refused(error: String) -> Response {
    (StatusCode::CONFLICT, Json(Refused { error })).into_response()
}
