//! Realms, their CAs and tokens.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::Response,
    routing::{delete, get, post},
};
use serde_json::{Value, json};

use crate::{
    api::{
        Api,
        body::{self, Fields, Params, Segments},
        error::ApiError,
        housekeeping::{created_at, realm, realm_object},
    },
    clock::Timestamp,
    engine::{
        actor::Actor,
        realms::{NewRealm, NewTokenKey},
        tokens::TokenApi,
    },
    store::{RealmRow, TopRow},
};

/// How long a token counts when nothing is said; 0 is for ever.
const TOKEN_EXPIRY_SECONDS: u64 = 8 * 3600;
/// Longest time that a token may be asked for: 100 years.
const TOKEN_EXPIRY_SECONDS_MAX: u64 = 100 * 365 * 86_400;
/// How far back the lists of the worst devices look.
const TOP_SINCE: Duration = Duration::from_hours(1);

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/realms", get(list).post(create))
        .route("/realms/{realm}", get(show).delete(remove))
        .route("/realms/{realm}/cas", get(cas).post(import_ca))
        .route("/realms/{realm}/cas/rotate", post(rotate_ca))
        .route("/realms/{realm}/cas/{fingerprint}", delete(remove_ca))
        .route("/realms/{realm}/tokens", post(sign_token))
        .route("/realms/{realm}/errors", get(errors))
        .route("/realms/{realm}/reconnects", get(reconnects))
}

/// Housekeeping's object with what only we know.
async fn described(api: &Api, row: &RealmRow) -> Result<Value, ApiError> {
    let stats = api.realms.stats(&row.name).await?;
    let mut object = realm_object(row);
    object["created_at"] = json!(row.created_at);
    object["private_key_kept"] = json!(row.jwt_private_key_sealed.is_some());
    object["total_devices"] = json!(stats.total_devices);
    object["connected_devices"] = json!(stats.connected_devices);
    Ok(object)
}

async fn list(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let mut realms = Vec::new();
    for row in api.realms.list().await? {
        realms.push(described(&api, &row).await?);
    }
    Ok(body::ok(realms))
}

async fn create(
    State(api): State<Arc<Api>>,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let name = fields.required_parsed("realm_name");
    let key = token_key(&mut fields);
    let limit = fields.number("device_registration_limit");
    let retention = fields.number("datastream_maximum_storage_retention");
    fields.finish()?;
    let (Some(name), Some(key)) = (name, key) else {
        return Err(ApiError::bad_request());
    };
    let new = NewRealm {
        name,
        key,
        device_registration_limit: limit,
        datastream_maximum_storage_retention: retention.unwrap_or(0),
    };
    let created = api.realms.create(new, &actor).await?;
    let mut object = described(&api, &created.row).await?;
    if let Some(pem) = created.private_key_pem {
        object["jwt_private_key_pem"] = json!(pem.as_str());
    }
    Ok(created_at(&created.row, object))
}

/// A given public key, or a pair to be kept or returned.
fn token_key(fields: &mut Fields) -> Option<NewTokenKey> {
    let given = fields.text("jwt_public_key_pem");
    let asked = fields.text("private_key");
    match (given, asked.as_deref()) {
        (Some(pem), None) => Some(NewTokenKey::Given(pem)),
        (None, None | Some("keep")) => Some(NewTokenKey::Keep),
        (None, Some("return")) => Some(NewTokenKey::Return),
        (Some(_), Some(_)) => {
            fields.refuse("private_key", "must be blank when a public key is given");
            None
        }
        (None, Some(_)) => {
            fields.refuse("private_key", "is neither keep nor return");
            None
        }
    }
}

async fn show(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
) -> Result<Response, ApiError> {
    let row = api.realms.show(&realm(&name)?).await?;
    Ok(body::ok(described(&api, &row).await?))
}

async fn remove(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    params: Params,
    actor: Actor,
) -> Result<Response, ApiError> {
    api.realms
        .delete(&realm(&name)?, params.flag("force")?, &actor)
        .await?;
    Ok(body::no_content())
}

async fn cas(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
) -> Result<Response, ApiError> {
    Ok(body::ok(api.realms.cas(&realm(&name)?).await?))
}

async fn import_ca(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let realm = realm(&name)?;
    let certificate = fields.required_text("certificate_pem");
    let key = fields.text("private_key_pem").map(zeroize::Zeroizing::new);
    let issuing = fields.flag("issuing").unwrap_or(false);
    fields.finish()?;
    let certificate = certificate.ok_or_else(ApiError::bad_request)?;
    let key = key.as_ref().map(|key| key.as_str());
    let view = api
        .realms
        .import_ca(&realm, &certificate, key, issuing, &actor)
        .await?;
    Ok(body::data(StatusCode::CREATED, view))
}

async fn rotate_ca(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    actor: Actor,
) -> Result<Response, ApiError> {
    let view = api.realms.rotate_ca(&realm(&name)?, &actor).await?;
    Ok(body::data(StatusCode::CREATED, view))
}

async fn remove_ca(
    State(api): State<Arc<Api>>,
    Segments((name, fingerprint)): Segments<(String, String)>,
    actor: Actor,
) -> Result<Response, ApiError> {
    api.realms
        .remove_ca(&realm(&name)?, &fingerprint, &actor)
        .await?;
    Ok(body::no_content())
}

async fn sign_token(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let realm = realm(&name)?;
    let apis = token_apis(&mut fields);
    let expiry = fields
        .number("expiry_seconds")
        .unwrap_or(TOKEN_EXPIRY_SECONDS);
    if expiry > TOKEN_EXPIRY_SECONDS_MAX {
        fields.refuse("expiry_seconds", "is longer than 100 years; 0 is for ever");
    }
    fields.finish()?;
    let expiry = (expiry > 0).then(|| Duration::from_secs(expiry));
    let token = api.realms.sign_token(&realm, &apis, expiry, &actor).await?;
    Ok(body::data(StatusCode::CREATED, json!({ "token": token })))
}

fn token_apis(fields: &mut Fields) -> Vec<TokenApi> {
    let Some(Value::Array(names)) = fields.value("apis").cloned() else {
        fields.refuse("apis", "can't be blank");
        return Vec::new();
    };
    let mut apis = Vec::new();
    for name in &names {
        match name.as_str().map(str::parse) {
            Some(Ok(api)) => apis.push(api),
            Some(Err(error)) => fields.refuse("apis", format!("{name} {error}")),
            None => fields.refuse("apis", "is invalid"),
        }
    }
    apis
}

async fn errors(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let row = api.realms.show(&realm(&name)?).await?;
    let since = since(&api, &params)?;
    let rows = api.devices.top_errors(&row.name, since).await?;
    Ok(body::ok(rows.iter().map(top_row).collect::<Vec<_>>()))
}

async fn reconnects(
    State(api): State<Arc<Api>>,
    Segments(name): Segments<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let row = api.realms.show(&realm(&name)?).await?;
    let since = since(&api, &params)?;
    let rows = api.devices.top_reconnects(&row.name, since).await?;
    Ok(body::ok(rows.iter().map(top_row).collect::<Vec<_>>()))
}

/// The time given, or an hour ago.
fn since(api: &Api, params: &Params) -> Result<Timestamp, ApiError> {
    match params.text("since") {
        None => Ok(api.clock.wall().saturating_sub(TOP_SINCE)),
        Some(text) => Timestamp::parse(text).ok_or_else(|| ApiError::field("since", "is invalid")),
    }
}

fn top_row(row: &TopRow) -> Value {
    match &row.error_name {
        Some(name) => {
            json!({ "device_id": row.device, "error_name": name, "count": row.count })
        }
        None => json!({ "device_id": row.device, "count": row.count }),
    }
}
