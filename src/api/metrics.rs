//! `/metrics`, Prometheus text: open to this machine, for a Housekeeping token elsewhere.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{
    Api,
    auth::{Asked, Peer, peer_of},
    error::ApiError,
};

pub(super) fn router() -> Router<Arc<Api>> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(api): State<Arc<Api>>, request: Request) -> Result<Response, ApiError> {
    let peer = peer_of(&request)?;
    let here = match peer {
        Peer::Socket { .. } => true,
        Peer::Tcp(address) => address.ip().to_canonical().is_loopback(),
    };
    if !here {
        let asked = Asked {
            peer,
            method: request.method(),
            path: "metrics",
            shown: "/metrics",
            headers: request.headers(),
        };
        api.authority.in_housekeeping(&asked)?;
    }
    let text = (api.metrics)();
    Ok((
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response())
}
