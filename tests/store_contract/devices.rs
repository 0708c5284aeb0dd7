//! Devices: registration, certificates, names, lists, what they declare.

use std::collections::BTreeMap;

use tanit::{
    identity::Identity,
    interface::{InterfaceKey, Introspection},
    store::{Change, DeviceFilter, DeviceStats, Effect, SecretHash, StoreError, Subject},
};

use super::{Fixture, at, device, everything, introspection, patch_aliases, realm, sensor, unit};

for_every_store! {
    a_device_without_certificate_may_register_again_and_keeps_its_introspection
    the_registration_limit_counts_new_ids_alone
    a_certificate_is_recorded_and_the_first_request_stays_the_first
    certificates_are_counted_by_their_end
    an_alias_is_unique_in_its_realm_and_a_patch_is_all_or_nothing
    one_patch_can_exchange_two_aliases
    attributes_are_set_and_deleted
    devices_are_listed_in_the_order_of_their_ids_and_by_filter
    what_leaves_the_introspection_is_remembered_as_previous
    an_interface_is_in_use_while_a_device_declares_its_major
}

async fn a_device_without_certificate_may_register_again_and_keeps_its_introspection(
    fixture: Fixture,
) {
    let identity = Identity::new(fixture.realm("acme").await, device(1));
    let register = |secret: u8, introspection: Option<Introspection>| Change::RegisterDevice {
        identity: identity.clone(),
        secret: SecretHash::Hmac([secret; 32]),
        introspection,
        at: at(i64::from(secret)),
    };
    let declared = introspection(&[("org.example.A", 1, 0)]);
    fixture
        .apply(register(1, Some(declared.clone())))
        .await
        .unwrap();
    fixture.apply(register(2, None)).await.unwrap();
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!(row.secret, Some(SecretHash::Hmac([2; 32])));
    assert_eq!(row.first_registration, at(1));
    assert_eq!(row.introspection, declared, "kept where none is given");

    fixture.certify(&identity, at(100)).await;
    let confirmed = fixture.apply(register(3, None)).await;
    assert!(
        matches!(confirmed, Err(StoreError::Conflict(Subject::Device))),
        "{confirmed:?}"
    );

    fixture
        .apply(Change::UnregisterDevice(identity.clone()))
        .await
        .unwrap();
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!((row.secret, row.first_credentials_request), (None, None));
    assert_eq!(row.certificate_serial.as_deref(), Some("0a1b"));
    fixture
        .apply(register(4, Some(introspection(&[("org.example.B", 0, 1)]))))
        .await
        .unwrap();
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!(row.secret, Some(SecretHash::Hmac([4; 32])));
    assert_eq!(row.introspection, introspection(&[("org.example.B", 0, 1)]));
}

async fn the_registration_limit_counts_new_ids_alone(fixture: Fixture) {
    let acme = fixture.realm("acme").await;
    let limit = |limit| Change::UpdateRealm {
        realm: acme.clone(),
        jwt_public_key_pem: None,
        jwt_private_key_sealed: None,
        device_registration_limit: Some(limit),
        datastream_maximum_storage_retention: None,
    };
    fixture.apply(limit(Some(1))).await.unwrap();
    let first = Identity::new(acme.clone(), device(1));
    let second = Identity::new(acme.clone(), device(2));
    fixture.register(&first).await.unwrap();
    fixture.register(&first).await.unwrap();
    let refused = fixture.register(&second).await;
    assert!(
        matches!(refused, Err(StoreError::LimitReached)),
        "{refused:?}"
    );
    fixture.apply(limit(None)).await.unwrap();
    fixture.register(&second).await.unwrap();
    let nowhere = fixture
        .register(&Identity::new(realm("nowhere"), device(1)))
        .await;
    assert!(
        matches!(nowhere, Err(StoreError::NotFound(Subject::Realm))),
        "{nowhere:?}"
    );
}

async fn a_certificate_is_recorded_and_the_first_request_stays_the_first(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture.certify(&identity, at(100)).await;
    fixture
        .apply(Change::RecordCertificate {
            identity: identity.clone(),
            serial: "ff".to_owned(),
            aki: "aa".to_owned(),
            not_after: at(200),
            ip: None,
            at: at(50),
        })
        .await
        .unwrap();
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!(row.first_credentials_request, Some(at(5)));
    assert_eq!(row.certificate_serial.as_deref(), Some("ff"));
    assert_eq!(row.certificate_aki.as_deref(), Some("aa"));
    assert_eq!(row.certificate_not_after, Some(at(200)));

    let hash = SecretHash::Bcrypt("$2b$12$x".to_owned());
    fixture
        .apply(Change::ReplaceSecret(identity.clone(), hash.clone()))
        .await
        .unwrap();
    assert_eq!(
        fixture
            .store
            .device(&identity)
            .await
            .unwrap()
            .unwrap()
            .secret,
        Some(hash)
    );
    let unknown = Identity::new(realm("acme"), device(9));
    let missing = fixture.apply(Change::UnregisterDevice(unknown)).await;
    assert!(
        matches!(missing, Err(StoreError::NotFound(Subject::Device))),
        "{missing:?}"
    );
}

async fn certificates_are_counted_by_their_end(fixture: Fixture) {
    let acme = fixture.realm("acme").await;
    for n in 1..=4 {
        let identity = Identity::new(acme.clone(), device(n));
        fixture.register(&identity).await.unwrap();
        if n < 4 {
            fixture.certify(&identity, at(100 * i64::from(n))).await;
        }
    }
    let counts = fixture
        .store
        .expiring_certificates(&acme, &[at(99), at(200), at(1000)])
        .await;
    assert_eq!(counts.unwrap(), [0, 2, 3]);
}

async fn an_alias_is_unique_in_its_realm_and_a_patch_is_all_or_nothing(fixture: Fixture) {
    let first = fixture.device().await;
    let second = Identity::new(first.realm.clone(), device(2));
    fixture.register(&second).await.unwrap();
    fixture
        .apply(patch_aliases(&first, &[("name", Some("pump"))]))
        .await
        .unwrap();
    fixture
        .apply(patch_aliases(&first, &[("name", Some("pump"))]))
        .await
        .unwrap();

    let taken = fixture.apply(patch_aliases(
        &second,
        &[("a", Some("new")), ("b", Some("pump"))],
    ));
    let taken = taken.await;
    assert!(
        matches!(taken, Err(StoreError::Conflict(Subject::Alias))),
        "{taken:?}"
    );
    assert!(
        fixture
            .store
            .device(&second)
            .await
            .unwrap()
            .unwrap()
            .aliases
            .is_empty()
    );

    let found = fixture
        .store
        .device_by_alias(&first.realm, "pump")
        .await
        .unwrap();
    assert_eq!(found, Some(first.device));
    let elsewhere = fixture
        .store
        .device_by_alias(&realm("globex"), "pump")
        .await
        .unwrap();
    assert_eq!(elsewhere, None);

    fixture
        .apply(patch_aliases(&first, &[("name", None)]))
        .await
        .unwrap();
    fixture
        .apply(patch_aliases(&second, &[("b", Some("pump"))]))
        .await
        .unwrap();
    let found = fixture
        .store
        .device_by_alias(&first.realm, "pump")
        .await
        .unwrap();
    assert_eq!(found, Some(second.device));
}

async fn one_patch_can_exchange_two_aliases(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .apply(patch_aliases(
            &identity,
            &[("a", Some("x")), ("b", Some("y"))],
        ))
        .await
        .unwrap();
    fixture
        .apply(patch_aliases(
            &identity,
            &[("a", Some("y")), ("b", Some("x"))],
        ))
        .await
        .unwrap();
    let aliases = fixture
        .store
        .device(&identity)
        .await
        .unwrap()
        .unwrap()
        .aliases;
    assert_eq!(
        aliases,
        BTreeMap::from([("a".into(), "y".into()), ("b".into(), "x".into())])
    );
}

async fn attributes_are_set_and_deleted(fixture: Fixture) {
    let identity = fixture.device().await;
    let patch = |attributes: &[(&str, Option<&str>)]| Change::PatchDevice {
        identity: identity.clone(),
        aliases: BTreeMap::new(),
        attributes: attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)))
            .collect(),
        credentials_inhibited: Some(true),
    };
    fixture
        .apply(patch(&[("a", Some("1")), ("b", Some("2"))]))
        .await
        .unwrap();
    fixture
        .apply(patch(&[("a", None), ("b", Some("3"))]))
        .await
        .unwrap();
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!(
        row.attributes,
        BTreeMap::from([("b".to_owned(), "3".to_owned())])
    );
    assert!(row.credentials_inhibited);
}

async fn devices_are_listed_in_the_order_of_their_ids_and_by_filter(fixture: Fixture) {
    let acme = fixture.realm("acme").await;
    for n in [3, 200, 1, 2] {
        fixture
            .register(&Identity::new(acme.clone(), device(n)))
            .await
            .unwrap();
    }
    let globex = Identity::new(fixture.realm("globex").await, device(1));
    fixture.register(&globex).await.unwrap();
    let second = Identity::new(acme.clone(), device(2));
    let declared = introspection(&[("org.example.A", 1, 0)]);
    fixture
        .done(vec![unit(
            &second,
            vec![
                Effect::SetIntrospection(declared),
                Effect::Connected {
                    at: at(1),
                    ip: None,
                },
            ],
        )])
        .await;

    let list = async |filter: DeviceFilter| -> Vec<u8> {
        let rows = fixture.store.devices(&acme, &filter).await.unwrap();
        rows.iter()
            .map(|row| row.identity.device.as_bytes()[0])
            .collect()
    };
    assert_eq!(list(everything()).await, [1, 2, 3, 200]);
    assert_eq!(
        list(DeviceFilter {
            limit: 2,
            ..everything()
        })
        .await,
        [1, 2]
    );
    assert_eq!(
        list(DeviceFilter {
            after: Some(device(2)),
            ..everything()
        })
        .await,
        [3, 200]
    );
    assert_eq!(
        list(DeviceFilter {
            connected: Some(true),
            ..everything()
        })
        .await,
        [2]
    );
    assert_eq!(
        list(DeviceFilter {
            connected: Some(false),
            ..everything()
        })
        .await,
        [1, 3, 200]
    );
    assert!(
        list(DeviceFilter {
            credentials_inhibited: Some(true),
            ..everything()
        })
        .await
        .is_empty()
    );
    let by_name = |name: &str| DeviceFilter {
        interface: Some(name.to_owned()),
        ..everything()
    };
    assert_eq!(list(by_name("org.example.A")).await, [2]);
    assert!(list(by_name("org.example.B")).await.is_empty());

    let stats = fixture.store.device_stats(&acme).await.unwrap();
    assert_eq!(
        stats,
        DeviceStats {
            total_devices: 4,
            connected_devices: 1
        }
    );
}

async fn what_leaves_the_introspection_is_remembered_as_previous(fixture: Fixture) {
    let identity = fixture.device().await;
    let declare = |entries| {
        unit(
            &identity,
            vec![Effect::SetIntrospection(introspection(entries))],
        )
    };
    fixture
        .done(vec![declare(&[("a", 0, 1), ("b", 1, 2), ("c", 1, 0)])])
        .await;
    fixture
        .done(vec![declare(&[]), declare(&[("b", 2, 0), ("c", 1, 5)])])
        .await;
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert_eq!(
        row.introspection,
        introspection(&[("b", 2, 0), ("c", 1, 5)])
    );
    let previous = BTreeMap::from([(("a".to_owned(), 0), 1), (("b".to_owned(), 1), 2)]);
    assert_eq!(row.previous_interfaces, previous);

    fixture
        .done(vec![declare(&[("a", 0, 3), ("b", 1, 2)])])
        .await;
    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    let previous = BTreeMap::from([(("b".to_owned(), 2), 0), (("c".to_owned(), 1), 5)]);
    assert_eq!(row.previous_interfaces, previous);
}

async fn an_interface_is_in_use_while_a_device_declares_its_major(fixture: Fixture) {
    let identity = fixture.device().await;
    let declare = |entries| {
        unit(
            &identity,
            vec![Effect::SetIntrospection(introspection(entries))],
        )
    };
    fixture
        .done(vec![declare(&[("org.example.Sensor", 1, 4)])])
        .await;
    assert!(
        fixture
            .store
            .interface_in_use(&identity.realm, &sensor())
            .await
            .unwrap()
    );
    let other = InterfaceKey {
        major: 2,
        ..sensor()
    };
    assert!(
        !fixture
            .store
            .interface_in_use(&identity.realm, &other)
            .await
            .unwrap()
    );
    assert!(
        !fixture
            .store
            .interface_in_use(&realm("globex"), &sensor())
            .await
            .unwrap()
    );
    fixture
        .done(vec![declare(&[("org.example.Sensor", 2, 0)])])
        .await;
    assert!(
        !fixture
            .store
            .interface_in_use(&identity.realm, &sensor())
            .await
            .unwrap()
    );
}
