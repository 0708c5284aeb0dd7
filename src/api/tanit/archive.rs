//! Backup and restore as streams of a tar archive.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::{
    api::{Api, body, error::ApiError},
    engine::{actor::Actor, backup::BackupError},
};

pub(super) async fn backup(
    State(api): State<Arc<Api>>,
    actor: Actor,
) -> Result<Response, ApiError> {
    let archive = api.backups.create(&actor).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"tanit-backup.tar\"",
        ),
    ];
    Ok((headers, Body::from_stream(archive)).into_response())
}

/// Takes an archive in and restarts the node with it: 202, and the node goes.
pub(super) async fn restore(
    State(api): State<Arc<Api>>,
    actor: Actor,
    archive: Body,
) -> Result<Response, ApiError> {
    let bytes = archive
        .into_data_stream()
        .map(|chunk| chunk.map_err(std::io::Error::other));
    let staged = api.backups.stage(bytes, &actor).await?;
    api.node
        .restart_with(staged)
        .map_err(ApiError::unprocessable)?;
    api.backups.handed_over();
    Ok(body::data(
        StatusCode::ACCEPTED,
        json!({ "restarting": true }),
    ))
}

impl From<BackupError> for ApiError {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Busy => Self::conflict(error.to_string()),
            BackupError::Refused(_) | BackupError::ForeignKey | BackupError::TooLarge(_) => {
                Self::unprocessable(error.to_string())
            }
            BackupError::Upload(_) => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
            BackupError::File(_, ref cause) if cause.kind() == std::io::ErrorKind::StorageFull => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            BackupError::Sessions(error) => error.into(),
            BackupError::Store(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}
