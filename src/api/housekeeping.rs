//! Astarte's Housekeeping: realms.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    middleware,
    response::Response,
    routing::get,
};
use serde_json::{Value, json};

use super::{
    Api,
    auth::{self, Peer},
    body::{self, Fields, Params, Segments},
    error::ApiError,
};
use crate::{
    engine::{
        actor::Actor,
        pairing::ASTARTE_VERSION,
        realms::{NewRealm, NewTokenKey, RealmError, RealmPatch},
    },
    identity::RealmName,
    store::RealmRow,
};

pub(super) fn router(api: &Arc<Api>) -> Router<Arc<Api>> {
    let routes = Router::new()
        .route("/realms", get(list).post(create))
        .route("/realms/{realm}", get(show).patch(update).delete(remove))
        .route("/realm-defaults/replication", get(replication))
        .route("/version", get(async || body::ok(ASTARTE_VERSION)))
        .route_layer(middleware::from_fn_with_state(
            api.authority.clone(),
            auth::require_housekeeping,
        ));
    Router::new().nest("/v1", routes).fallback(not_found)
}

async fn not_found() -> ApiError {
    ApiError::not_found("Page not found")
}

/// Housekeeping's object of a realm.
pub(super) fn realm_object(row: &RealmRow) -> Value {
    let retention = row.datastream_maximum_storage_retention;
    json!({
        "realm_name": row.name,
        "jwt_public_key_pem": row.jwt_public_key_pem,
        "replication_class": "SimpleStrategy",
        "replication_factor": 1,
        "device_registration_limit": row.device_registration_limit,
        "datastream_maximum_storage_retention": (retention > 0).then_some(retention),
    })
}

async fn list(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let names: Vec<RealmName> = api
        .realms
        .list()
        .await?
        .into_iter()
        .map(|row| row.name)
        .collect();
    Ok(body::ok(names))
}

async fn create(
    State(api): State<Arc<Api>>,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let name = fields.required_parsed("realm_name");
    let key = fields.required_text("jwt_public_key_pem");
    let limit = fields.number("device_registration_limit");
    let retention = fields.number("datastream_maximum_storage_retention");
    fields.finish()?;
    let (Some(name), Some(key)) = (name, key) else {
        return Err(ApiError::bad_request());
    };
    let new = NewRealm {
        name,
        key: NewTokenKey::Given(key),
        device_registration_limit: limit,
        datastream_maximum_storage_retention: retention.unwrap_or(0),
    };
    let created = api.realms.create(new, &actor).await?;
    Ok(created_at(&created.row, realm_object(&created.row)))
}

/// 201 with the place of the new realm.
pub(super) fn created_at(row: &RealmRow, object: Value) -> Response {
    let mut response = body::data(StatusCode::CREATED, object);
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/realms/{}", row.name)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

async fn show(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
) -> Result<Response, ApiError> {
    Ok(body::ok(realm_object(
        &api.realms.show(&realm(&name)?).await?,
    )))
}

/// The realm of a path; what is no realm name names no realm.
pub(super) fn realm(name: &str) -> Result<RealmName, ApiError> {
    name.parse().map_err(|_| RealmError::NotFound.into())
}

async fn update(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let realm = realm(&name)?;
    let limit = fields.number("device_registration_limit");
    let retention = fields.number("datastream_maximum_storage_retention");
    let patch = RealmPatch {
        jwt_public_key_pem: if fields.has("jwt_public_key_pem") {
            fields.required_text("jwt_public_key_pem")
        } else {
            None
        },
        // null unsets, absence keeps
        device_registration_limit: fields.has("device_registration_limit").then_some(limit),
        datastream_maximum_storage_retention: fields
            .has("datastream_maximum_storage_retention")
            .then_some(retention.unwrap_or(0)),
    };
    fields.finish()?;
    Ok(body::ok(realm_object(
        &api.realms.patch(&realm, patch, &actor).await?,
    )))
}

async fn remove(
    State(api): State<Arc<Api>>,
    peer: Peer,
    Segments(name): Segments<String>,
    params: Params,
    actor: Actor,
) -> Result<Response, ApiError> {
    if matches!(peer, Peer::Tcp(_)) && !api.settings.realm_deletion {
        return Err(ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "Realm deletion disabled",
        ));
    }
    api.realms
        .delete(&realm(&name)?, params.flag("force")?, &actor)
        .await?;
    Ok(body::no_content())
}

async fn replication() -> Response {
    body::ok(json!({ "replication_class": "SimpleStrategy", "replication_factor": 1 }))
}

impl From<RealmError> for ApiError {
    fn from(error: RealmError) -> Self {
        match error {
            RealmError::NotFound => Self::not_found("realm not found"),
            RealmError::Exists => Self::conflict("Realm already exists"),
            RealmError::Key(error) => Self::field("jwt_public_key_pem", error.to_string()),
            RealmError::CaNotFound => Self::not_found("CA not found"),
            RealmError::CaExists => Self::conflict("CA already exists"),
            RealmError::CaInvalid(why) => Self::field("certificate_pem", why),
            RealmError::CaKeyMissing => Self::field("private_key_pem", "can't be blank"),
            RealmError::Token(why) => Self::field("apis", why),
            RealmError::DevicesConnected(_)
            | RealmError::CaIssuing
            | RealmError::NoPrivateKey
            | RealmError::Pool(_) => Self::unprocessable(error.to_string()),
            RealmError::Sessions(error) => error.into(),
            RealmError::Store(error) => error.into(),
            RealmError::Signing(_) | RealmError::Sealed(_) => Self::internal(&error),
        }
    }
}
