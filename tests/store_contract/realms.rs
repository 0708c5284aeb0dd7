//! Realms, their CAs and interfaces, and the log of who changed them.

use std::collections::BTreeMap;

use tanit::{
    interface::InterfaceKey,
    store::{CaRow, Change, RevocationRow, StoreError, Subject},
};

use super::{Fixture, at, audit, ca, interface_row, realm, realm_row, sensor, settings};

for_every_store! {
    a_realm_is_made_changed_listed_and_removed
    a_change_that_fails_leaves_nothing_not_even_its_audit_row
    one_ca_of_a_realm_issues_and_the_newest_comes_first
    revocations_are_kept_once_and_outlive_their_device
    interfaces_are_installed_updated_and_listed
    the_audit_log_is_read_newest_first
}

async fn a_realm_is_made_changed_listed_and_removed(fixture: Fixture) {
    let globex = fixture.realm("globex").await;
    let acme = fixture.realm("acme").await;
    let names: Vec<_> = fixture
        .store
        .realms()
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.name)
        .collect();
    assert_eq!(names, [acme.clone(), globex.clone()]);
    assert_eq!(
        fixture.store.realm(&acme).await.unwrap(),
        Some(realm_row(&acme))
    );

    let again = fixture
        .apply(Change::CreateRealm(realm_row(&acme), ca(&acme, "x", 1)))
        .await;
    assert!(
        matches!(again, Err(StoreError::Conflict(Subject::Realm))),
        "{again:?}"
    );

    let change = |key: Option<&str>, sealed: Option<Vec<u8>>, limit| Change::UpdateRealm {
        realm: acme.clone(),
        jwt_public_key_pem: key.map(str::to_owned),
        jwt_private_key_sealed: sealed,
        device_registration_limit: limit,
        datastream_maximum_storage_retention: Some(60),
    };
    fixture
        .apply(change(None, None, Some(Some(5))))
        .await
        .unwrap();
    let row = fixture.store.realm(&acme).await.unwrap().unwrap();
    assert_eq!(row.device_registration_limit, Some(5));
    assert_eq!(row.datastream_maximum_storage_retention, 60);
    assert_eq!(row.jwt_private_key_sealed, Some(vec![1, 2, 3]));

    fixture
        .apply(change(Some("OTHER"), None, Some(None)))
        .await
        .unwrap();
    let row = fixture.store.realm(&acme).await.unwrap().unwrap();
    assert_eq!(row.device_registration_limit, None);
    assert_eq!(row.jwt_public_key_pem, "OTHER");
    assert_eq!(
        row.jwt_private_key_sealed, None,
        "the key to the old public key"
    );

    fixture
        .apply(change(Some("THIRD"), Some(vec![4]), None))
        .await
        .unwrap();
    let row = fixture.store.realm(&acme).await.unwrap().unwrap();
    assert_eq!(row.jwt_private_key_sealed, Some(vec![4]));

    fixture
        .apply(Change::DeleteRealm(acme.clone()))
        .await
        .unwrap();
    assert_eq!(fixture.store.realm(&acme).await.unwrap(), None);
    let again = fixture.apply(Change::DeleteRealm(acme)).await;
    assert!(
        matches!(again, Err(StoreError::NotFound(Subject::Realm))),
        "{again:?}"
    );
    assert!(fixture.store.realm(&globex).await.unwrap().is_some());
}

async fn a_change_that_fails_leaves_nothing_not_even_its_audit_row(fixture: Fixture) {
    let identity = fixture.device().await;
    let before = fixture.store.audit(100).await.unwrap();
    let patch = Change::PatchDevice {
        identity: identity.clone(),
        aliases: BTreeMap::from([("missing".to_owned(), None)]),
        attributes: BTreeMap::from([("colour".to_owned(), Some("red".to_owned()))]),
        credentials_inhibited: Some(true),
    };
    let failed = fixture.store.apply(patch, audit("device.patch")).await;
    assert!(
        matches!(failed, Err(StoreError::NotFound(Subject::Alias))),
        "{failed:?}"
    );

    let row = fixture.store.device(&identity).await.unwrap().unwrap();
    assert!(row.attributes.is_empty() && !row.credentials_inhibited);
    assert_eq!(fixture.store.audit(100).await.unwrap(), before);
}

async fn one_ca_of_a_realm_issues_and_the_newest_comes_first(fixture: Fixture) {
    let acme = fixture.realm("acme").await;
    fixture
        .apply(Change::AddCa(ca(&acme, "second", 2)))
        .await
        .unwrap();
    fixture
        .apply(Change::AddCa(CaRow {
            issuing: false,
            ..ca(&acme, "third", 3)
        }))
        .await
        .unwrap();
    let again = fixture.apply(Change::AddCa(ca(&acme, "second", 4))).await;
    assert!(
        matches!(again, Err(StoreError::Conflict(Subject::Ca))),
        "{again:?}"
    );

    let cas = fixture.store.cas(&acme).await.unwrap();
    let shown: Vec<_> = cas
        .iter()
        .map(|ca| (ca.fingerprint.as_str(), ca.issuing))
        .collect();
    assert_eq!(
        shown,
        [("third", false), ("second", true), ("first", false)]
    );

    fixture
        .apply(Change::RemoveCa(acme.clone(), "first".to_owned()))
        .await
        .unwrap();
    let again = fixture
        .apply(Change::RemoveCa(acme.clone(), "first".to_owned()))
        .await;
    assert!(
        matches!(again, Err(StoreError::NotFound(Subject::Ca))),
        "{again:?}"
    );
    assert_eq!(fixture.store.cas(&acme).await.unwrap().len(), 2);
    let nowhere = fixture
        .apply(Change::AddCa(ca(&realm("nowhere"), "x", 1)))
        .await;
    assert!(
        matches!(nowhere, Err(StoreError::NotFound(Subject::Realm))),
        "{nowhere:?}"
    );
}

async fn revocations_are_kept_once_and_outlive_their_device(fixture: Fixture) {
    let identity = fixture.device().await;
    let row = RevocationRow {
        identity: identity.clone(),
        serial: "0a".into(),
        revoked_at: at(3),
    };
    fixture.apply(Change::Revoke(row.clone())).await.unwrap();
    fixture
        .apply(Change::Revoke(RevocationRow {
            revoked_at: at(9),
            ..row.clone()
        }))
        .await
        .unwrap();
    assert_eq!(
        fixture.store.revocations(&identity.realm).await.unwrap(),
        std::slice::from_ref(&row)
    );
    fixture
        .apply(Change::DeleteDevice(identity.clone()))
        .await
        .unwrap();
    assert_eq!(
        fixture.store.revocations(&identity.realm).await.unwrap(),
        [row]
    );
}

async fn interfaces_are_installed_updated_and_listed(fixture: Fixture) {
    let acme = fixture.realm("acme").await;
    let rows = [
        interface_row(&acme, sensor(), 0),
        interface_row(&acme, settings(), 1),
    ];
    for row in &rows {
        fixture
            .apply(Change::InstallInterface(row.clone()))
            .await
            .unwrap();
    }
    assert_eq!(fixture.store.interfaces().await.unwrap(), rows);
    let again = fixture
        .apply(Change::InstallInterface(interface_row(&acme, sensor(), 2)))
        .await;
    assert!(
        matches!(again, Err(StoreError::Conflict(Subject::Interface))),
        "{again:?}"
    );

    let newer = interface_row(&acme, sensor(), 3);
    fixture
        .apply(Change::UpdateInterface(newer.clone()))
        .await
        .unwrap();
    assert_eq!(fixture.store.interfaces().await.unwrap()[0], newer);
    let key = InterfaceKey {
        major: 9,
        ..sensor()
    };
    let missing = fixture
        .apply(Change::UpdateInterface(interface_row(&acme, key, 0)))
        .await;
    assert!(
        matches!(missing, Err(StoreError::NotFound(Subject::Interface))),
        "{missing:?}"
    );
}

async fn the_audit_log_is_read_newest_first(fixture: Fixture) {
    for action in ["a", "b", "c"] {
        fixture
            .store
            .apply(Change::Note, audit(action))
            .await
            .unwrap();
    }
    assert_eq!(
        fixture.store.audit(2).await.unwrap(),
        [audit("c"), audit("b")]
    );
}
