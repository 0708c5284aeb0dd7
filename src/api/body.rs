//! Requests taken apart and answers put together: bodies, query parameters, path parameters.
//!
//! The extractors refuse in Astarte's words instead of axum's. Bodies are read whole (the server's
//! limit holds) and answers are written whole, so that each carries a Content-Length and is compact
//! JSON: small clients read neither chunks nor white space.

use std::{collections::HashMap, fmt::Display, str::FromStr};

use axum::{
    Json,
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::error::{ApiError, FieldErrors};

/// `{"data": body}` with this status.
pub fn data(status: StatusCode, body: impl Serialize) -> Response {
    match serde_json::to_value(body) {
        Ok(body) => (status, Json(json!({ "data": body }))).into_response(),
        Err(error) => ApiError::internal(&error).into_response(),
    }
}

/// `{"data": body}` with 200.
pub fn ok(body: impl Serialize) -> Response {
    data(StatusCode::OK, body)
}

/// 204 without a body.
#[must_use]
pub fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// The value under `data` of a JSON body. Malformed JSON or no `data`: 400.
#[derive(Debug)]
pub struct Data(pub Value);

impl<S: Send + Sync> FromRequest<S> for Data {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = match Bytes::from_request(request, state).await {
            Ok(bytes) => bytes,
            Err(rejection) => {
                let status = rejection.into_response().status();
                return Err(if status == StatusCode::PAYLOAD_TOO_LARGE {
                    ApiError::new(status, "Request body too large")
                } else {
                    ApiError::bad_request()
                });
            }
        };
        Self::read(&bytes)
    }
}

impl Data {
    fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let Ok(Value::Object(mut body)) = serde_json::from_slice::<Value>(bytes) else {
            return Err(ApiError::bad_request());
        };
        body.remove("data")
            .map(Self)
            .ok_or_else(ApiError::bad_request)
    }
}

/// The object under `data`, read field by field; what is wrong is collected for one 422.
#[derive(Debug)]
pub struct Fields {
    object: Map<String, Value>,
    errors: FieldErrors,
}

impl Fields {
    /// From a body that may be left out altogether.
    ///
    /// # Errors
    /// 400 as [`Data`], for a body that is there.
    pub fn optional(body: &Bytes) -> Result<Self, ApiError> {
        if body.is_empty() {
            Ok(Self::of(Map::new()))
        } else {
            Data::read(body)?.try_into()
        }
    }

    /// For an object that is read already.
    #[must_use]
    pub fn of(object: Map<String, Value>) -> Self {
        Self {
            object,
            errors: FieldErrors::new(),
        }
    }

    /// Notes what is wrong with a field.
    pub fn refuse(&mut self, name: &str, text: impl Into<String>) {
        self.errors
            .entry(name.to_owned())
            .or_default()
            .push(text.into());
    }

    /// Whether the field is there, be it null.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    /// A field as it is; null counts as absent.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// An optional text; another type is refused.
    pub fn text(&mut self, name: &str) -> Option<String> {
        match self.value(name) {
            None => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                self.refuse(name, "is invalid");
                None
            }
        }
    }

    /// A text that has to be there and not empty.
    pub fn required_text(&mut self, name: &str) -> Option<String> {
        let absent = self
            .value(name)
            .is_none_or(|value| value.as_str() == Some(""));
        if absent {
            self.refuse(name, "can't be blank");
            return None;
        }
        self.text(name)
    }

    /// An optional text, parsed; what does not parse is refused.
    pub fn parsed<T: FromStr<Err: Display>>(&mut self, name: &str) -> Option<T> {
        let text = self.text(name)?;
        self.parse(name, &text)
    }

    /// A text that has to be there, parsed.
    pub fn required_parsed<T: FromStr<Err: Display>>(&mut self, name: &str) -> Option<T> {
        let text = self.required_text(name)?;
        self.parse(name, &text)
    }

    fn parse<T: FromStr<Err: Display>>(&mut self, name: &str, text: &str) -> Option<T> {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(name, error.to_string());
                None
            }
        }
    }

    /// An optional whole number that is not negative.
    pub fn number(&mut self, name: &str) -> Option<u64> {
        let value = self.value(name)?.clone();
        if let Some(number) = value.as_u64() {
            return Some(number);
        }
        let negative = value.as_i64().is_some();
        self.refuse(
            name,
            if negative {
                "must be greater than or equal to 0"
            } else {
                "is invalid"
            },
        );
        None
    }

    /// An optional boolean.
    pub fn flag(&mut self, name: &str) -> Option<bool> {
        match self.value(name) {
            None => None,
            Some(Value::Bool(flag)) => Some(*flag),
            Some(_) => {
                self.refuse(name, "is invalid");
                None
            }
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// 422 with everything that was refused.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(ApiError::fields(&self.errors))
        }
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        Data::from_request(request, state).await?.try_into()
    }
}

impl TryFrom<Data> for Fields {
    type Error = ApiError;

    fn try_from(Data(value): Data) -> Result<Self, ApiError> {
        match value {
            Value::Object(object) => Ok(Self::of(object)),
            _ => Err(ApiError::bad_request()),
        }
    }
}

/// Query parameters by name; of a repeated one the last counts.
#[derive(Debug)]
pub struct Params(HashMap<String, String>);

impl Params {
    /// A parameter as it is.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether a parameter is `true`; absent or `false` it is not.
    ///
    /// # Errors
    /// 422 for any other text.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        Ok(self.parsed(name)?.unwrap_or(false))
    }

    /// A parameter, parsed.
    ///
    /// # Errors
    /// 422 when it does not parse.
    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.text(name)
            .map(|text| {
                text.parse()
                    .map_err(|_| ApiError::field(name, "is invalid"))
            })
            .transpose()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Query::<HashMap<String, String>>::try_from_uri(&parts.uri)
            .map(|Query(params)| Self(params))
            .map_err(|_| ApiError::bad_request())
    }
}

/// Path parameters, percent-decoded; those that cannot be decoded: 400.
#[derive(Debug)]
pub struct Segments<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Path::<T>::from_request_parts(parts, state)
            .await
            .map(|Path(segments)| Self(segments))
            .map_err(|_| ApiError::bad_request())
    }
}
