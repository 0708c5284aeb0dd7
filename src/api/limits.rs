//! Bounds of a request: how many at a time, for how long, and whether it may be cut short.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::error::ApiError;

/// When a caller that was turned away by the limit may try again.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Bounds of requests and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests at a time; more are answered 503.
    pub requests: usize,
    /// Largest body of a request, in bytes; a restored archive is larger and has its own limit.
    pub body_bytes: usize,
    /// Longest time that a caller waits for an answer.
    pub request_timeout: Duration,
    /// Longest time for the head of a request, and for an idle connection.
    pub header_timeout: Duration,
    /// TCP connections at a time; more wait to be accepted.
    pub connections: usize,
    /// Longest time for the TLS handshake.
    pub handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 512,
            body_bytes: 1024 * 1024,
            request_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(30),
            connections: 4096,
            handshake_timeout: Duration::from_secs(30),
        }
    }
}

/// The limits at work.
#[derive(Debug)]
pub(super) struct Gate {
    limits: Limits,
    requests: Arc<Semaphore>,
    tracker: TaskTracker,
}

impl Gate {
    pub(super) fn new(limits: Limits, tracker: TaskTracker) -> Self {
        Self {
            limits,
            requests: Arc::new(Semaphore::new(limits.requests)),
            tracker,
        }
    }
}

/// Layer that holds the limits. What changes something runs as a task of its own: neither the
/// deadline nor a caller that hangs up leaves it half done.
pub(super) async fn bounded(
    State(gate): State<Arc<Gate>>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(permit) = gate.requests.clone().try_acquire_owned() else {
        return ApiError::unavailable("Too many requests at a time", BUSY_RETRY_AFTER)
            .into_response();
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let reads = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    let answer = async move {
        let response = next.run(request).await;
        drop(permit);
        response
    };
    let answered = if reads {
        tokio::time::timeout(gate.limits.request_timeout, answer)
            .await
            .map(Ok)
    } else {
        tokio::time::timeout(gate.limits.request_timeout, gate.tracker.spawn(answer)).await
    };
    let response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(panicked)) => ApiError::internal(&panicked).into_response(),
        Err(_) => {
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, "The request took too long").into_response()
        }
    };
    tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
    response
}
