//! The engine over the stores that are really used.

use super::*;
use crate::{
    interface::InterfaceKey,
    mqtt::{DisconnectReason, LifecycleSink as _},
    payload::Value,
    store::{CaRow, Change, SampleQuery, SecretHash, memory::MemoryStore, sqlite::SqliteStore},
};

async fn prepare(store: &Arc<dyn Store>) {
    let ca = CaRow {
        realm: realm(),
        fingerprint: "00".into(),
        certificate_pem: String::new(),
        key_sealed: None,
        issuing: false,
        added_at: NOW,
    };
    store
        .apply(Change::CreateRealm(realm_row(), ca), audit())
        .await
        .unwrap();
    for number in 1..=2 {
        let change = Change::RegisterDevice {
            identity: device(number),
            secret: SecretHash::Hmac([0; 32]),
            introspection: None,
            at: NOW,
        };
        store.apply(change, audit()).await.unwrap();
    }
}

struct Sender {
    engine: Arc<Engine>,
    acks: Acks,
}

impl Sender {
    fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::clone(engine),
            acks: Acks(watch::Sender::new(Vec::new())),
        }
    }

    async fn send(&self, label: u32, qos: QoS, below: &str, payload: &[u8]) {
        let identity = device(1);
        let permit = self.engine.reserve(&identity, payload.len()).await;
        let packet_id = NonZeroU16::new(u16::try_from(label).unwrap()).unwrap();
        let message = InboundMessage {
            topic: ByteString::from(format!("{identity}{below}")),
            identity,
            session: EPOCH,
            delivery: Some(Delivery {
                packet_id,
                qos,
                dup: false,
            }),
            payload: Bytes::copy_from_slice(payload),
            received_at: NOW,
            denied: None,
            ack: self.acks.ack(label),
        };
        self.engine.submit(permit, message);
    }
}

async fn integers(store: &Arc<dyn Store>) -> Vec<Value> {
    let key = InterfaceKey {
        name: "t.Dev".into(),
        major: 1,
    };
    let query = SampleQuery {
        since: None,
        since_after: None,
        to: None,
        limit: 10_000,
        newest_first: false,
    };
    let samples = store
        .samples(&device(1), &key, "/int", &query)
        .await
        .unwrap();
    samples.into_iter().map(|sample| sample.value).collect()
}

/// Everything once: interfaces, presence, introspection, data, properties, a refusal.
async fn scenario(store: Arc<dyn Store>) {
    prepare(&store).await;
    let engine = start_engine(Arc::clone(&store), EngineSettings::default()).await;
    for document in [t_dev(), t_dev_obj(), t_dev_prop()] {
        engine
            .interfaces()
            .install(&realm(), &document, audit())
            .await
            .unwrap();
    }
    engine
        .connected(&device(1), Some("192.0.2.1".parse().unwrap()), NOW)
        .await;
    let sender = Sender::new(&engine);
    sender
        .send(1, QoS::ExactlyOnce, "", DECLARED.as_bytes())
        .await;
    for label in 2..=300 {
        let qos = if label % 2 == 0 {
            QoS::AtLeastOnce
        } else {
            QoS::ExactlyOnce
        };
        sender
            .send(label, qos, "/t.Dev/int", &v(i32::try_from(label).unwrap()))
            .await;
    }
    sender
        .send(301, QoS::ExactlyOnce, "/t.DevProp/a", &v("x"))
        .await;
    sender
        .send(302, QoS::ExactlyOnce, "/t.DevProp/b", &v(5))
        .await;
    sender
        .send(303, QoS::ExactlyOnce, "/t.DevProp/a", b"")
        .await;
    sender.send(304, QoS::AtLeastOnce, "/t.Dev/int", b"").await;
    sender
        .send(305, QoS::AtLeastOnce, "/t.Dev/int", b"junk")
        .await;
    sender
        .send(306, QoS::AtLeastOnce, "/t.Dev/int", &v(0))
        .await;
    let acks = sender.acks.wait(306).await;
    let order: Vec<u32> = acks.iter().map(|(label, _)| *label).collect();
    assert_eq!(order, (1..=306).collect::<Vec<_>>());
    assert_eq!(stored(&acks), (1..=303).collect::<Vec<_>>());
    assert_eq!(acks[305], (306, None), "behind the clean kick");
    engine
        .disconnected(&device(1), DisconnectReason::CleanKick, NOW)
        .await;
    engine.close().await;

    assert_eq!(
        integers(&store).await,
        (2..=300).map(Value::Integer).collect::<Vec<_>>()
    );
    let key = InterfaceKey {
        name: "t.DevProp".into(),
        major: 1,
    };
    let properties = store.properties(&device(1), &key).await.unwrap();
    let properties: Vec<_> = properties
        .into_iter()
        .map(|row| (row.path, row.value))
        .collect();
    assert_eq!(properties, [("/b".to_owned(), Value::Integer(5))]);
    let errors = store.device_errors(&device(1)).await.unwrap();
    let names: Vec<_> = errors.iter().map(|row| row.error_name.as_str()).collect();
    assert_eq!(
        names,
        ["undecodable_bson_payload", "unset_on_datastream"],
        "newest first"
    );
    let row = store.device(&device(1)).await.unwrap().unwrap();
    assert!(row.pending_empty_cache && !row.connected);
    assert_eq!(row.presence_sequence, 2);
    assert_eq!(
        row.total_received_msgs, 304,
        "a refused unset is not counted"
    );
}

#[tokio::test]
async fn a_device_is_served_over_the_store_in_memory() {
    scenario(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn a_device_is_served_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("tanit.db"))
        .await
        .unwrap();
    scenario(Arc::new(store)).await;
}

#[tokio::test]
async fn fc_026_a_qos_2_publish_repeated_after_a_restart_is_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tanit.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&file).await.unwrap());
    prepare(&store).await;
    let engine = start_engine(Arc::clone(&store), EngineSettings::default()).await;
    engine
        .interfaces()
        .install(&realm(), &t_dev(), audit())
        .await
        .unwrap();
    let sender = Sender::new(&engine);
    sender
        .send(1, QoS::ExactlyOnce, "", DECLARED.as_bytes())
        .await;
    sender.send(7, QoS::ExactlyOnce, "/t.Dev/int", &v(1)).await;
    sender.acks.wait(2).await;
    engine.abandon();
    engine.close().await;
    store.close().await;
    drop(sender);
    drop((engine, store));

    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&file).await.unwrap());
    let engine = start_engine(Arc::clone(&store), EngineSettings::default()).await;
    let sender = Sender::new(&engine);
    for _ in 0..5 {
        sender.send(7, QoS::ExactlyOnce, "/t.Dev/int", &v(1)).await;
    }
    assert_eq!(stored(&sender.acks.wait(5).await), [7; 5]);
    assert_eq!(integers(&store).await, [Value::Integer(1)]);
    engine.settle(
        &device(1),
        EPOCH,
        NonZeroU16::new(7).unwrap(),
        sender.acks.ack(100),
    );
    sender.send(7, QoS::ExactlyOnce, "/t.Dev/int", &v(2)).await;
    assert_eq!(stored(&sender.acks.wait(7).await)[5..], [100, 7]);
    assert_eq!(integers(&store).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn fc_034_an_outage_of_the_store_in_memory_delays_and_loses_nothing() {
    let memory = Arc::new(MemoryStore::new());
    let store: Arc<dyn Store> = Arc::clone(&memory) as Arc<dyn Store>;
    prepare(&store).await;
    let engine = start_engine(Arc::clone(&store), EngineSettings::default()).await;
    engine
        .interfaces()
        .install(&realm(), &t_dev(), audit())
        .await
        .unwrap();
    let sender = Sender::new(&engine);
    memory.stall();
    sender
        .send(1, QoS::ExactlyOnce, "", DECLARED.as_bytes())
        .await;
    for label in 2..=100 {
        sender
            .send(label, QoS::ExactlyOnce, "/t.Dev/int", &v(1))
            .await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(sender.acks.now(), []);
    memory.fail_next(5);
    memory.resume();
    assert_eq!(
        stored(&sender.acks.wait(100).await),
        (1..=100).collect::<Vec<_>>()
    );
    assert_eq!(integers(&store).await.len(), 99);
    assert_eq!(engine.counters().commit_retries.get(), 5);
}

#[tokio::test]
async fn many_devices_over_many_lanes_keep_their_own_order() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    prepare(&store).await;
    for number in 3..50 {
        let change = Change::RegisterDevice {
            identity: device(number),
            secret: SecretHash::Hmac([0; 32]),
            introspection: Some(Introspection::parse(DECLARED.as_bytes()).unwrap()),
            at: NOW,
        };
        store.apply(change, audit()).await.unwrap();
    }
    let settings = EngineSettings {
        lanes: NonZeroUsize::new(4).unwrap(),
        batch_messages: NonZeroUsize::new(7).unwrap(),
        cached_devices: 8,
        ..EngineSettings::default()
    };
    let engine = start_engine(Arc::clone(&store), settings).await;
    engine
        .interfaces()
        .install(&realm(), &t_dev(), audit())
        .await
        .unwrap();
    let acks = Acks(watch::Sender::new(Vec::new()));
    for round in 0..20_u32 {
        for number in 3..50_u8 {
            let identity = device(number);
            let permit = engine.reserve(&identity, 100).await;
            engine.submit(
                permit,
                InboundMessage {
                    topic: ByteString::from(format!("{identity}/t.Dev/int")),
                    identity,
                    session: EPOCH,
                    delivery: None,
                    payload: v(i32::try_from(round).unwrap()).into(),
                    received_at: NOW,
                    denied: None,
                    ack: acks.ack(u32::from(number) * 100 + round),
                },
            );
        }
    }
    let answers = acks.wait(20 * 47).await;
    assert_eq!(stored(&answers).len(), 20 * 47);
    for number in 3..50_u32 {
        let own: Vec<u32> = stored(&answers)
            .into_iter()
            .filter(|label| label / 100 == number)
            .map(|label| label % 100)
            .collect();
        assert_eq!(own, (0..20).collect::<Vec<_>>());
    }
}
