//! Our own routes, `/tanit/v1`: what an operator needs beyond Astarte's services. The CLI is their
//! client. On the socket they are open, over TCP they want a Housekeeping token.

mod archive;
mod devices;
mod node;
mod publish;
mod realms;

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{get, post},
};

use super::{Api, auth};

/// The routes under the usual limits, to be nested below `/tanit/v1`.
pub(super) fn router(api: &Arc<Api>) -> Router<Arc<Api>> {
    Router::new()
        .route("/status", get(node::status))
        .route("/health", get(node::health))
        .route("/reload", post(node::reload))
        .route("/audit", get(node::audit))
        .route("/config", get(node::config))
        .route(
            "/realms/{realm}/devices/{device}/publish",
            post(publish::publish),
        )
        .merge(realms::routes())
        .merge(devices::routes())
        .route_layer(middleware::from_fn_with_state(
            api.authority.clone(),
            auth::require_housekeeping,
        ))
        .fallback(super::not_found)
}

/// The routes that carry whole archives, with their full paths.
pub(super) fn streams(api: &Arc<Api>) -> Router<Arc<Api>> {
    Router::new()
        .route("/tanit/v1/backup", post(archive::backup))
        .route("/tanit/v1/restore", post(archive::restore))
        .route_layer(middleware::from_fn_with_state(
            api.authority.clone(),
            auth::require_housekeeping,
        ))
}
