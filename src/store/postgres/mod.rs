//! The store in a PostgreSQL database (14 or newer).
//!
//! One connection writes, owned by the commit task; a pool reads. The statements that both
//! databases understand are written once, in `store/sql/`, a file per noun, and compiled here
//! against PostgreSQL's types; what differs stands in this folder: how the writing connection is
//! made, kept and replaced (`link`), and how many rows travel in one statement (`bulk`).
//!
//! **One node.** The writing connection holds an advisory lock for as long as it lives, so that
//! two nodes never share a database unknowingly: each would trust its own memory of it. A pooler
//! that hands a connection to several clients (transaction pooling) cannot stand in between.
//!
//! **A COMMIT in doubt.** When the connection is lost while COMMIT is under way, only the server
//! knows whether it happened. Each transaction therefore writes its batch's random number into
//! `commit_marker`. The commit task connects anew, takes the lock (which the old connection holds
//! until its transaction has ended one way or the other), and reads the marker: the number is
//! there, and the batch is answered; or it is not, and the batch is done again. It answers nothing
//! before it knows, so no caller repeats a batch that was stored.

#![expect(
    clippy::duplicate_mod,
    reason = "the same statements against the types of two databases"
)]

mod bulk;
mod link;

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

use std::{path::Path, time::Duration};

use sqlx::postgres::PgPoolOptions;
use writer::Writer;

use super::StoreError;

type Conn = sqlx::PgConnection;
type Pool = sqlx::PgPool;
type Row = sqlx::postgres::PgRow;
type SqlStore = PostgresStore;

/// Most connections that read.
const READERS_MAX: u32 = 8;

/// How long the statements of a batch of units may take, before their connection is given up.
const UNITS_TIMEOUT: Duration = Duration::from_mins(1);

/// Of each path of an interface the newest sample; one look-up in the primary key each.
const NEWEST_SAMPLES: &str = "SELECT series.path, newest.value_at, newest.received_at, newest.value \
    FROM device JOIN series ON series.device = device.id \
    JOIN interface_key ON interface_key.id = series.interface \
    CROSS JOIN LATERAL (SELECT value_at, received_at, value FROM sample \
    WHERE sample.series = series.id ORDER BY value_at DESC, received_at DESC LIMIT 1) AS newest \
    WHERE device.realm = $1 AND device.device_id = $2 \
    AND interface_key.name = $3 AND interface_key.major = $4 ORDER BY series.path";

/// The store in a PostgreSQL database. Made by [`PostgresStore::connect`].
#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    writer: Writer,
}

impl PostgresStore {
    /// Connects to the database of `url` (`postgres://user:password@host/database`) and brings its
    /// schema up to date.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another node is on it; [`StoreError::SchemaTooNew`];
    /// `Unavailable` when the server cannot be reached or is starting, and trying again may help;
    /// `Database` for a URL that is none, a wrong password or a database that does not exist.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let options = link::options(url)?;
        let mut link = link::Link::open(options.clone()).await?;
        link.migrate().await?;
        let pool = PgPoolOptions::new()
            .max_connections(READERS_MAX)
            .acquire_timeout(link::CONNECT_TIMEOUT)
            .connect_lazy_with(options.options([("default_transaction_read_only", "on")]));
        Ok(Self {
            pool,
            writer: Writer::start(link),
        })
    }
}

async fn begin(conn: &mut Conn) -> Result<(), StoreError> {
    sqlx::query("BEGIN").execute(conn).await?;
    Ok(())
}

/// Not offered: PostgreSQL has its own tools.
async fn backup(_store: &PostgresStore, _file: &Path) -> Result<(), StoreError> {
    Err(StoreError::NotOffered(
        "a copy of a PostgreSQL database is made with pg_dump",
    ))
}
