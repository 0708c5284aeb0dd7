//! Publishes, acknowledgements, and what must not wait for them.

use super::bench::{Bench, Told, connect, connect_to_stay, publish, submitted};
use crate::mqtt::{
    AfterRefusal, DisconnectReason, Outcome,
    packet::{Acknowledgement, Packet, PacketId, QoS, ReasonCode, Version},
};

fn ack(number: u16) -> Acknowledgement {
    Acknowledgement::success(PacketId::new(number).expect("not 0"))
}

#[tokio::test]
async fn fc_034_no_puback_before_the_commit_and_pingresp_all_the_time() {
    let bench = Bench::new();
    bench.engine.withhold();
    let (mut client, _) = bench.connect(connect(Version::V311)).await;
    for number in 1..=50 {
        client
            .send(publish(QoS::AtLeastOnce, number, "/t.Dev/int"))
            .await;
        client
            .send(publish(QoS::ExactlyOnce, 50 + number, "/t.Dev/int"))
            .await;
    }
    client.expect_silence().await;
    bench.engine.wait_for(|told| told.len() == 101).await;
    for number in 1..=50 {
        bench.engine.next_owed().release(Outcome::Stored);
        bench.engine.next_owed().release(Outcome::Stored);
        assert_eq!(client.receive().await, Packet::PubAck(ack(number)));
        assert_eq!(client.receive().await, Packet::PubRec(ack(50 + number)));
    }
}

#[tokio::test]
async fn qos_2_goes_through_all_its_steps() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect(Version::V5)).await;
    client
        .send(publish(QoS::ExactlyOnce, 7, "/t.Dev/int"))
        .await;
    assert_eq!(client.receive().await, Packet::PubRec(ack(7)));
    client.send(Packet::PubRel(ack(7))).await;
    assert_eq!(client.receive().await, Packet::PubComp(ack(7)));
    let told = [
        Told::Connected,
        submitted("/t.Dev/int", Some(7)),
        Told::Settled(7),
    ];
    assert_eq!(bench.engine.told(), told);
}

#[tokio::test]
async fn acknowledgements_flow_while_the_intake_has_no_room() {
    let bench = Bench::new();
    bench.engine.withhold();
    let (mut client, _) = bench.connect(connect(Version::V311)).await;
    client
        .send(publish(QoS::AtLeastOnce, 1, "/t.Dev/int"))
        .await;
    bench.engine.wait_for(|told| told.len() == 2).await;
    let all = bench.engine.room.available_permits();
    let taken = bench
        .engine
        .room
        .clone()
        .acquire_many_owned(u32::try_from(all).unwrap())
        .await;
    client
        .send(publish(QoS::AtLeastOnce, 2, "/t.Dev/int"))
        .await;
    bench.engine.next_owed().release(Outcome::Stored);
    assert_eq!(client.receive().await, Packet::PubAck(ack(1)));
    assert_eq!(bench.engine.told().len(), 2);
    drop(taken);
    bench.engine.wait_for(|told| told.len() == 3).await;
    bench.engine.next_owed().release(Outcome::Stored);
    assert_eq!(client.receive().await, Packet::PubAck(ack(2)));
}

#[tokio::test]
async fn a_publish_is_submitted_after_the_subscription_before_it_is_stored() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect(Version::V311)).await;
    client
        .subscribe("/control/consumer/properties", QoS::ExactlyOnce)
        .await;
    client
        .send(publish(QoS::AtLeastOnce, 2, "/control/emptyCache"))
        .await;
    assert_eq!(client.receive().await, Packet::PubAck(ack(2)));
}

#[tokio::test]
async fn a_dropped_ack_closes_the_connection() {
    let bench = Bench::new();
    bench.engine.withhold();
    let (mut client, _) = bench.connect(connect(Version::V311)).await;
    client
        .send(publish(QoS::AtLeastOnce, 1, "/t.Dev/int"))
        .await;
    bench.engine.wait_for(|told| told.len() == 2).await;
    drop(bench.engine.next_owed());
    client.expect_end().await;
    let reason = Told::Disconnected(DisconnectReason::InternalError);
    bench
        .engine
        .wait_for(|told| told.last() == Some(&reason))
        .await;
}

#[tokio::test]
async fn a_clean_kick_erases_the_session_and_its_receipts() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect_to_stay(Version::V5)).await;
    client.subscribe("/t.Srv/#", QoS::ExactlyOnce).await;
    bench.engine.withhold();
    client
        .send(publish(QoS::AtLeastOnce, 1, "/t.Dev/int"))
        .await;
    bench.engine.wait_for(|told| told.len() == 2).await;
    let reason = ReasonCode::PAYLOAD_FORMAT_INVALID;
    let refused = Outcome::Refused {
        reason,
        then: AfterRefusal::CleanKick,
    };
    bench.engine.next_owed().release(refused);
    assert_eq!(
        client.receive().await,
        Packet::PubAck(Acknowledgement { reason, ..ack(1) })
    );
    let Packet::Disconnect(disconnect) = client.receive().await else {
        panic!("no DISCONNECT")
    };
    assert_eq!(disconnect.reason, reason);
    client.expect_end().await;
    let (_client, connack) = bench.connect(connect_to_stay(Version::V5)).await;
    assert!(!connack.session_present);
    let told = bench.engine.told();
    assert!(matches!(told[2], Told::Forgot(_)), "{told:?}");
    assert_eq!(
        told[3..],
        [
            Told::Disconnected(DisconnectReason::CleanKick),
            Told::Connected
        ]
    );
}

#[tokio::test]
async fn a_foreign_publish_closes_with_0x87() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect(Version::V5)).await;
    let Packet::Publish(own) = publish(QoS::AtLeastOnce, 1, "/t.Dev/int") else {
        unreachable!()
    };
    let foreign = crate::mqtt::packet::Publish {
        topic: "acme/x".into(),
        ..own
    };
    client.send(Packet::Publish(foreign)).await;
    let Packet::Disconnect(disconnect) = client.receive().await else {
        panic!("no DISCONNECT")
    };
    assert_eq!(disconnect.reason, ReasonCode::NOT_AUTHORIZED);
    client.expect_end().await;
    let reason = Told::Disconnected(DisconnectReason::NotAuthorized);
    bench
        .engine
        .wait_for(|told| told.last() == Some(&reason))
        .await;
}

#[tokio::test]
async fn a_malformed_packet_closes_that_connection() {
    use tokio::io::AsyncWriteExt;
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect(Version::V5)).await;
    // SUBSCRIBE that ends inside its filter
    client
        .stream
        .write_all(&[0x82, 0x05, 0, 1, 0, 0, 9])
        .await
        .expect("it is read");
    let Packet::Disconnect(disconnect) = client.receive().await else {
        panic!("no DISCONNECT")
    };
    assert_eq!(disconnect.reason, ReasonCode::MALFORMED_PACKET);
    client.expect_end().await;
}

#[tokio::test]
async fn a_burst_is_served_whole() {
    let bench = Bench::new();
    let (client, _) = bench.connect(connect(Version::V311)).await;
    let bench = &bench;
    let mut client = client;
    for round in 0..20_u16 {
        for number in 1..=100 {
            client
                .send(publish(
                    QoS::AtLeastOnce,
                    round * 100 + number,
                    "/t.Dev/int",
                ))
                .await;
        }
        for number in 1..=100 {
            assert_eq!(
                client.receive().await,
                Packet::PubAck(ack(round * 100 + number))
            );
        }
    }
    assert_eq!(bench.engine.told().len(), 2_001);
}
