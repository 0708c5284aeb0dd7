//! Devices: the list, one device's status, and what applications may change of it.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::Addressed;
use crate::{
    api::{
        Api,
        auth::RealmScope,
        body::{self, Data, Fields, Params},
        device_status,
        error::ApiError,
    },
    engine::{actor::Actor, devices::DevicePatch},
    identity::{DeviceId, Identity, RealmName},
    store::DeviceFilter,
};

/// Devices of a page when no limit is given.
const PAGE: usize = 1000;
/// Devices of a page at most.
const PAGE_MAX: usize = 10_000;
/// The one content type of a PATCH (RFC 7396).
const MERGE_PATCH: &str = "application/merge-patch+json";

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
    params: Params,
) -> Result<Response, ApiError> {
    let details = params.flag("details")?;
    let limit = match params.parsed::<i64>("limit")? {
        None => PAGE,
        Some(limit) if limit > 0 => usize::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX),
        Some(_) => return Err(ApiError::field("limit", "must be greater than 0")),
    };
    let after: Option<DeviceId> = params.parsed("from_token")?;
    let filter = DeviceFilter {
        after,
        limit,
        ..DeviceFilter::default()
    };
    let (shown, ids): (Vec<Value>, Vec<DeviceId>) = if details {
        let views = api.devices.list(&realm, &filter).await?;
        views
            .iter()
            .map(|it| (device_status::status(it), it.row.identity.device))
            .unzip()
    } else {
        let rows = api.store.devices(&realm, &filter).await?;
        rows.iter()
            .map(|it| (json!(it.identity.device), it.identity.device))
            .unzip()
    };
    let link = |from| link(&realm, details, from, limit);
    let mut links = json!({ "self": link(after) });
    if ids.len() == limit {
        links["next"] = json!(link(ids.last().copied()));
    }
    Ok(Json(json!({ "data": shown, "links": links })).into_response())
}

/// The address of a page, without the prefix of the service.
fn link(realm: &RealmName, details: bool, from: Option<DeviceId>, limit: usize) -> String {
    let details = if details { "details=true&" } else { "" };
    let from = from.map_or_else(String::new, |id| format!("from_token={id}&"));
    format!("/v1/{realm}/devices?{details}{from}limit={limit}")
}

pub(super) async fn stats(
    State(api): State<Arc<Api>>,
    RealmScope(realm): RealmScope,
) -> Result<Response, ApiError> {
    Ok(body::ok(api.store.device_stats(&realm).await?))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Addressed(identity): Addressed,
) -> Result<Response, ApiError> {
    status(&api, &identity).await
}

async fn status(api: &Api, identity: &Identity) -> Result<Response, ApiError> {
    Ok(body::ok(device_status::status(
        &api.devices.show(identity).await?,
    )))
}

pub(super) async fn patch(
    State(api): State<Arc<Api>>,
    Addressed(identity): Addressed,
    actor: Actor,
    headers: HeaderMap,
    Data(wish): Data,
) -> Result<Response, ApiError> {
    if headers
        .get(header::CONTENT_TYPE)
        .is_none_or(|it| it.as_bytes() != MERGE_PATCH.as_bytes())
    {
        let text = format!("The content type has to be {MERGE_PATCH}");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let mut fields = Fields::try_from(Data(wish))?;
    let aliases = entries(&mut fields, "aliases");
    let attributes = entries(&mut fields, "attributes");
    let credentials_inhibited = fields.flag("credentials_inhibited");
    fields.finish()?;
    let blank = |entries: &BTreeMap<String, Option<String>>| entries.keys().any(String::is_empty);
    if blank(&aliases) || aliases.values().any(|alias| alias.as_deref() == Some("")) {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "Invalid alias: it is empty",
        ));
    }
    if blank(&attributes) {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "Invalid attribute key: it is empty",
        ));
    }
    let held = api.devices.show(&identity).await?.row.attributes;
    let gone = attributes
        .iter()
        .find(|(key, value)| value.is_none() && !held.contains_key(*key));
    if let Some((key, _)) = gone {
        return Err(ApiError::unprocessable(format!(
            "Attribute key not found: {key}"
        )));
    }
    let patch = DevicePatch {
        aliases,
        attributes,
        credentials_inhibited,
    };
    api.devices.patch(&identity, patch, &actor).await?;
    status(&api, &identity).await
}

/// A map of texts, null for what is to be deleted; anything else is refused.
fn entries(fields: &mut Fields, name: &str) -> BTreeMap<String, Option<String>> {
    let read = match fields.value(name) {
        None => return BTreeMap::new(),
        Some(Value::Object(object)) => object
            .iter()
            .map(|(key, value)| match value {
                Value::Null => Some((key.clone(), None)),
                Value::String(text) => Some((key.clone(), Some(text.clone()))),
                _ => None,
            })
            .collect(),
        Some(_) => None,
    };
    read.unwrap_or_else(|| {
        fields.refuse(name, "is invalid");
        BTreeMap::new()
    })
}
