//! SUBSCRIBE and UNSUBSCRIBE.

use super::*;
use crate::mqtt::packet::{RetainHandling, SubAck, UnsubAck, Unsubscribe};

const ONE: QoS = QoS::AtLeastOnce;
const TWO: QoS = QoS::ExactlyOnce;
const OWN: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA/t.Srv/#";
const OWN_TOO: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA/control/consumer/properties";

fn suback(packet_id: u16, reasons: &[ReasonCode]) -> Packet {
    Packet::SubAck(SubAck {
        packet_id: id(packet_id),
        reasons: reasons.to_vec(),
    })
}

fn filters(effect: &Effect) -> Vec<&str> {
    match effect {
        Effect::Subscribe(subscriptions) => subscriptions
            .iter()
            .map(|subscription| &*subscription.filter)
            .collect(),
        other => panic!("{other:?} is no subscription"),
    }
}

#[test]
fn fc_089_each_filter_gets_its_code_in_order() {
    let mut bench = Bench::new(Version::V5);
    bench.receive(subscribe(
        1,
        &[
            (OWN, ONE),
            ("acme/AAAAAAAAAAAAAAAAAAAAAA/#", TWO),
            (OWN_TOO, QoS::AtMostOnce),
            ("a/#/b", ONE),
            (OWN, TWO),
            ("+/#", ONE),
            ("$share/g/x", ONE),
        ],
    ));
    assert_eq!(bench.sent(), [], "SUBACK waits for the disk");
    assert_eq!(filters(&bench.effects()[0]), [OWN, OWN_TOO, OWN]);
    bench.stored(&[
        SubscribeOutcome::New,
        SubscribeOutcome::New,
        SubscribeOutcome::Replaced,
    ]);
    let codes = [
        ReasonCode::GRANTED_QOS_1,
        ReasonCode::NOT_AUTHORIZED,
        ReasonCode::GRANTED_QOS_0,
        ReasonCode::TOPIC_FILTER_INVALID,
        ReasonCode::GRANTED_QOS_2,
        ReasonCode::NOT_AUTHORIZED,
        ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    ];
    assert_eq!(bench.sent(), [suback(1, &codes)]);
}

#[test]
fn fc_089_filters_beyond_the_limits_are_refused_with_their_code() {
    let mut bench = Bench::new(Version::V5);
    let many: Vec<String> = (0..5_000)
        .map(|number| format!("{BASE}/i{number}"))
        .collect();
    let many: Vec<(&str, QoS)> = many.iter().map(|filter| (filter.as_str(), ONE)).collect();
    bench.receive(subscribe(1, &many));
    assert_eq!(filters(&bench.effects()[0]).len(), 1_024);
    // the store takes a thousand
    let results = (0..1_024).map(|number| match number {
        0..1_000 => Ok(SubscribeOutcome::New),
        _ => Err(QuotaExceeded),
    });
    let results = results.collect();
    bench.step(|session, context| session.subscribed(Some(results), context));
    let mut codes = vec![ReasonCode::GRANTED_QOS_1; 1_000];
    codes.resize(5_000, ReasonCode::QUOTA_EXCEEDED);
    assert_eq!(bench.sent(), [suback(1, &codes)]);
}

#[test]
fn a_publish_waits_for_the_subscribe_before_it() {
    let mut bench = Bench::new(Version::V311);
    bench.receive(subscribe(1, &[(OWN, TWO)]));
    bench.receive(Packet::PingReq);
    bench.publish(publish(TWO, 2, "/control/emptyCache"));
    assert_eq!(
        (bench.submitted.len(), bench.session.wants_input()),
        (0, false)
    );
    bench.stored(&[SubscribeOutcome::New]);
    assert_eq!(
        (bench.submitted.len(), bench.session.wants_input()),
        (1, true)
    );
}

#[test]
fn subscribes_that_follow_one_another_are_stored_together() {
    let mut bench = Bench::new(Version::V311);
    for number in 1..=3 {
        bench.receive(subscribe(number, &[(OWN, TWO)]));
    }
    bench.receive(subscribe(4, &[("#", TWO)]));
    assert_eq!(bench.effects().len(), 1);
    bench.stored(&[SubscribeOutcome::New]);
    assert_eq!(filters(&bench.effects()[1]), [OWN, OWN]);
    bench.stored(&[SubscribeOutcome::Replaced, SubscribeOutcome::Replaced]);
    let granted = [ReasonCode::GRANTED_QOS_2];
    let mut expected: Vec<_> = (1..=3).map(|number| suback(number, &granted)).collect();
    expected.push(suback(4, &[ReasonCode::NOT_AUTHORIZED]));
    assert_eq!(bench.sent(), expected);
}

#[test]
fn a_store_that_fails_is_told_in_suback() {
    let mut bench = Bench::new(Version::V311);
    bench.receive(subscribe(1, &[(OWN, TWO), ("#", ONE)]));
    bench.step(|session, context| session.subscribed(None, context));
    let codes = [ReasonCode::UNSPECIFIED_ERROR, ReasonCode::NOT_AUTHORIZED];
    assert_eq!(bench.sent(), [suback(1, &codes)]);
    assert!(bench.session.wants_input());
}

#[test]
fn retained_messages_are_looked_up_as_the_subscription_asks() {
    for (handling, outcome, wanted) in [
        (
            RetainHandling::AtSubscribe,
            SubscribeOutcome::Replaced,
            true,
        ),
        (RetainHandling::AtNewSubscribe, SubscribeOutcome::New, true),
        (
            RetainHandling::AtNewSubscribe,
            SubscribeOutcome::Replaced,
            false,
        ),
        (RetainHandling::Never, SubscribeOutcome::New, false),
    ] {
        let mut bench = Bench::new(Version::V5);
        let options = SubscribeOptions {
            retain_handling: handling,
            ..SubscribeOptions::default()
        };
        bench.receive(Packet::Subscribe(Subscribe {
            packet_id: id(1),
            subscription_id: Some(5),
            filters: vec![(OWN.into(), options)],
        }));
        bench.effects();
        bench.stored(&[outcome]);
        let looked_up = matches!(&bench.effects()[..], [Effect::Retained(of)] if of.id == Some(5));
        assert_eq!(looked_up, wanted, "{handling:?} {outcome:?}");
    }
}

#[test]
fn an_id_that_is_used_again_too_early_is_refused_in_5_0() {
    let mut bench = Bench::new(Version::V5);
    bench.receive(subscribe(1, &[(OWN, TWO)]));
    bench.receive(subscribe(1, &[(OWN_TOO, TWO)]));
    assert_eq!(
        bench.sent(),
        [suback(1, &[ReasonCode::PACKET_IDENTIFIER_IN_USE])]
    );
}

#[test]
fn unsubscribe_is_answered_once_it_is_on_disk() {
    let mut bench = Bench::new(Version::V5);
    let filters = [OWN, "a/#/b", "#", OWN_TOO].map(Into::into).to_vec();
    bench.receive(Packet::Unsubscribe(Unsubscribe {
        packet_id: id(3),
        filters,
    }));
    assert_eq!(
        bench.effects(),
        [Effect::Unsubscribe(vec![OWN.into(), OWN_TOO.into()])]
    );
    bench.step(|session, context| session.unsubscribed(Some(&[true, false]), context));
    let reasons = vec![
        ReasonCode::SUCCESS,
        ReasonCode::TOPIC_FILTER_INVALID,
        ReasonCode::NO_SUBSCRIPTION_EXISTED,
        ReasonCode::NO_SUBSCRIPTION_EXISTED,
    ];
    assert_eq!(
        bench.sent(),
        [Packet::UnsubAck(UnsubAck {
            packet_id: id(3),
            reasons
        })]
    );
}

#[test]
fn an_unsubscribe_that_fails_is_told_or_closes() {
    for version in [Version::V311, Version::V5] {
        let mut bench = Bench::new(version);
        let filters = vec![OWN.into()];
        bench.receive(Packet::Unsubscribe(Unsubscribe {
            packet_id: id(3),
            filters,
        }));
        bench.step(|session, context| session.unsubscribed(None, context));
        let told = matches!(bench.sent.first(), Some(Packet::UnsubAck(unsuback))
            if unsuback.reasons == [ReasonCode::UNSPECIFIED_ERROR]);
        assert_eq!(
            (told, bench.closing.is_some()),
            match version {
                Version::V311 => (false, true),
                Version::V5 => (true, false),
            }
        );
    }
}
