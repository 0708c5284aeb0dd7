//! Astarte's Pairing: the routes that device SDKs call.
//!
//! Answers are compact JSON with a Content-Length and exactly one null, `"details":null`: small
//! clients read nothing else.

use std::sync::Arc;

use axum::{
    Router,
    extract::{FromRequestParts, State},
    http::{StatusCode, request::Parts},
    middleware,
    response::Response,
    routing::{delete, get, post},
};
use serde_json::{Value, json};
use time::macros::format_description;

use super::{
    Api, auth,
    auth::{Peer, RealmScope},
    body::{self, Fields, Segments},
    error::ApiError,
};
use crate::{
    clock::Timestamp,
    engine::{
        actor::Actor,
        pairing::{
            ASTARTE_VERSION, IssueError, PairingStatus, RegisterError, SecretError, identity_from,
        },
        tokens::TokenApi,
    },
    identity::{DeviceId, Identity, RealmName},
    interface::{Introspection, MajorMinor},
    pki::Verdict,
    store::DeviceRow,
};

/// Interfaces that `initial_introspection` may name.
const INTROSPECTION_MAX: usize = 1024;

pub(super) fn router(api: &Arc<Api>) -> Router<Arc<Api>> {
    let agent = Router::new()
        .route("/{realm}/agent/devices", post(register))
        .route("/{realm}/agent/devices/{device}", delete(unregister))
        .route_layer(middleware::from_fn_with_state(
            (api.authority.clone(), TokenApi::Pairing),
            auth::require_realm,
        ));
    let device = Router::new()
        .route("/{realm}/devices/{hw_id}", get(info))
        .route(
            "/{realm}/devices/{hw_id}/protocols/astarte_mqtt_v1/credentials",
            post(credentials),
        )
        .route(
            "/{realm}/devices/{hw_id}/protocols/astarte_mqtt_v1/credentials/verify",
            post(verify),
        )
        .route("/{realm}/version", get(async || body::ok(ASTARTE_VERSION)))
        .route("/{realm}/health", get(health));
    // the layer of the agent's routes reads the realm behind this prefix
    Router::new()
        .nest("/v1", agent.merge(device))
        .fallback(not_found)
}

async fn not_found() -> ApiError {
    ApiError::not_found("Page not found")
}

async fn health(State(api): State<Arc<Api>>) -> Response {
    if api.node.health().ready {
        body::ok(json!({ "status": "ready" }))
    } else {
        body::data(
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "status": "not ready" }),
        )
    }
}

async fn register(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let identity = fields.required_text("hw_id").and_then(|hw_id| {
        identity_from(&realm, &hw_id)
            .map_err(|_| fields.refuse("hw_id", "is not a valid device id"))
            .ok()
    });
    let introspection = initial_introspection(&mut fields);
    fields.finish()?;
    let identity = identity.ok_or_else(ApiError::bad_request)?;
    let registered = api
        .pairing
        .register(identity, introspection, &actor)
        .await?;
    let secret = registered.credentials_secret.as_str();
    Ok(body::data(
        StatusCode::CREATED,
        json!({ "credentials_secret": secret }),
    ))
}

/// `{"<interface>": {"major": 0.., "minor": 0..}}`; names are not checked, as in Astarte.
fn initial_introspection(fields: &mut Fields) -> Option<Introspection> {
    const NAME: &str = "initial_introspection";
    let value = fields.value(NAME)?.clone();
    let Value::Object(entries) = value else {
        fields.refuse(NAME, "is invalid");
        return None;
    };
    if entries.len() > INTROSPECTION_MAX {
        fields.refuse(
            NAME,
            format!("should have at most {INTROSPECTION_MAX} interfaces"),
        );
        return None;
    }
    let version = |entry: &Value| {
        let number = |name: &str| u32::try_from(entry.get(name)?.as_u64()?).ok();
        Some(MajorMinor {
            major: number("major")?,
            minor: number("minor")?,
        })
    };
    let read: Option<Introspection> = entries
        .iter()
        .map(|(name, entry)| Some((Arc::from(name.as_str()), version(entry)?)))
        .collect();
    if read.is_none() {
        fields.refuse(
            NAME,
            "needs major and minor, whole numbers from 0 on, for each interface",
        );
    }
    read
}

async fn unregister(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    actor: Actor,
    Segments((_, device)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let device: DeviceId = device
        .parse()
        .map_err(|_| ApiError::not_found("Device not found"))?;
    api.pairing
        .unregister(&Identity::new(realm, device), &actor)
        .await?;
    Ok(body::no_content())
}

/// A device that proved itself by its secret; on the socket no proof is asked for.
struct Proved(DeviceRow, Peer);

impl FromRequestParts<Arc<Api>> for Proved {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let Segments((realm, hw_id)) =
            Segments::<(String, String)>::from_request_parts(parts, api).await?;
        let peer = Peer::from_request_parts(parts, api).await?;
        let secret = auth::bearer(&parts.headers);
        if secret.is_none() && matches!(peer, Peer::Tcp(_)) {
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "Unauthorized"));
        }
        let realm = existing_realm(api, &realm).await?;
        let identity =
            identity_from(&realm, &hw_id).map_err(|_| ApiError::not_found("Device not found"))?;
        let device = match secret {
            Some(secret) => {
                api.pairing
                    .authenticate(&identity, secret, peer.address())
                    .await?
            }
            None => api
                .pairing
                .device(&identity)
                .await?
                .ok_or(SecretError::UnknownDevice)?,
        };
        Ok(Self(device, peer))
    }
}

async fn existing_realm(api: &Api, realm: &str) -> Result<RealmName, ApiError> {
    let name: RealmName = realm.parse().map_err(|_| ApiError::forbidden())?;
    match api.store.realm(&name).await? {
        Some(row) => Ok(row.name),
        None => Err(ApiError::forbidden()),
    }
}

async fn info(State(api): State<Arc<Api>>, Proved(device, _): Proved) -> Response {
    body::ok(json!({
        "version": ASTARTE_VERSION,
        "status": PairingStatus::of(&device).as_str(),
        "protocols": { "astarte_mqtt_v1": { "broker_url": api.pairing.broker_url() } },
    }))
}

async fn credentials(
    State(api): State<Arc<Api>>,
    Proved(device, peer): Proved,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let csr = fields.required_text("csr");
    fields.finish()?;
    let csr = csr.ok_or_else(ApiError::bad_request)?;
    let certificate = api.pairing.issue(&device, csr, peer.address()).await?;
    Ok(body::data(
        StatusCode::CREATED,
        json!({ "client_crt": certificate }),
    ))
}

async fn verify(
    State(api): State<Arc<Api>>,
    Proved(device, _): Proved,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let certificate = fields.required_text("client_crt");
    fields.finish()?;
    let certificate = certificate.ok_or_else(ApiError::bad_request)?;
    let timestamp = stamp(api.pairing.now());
    Ok(body::ok(match api.pairing.verify(&device, &certificate) {
        Verdict::Valid { until } => {
            json!({ "valid": true, "timestamp": timestamp, "until": stamp(until) })
        }
        Verdict::Invalid(cause) => json!({
            "valid": false,
            "timestamp": timestamp,
            "cause": cause.as_str(),
            "details": null,
        }),
    }))
}

/// `2026-01-31 10:20:30.123Z`, with a space.
fn stamp(at: Timestamp) -> String {
    let format =
        format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]Z");
    at.to_offset_date_time().format(&format).unwrap_or_default()
}

impl From<RegisterError> for ApiError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::InvalidId(_) => Self::field("hw_id", "is not a valid device id"),
            RegisterError::AlreadyRegistered => Self::unprocessable("Device already registered"),
            RegisterError::LimitReached => Self::unprocessable("Device registration limit reached"),
            RegisterError::RealmNotFound => Self::forbidden(),
            RegisterError::DeviceNotFound => Self::not_found("Device not found"),
            RegisterError::Store(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}

impl From<SecretError> for ApiError {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::UnknownDevice => Self::not_found("Device not found"),
            SecretError::Wrong => Self::forbidden(),
            SecretError::HeldOff(wait) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "Too many failed attempts")
                    .retry_after(wait)
            }
            SecretError::Store(error) => error.into(),
        }
    }
}

impl From<IssueError> for ApiError {
    fn from(error: IssueError) -> Self {
        match error {
            IssueError::Inhibited => Self::forbidden(),
            IssueError::Csr(error) if error.is_the_requests_fault() => {
                Self::field("csr", error.to_string())
            }
            IssueError::DeviceNotFound => Self::not_found("Device not found"),
            IssueError::Realm(error) => error.into(),
            IssueError::Store(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}
