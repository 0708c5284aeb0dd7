//! To the device: window, resumption, expiry, access matrix, sizes.

use std::time::Duration;

use super::*;
use crate::mqtt::sessions::FlowState;

const ONE: QoS = QoS::AtLeastOnce;
const TWO: QoS = QoS::ExactlyOnce;

/// Packet id and DUP of the PUBLISH packets sent since the last call.
fn published(bench: &mut Bench) -> Vec<(u16, bool)> {
    let published = |packet| match packet {
        Packet::Publish(publish) => Some((publish.packet_id.map_or(0, PacketId::get), publish.dup)),
        _ => None,
    };
    bench.sent().into_iter().filter_map(published).collect()
}

fn small_window(version: Version) -> Bench {
    let limits = Limits {
        inflight_max: 1,
        ..Limits::default()
    };
    Bench::start(connect(version), limits)
}

#[test]
fn messages_wait_for_room_in_the_window() {
    let mut bench = small_window(Version::V311);
    bench.deliver(queued(1, ONE));
    bench.deliver(queued(2, TWO));
    assert_eq!(published(&mut bench), [(1, false)]);
    assert!(!bench.session.wants_deliveries());
    bench.receive(Packet::PubAck(ack(1)));
    assert_eq!(published(&mut bench), [(2, false)]);
    let settled = Effect::SettleQueued(1, Settled::Delivered);
    assert_eq!(
        bench.effects(),
        [Effect::MarkSent(1), settled, Effect::MarkSent(2)]
    );
    assert!(bench.session.wants_deliveries());
}

#[test]
fn the_clients_receive_maximum_narrows_the_window() {
    let connect = Connect {
        receive_maximum: std::num::NonZeroU16::new(2),
        ..connect(Version::V5)
    };
    let mut bench = Bench::start(connect, Limits::default());
    for seq in 1..=3 {
        bench.deliver(queued(seq, ONE));
    }
    assert_eq!(published(&mut bench), [(1, false), (2, false)]);
}

#[test]
fn qos_0_needs_no_room() {
    let mut bench = small_window(Version::V311);
    bench.deliver(queued(1, ONE));
    bench.deliver(queued(2, ONE));
    bench.step(|session, context| {
        session.deliver_qos0(message(QoS::AtMostOnce), context);
    });
    assert_eq!(published(&mut bench), [(1, false), (0, false)]);
}

#[test]
fn pubrel_waits_until_pubrec_is_on_disk() {
    let mut bench = Bench::new(Version::V311);
    bench.deliver(queued(1, TWO));
    bench.sent();
    bench.effects();
    bench.receive(Packet::PubRec(ack(1)));
    bench.receive(Packet::PubRec(ack(1)));
    assert_eq!(
        (bench.effects(), bench.sent()),
        (vec![Effect::MarkReceived(1)], vec![])
    );
    bench.marked(1);
    bench.receive(Packet::PubRec(ack(1)));
    assert_eq!(bench.sent(), vec![Packet::PubRel(ack(1)); 2]);
    bench.receive(Packet::PubComp(ack(1)));
    assert_eq!(
        bench.effects(),
        [Effect::SettleQueued(1, Settled::Delivered)]
    );
    assert_eq!(bench.session.outbound.flows(), 0);
}

#[test]
fn a_pubrec_that_cannot_be_written_down_ends_the_connection() {
    let mut bench = Bench::new(Version::V311);
    bench.deliver(queued(1, TWO));
    bench.receive(Packet::PubRec(ack(1)));
    bench.step(|session, _| session.marked_received(1, false));
    assert_eq!(bench.closed().0, DisconnectReason::InternalError);
}

#[test]
fn fc_008_flows_are_resumed_with_their_ids_and_in_order() {
    let mut bench = Bench::new(Version::V311);
    let with = |seq, state| Queued {
        state,
        ..queued(seq, TWO)
    };
    bench.deliver(with(1, FlowState::Received));
    bench.deliver(with(2, FlowState::Sent));
    bench.deliver(with(3, FlowState::Sent));
    bench.deliver(with(4, FlowState::Waiting));
    assert_eq!(bench.sent[0], Packet::PubRel(ack(1)));
    assert_eq!(published(&mut bench), [(2, true), (3, true), (4, false)]);
    assert_eq!(bench.effects(), [Effect::MarkSent(4)]);
    bench.receive(Packet::PubComp(ack(1)));
    assert_eq!(
        bench.effects(),
        [Effect::SettleQueued(1, Settled::Delivered)]
    );
}

#[test]
fn a_message_that_was_seen_is_skipped() {
    let mut bench = Bench::new(Version::V311);
    bench.deliver(queued(2, ONE));
    bench.deliver(queued(2, ONE));
    bench.deliver(queued(1, ONE));
    assert_eq!(published(&mut bench), [(2, false)]);
    assert_eq!(bench.session.last_seq(), 2);
}

#[test]
fn what_is_over_is_not_sent_but_what_was_begun_is_finished() {
    let mut bench = Bench::new(Version::V5);
    let over = |seq, state| {
        let message = Message {
            expires_at: Some(bench.now),
            ..message(ONE)
        };
        Queued {
            state,
            message,
            ..queued(seq, ONE)
        }
    };
    let (waiting, sent) = (over(1, FlowState::Waiting), over(2, FlowState::Sent));
    bench.deliver(waiting);
    bench.deliver(sent);
    assert_eq!(published(&mut bench), [(2, true)]);
    assert_eq!(bench.effects(), [Effect::SettleQueued(1, Settled::Expired)]);
}

#[test]
fn the_remaining_expiry_is_told_in_5_0() {
    for (version, told) in [(Version::V311, None), (Version::V5, Some(3))] {
        let mut bench = Bench::new(version);
        let expires_at = Some(bench.now.saturating_add(Duration::from_millis(2_001)));
        let message = Message {
            expires_at,
            subscription_ids: vec![4],
            ..message(ONE)
        };
        bench.deliver(Queued {
            message,
            ..queued(1, ONE)
        });
        let Some(Packet::Publish(publish)) = bench.sent.first() else {
            panic!("nothing sent")
        };
        assert_eq!(publish.properties.message_expiry, told);
        assert_eq!(
            publish.subscription_ids.is_empty(),
            version == Version::V311
        );
    }
}

#[test]
fn fc_096_the_access_matrix_is_asked_at_delivery() {
    let mut bench = Bench::new(Version::V311);
    bench.step(|session, _| session.refresh_introspection(declared(&["t.Dev"])));
    bench.deliver(queued(1, ONE));
    assert_eq!(bench.effects(), [Effect::SettleQueued(1, Settled::Refused)]);
    assert_eq!(bench.sent(), []);
    bench.step(|session, _| session.refresh_introspection(declared(&["t.Srv"])));
    bench.deliver(queued(2, ONE));
    assert_eq!(published(&mut bench), [(2, false)]);
}

#[test]
fn what_is_too_large_for_the_client_is_settled_and_takes_no_room() {
    let connect = Connect {
        maximum_packet_size: Some(60),
        ..connect(Version::V5)
    };
    let mut bench = Bench::start(
        connect,
        Limits {
            inflight_max: 1,
            ..Limits::default()
        },
    );
    let large = Message {
        payload: Bytes::from(vec![0; 60]),
        ..message(ONE)
    };
    bench.deliver(Queued {
        message: large,
        ..queued(1, ONE)
    });
    bench.deliver(queued(2, ONE));
    assert_eq!(published(&mut bench), [(2, false)]);
    assert_eq!(
        bench.effects()[0],
        Effect::SettleQueued(1, Settled::TooLarge)
    );
}

#[test]
fn an_unknown_pubrec_is_answered_by_pubrel() {
    for (version, code) in [
        (Version::V311, ReasonCode::SUCCESS),
        (Version::V5, ReasonCode::PACKET_IDENTIFIER_NOT_FOUND),
    ] {
        let mut bench = Bench::new(version);
        bench.receive(Packet::PubRec(ack(5)));
        bench.receive(Packet::PubAck(ack(5)));
        bench.receive(Packet::PubComp(ack(5)));
        assert_eq!(bench.sent(), [Packet::PubRel(coded(5, code))]);
    }
}

#[test]
fn a_client_that_refuses_ends_the_flow() {
    let mut bench = Bench::new(Version::V5);
    bench.deliver(queued(1, ONE));
    bench.deliver(queued(2, TWO));
    bench.effects();
    bench.receive(Packet::PubAck(coded(1, ReasonCode::UNSPECIFIED_ERROR)));
    bench.receive(Packet::PubRec(coded(2, ReasonCode::QUOTA_EXCEEDED)));
    let refused = |seq| Effect::SettleQueued(seq, Settled::Refused);
    assert_eq!(bench.effects(), [refused(1), refused(2)]);
    assert_eq!(bench.session.outbound_room(), 100);
}

#[test]
fn fc_028_ids_of_both_sides_are_apart() {
    let mut bench = Bench::new(Version::V311);
    bench.deliver(queued(1, ONE));
    bench.publish(data(TWO, 1));
    bench.commit(0);
    bench.receive(Packet::PubRel(ack(1)));
    bench.release(Slot::Release(0), Outcome::Stored);
    bench.receive(Packet::PubAck(ack(1)));
    let settled = Effect::SettleQueued(1, Settled::Delivered);
    assert_eq!(bench.effects().last(), Some(&settled));
    assert_eq!(bench.sent.last(), Some(&Packet::PubComp(ack(1))));
    assert_eq!(
        (
            bench.session.outbound_room(),
            bench.session.inbound.held_ids()
        ),
        (100, 0)
    );
    assert_eq!(bench.submitted.len(), 1);
}

#[test]
fn a_retained_message_gives_way_to_the_flow_that_owns_its_id() {
    let mut bench = Bench::new(Version::V311);
    let subscription = Subscription {
        filter: format!("{BASE}/#").into(),
        options: SubscribeOptions {
            qos: ONE,
            ..SubscribeOptions::default()
        },
        id: None,
    };
    let retained = vec![message(TWO)];
    bench.step(|session, context| session.retained(&subscription, retained, context));
    let Some(Packet::Publish(publish)) = bench.sent.pop() else {
        panic!("nothing sent")
    };
    assert_eq!((publish.qos, publish.retain), (ONE, true));
    let packet_id = publish.packet_id.expect("QoS 1");
    bench.deliver(Queued {
        packet_id,
        ..queued(9, ONE)
    });
    assert_eq!(bench.sent(), [], "two flows never share an id");
    bench.receive(Packet::PubAck(Acknowledgement::success(packet_id)));
    assert_eq!(published(&mut bench), [(packet_id.get(), false)]);
}

#[test]
fn fc_120_what_was_written_for_one_major_is_not_sent_to_the_next() {
    let of = |major, seq, state| {
        let message = Message {
            major: Some(major),
            ..message(ONE)
        };
        Queued {
            state,
            message,
            ..queued(seq, ONE)
        }
    };
    let mut bench = small_window(Version::V311);
    bench.deliver(of(1, 1, FlowState::Waiting));
    bench.deliver(of(1, 2, FlowState::Waiting));
    assert_eq!(published(&mut bench), [(1, false)]);
    assert_eq!(bench.effects(), [Effect::MarkSent(1)]);

    // it goes to another major, which rules from then on, before it is committed
    bench.publish(Publish {
        payload: Bytes::from_static(b"t.Srv:2:0"),
        ..publish(TWO, 7, "")
    });
    // what is under way is brought to its end, what waits behind it is not begun
    bench.receive(Packet::PubAck(ack(1)));
    assert_eq!(published(&mut bench), []);
    let settled = [
        Effect::SettleQueued(1, Settled::Delivered),
        Effect::SettleQueued(2, Settled::Refused),
    ];
    assert_eq!(bench.effects(), settled);

    // nor does it come again, and what is for the new major comes
    bench.deliver(of(1, 3, FlowState::Sent));
    bench.deliver(of(1, 4, FlowState::Received));
    bench.deliver(of(2, 5, FlowState::Waiting));
    assert_eq!(bench.sent.first(), Some(&Packet::PubRel(ack(4))));
    assert_eq!(published(&mut bench), [(5, false)]);
    let settled = [
        Effect::SettleQueued(3, Settled::Refused),
        Effect::MarkSent(5),
    ];
    assert_eq!(bench.effects(), settled);
    let of_qos_0 = of(1, 6, FlowState::Waiting).message;
    bench.step(|session, context| session.deliver_qos0(of_qos_0, context));
    assert_eq!(published(&mut bench), []);
}
