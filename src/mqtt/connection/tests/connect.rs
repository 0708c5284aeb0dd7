//! From the first byte to CONNACK.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::bench::{Bench, Told, connect, connect_to_stay, identity};
use crate::mqtt::{
    Admission, DisconnectReason,
    broker::ConnectOutcome,
    packet::{Connect, Packet, PublishProperties, QoS, ReasonCode, Version, Will},
};

fn will(topic: &str) -> Will {
    Will {
        topic: topic.into(),
        payload: bytes::Bytes::from_static(b"gone"),
        qos: QoS::AtLeastOnce,
        retain: true,
        delay: 0,
        properties: PublishProperties::default(),
    }
}

#[tokio::test]
async fn the_engine_knows_of_the_device_before_its_connack() {
    let bench = Bench::new();
    let (_client, connack) = bench.connect(connect(Version::V5)).await;
    assert_eq!(bench.engine.told(), [Told::Connected]);
    assert_eq!(connack.reason, ReasonCode::SUCCESS);
    assert_eq!(
        connack.receive_maximum.map(std::num::NonZeroU16::get),
        Some(100)
    );
    assert_eq!(connack.maximum_packet_size, Some(300 << 10));
    assert_eq!(connack.shared_subscription_available, Some(false));
    assert!(bench.shared.owners.is_connected(&identity()));
}

#[tokio::test]
async fn a_refusal_says_why() {
    let held_off = || Admission::HeldOff(Duration::from_secs(8));
    for (admission, v311, v5) in [
        (
            Admission::Unknown,
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::NOT_AUTHORIZED,
        ),
        (
            Admission::Inhibited,
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::NOT_AUTHORIZED,
        ),
        (
            Admission::Deleting,
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::NOT_AUTHORIZED,
        ),
        (
            Admission::Superseded,
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::NOT_AUTHORIZED,
        ),
        (
            Admission::Revoked,
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::NOT_AUTHORIZED,
        ),
        (
            held_off(),
            ReasonCode::SERVER_UNAVAILABLE,
            ReasonCode::QUOTA_EXCEEDED,
        ),
        (
            Admission::Unavailable,
            ReasonCode::SERVER_UNAVAILABLE,
            ReasonCode::SERVER_UNAVAILABLE,
        ),
    ] {
        let bench = Bench::new();
        bench.engine.admit(admission.clone());
        for (version, reason) in [(Version::V311, v311), (Version::V5, v5)] {
            let (mut client, connack) = bench.connect(connect(version)).await;
            assert_eq!(connack.reason, reason, "{admission:?}");
            client.expect_end().await;
        }
        assert_eq!(bench.engine.told(), []);
        assert!(!bench.shared.owners.is_connected(&identity()));
    }
}

#[tokio::test]
async fn a_device_that_is_inhibited_while_it_is_judged_is_not_let_in() {
    let bench = Bench::new();
    let answers = &bench.engine.answers;
    answers.forget_permits(answers.available_permits());
    let mut client = bench.open(Version::V311);
    let judged = bench.engine.judges();
    client
        .send(Packet::Connect(Box::new(connect(Version::V311))))
        .await;
    judged.await;
    // as the API does it: the row, then the connection, of which there is none yet
    bench.engine.admit(Admission::Inhibited);
    let owners = &bench.shared.owners;
    assert!(!owners.kick(&identity(), DisconnectReason::Inhibited).await);
    answers.add_permits(2);
    let Packet::ConnAck(connack) = client.receive().await else {
        panic!("a CONNACK")
    };
    assert_eq!(connack.reason, ReasonCode::NOT_AUTHORIZED);
    client.expect_end().await;
    assert_eq!(bench.engine.told(), []);
}

#[tokio::test]
async fn fc_090_a_will_outside_the_own_tree_refuses_the_connect() {
    for (topic, v311, v5) in [
        (
            "acme/AAAAAAAAAAAAAAAAAAAAAA/x",
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::NOT_AUTHORIZED,
        ),
        (
            "$SYS/x",
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::NOT_AUTHORIZED,
        ),
    ] {
        let bench = Bench::new();
        for (version, reason) in [(Version::V311, v311), (Version::V5, v5)] {
            let asked = Connect {
                will: Some(will(topic)),
                ..connect(version)
            };
            let (mut client, connack) = bench.connect(asked).await;
            assert_eq!(connack.reason, reason);
            client.expect_end().await;
        }
        assert_eq!(bench.engine.told(), []);
        assert_eq!(bench.shared.counters.connects(ConnectOutcome::BadWill), 2);
    }
}

#[tokio::test]
async fn enhanced_authentication_is_refused() {
    let bench = Bench::new();
    let asked = Connect {
        authentication_method: Some("SCRAM".into()),
        ..connect(Version::V5)
    };
    let (mut client, connack) = bench.connect(asked).await;
    assert_eq!(connack.reason, ReasonCode::BAD_AUTHENTICATION_METHOD);
    client.expect_end().await;
}

#[tokio::test]
async fn fc_054_a_first_packet_that_is_no_connect_reaches_nobody() {
    let bench = Bench::new();
    for bytes in [
        &[0xC0, 0x00][..],
        &[0x30, 0xFF, 0xFF, 0xFF, 0x7F],
        &[0x10, 0xFF, 0xFF, 0xFF, 0x7F],
    ] {
        let mut client = bench.open(Version::V311);
        client.stream.write_all(bytes).await.expect("it is read");
        client.expect_end().await;
    }
    bench.all_gone().await;
    assert_eq!(bench.engine.told(), []);
    assert_eq!(bench.shared.counters.connects(ConnectOutcome::Malformed), 3);
}

#[tokio::test]
async fn an_unknown_level_is_told_so() {
    let bench = Bench::new();
    let mut client = bench.open(Version::V311);
    let bytes = b"\x10\x0e\0\x06MQIsdp\x03\x02\0\x3c\0\0";
    client.stream.write_all(bytes).await.expect("it is read");
    let Packet::ConnAck(connack) = client.receive().await else {
        panic!("no CONNACK")
    };
    assert_eq!(connack.reason, ReasonCode::UNSUPPORTED_PROTOCOL_VERSION);
    client.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn fc_051_a_connect_has_to_be_whole_in_time() {
    let bench = Bench::new();
    let start = tokio::time::Instant::now();
    let mut client = bench.open(Version::V311);
    tokio::task::yield_now().await;
    // one byte now and then does not help
    for byte in b"\x10\x10\0\x04" {
        client.stream.write_all(&[*byte]).await.expect("it is read");
        tokio::time::advance(Duration::from_secs(7)).await;
    }
    client.expect_end().await;
    assert_eq!(start.elapsed().as_secs(), 30);
    bench.all_gone().await;
    assert_eq!(
        bench
            .shared
            .counters
            .connects(ConnectOutcome::ConnectTimeout),
        1
    );
}

#[tokio::test]
async fn fc_082_the_certificate_decides_and_the_client_id_does_not() {
    let bench = Bench::new();
    let asked = Connect {
        client_id: "globex/AAAAAAAAAAAAAAAAAAAAAA".into(),
        ..connect_to_stay(Version::V311)
    };
    let (first, _) = bench.connect(asked).await;
    drop(first);
    let disconnected = Told::Disconnected(DisconnectReason::ConnectionLost);
    bench
        .engine
        .wait_for(|told| told.contains(&disconnected))
        .await;
    let asked = Connect {
        client_id: "".into(),
        ..connect_to_stay(Version::V311)
    };
    let (_second, connack) = bench.connect(asked).await;
    assert!(connack.session_present);
}

#[tokio::test]
async fn on_the_development_listener_the_client_id_is_the_identity() {
    let bench = Bench::new();
    let mut client = bench.open_as(Version::V311, None);
    let asked = Connect {
        client_id: identity().to_string().into(),
        ..connect(Version::V311)
    };
    client.send(Packet::Connect(Box::new(asked))).await;
    assert!(
        matches!(client.receive().await, Packet::ConnAck(connack) if connack.reason == ReasonCode::SUCCESS)
    );
    let mut client = bench.open_as(Version::V311, None);
    client
        .send(Packet::Connect(Box::new(connect(Version::V311))))
        .await;
    let Packet::ConnAck(connack) = client.receive().await else {
        panic!("no CONNACK")
    };
    assert_eq!(connack.reason, ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
}
