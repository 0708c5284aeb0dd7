//! One owner for each session: presence alternates, and belongs to one network connection.

use crate::harness::{
    device::{bson, connect, connect_with_will},
    product::{Tanit, TestDevice},
};

/// Connected and disconnected alternate, numbers grow by one, and the last event is this one.
async fn assert_alternates(tanit: &Tanit, device: &TestDevice, last: &str) {
    let history = tanit.history(device).await;
    for pair in history.windows(2) {
        assert_eq!(pair[0].0 + 1, pair[1].0, "{history:?}");
        assert_ne!(pair[0].1, pair[1].1, "{history:?}");
    }
    assert_eq!(
        history.last().map(|event| event.1.as_str()),
        Some(last),
        "{history:?}"
    );
}

/// 200 takeovers instead of 1,000.
#[tokio::test]
async fn fc_014_disconnected_of_the_old_comes_before_connected_of_the_new() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut current, _) = device.connect(&tanit).await;
    for _ in 0..200 {
        let (next, present) = device.connect(&tanit).await;
        assert!(present, "the session goes over to the new connection");
        current.expect_closed().await;
        current = next;
    }
    current.expect_only_pong().await;
    assert_alternates(&tanit, &device, "connected").await;
    let shown = tanit.cli(&["device", "show", "acme", &device.id]).await;
    assert_eq!(shown["connected"], true);
    let history = tanit.history(&device).await;
    assert_eq!(
        history.last().expect("events").0,
        401,
        "two events for each takeover"
    );
}

#[tokio::test]
async fn fc_016_presence_is_corrected_after_a_crash() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let (first, second) = (tanit.device("acme").await, tanit.device("acme").await);
    let (_first, _) = first.connect(&tanit).await;
    let (_second, _) = second.connect(&tanit).await;
    tanit.kill().await;
    tanit.launch().await;
    let (mut back, present) = second.connect(&tanit).await;
    assert!(present);
    back.expect_only_pong().await;
    let restarted = Some("node_restart".to_owned());
    assert_eq!(
        tanit.history(&first).await,
        [
            (1, "connected".to_owned(), None),
            (2, "disconnected".to_owned(), restarted.clone())
        ]
    );
    assert_eq!(
        tanit.history(&second).await,
        [
            (1, "connected".to_owned(), None),
            (2, "disconnected".to_owned(), restarted),
            (3, "connected".to_owned(), None)
        ]
    );
}

#[tokio::test]
async fn fc_017_a_kick_is_one_disconnect_with_its_reason() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, "t.Dev:1:0;t.SrvCmd:1:0").await;
    let id = connection
        .send_publish("t.SrvCmd/cmd", &bson("mine"), 1)
        .await;
    let last = connection.expect_closed().await;
    assert_eq!(last.len(), 1, "its PUBACK and nothing else: {last:02x?}");
    assert_eq!((last[0].kind(), last[0].id()), (4, id));
    tanit
        .until_device(&device, "disconnected", |device| {
            device["connected"] == false
        })
        .await;
    assert_eq!(
        tanit.errors(&device).await,
        ["write_on_server_owned_interface"]
    );

    let (mut connection, present) = device.connect(&tanit).await;
    assert!(!present, "the kick erased the session");
    tanit
        .cli(&["device", "disconnect", "acme", &device.id])
        .await;
    connection.expect_closed().await;
    let reasons: Vec<_> = tanit
        .history(&device)
        .await
        .into_iter()
        .filter_map(|e| e.2)
        .collect();
    assert_eq!(reasons, ["clean_kick", "administrative"]);
    assert_alternates(&tanit, &device, "disconnected").await;
}

#[tokio::test]
async fn fc_021_a_will_is_handled_once_at_takeover_and_never_after_disconnect() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    device
        .connect_clean(&tanit, "t.Dev:1:0")
        .await
        .disconnect()
        .await;
    let topic = format!("{}/t.Dev/str", device.base());
    let payload = bson("last words");
    let with_will = connect_with_will("", false, 60, Some((&topic, &payload, 1, false)));

    let mut first = device.open(&tanit).await;
    first.send(&with_will).await;
    assert_eq!(first.expect(2).await.body[1], 0);
    let (second, _) = device.connect(&tanit).await;
    first.expect_closed().await;
    assert_eq!(
        tanit.data(&device, "t.Dev", "/str").await.len(),
        1,
        "the will, once"
    );
    second.disconnect().await;

    let mut third = device.open(&tanit).await;
    third.send(&with_will).await;
    assert_eq!(third.expect(2).await.body[1], 0);
    third.disconnect().await;
    let (mut fourth, _) = device.connect(&tanit).await;
    fourth.expect_only_pong().await;
    assert_eq!(
        tanit.data(&device, "t.Dev", "/str").await.len(),
        1,
        "DISCONNECT drops the will"
    );
    assert_alternates(&tanit, &device, "connected").await;
}

#[tokio::test]
async fn fc_024_a_second_connect_closes_the_connection() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    device
        .connect_clean(&tanit, "t.Dev:1:0")
        .await
        .disconnect()
        .await;
    let topic = format!("{}/t.Dev/str", device.base());
    let mut connection = device.open(&tanit).await;
    let will = (topic.as_str(), &bson("bye")[..], 1, false);
    connection
        .send(&connect_with_will("", false, 60, Some(will)))
        .await;
    assert_eq!(connection.expect(2).await.body[1], 0);
    connection.send(&connect("", false, 60)).await;
    assert!(connection.expect_closed().await.is_empty());
    tanit
        .until_device(&device, "disconnected", |device| {
            device["connected"] == false
        })
        .await;
    assert_eq!(
        tanit.data(&device, "t.Dev", "/str").await.len(),
        1,
        "the will, once"
    );
    let history = tanit.history(&device).await;
    assert_eq!(
        history.last().expect("events").2.as_deref(),
        Some("protocol_error")
    );
    assert_eq!(history.len(), 4);
}
