//! Two stores, and what happens when one of them does not answer.

use std::{sync::Mutex, time::Duration};

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::{
    clock::ManualClock,
    engine::{EngineSettings, actor::Actor},
    identity::RealmName,
    interface::{InterfaceKey, Introspection},
    store::{CaRow, Change, RealmRow, SampleQuery, SecretHash, memory::MemoryStore},
};

const DOCUMENT: &str = r#"{"interface_name": "t.SrvCmd", "version_major": 1, "version_minor": 0,
    "type": "datastream", "ownership": "server", "mappings": [
        {"endpoint": "/cmd", "type": "integer", "reliability": "unique"},
        {"endpoint": "/fast", "type": "integer"}]}"#;

/// A session that takes everything, and notes whether the outbox held the message meanwhile.
#[derive(Debug)]
struct Session {
    store: Arc<MemoryStore>,
    taken: Mutex<Vec<(OutboxRow, usize)>>,
    came: Notify,
}

#[async_trait]
impl Downlink for Session {
    async fn reach(&self, _: &OutboxRow) -> Reach {
        Reach::Subscribed
    }

    async fn deliver(&self, message: &OutboxRow) -> Delivered {
        let held = self.store.outbox().await.unwrap().len();
        self.taken.lock().unwrap().push((message.clone(), held));
        self.came.notify_one();
        Delivered::Queued { until: None }
    }
}

struct Bench {
    store: Arc<MemoryStore>,
    session: Arc<Session>,
    writes: Writes,
}

fn device() -> Identity {
    "acme/Zm9vYmFyYmF6cXV4MTIzNA".parse().unwrap()
}

impl Bench {
    async fn start() -> Self {
        let now = Timestamp::parse("2026-01-31T10:20:30.123Z").unwrap();
        let clock = ManualClock::new(now);
        let store = Arc::new(MemoryStore::new());
        let realm: RealmName = "acme".parse().unwrap();
        let audit = || Actor::tanit().did(now, "test", "test");
        let realm_row = RealmRow {
            name: realm.clone(),
            jwt_public_key_pem: String::new(),
            jwt_private_key_sealed: None,
            device_registration_limit: None,
            datastream_maximum_storage_retention: 0,
            created_at: now,
        };
        let ca = CaRow {
            realm: realm.clone(),
            fingerprint: String::new(),
            certificate_pem: String::new(),
            key_sealed: None,
            issuing: true,
            added_at: now,
        };
        store
            .apply(Change::CreateRealm(realm_row, ca), audit())
            .await
            .unwrap();
        let register = Change::RegisterDevice {
            identity: device(),
            secret: SecretHash::Hmac([0; 32]),
            introspection: Some(Introspection::parse(b"t.SrvCmd:1:0").unwrap()),
            at: now,
        };
        store.apply(register, audit()).await.unwrap();
        let tracker = TaskTracker::new();
        let shared: Arc<dyn Store> = store.clone();
        let settings = EngineSettings::default();
        let engine = Engine::start(shared.clone(), settings, clock.clone(), &tracker).await;
        let engine = engine.unwrap();
        let document = serde_json::from_str(DOCUMENT).unwrap();
        engine
            .interfaces()
            .install(&realm, &document, audit())
            .await
            .unwrap();
        let session = Arc::new(Session {
            store: store.clone(),
            taken: Mutex::default(),
            came: Notify::new(),
        });
        let parts = WritesParts {
            store: shared,
            engine,
            downlink: session.clone(),
            clock,
            tracker,
        };
        Self {
            store,
            session,
            writes: Writes::new(parts),
        }
    }

    fn taken(&self) -> Vec<(OutboxRow, usize)> {
        std::mem::take(&mut self.session.taken.lock().unwrap())
    }

    async fn stored(&self) -> usize {
        let key = InterfaceKey {
            name: Arc::from("t.SrvCmd"),
            major: 1,
        };
        let query = SampleQuery {
            since: None,
            since_after: None,
            to: None,
            limit: 100,
            newest_first: false,
        };
        self.store
            .samples(&device(), &key, "/cmd", &query)
            .await
            .unwrap()
            .len()
    }
}

#[tokio::test]
async fn a_value_is_in_the_outbox_until_the_session_queue_has_it() {
    let bench = Bench::start().await;
    bench
        .writes
        .set(&device(), "t.SrvCmd", "/cmd", &json!(1))
        .await
        .unwrap();
    let taken = bench.taken();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].0.qos, taken[0].1), (2, 1));
    assert!(bench.store.outbox().await.unwrap().is_empty());
    // at most once needs no such care
    bench
        .writes
        .set(&device(), "t.SrvCmd", "/fast", &json!(1))
        .await
        .unwrap();
    let taken = bench.taken();
    assert_eq!((taken[0].0.qos, taken[0].1), (0, 0));
}

#[tokio::test]
async fn what_the_store_does_not_take_is_not_sent() {
    let bench = Bench::start().await;
    bench.store.fail_next(u64::MAX);
    let refused = bench
        .writes
        .set(&device(), "t.SrvCmd", "/cmd", &json!(1))
        .await;
    assert!(
        matches!(refused, Err(WriteError::Store(StoreError::Unavailable(_)))),
        "{refused:?}"
    );
    assert!(bench.taken().is_empty());
    assert_eq!(bench.stored().await, 0);
}

// with the clock paused, the timeout ends when nothing else can go on
#[tokio::test(start_paused = true)]
async fn a_write_goes_on_when_its_caller_goes_away() {
    let bench = Bench::start().await;
    bench.store.stall();
    let identity = device();
    let value = json!(1);
    let write = bench.writes.set(&identity, "t.SrvCmd", "/cmd", &value);
    // the commit is under way and does not return
    assert!(
        tokio::time::timeout(Duration::from_millis(50), write)
            .await
            .is_err()
    );
    bench.store.resume();
    bench.session.came.notified().await;
    assert_eq!(bench.stored().await, 1);
    assert_eq!(bench.taken().len(), 1);
}

#[tokio::test]
async fn a_leftover_value_is_sent_again_under_its_id() {
    let bench = Bench::start().await;
    let row = OutboxRow {
        id: 77,
        identity: device(),
        topic: "/t.SrvCmd/cmd".into(),
        payload: vec![1],
        qos: 1,
        expires_at: None,
        property: false,
        major: None,
    };
    let effects = vec![Effect::AddOutbox(row)];
    let unit = Unit {
        identity: device(),
        receipt: None,
        effects,
        counted: None,
    };
    bench.store.commit(vec![unit]).await.unwrap();
    assert_eq!(bench.writes.requeue().await.unwrap(), 1);
    let taken = bench.taken();
    assert_eq!((taken[0].0.id, taken[0].0.qos), (77, 1));
    assert_eq!(&taken[0].0.payload[..], [1]);
    assert_eq!(bench.writes.requeue().await.unwrap(), 0);
}
