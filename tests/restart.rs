//! What a session is promised holds over disconnects, stops and kills.

use crate::harness::{
    device::{self, pubcomp, pubrec},
    product::{Tanit, TestDevice},
};

async fn command(tanit: &Tanit, device: &TestDevice, text: &str) {
    tanit
        .cli(&[
            "publish",
            &device.realm,
            &device.id,
            "t.SrvCmd",
            "/cmd",
            text,
        ])
        .await;
}

/// A device that has declared everything, is subscribed to its commands, and has gone.
async fn subscribed_and_gone(tanit: &Tanit, qos: u8) -> TestDevice {
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(tanit).await;
    connection
        .declare("t.Dev:1:0;t.SrvCmd:1:0;t.SrvProp:1:0")
        .await;
    connection
        .subscribe(&[("t.SrvCmd/#", qos), ("t.SrvProp/#", qos)])
        .await;
    connection.disconnect().await;
    device
}

#[tokio::test]
async fn fc_001_a_restored_session_receives_before_its_device_is_back() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = subscribed_and_gone(&tanit, 1).await;
    assert!(tanit.terminate().await.success());
    tanit.launch().await;
    command(&tanit, &device, "while away").await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    let received = connection.receive().await;
    assert_eq!(received.payload, device::bson("while away"));
    assert_eq!(
        (received.qos, received.dup, received.retain),
        (1, false, false)
    );
    connection.expect_only_pong().await;
}

#[tokio::test]
async fn fc_003_a_clean_session_answers_0_and_drops_what_was_stored() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = subscribed_and_gone(&tanit, 1).await;
    for text in ["one", "two", "three"] {
        command(&tanit, &device, text).await;
    }
    let mut connection = device.open(&tanit).await;
    assert!(
        !connection.connect("", true, 60).await,
        "clean session answers 0"
    );
    connection.expect_only_pong().await;
    connection.disconnect().await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(!present, "the clean session left nothing behind");
    let refused = tanit
        .cli_refused(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "nobody"])
        .await;
    assert!(
        refused.1.contains("subscri") || refused.1.contains("session"),
        "{}",
        refused.1
    );
    connection.expect_only_pong().await;
}

#[tokio::test]
async fn fc_005_going_from_clean_to_persistent_sticks() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    device
        .connect_clean(&tanit, "t.SrvCmd:1:0")
        .await
        .disconnect()
        .await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(!present);
    connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
    connection.disconnect().await;
    command(&tanit, &device, "kept").await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    assert_eq!(connection.receive().await.payload, device::bson("kept"));
    connection.disconnect().await;

    let mut connection = device.open(&tanit).await;
    assert!(!connection.connect("", true, 60).await);
    connection.disconnect().await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(!present);
    connection.expect_only_pong().await;
}

async fn resends_in_order(tanit: &mut Tanit, restart: bool) {
    let device = subscribed_and_gone(tanit, 2).await;
    let (mut connection, _) = device.connect(tanit).await;
    for (path, value) in [("/str", "a"), ("/int", "2"), ("/bool", "true")] {
        tanit
            .cli(&["publish", "acme", &device.id, "t.SrvProp", path, value])
            .await;
    }
    let mut sent = Vec::new();
    for _ in 0..3 {
        let received = connection.expect(3).await.publish();
        assert_eq!((received.qos, received.dup), (2, false));
        sent.push((
            received.packet_id.expect("an id"),
            received.topic,
            received.payload,
        ));
    }
    connection.send(&pubrec(sent[0].0)).await;
    assert_eq!(connection.expect(6).await.id(), sent[0].0, "PUBREL");
    connection.cut();
    if restart {
        assert!(tanit.terminate().await.success());
        tanit.launch().await;
    }
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvProp", "/long", "4"])
        .await;

    let (mut connection, present) = device.connect(tanit).await;
    assert!(present);
    let first = connection.next().await.expect("a PUBREL");
    assert_eq!(
        (first.kind(), first.id()),
        (6, sent[0].0),
        "only PUBREL is owed"
    );
    for (id, topic, payload) in &sent[1..] {
        let again = connection.next().await.expect("a PUBLISH").publish();
        assert!(again.dup, "{topic} is sent again");
        assert_eq!(
            (again.packet_id, &again.topic, &again.payload),
            (Some(*id), topic, payload)
        );
    }
    let newer = connection.next().await.expect("a PUBLISH").publish();
    assert!(!newer.dup);
    assert!(
        !sent.iter().any(|(id, ..)| Some(*id) == newer.packet_id),
        "an id of its own"
    );
    connection.send(&pubcomp(sent[0].0)).await;
    connection.expect_only_pong().await;
    connection.disconnect().await;
}

#[tokio::test]
async fn fc_008_unacknowledged_values_are_resent_with_their_ids_in_order() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    resends_in_order(&mut tanit, false).await;
    resends_in_order(&mut tanit, true).await;
}

/// 1,000 values instead of 5,000, with the inflight window of 10.
#[tokio::test]
async fn fc_009_a_backlog_larger_than_the_window_is_delivered_whole_and_in_order() {
    let tanit = Tanit::start_with("[mqtt]\ninflight_max = 10\nqueue_messages_max = 5000\n").await;
    tanit.fixtures().await;
    let device = subscribed_and_gone(&tanit, 1).await;
    let token = tanit.cli(&["token", "acme", "--api", "appengine"]).await;
    let token = token["token"].as_str().expect("a token");
    crate::harness::install_crypto();
    let client = reqwest::Client::new();
    let url = format!(
        "http://{}/appengine/v1/acme/devices/{}/interfaces/t.SrvCmd/cmd",
        tanit.http, device.id
    );
    for number in 0..1000 {
        let answer = client
            .post(&url)
            .bearer_auth(token)
            .json(&serde_json::json!({"data": number.to_string()}))
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 200, "value {number}");
    }
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    for number in 0..1000 {
        let received = connection.receive().await;
        assert_eq!(
            received.payload,
            device::bson(number.to_string()),
            "value {number}"
        );
    }
    connection.expect_only_pong().await;
}

#[tokio::test]
async fn fc_011_what_the_api_accepted_is_delivered_after_kill_9() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = subscribed_and_gone(&tanit, 1).await;
    for round in 0..5 {
        let text = format!("value {round}");
        command(&tanit, &device, &text).await;
        tanit.kill().await;
        tanit.launch().await;
        let (mut connection, present) = device.connect(&tanit).await;
        assert!(present, "round {round}");
        assert_eq!(connection.receive().await.payload, device::bson(text));
        connection.expect_only_pong().await;
        connection.disconnect().await;
    }
}

#[tokio::test]
async fn fc_042_a_full_queue_is_an_error_the_sender_can_see() {
    let tanit = Tanit::start_with("[mqtt]\nqueue_messages_max = 100\n").await;
    tanit.fixtures().await;
    let device = subscribed_and_gone(&tanit, 1).await;
    for number in 0..100 {
        command(&tanit, &device, &number.to_string()).await;
    }
    let (code, said) = tanit
        .cli_refused(&[
            "publish", "acme", &device.id, "t.SrvCmd", "/cmd", "too many",
        ])
        .await;
    assert!(said.contains("full"), "exit {code}: {said}");
    let (mut connection, _) = device.connect(&tanit).await;
    for number in 0..100 {
        assert_eq!(
            connection.receive().await.payload,
            device::bson(number.to_string())
        );
    }
    connection.expect_only_pong().await;
    connection.disconnect().await;
    // a property keeps its newest value alone, and never fills the queue
    for number in 0..150 {
        let value = number.to_string();
        tanit
            .cli(&["publish", "acme", &device.id, "t.SrvProp", "/int", &value])
            .await;
    }
    let (mut connection, _) = device.connect(&tanit).await;
    assert_eq!(connection.receive().await.payload, device::bson(149));
    connection.expect_only_pong().await;
}
