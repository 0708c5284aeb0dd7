//! Removal: everything that is theirs, and nothing else.

use std::collections::BTreeMap;

use tanit::{
    identity::Identity,
    store::Committed::NoDevice,
    store::{Change, Effect, RevocationRow, StoreError, Subject, Unit},
};

use super::{
    Fixture, at, device, error, everything, interface_row, introspection, outbox_row,
    patch_aliases, receipt, sample, sensor, set, shown_properties, unit, with_receipt,
};

for_every_store! {
    a_deleted_device_leaves_nothing_and_may_come_back_fresh
    a_deleted_interface_takes_its_data_and_no_other
    a_deleted_realm_takes_everything_in_it_and_nothing_else
}

/// Gives a device something in every table.
async fn furnish(fixture: &Fixture, identity: &Identity) {
    let message = with_receipt(sample(identity, "/a", 1), receipt(1, 1));
    let n = u128::from_be_bytes(*identity.device.as_bytes());
    let effects = vec![
        set("/p", 1),
        Effect::SetIntrospection(introspection(&[("org.example.Sensor", 1, 0)])),
        Effect::RecordError(error("odd", at(1))),
        Effect::Connected {
            at: at(1),
            ip: None,
        },
        Effect::PendingEmptyCache(true),
        Effect::AddOutbox(outbox_row(identity, n)),
    ];
    let counted = Some((Some(sensor()), 7));
    fixture
        .done(vec![Unit { counted, ..message }, unit(identity, effects)])
        .await;
    let alias = format!("alias of {identity}");
    fixture
        .apply(patch_aliases(identity, &[("tag", Some(&alias))]))
        .await
        .unwrap();
    fixture
        .apply(Change::PatchDevice {
            identity: identity.clone(),
            aliases: BTreeMap::new(),
            attributes: BTreeMap::from([("a".to_owned(), Some("b".to_owned()))]),
            credentials_inhibited: None,
        })
        .await
        .unwrap();
}

async fn a_deleted_device_leaves_nothing_and_may_come_back_fresh(fixture: Fixture) {
    let identity = fixture.device().await;
    let neighbour = Identity::new(identity.realm.clone(), device(2));
    fixture.register(&neighbour).await.unwrap();
    furnish(&fixture, &identity).await;
    furnish(&fixture, &neighbour).await;

    fixture
        .apply(Change::BeginDeviceDeletion(identity.clone()))
        .await
        .unwrap();
    assert!(
        fixture
            .store
            .device(&identity)
            .await
            .unwrap()
            .unwrap()
            .deletion_in_progress
    );
    let meanwhile = fixture.register(&identity).await;
    assert!(
        matches!(meanwhile, Err(StoreError::Conflict(Subject::Device))),
        "{meanwhile:?}"
    );
    fixture
        .apply(Change::DeleteDevice(identity.clone()))
        .await
        .unwrap();
    assert_eq!(fixture.store.device(&identity).await.unwrap(), None);
    let again = fixture.apply(Change::DeleteDevice(identity.clone())).await;
    assert!(
        matches!(again, Err(StoreError::NotFound(Subject::Device))),
        "{again:?}"
    );

    fixture.register(&identity).await.unwrap();
    let fresh = fixture.store.device(&identity).await.unwrap().unwrap();
    assert!(fresh.introspection.is_empty() && fresh.aliases.is_empty());
    assert!(fresh.attributes.is_empty() && !fresh.connected && !fresh.pending_empty_cache);
    assert_eq!((fresh.presence_sequence, fresh.total_received_msgs), (0, 0));
    assert!(fixture.stored(&identity, "/a").await.is_empty());
    assert!(shown_properties(&fixture, &identity).await.is_empty());
    assert!(
        fixture
            .store
            .device_errors(&identity)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(fixture.store.history(&identity).await.unwrap().is_empty());
    assert!(fixture.store.exchanged(&identity).await.unwrap().is_empty());
    // the receipt went, and new values are not among the old ones
    fixture
        .done(vec![with_receipt(
            sample(&identity, "/a", 2),
            receipt(1, 1),
        )])
        .await;
    assert_eq!(fixture.stored(&identity, "/a").await, [2]);

    assert_eq!(fixture.stored(&neighbour, "/a").await, [1]);
    let outbox = fixture.store.outbox().await.unwrap();
    assert_eq!(outbox.len(), 1);
    assert_eq!(outbox[0].identity, neighbour);
    let top = fixture
        .store
        .top_errors(&identity.realm, at(0), 10)
        .await
        .unwrap();
    assert_eq!(top.len(), 1);
}

async fn a_deleted_interface_takes_its_data_and_no_other(fixture: Fixture) {
    let identity = fixture.device().await;
    let elsewhere = Identity::new(fixture.realm("globex").await, device(1));
    fixture.register(&elsewhere).await.unwrap();
    let install = Change::InstallInterface(interface_row(&identity.realm, sensor(), 0));
    fixture.apply(install).await.unwrap();
    furnish(&fixture, &identity).await;
    furnish(&fixture, &elsewhere).await;

    let delete = || Change::DeleteInterface(identity.realm.clone(), sensor());
    fixture.apply(delete()).await.unwrap();
    assert!(fixture.store.interfaces().await.unwrap().is_empty());
    assert!(fixture.stored(&identity, "/a").await.is_empty());
    assert_eq!(shown_properties(&fixture, &identity).await.len(), 1);
    assert_eq!(fixture.stored(&elsewhere, "/a").await, [1]);
    let again = fixture.apply(delete()).await;
    assert!(
        matches!(again, Err(StoreError::NotFound(Subject::Interface))),
        "{again:?}"
    );
    // the series is made anew
    fixture.done(vec![sample(&identity, "/a", 5)]).await;
    assert_eq!(fixture.stored(&identity, "/a").await, [5]);
}

async fn a_deleted_realm_takes_everything_in_it_and_nothing_else(fixture: Fixture) {
    let identity = fixture.device().await;
    let elsewhere = Identity::new(fixture.realm("globex").await, device(1));
    fixture.register(&elsewhere).await.unwrap();
    furnish(&fixture, &identity).await;
    let row = RevocationRow {
        identity: identity.clone(),
        serial: "0a".into(),
        revoked_at: at(3),
    };
    fixture.apply(Change::Revoke(row)).await.unwrap();
    let install = Change::InstallInterface(interface_row(&identity.realm, sensor(), 0));
    fixture.apply(install).await.unwrap();
    fixture.done(vec![sample(&elsewhere, "/a", 1)]).await;

    fixture
        .apply(Change::DeleteRealm(identity.realm.clone()))
        .await
        .unwrap();
    assert!(fixture.store.interfaces().await.unwrap().is_empty());
    assert_eq!(
        fixture.commit(vec![sample(&identity, "/a", 2)]).await,
        [NoDevice]
    );
    assert!(fixture.store.outbox().await.unwrap().is_empty());

    let again = fixture.realm("acme").await;
    assert!(
        fixture
            .store
            .devices(&again, &everything())
            .await
            .unwrap()
            .is_empty()
    );
    assert!(fixture.store.revocations(&again).await.unwrap().is_empty());
    assert_eq!(fixture.store.cas(&again).await.unwrap().len(), 1);
    assert_eq!(fixture.stored(&elsewhere, "/a").await, [1]);
    fixture.done(vec![sample(&elsewhere, "/a", 2)]).await;
}
