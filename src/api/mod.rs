//! The control API: Astarte's services, our own routes, health and metrics, on one router.
//!
//! Handlers translate and call; what may be done is decided in [`crate::engine`], who may do it in
//! [`auth`]. The router is served over TCP, where every route but a few wants a token, and on a
//! Unix socket, where the file's permissions are the authorisation ([`server`]). Whatever changes
//! something runs to its end even if its caller goes away.

mod appengine;
mod assembly;
pub mod auth;
pub mod body;
pub mod device_status;
pub mod error;
mod health;
mod housekeeping;
mod limits;
mod metrics;
mod pairing;
mod realm_management;
pub mod server;
mod tanit;

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, StatusCode, header},
    middleware,
};
use serde::Serialize;
use tokio_util::task::TaskTracker;
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

use crate::{
    clock::SharedClock,
    engine::{
        Interfaces, backup::Backups, devices::Devices, live::LiveDevices, pairing::Pairing,
        reads::Reads, realms::Realms, writes::Writes,
    },
    store::Store,
};
pub use assembly::{ApiParts, ServiceSettings};
use auth::Authority;
pub use limits::Limits;

/// Everything that the routes call.
pub struct Api {
    /// Who may do what.
    pub authority: Arc<Authority>,
    /// Realms and their CAs.
    pub realms: Arc<Realms>,
    /// Devices.
    pub devices: Arc<Devices>,
    /// Pairing.
    pub pairing: Arc<Pairing>,
    /// Installed interfaces.
    pub interfaces: Arc<Interfaces>,
    /// What devices have stored.
    pub reads: Arc<Reads>,
    /// What is written for devices.
    pub writes: Writes,
    /// Copies of everything.
    pub backups: Arc<Backups>,
    /// Where things are kept, for what is only read.
    pub store: Arc<dyn Store>,
    /// Who holds the connections.
    pub live: Arc<dyn LiveDevices>,
    /// The node around this API.
    pub node: Arc<dyn NodeControl>,
    /// Prometheus text.
    pub metrics: MetricsText,
    /// Time.
    pub clock: SharedClock,
    /// Where changes run.
    pub tracker: TaskTracker,
    /// What is allowed.
    pub settings: ApiSettings,
}

/// Renders all metrics in Prometheus' text form.
pub type MetricsText = Arc<dyn Fn() -> String + Send + Sync>;

/// What the API is told by the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiSettings {
    /// Bounds.
    pub limits: Limits,
    /// Whether Housekeeping's own route may delete realms over TCP, as Astarte's setting; the
    /// socket and `/tanit/v1` always may.
    pub realm_deletion: bool,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What the routes ask of the node that runs them.
#[async_trait]
pub trait NodeControl: std::fmt::Debug + Send + Sync + 'static {
    /// Reads certificates, CA pools, CRLs and the log level again. What is broken keeps its old
    /// state and is named.
    async fn reload(&self) -> Reloaded;

    /// Stops this node and starts it anew with the data in `staged`, a directory below the data
    /// directory that holds a validated backup. Returns at once.
    ///
    /// # Errors
    /// When the node cannot do that; the text says why.
    fn restart_with(&self, staged: PathBuf) -> Result<(), String>;

    /// Addresses and paths.
    fn status(&self) -> NodeStatus;

    /// Whether devices and callers are served.
    fn health(&self) -> Health;

    /// The settings in force as TOML tables turned into JSON, secrets redacted.
    fn config(&self) -> serde_json::Value;
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// What was read again.
    pub reloaded: Vec<String>,
    /// What was refused and keeps its old state, each with the reason.
    pub errors: Vec<String>,
}

/// A node, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Bound address of MQTT over TLS.
    pub mqtt: Option<SocketAddr>,
    /// Bound address of HTTP.
    pub http: Option<SocketAddr>,
    /// Bound address of the plaintext development listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_dev_mqtt: Option<SocketAddr>,
    /// Data directory.
    pub data_dir: PathBuf,
    /// `sqlite` or `postgres`.
    pub database: String,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// The CA that devices need to trust the broker, PEM, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_ca_pem: Option<String>,
}

/// Whether a node serves, and if not, why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Devices are let in and the database answers.
    pub ready: bool,
    /// What is missing.
    pub reasons: Vec<String>,
}

/// The whole API.
pub fn router(api: &Arc<Api>) -> Router {
    let limits = Arc::new(limits::Gate::new(api.settings.limits, api.tracker.clone()));
    let bounded = Router::new()
        .nest("/pairing", pairing::router(api))
        .nest("/housekeeping", housekeeping::router(api))
        .nest("/realmmanagement", realm_management::router(api))
        .nest("/appengine", appengine::router(api))
        .nest("/tanit/v1", tanit::router(api))
        .merge(metrics::router())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(api.settings.limits.body_bytes))
        .layer(middleware::from_fn_with_state(limits, limits::bounded))
        .with_state(api.clone());
    // an archive takes its time and its bytes: no deadline, no limit of a body
    let streams = tanit::streams(api).with_state(api.clone());
    // probes are answered however much else is going on
    let mut probes = health::router(api.node.clone());
    for prefix in [
        "/pairing",
        "/realmmanagement",
        "/appengine",
        "/housekeeping",
    ] {
        probes = probes.merge(health::of_service(prefix, api.node.clone()));
    }
    bounded.merge(streams).merge(probes).layer(cors())
}

/// What is served while the node starts: alive, not ready, and nothing else.
pub fn starting(node: &Arc<dyn NodeControl>) -> Router {
    let waiting = node.clone();
    Router::new()
        .merge(health::router(node.clone()))
        .fallback(async move || health::starting(&*waiting))
        .layer(cors())
}

/// Any origin may call: the dashboard is served from elsewhere, and tokens are not cookies.
fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::OPTIONS,
        ])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::LOCATION, header::RETRY_AFTER])
}

/// For a route that has no such method.
async fn method_not_allowed() -> error::ApiError {
    error::ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed")
}

async fn not_found() -> error::ApiError {
    error::ApiError::not_found("Not found")
}
