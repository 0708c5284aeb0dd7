//! Devices, as an operator manages them.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::Response,
    routing::{delete, get, post},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    api::{
        Api,
        body::{self, Fields, Params, Segments},
        device_status,
        error::ApiError,
        housekeeping::realm,
    },
    engine::{
        actor::Actor,
        devices::{DeviceView, DevicesError},
        live::SessionsFailed,
        pairing::identity_from,
    },
    identity::{DeviceId, Identity, RealmName},
    store::DeviceFilter,
};

/// Devices that are listed when no limit is given, and at most.
const LISTED: usize = 1000;

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/realms/{realm}/devices", get(list).post(register))
        .route("/realms/{realm}/devices/{device}", get(show).delete(remove))
        .route("/realms/{realm}/devices/{device}/inhibit", post(inhibit))
        .route("/realms/{realm}/devices/{device}/allow", post(allow))
        .route(
            "/realms/{realm}/devices/{device}/disconnect",
            post(disconnect),
        )
        .route("/realms/{realm}/devices/{device}/revoke", post(revoke))
        .route(
            "/realms/{realm}/devices/{device}/registration",
            delete(unregister),
        )
        .route("/realms/{realm}/devices/{device}/errors", get(errors))
        .route("/realms/{realm}/devices/{device}/history", get(history))
}

/// The device that a path names.
pub(super) async fn device(api: &Api, (name, id): &(String, String)) -> Result<Identity, ApiError> {
    let row = api.realms.show(&realm(name)?).await?;
    let id: DeviceId = id
        .parse()
        .map_err(|_| ApiError::new(StatusCode::BAD_REQUEST, format!("{id} is not a device id")))?;
    Ok(Identity::new(row.name, id))
}

async fn list(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let row = api.realms.show(&realm(&name)?).await?;
    let filter = DeviceFilter {
        after: params.parsed("after")?,
        connected: params.parsed("connected")?,
        credentials_inhibited: params.parsed("inhibited")?,
        interface: params.text("interface").map(str::to_owned),
        limit: params.parsed("limit")?.unwrap_or(LISTED).min(LISTED),
    };
    let views = api.devices.list(&row.name, &filter).await?;
    Ok(body::ok(
        views.iter().map(device_status::status).collect::<Vec<_>>(),
    ))
}

async fn register(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let row = api.realms.show(&realm(&name)?).await?;
    let identity = chosen(&row.name, &mut fields);
    fields.finish()?;
    let identity = identity.ok_or_else(ApiError::bad_request)?;
    let registered = api.pairing.register(identity, None, &actor).await?;
    Ok(body::data(
        StatusCode::CREATED,
        json!({
            "device_id": registered.device,
            "credentials_secret": registered.credentials_secret.as_str(),
        }),
    ))
}

/// A given id, one derived from a namespace and a hardware id, or a random one.
fn chosen(realm: &RealmName, fields: &mut Fields) -> Option<Identity> {
    let given = fields.text("device_id");
    let namespace = fields.parsed::<Uuid>("namespace");
    let hardware_id = fields.text("hardware_id");
    match (given, namespace, hardware_id) {
        (Some(id), None, None) => identity_from(realm, &id)
            .map_err(|error| fields.refuse("device_id", error.to_string()))
            .ok(),
        (None, Some(namespace), Some(hardware_id)) => {
            let device = DeviceId::derive(namespace, hardware_id.as_bytes());
            Some(Identity::new(realm.clone(), device))
        }
        (None, None, None) => Some(Identity::new(realm.clone(), DeviceId::random())),
        (Some(_), _, _) => {
            fields.refuse(
                "device_id",
                "stands alone, without namespace and hardware_id",
            );
            None
        }
        (None, namespace, _) => {
            let missing = if namespace.is_some() {
                "hardware_id"
            } else {
                "namespace"
            };
            fields.refuse(missing, "can't be blank");
            None
        }
    }
}

async fn show(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let identity = device(&api, &path).await?;
    Ok(body::ok(shown(&api.devices.show(&identity).await?)))
}

/// AppEngine's object with session and certificate.
fn shown(view: &DeviceView) -> Value {
    let mut object = device_status::status(view);
    object["session"] = json!(view.session);
    object["certificate"] = view
        .row
        .certificate_serial
        .as_ref()
        .map_or(Value::Null, |serial| {
            json!({
                "serial": serial,
                "aki": view.row.certificate_aki,
                "not_after": view.row.certificate_not_after,
            })
        });
    object
}

async fn inhibit(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    api.devices
        .inhibit(&device(&api, &path).await?, true, &actor)
        .await?;
    Ok(body::no_content())
}

async fn allow(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    api.devices
        .inhibit(&device(&api, &path).await?, false, &actor)
        .await?;
    Ok(body::no_content())
}

async fn disconnect(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    let was_connected = api
        .devices
        .disconnect(&device(&api, &path).await?, &actor)
        .await?;
    Ok(body::ok(json!({ "disconnected": was_connected })))
}

async fn revoke(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
    actor: Actor,
    body: Bytes,
) -> Result<Response, ApiError> {
    let identity = device(&api, &path).await?;
    let mut fields = Fields::optional(&body)?;
    let serial = fields.text("serial");
    fields.finish()?;
    let serial = api
        .devices
        .revoke(&identity, serial.as_deref(), &actor)
        .await?;
    Ok(body::ok(json!({ "serial": serial })))
}

async fn unregister(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    api.pairing
        .unregister(&device(&api, &path).await?, &actor)
        .await?;
    Ok(body::no_content())
}

async fn remove(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    api.devices
        .delete(&device(&api, &path).await?, &actor)
        .await?;
    Ok(body::no_content())
}

async fn errors(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    Ok(body::ok(
        api.devices.errors(&device(&api, &path).await?).await?,
    ))
}

async fn history(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    Ok(body::ok(
        api.devices.history(&device(&api, &path).await?).await?,
    ))
}

impl From<DevicesError> for ApiError {
    fn from(error: DevicesError) -> Self {
        match error {
            DevicesError::NotFound => Self::not_found("Device not found"),
            DevicesError::AliasInUse => Self::conflict("Alias already in use"),
            DevicesError::AliasNotFound => {
                Self::new(StatusCode::BAD_REQUEST, "Alias tag not found")
            }
            DevicesError::NoCertificate | DevicesError::InvalidSerial => {
                Self::field("serial", error.to_string())
            }
            DevicesError::Realm(error) => error.into(),
            DevicesError::Sessions(error) => error.into(),
            DevicesError::Store(error) => error.into(),
        }
    }
}

impl From<SessionsFailed> for ApiError {
    fn from(error: SessionsFailed) -> Self {
        tracing::error!(%error, "a change of sessions failed");
        Self::unavailable(
            "The session store is not available",
            std::time::Duration::from_secs(5),
        )
    }
}
