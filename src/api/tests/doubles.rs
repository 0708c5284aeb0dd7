//! What stands around the API in its tests.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{
    api::{Health, NodeControl, NodeStatus, Reloaded},
    engine::{
        live::{LiveDevices, SessionView, SessionsFailed},
        writes::{Delivered, Downlink, Reach},
    },
    identity::{Identity, RealmName},
    mqtt::DisconnectReason,
    store::OutboxRow,
};

/// What would hold the devices' connections: notes what it is asked to do.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    connected: Mutex<HashSet<Identity>>,
    pub(super) sessions: Mutex<HashSet<Identity>>,
    did: Mutex<Vec<String>>,
}

impl Recorder {
    pub(super) fn connect(&self, identity: &Identity) {
        self.connected.lock().unwrap().insert(identity.clone());
        self.sessions.lock().unwrap().insert(identity.clone());
    }

    fn note(&self, what: String) {
        self.did.lock().unwrap().push(what);
    }

    pub(super) fn did(&self) -> Vec<String> {
        std::mem::take(&mut self.did.lock().unwrap())
    }
}

#[async_trait]
impl LiveDevices for Recorder {
    fn is_connected(&self, identity: &Identity) -> bool {
        self.connected.lock().unwrap().contains(identity)
    }

    fn connected_in_realm(&self, realm: &RealmName) -> usize {
        self.connected
            .lock()
            .unwrap()
            .iter()
            .filter(|one| one.realm == *realm)
            .count()
    }

    fn connected(&self) -> usize {
        self.connected.lock().unwrap().len()
    }

    async fn disconnect(&self, identity: &Identity, reason: DisconnectReason) -> bool {
        self.note(format!("disconnect {identity} {}", reason.as_str()));
        self.connected.lock().unwrap().remove(identity)
    }

    async fn disconnect_realm(&self, realm: &RealmName, reason: DisconnectReason) -> usize {
        self.note(format!("disconnect_realm {realm} {}", reason.as_str()));
        let mut connected = self.connected.lock().unwrap();
        let before = connected.len();
        connected.retain(|one| one.realm != *realm);
        before - connected.len()
    }

    async fn reverify(&self) -> usize {
        self.note("reverify".to_owned());
        0
    }

    async fn erase_device(&self, identity: &Identity) -> Result<(), SessionsFailed> {
        self.note(format!("erase {identity}"));
        self.sessions.lock().unwrap().remove(identity);
        Ok(())
    }

    async fn erase_realm(&self, realm: &RealmName) -> Result<(), SessionsFailed> {
        self.note(format!("erase_realm {realm}"));
        self.sessions
            .lock()
            .unwrap()
            .retain(|one| one.realm != *realm);
        Ok(())
    }

    async fn session(&self, identity: &Identity) -> Option<SessionView> {
        let held = self.sessions.lock().unwrap().contains(identity);
        held.then(|| SessionView {
            connected: self.is_connected(identity),
            ..Default::default()
        })
    }

    async fn backup_sessions(&self, file: &Path) -> Result<(), SessionsFailed> {
        std::fs::write(file, b"redb and so on").map_err(|e| SessionsFailed(e.to_string()))
    }
}

#[async_trait]
impl Downlink for Recorder {
    async fn reach(&self, message: &OutboxRow) -> Reach {
        if self.sessions.lock().unwrap().contains(&message.identity) {
            Reach::Subscribed
        } else {
            Reach::NoSession
        }
    }

    async fn deliver(&self, message: &OutboxRow) -> Delivered {
        self.note(format!("deliver {}{}", message.identity, message.topic));
        if self.is_connected(&message.identity) {
            Delivered::Delivering
        } else {
            Delivered::Queued {
                until: message.expires_at,
            }
        }
    }
}

/// The node around the API.
#[derive(Debug)]
pub(super) struct FakeNode {
    data_dir: PathBuf,
    pub(super) ready: AtomicBool,
    pub(super) restarted_with: Mutex<Option<PathBuf>>,
}

impl FakeNode {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            ready: AtomicBool::new(true),
            restarted_with: Mutex::default(),
        }
    }
}

#[async_trait]
impl NodeControl for FakeNode {
    async fn reload(&self) -> Reloaded {
        Reloaded {
            reloaded: vec!["server certificate".to_owned()],
            errors: Vec::new(),
        }
    }

    fn restart_with(&self, staged: PathBuf) -> Result<(), String> {
        *self.restarted_with.lock().unwrap() = Some(staged);
        Ok(())
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
            server_ca_pem: None,
            mqtt: Some("127.0.0.1:8883".parse().unwrap()),
            http: None,
            insecure_dev_mqtt: None,
            data_dir: self.data_dir.clone(),
            database: "sqlite".to_owned(),
            uptime_seconds: 7,
        }
    }

    fn health(&self) -> Health {
        let ready = self.ready.load(Ordering::Relaxed);
        let reasons = if ready {
            Vec::new()
        } else {
            vec!["starting".to_owned()]
        };
        Health { ready, reasons }
    }

    fn config(&self) -> Value {
        json!({ "http": { "tls": false } })
    }
}
