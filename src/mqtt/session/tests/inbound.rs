//! From the device: window, acknowledgements, QoS 2, refusals, introspection, aliases.

use super::*;
use crate::mqtt::Denial;

const ONE: QoS = QoS::AtLeastOnce;
const TWO: QoS = QoS::ExactlyOnce;

#[test]
fn acknowledgements_keep_the_order_of_the_publishes() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(data(ONE, 1));
    bench.publish(data(TWO, 2));
    bench.publish(data(QoS::AtMostOnce, 0));
    bench.publish(data(ONE, 3));
    bench.commit(3);
    bench.commit(1);
    assert_eq!(bench.sent(), []);
    bench.commit(0);
    assert_eq!(
        bench.sent(),
        [Packet::PubAck(ack(1)), Packet::PubRec(ack(2))]
    );
    bench.commit(2);
    assert_eq!(bench.sent(), [Packet::PubAck(ack(3))]);
}

#[test]
fn a_client_with_exactly_a_window_in_flight_is_answered() {
    let mut bench = Bench::new(Version::V311);
    for number in 1..=100 {
        bench.publish(data(ONE, number));
    }
    bench.receive(Packet::PingReq);
    assert_eq!(bench.sent(), [Packet::PingResp]);
    assert_eq!(bench.submitted.len(), 100);
}

#[test]
fn a_publish_beyond_the_window_is_held_and_reading_stops() {
    let mut bench = Bench::new(Version::V311);
    for _ in 0..100 {
        bench.publish(data(QoS::AtMostOnce, 0));
    }
    bench.publish(data(ONE, 7));
    assert!(!bench.session.wants_input());
    assert_eq!(bench.submitted.len(), 100);
    bench.commit(1);
    assert!(
        !bench.session.wants_input(),
        "the place of a later message is not free yet"
    );
    bench.commit(0);
    assert!(bench.session.wants_input());
    assert_eq!(bench.submitted.len(), 101);
}

#[test]
fn a_message_larger_than_the_byte_window_goes_alone() {
    let mut bench = Bench::new(Version::V311);
    let large = Publish {
        payload: Bytes::from(vec![0; 299 << 10]),
        ..data(ONE, 1)
    };
    bench.publish(large.clone());
    assert_eq!(bench.submitted.len(), 1);
    bench.publish(data(ONE, 2));
    assert_eq!(
        (bench.submitted.len(), bench.session.wants_input()),
        (1, false)
    );
    bench.commit(0);
    assert_eq!(
        (bench.submitted.len(), bench.session.wants_input()),
        (2, true)
    );
    bench.publish(Publish {
        packet_id: Some(id(3)),
        ..large
    });
    assert_eq!(
        (bench.submitted.len(), bench.session.wants_input()),
        (2, false)
    );
}

#[test]
fn reading_stops_while_the_intake_has_no_room() {
    let mut bench = Bench::new(Version::V311);
    bench.grants = false;
    bench.publish(data(ONE, 1));
    assert_eq!(
        (bench.reservations, bench.session.wants_input()),
        (1, false)
    );
    bench.grant();
    assert_eq!(
        (bench.submitted.len(), bench.session.wants_input()),
        (1, true)
    );
    bench.grant();
    assert_eq!(bench.submitted.len(), 1, "a permit is good for one message");
}

#[test]
fn fc_026_a_repeated_qos_2_publish_is_acknowledged_each_time_and_submitted_once() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(data(TWO, 7));
    bench.commit(0);
    for _ in 0..5 {
        bench.publish(Publish {
            dup: true,
            ..data(TWO, 7)
        });
    }
    assert_eq!(bench.sent(), vec![Packet::PubRec(ack(7)); 6]);
    bench.receive(Packet::PubRel(ack(7)));
    assert_eq!(bench.sent(), [], "PUBCOMP waits until the receipt is gone");
    let slot = Slot::Release(0);
    assert_eq!(
        bench.effects(),
        [Effect::Settle {
            slot: Some(slot),
            packet_id: id(7)
        }]
    );
    bench.release(slot, Outcome::Stored);
    assert_eq!(bench.sent(), [Packet::PubComp(ack(7))]);
    assert_eq!(bench.submitted.len(), 1);
    bench.publish(data(TWO, 7));
    assert_eq!(bench.submitted.len(), 2, "the id is free again");
}

#[test]
fn fc_026_a_repeat_waits_for_the_commit_of_the_first() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(data(TWO, 7));
    bench.publish(Publish {
        dup: true,
        ..data(TWO, 7)
    });
    assert_eq!((bench.submitted.len(), bench.sent()), (1, vec![]));
    bench.commit(0);
    assert_eq!(bench.sent(), vec![Packet::PubRec(ack(7)); 2]);
}

#[test]
fn fc_026_a_repeat_after_a_reconnect_is_the_engines_to_recognise() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(Publish {
        dup: true,
        ..data(TWO, 7)
    });
    let delivery = bench.submitted[0].delivery.expect("QoS 2");
    assert_eq!(
        (delivery.packet_id, delivery.qos, delivery.dup),
        (id(7), TWO, true)
    );
}

#[test]
fn a_pubrel_of_an_unknown_id_is_settled_and_completed() {
    let mut bench = Bench::new(Version::V311);
    bench.receive(Packet::PubRel(ack(9)));
    let slot = Slot::Release(0);
    assert_eq!(
        bench.effects(),
        [Effect::Settle {
            slot: Some(slot),
            packet_id: id(9)
        }]
    );
    bench.release(slot, Outcome::Stored);
    assert_eq!(bench.sent(), [Packet::PubComp(ack(9))]);
}

#[test]
fn an_early_pubrel_does_not_leave_its_id_behind() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(data(TWO, 7));
    bench.receive(Packet::PubRel(ack(7)));
    bench.commit(0);
    bench.release(Slot::Release(0), Outcome::Stored);
    bench.publish(data(TWO, 7));
    assert_eq!(bench.submitted.len(), 2, "not taken for a repeat");
}

#[test]
fn fc_032_open_qos_2_ids_are_bounded() {
    for (version, code) in [
        (Version::V311, None),
        (Version::V5, Some(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED)),
    ] {
        let mut bench = Bench::new(version);
        for number in 1..=200 {
            bench.publish(data(TWO, number));
            if bench.closing.is_some() {
                break;
            }
            bench.commit(usize::from(number) - 1);
            assert!(bench.session.inbound.held_ids() <= 100);
        }
        assert_eq!(bench.submitted.len(), 100);
        assert_eq!(
            bench.closed(),
            (DisconnectReason::ProtocolError, false, code)
        );
    }
}

#[test]
fn the_receive_maximum_counts_what_awaits_pubcomp() {
    let mut bench = Bench::new(Version::V5);
    for number in 1..=100 {
        bench.publish(data(TWO, number));
        bench.commit(usize::from(number) - 1);
        bench.receive(Packet::PubRel(ack(number)));
    }
    bench.receive(Packet::PingReq);
    bench.release(Slot::Release(0), Outcome::Stored);
    bench.publish(data(ONE, 101));
    assert!(bench.closing.is_none());
    bench.publish(data(ONE, 102));
    let exceeded = Some(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED);
    assert_eq!(
        bench.closed(),
        (DisconnectReason::ProtocolError, false, exceeded)
    );
}

#[test]
fn a_flood_of_pubrels_stops_reading() {
    let mut bench = Bench::new(Version::V311);
    let mut read = 0;
    while bench.session.wants_input() && read < 1000 {
        bench.receive(Packet::PubRel(ack(9)));
        read += 1;
    }
    assert_eq!(read, 101);
    bench.release(Slot::Release(50), Outcome::Stored);
    assert!(bench.session.wants_input());
}

#[test]
fn an_ack_that_is_dropped_ends_the_connection() {
    let mut bench = Bench::new(Version::V5);
    bench.publish(data(ONE, 1));
    let slot = bench.submitted[0].slot;
    bench.step(|session, context| session.released(slot, None, context));
    let code = Some(ReasonCode::UNSPECIFIED_ERROR);
    assert_eq!(
        bench.closed(),
        (DisconnectReason::InternalError, false, code)
    );
}

#[test]
fn a_refused_message_is_acknowledged_with_its_reason_in_5_0_alone() {
    for (version, code) in [
        (Version::V311, ReasonCode::SUCCESS),
        (Version::V5, ReasonCode::PAYLOAD_FORMAT_INVALID),
    ] {
        let mut bench = Bench::new(version);
        bench.publish(data(ONE, 1));
        bench.publish(data(TWO, 2));
        for index in 0..2 {
            bench.refuse(
                index,
                ReasonCode::PAYLOAD_FORMAT_INVALID,
                AfterRefusal::Continue,
            );
        }
        let expected = [
            Packet::PubAck(coded(1, code)),
            Packet::PubRec(coded(2, code)),
        ];
        assert_eq!(bench.sent(), expected);
        assert!(bench.closing.is_none());
    }
}

#[test]
fn a_refused_qos_2_message_of_5_0_needs_no_pubrel() {
    let mut bench = Bench::new(Version::V5);
    bench.publish(data(TWO, 2));
    bench.publish(Publish {
        dup: true,
        ..data(TWO, 2)
    });
    bench.refuse(0, ReasonCode::NOT_AUTHORIZED, AfterRefusal::Continue);
    let refused = Packet::PubRec(coded(2, ReasonCode::NOT_AUTHORIZED));
    assert_eq!(bench.sent(), [refused.clone(), refused]);
    assert_eq!(
        bench.effects(),
        [Effect::Settle {
            slot: None,
            packet_id: id(2)
        }]
    );
    assert_eq!(bench.session.inbound.held_ids(), 0);
}

#[test]
fn a_clean_kick_keeps_its_place() {
    let mut bench = Bench::new(Version::V5);
    for number in 1..=3 {
        bench.publish(data(ONE, number));
    }
    bench.refuse(
        1,
        ReasonCode::PAYLOAD_FORMAT_INVALID,
        AfterRefusal::CleanKick,
    );
    bench.commit(2);
    assert!(bench.closing.is_none() && bench.sent.is_empty());
    bench.commit(0);
    let reason = ReasonCode::PAYLOAD_FORMAT_INVALID;
    assert_eq!(
        bench.closed(),
        (DisconnectReason::CleanKick, true, Some(reason))
    );
    assert_eq!(
        bench.sent[..2],
        [Packet::PubAck(ack(1)), Packet::PubAck(coded(2, reason))]
    );
    assert_eq!(
        bench.sent.len(),
        3,
        "what came after it is not acknowledged"
    );
}

#[test]
fn a_clean_kick_of_3_1_1_closes_without_a_word() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(data(TWO, 1));
    bench.refuse(0, ReasonCode::NOT_AUTHORIZED, AfterRefusal::CleanKick);
    assert_eq!(bench.closed(), (DisconnectReason::CleanKick, true, None));
    assert_eq!(bench.sent(), [Packet::PubRec(ack(1))]);
}

#[test]
fn a_denied_publish_is_submitted_as_denied_and_nothing_after_it() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(data(ONE, 1));
    bench.publish(publish(ONE, 2, "/t.Srv/cmd"));
    bench.receive(Packet::PingReq);
    bench.publish(data(ONE, 3));
    let denied: Vec<_> = bench
        .submitted
        .iter()
        .map(|submission| submission.denied)
        .collect();
    assert_eq!(denied, [None, Some(Denial::ServerOwned)]);
    bench.commit(0);
    assert_eq!(bench.submitted.len(), 2, "the third one is held");
    bench.refuse(1, ReasonCode::NOT_AUTHORIZED, AfterRefusal::CleanKick);
    assert_eq!(bench.closed(), (DisconnectReason::CleanKick, true, None));
    assert_eq!(bench.submitted.len(), 2);
}

#[test]
fn where_bad_messages_are_only_discarded_a_denied_one_lets_the_next_go_on() {
    let mut bench = Bench::new(Version::V311);
    bench.publish(publish(ONE, 1, "/t.Srv/cmd"));
    bench.publish(data(ONE, 2));
    assert_eq!(bench.submitted.len(), 1);
    bench.refuse(0, ReasonCode::NOT_AUTHORIZED, AfterRefusal::Continue);
    assert_eq!(
        (bench.submitted.len(), bench.session.wants_input()),
        (2, true)
    );
}

#[test]
fn fc_061_a_foreign_topic_closes_the_connection() {
    for (version, code) in [
        (Version::V311, None),
        (Version::V5, Some(ReasonCode::NOT_AUTHORIZED)),
    ] {
        for topic in [
            "$SYS/x",
            "acme/AAAAAAAAAAAAAAAAAAAAAA/t.Dev/int",
            "globex/x",
            "x",
        ] {
            let mut bench = Bench::new(version);
            bench.publish(Publish {
                topic: topic.into(),
                ..data(ONE, 1)
            });
            assert_eq!(
                bench.closed(),
                (DisconnectReason::NotAuthorized, false, code),
                "{topic}"
            );
            assert_eq!((bench.submitted.len(), bench.reservations), (0, 0));
        }
    }
}

#[test]
fn an_accepted_introspection_rules_before_it_is_committed() {
    let mut bench = Bench::new(Version::V311);
    let introspection = |payload: &'static [u8], packet_id| Publish {
        payload: Bytes::from_static(payload),
        ..publish(TWO, packet_id, "")
    };
    bench.publish(introspection(b"t.New:1:0", 1));
    bench.publish(publish(ONE, 2, "/t.New/x"));
    assert_eq!(bench.submitted[1].denied, None);
    bench.publish(publish(ONE, 3, "/t.Dev/x"));
    assert_eq!(
        bench.submitted[2].denied,
        Some(Denial::InterfaceNotDeclared)
    );
}

#[test]
fn a_malformed_introspection_is_submitted_and_changes_nothing() {
    let mut bench = Bench::new(Version::V311);
    let broken = Publish {
        payload: Bytes::from_static(b"t.New:1"),
        ..publish(TWO, 1, "")
    };
    bench.publish(broken);
    bench.publish(data(ONE, 2));
    assert_eq!(
        (bench.submitted[0].denied, bench.submitted[1].denied),
        (None, None)
    );
}

#[test]
fn an_introspection_that_the_engine_refuses_is_taken_back() {
    let mut bench = Bench::new(Version::V311);
    let new = Publish {
        payload: Bytes::from_static(b"t.New:1:0"),
        ..publish(TWO, 1, "")
    };
    bench.publish(new);
    assert!(bench.session.introspection().version("t.New").is_some());
    bench.refuse(
        0,
        ReasonCode::PAYLOAD_FORMAT_INVALID,
        AfterRefusal::Continue,
    );
    assert!(bench.session.introspection().version("t.New").is_none());
    bench.publish(data(ONE, 2));
    assert_eq!(bench.submitted[1].denied, None);
}

#[test]
fn topic_aliases_stand_for_topics() {
    let mut bench = Bench::new(Version::V5);
    let alias = std::num::NonZeroU16::new;
    bench.publish(Publish {
        topic_alias: alias(16),
        ..data(ONE, 1)
    });
    let empty = Publish {
        topic: "".into(),
        ..data(ONE, 2)
    };
    bench.publish(Publish {
        topic_alias: alias(16),
        ..empty.clone()
    });
    assert_eq!(bench.submitted[1].topic, bench.submitted[0].topic);
    for (publish, code) in [
        (
            Publish {
                topic_alias: alias(15),
                ..empty.clone()
            },
            ReasonCode::PROTOCOL_ERROR,
        ),
        (
            Publish {
                topic_alias: alias(17),
                ..data(ONE, 2)
            },
            ReasonCode::TOPIC_ALIAS_INVALID,
        ),
        (empty, ReasonCode::PROTOCOL_ERROR),
    ] {
        let mut bench = Bench::new(Version::V5);
        bench.publish(publish);
        assert_eq!(
            bench.closed(),
            (DisconnectReason::ProtocolError, false, Some(code))
        );
    }
}
