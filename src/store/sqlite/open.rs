//! Opening the file: its mode, the settings of its connections, its schema.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool,
    migrate::Migrator,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::store::{StoreError, fault};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// How long a statement waits for another program's lock before it is told `busy`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that read.
const READERS_MAX: u32 = 4;
/// How long a reader waits for one of them.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes to which the log is cut after a checkpoint, should a long read have let it grow.
const LOG_BYTES_MAX: &str = "67108864";
/// Prepared statements of one connection.
const STATEMENTS_MAX: usize = 200;

/// Makes sure that the file is there and only for us; the log and its index take over its mode.
pub(super) fn prepare(file: &Path) -> Result<(), StoreError> {
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file);
    made.and_then(|_| fs::set_permissions(file, fs::Permissions::from_mode(0o600)))
        .map_err(|error| named(file, &error))
}

/// An I/O error with the path that it is about.
fn named(file: &Path, error: &io::Error) -> StoreError {
    let error = io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    StoreError::Unavailable(sqlx::Error::Io(error))
}

fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .statement_cache_capacity(STATEMENTS_MAX)
        .pragma("journal_size_limit", LOG_BYTES_MAX)
        .disable_statement_logging()
}

/// The connection that writes.
pub(super) async fn writer(file: &Path) -> Result<SqliteConnection, StoreError> {
    Ok(
        SqliteConnection::connect_with(&options(file).thread_name(|_| "store-writer".into()))
            .await?,
    )
}

/// The connections that read, and cannot write.
pub(super) async fn readers(file: &Path) -> Result<SqlitePool, StoreError> {
    let options = options(file)
        .pragma("query_only", "ON")
        .thread_name(|n| format!("store-reader-{n}"));
    let pool = SqlitePoolOptions::new()
        .max_connections(READERS_MAX)
        .acquire_timeout(READER_TIMEOUT)
        .connect_with(options);
    Ok(pool.await?)
}

/// Brings the schema up to date.
pub(super) async fn migrate(conn: &mut SqliteConnection) -> Result<(), StoreError> {
    MIGRATIONS
        .run_direct(None, conn, false)
        .await
        .map_err(|error| fault::of_migration(error, &MIGRATIONS))
}

/// Writes a consistent copy of the database `from` to the new file `to`.
pub(super) async fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    // made here, and empty, so that the copy is never readable by others
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)
        .map_err(|error| named(to, &error))?;
    let mut conn = SqliteConnection::connect_with(&options(from)).await?;
    let copied = sqlx::query("VACUUM INTO $1")
        .bind(to.to_string_lossy().into_owned())
        .execute(&mut conn)
        .await;
    conn.close().await?;
    copied?;
    fs::File::open(to)
        .and_then(|file| file.sync_all())
        .map_err(|error| named(to, &error))
}
