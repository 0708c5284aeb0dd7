//! The store in one SQLite file, the default.
//!
//! WAL with `synchronous=FULL`: what is answered is on the disk. One connection writes, owned by
//! the commit task; a small pool reads and cannot write. The statements that both databases
//! understand are written once, in `store/sql/`, a file per noun, and compiled here against SQLite's
//! types; what differs stands in this folder: how the file is opened (`open`), how the writing
//! connection is kept (`link`), and how many rows travel in one statement (`bulk`).
//!
//! A COMMIT that fails with an I/O error leaves the batch unanswered. Should the machine fail
//! before the next commit overwrites what had reached the log, the batch may turn up again at the
//! next start: a message that is then repeated is found by its receipt (QoS 2) or stored twice
//! (QoS 1), which is what these levels promise.

#![expect(
    clippy::duplicate_mod,
    reason = "the same statements against the types of two databases"
)]

mod bulk;
mod link;
mod open;

#[path = "../sql/audit.rs"]
mod audit;
#[path = "../sql/cas.rs"]
mod cas;
#[path = "../sql/changes.rs"]
mod changes;
#[path = "../sql/data.rs"]
mod data;
#[path = "../sql/devices.rs"]
mod devices;
#[path = "../sql/interfaces.rs"]
mod interfaces;
#[path = "../sql/outbox.rs"]
mod outbox;
#[path = "../sql/realms.rs"]
mod realms;
#[path = "../sql/registration.rs"]
mod registration;
#[path = "../sql/removal.rs"]
mod removal;
#[path = "../sql/reports.rs"]
mod reports;
#[path = "../sql/rows.rs"]
mod rows;
#[path = "../sql/store.rs"]
mod store;
#[path = "../sql/units.rs"]
mod units;
#[path = "../sql/writer.rs"]
mod writer;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use writer::Writer;

use super::StoreError;

type Conn = sqlx::SqliteConnection;
type Pool = sqlx::SqlitePool;
type Row = sqlx::sqlite::SqliteRow;
type SqlStore = SqliteStore;

/// How long the statements of a batch of units may take: an embedded database has no connection to
/// lose, and a slow disk is waited for.
const UNITS_TIMEOUT: Duration = Duration::MAX;

/// Of each path of an interface the newest sample; two look-ups in the primary key each.
const NEWEST_SAMPLES: &str = "SELECT series.path, sample.value_at, sample.received_at, sample.value \
    FROM device JOIN series ON series.device = device.id \
    JOIN interface_key ON interface_key.id = series.interface \
    JOIN sample ON sample.series = series.id AND (sample.value_at, sample.received_at) = \
    (SELECT newest.value_at, newest.received_at FROM sample AS newest \
    WHERE newest.series = series.id ORDER BY newest.value_at DESC, newest.received_at DESC LIMIT 1) \
    WHERE device.realm = $1 AND device.device_id = $2 \
    AND interface_key.name = $3 AND interface_key.major = $4 ORDER BY series.path";

/// The store in one SQLite file. Made by [`SqliteStore::open`].
#[derive(Debug)]
pub struct SqliteStore {
    file: PathBuf,
    pool: Pool,
    writer: Writer,
}

impl SqliteStore {
    /// Opens the database `file`, makes it (mode 0600) if it is not there, and brings its schema up
    /// to date.
    ///
    /// # Errors
    /// [`StoreError::SchemaTooNew`]; `Unavailable` when the file cannot be opened, is locked or the
    /// disk is full; `Database` when it is no database or damaged.
    pub async fn open(file: &Path) -> Result<Self, StoreError> {
        open::prepare(file)?;
        let mut conn = open::writer(file).await?;
        open::migrate(&mut conn).await?;
        let pool = open::readers(file).await?;
        let writer = Writer::start(link::Link::new(file, conn));
        Ok(Self {
            file: file.to_owned(),
            pool,
            writer,
        })
    }
}

/// Starts a transaction that may write: one that begins by reading would fail at its first write
/// if another program had written meanwhile, whatever the timeout.
async fn begin(conn: &mut Conn) -> Result<(), StoreError> {
    sqlx::query("BEGIN IMMEDIATE").execute(conn).await?;
    Ok(())
}

/// A consistent copy in one file.
async fn backup(store: &SqliteStore, file: &Path) -> Result<(), StoreError> {
    open::copy(&store.file, file).await
}

#[cfg(test)]
mod tests;
