//! The writing connection: made with the node's lock, replaced when it is lost.

use std::{str::FromStr as _, time::Duration};

use sqlx::{
    ConnectOptions as _, Connection as _, PgConnection, migrate::Migrator,
    postgres::PgConnectOptions,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::store::{StoreError, attempt::Attempt, fault};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// How long making a connection may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a COMMIT may take before its outcome is asked for over another connection.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a start waits for the lock of a node that has just ended.
const LOCK_PATIENCE_AT_START: Duration = Duration::from_secs(5);
/// How long a new connection waits for the lock of the one that it replaces.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// First and longest pause between two attempts to learn what became of a COMMIT.
const DOUBT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Advisory lock of the node that writes ("tanit" and 1); locks are of one database.
const NODE_LOCK: i64 = 0x7461_6e69_7400_0001;

/// The options of all connections, from a URL.
pub(super) fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        let what = "a PostgreSQL URL begins with postgres://";
        return Err(StoreError::Database(sqlx::Error::Configuration(
            what.into(),
        )));
    }
    let options = PgConnectOptions::from_str(url)?
        .application_name("tanit")
        // a server that does not miss a dead client keeps its lock
        .options([
            ("tcp_keepalives_idle", "10"),
            ("tcp_keepalives_interval", "5"),
            ("tcp_keepalives_count", "3"),
            ("idle_in_transaction_session_timeout", "60s"),
        ])
        .disable_statement_logging();
    Ok(options)
}

/// Keeps the writing connection.
pub(super) struct Link {
    options: PgConnectOptions,
    conn: Option<PgConnection>,
    /// Number of the batch that was last to be committed.
    batch: i64,
}

/// A connection to write on.
pub(super) struct Connection<'a> {
    pub(super) conn: &'a mut PgConnection,
    /// Whether it was just made, so that nothing that is remembered is sure.
    pub(super) is_new: bool,
}

impl Link {
    /// Connects, and takes the lock.
    pub(super) async fn open(options: PgConnectOptions) -> Result<Self, StoreError> {
        let mut conn = connect(&options).await?;
        if conn
            .server_version_num()
            .is_some_and(|version| version < 140_000)
        {
            return Err(StoreError::NotOffered("this needs PostgreSQL 14 or newer"));
        }
        if !lock(&mut conn, LOCK_PATIENCE_AT_START).await? {
            return Err(StoreError::InUse);
        }
        Ok(Self {
            options,
            conn: Some(conn),
            batch: 0,
        })
    }

    /// Brings the schema up to date, under the migrations' own lock.
    pub(super) async fn migrate(&mut self) -> Result<(), StoreError> {
        let Connection { conn, .. } = self.connection().await?;
        let migrated = MIGRATIONS.run_direct(None, conn, false).await;
        migrated.map_err(|error| fault::of_migration(error, &MIGRATIONS))
    }

    /// The connection, made anew where there is none.
    pub(super) async fn connection(&mut self) -> Result<Connection<'_>, StoreError> {
        let is_new = self.conn.is_none();
        if is_new {
            // nothing of this can be about what is to be written
            let conn = reconnect(&self.options).await.map_err(|error| match error {
                StoreError::Database(error) => StoreError::Unavailable(error),
                error => error,
            });
            self.conn = Some(conn?);
        }
        let conn = self
            .conn
            .as_mut()
            .ok_or_else(|| StoreError::unavailable("no connection"))?;
        Ok(Connection { conn, is_new })
    }

    /// Marks and commits the transaction under way, whose outcome is `done`.
    pub(super) async fn commit<T>(&mut self, done: T) -> Result<Attempt<T>, StoreError> {
        self.batch = i64::from_ne_bytes(rand::random());
        let batch = self.batch;
        let Connection { conn, .. } = self.connection().await?;
        sqlx::query("UPDATE commit_marker SET batch = $1 WHERE lane = 0")
            .bind(batch)
            .execute(&mut *conn)
            .await?;
        match timeout(COMMIT_TIMEOUT, sqlx::raw_sql("COMMIT").execute(conn)).await {
            Ok(Ok(_)) => Ok(Attempt::Committed(done)),
            Ok(Err(error)) if !is_in_doubt(&error) => Err(error.into()),
            Ok(Err(_)) | Err(_) => {
                self.conn = None;
                Ok(Attempt::InDoubt(done))
            }
        }
    }

    /// Undoes the transaction under way after `error`; a connection that may be of no more use
    /// (lost, or to a server that stops or has become a standby) is given up.
    pub(super) async fn undo(&mut self, error: &StoreError) {
        let Some(mut conn) = self.conn.take() else {
            return;
        };
        let keeps = !matches!(error, StoreError::Unavailable(_));
        if keeps && sqlx::query("ROLLBACK").execute(&mut conn).await.is_ok() {
            self.conn = Some(conn);
        }
    }

    /// Whether the batch whose COMMIT was in doubt is committed. Asks until it knows: the lock is
    /// free only once the transaction of the lost connection has ended.
    ///
    /// # Errors
    /// When the store is closed before it knows.
    pub(super) async fn was_committed(
        &mut self,
        closing: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let (mut pause, pause_max) = DOUBT_PAUSE;
        loop {
            match self.last_batch().await {
                Ok(batch) => return Ok(batch == self.batch),
                Err(error) => {
                    self.conn = None;
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "waiting for the database, to learn whether it committed the last batch"
                    );
                }
            }
            tokio::select! {
                () = closing.cancelled() => {
                    return Err(StoreError::unavailable("closed while a COMMIT was in doubt"));
                }
                () = sleep(pause) => pause = (pause * 2).min(pause_max),
            }
        }
    }

    async fn last_batch(&mut self) -> Result<i64, StoreError> {
        let Connection { conn, .. } = self.connection().await?;
        let (batch,) = sqlx::query_as("SELECT batch FROM commit_marker WHERE lane = 0")
            .fetch_one(conn)
            .await?;
        Ok(batch)
    }

    pub(super) async fn close(self) {
        if let Some(conn) = self.conn {
            // the server frees the lock when it notices, at the latest
            let _ = conn.close().await;
        }
    }
}

/// Whether a COMMIT that failed so may have happened: it has not when the server says so.
fn is_in_doubt(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else {
        return true;
    };
    error
        .code()
        .is_none_or(|code| code == "40003" || code.starts_with("57") || code.starts_with("08"))
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let connecting = timeout(CONNECT_TIMEOUT, PgConnection::connect_with(options));
    let mut conn = connecting.await.map_err(StoreError::unavailable)??;
    // what is answered is on the disk, whatever the server's default
    sqlx::query(
        "SELECT set_config('synchronous_commit', 'on', FALSE) \
         WHERE current_setting('synchronous_commit') = 'off'",
    )
    .execute(&mut conn)
    .await?;
    Ok(conn)
}

async fn reconnect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let mut conn = connect(options).await?;
    if lock(&mut conn, LOCK_PATIENCE).await? {
        tracing::info!("connected to the database again");
        return Ok(conn);
    }
    Err(StoreError::unavailable(
        "the node's lock is taken: the lost connection has not ended yet, or another node is on it",
    ))
}

/// Takes the node's lock; `false` when another connection holds it.
async fn lock(conn: &mut PgConnection, patience: Duration) -> Result<bool, StoreError> {
    let attempts = patience.as_millis() / LOCK_PAUSE.as_millis();
    for _ in 0..=attempts {
        let (taken,): (bool,) = sqlx::query_as("SELECT pg_try_advisory_lock($1)")
            .bind(NODE_LOCK)
            .fetch_one(&mut *conn)
            .await?;
        if taken {
            return Ok(true);
        }
        sleep(LOCK_PAUSE).await;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_is_none_is_an_error_and_not_a_panic() {
        for url in [
            "",
            "postgres:/x y",
            "mysql://host/db",
            "postgres://host:notaport/db",
        ] {
            assert!(options(url).is_err(), "{url:?} was taken for a URL");
        }
    }

    #[test]
    fn a_lost_connection_leaves_a_commit_in_doubt() {
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(is_in_doubt(&sqlx::Error::Io(lost)));
    }
}
