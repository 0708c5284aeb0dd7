//! How connections end: timers, takeover, kicks, shutdown, wills.

use std::time::Duration;

use bytes::Bytes;
use tokio::{io::AsyncWriteExt, time::Instant};

use super::bench::{Bench, Told, connect, connect_to_stay, identity, publish, submitted};
use crate::mqtt::{
    DisconnectReason, Outcome,
    broker::BrokerSettings,
    packet::{Connect, Disconnect, Packet, PublishProperties, QoS, ReasonCode, Version, Will},
};

fn with_will(connect: Connect, delay: u32) -> Connect {
    let will = Will {
        topic: format!("{}/t.Dev/str", super::bench::BASE).into(),
        payload: Bytes::from_static(b"gone"),
        qos: QoS::AtLeastOnce,
        retain: false,
        delay,
        properties: PublishProperties::default(),
    };
    Connect {
        will: Some(will),
        ..connect
    }
}

fn will_fired() -> Told {
    submitted("/t.Dev/str", None)
}

fn gone(reason: DisconnectReason) -> Told {
    Told::Disconnected(reason)
}

#[tokio::test]
async fn fc_049_a_silent_peer_is_closed_at_1_5_times_keep_alive() {
    for half_a_packet in [false, true] {
        let bench = Bench::new();
        let asked = Connect {
            keep_alive: 10,
            ..with_will(connect_to_stay(Version::V5), 0)
        };
        let (mut client, _) = bench.connect(asked).await;
        tokio::time::pause();
        let start = Instant::now();
        if half_a_packet {
            tokio::time::advance(Duration::from_secs(9)).await;
            client
                .stream
                .write_all(&[0x30, 0x10, 0])
                .await
                .expect("it is read");
        }
        let Packet::Disconnect(disconnect) = client.receive().await else {
            panic!("no DISCONNECT")
        };
        assert_eq!(disconnect.reason, ReasonCode::KEEP_ALIVE_TIMEOUT);
        assert_eq!(start.elapsed().as_secs(), 15);
        client.expect_end().await;
        tokio::time::resume();
        let told = [
            Told::Connected,
            will_fired(),
            gone(DisconnectReason::KeepAliveTimeout),
        ];
        bench.engine.wait_for(|so_far| so_far == told).await;
    }
}

#[tokio::test]
async fn a_peer_that_pings_in_time_stays() {
    let bench = Bench::new();
    let (mut client, _) = bench
        .connect(Connect {
            keep_alive: 10,
            ..connect(Version::V311)
        })
        .await;
    tokio::time::pause();
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(14)).await;
        client.expect_silence().await;
    }
}

#[tokio::test]
async fn keep_alive_stands_still_while_we_do_not_read() {
    let bench = Bench::new();
    bench.engine.withhold();
    let (mut client, _) = bench
        .connect(Connect {
            keep_alive: 10,
            ..connect(Version::V311)
        })
        .await;
    for number in 1..=101 {
        client
            .send(publish(QoS::AtLeastOnce, number, "/t.Dev/int"))
            .await;
    }
    bench.engine.wait_for(|told| told.len() == 101).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_hours(1)).await;
    bench.engine.next_owed().release(Outcome::Stored);
    assert!(matches!(client.receive().await, Packet::PubAck(_)));
    tokio::time::advance(Duration::from_secs(10)).await;
    client.expect_silence().await;
}

#[tokio::test]
async fn fc_072_a_certificate_that_expires_ends_the_connection() {
    let bench = Bench::new();
    let mut client = bench.open_until(Version::V5, Duration::from_mins(1));
    let asked = Connect {
        keep_alive: 0,
        ..connect_to_stay(Version::V5)
    };
    client.send(Packet::Connect(Box::new(asked))).await;
    assert!(matches!(client.receive().await, Packet::ConnAck(_)));
    tokio::time::pause();
    let start = Instant::now();
    assert!(matches!(client.receive().await, Packet::Disconnect(_)));
    let elapsed = start.elapsed();
    assert!(
        (55..=90).contains(&elapsed.as_secs()),
        "closed after {elapsed:?}"
    );
    tokio::time::resume();
    let reason = gone(DisconnectReason::CertificateExpired);
    bench
        .engine
        .wait_for(|told| told.last() == Some(&reason))
        .await;
}

#[tokio::test]
async fn fc_014_disconnected_comes_before_connected_at_takeover() {
    let bench = Bench::new();
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(bench.connect(connect_to_stay(Version::V311)).await);
    }
    let told = bench.engine.told();
    assert_eq!(told.len(), 99);
    for pair in told.chunks(2) {
        let taken_over = gone(DisconnectReason::TakenOver);
        assert!(
            pair == [Told::Connected, taken_over] || pair == [Told::Connected],
            "{pair:?}"
        );
    }
    assert_eq!(bench.shared.owners.len(), 1);
}

#[tokio::test]
async fn fc_021_the_will_fires_at_takeover_and_not_after_disconnect() {
    let bench = Bench::new();
    let (mut first, _) = bench
        .connect(with_will(connect_to_stay(Version::V5), 0))
        .await;
    let (mut second, _) = bench
        .connect(with_will(connect_to_stay(Version::V5), 0))
        .await;
    let Packet::Disconnect(disconnect) = first.receive().await else {
        panic!("no DISCONNECT")
    };
    assert_eq!(disconnect.reason, ReasonCode::SESSION_TAKEN_OVER);
    second.send(Packet::Disconnect(Disconnect::default())).await;
    let told = [
        Told::Connected,
        will_fired(),
        gone(DisconnectReason::TakenOver),
        Told::Connected,
        gone(DisconnectReason::ClientDisconnect),
    ];
    bench.engine.wait_for(|so_far| so_far == told).await;
}

#[tokio::test]
async fn fc_024_a_second_connect_fires_the_will_once() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(with_will(connect(Version::V311), 0)).await;
    client
        .send(Packet::Connect(Box::new(connect(Version::V311))))
        .await;
    client.expect_end().await;
    bench.all_gone().await;
    let told = bench.engine.told();
    let expected = [Told::Connected, will_fired()];
    assert_eq!(told[..2], expected);
    assert_eq!(told.last(), Some(&gone(DisconnectReason::ProtocolError)));
    assert_eq!(told.iter().filter(|told| **told == will_fired()).count(), 1);
}

#[tokio::test]
async fn fc_015_a_dead_socket_does_not_hold_up_the_next_connection() {
    let mut bench = Bench::new();
    bench.pipe_bytes = 256;
    let (mut dead, _) = bench.connect(connect_to_stay(Version::V311)).await;
    dead.subscribe("/t.Srv/#", QoS::AtLeastOnce).await;
    // more than fits into its pipe, and it reads no more
    for number in 0..50 {
        bench.send(QoS::AtLeastOnce, number).await;
    }
    let next = tokio::time::timeout(
        Duration::from_secs(10),
        bench.connect(connect_to_stay(Version::V311)),
    );
    let (_client, connack) = next.await.expect("let in before the write timeout");
    assert!(connack.session_present);
    let reason = gone(DisconnectReason::TakenOver);
    assert_eq!(
        bench.engine.told(),
        [Told::Connected, reason, Told::Connected]
    );
}

#[tokio::test]
async fn a_device_that_does_not_read_is_dropped() {
    let mut bench = Bench::with(BrokerSettings {
        write_timeout: Duration::from_millis(200),
        ..BrokerSettings::default()
    });
    bench.pipe_bytes = 256;
    let (mut client, _) = bench.connect(connect_to_stay(Version::V311)).await;
    client.subscribe("/t.Srv/#", QoS::AtLeastOnce).await;
    for number in 0..50 {
        bench.send(QoS::AtLeastOnce, number).await;
    }
    let reason = gone(DisconnectReason::SlowConsumer);
    bench
        .engine
        .wait_for(|told| told.last() == Some(&reason))
        .await;
}

#[tokio::test]
async fn fc_017_a_kick_is_seen_as_one_disconnect_with_its_reason() {
    let bench = Bench::new();
    let (mut client, _) = bench.connect(connect_to_stay(Version::V5)).await;
    assert!(
        bench
            .shared
            .owners
            .kick(&identity(), DisconnectReason::Administrative)
            .await
    );
    let Packet::Disconnect(disconnect) = client.receive().await else {
        panic!("no DISCONNECT")
    };
    assert_eq!(disconnect.reason, ReasonCode::ADMINISTRATIVE_ACTION);
    bench.all_gone().await;
    let told = [Told::Connected, gone(DisconnectReason::Administrative)];
    assert_eq!(bench.engine.told(), told);
}

#[tokio::test]
async fn a_stop_acknowledges_what_was_taken_and_then_closes() {
    let bench = Bench::new();
    bench.engine.withhold();
    let (mut client, _) = bench.connect(connect_to_stay(Version::V5)).await;
    client
        .send(publish(QoS::AtLeastOnce, 1, "/t.Dev/int"))
        .await;
    bench.engine.wait_for(|told| told.len() == 2).await;
    bench.shared.drain.cancel();
    client
        .send(publish(QoS::AtLeastOnce, 2, "/t.Dev/int"))
        .await;
    bench.engine.next_owed().release(Outcome::Stored);
    assert!(matches!(client.receive().await, Packet::PubAck(_)));
    let Packet::Disconnect(disconnect) = client.receive().await else {
        panic!("no DISCONNECT")
    };
    assert_eq!(disconnect.reason, ReasonCode::SERVER_SHUTTING_DOWN);
    client.expect_end().await;
    bench.all_gone().await;
    assert_eq!(
        bench.engine.told().last(),
        Some(&gone(DisconnectReason::Shutdown))
    );
}

#[tokio::test]
async fn a_stop_that_lasts_too_long_is_ended_by_a_kick() {
    let bench = Bench::new();
    bench.engine.withhold();
    let (mut client, _) = bench.connect(connect_to_stay(Version::V5)).await;
    client
        .send(publish(QoS::AtLeastOnce, 1, "/t.Dev/int"))
        .await;
    bench.engine.wait_for(|told| told.len() == 2).await;
    bench.shared.drain.cancel();
    assert!(
        bench
            .shared
            .owners
            .kick(&identity(), DisconnectReason::Shutdown)
            .await
    );
    assert!(matches!(client.receive().await, Packet::Disconnect(_)));
    client.expect_end().await;
}

#[tokio::test]
async fn a_delayed_will_is_dropped_when_the_device_is_back_in_time() {
    let bench = Bench::new();
    let (client, _) = bench
        .connect(with_will(connect_to_stay(Version::V5), 5))
        .await;
    drop(client);
    let reason = gone(DisconnectReason::ConnectionLost);
    bench
        .engine
        .wait_for(|told| told.last() == Some(&reason))
        .await;
    assert_eq!(bench.shared.wills.len(), 1);
    let (mut client, connack) = bench.connect(connect_to_stay(Version::V5)).await;
    assert!(connack.session_present);
    client.send(Packet::Disconnect(Disconnect::default())).await;
    bench.all_gone().await;
    assert!(!bench.engine.told().contains(&will_fired()));
    assert!(bench.shared.wills.is_empty());
}

#[tokio::test]
async fn a_delayed_will_fires_after_its_delay_when_a_clean_start_comes_or_at_a_stop() {
    for end in ["delay", "clean start", "stop"] {
        let bench = Bench::new();
        let (client, _) = bench
            .connect(with_will(connect_to_stay(Version::V5), 5))
            .await;
        drop(client);
        let reason = gone(DisconnectReason::ConnectionLost);
        bench
            .engine
            .wait_for(|told| told.last() == Some(&reason))
            .await;
        let kept = match end {
            "delay" => {
                tokio::time::pause();
                None
            }
            "stop" => {
                bench.shared.drain.cancel();
                None
            }
            _ => Some(bench.connect(connect(Version::V5)).await),
        };
        bench
            .engine
            .wait_for(|told| told.contains(&will_fired()))
            .await;
        if end == "delay" {
            tokio::time::resume();
        }
        drop(kept);
        bench.all_gone().await;
        let fired = bench
            .engine
            .told()
            .into_iter()
            .filter(|told| *told == will_fired());
        assert_eq!(fired.count(), 1, "{end}");
    }
}
