//! What a caller is told when a request is not done: Astarte's error bodies.
//!
//! Every refusal of the control API is an [`ApiError`], and every body is an object under `errors`:
//! clients decode it as one and would fail on a bare string. Causes that are nobody's business
//! outside are logged here, once, and answered in general words.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::store::{StoreError, Subject};

/// How long a client is asked to wait when the database cannot be asked.
const STORE_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A refusal: status, body and, for some, when to try again.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    errors: Value,
    retry_after: Option<Duration>,
}

/// Texts by field of a request, for 422.
pub type FieldErrors = BTreeMap<String, Vec<String>>;

impl ApiError {
    /// `{"errors":{"detail": text}}` under this status.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            errors: json!({ "detail": detail.into() }),
            retry_after: None,
        }
    }

    /// An `errors` object of any shape under this status.
    #[must_use]
    pub const fn with_errors(status: StatusCode, errors: Value) -> Self {
        Self {
            status,
            errors,
            retry_after: None,
        }
    }

    /// 422 with texts by field.
    #[must_use]
    pub fn fields(errors: &FieldErrors) -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            errors: json!(errors),
            retry_after: None,
        }
    }

    /// 422 with one text for one field.
    #[must_use]
    pub fn field(name: &str, text: impl Into<String>) -> Self {
        Self::fields(&FieldErrors::from([(name.to_owned(), vec![text.into()])]))
    }

    /// 400 `Bad request`: malformed JSON, no `data`.
    #[must_use]
    pub fn bad_request() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad request")
    }

    /// 404 with this text.
    #[must_use]
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 409 with this text.
    #[must_use]
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// 422 with a text that concerns no single field.
    #[must_use]
    pub fn unprocessable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// 401 for a request that carries no token where one is needed.
    #[must_use]
    pub fn missing_token() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Missing authorization token")
    }

    /// 401 for a token that is malformed, badly signed, expired or of an unknown realm.
    #[must_use]
    pub fn invalid_token() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Invalid JWT token")
    }

    /// 403 `Forbidden`: unknown realm, wrong secret, inhibited device.
    #[must_use]
    pub fn forbidden() -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden")
    }

    /// 503: nothing was done, and trying again after `retry_after` may help.
    #[must_use]
    pub fn unavailable(detail: impl Into<String>, retry_after: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(retry_after)
    }

    /// 500, its cause logged here.
    #[must_use]
    pub fn internal(cause: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = cause, "a request failed through our fault");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
    }

    /// The same, with a `Retry-After` in whole seconds, at least one.
    #[must_use]
    pub const fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Its status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::NotFound(subject) => Self::not_found(match subject {
                Subject::Realm => "Realm not found",
                Subject::Ca => "CA not found",
                Subject::Device => "Device not found",
                Subject::Interface => "Interface not found",
                Subject::Alias => "Alias not found",
            }),
            StoreError::Conflict(subject) => Self::conflict(match subject {
                Subject::Realm => "Realm already exists",
                Subject::Ca => "CA already exists",
                Subject::Device => "Device already exists",
                Subject::Interface => "Interface already exists",
                Subject::Alias => "Alias already in use",
            }),
            StoreError::LimitReached => Self::unprocessable("Device registration limit reached"),
            StoreError::Unavailable(cause) => {
                tracing::warn!(
                    error = cause as &dyn std::error::Error,
                    "the database is away"
                );
                Self::unavailable("The database is not available", STORE_RETRY_AFTER)
            }
            StoreError::NotOffered(what) => Self::new(StatusCode::NOT_IMPLEMENTED, *what),
            _ => Self::internal(&error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(json!({ "errors": self.errors }));
        let mut response = (self.status, body).into_response();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            let value = HeaderValue::from(seconds.max(1));
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }
}
