//! What a device declares, and what becomes of its messages when that or an interface changes.

use serde_json::{Value, json};

use crate::harness::{
    api::AppEngine,
    device::{RawDevice, bson, publish},
    product::{Tanit, TestDevice},
};

async fn declared(tanit: &Tanit, device: &TestDevice) -> Value {
    let shown = tanit.cli(&["device", "show", "acme", &device.id]).await;
    shown["introspection"].clone()
}

fn stream(name: &str, major: u32, minor: u32, mappings: &Value) -> Value {
    json!({"interface_name": name, "version_major": major, "version_minor": minor,
        "type": "datastream", "ownership": "device", "mappings": mappings})
}

#[tokio::test]
async fn fc_117_malformed_introspection_changes_nothing() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let huge: String = "t.Interface:1:0;".repeat(16_000) + "t.Interface:1:0";
    let many: Vec<String> = (0..10_000).map(|n| format!("t.I{n}:1:0")).collect();
    let many = many.join(";");
    let bad: Vec<&[u8]> = vec![
        b"a.B:1:0;",
        b"a.B:1",
        b"a.B:-1:0",
        b"a.B:x:0",
        b" a.B:1:0",
        b"a_b:1:0",
        b"a.B\xff:1:0",
        b"a.B:1:0\n",
        b"a.B:1:99999999999",
        huge.as_bytes(),
        many.as_bytes(),
    ];
    for bad in bad.chunks(3) {
        let device = tanit.device("acme").await;
        device
            .connect_clean(&tanit, "t.Dev:1:0")
            .await
            .disconnect()
            .await;
        let before = declared(&tanit, &device).await;
        assert_eq!(before["t.Dev"]["major"], 1);
        for payload in bad {
            let (mut connection, present) = device.connect(&tanit).await;
            assert!(!present, "a kick erased the session");
            let id = connection.send_publish("", payload, 2).await;
            let seen = connection.expect_closed().await;
            let last = seen.last().map(|packet| (packet.kind(), packet.id()));
            let start = String::from_utf8_lossy(&payload[..payload.len().min(40)]);
            assert_eq!(last, Some((5, id)), "{start}");
        }
        let errors = tanit.errors(&device).await;
        assert_eq!(errors, vec!["invalid_introspection"; bad.len()]);
        let now = declared(&tanit, &device).await;
        assert_eq!(now["t.Dev"]["major"], before["t.Dev"]["major"]);
        assert_eq!(now.as_object().expect("a map").len(), 1, "{now}");
    }
}

#[tokio::test]
async fn fc_117_lenient_forms_are_taken_as_they_are() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, "t.Dev:1:0").await;
    connection.declare("a.B:1:0;a.B:1:1").await;
    let now = declared(&tanit, &device).await;
    assert_eq!(
        (&now["a.B"]["major"], &now["a.B"]["minor"]),
        (&json!(1), &json!(1))
    );
    connection.declare("a.B:0:0;c.D:+1:02").await;
    let now = declared(&tanit, &device).await;
    assert_eq!(
        (&now["a.B"]["major"], &now["a.B"]["minor"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(
        (&now["c.D"]["major"], &now["c.D"]["minor"]),
        (&json!(1), &json!(2))
    );
    connection.declare("").await;
    assert_eq!(declared(&tanit, &device).await, json!({}));
    connection.expect_only_pong().await;
    assert!(tanit.errors(&device).await.is_empty());
}

#[tokio::test]
async fn fc_119_a_minor_upgrade_is_live_for_a_connected_device_at_once() {
    let tanit = Tanit::start().await;
    tanit.realm("acme").await;
    let old = json!([{"endpoint": "/old", "type": "integer"}]);
    let both = json!([{"endpoint": "/old", "type": "integer"},
        {"endpoint": "/new", "type": "string"}]);
    tanit.install("acme", &stream("t.Grow", 1, 0, &old)).await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, "t.Grow:1:0").await;
    connection.publish("t.Grow/old", &bson(1)).await;

    let file = tanit.beside("t.Grow-1.1.json");
    std::fs::write(&file, stream("t.Grow", 1, 1, &both).to_string()).expect("a file");
    let file = file.display().to_string();
    tanit.cli(&["interface", "update", "acme", &file]).await;
    connection.publish("t.Grow/new", &bson("before")).await;
    connection.declare("t.Grow:1:1").await;
    connection.publish("t.Grow/new", &bson("after")).await;
    connection.publish("t.Grow/old", &bson(2)).await;
    connection.expect_only_pong().await;

    let new = tanit.data(&device, "t.Grow", "/new").await;
    assert_eq!(values(&new), [json!("before"), json!("after")]);
    let old = tanit.data(&device, "t.Grow", "/old").await;
    assert_eq!(values(&old), [json!(1), json!(2)]);
    assert!(tanit.errors(&device).await.is_empty());
}

fn values(rows: &[Value]) -> Vec<Value> {
    rows.iter().map(|row| row["value"].clone()).collect()
}

/// Sends at QoS 2 without waiting.
async fn pipeline(connection: &mut RawDevice, messages: &[(&str, Vec<u8>)]) {
    let mut bytes = Vec::new();
    for (below, payload) in messages {
        let id = connection.fresh_id();
        bytes.extend(publish(&connection.topic(below), payload, 2, id));
    }
    connection.send(&bytes).await;
}

#[tokio::test]
async fn fc_120_each_message_is_judged_by_the_introspection_before_it() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let number = json!([{"endpoint": "/v", "type": "integer"}]);
    let text = json!([{"endpoint": "/v", "type": "string"}]);
    tanit
        .install("acme", &stream("t.Turn", 1, 0, &number))
        .await;
    tanit.install("acme", &stream("t.Turn", 2, 0, &text)).await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, "t.Turn:1:0").await;
    let messages = [
        ("t.Turn/v", bson(1)),
        ("t.Turn/v", bson(2)),
        ("", b"t.Turn:2:0".to_vec()),
        ("t.Turn/v", bson("two")),
        ("", b"t.Turn:1:0".to_vec()),
        ("t.Turn/v", bson(3)),
        ("", b"t.Turn:2:0".to_vec()),
        ("t.Turn/v", bson("four")),
    ];
    pipeline(&mut connection, &messages).await;
    for _ in &messages {
        connection.expect(5).await;
    }
    connection.expect_only_pong().await;
    assert!(tanit.errors(&device).await.is_empty());
    let rows = tanit.data(&device, "t.Turn", "/v").await;
    assert_eq!(values(&rows), ["two", "four"], "what major 2 has");
    connection.declare("t.Turn:1:0").await;
    let rows = tanit.data(&device, "t.Turn", "/v").await;
    assert_eq!(values(&rows), [1, 2, 3], "what major 1 kept");

    // a value of the other major is an error of its own, in its place
    let messages = [
        ("t.Turn/v", bson(4)),
        ("", b"t.Turn:2:0".to_vec()),
        ("t.Turn/v", bson(5)),
        ("t.Turn/v", bson("never")),
    ];
    pipeline(&mut connection, &messages).await;
    let seen = connection.expect_closed().await;
    assert_eq!(seen.iter().filter(|packet| packet.kind() == 5).count(), 3);
    assert_eq!(tanit.errors(&device).await, ["unexpected_value_type"]);
    let rows = tanit.data(&device, "t.Turn", "/v").await;
    assert_eq!(values(&rows), ["two", "four"]);
}

#[tokio::test]
async fn fc_120_what_was_queued_for_one_major_does_not_reach_the_next() {
    let tanit = Tanit::start().await;
    tanit.realm("acme").await;
    for (major, value_type) in [(1, "string"), (2, "integer")] {
        let document = json!({"interface_name": "t.SrvTurn", "version_major": major,
            "version_minor": 0, "type": "datastream", "ownership": "server", "mappings": [
                {"endpoint": "/v", "type": value_type, "reliability": "guaranteed"}]});
        tanit.install("acme", &document).await;
    }
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.SrvTurn:1:0").await;
    connection.subscribe(&[("t.SrvTurn/#", 1)]).await;
    let api = AppEngine::of(&tanit, "acme").await;
    let (status, answer) = api.put(&tanit, &device, "t.SrvTurn/v", &json!("old")).await;
    assert_eq!(status, 200, "{answer}");
    // delivered and not acknowledged: it would come again
    assert_eq!(connection.expect(3).await.publish().payload, bson("old"));
    connection.declare("t.SrvTurn:2:0").await;
    connection.disconnect().await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    connection.expect_only_pong().await;
    let (status, answer) = api.put(&tanit, &device, "t.SrvTurn/v", &json!(7)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(connection.receive().await.payload, bson(7));
}
