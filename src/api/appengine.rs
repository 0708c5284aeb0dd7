//! Astarte's AppEngine: devices, what they sent, and what is sent to them.
//!
//! A device is addressed by its id or by an alias; both roots have the same routes. Groups are
//! served by later versions.

mod data;
mod devices;

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    extract::{FromRequestParts, Path},
    http::{StatusCode, request::Parts},
    middleware,
    routing::get,
};

use super::{
    Api,
    auth::{self, RealmScope},
    body,
    error::ApiError,
};
use crate::{
    engine::{pairing::ASTARTE_VERSION, reads::ReadError, tokens::TokenApi},
    identity::{DeviceId, Identity},
};

pub(super) fn router(api: &Arc<Api>) -> Router<Arc<Api>> {
    let routes = Router::new()
        .route("/{realm}/devices", get(devices::list))
        .route("/{realm}/stats/devices", get(devices::stats))
        .route("/{realm}/version", get(async || body::ok(ASTARTE_VERSION)))
        .merge(of_device("/{realm}/devices/{device}"))
        .merge(of_device("/{realm}/devices-by-alias/{alias}"))
        .route_layer(middleware::from_fn_with_state(
            (api.authority.clone(), TokenApi::AppEngine),
            auth::require_realm,
        ));
    Router::new().nest("/v1", routes).fallback(super::not_found)
}

/// The routes of one device below `root`.
fn of_device(root: &str) -> Router<Arc<Api>> {
    let interface = format!("{root}/interfaces/{{interface}}");
    Router::new()
        .route(root, get(devices::show).patch(devices::patch))
        .route(&format!("{root}/interfaces"), get(data::interfaces))
        .route(&interface, get(data::snapshot))
        .route(
            &format!("{interface}/{{*path}}"),
            get(data::read)
                .post(data::write)
                .put(data::write)
                .delete(data::unset),
        )
}

/// A device id of a path; extended ids are refused here.
pub(super) fn device_id(text: &str) -> Result<DeviceId, ApiError> {
    text.parse()
        .map_err(|_| ApiError::new(StatusCode::BAD_REQUEST, "Invalid device id"))
}

/// The device that a path names, by id or by alias. An id need not be registered.
struct Addressed(Identity);

impl FromRequestParts<Arc<Api>> for Addressed {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let RealmScope(realm) = RealmScope::from_request_parts(parts, api).await?;
        let Path(names) = Path::<HashMap<String, String>>::from_request_parts(parts, api)
            .await
            .map_err(|_| ApiError::bad_request())?;
        let device = match (names.get("device"), names.get("alias")) {
            (Some(id), _) => device_id(id)?,
            (None, Some(alias)) => api.reads.by_alias(&realm, alias).await?,
            (None, None) => return Err(ApiError::bad_request()),
        };
        Ok(Self(Identity::new(realm, device)))
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::DeviceNotFound => Self::not_found("Device not found"),
            ReadError::NotDeclared => {
                Self::not_found("Interface not found in device introspection")
            }
            ReadError::NotInstalled => Self::not_found("Interface not found"),
            ReadError::EndpointNotFound => Self::new(StatusCode::BAD_REQUEST, "Endpoint not found"),
            ReadError::PathNotFound => Self::not_found("Path not found"),
            ReadError::Store(error) => error.into(),
        }
    }
}
