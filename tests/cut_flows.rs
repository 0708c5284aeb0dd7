//! Flows that are cut: at each of their steps, by a dead network, by time.

use std::time::Duration;

use serde_json::json;
use time::{OffsetDateTime as Moment, format_description::well_known::Rfc3339};

use crate::harness::{
    api::AppEngine,
    device::{
        RawDevice, bson, connect_with_will, puback, pubcomp, publish, publish_again, pubrec, pubrel,
    },
    product::{Tanit, TestDevice},
};

const ONE: &str = "[mqtt]\ninflight_max = 1\nwindow_messages_max = 1\nqos2_ids_max = 1\n";
const EACH: usize = 100;

/// Reconnects to the same session after the connection was cut.
async fn resume(tanit: &Tanit, device: &TestDevice) -> RawDevice {
    let (connection, present) = device.connect(tanit).await;
    assert!(present, "the session was kept");
    connection
}

async fn stored(tanit: &Tanit, device: &TestDevice, path: &str) -> Vec<String> {
    let rows = tanit.data(device, "t.Dev", path).await;
    rows.iter()
        .map(|row| row["value"].to_string().trim_matches('"').to_owned())
        .collect()
}

#[tokio::test]
async fn fc_031_a_window_of_one_takes_every_message_however_its_flow_is_cut() {
    let tanit = Tanit::start_with(ONE).await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Dev:1:0").await;
    let once = format!("{}/t.Dev/int", device.base());
    for number in 0..EACH {
        let id = 1000 + u16::try_from(number).expect("few");
        let payload = bson(i32::try_from(number).expect("few"));
        connection.send(&publish(&once, &payload, 1, id)).await;
        if number == 10 {
            // after the PUBLISH
            connection.cut();
            connection = resume(&tanit, &device).await;
            connection
                .send(&publish_again(&once, &payload, 1, id))
                .await;
        }
        assert_eq!(connection.expect(4).await.id(), id);
        if number == 20 {
            // after the PUBACK
            connection.cut();
            connection = resume(&tanit, &device).await;
        }
    }
    let exactly = format!("{}/t.Dev/long", device.base());
    for number in 0..EACH {
        let id = 2000 + u16::try_from(number).expect("few");
        let payload = bson(i64::try_from(number).expect("few"));
        connection.send(&publish(&exactly, &payload, 2, id)).await;
        if number == 10 {
            connection.cut();
            connection = resume(&tanit, &device).await;
            connection
                .send(&publish_again(&exactly, &payload, 2, id))
                .await;
        }
        assert_eq!(connection.expect(5).await.id(), id);
        if number == 20 {
            // the PUBREC was lost
            connection.cut();
            connection = resume(&tanit, &device).await;
            connection
                .send(&publish_again(&exactly, &payload, 2, id))
                .await;
            assert_eq!(connection.expect(5).await.id(), id);
        }
        connection.send(&pubrel(id)).await;
        if number == 30 {
            // the PUBCOMP was lost
            connection.cut();
            connection = resume(&tanit, &device).await;
            connection.send(&pubrel(id)).await;
        }
        assert_eq!(connection.expect(7).await.id(), id);
        if number == 40 {
            connection.cut();
            connection = resume(&tanit, &device).await;
        }
    }
    connection.expect_only_pong().await;
    let numbers: Vec<String> = (0..EACH).map(|number| number.to_string()).collect();
    assert_eq!(stored(&tanit, &device, "/long").await, numbers, "QoS 2");
    let mut once = stored(&tanit, &device, "/int").await;
    once.dedup();
    assert_eq!(once, numbers, "QoS 1, of which one may have come twice");
}

/// A device that speaks `t.SrvCmd` at QoS 1 and `t.Exact` at QoS 2, subscribed to both.
async fn listener(tanit: &Tanit) -> (TestDevice, RawDevice) {
    tanit
        .install(
            "acme",
            &json!({"interface_name": "t.Exact", "version_major": 1, "version_minor": 0,
                "type": "datastream", "ownership": "server", "mappings": [
                    {"endpoint": "/v", "type": "integer", "reliability": "unique"}]}),
        )
        .await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(tanit).await;
    connection.declare("t.SrvCmd:1:0;t.Exact:1:0").await;
    connection
        .subscribe(&[("t.SrvCmd/#", 1), ("t.Exact/#", 2)])
        .await;
    (device, connection)
}

#[tokio::test]
async fn fc_031_a_window_of_one_delivers_every_value_however_its_flow_is_cut() {
    let tanit = Tanit::start_with(ONE).await;
    tanit.fixtures().await;
    let (device, mut connection) = listener(&tanit).await;
    let api = AppEngine::of(&tanit, "acme").await;
    for number in 0..EACH {
        for (at, value) in [
            ("t.SrvCmd/cmd", json!(number.to_string())),
            ("t.Exact/v", json!(number)),
        ] {
            let (status, answer) = api.put(&tanit, &device, at, &value).await;
            assert_eq!(status, 200, "{at}: {answer}");
        }
    }
    for number in 0..EACH {
        let expected = bson(number.to_string());
        let mut received = connection.next().await.expect("a PUBLISH").publish();
        if number == 10 {
            // the PUBLISH was not acknowledged
            connection.cut();
            connection = resume(&tanit, &device).await;
            let again = connection.next().await.expect("a PUBLISH").publish();
            assert!(again.dup);
            assert_eq!(again.packet_id, received.packet_id);
            received = again;
        }
        assert_eq!(
            (received.qos, &received.payload),
            (1, &expected),
            "{number}"
        );
        connection.expect_only_pong().await;
        connection
            .send(&puback(received.packet_id.expect("an id")))
            .await;

        let expected = bson(i32::try_from(number).expect("few"));
        let mut received = connection.next().await.expect("a PUBLISH").publish();
        let id = received.packet_id.expect("an id");
        if number == 20 {
            connection.cut();
            connection = resume(&tanit, &device).await;
            let again = connection.next().await.expect("a PUBLISH").publish();
            assert!(again.dup);
            assert_eq!(again.packet_id, Some(id));
            received = again;
        }
        assert_eq!(
            (received.qos, &received.payload),
            (2, &expected),
            "{number}"
        );
        connection.send(&pubrec(id)).await;
        let released = connection.next().await.expect("a PUBREL");
        assert_eq!((released.kind(), released.id()), (6, id), "{number}");
        if number == 30 {
            // the PUBREL was lost; one that is sent again takes no room (MQTT 5.0, 4.9)
            connection.cut();
            connection = resume(&tanit, &device).await;
            let released = connection.next().await.expect("a PUBREL");
            assert_eq!((released.kind(), released.id()), (6, id), "again");
        } else {
            connection.expect_only_pong().await;
        }
        connection.send(&pubcomp(id)).await;
        if number == 40 {
            // whatever of it arrived: the flow is over, or its PUBREL comes once more
            connection.expect(3).await;
            connection.cut();
            connection = resume(&tanit, &device).await;
        }
    }
    connection.expect_only_pong().await;
    // the window is free, and is one
    for number in ["a", "b"] {
        api.put(&tanit, &device, "t.SrvCmd/cmd", &json!(number))
            .await;
    }
    let received = connection.next().await.expect("a PUBLISH").publish();
    assert_eq!(received.payload, bson("a"));
    connection.expect_only_pong().await;
    connection
        .send(&puback(received.packet_id.expect("an id")))
        .await;
    assert_eq!(connection.receive().await.payload, bson("b"));
    connection.expect_only_pong().await;
}

/// The old socket is dead: nothing is read from it, and its buffers are full.
#[tokio::test]
async fn fc_015_a_late_death_of_the_old_socket_does_not_touch_the_new_connection() {
    let tanit = Tanit::start_with("[mqtt]\nwrite_timeout = \"60s\"\n").await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let will_topic = format!("{}/t.Dev/int", device.base());
    let mut old = open_with_will(&tanit, &device, &will_topic, 1).await;
    old.declare("t.Dev:1:0;t.SrvCmd:1:0").await;
    old.subscribe(&[("t.SrvCmd/#", 1)]).await;
    let api = AppEngine::of(&tanit, "acme").await;
    let long = json!("x".repeat(60_000));
    for _ in 0..150 {
        let (status, answer) = api.put(&tanit, &device, "t.SrvCmd/cmd", &long).await;
        assert_eq!(status, 200, "{answer}");
    }
    let mut new = tokio::time::timeout(
        Duration::from_secs(10),
        open_with_will(&tanit, &device, &will_topic, 2),
    )
    .await
    .expect("the dead socket does not hold it up");
    for number in 0..150 {
        let received = new.receive().await;
        assert_eq!(
            received.payload.len(),
            bson("x".repeat(60_000)).len(),
            "{number}"
        );
    }
    // what the old one still held is gone by now; the new one lives, and its will has not fired
    drop(old);
    new.publish("t.Dev/long", &bson(7_i64)).await;
    new.expect_only_pong().await;
    let history = tanit.history(&device).await;
    let events: Vec<&str> = history.iter().map(|event| event.1.as_str()).collect();
    assert_eq!(events, ["connected", "disconnected", "connected"]);
    assert_eq!(history[1].2.as_deref(), Some("taken_over"));
    assert_eq!(stored(&tanit, &device, "/int").await, ["1"], "W1, once");
    let shown = tanit.cli(&["device", "show", "acme", &device.id]).await;
    assert_eq!(shown["connected"], true);

    new.cut();
    tanit
        .until_device(&device, "disconnected", |shown| shown["connected"] == false)
        .await;
    let (mut last, _) = device.connect(&tanit).await;
    last.expect_only_pong().await;
    assert_eq!(stored(&tanit, &device, "/int").await, ["1", "2"], "then W2");
}

async fn open_with_will(tanit: &Tanit, device: &TestDevice, topic: &str, value: i32) -> RawDevice {
    let mut connection = device.open(tanit).await;
    let will = bson(value);
    connection
        .send(&connect_with_will(
            "",
            false,
            20,
            Some((topic, &will, 1, false)),
        ))
        .await;
    assert_eq!(connection.expect(2).await.body[1], 0, "accepted");
    connection
}

/// An expiry of 5 s instead of 30 s, in real time.
#[tokio::test]
async fn fc_043_expiry_of_queued_values_survives_restarts() {
    expiry_over_restarts(5).await;
}

#[tokio::test]
#[ignore = "heavy: waits for 30 s"]
async fn fc_043_expiry_of_queued_values_survives_restarts_whole() {
    expiry_over_restarts(30).await;
}

async fn expiry_over_restarts(seconds: u32) {
    let mut tanit = Tanit::start().await;
    tanit.realm("acme").await;
    tanit
        .install(
            "acme",
            &json!({"interface_name": "t.Brief", "version_major": 1, "version_minor": 0,
                "type": "datastream", "ownership": "server", "mappings": [
                    {"endpoint": "/brief", "type": "integer", "reliability": "guaranteed",
                        "retention": "stored", "expiry": seconds},
                    {"endpoint": "/long", "type": "integer", "reliability": "guaranteed",
                        "retention": "stored", "expiry": 3600}]}),
        )
        .await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Brief:1:0").await;
    connection.subscribe(&[("t.Brief/#", 1)]).await;
    connection.disconnect().await;

    send(&tanit, &device, "/long", 1).await;
    let until = send(&tanit, &device, "/brief", 2).await;
    tanit.kill().await;
    tanit.launch().await;
    if Moment::now_utc() < until - Duration::from_secs(1) {
        let (mut connection, _) = device.connect(&tanit).await;
        assert_eq!(connection.receive().await.payload, bson(1));
        assert_eq!(connection.receive().await.payload, bson(2), "in time");
        connection.disconnect().await;
    }

    send(&tanit, &device, "/long", 3).await;
    let until = send(&tanit, &device, "/brief", 4).await;
    send(&tanit, &device, "/long", 5).await;
    assert!(tanit.terminate().await.success());
    tanit.launch().await;
    tanit.kill().await;
    let left = Duration::try_from(until - Moment::now_utc()).unwrap_or_default();
    tokio::time::sleep(left + Duration::from_millis(10)).await; // the deadline is the condition
    tanit.launch().await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    assert_eq!(connection.receive().await.payload, bson(3));
    assert_eq!(connection.receive().await.payload, bson(5), "4 has expired");
    connection.expect_only_pong().await;
    let metrics = reqwest::get(format!("http://{}/metrics", tanit.http))
        .await
        .expect("an answer")
        .text()
        .await
        .expect("a text");
    assert!(
        metrics.contains("tanit_expired_messages_total 1"),
        "it is counted: {metrics}"
    );
}

/// Sends through the CLI; returns until when the value is queued.
async fn send(tanit: &Tanit, device: &TestDevice, path: &str, value: i32) -> Moment {
    let value = value.to_string();
    let answer = tanit
        .cli(&["publish", "acme", &device.id, "t.Brief", path, &value])
        .await;
    assert_eq!(answer["outcome"], "queued", "{answer}");
    let until = answer["until"].as_str().expect("a deadline");
    Moment::parse(until, &Rfc3339).expect("a time")
}
