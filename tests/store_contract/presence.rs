//! Presence, device errors, and the lists of the worst.

use std::net::IpAddr;

use tanit::{
    identity::Identity,
    store::{DeviceErrorRow, Effect, Unit},
};

use super::{Fixture, at, device, error, realm, unit};

for_every_store! {
    connected_and_disconnected_strictly_alternate
    the_newest_hundred_presence_events_are_kept
    devices_that_were_connected_are_closed_at_start_once
    the_newest_hundred_errors_are_kept_and_all_are_counted
    texts_with_a_nul_in_an_error_are_taken
    reconnects_are_counted_by_device
    pending_empty_cache_is_set_and_cleared
}

fn connected(identity: &Identity, seconds: i64) -> Unit {
    let ip = Some(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]));
    unit(
        identity,
        vec![Effect::Connected {
            at: at(seconds),
            ip,
        }],
    )
}

fn disconnected(identity: &Identity, seconds: i64) -> Unit {
    let reason = "takeover".to_owned();
    unit(
        identity,
        vec![Effect::Disconnected {
            at: at(seconds),
            reason,
        }],
    )
}

async fn connected_and_disconnected_strictly_alternate(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![disconnected(&identity, 1), connected(&identity, 2)])
        .await;
    fixture.done(vec![connected(&identity, 3)]).await;
    fixture
        .done(vec![disconnected(&identity, 4), disconnected(&identity, 5)])
        .await;
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert!(!row.connected);
    assert_eq!(row.presence_sequence, 2);
    assert_eq!(
        (row.last_connection, row.last_disconnection),
        (Some(at(2)), Some(at(4)))
    );
    assert_eq!(
        row.last_seen_ip,
        Some(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]))
    );

    let history = fixture.store.history(&identity).await.unwrap();
    let shown: Vec<_> = history
        .iter()
        .map(|row| (row.sequence, row.event.as_str()))
        .collect();
    assert_eq!(shown, [(2, "disconnected"), (1, "connected")]);
    assert_eq!(
        (history[0].reason.as_deref(), history[0].ip),
        (Some("takeover"), None)
    );
    assert_eq!((history[1].at, history[1].ip), (at(2), row.last_seen_ip));
}

async fn the_newest_hundred_presence_events_are_kept(fixture: Fixture) {
    let identity = fixture.device().await;
    // in one batch more than the ring holds, then a few one by one
    let units = (0..125).flat_map(|n| [connected(&identity, n), disconnected(&identity, n)]);
    fixture.done(units.collect()).await;
    fixture.done(vec![connected(&identity, 900)]).await;
    let history = fixture.store.history(&identity).await.unwrap();
    let sequences: Vec<_> = history.iter().map(|row| row.sequence).collect();
    assert_eq!(sequences, (152..=251).rev().collect::<Vec<_>>());
}

async fn devices_that_were_connected_are_closed_at_start_once(fixture: Fixture) {
    let identity = fixture.device().await;
    let idle = Identity::new(identity.realm.clone(), device(2));
    fixture.register(&idle).await.unwrap();
    fixture.done(vec![connected(&identity, 1)]).await;
    assert_eq!(
        fixture.store.close_stale(at(7)).await.unwrap(),
        std::slice::from_ref(&identity)
    );
    assert!(fixture.store.close_stale(at(8)).await.unwrap().is_empty());
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!(
        (row.connected, row.last_disconnection),
        (false, Some(at(7)))
    );
    let history = fixture.store.history(&identity).await.unwrap();
    assert_eq!(history[0].reason.as_deref(), Some("node_restart"));
    assert!(fixture.store.history(&idle).await.unwrap().is_empty());
}

async fn the_newest_hundred_errors_are_kept_and_all_are_counted(fixture: Fixture) {
    let identity = fixture.device().await;
    let other = Identity::new(identity.realm.clone(), device(2));
    fixture.register(&other).await.unwrap();
    let units = (0..250).map(|n| {
        let name = if n % 5 == 0 { "rare" } else { "common" };
        unit(&identity, vec![Effect::RecordError(error(name, at(n)))])
    });
    fixture.done(units.collect()).await;
    for n in 250..255 {
        fixture
            .done(vec![unit(
                &other,
                vec![Effect::RecordError(error("rare", at(n)))],
            )])
            .await;
    }
    let errors = fixture.store.device_errors(&identity).await.unwrap();
    assert_eq!(errors.len(), 100);
    assert_eq!(errors[0], error("common", at(249)));
    assert_eq!(errors[99], error("rare", at(150)));

    let top = async |since: i64, limit| -> Vec<(u8, String, u64)> {
        let rows = fixture
            .store
            .top_errors(&identity.realm, at(since), limit)
            .await
            .unwrap();
        rows.into_iter()
            .map(|row| (row.device.as_bytes()[0], row.error_name.unwrap(), row.count))
            .collect()
    };
    let worst = [(1, "common".to_owned(), 200), (1, "rare".to_owned(), 50)];
    assert_eq!(top(0, 2).await, worst);
    assert_eq!(top(0, 10).await[2], (2, "rare".to_owned(), 5));
    // counted by the minute: from the third on
    assert_eq!(top(180, 10).await[0], (1, "common".to_owned(), 56));
    assert!(top(3600, 10).await.is_empty());
    assert!(
        fixture
            .store
            .top_errors(&realm("globex"), at(0), 10)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn texts_with_a_nul_in_an_error_are_taken(fixture: Fixture) {
    let identity = fixture.device().await;
    let row = DeviceErrorRow {
        detail: Some("a\0b".to_owned()),
        ..error("odd", at(1))
    };
    fixture
        .done(vec![unit(&identity, vec![Effect::RecordError(row)])])
        .await;
    assert_eq!(
        fixture.store.device_errors(&identity).await.unwrap().len(),
        1
    );
}

async fn reconnects_are_counted_by_device(fixture: Fixture) {
    let identity = fixture.device().await;
    let calm = Identity::new(identity.realm.clone(), device(2));
    fixture.register(&calm).await.unwrap();
    let units = (0..130).flat_map(|n| [connected(&identity, n), disconnected(&identity, n)]);
    fixture
        .done(units.chain([connected(&calm, 131)]).collect())
        .await;
    let top = fixture
        .store
        .top_reconnects(&identity.realm, at(0), 10)
        .await
        .unwrap();
    let shown: Vec<_> = top.iter().map(|row| (row.device, row.count)).collect();
    assert_eq!(shown, [(identity.device, 130), (calm.device, 1)]);
    assert!(top.iter().all(|row| row.error_name.is_none()));
}

async fn pending_empty_cache_is_set_and_cleared(fixture: Fixture) {
    let identity = fixture.device().await;
    for pending in [true, false] {
        fixture
            .done(vec![unit(
                &identity,
                vec![Effect::PendingEmptyCache(pending)],
            )])
            .await;
        let row = fixture.store.device(&identity).await.unwrap().unwrap();
        assert_eq!(row.pending_empty_cache, pending);
    }
}
