//! The whole node on PostgreSQL.

use std::collections::BTreeSet;

use serde_json::json;

use crate::harness::{
    device::{RawDevice, bson, publish, publish_again, pubrel},
    postgres::Cluster,
    product::{ALL_INTERFACES, Tanit, TestDevice},
};

/// A node on a database of its own; `None` where PostgreSQL is not installed.
async fn node(cluster: &Cluster) -> Tanit {
    let url = cluster.database().await;
    let tanit = Tanit::start_with(&format!("[database]\nurl = \"{url}\"\n")).await;
    tanit.fixtures().await;
    tanit
}

async fn values(tanit: &Tanit, device: &TestDevice, path: &str) -> Vec<String> {
    let rows = tanit.data(device, "t.Dev", path).await;
    rows.iter()
        .map(|row| row["value"].to_string().trim_matches('"').to_owned())
        .collect()
}

#[tokio::test]
async fn a_node_on_postgresql_stores_shows_sends_and_survives_kill_9() {
    let Some(cluster) = Cluster::start_own() else {
        return;
    };
    let mut tanit = node(&cluster).await;
    assert!(!tanit.data_dir().join("tanit.db").exists(), "no SQLite");
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare(ALL_INTERFACES).await;
    connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
    for number in 0..50 {
        connection.publish("t.Dev/int", &bson(number)).await;
        connection
            .publish_exactly_once("t.Dev/long", &bson(i64::from(number)))
            .await;
    }
    connection
        .publish_exactly_once("t.DevProp/a", &bson("set"))
        .await;
    let object = bson(bson::doc! {"temp": 21.5});
    connection.publish("t.DevObj/", &object).await;

    // a kill between a PUBREC and its PUBREL: the receipt is in the database
    let topic = connection.topic("t.Dev/long");
    connection
        .send(&publish(&topic, &bson(50_i64), 2, 999))
        .await;
    assert_eq!(connection.expect(5).await.id(), 999);
    tanit.kill().await;
    tanit.launch().await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    connection
        .send(&publish_again(&topic, &bson(50_i64), 2, 999))
        .await;
    assert_eq!(connection.expect(5).await.id(), 999);
    connection.send(&pubrel(999)).await;
    assert_eq!(connection.expect(7).await.id(), 999);

    let numbers: Vec<String> = (0..51).map(|number| number.to_string()).collect();
    assert_eq!(values(&tanit, &device, "/int").await, numbers[..50]);
    assert_eq!(values(&tanit, &device, "/long").await, numbers, "once");
    let shown = tanit.cli(&["data", "acme", &device.id, "t.DevProp"]).await;
    assert_eq!(shown, json!({"a": "set"}));
    let rows = tanit.data(&device, "t.DevObj", "/").await;
    assert_eq!(
        (&rows[0]["temp"], &rows[0]["hum"]),
        (&json!(21.5), &json!(null))
    );
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "hello"])
        .await;
    assert_eq!(connection.receive().await.payload, bson("hello"));
    let id = connection.send_publish("t.Dev/int", &bson("x"), 1).await;
    assert_eq!(connection.expect_closed().await[0].id(), id);
    assert_eq!(tanit.errors(&device).await, ["unexpected_value_type"]);
    let history = tanit.history(&device).await;
    let reasons: Vec<_> = history
        .iter()
        .filter_map(|event| event.2.as_deref())
        .collect();
    assert_eq!(reasons, ["node_restart", "clean_kick"]);
    assert!(tanit.terminate().await.success());
}

/// Messages in flight when the database stops.
const OPEN: i32 = 40;

#[tokio::test]
async fn a_stopped_postgresql_withholds_acknowledgements_and_loses_nothing() {
    let Some(cluster) = Cluster::start_own() else {
        return;
    };
    let tanit = node(&cluster).await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Dev:1:0").await;
    let mut acknowledged = BTreeSet::new();
    let mut next = 0;
    for _ in 0..2 {
        publish_some(&mut connection, &mut next, &mut acknowledged).await;
        let mut waiting = send_some(&mut connection, &mut next).await;
        cluster.stop();
        // what was answered before the stop counts, and stands before the answer to a ping
        connection.send(&[0xc0, 0]).await;
        loop {
            let packet = connection.next().await.expect("the connection stays");
            match packet.kind() {
                4 => take(&mut waiting, packet.id(), &mut acknowledged),
                13 => break,
                kind => panic!("{kind}"),
            }
        }
        let late = send_some(&mut connection, &mut next).await;
        assert!(
            connection
                .silent_for(std::time::Duration::from_secs(2))
                .await,
            "acknowledged without a database"
        );
        waiting.extend(late);
        let health = reqwest::get(format!("http://{}/health", tanit.http))
            .await
            .expect("an answer");
        assert_eq!(health.status(), 503);

        cluster.start();
        while !waiting.is_empty() {
            let id = connection.expect(4).await.id();
            take(&mut waiting, id, &mut acknowledged);
        }
    }
    publish_some(&mut connection, &mut next, &mut acknowledged).await;
    assert_eq!(acknowledged.len(), usize::try_from(next).expect("positive"));
    let stored: Vec<String> = values(&tanit, &device, "/int").await;
    let distinct: BTreeSet<i32> = stored
        .iter()
        .map(|value| value.parse().expect("a number"))
        .collect();
    assert_eq!(distinct, acknowledged, "nothing acknowledged is lost");
    assert_eq!(
        stored.len(),
        distinct.len(),
        "and nothing stands there twice"
    );
    assert!(tanit.errors(&device).await.is_empty());
}

fn take(waiting: &mut Vec<(u16, i32)>, id: u16, acknowledged: &mut BTreeSet<i32>) {
    assert_eq!(waiting[0].0, id, "in order");
    acknowledged.insert(waiting.remove(0).1);
}

async fn send_some(connection: &mut RawDevice, next: &mut i32) -> Vec<(u16, i32)> {
    let mut open = Vec::new();
    for _ in 0..OPEN {
        let id = connection.send_publish("t.Dev/int", &bson(*next), 1).await;
        open.push((id, *next));
        *next += 1;
    }
    open
}

async fn publish_some(
    connection: &mut RawDevice,
    next: &mut i32,
    acknowledged: &mut BTreeSet<i32>,
) {
    let mut open = send_some(connection, next).await;
    while !open.is_empty() {
        let id = connection.expect(4).await.id();
        take(&mut open, id, acknowledged);
    }
}

/// Without its database a node starts, says what it waits for, and goes on when it comes.
#[tokio::test]
async fn fc_131_a_database_that_cannot_be_reached_is_waited_for() {
    let Some(cluster) = Cluster::start_own() else {
        return;
    };
    let url = cluster.database().await;
    cluster.stop();
    let mut tanit = Tanit::prepared(&format!("[database]\nurl = \"{url}\"\n"));
    tanit.spawn();
    let waiting = async {
        while !tanit.data_dir().join("control.sock").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::harness::product::PATIENCE, waiting)
        .await
        .expect("it listens for its operator");
    let (code, said) = tanit.cli_refused(&["status", "--wait", "1s"]).await;
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("database"), "{said}");
    cluster.start();
    tanit.look_up().await;
    tanit.realm("acme").await;
}
