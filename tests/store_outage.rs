//! The databases while they cannot do anything, and after: nothing is lost, nothing is stored
//! twice, and nobody has to start anything again.

#![expect(
    clippy::unwrap_used,
    reason = "what a test stands on is there, or it fails"
)]

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tanit::{
    clock::Timestamp,
    identity::{DeviceId, Identity},
    interface::InterfaceKey,
    payload::Value,
    store::{
        AuditEntry, CaRow, Change, Committed, Effect, RealmRow, SampleQuery, SecretHash, Store,
        StoreError, Unit, postgres::PostgresStore, sqlite::SqliteStore,
    },
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};
use tokio_util::task::TaskTracker;

use crate::harness::postgres::{self, Cluster};

/// Longest time that a test waits for a store to recover.
const PATIENCE: Duration = Duration::from_secs(30);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_700_006_400 + seconds) * 1_000_000)
}

fn interface() -> InterfaceKey {
    InterfaceKey {
        name: "org.example.Sensor".into(),
        major: 1,
    }
}

fn sample(identity: &Identity, value: i32) -> Unit {
    let stamp = at(value.into());
    let effect = Effect::AppendSample {
        interface: interface(),
        path: "/a".into(),
        value: Value::Integer(value),
        value_at: stamp,
        received_at: stamp,
        expires_at: None,
    };
    Unit {
        identity: identity.clone(),
        receipt: None,
        effects: vec![effect],
        counted: None,
    }
}

/// Makes the realm `acme` with one device.
async fn furnish(store: &dyn Store) -> Identity {
    let audit = || AuditEntry {
        at: at(0),
        actor: "tanit".to_owned(),
        action: "test".to_owned(),
        object: "acme".to_owned(),
    };
    let realm = RealmRow {
        name: "acme".parse().unwrap(),
        jwt_public_key_pem: "PUBLIC".to_owned(),
        jwt_private_key_sealed: None,
        device_registration_limit: None,
        datastream_maximum_storage_retention: 0,
        created_at: at(0),
    };
    let ca = CaRow {
        realm: realm.name.clone(),
        fingerprint: "00".to_owned(),
        certificate_pem: "PEM".to_owned(),
        key_sealed: None,
        issuing: true,
        added_at: at(0),
    };
    let identity = Identity::new(realm.name.clone(), DeviceId::from_bytes([1; 16]));
    store
        .apply(Change::CreateRealm(realm, ca), audit())
        .await
        .unwrap();
    let register = Change::RegisterDevice {
        identity: identity.clone(),
        secret: SecretHash::Hmac([7; 32]),
        introspection: None,
        at: at(1),
    };
    store.apply(register, audit()).await.unwrap();
    identity
}

async fn stored(store: &dyn Store, identity: &Identity) -> Vec<i32> {
    let query = SampleQuery {
        since: None,
        since_after: None,
        to: None,
        limit: 1000,
        newest_first: false,
    };
    let samples = store
        .samples(identity, &interface(), "/a", &query)
        .await
        .unwrap();
    samples
        .into_iter()
        .map(|sample| match sample.value {
            Value::Integer(value) => value,
            other => panic!("{other:?} was never stored"),
        })
        .collect()
}

/// Commits as the engine does: again and again while the database is not available.
async fn persist(store: &dyn Store, unit: Unit) -> Vec<Committed> {
    let committed = async {
        loop {
            match store.commit(vec![unit.clone()]).await {
                Ok(outcomes) => return outcomes,
                Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error:?} is not for trying again"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, committed)
        .await
        .expect("the store recovers")
}

async fn sqlite() -> (TempDir, PathBuf, SqliteStore) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tanit.db");
    let store = SqliteStore::open(&file).await.unwrap();
    (folder, file, store)
}

#[tokio::test]
async fn fc_034_a_locked_sqlite_file_commits_nothing_and_all_after_it_is_free() {
    let (_folder, file, store) = sqlite().await;
    let identity = furnish(&store).await;
    let mut other = SqliteConnection::connect(file.to_str().unwrap())
        .await
        .unwrap();
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();

    let ping = store.ping().await;
    assert!(matches!(ping, Err(StoreError::Unavailable(_))), "{ping:?}");
    let refused = store.commit(vec![sample(&identity, 1)]).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(
        stored(&store, &identity).await.is_empty(),
        "reading goes on meanwhile"
    );

    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(
        store.commit(vec![sample(&identity, 1)]).await.unwrap(),
        [Committed::Done]
    );
    assert_eq!(stored(&store, &identity).await, [1]);
}

#[tokio::test]
async fn fc_036_a_backup_and_a_writer_elsewhere_delay_a_commit_and_do_not_fail_it() {
    let (folder, file, store) = sqlite().await;
    let identity = furnish(&store).await;
    let mut other = SqliteConnection::connect(file.to_str().unwrap())
        .await
        .unwrap();
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();

    let commit = store.commit((0..500).map(|n| sample(&identity, n)).collect());
    let copy = folder.path().join("copy.db");
    let free = async {
        store.backup(&copy).await.unwrap();
        sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    };
    let (committed, ()) = tokio::join!(commit, free);
    assert!(
        committed
            .unwrap()
            .iter()
            .all(|outcome| *outcome == Committed::Done)
    );
    assert_eq!(stored(&store, &identity).await.len(), 500);
    assert!(copy.is_file());
}

#[tokio::test]
async fn what_is_answered_is_there_after_opening_again_and_waiting_calls_are_finished_by_close() {
    let (_folder, file, store) = sqlite().await;
    let identity = furnish(&store).await;
    let commits = (0..50).map(|n| store.commit(vec![sample(&identity, n)]));
    let (committed, ()) = tokio::join!(futures_util::future::join_all(commits), store.close());
    let answered = committed.iter().filter(|outcome| outcome.is_ok()).count();

    let store = SqliteStore::open(&file).await.unwrap();
    assert_eq!(stored(&store, &identity).await.len(), answered);
}

#[tokio::test]
async fn a_terminated_connection_is_replaced_and_every_value_is_stored_once() {
    let Some(cluster) = postgres::shared() else {
        return;
    };
    let url = cluster.database().await;
    let store = PostgresStore::connect(&url).await.unwrap();
    let identity = furnish(&store).await;
    let mut operator = PgConnection::connect(&url).await.unwrap();
    for n in 0..10 {
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .execute(&mut operator)
        .await
        .unwrap();
        assert_eq!(
            persist(&store, sample(&identity, n)).await,
            [Committed::Done]
        );
    }
    assert_eq!(stored(&store, &identity).await, (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn fc_034_a_stopped_postgresql_commits_nothing_and_all_after_it_is_back() {
    let Some(cluster) = Cluster::start_own() else {
        return;
    };
    let url = cluster.database().await;
    let store = PostgresStore::connect(&url).await.unwrap();
    let identity = furnish(&store).await;
    cluster.stop();
    let refused = store.commit(vec![sample(&identity, 1)]).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(matches!(
        store.ping().await,
        Err(StoreError::Unavailable(_))
    ));
    cluster.start();
    assert_eq!(
        persist(&store, sample(&identity, 1)).await,
        [Committed::Done]
    );
    assert_eq!(stored(&store, &identity).await, [1]);
    store.ping().await.unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_not_available() {
    let folder = TempDir::new().unwrap();
    let error = PostgresStore::connect(&postgres::url(folder.path(), "none"))
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_second_node_on_the_same_database_is_refused_until_the_first_has_ended() {
    let Some(cluster) = postgres::shared() else {
        return;
    };
    let url = cluster.database().await;
    let first = PostgresStore::connect(&url).await.unwrap();
    let second = PostgresStore::connect(&url).await.unwrap_err();
    assert!(matches!(second, StoreError::InUse), "{second:?}");
    assert!(
        second.to_string().contains("another tanit node"),
        "{second}"
    );
    first.close().await;
    PostgresStore::connect(&url).await.unwrap().close().await;
}

#[tokio::test]
async fn a_postgresql_schema_of_a_newer_program_is_refused() {
    let Some(cluster) = postgres::shared() else {
        return;
    };
    let url = cluster.database().await;
    PostgresStore::connect(&url).await.unwrap().close().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'from the future', TRUE, '', 0)",
    )
    .execute(&mut conn)
    .await
    .unwrap();
    let error = PostgresStore::connect(&url).await.unwrap_err();
    assert!(
        matches!(error, StoreError::SchemaTooNew { found: 9999, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_out_and_not_repeated() {
    commit_in_doubt(LOSE_ANSWER).await;
}

#[tokio::test]
async fn a_commit_that_never_arrived_is_found_out_and_done_again() {
    commit_in_doubt(LOSE_COMMIT).await;
}

/// Loses the connection at a COMMIT; the caller is answered once, and the value is there once.
async fn commit_in_doubt(how: u8) {
    let Some(cluster) = postgres::shared() else {
        return;
    };
    let url = cluster.database().await;
    let wire = Wire::to(cluster.socket_folder());
    let url = postgres::url(wire.folder.path(), database_name(&url));
    let store = PostgresStore::connect(&url).await.unwrap();
    let identity = furnish(&store).await;

    for n in 0..5 {
        wire.mode.store(how, Ordering::SeqCst);
        let commit = store.commit(vec![sample(&identity, n)]);
        let outcomes = tokio::time::timeout(PATIENCE, commit)
            .await
            .expect("an answer")
            .unwrap();
        assert_eq!(outcomes, [Committed::Done]);
        assert_eq!(
            wire.mode.load(Ordering::SeqCst),
            PASS,
            "the connection was cut"
        );
    }
    assert_eq!(stored(&store, &identity).await, (0..5).collect::<Vec<_>>());
}

fn database_name(url: &str) -> &str {
    let (_, rest) = url.split_once("localhost/").unwrap();
    rest.split_once('?').unwrap().0
}

const PASS: u8 = 0;
/// The next COMMIT reaches the server, its answer does not come back.
const LOSE_ANSWER: u8 = 1;
/// The next COMMIT does not reach the server.
const LOSE_COMMIT: u8 = 2;

/// A socket that leads to the server, and can be cut at a COMMIT.
struct Wire {
    folder: TempDir,
    mode: Arc<AtomicU8>,
}

impl Wire {
    fn to(server: &Path) -> Self {
        const SOCKET: &str = ".s.PGSQL.5432";
        let folder = TempDir::new().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let server = server.join(SOCKET);
        let mode = Arc::new(AtomicU8::new(PASS));
        let tasks = TaskTracker::new();
        let wire = Self {
            folder,
            mode: Arc::clone(&mode),
        };
        tasks.clone().spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server)
                    .await
                    .expect("the server listens");
                tasks.spawn(carry(client, server, Arc::clone(&mode)));
            }
        });
        wire
    }
}

async fn carry(mut client: UnixStream, mut server: UnixStream, mode: Arc<AtomicU8>) {
    let (mut from_client, mut from_server) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(count @ 1..) = read else { return };
                let bytes = &from_client[..count];
                let is_commit = bytes.windows(7).any(|window| window == b"COMMIT\0");
                let how = if is_commit { mode.swap(PASS, Ordering::SeqCst) } else { PASS };
                if how == LOSE_COMMIT || server.write_all(bytes).await.is_err() {
                    return;
                }
                if how == LOSE_ANSWER {
                    let _ = server.read(&mut from_server).await;
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&from_server[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
