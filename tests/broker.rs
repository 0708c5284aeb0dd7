//! The broker alone: who is let in, what is owed when it stops, and what reaches a device.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tanit::mqtt::{
    DisconnectReason,
    broker::{BrokerError, BrokerSettings, ConnectOutcome},
    packet::QoS,
    publisher::{OutboundMessage, Published},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::harness::{
    broker::{BrokerDevice, TestBroker, eventually, realm},
    device::{RawDevice, connect, connect_v5},
    product::PATIENCE,
};

fn command(device: &BrokerDevice, payload: &'static str, qos: QoS) -> OutboundMessage {
    OutboundMessage {
        identity: device.identity.clone(),
        topic: "/t.SrvCmd/cmd".to_owned(),
        payload: Bytes::from_static(payload.as_bytes()),
        qos,
        retain: false,
        expires_at: None,
        property: false,
        major: None,
        id: None,
    }
}

fn outcomes(broker: &TestBroker, outcome: ConnectOutcome) -> u64 {
    broker.broker.counters().connects(outcome)
}

#[tokio::test]
async fn puback_waits_for_the_engine_and_pings_do_not() {
    let broker = TestBroker::start().await;
    let device = broker.device();
    let (mut raw, _) = broker.connect(&device, true).await;
    broker.recorder.stall();
    let ids = [
        raw.send_publish("t.Dev/a", b"1", 1).await,
        raw.send_publish("t.Dev/a", b"2", 1).await,
        raw.send_publish("t.Dev/a", b"3", 1).await,
    ];
    raw.expect_only_pong().await;
    eventually("three messages", || {
        broker.recorder.look().messages.len() == 3
    })
    .await;
    // committed in another order; acknowledged in that of the device
    broker.recorder.go_on();
    for id in ids {
        assert_eq!(raw.expect(4).await.id(), id);
    }
}

#[tokio::test]
async fn a_stock_client_connects_publishes_and_receives() {
    let broker = TestBroker::start().await;
    let device = broker.device();
    let base = device.identity.to_string();
    let mut options = rumqttc::MqttOptions::new("stock", "localhost", broker.address().port());
    let tls = rumqttc::TlsConfiguration::Rustls(Arc::clone(&device.tls));
    options.set_transport(rumqttc::Transport::Tls(tls));
    let (client, mut events) = rumqttc::AsyncClient::new(options, 10);
    client
        .subscribe(format!("{base}/t.SrvCmd/#"), rumqttc::QoS::ExactlyOnce)
        .await
        .unwrap();
    let topic = format!("{base}/t.Dev/a");
    client
        .publish(topic, rumqttc::QoS::ExactlyOnce, false, "value")
        .await
        .unwrap();
    let (mut completed, mut received) = (false, false);
    while !(completed && received) {
        use rumqttc::{Event, Packet};
        match timeout(PATIENCE, events.poll())
            .await
            .expect("in time")
            .expect("stays")
        {
            Event::Incoming(Packet::SubAck(_)) => {
                let publisher = broker.broker.publisher();
                let sent = command(&device, "command", QoS::ExactlyOnce);
                assert_eq!(publisher.publish(sent).await, Published::Delivered);
            }
            Event::Incoming(Packet::PubComp(_)) => completed = true,
            Event::Incoming(Packet::Publish(publish)) => {
                assert_eq!(
                    (&publish.payload[..], publish.qos as u8),
                    (&b"command"[..], 2)
                );
                received = true;
            }
            _ => {}
        }
    }
    let topic = format!("{base}/t.Dev/a");
    assert_eq!(
        broker.recorder.look().messages,
        [(topic, b"value".to_vec())]
    );
}

#[tokio::test]
async fn fc_001_a_value_for_an_absent_device_arrives_after_a_restart_and_once() {
    let mut broker = TestBroker::start().await;
    let device = broker.device();
    let (mut raw, present) = broker.connect(&device, false).await;
    assert!(!present);
    raw.subscribe(&[("t.SrvCmd/#", 1)]).await;
    raw.disconnect().await;
    broker.restart(BrokerSettings::default()).await;
    let publisher = broker.broker.publisher();
    let outcome = publisher
        .publish(command(&device, "1", QoS::AtLeastOnce))
        .await;
    assert_eq!(outcome, Published::Queued { until: None });
    let (mut raw, present) = broker.connect(&device, false).await;
    assert!(present);
    assert_eq!(raw.receive().await.payload, b"1");
    // nothing is left, and what comes now comes at once
    let outcome = publisher
        .publish(command(&device, "2", QoS::AtLeastOnce))
        .await;
    assert!(matches!(
        outcome,
        Published::Delivered | Published::Queued { .. }
    ));
    assert_eq!(raw.receive().await.payload, b"2");
    raw.expect_only_pong().await;
}

#[tokio::test]
async fn fc_014_presence_alternates_over_takeovers() {
    let broker = TestBroker::start().await;
    let device = broker.device();
    let (mut current, _) = broker.connect(&device, false).await;
    for _ in 0..30 {
        let (next, present) = broker.connect(&device, false).await;
        assert!(present);
        current.expect_closed().await;
        current = next;
    }
    assert!(broker.broker.is_connected(&device.identity));
    assert_eq!(broker.broker.live_sessions(), 1);
    assert!(
        broker
            .broker
            .disconnect(&device.identity, DisconnectReason::Administrative)
            .await
    );
    // it returned once everything was said
    let presence = broker.recorder.look().presence.clone();
    assert_eq!(presence.len(), 62);
    for (place, (_, ended)) in presence.iter().enumerate() {
        let expected = match place {
            61 => Some(DisconnectReason::Administrative),
            odd if odd % 2 == 1 => Some(DisconnectReason::TakenOver),
            _ => None,
        };
        assert_eq!(*ended, expected, "event {place}");
    }
    assert_eq!(broker.broker.live_sessions(), 0);
    assert!(
        !broker
            .broker
            .disconnect(&device.identity, DisconnectReason::Administrative)
            .await
    );
}

#[tokio::test]
async fn a_ca_that_is_removed_and_a_certificate_that_is_revoked_end_live_connections() {
    let broker = TestBroker::start().await;
    let (revoked, other) = (broker.device(), broker.device());
    let (mut first, _) = broker.connect(&revoked, false).await;
    let (mut second, _) = broker.connect(&other, false).await;
    assert_eq!(broker.broker.reverify().await, 0);
    broker.trust(vec![(revoked.identity.device, revoked.serial.clone())]);
    assert_eq!(broker.broker.reverify().await, 1);
    first.expect_closed().await;
    second.expect_only_pong().await;
    broker.pools.remove(&realm());
    assert_eq!(broker.broker.reverify().await, 1);
    second.expect_closed().await;
    let ended: Vec<_> = broker
        .recorder
        .look()
        .presence
        .iter()
        .filter_map(|(_, ended)| *ended)
        .collect();
    assert_eq!(
        ended,
        [DisconnectReason::Revoked, DisconnectReason::CaRemoved]
    );
    // and nobody comes in: in TLS 1.3 the client learns it when it reads
    if let Ok(mut raw) = broker.open(&other).await {
        raw.send_anyway(&connect("any", true, 60)).await;
        assert!(raw.next().await.is_none());
    }
    assert_eq!(outcomes(&broker, ConnectOutcome::CertificateRefused), 1);
}

#[tokio::test]
async fn an_erased_session_is_gone_with_its_receipts() {
    let broker = TestBroker::start().await;
    let device = broker.device();
    let (mut raw, _) = broker.connect(&device, false).await;
    raw.subscribe(&[("t.SrvCmd/#", 1)]).await;
    let epoch = broker
        .broker
        .erase_session(&device.identity)
        .await
        .expect("works");
    raw.expect_closed().await;
    let epoch = epoch.expect("there was one");
    assert_eq!(
        broker.recorder.look().forgotten,
        [(device.identity.clone(), epoch)]
    );
    let publisher = broker.broker.publisher();
    let outcome = publisher
        .publish(command(&device, "1", QoS::AtLeastOnce))
        .await;
    assert_eq!(outcome, Published::NoSession);
    let (_raw, present) = broker.connect(&device, false).await;
    assert!(!present);
}

#[tokio::test]
async fn closing_waits_for_owed_acknowledgements_and_tells_5_0_clients() {
    let broker = TestBroker::start().await;
    let (old, new) = (broker.device(), broker.device());
    let (mut first, _) = broker.connect(&old, false).await;
    let mut second = broker.open(&new).await.expect("TLS");
    second.send(&connect_v5("any", true, 60, &[])).await;
    assert_eq!(second.next().await.expect("CONNACK").kind(), 2);
    broker.recorder.stall();
    let id = first.send_publish("t.Dev/a", b"1", 1).await;
    eventually("the message", || broker.recorder.look().messages.len() == 1).await;
    let handle = broker.broker.clone();
    let tracker = tokio_util::task::TaskTracker::new();
    let closing = tracker.spawn(async move { handle.close(PATIENCE).await });
    let goodbye = second.next().await.expect("a DISCONNECT");
    assert_eq!((goodbye.kind(), goodbye.body[0]), (14, 0x8b));
    assert!(second.next().await.is_none());
    assert!(!closing.is_finished());
    broker.recorder.go_on();
    assert_eq!(first.expect(4).await.id(), id);
    first.expect_closed().await;
    assert!(closing.await.expect("no panic"), "all in time");
    assert!(
        TcpStream::connect(broker.address()).await.is_err(),
        "nobody listens"
    );
    let ended = broker
        .recorder
        .look()
        .presence
        .iter()
        .filter(|(_, ended)| ended.is_some())
        .count();
    assert_eq!(ended, 2);
}

#[tokio::test]
async fn what_does_not_end_in_the_grace_is_dropped() {
    let broker = TestBroker::start().await;
    let device = broker.device();
    let (mut raw, _) = broker.connect(&device, false).await;
    broker.recorder.stall();
    raw.send_publish("t.Dev/a", b"1", 1).await;
    eventually("the message", || broker.recorder.look().messages.len() == 1).await;
    assert!(!broker.broker.close(Duration::from_millis(50)).await);
    assert!(
        raw.expect_closed().await.is_empty(),
        "nothing was acknowledged"
    );
}

#[tokio::test]
async fn fc_051_idle_strangers_cannot_stay_and_good_connections_are_untouched() {
    let limit = Duration::from_millis(400);
    let settings = BrokerSettings {
        handshake_timeout: limit,
        connect_timeout: limit,
        ..BrokerSettings::default()
    };
    let broker = TestBroker::start_with(settings).await;
    let device = broker.device();
    let (mut good, _) = broker.connect(&device, false).await;

    // TCP and nothing
    let mut silent = TcpStream::connect(broker.address())
        .await
        .expect("connects");
    assert_closed(&mut silent).await;
    assert_eq!(outcomes(&broker, ConnectOutcome::HandshakeTimeout), 1);

    // one byte of a ClientHello after the other: the limit is total
    let mut slow = TcpStream::connect(broker.address())
        .await
        .expect("connects");
    let dripping = async {
        for byte in [0x16, 3, 1, 2, 0, 1].iter().cycle() {
            if slow.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(limit / 10).await;
        }
    };
    timeout(PATIENCE, dripping).await.expect("is closed");
    assert_eq!(outcomes(&broker, ConnectOutcome::HandshakeTimeout), 2);

    // TLS and nothing
    let stranger = broker.device();
    let mut idle = broker.open(&stranger).await.expect("TLS is accepted");
    assert!(idle.expect_closed().await.is_empty());
    assert_eq!(outcomes(&broker, ConnectOutcome::ConnectTimeout), 1);

    good.expect_only_pong().await;
}

/// The peer closes without a word.
async fn assert_closed(stream: &mut TcpStream) {
    let mut byte = [0];
    let read = timeout(PATIENCE, stream.read(&mut byte))
        .await
        .expect("is closed");
    assert!(matches!(read, Ok(0) | Err(_)));
}

#[tokio::test]
async fn fc_052_beyond_the_limits_sockets_are_closed_before_any_work() {
    let settings = BrokerSettings {
        connections_max: 3,
        connections_per_address_max: 2,
        ..BrokerSettings::default()
    };
    let broker = TestBroker::start_with(settings).await;
    let (one, two) = (broker.device(), broker.device());
    let (mut first, _) = broker.connect(&one, false).await;
    let (second, _) = broker.connect(&two, false).await;
    let mut third = TcpStream::connect(broker.address())
        .await
        .expect("connects");
    assert_closed(&mut third).await;
    assert_eq!(outcomes(&broker, ConnectOutcome::TooManyFromAddress), 1);
    first.expect_only_pong().await;
    second.disconnect().await;
    eventually("its place is free", || broker.broker.live_sessions() == 1).await;
    let (mut again, _) = reconnect(&broker, &two).await;
    again.expect_only_pong().await;
}

/// Connects; a place may still be being given back.
async fn reconnect(broker: &TestBroker, device: &BrokerDevice) -> (RawDevice, bool) {
    let connecting = async {
        loop {
            if let Ok(mut raw) = broker.open(device).await {
                let present = raw.connect("any", false, 60).await;
                return (raw, present);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, connecting).await.expect("is let in")
}

#[tokio::test]
async fn a_tls_1_2_client_without_aead_is_counted_apart() {
    let broker = TestBroker::start().await;
    let mut hello = vec![3, 3];
    hello.extend([7; 32]); // random
    hello.push(0); // session id
    hello.extend([0, 2, 0xc0, 0x23]); // TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256
    hello.extend([1, 0]); // no compression
    let extensions = [
        0, 10, 0, 4, 0, 2, 0, 0x17, // supported groups: secp256r1
        0, 13, 0, 4, 0, 2, 4, 3, // signature algorithms: ecdsa_secp256r1_sha256
        0, 23, 0, 0, // extended master secret
    ];
    hello.extend([0, u8::try_from(extensions.len()).expect("short")]);
    hello.extend(extensions);
    let length = u8::try_from(hello.len()).expect("short");
    let mut record = vec![0x16, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(hello);
    let mut stream = TcpStream::connect(broker.address())
        .await
        .expect("connects");
    stream.write_all(&record).await.expect("is sent");
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("is closed");
    assert_eq!(answer.first(), Some(&0x15), "an alert: {answer:02x?}");
    eventually("counted", || {
        outcomes(&broker, ConnectOutcome::HandshakeUnsupported) == 1
    })
    .await;
}

#[tokio::test]
async fn the_development_listener_takes_the_claimed_identity_and_stays_on_loopback() {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = BrokerSettings {
        insecure_dev_listen: Some(loopback),
        ..BrokerSettings::default()
    };
    let broker = TestBroker::start_with(settings).await;
    let address = broker.broker.addresses().insecure_dev.expect("listens");
    for (client_id, code) in [("acme/Zm9vYmFyYmF6cXV4MTIzNA", 0), ("nobody", 2)] {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream
            .write_all(&connect(client_id, true, 60))
            .await
            .expect("is sent");
        let mut answer = [0; 4];
        timeout(PATIENCE, stream.read_exact(&mut answer))
            .await
            .expect("in time")
            .expect("CONNACK");
        assert_eq!(answer, [0x20, 2, 0, code], "{client_id}");
    }
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let settings = BrokerSettings {
        listen: None,
        insecure_dev_listen: Some(anywhere),
        ..BrokerSettings::default()
    };
    let refused = broker.try_another(settings).await;
    assert!(matches!(refused, Err(BrokerError::NotLoopback { .. })));
}
