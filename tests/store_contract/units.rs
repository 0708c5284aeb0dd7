//! Units: outcomes, receipts, refusals, the outbox, many calls at once.

use std::time::Duration;

use futures_util::future::join_all;
use tanit::{
    identity::Identity,
    payload::Value,
    store::{
        Change,
        Committed::{Done, Duplicate, NoDevice, Refused},
        Effect, StoreError, Subject, Unit,
    },
};

use super::{
    Fixture, at, audit, ca, device, outbox_row, realm_row, receipt, sample, sensor, settings, unit,
    with_receipt,
};

for_every_store! {
    outcomes_and_samples_come_in_the_order_of_the_units
    a_large_batch_over_many_devices_is_stored_and_counted_exactly
    a_repeated_receipt_is_a_duplicate_without_effects
    a_receipt_that_was_removed_may_be_used_again
    receipts_of_an_erased_session_are_forgotten_and_no_others
    a_unit_that_the_database_refuses_does_not_take_its_neighbours
    a_unit_of_an_unknown_device_stores_nothing
    the_outbox_keeps_its_order_until_a_message_is_taken_out
    concurrent_calls_are_all_committed
    after_closing_nothing_is_taken
}

async fn outcomes_and_samples_come_in_the_order_of_the_units(fixture: Fixture) {
    let identity = fixture.device().await;
    let stranger = Identity::new(identity.realm.clone(), device(9));
    let outcomes = fixture
        .commit(vec![
            sample(&identity, "/a", 1),
            sample(&stranger, "/a", 2),
            with_receipt(sample(&identity, "/a", 3), receipt(1, 1)),
            with_receipt(sample(&identity, "/a", 4), receipt(1, 1)),
            sample(&identity, "/a", 5),
        ])
        .await;
    assert_eq!(outcomes, [Done, NoDevice, Done, Duplicate, Done]);
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 3, 5]);
    assert!(fixture.commit(Vec::new()).await.is_empty());
}

async fn a_large_batch_over_many_devices_is_stored_and_counted_exactly(fixture: Fixture) {
    let acme = fixture.realm("acme").await;
    let devices: Vec<_> = (1..=20)
        .map(|n| Identity::new(acme.clone(), device(n)))
        .collect();
    for identity in &devices {
        fixture.register(identity).await.unwrap();
    }
    for round in 0..2 {
        let units = (0..1111).map(|n: i32| {
            let identity = &devices[n.unsigned_abs() as usize % devices.len()];
            let interface = (n % 3 != 0).then(sensor);
            let value = round * 10_000 + n;
            Unit {
                counted: Some((interface, 10)),
                ..sample(identity, if n % 2 == 0 { "/even" } else { "/odd" }, value)
            }
        });
        fixture.done(units.collect()).await;
    }
    let (mut stored, mut messages, mut bytes, mut on_sensor) = (0, 0, 0, 0);
    for identity in &devices {
        stored += fixture.stored(identity, "/even").await.len();
        stored += fixture.stored(identity, "/odd").await.len();
        let row = fixture.store.device(identity).await.unwrap().unwrap();
        messages += row.total_received_msgs;
        bytes += row.total_received_bytes;
        for exchanged in fixture.store.exchanged(identity).await.unwrap() {
            assert_eq!(exchanged.interface, sensor());
            on_sensor += exchanged.messages;
        }
    }
    assert_eq!((stored, messages, bytes), (2222, 2222, 22_220));
    assert_eq!(
        on_sensor,
        2 * (0..1111).filter(|n| n % 3 != 0).count() as u64
    );
}

async fn a_repeated_receipt_is_a_duplicate_without_effects(fixture: Fixture) {
    let identity = fixture.device().await;
    let counted = |value, packet_id| Unit {
        counted: Some((Some(sensor()), 5)),
        ..with_receipt(sample(&identity, "/a", value), receipt(u64::MAX, packet_id))
    };
    assert_eq!(
        fixture.commit(vec![counted(1, 1), counted(2, 2)]).await,
        [Done, Done]
    );
    let again = fixture
        .commit(vec![counted(3, 1), counted(4, 3), counted(5, 3)])
        .await;
    assert_eq!(again, [Duplicate, Done, Duplicate]);
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 2, 4]);
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!((row.total_received_msgs, row.total_received_bytes), (3, 15));

    // another device and another epoch may use the same packet id
    let other = Identity::new(identity.realm.clone(), device(2));
    fixture.register(&other).await.unwrap();
    fixture
        .done(vec![
            with_receipt(sample(&other, "/a", 6), receipt(u64::MAX, 1)),
            with_receipt(sample(&identity, "/a", 7), receipt(0, 1)),
        ])
        .await;
}

async fn a_receipt_that_was_removed_may_be_used_again(fixture: Fixture) {
    let identity = fixture.device().await;
    let message = |value| with_receipt(sample(&identity, "/a", value), receipt(5, 9));
    let settle = || unit(&identity, vec![Effect::RemoveReceipt(receipt(5, 9))]);
    fixture.done(vec![message(1), settle()]).await;
    fixture.done(vec![message(2)]).await;
    assert_eq!(fixture.commit(vec![message(3)]).await, [Duplicate]);
    fixture.done(vec![settle(), message(4)]).await;
    assert_eq!(fixture.commit(vec![message(5)]).await, [Duplicate]);
    fixture.done(vec![settle(), settle()]).await;
    fixture.done(vec![message(6)]).await;
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 2, 4, 6]);
}

async fn receipts_of_an_erased_session_are_forgotten_and_no_others(fixture: Fixture) {
    let identity = fixture.device().await;
    let message =
        |value, epoch, id| with_receipt(sample(&identity, "/a", value), receipt(epoch, id));
    fixture
        .done(vec![message(1, 1, 1), message(2, 1, 2), message(3, 2, 1)])
        .await;
    let forget = unit(&identity, vec![Effect::ForgetReceipts { epoch: 1 }]);
    let outcomes = fixture.commit(vec![
        message(4, 1, 3),
        forget,
        message(5, 1, 3),
        message(6, 1, 1),
        message(7, 2, 1),
    ]);
    assert_eq!(outcomes.await, [Done, Done, Done, Done, Duplicate]);
    assert_eq!(fixture.commit(vec![message(8, 1, 1)]).await, [Duplicate]);
    assert_eq!(fixture.commit(vec![message(9, 1, 2)]).await, [Done]);
}

async fn a_unit_that_the_database_refuses_does_not_take_its_neighbours(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture.poison("/poison").await;
    let mut bad = with_receipt(sample(&identity, "/poison", 3), receipt(1, 1));
    bad.effects.insert(
        0,
        Effect::SetProperty {
            interface: settings(),
            path: "/p".into(),
            value: Value::Integer(1),
            at: at(1),
        },
    );
    bad.counted = Some((None, 100));
    let outcomes = fixture
        .commit(vec![
            sample(&identity, "/a", 1),
            bad,
            sample(&identity, "/a", 2),
        ])
        .await;
    assert_eq!(outcomes, [Done, Refused, Done]);
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 2]);
    assert!(
        fixture
            .store
            .properties(&identity, &settings())
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        fixture
            .store
            .device(&identity)
            .await
            .unwrap()
            .unwrap()
            .total_received_msgs,
        0
    );
    // its receipt is not there either
    let good = with_receipt(sample(&identity, "/a", 4), receipt(1, 1));
    assert_eq!(fixture.commit(vec![good]).await, [Done]);
}

async fn a_unit_of_an_unknown_device_stores_nothing(fixture: Fixture) {
    let identity = Identity::new(fixture.realm("acme").await, device(1));
    assert_eq!(
        fixture.commit(vec![sample(&identity, "/a", 1)]).await,
        [NoDevice]
    );
    fixture.register(&identity).await.unwrap();
    fixture.done(vec![sample(&identity, "/a", 2)]).await;
    assert_eq!(fixture.stored(&identity, "/a").await, [2]);
    fixture
        .apply(Change::DeleteDevice(identity.clone()))
        .await
        .unwrap();
    assert_eq!(
        fixture.commit(vec![sample(&identity, "/a", 3)]).await,
        [NoDevice]
    );
}

async fn the_outbox_keeps_its_order_until_a_message_is_taken_out(fixture: Fixture) {
    let identity = fixture.device().await;
    let add = |id| {
        unit(
            &identity,
            vec![Effect::AddOutbox(outbox_row(&identity, id))],
        )
    };
    let remove = |id| unit(&identity, vec![Effect::RemoveOutbox { id }]);
    fixture
        .done(vec![add(u128::MAX), add(1), add(2), remove(2)])
        .await;
    fixture.done(vec![add(0), add(1)]).await;
    let ids = async || -> Vec<u128> {
        fixture
            .store
            .outbox()
            .await
            .unwrap()
            .iter()
            .map(|row| row.id)
            .collect()
    };
    assert_eq!(ids().await, [u128::MAX, 1, 0]);
    assert_eq!(
        fixture.store.outbox().await.unwrap()[1],
        outbox_row(&identity, 1)
    );
    fixture.done(vec![remove(1), remove(77)]).await;
    assert_eq!(ids().await, [u128::MAX, 0]);
}

async fn concurrent_calls_are_all_committed(fixture: Fixture) {
    let identity = fixture.device().await;
    let commits = (0..200).map(|n| fixture.store.commit(vec![sample(&identity, "/a", n)]));
    let changes = (0..50).map(|n| fixture.store.apply(Change::Note, audit(&n.to_string())));
    let conflicts = (0..10).map(|_| {
        let row = realm_row(&identity.realm);
        fixture.apply(Change::CreateRealm(row, ca(&identity.realm, "x", 1)))
    });
    let (commits, changes, conflicts) =
        tokio::join!(join_all(commits), join_all(changes), join_all(conflicts));
    assert!(
        commits
            .iter()
            .all(|outcome| matches!(outcome.as_deref(), Ok([Done])))
    );
    assert!(changes.iter().all(Result::is_ok));
    assert!(
        conflicts
            .iter()
            .all(|it| matches!(it, Err(StoreError::Conflict(Subject::Realm))))
    );
    assert_eq!(
        fixture.stored(&identity, "/a").await,
        (0..200).collect::<Vec<_>>()
    );
}

async fn after_closing_nothing_is_taken(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture.store.close().await;
    let late = fixture.store.commit(vec![sample(&identity, "/a", 1)]);
    let late = tokio::time::timeout(Duration::from_secs(30), late)
        .await
        .expect("an answer");
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    let late = fixture.apply(Change::Note).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
}
