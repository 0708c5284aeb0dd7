//! A server-owned value by hand, with what became of it.

use std::sync::Arc;

use axum::{extract::State, response::Response};

use super::devices::device;
use crate::{
    api::{
        Api,
        body::{self, Fields, Segments},
        error::ApiError,
    },
    engine::actor::Actor,
};

/// Answers with the outcome, such as `{"outcome": "queued", "until": …}`.
pub(super) async fn publish(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
    actor: Actor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let identity = device(&api, &path).await?;
    let interface = fields.required_text("interface");
    let path = fields.required_text("path");
    let value = fields.value("value").cloned();
    if value.is_none() {
        fields.refuse("value", "can't be blank");
    }
    fields.finish()?;
    let (Some(interface), Some(path), Some(value)) = (interface, path, value) else {
        return Err(ApiError::bad_request());
    };
    let published = api.writes.set(&identity, &interface, &path, &value).await?;
    // an application's values are not in the audit log, an operator's are
    let object = format!("{identity}/{interface}{path}");
    api.devices.note("device.publish", object, &actor).await?;
    Ok(body::ok(published))
}
