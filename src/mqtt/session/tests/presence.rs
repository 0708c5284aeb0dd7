//! How a connection ends, and its will.

use std::time::Duration;

use super::*;
use crate::mqtt::packet::Auth;

fn with_will(version: Version) -> Connect {
    let will = Will {
        topic: format!("{BASE}/t.Dev/str").into(),
        payload: Bytes::from_static(b"gone"),
        qos: QoS::AtLeastOnce,
        retain: true,
        delay: 0,
        properties: PublishProperties::default(),
    };
    Connect {
        will: Some(will),
        ..connect(version)
    }
}

fn bench_with_will(version: Version) -> Bench {
    Bench::start(with_will(version), Limits::default())
}

fn fires(bench: &Bench) -> bool {
    bench
        .closing
        .as_ref()
        .expect("the connection has ended")
        .will
        .is_some()
}

#[test]
fn fc_024_a_second_connect_closes_and_the_will_fires() {
    for (version, code) in [
        (Version::V311, None),
        (Version::V5, Some(ReasonCode::PROTOCOL_ERROR)),
    ] {
        let mut bench = bench_with_will(version);
        bench.receive(Packet::Connect(Box::new(connect(version))));
        assert_eq!(
            bench.closed(),
            (DisconnectReason::ProtocolError, false, code)
        );
        assert!(fires(&bench));
        bench.step(|session, _| session.lost(DisconnectReason::ConnectionLost));
    }
}

#[test]
fn packets_that_a_client_may_not_send_close() {
    for packet in [
        Packet::PingResp,
        Packet::Auth(Auth::default()),
        Packet::ConnAck(Box::default()),
        Packet::SubAck(crate::mqtt::packet::SubAck {
            packet_id: id(1),
            reasons: Vec::new(),
        }),
    ] {
        let mut bench = Bench::new(Version::V5);
        bench.receive(packet);
        let code = Some(ReasonCode::PROTOCOL_ERROR);
        assert_eq!(
            bench.closed(),
            (DisconnectReason::ProtocolError, false, code)
        );
    }
}

#[test]
fn fc_021_a_disconnect_drops_the_will_and_a_takeover_fires_it() {
    let mut bench = bench_with_will(Version::V311);
    bench.receive(Packet::Disconnect(Disconnect::default()));
    assert!(!fires(&bench));
    let mut bench = bench_with_will(Version::V5);
    bench.step(|session, _| session.end(DisconnectReason::TakenOver));
    let code = Some(ReasonCode::SESSION_TAKEN_OVER);
    assert_eq!(bench.closed(), (DisconnectReason::TakenOver, false, code));
    assert!(fires(&bench));
}

#[test]
fn a_disconnect_with_another_code_keeps_the_will() {
    let mut bench = bench_with_will(Version::V5);
    let reason = ReasonCode::DISCONNECT_WITH_WILL;
    bench.receive(Packet::Disconnect(Disconnect {
        reason,
        ..Disconnect::default()
    }));
    assert_eq!(
        bench.closed(),
        (DisconnectReason::ClientDisconnectWithWill, false, None)
    );
    assert!(fires(&bench));
}

#[test]
fn fc_090_a_will_is_judged_when_it_fires() {
    let identity = identity();
    let acl = Acl {
        identity: &identity,
        levels_max: 72,
    };
    let lost = |bench: &mut Bench| {
        bench.step(|session, _| session.lost(DisconnectReason::ConnectionLost));
        bench
            .closing
            .take()
            .and_then(|closing| closing.will)
            .expect("it fires")
    };
    let mut bench = bench_with_will(Version::V311);
    let fired = lost(&mut bench).fire(&acl, &ownership).expect("own topic");
    assert_eq!((fired.denied, &fired.payload[..]), (None, &b"gone"[..]));
    let mut bench = bench_with_will(Version::V311);
    bench.step(|session, _| session.refresh_introspection(declared(&["t.Srv"])));
    let fired = lost(&mut bench).fire(&acl, &ownership).expect("own topic");
    assert_eq!(fired.denied, Some(Denial::InterfaceNotDeclared));
}

#[test]
fn a_will_waits_no_longer_than_its_session_lives() {
    for (session_expiry, delay) in [
        (None, 0),
        (Some(5), 5),
        (Some(60), 10),
        (Some(u32::MAX), 10),
    ] {
        let mut connect = Connect {
            session_expiry,
            ..with_will(Version::V5)
        };
        connect.will.as_mut().expect("it has one").delay = 10;
        let mut bench = Bench::start(connect, Limits::default());
        bench.step(|session, _| session.lost(DisconnectReason::ConnectionLost));
        let will = bench
            .closing
            .and_then(|closing| closing.will)
            .expect("it fires");
        assert_eq!(will.delay, Duration::from_secs(delay), "{session_expiry:?}");
    }
}

#[test]
fn a_disconnect_may_change_the_session_expiry_but_not_from_none() {
    let disconnect = |seconds| {
        Packet::Disconnect(Disconnect {
            session_expiry: Some(seconds),
            ..Disconnect::default()
        })
    };
    let kept = Connect {
        session_expiry: Some(60),
        ..connect(Version::V5)
    };
    let mut bench = Bench::start(kept, Limits::default());
    bench.receive(disconnect(0));
    let expiry = bench.closing.map(|closing| closing.expiry);
    assert_eq!(expiry, Some(SessionExpiry::WithConnection));
    let mut bench = bench_with_will(Version::V5);
    bench.receive(disconnect(60));
    let code = Some(ReasonCode::PROTOCOL_ERROR);
    assert_eq!(
        bench.closed(),
        (DisconnectReason::ProtocolError, false, code)
    );
    assert!(fires(&bench));
}

#[test]
fn a_drain_waits_for_what_is_owed() {
    let mut bench = Bench::new(Version::V5);
    bench.publish(data(QoS::AtLeastOnce, 1));
    bench.receive(Packet::PubRel(ack(2)));
    bench.step(|session, _| session.drain());
    assert!(!bench.session.wants_input() && !bench.session.wants_deliveries());
    bench.commit(0);
    assert!(bench.closing.is_none());
    bench.release(Slot::Release(0), Outcome::Stored);
    let code = Some(ReasonCode::SERVER_SHUTTING_DOWN);
    assert_eq!(bench.closed(), (DisconnectReason::Shutdown, false, code));
    assert_eq!(
        bench.sent[..2],
        [Packet::PubAck(ack(1)), Packet::PubComp(ack(2))]
    );
}

#[test]
fn a_drain_with_nothing_owed_ends_at_once() {
    let mut bench = Bench::new(Version::V311);
    bench.step(|session, _| session.drain());
    assert_eq!(bench.closed(), (DisconnectReason::Shutdown, false, None));
}

#[test]
fn nothing_goes_in_after_the_close() {
    let mut bench = Bench::new(Version::V5);
    bench.publish(data(QoS::AtLeastOnce, 1));
    let slot = bench.submitted[0].slot;
    bench.step(|session, _| session.end(DisconnectReason::Administrative));
    let code = Some(ReasonCode::ADMINISTRATIVE_ACTION);
    assert_eq!(
        bench.closed(),
        (DisconnectReason::Administrative, false, code)
    );
    // the bench fails on any output after the close
    bench.release(slot, Outcome::Stored);
    bench.deliver(queued(1, QoS::AtLeastOnce));
    bench.grant();
    bench.step(|session, context| session.packet(Packet::PingReq, context));
    bench.step(|session, _| session.drain());
}
