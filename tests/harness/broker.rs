//! The broker alone, over real TLS, with an engine that only records and can be made to wait.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tanit::{
    clock::{Clock, SystemClock, Timestamp},
    identity::{DeviceId, Identity, RealmName},
    interface::{Introspection, MajorMinor, Ownership},
    mqtt::{
        Ack, Admission, DeviceRegistry, DisconnectReason, InboundMessage, Intake, LifecycleSink,
        Outcome, PeerCertificate, Permit, SessionEpoch,
        broker::{Broker, BrokerError, BrokerParts, BrokerSettings},
        packet::PacketId,
        sessions::Sessions,
    },
    pki::{PoolContents, Pools, RealmCa, ServerCertificates},
};

use super::{
    device::RawDevice,
    install_crypto,
    product::{PATIENCE, client_tls},
};

/// A broker on a free port, its realm `acme`, and the recorder behind it.
pub(crate) struct TestBroker {
    directory: tempfile::TempDir,
    pub(crate) broker: Broker,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) pools: Pools,
    ca: RealmCa,
    server_ca: String,
}

/// A device with a certificate of its realm.
pub(crate) struct BrokerDevice {
    pub(crate) identity: Identity,
    pub(crate) serial: String,
    pub(crate) tls: Arc<rustls::ClientConfig>,
}

impl TestBroker {
    pub(crate) async fn start() -> Self {
        Self::start_with(BrokerSettings::default()).await
    }

    /// Starts with these settings, but on loopback and a free port.
    pub(crate) async fn start_with(settings: BrokerSettings) -> Self {
        install_crypto();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let now = SystemClock.wall();
        let ca = RealmCa::generate(&realm(), now).expect("a CA");
        let pools = Pools::new();
        let recorder = Arc::<Recorder>::default();
        let broker = launch(&directory, settings, &pools, &recorder).await;
        let server_ca = server_certificates(&directory).ca_pem().expect("generated");
        let this = Self {
            directory,
            broker,
            recorder,
            pools,
            ca,
            server_ca,
        };
        this.trust(Vec::new());
        this
    }

    /// Closes in good order and starts again on the same files.
    pub(crate) async fn restart(&mut self, settings: BrokerSettings) {
        assert!(self.broker.close(PATIENCE).await, "drains");
        self.broker = launch(&self.directory, settings, &self.pools, &self.recorder).await;
    }

    /// Tries to start another broker beside this one.
    pub(crate) async fn try_another(
        &self,
        settings: BrokerSettings,
    ) -> Result<Broker, BrokerError> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Broker::start(
            settings.clone(),
            parts(&directory, &settings, &self.pools, &self.recorder),
        )
        .await
    }

    /// The realm's CA is in the pool, and these certificates are revoked.
    pub(crate) fn trust(&self, revoked: Vec<(DeviceId, String)>) {
        let certificates_pem = vec![self.ca.certificate_pem().to_owned()];
        let contents = PoolContents {
            certificates_pem,
            revoked,
            crl_pem: None,
        };
        self.pools.replace(&realm(), &contents).expect("a pool");
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.broker.addresses().mqtt.expect("it listens")
    }

    /// A new device.
    pub(crate) fn device(&self) -> BrokerDevice {
        let identity = Identity::new(realm(), DeviceId::random());
        let key = rcgen::KeyPair::generate().expect("a key");
        let csr = rcgen::CertificateParams::default()
            .serialize_request(&key)
            .and_then(|csr| csr.pem())
            .expect("a CSR");
        let hour = Duration::from_hours(1);
        let issued = self
            .ca
            .issue(&csr, &identity, hour, SystemClock.wall())
            .expect("issued");
        let tls = client_tls(self.server_ca.as_bytes(), &issued.pem, &key);
        BrokerDevice {
            identity,
            serial: issued.serial,
            tls,
        }
    }

    /// Opens TLS without a word of MQTT.
    pub(crate) async fn open(&self, device: &BrokerDevice) -> std::io::Result<RawDevice> {
        let base = device.identity.to_string();
        RawDevice::open(self.address(), Arc::clone(&device.tls), base).await
    }

    /// Connects with 3.1.1; returns session present too.
    pub(crate) async fn connect(&self, device: &BrokerDevice, clean: bool) -> (RawDevice, bool) {
        let mut raw = self.open(device).await.expect("TLS is accepted");
        let present = raw.connect("any", clean, 60).await;
        (raw, present)
    }
}

async fn launch(
    directory: &tempfile::TempDir,
    settings: BrokerSettings,
    pools: &Pools,
    recorder: &Arc<Recorder>,
) -> Broker {
    let parts = parts(directory, &settings, pools, recorder);
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    Broker::start(BrokerSettings { listen, ..settings }, parts)
        .await
        .expect("starts")
}

fn parts(
    directory: &tempfile::TempDir,
    settings: &BrokerSettings,
    pools: &Pools,
    recorder: &Arc<Recorder>,
) -> BrokerParts {
    let clock = SystemClock::shared();
    let path = directory.path().join("sessions.redb");
    let tls = server_certificates(directory)
        .mqtt_config(pools, Arc::clone(&clock))
        .expect("TLS");
    BrokerParts {
        sessions: Sessions::open(&path, settings.queue, Arc::clone(&clock)).expect("sessions"),
        intake: Arc::clone(recorder) as _,
        registry: Arc::clone(recorder) as _,
        lifecycle: Arc::clone(recorder) as _,
        tls: Some(tls),
        pools: pools.clone(),
        clock,
        counters: Arc::default(),
    }
}

fn server_certificates(directory: &tempfile::TempDir) -> ServerCertificates {
    ServerCertificates::open(
        directory.path(),
        Vec::new(),
        "localhost",
        SystemClock::shared(),
    )
    .expect("a server certificate")
}

pub(crate) fn realm() -> RealmName {
    "acme".parse().expect("a realm name")
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, waiting).await.is_ok(),
        "never: {what}"
    );
}

/// An engine that accepts everything and remembers it. Every device declares `t.Dev` (its own)
/// and `t.SrvCmd` (the server's).
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Recorded>);

#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Topics and payloads, in the order in which they came.
    pub(crate) messages: Vec<(String, Vec<u8>)>,
    /// Presence: connected (`None`), or why not any more.
    pub(crate) presence: Vec<(Identity, Option<DisconnectReason>)>,
    /// Sessions whose receipts were forgotten.
    pub(crate) forgotten: Vec<(Identity, SessionEpoch)>,
    is_stalled: bool,
    owed: Vec<Ack>,
}

impl Recorder {
    pub(crate) fn look(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().expect("no panic in the recorder")
    }

    /// From now on nothing is committed.
    pub(crate) fn stall(&self) {
        self.look().is_stalled = true;
    }

    /// Commits what waits, newest first, and everything after it at once.
    pub(crate) fn go_on(&self) {
        let owed = {
            let mut recorded = self.look();
            recorded.is_stalled = false;
            std::mem::take(&mut recorded.owed)
        };
        owed.into_iter()
            .rev()
            .for_each(|ack| ack.release(Outcome::Stored));
    }

    fn answer(&self, ack: Ack) {
        let mut recorded = self.look();
        if recorded.is_stalled {
            recorded.owed.push(ack);
        } else {
            drop(recorded);
            ack.release(Outcome::Stored);
        }
    }
}

#[async_trait]
impl Intake for Recorder {
    async fn reserve(&self, _identity: &Identity, _bytes: usize) -> Permit {
        Permit::new(())
    }

    fn submit(&self, _permit: Permit, message: InboundMessage) {
        let seen = (message.topic.to_string(), message.payload.to_vec());
        self.look().messages.push(seen);
        self.answer(message.ack);
    }

    fn settle(&self, _identity: &Identity, _epoch: SessionEpoch, _id: PacketId, ack: Ack) {
        self.answer(ack);
    }

    fn forget(&self, identity: &Identity, epoch: SessionEpoch) {
        self.look().forgotten.push((identity.clone(), epoch));
    }
}

#[async_trait]
impl DeviceRegistry for Recorder {
    async fn admit(&self, _: &Identity, _: Option<&PeerCertificate>) -> Admission {
        let version = MajorMinor { major: 0, minor: 1 };
        let declared = ["t.Dev", "t.SrvCmd"].map(|name| (Arc::from(name), version));
        let introspection = Arc::new(Introspection::from_iter(declared));
        Admission::Allowed { introspection }
    }

    fn ownership(&self, _: &RealmName, interface: &str, _major: u32) -> Option<Ownership> {
        match interface {
            "t.Dev" => Some(Ownership::Device),
            "t.SrvCmd" => Some(Ownership::Server),
            _ => None,
        }
    }
}

#[async_trait]
impl LifecycleSink for Recorder {
    async fn connected(&self, identity: &Identity, _: Option<IpAddr>, _: Timestamp) {
        self.look().presence.push((identity.clone(), None));
    }

    async fn disconnected(&self, identity: &Identity, reason: DisconnectReason, _: Timestamp) {
        self.look().presence.push((identity.clone(), Some(reason)));
    }
}
