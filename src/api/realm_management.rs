//! Astarte's Realm Management: interfaces, the realm's settings, deletion of
//! devices. Triggers and policies are served by later versions.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse as _, Response},
    routing::{delete, get},
};
use serde_json::{Value, json};

use super::{
    Api,
    auth::{self, RealmScope},
    body::{self, Data, Fields, Params, Segments},
    error::ApiError,
};
use crate::{
    engine::{
        InterfaceChangeError, actor::Actor, pairing::ASTARTE_VERSION, realms::RealmPatch,
        tokens::TokenApi,
    },
    identity::{Identity, RealmName},
    interface::InterfaceKey,
    store::AuditEntry,
};

pub(super) fn router(api: &Arc<Api>) -> Router<Arc<Api>> {
    let routes = Router::new()
        .route("/{realm}/interfaces", get(list).post(install))
        .route("/{realm}/interfaces/{name}", get(majors))
        .route(
            "/{realm}/interfaces/{name}/{major}",
            get(show).put(update).delete(remove),
        )
        .route("/{realm}/config/auth", get(auth_key).put(set_auth_key))
        .route(
            "/{realm}/config/device_registration_limit",
            get(registration_limit),
        )
        .route(
            "/{realm}/config/datastream_maximum_storage_retention",
            get(retention),
        )
        .route("/{realm}/devices/{device}", delete(delete_device))
        .route("/{realm}/version", get(async || body::ok(ASTARTE_VERSION)))
        .route_layer(middleware::from_fn_with_state(
            (api.authority.clone(), TokenApi::RealmManagement),
            auth::require_realm,
        ));
    Router::new().nest("/v1", routes).fallback(super::not_found)
}

async fn list(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    params: Params,
) -> Result<Response, ApiError> {
    if params.flag("detailed")? {
        let all = api.interfaces.all(&realm);
        return Ok(body::ok(
            all.iter().map(|it| it.to_json()).collect::<Vec<_>>(),
        ));
    }
    Ok(body::ok(api.interfaces.names(&realm)))
}

async fn install(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    actor: Actor,
    Data(document): Data,
) -> Result<Response, ApiError> {
    let object = described(&realm, &document);
    let audit = audit(&api, &actor, "interface.install", object);
    let interface = api.interfaces.install(&realm, &document, audit).await?;
    let place = format!(
        "/v1/{realm}/interfaces/{}/{}",
        interface.name(),
        interface.major()
    );
    let mut response = StatusCode::CREATED.into_response();
    if let Ok(place) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// How the audit log names a document that is not read yet.
fn described(realm: &RealmName, document: &Value) -> String {
    let name = document["interface_name"].as_str().unwrap_or("?");
    let major = document["version_major"].as_u64().unwrap_or(0);
    let minor = document["version_minor"].as_u64().unwrap_or(0);
    format!("{realm}/{name} v{major}.{minor}")
}

fn audit(api: &Api, actor: &Actor, action: &str, object: String) -> AuditEntry {
    actor.did(api.clock.wall(), action, object)
}

async fn majors(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    Segments((_, name)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let majors = api.interfaces.majors(&realm, &name);
    if majors.is_empty() {
        Err(not_found())
    } else {
        Ok(body::ok(majors))
    }
}

fn not_found() -> ApiError {
    ApiError::not_found("Interface not found")
}

/// The interface that a path names; what is no version is none that is installed.
fn key(name: &str, major: &str) -> Result<InterfaceKey, ApiError> {
    let major = major.parse().map_err(|_| not_found())?;
    Ok(InterfaceKey {
        name: Arc::from(name),
        major,
    })
}

async fn show(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    Segments((_, name, major)): Segments<(String, String, String)>,
) -> Result<Response, ApiError> {
    let key = key(&name, &major)?;
    let interface = api
        .interfaces
        .get(&realm, &key.name, key.major)
        .ok_or_else(not_found)?;
    Ok(body::ok(interface.to_json()))
}

async fn update(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    Segments((_, name, major)): Segments<(String, String, String)>,
    actor: Actor,
    Data(document): Data,
) -> Result<Response, ApiError> {
    let key = key(&name, &major)?;
    let audit = audit(
        &api,
        &actor,
        "interface.update",
        described(&realm, &document),
    );
    api.interfaces
        .update(&realm, &key, &document, audit)
        .await?;
    Ok(body::no_content())
}

async fn remove(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    Segments((_, name, major)): Segments<(String, String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    let key = key(&name, &major)?;
    let audit = audit(&api, &actor, "interface.delete", format!("{realm}/{key}"));
    api.interfaces.delete(&realm, &key, audit).await?;
    Ok(body::no_content())
}

async fn auth_key(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
) -> Result<Response, ApiError> {
    let row = api.realms.show(&realm).await?;
    Ok(body::ok(
        json!({ "jwt_public_key_pem": row.jwt_public_key_pem }),
    ))
}

async fn set_auth_key(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let jwt_public_key_pem = fields.required_text("jwt_public_key_pem");
    fields.finish()?;
    let patch = RealmPatch {
        jwt_public_key_pem,
        ..RealmPatch::default()
    };
    api.realms.patch(&realm, patch, &actor).await?;
    Ok(body::no_content())
}

async fn registration_limit(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
) -> Result<Response, ApiError> {
    Ok(body::ok(
        api.realms.show(&realm).await?.device_registration_limit,
    ))
}

async fn retention(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
) -> Result<Response, ApiError> {
    Ok(body::ok(
        api.realms
            .show(&realm)
            .await?
            .datastream_maximum_storage_retention,
    ))
}

async fn delete_device(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    Segments((_, device)): Segments<(String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    let device = super::appengine::device_id(&device)?;
    api.devices
        .delete(&Identity::new(realm, device), &actor)
        .await?;
    Ok(body::no_content())
}

impl From<InterfaceChangeError> for ApiError {
    fn from(error: InterfaceChangeError) -> Self {
        use InterfaceChangeError as Refused;
        match error {
            Refused::Invalid(invalid) => {
                Self::with_errors(StatusCode::UNPROCESSABLE_ENTITY, invalid.to_json())
            }
            Refused::RealmNotFound => Self::forbidden(),
            Refused::NotInstalled(_) => not_found(),
            Refused::AlreadyInstalled(_) => Self::conflict("Interface already exists"),
            Refused::NameCollision(other) => Self::conflict(format!(
                "Interface name collision detected: {other} is installed, and names that differ in \
                 case or hyphens only cannot be told apart"
            )),
            Refused::NameMismatch => Self::conflict("Interface name doesn't match"),
            Refused::MajorMismatch => Self::conflict("Interface major version doesn't match"),
            Refused::UpdateRefused(why) => Self::conflict(why.to_string()),
            Refused::MajorNotZero => Self::new(
                StatusCode::FORBIDDEN,
                "Interface can't be deleted: only major version 0 can be",
            ),
            Refused::InUse(_) => Self::new(
                StatusCode::FORBIDDEN,
                "Interface can't be deleted: a device declares it",
            ),
            Refused::Store(error) => error.into(),
        }
    }
}
