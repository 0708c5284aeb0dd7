//! The engine as a whole, over a store that stalls and fails when it is told to.

mod admission;
mod commits;
mod fake;
mod faults;
mod interfaces;
mod judging;
mod model;
mod on_stores;
mod presence;

use std::{
    num::NonZeroU16,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use bytestring::ByteString;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    clock::{Clock as _, ManualClock, Timestamp},
    identity::{DeviceId, RealmName},
    interface::Introspection,
    mqtt::{AckSlot, Delivery, Denial, Outcome, packet::QoS},
    store::{AuditEntry, DeviceRow, InterfaceRow, RealmRow},
};
use fake::FakeStore;

/// 2023-11-14T22:13:20Z.
const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const EPOCH: SessionEpoch = SessionEpoch(7);
const DECLARED: &str = "t.Dev:1:0;t.DevObj:1:0;t.DevProp:1:0;t.SrvCmd:1:0;t.Ghost:1:0";

fn realm() -> RealmName {
    "acme".parse().unwrap()
}

fn device(number: u8) -> Identity {
    Identity::new(realm(), DeviceId::from_bytes([number; 16]))
}

fn t_dev() -> Json {
    let mapping = |endpoint: &str, value_type: &str| {
        json!({
            "endpoint": endpoint, "type": value_type,
            "reliability": "guaranteed", "explicit_timestamp": true
        })
    };
    json!({
        "interface_name": "t.Dev", "version_major": 1, "version_minor": 0,
        "type": "datastream", "ownership": "device",
        "mappings": [
            mapping("/int", "integer"), mapping("/long", "longinteger"), mapping("/dbl", "double"),
            mapping("/bool", "boolean"), mapping("/str", "string"), mapping("/blob", "binaryblob"),
            mapping("/when", "datetime"), mapping("/dbls", "doublearray"),
            mapping("/strs", "stringarray"), mapping("/at/%{id}/v", "integer"),
        ]
    })
}

fn t_dev_obj() -> Json {
    json!({
        "interface_name": "t.DevObj", "version_major": 1, "version_minor": 0,
        "type": "datastream", "ownership": "device", "aggregation": "object",
        "mappings": [
            {"endpoint": "/%{id}/temp", "type": "double", "explicit_timestamp": true},
            {"endpoint": "/%{id}/hum", "type": "double", "explicit_timestamp": true}
        ]
    })
}

fn t_dev_prop() -> Json {
    json!({
        "interface_name": "t.DevProp", "version_major": 1, "version_minor": 0,
        "type": "properties", "ownership": "device",
        "mappings": [
            {"endpoint": "/a", "type": "string", "allow_unset": true},
            {"endpoint": "/b", "type": "integer"}
        ]
    })
}

fn t_srv_cmd() -> Json {
    json!({
        "interface_name": "t.SrvCmd", "version_major": 1, "version_minor": 0,
        "type": "datastream", "ownership": "server",
        "mappings": [{"endpoint": "/cmd", "type": "string", "reliability": "guaranteed"}]
    })
}

fn audit() -> AuditEntry {
    AuditEntry {
        at: NOW,
        actor: "socket:0".into(),
        action: "test".into(),
        object: "acme".into(),
    }
}

fn realm_row() -> RealmRow {
    RealmRow {
        name: realm(),
        jwt_public_key_pem: String::new(),
        jwt_private_key_sealed: None,
        device_registration_limit: None,
        datastream_maximum_storage_retention: 0,
        created_at: NOW,
    }
}

fn device_row(identity: Identity) -> DeviceRow {
    DeviceRow {
        identity,
        secret: None,
        credentials_inhibited: false,
        deletion_in_progress: false,
        first_registration: NOW,
        first_credentials_request: None,
        last_credentials_request_ip: None,
        certificate_serial: None,
        certificate_aki: None,
        certificate_not_after: None,
        introspection: Introspection::parse(DECLARED.as_bytes()).unwrap(),
        previous_interfaces: std::collections::BTreeMap::new(),
        connected: false,
        presence_sequence: 0,
        last_connection: None,
        last_disconnection: None,
        last_seen_ip: None,
        pending_empty_cache: false,
        total_received_msgs: 0,
        total_received_bytes: 0,
        aliases: std::collections::BTreeMap::new(),
        attributes: std::collections::BTreeMap::new(),
    }
}

/// What became of each message, in the order of the answers. `None`: its ack was dropped.
#[derive(Clone)]
struct Acks(watch::Sender<Vec<(u32, Option<Outcome>)>>);

struct Slot {
    label: u32,
    acks: Acks,
}

impl AckSlot for Slot {
    fn settle(self: Box<Self>, outcome: Option<Outcome>) {
        self.acks
            .0
            .send_modify(|acks| acks.push((self.label, outcome)));
    }
}

impl Acks {
    fn ack(&self, label: u32) -> Ack {
        Ack::new(Slot {
            label,
            acks: self.clone(),
        })
    }

    /// Waits for so many answers in all.
    async fn wait(&self, count: usize) -> Vec<(u32, Option<Outcome>)> {
        self.0
            .subscribe()
            .wait_for(|acks| acks.len() >= count)
            .await
            .unwrap()
            .clone()
    }

    fn now(&self) -> Vec<(u32, Option<Outcome>)> {
        self.0.borrow().clone()
    }
}

/// An engine over a fake store, with realm `acme`, devices 1 to 3 and the interfaces above.
struct Bench {
    engine: Arc<Engine>,
    store: Arc<FakeStore>,
    acks: Acks,
    clock: Arc<ManualClock>,
    next_packet_id: Mutex<u16>,
}

async fn start_engine(store: Arc<dyn Store>, settings: EngineSettings) -> Arc<Engine> {
    let tracker = TaskTracker::new();
    Engine::start(store, settings, ManualClock::new(NOW), &tracker)
        .await
        .unwrap()
}

impl Bench {
    async fn start() -> Self {
        Self::with_settings(EngineSettings::default()).await
    }

    async fn with_settings(settings: EngineSettings) -> Self {
        let store = Arc::new(FakeStore::new());
        store.with(|state| {
            state.realms.insert(realm(), realm_row());
            for number in 1..=3 {
                state
                    .devices
                    .insert(device(number), device_row(device(number)));
            }
            for document in [t_dev(), t_dev_obj(), t_dev_prop(), t_srv_cmd()] {
                let interface = crate::interface::Interface::from_json(&document).unwrap();
                state.interfaces.push(InterfaceRow {
                    realm: realm(),
                    key: interface.key().clone(),
                    minor: interface.minor(),
                    document: document.to_string(),
                });
            }
        });
        let clock = ManualClock::new(NOW);
        let shared: SharedClock = Arc::clone(&clock) as SharedClock;
        let tracker = TaskTracker::new();
        let as_store: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Engine::start(as_store, settings, shared, &tracker)
            .await
            .unwrap();
        let (acks, _) = watch::channel(Vec::new());
        Self {
            engine,
            store,
            acks: Acks(acks),
            clock,
            next_packet_id: Mutex::new(1),
        }
    }

    fn message(&self, number: u8, label: u32, below: &str, payload: &[u8]) -> InboundMessage {
        let identity = device(number);
        let mut next = self.next_packet_id.lock().unwrap();
        let packet_id = NonZeroU16::new(*next).unwrap();
        *next += 1;
        InboundMessage {
            topic: ByteString::from(format!("{identity}{below}")),
            identity,
            session: EPOCH,
            delivery: Some(Delivery {
                packet_id,
                qos: QoS::AtLeastOnce,
                dup: false,
            }),
            payload: Bytes::copy_from_slice(payload),
            received_at: self.clock.wall(),
            denied: None,
            ack: self.acks.ack(label),
        }
    }

    async fn submit(&self, message: InboundMessage) {
        let bytes = message.payload.len() + message.topic.len();
        let permit = self.engine.reserve(&message.identity, bytes).await;
        self.engine.submit(permit, message);
    }

    /// A QoS 1 message of device 1.
    async fn send(&self, label: u32, below: &str, payload: &[u8]) {
        self.submit(self.message(1, label, below, payload)).await;
    }

    /// A QoS 2 message of device 1.
    async fn send_qos2(&self, label: u32, packet_id: u16, below: &str, payload: &[u8]) {
        let mut message = self.message(1, label, below, payload);
        let packet_id = NonZeroU16::new(packet_id).unwrap();
        message.delivery = Some(Delivery {
            packet_id,
            qos: QoS::ExactlyOnce,
            dup: false,
        });
        self.submit(message).await;
    }
}

/// `{v: value}` as BSON.
fn v(value: impl Into<bson::Bson>) -> Vec<u8> {
    bson::doc! { "v": value.into() }.to_vec().unwrap()
}

fn stored(acks: &[(u32, Option<Outcome>)]) -> Vec<u32> {
    let is_stored = |outcome: &Option<Outcome>| *outcome == Some(Outcome::Stored);
    acks.iter()
        .filter(|(_, outcome)| is_stored(outcome))
        .map(|(label, _)| *label)
        .collect()
}
