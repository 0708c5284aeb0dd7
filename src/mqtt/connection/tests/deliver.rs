//! Messages to the device.

use super::bench::{Bench, Client, Told, connect_to_stay, identity};
use crate::mqtt::{
    DisconnectReason,
    packet::{Acknowledgement, Connect, Packet, Publish, QoS, Version},
    sessions::Enqueued,
};

async fn published(client: &mut Client) -> Publish {
    match client.receive().await {
        Packet::Publish(publish) => publish,
        other => panic!("{other:?} is no PUBLISH"),
    }
}

fn number(publish: &Publish) -> u32 {
    u32::from_be_bytes(publish.payload[..].try_into().expect("four bytes"))
}

async fn cut(bench: &Bench, client: Client) {
    drop(client);
    bench.all_gone().await;
}

/// A session with a subscription, whose device is gone.
async fn absent(bench: &Bench, version: Version) {
    let (mut client, _) = bench.connect(connect_to_stay(version)).await;
    client.subscribe("/t.Srv/#", QoS::ExactlyOnce).await;
    cut(bench, client).await;
}

#[tokio::test]
async fn a_connected_device_gets_messages_of_every_qos() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect_to_stay(Version::V311)).await;
    client.subscribe("/t.Srv/#", QoS::ExactlyOnce).await;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(bench.send(qos, 7).await, Enqueued::Delivering);
        let publish = published(&mut client).await;
        assert_eq!(
            (publish.qos, publish.dup, number(&publish)),
            (qos, false, 7)
        );
        let Some(packet_id) = publish.packet_id else {
            continue;
        };
        let ack = Acknowledgement::success(packet_id);
        if qos == QoS::AtLeastOnce {
            client.send(Packet::PubAck(ack)).await;
        } else {
            client.send(Packet::PubRec(ack.clone())).await;
            assert_eq!(client.receive().await, Packet::PubRel(ack.clone()));
            client.send(Packet::PubComp(ack)).await;
        }
    }
    client.expect_silence().await;
    let summary = bench
        .shared
        .sessions
        .summary(&identity())
        .await
        .expect("works")
        .expect("is there");
    assert_eq!(summary.queued_messages, 0);
}

#[tokio::test]
async fn what_was_queued_comes_after_connack_and_once() {
    let bench = Bench::new();
    absent(&bench, Version::V5).await;
    assert!(matches!(
        bench.send(QoS::AtLeastOnce, 1).await,
        Enqueued::Queued { .. }
    ));
    let (mut client, connack) = bench.connect(connect_to_stay(Version::V5)).await;
    assert!(connack.session_present);
    let publish = published(&mut client).await;
    assert_eq!(number(&publish), 1);
    let ack = Acknowledgement::success(publish.packet_id.expect("QoS 1"));
    client.send(Packet::PubAck(ack)).await;
    client.expect_silence().await;
    cut(&bench, client).await;
    let (mut client, _) = bench.connect(connect_to_stay(Version::V5)).await;
    client.expect_silence().await;
}

#[tokio::test]
async fn fc_008_unacknowledged_messages_are_sent_again_before_newer_ones() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect_to_stay(Version::V311)).await;
    client.subscribe("/t.Srv/#", QoS::ExactlyOnce).await;
    let mut ids = Vec::new();
    for number in 1..=3 {
        bench.send(QoS::ExactlyOnce, number).await;
        ids.push(published(&mut client).await.packet_id.expect("QoS 2"));
    }
    client
        .send(Packet::PubRec(Acknowledgement::success(ids[0])))
        .await;
    assert!(matches!(client.receive().await, Packet::PubRel(_)));
    cut(&bench, client).await;
    bench.send(QoS::ExactlyOnce, 4).await;
    let (mut client, _) = bench.connect(connect_to_stay(Version::V311)).await;
    assert_eq!(
        client.receive().await,
        Packet::PubRel(Acknowledgement::success(ids[0]))
    );
    for (at, id) in [(2, ids[1]), (3, ids[2])] {
        let publish = published(&mut client).await;
        assert_eq!(
            (publish.dup, publish.packet_id, number(&publish)),
            (true, Some(id), at)
        );
    }
    let newer = published(&mut client).await;
    assert_eq!((newer.dup, number(&newer)), (false, 4));
    assert!(!ids.contains(&newer.packet_id.expect("QoS 2")));
}

#[tokio::test]
async fn fc_009_a_backlog_larger_than_the_window_is_delivered_whole() {
    const MESSAGES: u32 = 1_000;
    let bench = Bench::new();
    absent(&bench, Version::V5).await;
    for number in 0..MESSAGES {
        bench.send(QoS::AtLeastOnce, number).await;
    }
    let narrow = Connect {
        receive_maximum: std::num::NonZeroU16::new(10),
        ..connect_to_stay(Version::V5)
    };
    let (mut client, _) = bench.connect(narrow).await;
    for expected in 0..MESSAGES {
        let publish = published(&mut client).await;
        assert_eq!(number(&publish), expected);
        // messages that come while the backlog is read follow it
        if expected == 500 {
            bench.send(QoS::AtLeastOnce, MESSAGES).await;
        }
        let ack = Acknowledgement::success(publish.packet_id.expect("QoS 1"));
        client.send(Packet::PubAck(ack)).await;
    }
    assert_eq!(number(&published(&mut client).await), MESSAGES);
}

#[tokio::test]
async fn a_feed_that_overflows_is_caught_up_from_the_queue() {
    const MESSAGES: u32 = 600;
    let bench = Bench::new();
    let narrow = Connect {
        receive_maximum: std::num::NonZeroU16::new(1),
        ..connect_to_stay(Version::V5)
    };
    let (mut client, _) = bench.connect(narrow).await;
    client.subscribe("/t.Srv/#", QoS::ExactlyOnce).await;
    for number in 0..MESSAGES {
        bench.send(QoS::AtLeastOnce, number).await;
    }
    for expected in 0..MESSAGES {
        let publish = published(&mut client).await;
        assert_eq!(number(&publish), expected);
        let ack = Acknowledgement::success(publish.packet_id.expect("QoS 1"));
        client.send(Packet::PubAck(ack)).await;
    }
    client.expect_silence().await;
}

#[tokio::test]
async fn an_erased_session_ends_its_connection() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect_to_stay(Version::V5)).await;
    bench
        .shared
        .sessions
        .erase(&identity())
        .await
        .expect("works");
    assert!(matches!(client.receive().await, Packet::Disconnect(_)));
    client.expect_end().await;
    let reason = Told::Disconnected(DisconnectReason::Administrative);
    bench
        .engine
        .wait_for(|told| told.last() == Some(&reason))
        .await;
}
