//! Nothing is acknowledged before it is durable; what cannot be stored waits, and is not lost.

use std::time::Duration;

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::harness::{
    device::{bson, pubrel},
    product::Tanit,
};

/// Holds SQLite's write lock, as another process might.
async fn lock(tanit: &Tanit) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(tanit.data_dir().join("tanit.db"))
        .busy_timeout(Duration::from_secs(10));
    let mut connection = SqliteConnection::connect_with(&options)
        .await
        .expect("the database opens");
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut connection)
        .await
        .expect("the lock");
    connection
}

#[tokio::test]
async fn fc_034_no_puback_while_the_store_cannot_commit() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, "t.Dev:1:0").await;

    let lock = lock(&tanit).await;
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push((
            4,
            connection.send_publish("t.Dev/int", &bson(number), 1).await,
        ));
        ids.push((
            5,
            connection
                .send_publish("t.Dev/long", &bson(number), 2)
                .await,
        ));
    }
    // all hundred are in the window: the ping behind them is answered, and they are not
    connection.expect_only_pong().await;
    assert!(
        connection.silent_for(Duration::from_secs(2)).await,
        "acknowledged without a commit"
    );
    connection.expect_only_pong().await;
    let health = reqwest::get(format!("http://{}/health", tanit.http))
        .await
        .expect("an answer");
    assert_eq!(
        health.status(),
        503,
        "a store that cannot commit is not healthy"
    );
    lock.close().await.expect("the lock goes");

    for (kind, id) in &ids {
        let packet = connection.next().await.expect("an acknowledgement");
        assert_eq!(
            (packet.kind(), packet.id()),
            (*kind, *id),
            "in the order of the publishes"
        );
    }
    for (_, id) in ids.iter().filter(|(kind, _)| *kind == 5) {
        connection.send(&pubrel(*id)).await;
        assert_eq!(connection.expect(7).await.id(), *id);
    }
    for path in ["/int", "/long"] {
        assert_eq!(
            tanit.data(&device, "t.Dev", path).await.len(),
            50,
            "{path}, each once"
        );
    }
}

/// A page cache outlives kill -9, so what fsync was asked for is read from strace.
#[tokio::test]
async fn an_fdatasync_lies_between_a_publish_and_its_puback() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let trace = directory.path().join("trace");
    let trace_file = trace.display().to_string();
    let calls = "trace=fdatasync,fsync,write,writev,sendto,sendmsg,read,recvfrom";
    let mut tanit = Tanit::start_under("", &["strace", "-f", "-e", calls, "-o", &trace_file]).await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, "t.Dev:1:0").await;
    let syncs = |text: &str| text.lines().filter(|line| is_sync(line)).count();
    for number in 0..5 {
        let before = syncs(&std::fs::read_to_string(&trace).expect("a trace"));
        connection.publish("t.Dev/int", &bson(number)).await;
        let after = syncs(&std::fs::read_to_string(&trace).expect("a trace"));
        assert!(after > before, "a PUBACK came without a sync before it");
    }
    connection.disconnect().await;
    tanit.terminate().await;
}

fn is_sync(line: &str) -> bool {
    (line.contains("fdatasync(") || line.contains("fsync(")) && !line.contains("resumed")
}
