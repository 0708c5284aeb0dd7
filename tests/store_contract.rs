//! What every store promises, tried on all three: in memory, on SQLite, on PostgreSQL.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use tanit::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::{InterfaceKey, Introspection, MajorMinor},
    payload::Value,
    store::{
        AuditEntry, CaRow, Change, Committed, DeviceErrorRow, DeviceFilter, DeviceStats, Effect,
        InterfaceRow, OutboxRow, RealmRow, Receipt, RevocationRow, SampleQuery, SecretHash, Store,
        StoreError, Subject, Unit, memory::MemoryStore, postgres::PostgresStore,
        sqlite::SqliteStore,
    },
};
use tempfile::TempDir;

use crate::harness::postgres::shared;

/// A fresh store, and a way to make it refuse a value.
struct Fixture {
    store: Arc<dyn Store>,
    kind: Kind,
}

enum Kind {
    Memory(Arc<MemoryStore>),
    Sqlite(
        PathBuf,
        #[expect(dead_code, reason = "removes the folder at the end")] TempDir,
    ),
    Postgres(String),
}

impl Fixture {
    async fn memory() -> Option<Self> {
        let store = Arc::new(MemoryStore::new());
        Some(Self {
            store: Arc::<MemoryStore>::clone(&store),
            kind: Kind::Memory(store),
        })
    }

    async fn sqlite() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("tanit.db");
        let store = Arc::new(SqliteStore::open(&file).await.unwrap());
        Some(Self {
            store,
            kind: Kind::Sqlite(file, folder),
        })
    }

    async fn postgres() -> Option<Self> {
        let url = shared()?.database().await;
        let store = Arc::new(PostgresStore::connect(&url).await.unwrap());
        Some(Self {
            store,
            kind: Kind::Postgres(url),
        })
    }

    /// Makes the database refuse samples on this path.
    async fn poison(&self, path: &str) {
        match &self.kind {
            Kind::Memory(store) => store.poison(path),
            Kind::Sqlite(file, _) => {
                let mut conn = SqliteConnection::connect(file.to_str().unwrap())
                    .await
                    .unwrap();
                let sql = format!(
                    "CREATE TRIGGER poison BEFORE INSERT ON sample \
                     WHEN (SELECT path FROM series WHERE id = NEW.series) = '{path}' \
                     BEGIN SELECT RAISE(ABORT, 'poison'); END"
                );
                sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut conn)
                    .await
                    .unwrap();
            }
            Kind::Postgres(url) => {
                let mut conn = PgConnection::connect(url).await.unwrap();
                let sql = format!(
                    "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                     IF (SELECT path FROM series WHERE id = NEW.series) = '{path}' \
                     THEN RAISE 'poison'; END IF; RETURN NEW; END $$; \
                     CREATE TRIGGER poison BEFORE INSERT ON sample \
                     FOR EACH ROW EXECUTE FUNCTION poison()"
                );
                sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut conn)
                    .await
                    .unwrap();
            }
        }
    }

    async fn apply(&self, change: Change) -> Result<(), StoreError> {
        self.store.apply(change, audit("test")).await
    }

    async fn commit(&self, units: Vec<Unit>) -> Vec<Committed> {
        self.store.commit(units).await.unwrap()
    }

    /// Commits units, of which all must be done.
    async fn done(&self, units: Vec<Unit>) {
        let outcomes = self.commit(units).await;
        assert!(
            outcomes.iter().all(|outcome| *outcome == Committed::Done),
            "{outcomes:?}"
        );
    }

    /// A realm.
    async fn realm(&self, name: &str) -> RealmName {
        let name = realm(name);
        self.apply(Change::CreateRealm(realm_row(&name), ca(&name, "first", 1)))
            .await
            .unwrap();
        name
    }

    /// The realm `acme` with one device.
    async fn device(&self) -> Identity {
        let identity = Identity::new(self.realm("acme").await, device(1));
        self.register(&identity).await.unwrap();
        identity
    }

    async fn register(&self, identity: &Identity) -> Result<(), StoreError> {
        self.apply(Change::RegisterDevice {
            identity: identity.clone(),
            secret: SecretHash::Hmac([7; 32]),
            introspection: None,
            at: at(1),
        })
        .await
    }

    async fn certify(&self, identity: &Identity, not_after: Timestamp) {
        self.apply(Change::RecordCertificate {
            identity: identity.clone(),
            serial: "0a1b".to_owned(),
            aki: "ffee".to_owned(),
            not_after,
            ip: Some(IpAddr::from([192, 0, 2, 7])),
            at: at(5),
        })
        .await
        .unwrap();
    }

    async fn stored(&self, identity: &Identity, path: &str) -> Vec<i32> {
        let samples = self
            .store
            .samples(identity, &sensor(), path, &all())
            .await
            .unwrap();
        samples
            .into_iter()
            .map(|sample| match sample.value {
                Value::Integer(value) => value,
                other => panic!("{other:?} was never stored"),
            })
            .collect()
    }
}

fn realm(name: &str) -> RealmName {
    name.parse().unwrap()
}

fn device(n: u8) -> DeviceId {
    DeviceId::from_bytes([n; 16])
}

/// So many seconds after some midnight.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_700_006_400 + seconds) * 1_000_000)
}

fn audit(action: &str) -> AuditEntry {
    AuditEntry {
        at: at(0),
        actor: "tanit".into(),
        action: action.into(),
        object: "acme".into(),
    }
}

fn realm_row(name: &RealmName) -> RealmRow {
    RealmRow {
        name: name.clone(),
        jwt_public_key_pem: "PUBLIC".to_owned(),
        jwt_private_key_sealed: Some(vec![1, 2, 3]),
        device_registration_limit: None,
        datastream_maximum_storage_retention: 0,
        created_at: at(0),
    }
}

fn ca(realm: &RealmName, fingerprint: &str, added: i64) -> CaRow {
    CaRow {
        realm: realm.clone(),
        fingerprint: fingerprint.to_owned(),
        certificate_pem: format!("PEM of {fingerprint}"),
        key_sealed: Some(vec![9]),
        issuing: true,
        added_at: at(added),
    }
}

fn sensor() -> InterfaceKey {
    InterfaceKey {
        name: "org.example.Sensor".into(),
        major: 1,
    }
}

fn settings() -> InterfaceKey {
    InterfaceKey {
        name: "org.example.Settings".into(),
        major: 0,
    }
}

fn introspection(entries: &[(&str, u32, u32)]) -> Introspection {
    let entries = entries.iter();
    entries
        .map(|&(name, major, minor)| (name.into(), MajorMinor { major, minor }))
        .collect()
}

fn unit(identity: &Identity, effects: Vec<Effect>) -> Unit {
    Unit {
        identity: identity.clone(),
        receipt: None,
        effects,
        counted: None,
    }
}

/// A unit with one sample of this value; its stamps are the value's seconds.
fn sample(identity: &Identity, path: &str, value: i32) -> Unit {
    sample_at(identity, path, value, at(value.into()), at(value.into()))
}

fn sample_at(
    identity: &Identity,
    path: &str,
    value: i32,
    value_at: Timestamp,
    received_at: Timestamp,
) -> Unit {
    let effect = Effect::AppendSample {
        interface: sensor(),
        path: path.into(),
        value: Value::Integer(value),
        value_at,
        received_at,
        expires_at: None,
    };
    unit(identity, vec![effect])
}

fn receipt(epoch: u64, packet_id: u16) -> Receipt {
    Receipt { epoch, packet_id }
}

fn with_receipt(unit: Unit, receipt: Receipt) -> Unit {
    Unit {
        receipt: Some(receipt),
        ..unit
    }
}

fn error(name: &str, at: Timestamp) -> DeviceErrorRow {
    DeviceErrorRow {
        at,
        error_name: name.to_owned(),
        interface: Some("org.example.Sensor".to_owned()),
        path: None,
        base64_payload: Some("AAE=".to_owned()),
        detail: None,
    }
}

const fn all() -> SampleQuery {
    SampleQuery {
        since: None,
        since_after: None,
        to: None,
        limit: 10_000,
        newest_first: false,
    }
}

fn everything() -> DeviceFilter {
    DeviceFilter {
        limit: 1000,
        ..DeviceFilter::default()
    }
}

macro_rules! for_every_store {
    ($($name:ident)*) => {
        mod memory { $(#[tokio::test] async fn $name() {
            if let Some(fixture) = super::Fixture::memory().await { super::$name(fixture).await; }
        })* }
        mod sqlite { $(#[tokio::test] async fn $name() {
            if let Some(fixture) = super::Fixture::sqlite().await { super::$name(fixture).await; }
        })* }
        mod postgres { $(#[tokio::test] async fn $name() {
            if let Some(fixture) = super::Fixture::postgres().await { super::$name(fixture).await; }
        })* }
    };
}

for_every_store! {
    a_realm_is_made_changed_listed_and_removed
    a_change_that_fails_leaves_nothing_not_even_its_audit_row
    one_ca_of_a_realm_issues_and_the_newest_comes_first
    a_device_without_certificate_may_register_again_and_keeps_its_introspection
    the_registration_limit_counts_new_ids_alone
    a_certificate_is_recorded_and_the_first_request_stays_the_first
    certificates_are_counted_by_their_end
    revocations_are_kept_once_and_outlive_their_device
    an_alias_is_unique_in_its_realm_and_a_patch_is_all_or_nothing
    one_patch_can_exchange_two_aliases
    attributes_are_set_and_deleted
    devices_are_listed_in_the_order_of_their_ids_and_by_filter
    outcomes_and_samples_come_in_the_order_of_the_units
    samples_are_found_by_time_and_limit
    equal_value_stamps_keep_both_rows
    a_sample_whose_key_is_taken_is_kept_beside_the_other
    every_type_of_value_is_read_back_as_it_was_stored
    a_large_batch_over_many_devices_is_stored_and_counted_exactly
    a_repeated_receipt_is_a_duplicate_without_effects
    a_receipt_that_was_removed_may_be_used_again
    receipts_of_an_erased_session_are_forgotten_and_no_others
    a_unit_that_the_database_refuses_does_not_take_its_neighbours
    a_unit_of_an_unknown_device_stores_nothing
    properties_are_set_replaced_and_unset
    the_last_change_of_a_property_in_a_batch_holds
    what_leaves_the_introspection_is_remembered_as_previous
    an_interface_is_in_use_while_a_device_declares_its_major
    connected_and_disconnected_strictly_alternate
    the_newest_hundred_presence_events_are_kept
    devices_that_were_connected_are_closed_at_start_once
    the_newest_hundred_errors_are_kept_and_all_are_counted
    texts_with_a_nul_in_an_error_are_taken
    reconnects_are_counted_by_device
    the_newest_sample_of_each_path_is_found
    a_long_path_is_stored_and_found
    a_deleted_device_leaves_nothing_and_may_come_back_fresh
    a_deleted_interface_takes_its_data_and_no_other
    a_deleted_realm_takes_everything_in_it_and_nothing_else
    interfaces_are_installed_updated_and_listed
    the_outbox_keeps_its_order_until_a_message_is_taken_out
    the_audit_log_is_read_newest_first
    concurrent_calls_are_all_committed
    pending_empty_cache_is_set_and_cleared
    after_closing_nothing_is_taken
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
    assert_eq!(row.introspection, declared, "D-59");

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
        [row.clone()]
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

fn patch_aliases(identity: &Identity, aliases: &[(&str, Option<&str>)]) -> Change {
    let aliases = aliases.iter();
    Change::PatchDevice {
        identity: identity.clone(),
        aliases: aliases
            .map(|(tag, alias)| ((*tag).into(), alias.map(str::to_owned)))
            .collect(),
        attributes: BTreeMap::new(),
        credentials_inhibited: None,
    }
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
    use Committed::{Done, Duplicate, NoDevice};
    assert_eq!(outcomes, [Done, NoDevice, Done, Duplicate, Done]);
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 3, 5]);
    assert!(fixture.commit(Vec::new()).await.is_empty());
}

async fn samples_are_found_by_time_and_limit(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done((1..=9).map(|n| sample(&identity, "/a", n)).collect())
        .await;
    let find = async |query: SampleQuery| -> Vec<i64> {
        let found = fixture
            .store
            .samples(&identity, &sensor(), "/a", &query)
            .await
            .unwrap();
        found
            .iter()
            .map(|sample| sample.value_at.saturating_since(at(0)).as_secs() as i64)
            .collect()
    };
    assert_eq!(
        find(SampleQuery {
            since: Some(at(7)),
            ..all()
        })
        .await,
        [7, 8, 9]
    );
    assert_eq!(
        find(SampleQuery {
            since_after: Some(at(7)),
            ..all()
        })
        .await,
        [8, 9]
    );
    assert_eq!(
        find(SampleQuery {
            to: Some(at(3)),
            ..all()
        })
        .await,
        [1, 2]
    );
    assert_eq!(find(SampleQuery { limit: 2, ..all() }).await, [1, 2]);
    assert_eq!(
        find(SampleQuery {
            limit: 2,
            newest_first: true,
            ..all()
        })
        .await,
        [9, 8]
    );
    assert!(find(SampleQuery { limit: 0, ..all() }).await.is_empty());
    assert!(fixture.stored(&identity, "/b").await.is_empty());
    let other = fixture
        .store
        .samples(&identity, &settings(), "/a", &all())
        .await
        .unwrap();
    assert!(other.is_empty());
}

async fn equal_value_stamps_keep_both_rows(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![
            sample_at(&identity, "/a", 1, at(10), at(20)),
            sample_at(&identity, "/a", 2, at(10), at(21)),
        ])
        .await;
    fixture
        .done(vec![sample_at(&identity, "/a", 3, at(10), at(22))])
        .await;
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 2, 3]);
}

async fn a_sample_whose_key_is_taken_is_kept_beside_the_other(fixture: Fixture) {
    let identity = fixture.device().await;
    let same = |value| sample_at(&identity, "/a", value, at(10), at(20));
    fixture.done(vec![same(1), same(2)]).await;
    fixture
        .done(vec![
            sample(&identity, "/b", 7),
            same(3),
            sample(&identity, "/b", 8),
        ])
        .await;
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 2, 3]);
    assert_eq!(fixture.stored(&identity, "/b").await, [7, 8]);
}

async fn every_type_of_value_is_read_back_as_it_was_stored(fixture: Fixture) {
    let identity = fixture.device().await;
    let blob = Bytes::from_static(&[0, 255, 0]);
    let values = [
        Value::Double(-0.0),
        Value::Integer(i32::MIN),
        Value::Boolean(true),
        Value::LongInteger(i64::MIN),
        Value::String("a\0\u{1f600}".to_owned()),
        Value::String(String::new()),
        Value::BinaryBlob(blob.clone()),
        Value::BinaryBlob(Bytes::new()),
        Value::DateTime(at(3)),
        Value::DoubleArray(vec![1.5, f64::MAX]),
        Value::IntegerArray(Vec::new()),
        Value::BooleanArray(vec![true, false]),
        Value::LongIntegerArray(vec![i64::MAX]),
        Value::StringArray(vec!["x".to_owned(), String::new()]),
        Value::BinaryBlobArray(vec![blob, Bytes::new()]),
        Value::DateTimeArray(vec![at(1), at(2)]),
        Value::Object(vec![
            ("hum".to_owned(), None),
            ("t".to_owned(), Some(Value::Double(2.5))),
        ]),
        Value::BinaryBlob(Bytes::from(vec![7; 65_536])),
    ];
    let units = values.iter().enumerate().map(|(n, value)| {
        let stamp = at(n as i64);
        let sample = Effect::AppendSample {
            interface: sensor(),
            path: "/v".into(),
            value: value.clone(),
            value_at: stamp,
            received_at: stamp,
            expires_at: Some(at(1000)),
        };
        let property = Effect::SetProperty {
            interface: settings(),
            path: format!("/{n:02}").into(),
            value: value.clone(),
            at: stamp,
        };
        unit(&identity, vec![sample, property])
    });
    fixture.done(units.collect()).await;
    let samples = fixture
        .store
        .samples(&identity, &sensor(), "/v", &all())
        .await
        .unwrap();
    let samples: Vec<_> = samples.into_iter().map(|sample| sample.value).collect();
    assert_eq!(samples, values);
    let Value::Double(zero) = samples[0] else {
        panic!("not a double")
    };
    assert!(zero.is_sign_negative());
    let properties = fixture
        .store
        .properties(&identity, &settings())
        .await
        .unwrap();
    let properties: Vec<_> = properties.into_iter().map(|row| row.value).collect();
    assert_eq!(properties, values);
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
            let identity = &devices[n as usize % devices.len()];
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
    use Committed::{Done, Duplicate};
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
    assert_eq!(
        fixture.commit(vec![message(3)]).await,
        [Committed::Duplicate]
    );
    fixture.done(vec![settle(), message(4)]).await;
    assert_eq!(
        fixture.commit(vec![message(5)]).await,
        [Committed::Duplicate]
    );
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
    use Committed::{Done, Duplicate};
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
    use Committed::{Done, Refused};
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
        [Committed::NoDevice]
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
        [Committed::NoDevice]
    );
}

fn set(path: &str, value: i32) -> Effect {
    let value = Value::Integer(value);
    Effect::SetProperty {
        interface: settings(),
        path: path.into(),
        value,
        at: at(1),
    }
}

fn unset(path: &str) -> Effect {
    Effect::UnsetProperty {
        interface: settings(),
        path: path.into(),
    }
}

async fn shown_properties(fixture: &Fixture, identity: &Identity) -> Vec<(String, Value)> {
    let rows = fixture
        .store
        .properties(identity, &settings())
        .await
        .unwrap();
    rows.into_iter().map(|row| (row.path, row.value)).collect()
}

async fn properties_are_set_replaced_and_unset(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![unit(
            &identity,
            vec![set("/b", 1), set("/a", 2), set("/Z", 3)],
        )])
        .await;
    fixture
        .done(vec![unit(
            &identity,
            vec![set("/b", 4), unset("/a"), unset("/never")],
        )])
        .await;
    let expected = [
        ("/Z".to_owned(), Value::Integer(3)),
        ("/b".to_owned(), Value::Integer(4)),
    ];
    assert_eq!(shown_properties(&fixture, &identity).await, expected);
}

async fn the_last_change_of_a_property_in_a_batch_holds(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![
            unit(&identity, vec![set("/a", 1)]),
            unit(&identity, vec![unset("/a"), set("/b", 1)]),
            unit(&identity, vec![set("/a", 2), unset("/b")]),
        ])
        .await;
    let expected = [("/a".to_owned(), Value::Integer(2))];
    assert_eq!(shown_properties(&fixture, &identity).await, expected);
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
        [identity.clone()]
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

async fn the_newest_sample_of_each_path_is_found(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![
            sample(&identity, "/b", 1),
            sample(&identity, "/b", 3),
            sample(&identity, "/a", 2),
            sample_at(&identity, "/b", 4, at(3), at(9)),
        ])
        .await;
    let newest = fixture
        .store
        .newest_samples(&identity, &sensor())
        .await
        .unwrap();
    let shown: Vec<_> = newest
        .iter()
        .map(|(path, sample)| (path.as_str(), sample.value.clone()))
        .collect();
    assert_eq!(
        shown,
        [("/a", Value::Integer(2)), ("/b", Value::Integer(4))]
    );
    assert!(
        fixture
            .store
            .newest_samples(&identity, &settings())
            .await
            .unwrap()
            .is_empty()
    );
}

async fn a_long_path_is_stored_and_found(fixture: Fixture) {
    let identity = fixture.device().await;
    // too varied to be compressed into what an index of PostgreSQL takes
    let mut state = 1_u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 24) as u8 % 26)
    };
    let path: String = std::iter::once('/')
        .chain((0..60_000).map(|_| letter()))
        .collect();
    let other = format!("{path}x");
    fixture
        .done(vec![
            sample(&identity, &path, 1),
            sample(&identity, &other, 2),
        ])
        .await;
    fixture.done(vec![sample(&identity, &path, 3)]).await;
    assert_eq!(fixture.stored(&identity, &path).await, [1, 3]);
    assert_eq!(fixture.stored(&identity, &other).await, [2]);
}

fn outbox_row(identity: &Identity, id: u128) -> OutboxRow {
    OutboxRow {
        id,
        identity: identity.clone(),
        topic: "/t.SrvCmd/cmd".to_owned(),
        payload: vec![0, 1],
        qos: 2,
        expires_at: Some(at(60)),
        property: true,
    }
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

fn interface_row(realm: &RealmName, key: InterfaceKey, minor: u32) -> InterfaceRow {
    InterfaceRow {
        realm: realm.clone(),
        key,
        minor,
        document: format!("{{\"minor\":{minor}}}"),
    }
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
        [Committed::NoDevice]
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
            .all(|outcome| matches!(outcome.as_deref(), Ok([Committed::Done])))
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
