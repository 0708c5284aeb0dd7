//! A server-owned value by hand, with what became of it.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use super::devices::device;
use crate::{
    api::{
        Api,
        body::{self, Fields, Segments},
        error::ApiError,
    },
    mqtt::publisher::Published,
};

pub(super) async fn publish(
    State(api): State<Arc<Api>>,
    Segments(path): Segments<(String, String)>,
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
    Ok(body::ok(outcome(
        &api.writes.set(&identity, &interface, &path, &value).await?,
    )))
}

/// What became of a message: its name, and until when it waits at most.
fn outcome(published: &Published) -> Value {
    let name = match published {
        Published::Delivered => "delivered",
        Published::Queued { until: Some(until) } => {
            return json!({ "outcome": "queued", "until": until });
        }
        Published::Queued { until: None } => "queued",
        Published::NoSession => "no_session",
        Published::NoSubscription => "no_subscription",
        Published::NotConnected => "not_connected",
        Published::QueueFull => "queue_full",
        Published::Duplicate => "duplicate",
        Published::Expired => "expired",
        Published::Refused(_) => "refused",
        Published::Unavailable => "unavailable",
    };
    json!({ "outcome": name })
}
