//! What goes wrong at the worst moment: a database that takes nothing, a node that is told to stop.

#![expect(
    clippy::unwrap_used,
    reason = "what a test stands on is there, or it fails"
)]

use std::time::Duration;

use sqlx::{Connection as _, SqliteConnection};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

use crate::harness::{
    device::{bson, connect},
    product::Tanit,
};

/// Takes the database's one place to write, until it is dropped.
async fn lock_database(tanit: &Tanit) -> SqliteConnection {
    let file = tanit.data_dir().join("tanit.db");
    let url = format!("sqlite://{}", file.display());
    let mut holder = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut holder)
        .await
        .unwrap();
    holder
}

fn open_files(tanit: &Tanit) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", tanit.pid()))
        .unwrap()
        .count()
}

async fn until_it_stops(tanit: &Tanit) {
    while !tanit.log().contains("stopping") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_device_that_comes_back_again_and_again_while_the_database_is_away_piles_no_sockets_up() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (first, _) = device.connect(&tanit).await;
    let before = open_files(&tanit);
    let holder = lock_database(&tanit).await;
    for _ in 0..80 {
        let mut again = device.open(&tanit).await;
        again.send(&connect(&device.base(), false, 60)).await;
        again.cut();
    }
    // what may be open beside it: its older connection, which cannot be written down as gone, the
    // newest that waits for it, and more readers of the database
    let closed = timeout(Duration::from_secs(20), async {
        while open_files(&tanit) > before + 30 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let closed = closed.await.is_ok();
    assert!(closed, "{before} files before, {} now", open_files(&tanit));
    holder.close().await.unwrap();
    first.cut();
    let (mut back, present) = device.connect(&tanit).await;
    assert!(present);
    back.declare("t.Dev:1:0").await;
}

#[tokio::test]
async fn a_second_signal_ends_at_once_while_the_database_is_away() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Dev:1:0").await;
    let holder = lock_database(&tanit).await;
    connection.send_publish("t.Dev/int", &bson(1), 1).await;
    connection.expect_only_pong().await;
    tanit.signal(rustix::process::Signal::TERM);
    until_it_stops(&tanit).await;
    let status = timeout(Duration::from_secs(5), tanit.terminate())
        .await
        .expect("it ends at once");
    assert!(!status.success(), "something was not committed");
    holder.close().await.unwrap();
}

#[tokio::test]
async fn a_stop_gives_up_after_its_time_while_the_database_is_away() {
    let mut tanit = Tanit::start_with("[mqtt]\ndrain_timeout = \"2s\"\n").await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Dev:1:0").await;
    let holder = lock_database(&tanit).await;
    connection.send_publish("t.Dev/int", &bson(1), 1).await;
    let status = tanit.terminate().await;
    assert!(!status.success(), "something was not committed");
    holder.close().await.unwrap();
    tanit.launch().await;
    let (mut back, _) = device.connect(&tanit).await;
    back.publish("t.Dev/int", &bson(2)).await;
}

#[tokio::test]
async fn a_device_id_may_begin_with_a_hyphen_everywhere() {
    let tanit = Tanit::start().await;
    tanit.realm("acme").await;
    let id = "-Ex9vYmFyYmF6cXV4MTIzA";
    let registered = tanit.cli(&["device", "register", "acme", id]).await;
    assert_eq!(registered["device_id"], id);
    assert_eq!(tanit.cli(&["device", "show", "acme", id]).await["id"], id);
}

#[tokio::test]
async fn one_half_of_the_servers_ca_is_not_replaced_by_another_ca() {
    let mut tanit = Tanit::start().await;
    assert!(tanit.terminate().await.success());
    for name in ["server-ca.crt", "server-ca.key"] {
        let file = tanit.data_dir().join(name);
        let kept = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        tanit.spawn();
        assert_eq!(tanit.ended().await.code(), Some(78), "{name} is missing");
        std::fs::write(&file, kept).unwrap();
    }
    tanit.launch().await;
}

#[tokio::test]
async fn a_restore_that_was_answered_happens_though_the_node_is_killed() {
    let mut tanit = Tanit::start().await;
    tanit.realm("acme").await;
    let device = tanit.device("acme").await;
    let archive = tanit.data_dir().join("../backup.tar");
    let archive = archive.to_str().unwrap();
    tanit.cli(&["backup", archive]).await;
    tanit.realm("later").await;

    // a request that never ends keeps the node from stopping at once
    let mut lingering = TcpStream::connect(tanit.http).await.unwrap();
    let request = format!(
        "POST /pairing/v1/{}/protocols/astarte_mqtt_v1/credentials HTTP/1.1\r\nHost: x\r\n\
         Authorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{",
        device.base().replace('/', "/devices/"),
        device.secret
    );
    lingering.write_all(request.as_bytes()).await.unwrap();
    tanit.cli(&["restore", archive, "--yes"]).await;
    until_it_stops(&tanit).await;
    tanit.kill().await;
    tanit.launch().await;
    let realms = tanit.cli(&["realm", "list"]).await.to_string();
    assert!(
        realms.contains("acme") && !realms.contains("later"),
        "{realms}"
    );
}
