//! The writing connection, opened again when it is of no more use.

use std::path::{Path, PathBuf};

use sqlx::{Connection as _, SqliteConnection};
use tokio_util::sync::CancellationToken;

use super::open;
use crate::store::{StoreError, attempt::Attempt};

/// Keeps the writing connection.
pub(super) struct Link {
    file: PathBuf,
    conn: Option<SqliteConnection>,
}

/// A connection to write on.
pub(super) struct Connection<'a> {
    pub(super) conn: &'a mut SqliteConnection,
    /// Whether it was just made, so that nothing that is remembered is sure.
    pub(super) is_new: bool,
}

impl Link {
    pub(super) fn new(file: &Path, conn: SqliteConnection) -> Self {
        Self {
            file: file.to_owned(),
            conn: Some(conn),
        }
    }

    /// The connection, made anew where there is none.
    pub(super) async fn connection(&mut self) -> Result<Connection<'_>, StoreError> {
        let is_new = self.conn.is_none();
        if is_new {
            self.conn = Some(open::writer(&self.file).await?);
        }
        let conn = self
            .conn
            .as_mut()
            .ok_or_else(|| StoreError::unavailable("no connection"))?;
        Ok(Connection { conn, is_new })
    }

    /// Commits the transaction under way, whose outcome is `done`.
    pub(super) async fn commit<T>(&mut self, done: T) -> Result<Attempt<T>, StoreError> {
        let Connection { conn, .. } = self.connection().await?;
        sqlx::query("COMMIT").execute(conn).await?;
        Ok(Attempt::Committed(done))
    }

    /// Undoes the transaction under way after `error`. SQLite may have done so by itself (disk
    /// full, I/O error); whatever state it is in then, a new connection is in a known one.
    pub(super) async fn undo(&mut self, _error: &StoreError) {
        let Some(mut conn) = self.conn.take() else {
            return;
        };
        if sqlx::query("ROLLBACK").execute(&mut conn).await.is_ok() {
            self.conn = Some(conn);
        } else {
            // what it had open is closed with it
            let _ = conn.close().await;
        }
    }

    /// Never asked: a COMMIT of an embedded database is not in doubt.
    pub(super) async fn was_committed(
        &mut self,
        _closing: &CancellationToken,
    ) -> Result<bool, StoreError> {
        self.connection().await.map(|_| false)
    }

    pub(super) async fn close(self) {
        if let Some(conn) = self.conn {
            // the last one to close checkpoints; nothing is lost if it cannot
            let _ = conn.close().await;
        }
    }
}
