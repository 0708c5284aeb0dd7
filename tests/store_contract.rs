//! What every store promises, tried on all three: in memory, on SQLite, on PostgreSQL.

#![expect(
    clippy::unwrap_used,
    reason = "what a test stands on is there, or it fails"
)]

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use tanit::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::{InterfaceKey, Introspection, MajorMinor},
    payload::Value,
    store::{
        AuditEntry, CaRow, Change,
        Committed::{self, Done},
        DeviceErrorRow, DeviceFilter, Effect, InterfaceRow, OutboxRow, RealmRow, Receipt,
        SampleQuery, SecretHash, Store, StoreError, Unit,
        memory::MemoryStore,
        postgres::PostgresStore,
        sqlite::SqliteStore,
    },
};
use tempfile::TempDir;

use crate::harness::postgres::shared;

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

mod data;
mod devices;
mod presence;
mod realms;
mod removal;
mod units;

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
    #[expect(clippy::unused_async, reason = "made like the others")]
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
            outcomes.iter().all(|outcome| *outcome == Done),
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

fn set(path: &str, value: i32) -> Effect {
    let value = Value::Integer(value);
    Effect::SetProperty {
        interface: settings(),
        path: path.into(),
        value,
        at: at(1),
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

fn outbox_row(identity: &Identity, id: u128) -> OutboxRow {
    OutboxRow {
        id,
        identity: identity.clone(),
        topic: "/t.SrvCmd/cmd".to_owned(),
        payload: vec![0, 1],
        qos: 2,
        expires_at: Some(at(60)),
        property: true,
        major: Some(3),
    }
}

fn interface_row(realm: &RealmName, key: InterfaceKey, minor: u32) -> InterfaceRow {
    InterfaceRow {
        realm: realm.clone(),
        key,
        minor,
        document: format!("{{\"minor\":{minor}}}"),
    }
}
