//! Data of a device's interfaces: read as stored, written where the server owns it.

use std::{str::FromStr, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::json;

use super::Addressed;
use crate::{
    api::{
        Api,
        body::{self, Data, Params, Segments},
        error::ApiError,
    },
    clock::Timestamp,
    engine::{
        reads::{Downsample, Format, ReadQuery, Shown},
        writes::WriteError,
    },
    payload::{BigIntegers, ValueError},
};

/// What a path names below a device.
#[derive(Debug, Deserialize)]
pub(super) struct Place {
    interface: String,
    /// Without its leading slash.
    #[serde(default)]
    path: String,
}

impl Place {
    fn path(&self) -> String {
        format!("/{}", self.path)
    }
}

pub(super) async fn interfaces(
    State(api): State<Arc<Api>>,
    Addressed(identity): Addressed,
) -> Result<Response, ApiError> {
    Ok(body::ok(api.reads.interfaces(&identity).await?))
}

pub(super) async fn snapshot(
    State(api): State<Arc<Api>>,
    Addressed(identity): Addressed,
    Segments(place): Segments<Place>,
    params: Params,
) -> Result<Response, ApiError> {
    let query = query(&params)?;
    Ok(shown(
        api.reads
            .snapshot(&identity, &place.interface, &query)
            .await?,
    ))
}

pub(super) async fn read(
    State(api): State<Arc<Api>>,
    Addressed(identity): Addressed,
    Segments(place): Segments<Place>,
    params: Params,
) -> Result<Response, ApiError> {
    let query = query(&params)?;
    Ok(shown(
        api.reads
            .path(&identity, &place.interface, &place.path(), &query)
            .await?,
    ))
}

fn shown(shown: Shown) -> Response {
    let mut answer = json!({ "data": shown.data });
    if let Some(metadata) = shown.metadata {
        answer["metadata"] = metadata;
    }
    Json(answer).into_response()
}

pub(super) async fn write(
    State(api): State<Arc<Api>>,
    Addressed(identity): Addressed,
    Segments(place): Segments<Place>,
    Data(value): Data,
) -> Result<Response, ApiError> {
    api.writes
        .set(&identity, &place.interface, &place.path(), &value)
        .await?;
    Ok(body::ok(value))
}

pub(super) async fn unset(
    State(api): State<Arc<Api>>,
    Addressed(identity): Addressed,
    Segments(place): Segments<Place>,
) -> Result<Response, ApiError> {
    api.writes
        .unset(&identity, &place.interface, &place.path())
        .await?;
    Ok(body::no_content())
}

/// Reads the query of the data routes. `retrieve_metadata` is accepted and has no effect.
fn query(params: &Params) -> Result<ReadQuery, ApiError> {
    let query = ReadQuery {
        since: time(params, "since")?,
        since_after: time(params, "since_after")?,
        to: time(params, "to")?,
        limit: number(params, "limit", 0)?,
        format: params.parsed("format")?.unwrap_or_default(),
        keep_milliseconds: params.flag("keep_milliseconds")?,
        big_integers: big_integers(params)?,
        downsample: number(params, "downsample_to", 3)?.map(|to| Downsample {
            to,
            key: params.text("downsample_key").map(str::to_owned),
        }),
    };
    if query.since.is_some() && query.since_after.is_some() {
        return Err(ApiError::field(
            "since_after",
            "can't be given together with since",
        ));
    }
    Ok(query)
}

fn time(params: &Params, name: &str) -> Result<Option<Timestamp>, ApiError> {
    let read =
        |text: &str| Timestamp::parse(text).ok_or_else(|| ApiError::field(name, "is invalid"));
    params.text(name).map(read).transpose()
}

/// A number that is not below `least`; larger than any answer is as good as the largest.
fn number(params: &Params, name: &str, least: i64) -> Result<Option<usize>, ApiError> {
    let check = |number: i64| {
        if number < least {
            let text = format!("must be greater than or equal to {least}");
            return Err(ApiError::field(name, text));
        }
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    };
    params.parsed::<i64>(name)?.map(check).transpose()
}

fn big_integers(params: &Params) -> Result<Option<BigIntegers>, ApiError> {
    if params.flag("allow_bigintegers")? {
        return Ok(Some(BigIntegers::Numbers));
    }
    Ok(params
        .flag("allow_safe_bigintegers")?
        .then_some(BigIntegers::SafeNumbers))
}

impl FromStr for Format {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "structured" => Ok(Self::Structured),
            "table" => Ok(Self::Table),
            "disjoint_tables" => Ok(Self::DisjointTables),
            _ => Err(()),
        }
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        let with = |status, detail: &str| Self::new(status, format!("{detail}: {error}"));
        match error {
            WriteError::Read(error) => error.into(),
            WriteError::Store(error) => error.into(),
            WriteError::Value(error) => error.into(),
            WriteError::DeviceOwned => Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "Cannot write to device owned resource",
            ),
            WriteError::IncompletePath => with(StatusCode::METHOD_NOT_ALLOWED, "Cannot write"),
            WriteError::UnsetNotAllowed => Self::unprocessable("Unset not allowed"),
            WriteError::Unreachable(why) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("Cannot push to device: {why}"),
            ),
            WriteError::NotDelivered(_) | WriteError::DeliveryDelayed => {
                with(StatusCode::SERVICE_UNAVAILABLE, "Cannot push to device")
            }
            WriteError::Refused => Self::internal(&error),
        }
    }
}

impl From<ValueError> for ApiError {
    fn from(error: ValueError) -> Self {
        let detail = error.to_string();
        match error {
            ValueError::UnexpectedType { expected, .. } => Self::with_errors(
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({
                    "detail": format!("Unexpected value type: {detail}"),
                    "expected_type": expected,
                }),
            ),
            ValueError::UnexpectedKey { .. } => Self::new(
                StatusCode::BAD_REQUEST,
                format!("Unexpected object key: {detail}"),
            ),
            _ => Self::unprocessable(detail),
        }
    }
}
