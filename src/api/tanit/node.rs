//! The node itself: status, health, reload, settings, the audit log.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::json;

use crate::{
    api::{
        Api,
        body::{self, Params},
        error::ApiError,
    },
    engine::actor::Actor,
    store::Change,
};

/// Rows of the audit log that are answered when no limit is given, and at most.
const AUDIT_ROWS: usize = 100;
const AUDIT_ROWS_MAX: usize = 10_000;

pub(super) async fn status(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let mut status =
        serde_json::to_value(api.node.status()).map_err(|error| ApiError::internal(&error))?;
    let realms = api.realms.list().await.map(|realms| realms.len());
    status["version"] = json!(env!("CARGO_PKG_VERSION"));
    status["ready"] = json!(api.node.health().ready);
    // a status is wanted most when the database is away
    status["realms"] = json!(realms.ok());
    status["connected_devices"] = json!(api.live.connected());
    Ok(body::ok(status))
}

pub(super) async fn health(State(api): State<Arc<Api>>) -> Response {
    body::ok(api.node.health())
}

pub(super) async fn reload(
    State(api): State<Arc<Api>>,
    actor: Actor,
) -> Result<Response, ApiError> {
    let audit = actor.did(api.clock.wall(), "node.reload", "node");
    if let Err(error) = api.store.apply(Change::Note, audit).await {
        // certificates can be replaced while the database is away
        tracing::warn!(actor = actor.name(), %error, "a reload is not in the audit log");
    }
    Ok(body::ok(api.node.reload().await))
}

pub(super) async fn audit(
    State(api): State<Arc<Api>>,
    params: Params,
) -> Result<Response, ApiError> {
    let limit = params
        .parsed("limit")?
        .unwrap_or(AUDIT_ROWS)
        .min(AUDIT_ROWS_MAX);
    Ok(body::ok(api.store.audit(limit).await?))
}

pub(super) async fn config(State(api): State<Arc<Api>>) -> Response {
    body::ok(api.node.config())
}
