use super::assemble::Sources;
use super::report::NodeReport;
use super::{
    ASK, CONNECTION, DECISIONS, DecisionsReport, NODE, OfClaim, RELEASE, REPLAY, Refused, Released, decisions,
};
use crate::http1::{self, Bounds};
use crate::words::chain;
use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::LengthLimitError;
use std::error::Error as _;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// What the command line needs, and no more.
const BOUNDS: Bounds = Bounds {
    connections: 8,
    head: Duration::from_secs(5),
    head_bytes: 16 << 10,
    one_request: Some(CONNECTION),
};
/// Bytes of a request's body.
const BODY_BYTES: usize = 16 << 10;
/// For a request's body.
const BODY: Duration = Duration::from_secs(5);
/// The same once the daemon ends.
const BODY_AT_THE_END: Duration = Duration::from_secs(1);

/// Answers until `stop`; what is being answered then is finished.
pub(super) async fn serve(listener: UnixListener, sources: Sources, stop: CancellationToken) {
    let router = router(sources).layer(from_fn_with_state(stop.clone(), whole));
    http1::serve(listener, router, BOUNDS, stop).await;
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
