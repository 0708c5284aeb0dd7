//! What is particular to SQLite; what holds for every store is in `tests/store_contract.rs`.

use std::os::unix::fs::PermissionsExt as _;

use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use tempfile::TempDir;

use super::{SqliteStore, link::Link, open, writer::Writer};
use crate::{
    clock::Timestamp,
    store::{AuditEntry, Change, Store as _, StoreError},
};

fn mode(file: &std::path::Path) -> u32 {
    std::fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_file_and_its_log_are_readable_by_their_owner_alone() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tanit.db");
    let store = SqliteStore::open(&file).await.unwrap();
    for name in ["tanit.db", "tanit.db-wal", "tanit.db-shm"] {
        assert_eq!(mode(&folder.path().join(name)), 0o600, "{name}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_schema_of_a_newer_program_is_refused_with_both_versions() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tanit.db");
    SqliteStore::open(&file).await.unwrap().close().await;

    let mut conn = SqliteConnection::connect(file.to_str().unwrap())
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'from the future', TRUE, x'00', 0)",
    )
    .execute(&mut conn)
    .await
    .unwrap();
    conn.close().await.unwrap();

    let error = SqliteStore::open(&file).await.unwrap_err();
    assert!(
        matches!(error, StoreError::SchemaTooNew { found: 9999, known } if known < 9999),
        "{error}"
    );
}

#[tokio::test]
async fn a_file_that_is_no_database_is_told_from_one_that_is_busy() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tanit.db");
    std::fs::write(
        &file,
        "this is a letter, not a database, and long enough to be read as one",
    )
    .unwrap();
    let error = SqliteStore::open(&file).await.unwrap_err();
    assert!(matches!(error, StoreError::Database(_)), "{error:?}");
}

#[tokio::test]
async fn a_copy_is_a_database_that_opens_and_an_existing_file_is_not_overwritten() {
    let folder = TempDir::new().unwrap();
    let store = SqliteStore::open(&folder.path().join("tanit.db"))
        .await
        .unwrap();
    let copy = folder.path().join("copy.db");
    store.backup(&copy).await.unwrap();
    assert_eq!(mode(&copy), 0o600);
    assert!(store.backup(&copy).await.is_err());
    store.close().await;

    let copy = SqliteStore::open(&copy).await.unwrap();
    copy.ping().await.unwrap();
    copy.close().await;
}

/// The limit of pages stands for the disk: SQLite answers both with `SQLITE_FULL`.
#[tokio::test]
async fn fc_038_a_full_disk_is_not_available_and_passes_once_there_is_room() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tanit.db");
    open::prepare(&file).unwrap();
    let mut conn = open::writer(&file).await.unwrap();
    open::migrate(&mut conn).await.unwrap();
    let (pages,): (i64,) = sqlx::query_as("PRAGMA page_count")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    let limit = format!("PRAGMA max_page_count = {}", pages + 50);
    sqlx::query(AssertSqlSafe(limit))
        .execute(&mut conn)
        .await
        .unwrap();
    let writer = Writer::start(Link::new(&file, conn));
    let note = |size: usize| AuditEntry {
        at: Timestamp::default(),
        actor: "tanit".to_owned(),
        action: "test".to_owned(),
        object: "x".repeat(size),
    };

    let full = writer.apply(Change::Note, note(1_000_000)).await;
    assert!(matches!(full, Err(StoreError::Unavailable(_))), "{full:?}");
    writer.apply(Change::Note, note(1)).await.unwrap();
    let mut reader = open::writer(&file).await.unwrap();
    let (rows,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM audit")
        .fetch_one(&mut reader)
        .await
        .unwrap();
    assert_eq!(rows, 1);
    writer.close().await;
}

#[test]
fn both_databases_have_the_same_migrations() {
    let list = |database: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let mut names: Vec<_> = std::fs::read_dir(folder.join(database))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    assert!(!list("sqlite").is_empty());
    assert_eq!(list("sqlite"), list("postgres"));
}
