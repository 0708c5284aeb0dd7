//! The API through its router: a real store, a real engine and real certificates; what holds
//! connections is a recorder.

mod appengine;
mod archive;
mod authorisation;
mod node;
mod pairing;
mod realm_management;
mod realms;
mod serving;

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::{
    Api, ApiSettings, Health, Limits, NodeControl, NodeStatus, Reloaded,
    auth::{Authority, Peer},
    router,
};
use crate::{
    clock::{ManualClock, Timestamp},
    engine::{
        Engine, EngineSettings, InhibitedDevices,
        backup::{Backups, BackupsParts},
        devices::{Devices, DevicesParts},
        live::{LiveDevices, SessionView, SessionsFailed},
        pairing::{Pairing, PairingParts, PairingSettings},
        reads::Reads,
        realms::{Realms, RealmsParts},
        tokens::{self, TokenApi, TokenKeyPair},
        writes::{Delivered, Downlink, Reach, Writes, WritesParts},
    },
    identity::{Identity, RealmName},
    mqtt::DisconnectReason,
    pki::{MasterKey, Pools},
    store::{AuditEntry, OutboxRow, Store, sqlite::SqliteStore},
};

const ID: &str = "Zm9vYmFyYmF6cXV4MTIzNA";
const OTHER: &str = "YmFyYmF6cXV4MTIzNGZvbw";
const OPERATOR: Peer = Peer::Socket { uid: 1000 };
const REMOTE: Peer = Peer::Tcp(SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)), 4711));

/// What would hold the devices' connections: notes what it is asked to do.
#[derive(Debug, Default)]
struct Recorder {
    connected: Mutex<HashSet<Identity>>,
    sessions: Mutex<HashSet<Identity>>,
    did: Mutex<Vec<String>>,
}

impl Recorder {
    fn connect(&self, identity: &Identity) {
        self.connected.lock().unwrap().insert(identity.clone());
        self.sessions.lock().unwrap().insert(identity.clone());
    }

    fn note(&self, what: String) {
        self.did.lock().unwrap().push(what);
    }

    fn did(&self) -> Vec<String> {
        std::mem::take(&mut self.did.lock().unwrap())
    }
}

#[async_trait]
impl LiveDevices for Recorder {
    fn is_connected(&self, identity: &Identity) -> bool {
        self.connected.lock().unwrap().contains(identity)
    }

    fn connected_in_realm(&self, realm: &RealmName) -> usize {
        self.connected.lock().unwrap().iter().filter(|one| one.realm == *realm).count()
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
        self.sessions.lock().unwrap().retain(|one| one.realm != *realm);
        Ok(())
    }

    async fn session(&self, identity: &Identity) -> Option<SessionView> {
        let held = self.sessions.lock().unwrap().contains(identity);
        held.then(|| SessionView { connected: self.is_connected(identity), ..Default::default() })
    }

    async fn backup_sessions(&self, file: &Path) -> Result<(), SessionsFailed> {
        std::fs::write(file, b"redb and so on").map_err(|e| SessionsFailed(e.to_string()))
    }
}

#[async_trait]
impl Downlink for Recorder {
    async fn reach(&self, message: &OutboxRow) -> Reach {
        match self.sessions.lock().unwrap().contains(&message.identity) {
            true => Reach::Subscribed,
            false => Reach::NoSession,
        }
    }

    async fn deliver(&self, message: &OutboxRow) -> Delivered {
        self.note(format!("deliver {}{}", message.identity, message.topic));
        if self.is_connected(&message.identity) {
            Delivered::Delivering
        } else {
            Delivered::Queued { until: message.expires_at }
        }
    }
}

/// The node around the API.
#[derive(Debug)]
struct FakeNode {
    data_dir: PathBuf,
    ready: AtomicBool,
    restarted_with: Mutex<Option<PathBuf>>,
}

#[async_trait]
impl NodeControl for FakeNode {
    async fn reload(&self) -> Reloaded {
        Reloaded { reloaded: vec!["server certificate".to_owned()], errors: Vec::new() }
    }

    fn restart_with(&self, staged: PathBuf) -> Result<(), String> {
        *self.restarted_with.lock().unwrap() = Some(staged);
        Ok(())
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
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
        let reasons = if ready { Vec::new() } else { vec!["starting".to_owned()] };
        Health { ready, reasons }
    }

    fn config(&self) -> Value {
        json!({ "http": { "tls": false } })
    }
}

/// An answer, read whole.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    fn data(&self) -> Value {
        self.json()["data"].clone()
    }

    fn detail(&self) -> String {
        self.json()["errors"]["detail"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn is(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self
    }
}

/// A node with a realm `acme` whose keys we have.
struct House {
    dir: TempDir,
    router: Router,
    api: Arc<Api>,
    live: Arc<Recorder>,
    node: Arc<FakeNode>,
    clock: Arc<ManualClock>,
    keys: TokenKeyPair,
    housekeeping: TokenKeyPair,
}

impl House {
    async fn start() -> Self {
        Self::with(ApiSettings::default(), false).await
    }

    async fn with(settings: ApiSettings, enforce_latest_certificate: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().to_owned();
        let clock = ManualClock::new(Timestamp::parse("2026-01-31T10:20:30.123Z").unwrap());
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&data_dir.join("tanit.db")).await.unwrap());
        let tracker = TaskTracker::new();
        let engine =
            Engine::start(store.clone(), EngineSettings::default(), clock.clone(), &tracker)
                .await
                .unwrap();
        let recorder = Arc::new(Recorder::default());
        let live: Arc<dyn LiveDevices> = recorder.clone();
        let pools = Pools::new();
        let master_key = Arc::new(MasterKey::ephemeral().unwrap());
        let realms = Arc::new(Realms::new(RealmsParts {
            store: store.clone(),
            engine: engine.clone(),
            live: live.clone(),
            pools: pools.clone(),
            master_key: master_key.clone(),
            clock: clock.clone(),
            crls: data_dir.join("crl"),
        }));
        let pairing = PairingParts {
            store: store.clone(),
            realms: realms.clone(),
            engine: engine.clone(),
            live: live.clone(),
            pools,
            master_key: master_key.clone(),
            clock: clock.clone(),
        };
        let pairing = Pairing::new(
            pairing,
            PairingSettings {
                broker_url: "mqtts://broker.example.org:8883/".to_owned(),
                certificate_lifetime: Duration::from_secs(90 * 86_400),
                enforce_latest_certificate,
                failed_secrets_per_minute: NonZeroU32::new(10).unwrap(),
            },
        );
        let devices = DevicesParts {
            store: store.clone(),
            realms: realms.clone(),
            engine: engine.clone(),
            live: live.clone(),
            clock: clock.clone(),
        };
        let interfaces = engine.interfaces().clone();
        let writes = WritesParts {
            store: store.clone(),
            engine,
            downlink: recorder.clone(),
            clock: clock.clone(),
            tracker: tracker.clone(),
        };
        let backups = Backups::new(BackupsParts {
            store: store.clone(),
            live: live.clone(),
            master_key,
            clock: clock.clone(),
            data_dir: data_dir.clone(),
            tracker: tracker.clone(),
            archive_bytes_max: 64 * 1024 * 1024,
        });
        let housekeeping = TokenKeyPair::generate().unwrap();
        let authority =
            Authority::new(store.clone(), clock.clone(), Some(&housekeeping.public_key_pem));
        let node = Arc::new(FakeNode {
            data_dir,
            ready: AtomicBool::new(true),
            restarted_with: Mutex::default(),
        });
        let api = Arc::new(Api {
            authority: Arc::new(authority.unwrap()),
            realms,
            devices: Arc::new(Devices::new(devices, InhibitedDevices::Refuse)),
            pairing: Arc::new(pairing),
            reads: Arc::new(Reads::new(store.clone(), interfaces.clone())),
            interfaces,
            writes: Writes::new(writes),
            backups: Arc::new(backups),
            store,
            live,
            node: node.clone(),
            metrics: Arc::new(|| "tanit_connections 0\n".to_owned()),
            clock: clock.clone(),
            tracker,
            settings,
        });
        let house = Self {
            dir,
            router: router(api.clone()),
            api,
            live: recorder,
            node,
            clock,
            keys: TokenKeyPair::generate().unwrap(),
            housekeeping,
        };
        house.create_realm("acme").await;
        house
    }

    async fn create_realm(&self, name: &str) {
        let realm =
            json!({ "realm_name": name, "jwt_public_key_pem": self.keys.public_key_pem });
        self.post(OPERATOR, "/housekeeping/v1/realms", None, realm).await.is(201);
    }

    async fn send(&self, peer: Peer, request: Request<Body>) -> Answer {
        let mut request = request;
        request.extensions_mut().insert(peer);
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    async fn call(
        &self,
        peer: Peer,
        method: Method,
        path: &str,
        bearer: Option<&str>,
        body: Option<Value>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(bearer) = bearer {
            request = request.header(header::AUTHORIZATION, format!("Bearer {bearer}"));
        }
        let body = body.map_or_else(Body::empty, |data| {
            Body::from(json!({ "data": data }).to_string())
        });
        self.send(peer, request.body(body).unwrap()).await
    }

    async fn get(&self, peer: Peer, path: &str, bearer: Option<&str>) -> Answer {
        self.call(peer, Method::GET, path, bearer, None).await
    }

    async fn post(&self, peer: Peer, path: &str, bearer: Option<&str>, body: Value) -> Answer {
        self.call(peer, Method::POST, path, bearer, Some(body)).await
    }

    async fn delete(&self, peer: Peer, path: &str, bearer: Option<&str>) -> Answer {
        self.call(peer, Method::DELETE, path, bearer, None).await
    }

    /// A token of `acme` with everything of one API.
    fn token(&self, api: TokenApi) -> String {
        let claims = tokens::claims(&[api], self.clock_wall(), None);
        tokens::sign(&self.keys.private_key_pem, &claims).unwrap()
    }

    fn clock_wall(&self) -> Timestamp {
        use crate::clock::Clock as _;
        self.clock.wall()
    }

    /// Registers a device of `acme` and returns its secret.
    async fn register(&self, id: &str) -> String {
        let token = self.token(TokenApi::Pairing);
        let answer = self
            .post(REMOTE, "/pairing/v1/acme/agent/devices", Some(&token), json!({ "hw_id": id }))
            .await
            .is(201);
        answer.data()["credentials_secret"].as_str().unwrap().to_owned()
    }

    /// A certificate for a device of `acme`.
    async fn certificate(&self, id: &str, secret: &str) -> String {
        let path = format!("/pairing/v1/acme/devices/{id}/protocols/astarte_mqtt_v1/credentials");
        let answer = self.post(REMOTE, &path, Some(secret), json!({ "csr": csr() })).await.is(201);
        answer.data()["client_crt"].as_str().unwrap().to_owned()
    }

    async fn audit(&self) -> Vec<AuditEntry> {
        self.api.store.audit(1000).await.unwrap()
    }

    /// What is in the audit log, without its times.
    async fn audited(&self) -> BTreeSet<(String, String, String)> {
        self.audit().await.into_iter().map(|row| (row.actor, row.action, row.object)).collect()
    }
}

fn identity(id: &str) -> Identity {
    format!("acme/{id}").parse().unwrap()
}

/// A request as the SDKs make it.
fn csr() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::default();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn limits(requests: usize) -> ApiSettings {
    ApiSettings { limits: Limits { requests, ..Limits::default() }, ..ApiSettings::default() }
}
