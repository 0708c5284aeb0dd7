//! The API through its router: a real store, a real engine and real certificates; what holds
//! connections is a recorder.

mod appengine;
mod archive;
mod authorisation;
mod devices;
mod doubles;
mod node;
mod pairing;
mod realm_management;
mod realms;
mod serving;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

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
    Api, ApiParts, ApiSettings, Limits, ServiceSettings,
    auth::{Authority, Peer},
    router,
};
use crate::{
    clock::{ManualClock, Timestamp},
    engine::{
        Engine, EngineSettings, InhibitedDevices,
        tokens::{self, TokenApi, TokenKeyPair},
    },
    identity::Identity,
    pki::{MasterKey, Pools},
    store::{AuditEntry, Store, sqlite::SqliteStore},
};
use doubles::{FakeNode, Recorder};

const ID: &str = "Zm9vYmFyYmF6cXV4MTIzNA";
const OTHER: &str = "YmFyYmF6cXV4MTIzNGZvbw";
const OPERATOR: Peer = Peer::Socket { uid: 1000 };
const REMOTE: Peer = Peer::Tcp(SocketAddr::new(
    IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
    4711,
));

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
        self.json()["errors"]["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
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
        let engine = EngineSettings::default();
        let engine = Engine::start(store.clone(), engine, clock.clone(), &tracker)
            .await
            .unwrap();
        let live = Arc::new(Recorder::default());
        let node = Arc::new(FakeNode::new(&data_dir));
        let parts = ApiParts {
            store,
            engine,
            live: live.clone(),
            downlink: live.clone(),
            pools: Pools::new(),
            master_key: Arc::new(MasterKey::ephemeral().unwrap()),
            node: node.clone(),
            metrics: Arc::new(|| "tanit_connections 0\n".to_owned()),
            clock: clock.clone(),
            tracker,
            data_dir,
        };
        let housekeeping = TokenKeyPair::generate().unwrap();
        let settings = ServiceSettings {
            api: settings,
            housekeeping_public_key: Some(housekeeping.public_key_pem.clone()),
            broker_url: "mqtts://broker.example.org:8883/".to_owned(),
            certificate_lifetime: Duration::from_hours(90 * 24),
            enforce_latest_certificate,
            failed_secrets_per_minute: NonZeroU32::new(10).unwrap(),
            inhibited_devices: InhibitedDevices::Refuse,
            archive_bytes_max: 64 * 1024 * 1024,
        };
        let api = Api::assemble(&parts, &settings).unwrap();
        let house = Self {
            dir,
            router: router(&api),
            api,
            live,
            node,
            clock,
            keys: TokenKeyPair::generate().unwrap(),
            housekeeping,
        };
        house.create_realm("acme").await;
        house
    }

    async fn create_realm(&self, name: &str) {
        let realm = json!({ "realm_name": name, "jwt_public_key_pem": self.keys.public_key_pem });
        self.post(OPERATOR, "/housekeeping/v1/realms", None, realm)
            .await
            .is(201);
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
        self.call(peer, Method::POST, path, bearer, Some(body))
            .await
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
            .post(
                REMOTE,
                "/pairing/v1/acme/agent/devices",
                Some(&token),
                json!({ "hw_id": id }),
            )
            .await
            .is(201);
        answer.data()["credentials_secret"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// A certificate for a device of `acme`.
    async fn certificate(&self, id: &str, secret: &str) -> String {
        let path = format!("/pairing/v1/acme/devices/{id}/protocols/astarte_mqtt_v1/credentials");
        let answer = self
            .post(REMOTE, &path, Some(secret), json!({ "csr": csr() }))
            .await
            .is(201);
        answer.data()["client_crt"].as_str().unwrap().to_owned()
    }

    async fn audit(&self) -> Vec<AuditEntry> {
        self.api.store.audit(1000).await.unwrap()
    }

    /// What is in the audit log, without its times.
    async fn audited(&self) -> BTreeSet<(String, String, String)> {
        self.audit()
            .await
            .into_iter()
            .map(|row| (row.actor, row.action, row.object))
            .collect()
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
    ApiSettings {
        limits: Limits {
            requests,
            ..Limits::default()
        },
        ..ApiSettings::default()
    }
}
