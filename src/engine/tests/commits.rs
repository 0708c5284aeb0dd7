//! Acknowledgement after the commit, order, exactly once, what follows a refusal.

use super::*;
use crate::{mqtt::AfterRefusal, payload::Value};

fn integers(bench: &Bench) -> Vec<i32> {
    let integer = |value: Value| match value {
        Value::Integer(integer) => integer,
        other => panic!("{other:?}"),
    };
    bench.store.samples().into_iter().map(integer).collect()
}

#[tokio::test]
async fn fc_034_nothing_is_acknowledged_while_the_store_cannot_commit() {
    let bench = Bench::start().await;
    bench.store.stall();
    for label in 1..=50 {
        bench
            .send(label, "/t.Dev/int", &v(i32::try_from(label).unwrap()))
            .await;
    }
    for label in 51..=100 {
        let id = u16::try_from(label).unwrap();
        bench
            .send_qos2(label, id, "/t.Dev/int", &v(i32::from(id)))
            .await;
    }
    bench.store.attempted(1).await;
    assert_eq!(bench.acks.now(), []);
    bench.store.resume();
    let acks = bench.acks.wait(100).await;
    assert_eq!(
        stored(&acks),
        (1..=100).collect::<Vec<_>>(),
        "in the order of arrival"
    );
    assert_eq!(integers(&bench), (1..=100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_is_what_came_in_while_the_previous_commit_was_on_its_way() {
    let bench = Bench::start().await;
    bench.store.stall();
    bench.send(0, "/t.Dev/int", &v(0)).await;
    bench.store.attempted(1).await;
    for label in 1..=40 {
        bench.send(label, "/t.Dev/int", &v(1)).await;
    }
    // let the lane judge them
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    bench.store.resume();
    bench.acks.wait(41).await;
    assert_eq!(bench.store.with(|state| state.batches.clone()), [1, 40]);
}

#[tokio::test]
async fn fc_026_a_repeated_qos_2_publish_is_acknowledged_each_time_and_stored_once() {
    let bench = Bench::start().await;
    for label in 0..6 {
        bench.send_qos2(label, 7, "/t.Dev/int", &v(1)).await;
    }
    assert_eq!(stored(&bench.acks.wait(6).await), [0, 1, 2, 3, 4, 5]);
    assert_eq!(integers(&bench), [1]);
    assert_eq!(bench.engine.counters().messages_repeated.get(), 5);
    // PUBREL frees the id for the next message
    let id = NonZeroU16::new(7).unwrap();
    bench
        .engine
        .settle(&device(1), EPOCH, id, bench.acks.ack(6));
    bench.send_qos2(7, 7, "/t.Dev/int", &v(2)).await;
    assert_eq!(stored(&bench.acks.wait(8).await)[6..], [6, 7]);
    assert_eq!(integers(&bench), [1, 2]);
}

#[tokio::test]
async fn pubcomp_waits_until_the_receipt_is_gone_and_an_unknown_receipt_is_released_too() {
    let bench = Bench::start().await;
    bench.store.stall();
    bench.engine.settle(
        &device(1),
        EPOCH,
        NonZeroU16::new(9).unwrap(),
        bench.acks.ack(1),
    );
    bench.store.attempted(1).await;
    assert_eq!(bench.acks.now(), []);
    bench.store.resume();
    assert_eq!(stored(&bench.acks.wait(1).await), [1]);
}

#[tokio::test]
async fn an_erased_session_takes_its_receipts_along_and_no_others() {
    let bench = Bench::start().await;
    bench.send_qos2(1, 7, "/t.Dev/int", &v(1)).await;
    let mut other = bench.message(1, 2, "/t.Dev/int", &v(2));
    other.session = SessionEpoch(8);
    other.delivery = Some(Delivery {
        packet_id: NonZeroU16::new(7).unwrap(),
        qos: QoS::ExactlyOnce,
        dup: false,
    });
    bench.submit(other).await;
    bench.engine.forget(&device(1), EPOCH);
    bench.engine.drain().await;
    let epochs: Vec<u64> = bench.store.with(|state| {
        state
            .receipts
            .iter()
            .map(|(_, receipt)| receipt.epoch)
            .collect()
    });
    assert_eq!(epochs, [8]);
}

#[tokio::test]
async fn after_a_clean_kick_the_rest_of_the_session_is_not_handled_until_it_is_forgotten() {
    let bench = Bench::start().await;
    bench.store.stall();
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.send(2, "/t.Dev/int", b"junk").await;
    bench.send(3, "/t.Dev/int", &v(3)).await;
    bench.submit(bench.message(2, 4, "/t.Dev/int", &v(4))).await;
    bench.store.resume();
    let acks = bench.acks.wait(4).await;
    let kick = Outcome::Refused {
        reason: crate::mqtt::packet::ReasonCode::PAYLOAD_FORMAT_INVALID,
        then: AfterRefusal::CleanKick,
    };
    let stored = Some(Outcome::Stored);
    // the ack behind the kick is dropped after the kick is told, not before
    assert_eq!(acks, [(1, stored), (2, Some(kick)), (3, None), (4, stored)]);
    assert_eq!(integers(&bench), [1, 4]);
    assert!(
        bench
            .store
            .with(|state| state.devices[&device(1)].pending_empty_cache)
    );

    bench.engine.forget(&device(1), EPOCH);
    bench.send(5, "/t.Dev/int", &v(5)).await;
    assert_eq!(bench.acks.wait(5).await[4], (5, stored));
}

#[tokio::test]
async fn another_session_of_a_kicked_device_is_handled() {
    let bench = Bench::start().await;
    bench.send(1, "/t.Dev/int", b"junk").await;
    let mut next = bench.message(1, 2, "/t.Dev/int", &v(2));
    next.session = SessionEpoch(8);
    bench.submit(next).await;
    assert_eq!(stored(&bench.acks.wait(2).await), [2]);
}

#[tokio::test]
async fn a_stored_message_that_comes_again_kicks_nobody_though_it_would_be_refused_now() {
    let bench = Bench::start().await;
    bench.send_qos2(1, 7, "/t.Dev/int", &v(1)).await;
    bench.send(2, "", b"t.DevProp:1:0").await;
    let mut again = bench.message(1, 3, "/t.Dev/int", &v(1));
    again.delivery = Some(Delivery {
        packet_id: NonZeroU16::new(7).unwrap(),
        qos: QoS::ExactlyOnce,
        dup: true,
    });
    bench.submit(again).await;
    bench.send(4, "/t.DevProp/b", &v(4)).await;
    assert_eq!(stored(&bench.acks.wait(4).await), [1, 2, 3, 4]);
    assert_eq!(integers(&bench), [1]);
    assert_eq!(bench.store.error_names(), [""; 0]);
}

#[tokio::test]
async fn a_repeated_introspection_that_was_stored_before_does_not_stay_in_memory() {
    let bench = Bench::start().await;
    bench.send_qos2(1, 7, "", DECLARED.as_bytes()).await;
    bench.acks.wait(1).await;
    // the id is still in use: the store answers that it has it, and keeps what it has
    bench.send_qos2(2, 7, "", b"t.DevProp:1:0").await;
    bench.acks.wait(2).await;
    bench.engine.drain().await;
    bench.send(3, "/t.Dev/int", &v(3)).await;
    assert_eq!(stored(&bench.acks.wait(3).await), [1, 2, 3]);
}

#[tokio::test]
async fn the_will_of_a_kicked_session_is_handled() {
    let bench = Bench::start().await;
    bench.send(1, "/t.Dev/int", b"junk").await;
    let mut will = bench.message(1, 0, "/t.Dev/int", &v(9));
    (will.delivery, will.ack) = (None, Ack::nobody());
    bench.submit(will).await;
    bench.engine.drain().await;
    assert_eq!(integers(&bench), [9]);
}

#[tokio::test]
async fn a_refused_will_kicks_nobody() {
    let bench = Bench::start().await;
    let mut will = bench.message(1, 0, "/t.Dev/int", b"junk");
    will.delivery = None;
    will.ack = Ack::nobody();
    bench.acks.0.send_modify(Vec::clear);
    bench.submit(will).await;
    bench.send(1, "/t.Dev/int", &v(1)).await;
    assert_eq!(stored(&bench.acks.wait(1).await), [1]);
    assert_eq!(bench.store.error_names(), ["undecodable_bson_payload"]);
    assert!(
        !bench
            .store
            .with(|state| state.devices[&device(1)].pending_empty_cache)
    );
}

#[tokio::test]
async fn fc_039_bad_messages_are_acknowledged_and_the_stream_goes_on() {
    let bad: [(&str, &[u8], &str); 6] = [
        ("/t.Dev/int", b"junk", "undecodable_bson_payload"),
        ("/t.Unknown/x", b"", "interface_loading_failed"),
        ("/t.Dev/int", &v("1"), "unexpected_value_type"),
        ("", b"no introspection", "invalid_introspection"),
        ("/control/x", b"1", "unexpected_control_message"),
        ("/t.Dev/int", b"", "unset_on_datastream"),
    ];
    let bench = Bench::start().await;
    for (index, (below, payload, _)) in bad.iter().enumerate() {
        let label = u32::try_from(index * 2).unwrap();
        // each in a session of its own, as after a kick; QoS 1 and 2 in turn
        for (label, below, payload) in [(label, below, *payload), (label + 1, &"/t.Dev/int", &v(1))]
        {
            let mut message = bench.message(1, label, below, payload);
            message.session = SessionEpoch(u64::from(label));
            if index % 2 == 1
                && let Some(delivery) = &mut message.delivery
            {
                delivery.qos = QoS::ExactlyOnce;
            }
            bench.submit(message).await;
        }
        bench
            .submit(bench.message(2, 100 + label, "/t.Dev/int", &v(2)))
            .await;
    }
    let acks = bench.acks.wait(bad.len() * 3).await;
    let refused = |outcome: Option<Outcome>| matches!(outcome, Some(Outcome::Refused { .. }));
    assert_eq!(
        acks.iter().filter(|(_, outcome)| refused(*outcome)).count(),
        bad.len()
    );
    assert_eq!(stored(&acks).len(), bad.len() * 2);
    assert_eq!(bench.store.error_names(), bad.map(|(_, _, name)| name));
    let counted: u64 = bench
        .engine
        .counters()
        .errors()
        .iter()
        .map(|(_, _, count)| count)
        .sum();
    assert_eq!(counted, bad.len() as u64);
}

#[tokio::test]
async fn messages_of_a_deleted_device_are_dropped_unacknowledged() {
    let bench = Bench::start().await;
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.acks.wait(1).await;
    bench.store.with(|state| state.devices.remove(&device(1)));
    bench.send(2, "/t.Dev/int", &v(2)).await;
    assert_eq!(bench.acks.wait(2).await[1], (2, None));
    // by now the lane knows
    bench.send(3, "/t.Dev/int", &v(3)).await;
    assert_eq!(bench.acks.wait(3).await[2], (3, None));
    assert_eq!(bench.engine.counters().messages_dropped.get(), 2);
}

#[tokio::test]
async fn backpressure_bounds_what_is_under_way_and_heals() {
    let settings = EngineSettings {
        intake: IntakeLimits {
            window_messages: 10,
            window_bytes: 10_000,
            shared_messages: 5,
            shared_bytes: 5_000,
        },
        ..EngineSettings::default()
    };
    let bench = Bench::with_settings(settings).await;
    bench.store.stall();
    for label in 0..15 {
        bench.send(label, "/t.Dev/int", &v(1)).await;
    }
    let device_1 = device(1);
    let mut waiting = Box::pin(bench.engine.reserve(&device_1, 10));
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(bench.engine.counters().intake_messages.get(), 15);
    // another device does not notice
    bench
        .submit(bench.message(2, 15, "/t.Dev/int", &v(1)))
        .await;
    bench.store.resume();
    let permit = waiting.await;
    bench.acks.wait(16).await;
    drop(permit);
    bench.engine.drain().await;
    assert_eq!(bench.engine.counters().intake_messages.get(), 0);
    assert_eq!(bench.engine.counters().intake_bytes.get(), 0);
}

#[tokio::test]
async fn closing_commits_and_acknowledges_what_was_taken_and_drops_the_rest() {
    let bench = Bench::start().await;
    for label in 0..10 {
        bench.send(label, "/t.Dev/int", &v(1)).await;
    }
    bench.engine.close().await;
    bench.send(10, "/t.Dev/int", &v(1)).await;
    let acks = bench.acks.wait(11).await;
    assert_eq!(stored(&acks), (0..10).collect::<Vec<_>>());
    assert_eq!(acks[10], (10, None));
    assert!(bench.engine.run(super::faults::note()).await.is_err());
}

#[tokio::test]
async fn abandoning_drops_what_is_not_committed() {
    let bench = Bench::start().await;
    bench.store.stall();
    for label in 0..10 {
        bench.send(label, "/t.Dev/int", &v(1)).await;
    }
    bench.store.attempted(1).await;
    bench.engine.abandon();
    bench.engine.close().await;
    let acks = bench.acks.wait(10).await;
    assert_eq!(stored(&acks), [0_u32; 0]);
    assert_eq!(acks.len(), 10);
}
