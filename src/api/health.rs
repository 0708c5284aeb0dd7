//! `/health`, `/health/live`, `/version`: asked by probes and the dashboard, without a token.

use std::{sync::Arc, time::Duration};

use axum::{Router, http::StatusCode, routing::get};

use super::{NodeControl, body, error::ApiError};
use crate::engine::pairing::ASTARTE_VERSION;

/// The routes; they need nothing but the node, so that they answer before anything else does.
pub(super) fn router<S: Clone + Send + Sync + 'static>(node: Arc<dyn NodeControl>) -> Router<S> {
    Router::new()
        .route("/health", get(async move || ready(&*node)))
        .route("/health/live", get(async || StatusCode::OK))
        .route("/version", get(async || body::ok(ASTARTE_VERSION)))
}

/// The same below a service's prefix, where Astarte's services have theirs; the dashboard asks
/// each of them.
pub(super) fn of_service<S: Clone + Send + Sync + 'static>(
    prefix: &str,
    node: Arc<dyn NodeControl>,
) -> Router<S> {
    Router::new()
        .route(
            &format!("{prefix}/health"),
            get(async move || ready(&*node)),
        )
        .route(
            &format!("{prefix}/version"),
            get(async || body::ok(ASTARTE_VERSION)),
        )
}

/// 200 or 503, with an empty body.
fn ready(node: &dyn NodeControl) -> StatusCode {
    if node.health().ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// Any other route while the node starts; says what it waits for.
pub(super) fn starting(node: &dyn NodeControl) -> ApiError {
    let reasons = node.health().reasons.join("; ");
    let said = match reasons.as_str() {
        "" | "starting" => "Tanit is starting".to_owned(),
        waiting => format!("Tanit is starting: {waiting}"),
    };
    ApiError::unavailable(said, Duration::from_secs(1))
}
