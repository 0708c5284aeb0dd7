//! Connected and disconnected: durable, in line with the messages.

use super::*;
use crate::{
    mqtt::{DisconnectReason, LifecycleSink as _},
    store::Effect,
};

#[tokio::test]
async fn fc_014_presence_alternates_with_the_messages_between_in_their_places() {
    let bench = Bench::start().await;
    for round in 0..100 {
        bench.engine.connected(&device(1), None, NOW).await;
        bench.send(round, "/t.Dev/int", &v(1)).await;
        bench
            .engine
            .disconnected(&device(1), DisconnectReason::TakenOver, NOW)
            .await;
    }
    bench.acks.wait(100).await;
    let kinds = bench.store.effects(|effect| match effect {
        Effect::Connected { .. } => Some('c'),
        Effect::Disconnected { .. } => Some('d'),
        Effect::AppendSample { .. } => Some('m'),
        _ => None,
    });
    assert_eq!(kinds.into_iter().collect::<String>(), "cmd".repeat(100));
}

#[tokio::test(start_paused = true)]
async fn presence_is_durable_before_it_returns_and_waits_for_the_store() {
    let bench = Bench::start().await;
    bench
        .store
        .with(|state| state.faults.extend([fake::Fault::Unavailable; 3]));
    bench
        .engine
        .connected(&device(1), Some("192.0.2.7".parse().unwrap()), NOW)
        .await;
    assert_eq!(bench.store.attempts(), 4);
    assert_eq!(
        bench.store.with(|state| state.history.clone()),
        ["connected"]
    );
}

#[tokio::test]
async fn the_disconnected_event_ends_the_ban_of_a_kicked_session() {
    let bench = Bench::start().await;
    bench.send(1, "/t.Dev/int", b"junk").await;
    bench
        .engine
        .disconnected(&device(1), DisconnectReason::CleanKick, NOW)
        .await;
    bench.send(2, "/t.Dev/int", &v(2)).await;
    assert_eq!(stored(&bench.acks.wait(2).await), [2]);
}

#[tokio::test]
async fn a_device_that_was_made_anew_is_read_again_when_it_connects() {
    let bench = Bench::start().await;
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.acks.wait(1).await;
    let nothing = Introspection::default();
    bench
        .store
        .with(|state| state.devices.get_mut(&device(1)).unwrap().introspection = nothing);
    // in one batch with the messages after it
    let (identity, payload) = (device(1), v(2));
    let connect = bench.engine.connected(&identity, None, NOW);
    tokio::join!(connect, bench.send(2, "/t.Dev/int", &payload));
    bench.acks.wait(2).await;
    assert_eq!(bench.store.error_names(), ["interface_loading_failed"]);
}

#[tokio::test]
async fn an_introspection_counts_for_the_next_message_before_it_is_committed() {
    let bench = Bench::start().await;
    bench.store.stall();
    bench.send(1, "", b"t.DevProp:1:0").await;
    bench.send(2, "/t.DevProp/b", &v(1)).await;
    // a refresh in between reads nothing older
    bench.engine.refresh_device(&device(1));
    bench.send(3, "/t.DevProp/b", &v(2)).await;
    bench.send(4, "/t.Dev/int", &v(1)).await;
    bench.store.resume();
    assert_eq!(stored(&bench.acks.wait(4).await), [1, 2, 3]);
    assert_eq!(bench.store.error_names(), ["interface_loading_failed"]);
}
