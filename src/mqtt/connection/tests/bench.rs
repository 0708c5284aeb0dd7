//! A broker's shared parts, an engine that records, and a client that speaks packets.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock::{Clock, Timestamp},
    identity::{Identity, RealmName},
    interface::{Introspection, MajorMinor, Ownership},
    mqtt::{
        Ack, Admission, DeviceRegistry, DisconnectReason, InboundMessage, Intake, LifecycleSink,
        Outcome, PeerCertificate, Permit, SessionEpoch,
        broker::{BrokerCounters, BrokerSettings, Peer, Shared},
        codec::{Decoder, PacketLimits, encode},
        connection::serve,
        packet::{
            ConnAck, Connect, Packet, PacketId, Publish, PublishProperties, QoS, Subscribe,
            SubscribeOptions, Version,
        },
        sessions::{Enqueued, Message, QueueLimits, Sessions},
        takeover::Owners,
    },
    pki::{PoolContents, Pools, RealmCa},
};

pub(super) const BASE: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA";

/// Longer than any test waits for something that comes.
const PATIENCE: Duration = Duration::from_secs(100);

pub(super) fn identity() -> Identity {
    BASE.parse().expect("canonical")
}

/// A clock whose wall time follows the runtime's time, which tests may pause.
#[derive(Debug)]
struct RuntimeClock {
    start: tokio::time::Instant,
    wall: Timestamp,
}

impl Clock for RuntimeClock {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn wall(&self) -> Timestamp {
        self.wall.saturating_add(self.start.elapsed())
    }
}

/// What the engine was told, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Connected,
    Disconnected(DisconnectReason),
    Submitted(String, Option<u16>),
    Settled(u16),
    Forgot(SessionEpoch),
}

/// An engine that records and answers as the test wants.
#[derive(Debug)]
pub(super) struct Recorder {
    told: Mutex<Vec<Told>>,
    owed: Mutex<Vec<Ack>>,
    arrived: Notify,
    /// Whether acks are kept until the test releases them.
    withholds: Mutex<bool>,
    admission: Mutex<Admission>,
    /// Answers of the registry that may be given, each after it was decided on.
    pub(super) answers: Semaphore,
    pub(super) room: Arc<Semaphore>,
}

impl Recorder {
    fn new() -> Arc<Self> {
        let version = MajorMinor { major: 1, minor: 0 };
        let entries = ["t.Dev", "t.Srv"].map(|name| (Arc::from(name), version));
        let introspection = Arc::new(Introspection::from_iter(entries));
        Arc::new(Self {
            told: Mutex::default(),
            owed: Mutex::default(),
            arrived: Notify::new(),
            withholds: Mutex::new(false),
            admission: Mutex::new(Admission::Allowed { introspection }),
            answers: Semaphore::new(100_000),
            room: Arc::new(Semaphore::new(100_000)),
        })
    }

    fn tell(&self, told: Told) {
        self.told.lock().unwrap().push(told);
        self.arrived.notify_waiters();
    }

    pub(super) fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    pub(super) fn admit(&self, admission: Admission) {
        *self.admission.lock().unwrap() = admission;
    }

    /// Waits until the registry has been asked from now on.
    pub(super) fn judges(&self) -> impl Future<Output = ()> {
        self.arrived.notified()
    }

    pub(super) fn withhold(&self) {
        *self.withholds.lock().unwrap() = true;
    }

    /// Takes the oldest ack that is owed.
    pub(super) fn next_owed(&self) -> Ack {
        self.owed.lock().unwrap().remove(0)
    }

    /// Waits until it was told something that `wanted` accepts.
    pub(super) async fn wait_for(&self, wanted: impl Fn(&[Told]) -> bool) {
        let wait = async {
            loop {
                let arrived = self.arrived.notified();
                tokio::pin!(arrived);
                arrived.as_mut().enable();
                if wanted(&self.told.lock().unwrap()) {
                    return;
                }
                arrived.await;
            }
        };
        timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("told {:?}", self.told()));
    }

    fn take(&self, ack: Ack) {
        if *self.withholds.lock().unwrap() {
            self.owed.lock().unwrap().push(ack);
        } else {
            ack.release(Outcome::Stored);
        }
    }
}

#[async_trait]
impl Intake for Recorder {
    async fn reserve(&self, _: &Identity, _: usize) -> Permit {
        Permit::new(
            Arc::clone(&self.room)
                .acquire_owned()
                .await
                .expect("never closed"),
        )
    }

    fn submit(&self, _: Permit, message: InboundMessage) {
        let below = message
            .topic
            .strip_prefix(BASE)
            .expect("own topic")
            .to_owned();
        let packet_id = message.delivery.map(|delivery| delivery.packet_id.get());
        self.take(message.ack);
        self.tell(Told::Submitted(below, packet_id));
    }

    fn settle(&self, _: &Identity, _: SessionEpoch, packet_id: PacketId, ack: Ack) {
        self.take(ack);
        self.tell(Told::Settled(packet_id.get()));
    }

    fn forget(&self, _: &Identity, epoch: SessionEpoch) {
        self.tell(Told::Forgot(epoch));
    }
}

#[async_trait]
impl DeviceRegistry for Recorder {
    async fn admit(&self, _: &Identity, _: Option<&PeerCertificate>) -> Admission {
        let decided = self.admission.lock().unwrap().clone();
        self.arrived.notify_waiters();
        self.answers.acquire().await.expect("never closed").forget();
        decided
    }

    fn ownership(&self, _: &RealmName, interface: &str, _: u32) -> Option<Ownership> {
        match interface {
            "t.Dev" => Some(Ownership::Device),
            "t.Srv" => Some(Ownership::Server),
            _ => None,
        }
    }
}

#[async_trait]
impl LifecycleSink for Recorder {
    async fn connected(&self, _: &Identity, _: Option<std::net::IpAddr>, _: Timestamp) {
        self.tell(Told::Connected);
    }

    async fn disconnected(&self, _: &Identity, reason: DisconnectReason, _: Timestamp) {
        self.tell(Told::Disconnected(reason));
    }
}

/// A broker without listeners.
pub(super) struct Bench {
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Arc<Recorder>,
    pub(super) tasks: TaskTracker,
    /// Bytes that fit into a connection in one direction.
    pub(super) pipe_bytes: usize,
    ca: RealmCa,
    _directory: tempfile::TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(BrokerSettings::default())
    }

    pub(super) fn with(settings: BrokerSettings) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let wall = Timestamp::from_micros(1_700_000_000_000_000);
        let clock = Arc::new(RuntimeClock {
            start: tokio::time::Instant::now(),
            wall,
        });
        let path = directory.path().join("sessions.redb");
        let sessions = Sessions::open(
            &path,
            QueueLimits {
                messages: 10_000,
                ..settings.queue
            },
            clock.clone(),
        )
        .expect("a new file");
        let engine = Recorder::new();
        let tasks = TaskTracker::new();
        let realm = identity().realm;
        let ca = RealmCa::generate(&realm, wall).expect("a CA");
        let pools = Pools::new();
        let contents = PoolContents {
            certificates_pem: vec![ca.certificate_pem().to_owned()],
            ..PoolContents::default()
        };
        pools.replace(&realm, &contents).expect("a valid CA");
        let shared = Shared {
            pools,
            settings: Arc::new(settings),
            sessions,
            owners: Owners::default(),
            intake: engine.clone(),
            registry: engine.clone(),
            lifecycle: engine.clone(),
            clock,
            counters: Arc::new(BrokerCounters::default()),
            tracker: tasks.clone(),
            wills: crate::mqtt::connection::DelayedWills::default(),
            drain: CancellationToken::new(),
        };
        Self {
            shared: Arc::new(shared),
            engine,
            tasks,
            pipe_bytes: 1 << 20,
            ca,
            _directory: directory,
        }
    }

    /// A certificate of [`identity`], issued now.
    fn certificate(&self, lifetime: Duration) -> Arc<PeerCertificate> {
        let now = self.shared.clock.wall();
        let key = rcgen::KeyPair::generate().expect("a key");
        let request = rcgen::CertificateParams::default()
            .serialize_request(&key)
            .expect("valid");
        let request = request.pem().expect("valid");
        let issued = self
            .ca
            .issue(&request, &identity(), lifetime, now)
            .expect("issued");
        let der = pem::parse(&issued.pem).expect("valid").into_contents();
        Arc::new(PeerCertificate {
            serial: issued.serial,
            not_after: issued.not_after,
            ca_fingerprint: String::new(),
            chain: vec![Arc::from(der)],
        })
    }

    /// Opens a socket whose peer has the certificate of [`identity`].
    pub(super) fn open(&self, version: Version) -> Client {
        self.open_until(version, Duration::from_hours(24))
    }

    pub(super) fn open_until(&self, version: Version, lifetime: Duration) -> Client {
        let certificate = self.certificate(lifetime);
        self.open_as(version, Some((identity(), certificate)))
    }

    pub(super) fn open_as(
        &self,
        version: Version,
        identity: Option<(Identity, Arc<PeerCertificate>)>,
    ) -> Client {
        let (ours, theirs) = tokio::io::duplex(self.pipe_bytes);
        let address = SocketAddr::from(([192, 0, 2, 1], 4000));
        let peer = Peer { address, identity };
        self.tasks
            .spawn(serve(theirs, peer, Arc::clone(&self.shared)));
        let limits = PacketLimits {
            first_packet: 1 << 20,
            packet: 1 << 20,
        };
        let decoder = Decoder::of_server(limits, version);
        Client {
            stream: ours,
            decoder,
            input: BytesMut::new(),
            version,
        }
    }

    /// Connects, and returns the client with its CONNACK.
    pub(super) async fn connect(&self, connect: Connect) -> (Client, ConnAck) {
        let mut client = self.open(connect.version);
        client.send(Packet::Connect(Box::new(connect))).await;
        match client.receive().await {
            Packet::ConnAck(connack) => (client, *connack),
            other => panic!("{other:?} is no CONNACK"),
        }
    }

    /// Sends a message to the device as the publisher does.
    pub(super) async fn send(&self, qos: QoS, number: u32) -> Enqueued {
        let sent = self
            .shared
            .sessions
            .enqueue(&identity(), message(qos, number))
            .await;
        sent.expect("the store works")
    }

    /// Waits until all connections are gone.
    pub(super) async fn all_gone(&self) {
        self.tasks.close();
        timeout(PATIENCE, self.tasks.wait())
            .await
            .expect("every connection ends");
        self.tasks.reopen();
    }
}

/// The other end of a connection.
pub(super) struct Client {
    pub(super) stream: DuplexStream,
    decoder: Decoder,
    input: BytesMut,
    version: Version,
}

impl Client {
    pub(super) async fn send(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        encode(&packet, self.version, None, &mut bytes).expect("a valid packet");
        self.stream.write_all(&bytes).await.expect("it is read");
    }

    /// The next packet; it has to come.
    pub(super) async fn receive(&mut self) -> Packet {
        self.next().await.expect("the connection goes on")
    }

    /// The next packet, or `None` at the end of the connection.
    pub(super) async fn next(&mut self) -> Option<Packet> {
        loop {
            if let Some(packet) = self.decoder.decode(&mut self.input).expect("valid packets") {
                return Some(packet);
            }
            let read = self.stream.read_buf(&mut self.input);
            match timeout(PATIENCE, read).await.expect("something comes") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Waits for the end; nothing may come before it.
    pub(super) async fn expect_end(&mut self) {
        assert_eq!(self.next().await, None);
    }

    /// Asks for PINGRESP, which has to be the next packet: nothing else was sent before.
    pub(super) async fn expect_silence(&mut self) {
        self.send(Packet::PingReq).await;
        assert_eq!(self.receive().await, Packet::PingResp);
    }

    pub(super) async fn subscribe(&mut self, below: &str, qos: QoS) {
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        let packet_id = PacketId::MIN;
        let filters = vec![(format!("{BASE}{below}").into(), options)];
        self.send(Packet::Subscribe(Subscribe {
            packet_id,
            subscription_id: None,
            filters,
        }))
        .await;
        assert!(matches!(self.receive().await, Packet::SubAck(_)));
    }
}

pub(super) fn connect(version: Version) -> Connect {
    crate::mqtt::session::connect_for_tests(version)
}

/// A session that outlives its connection.
pub(super) fn connect_to_stay(version: Version) -> Connect {
    Connect {
        clean_start: false,
        session_expiry: (version == Version::V5).then_some(3600),
        ..connect(version)
    }
}

pub(super) fn publish(qos: QoS, packet_id: u16, below: &str) -> Packet {
    Packet::Publish(Publish {
        dup: false,
        qos,
        retain: false,
        topic: format!("{BASE}{below}").into(),
        packet_id: PacketId::new(packet_id),
        payload: Bytes::from_static(b"x"),
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
    })
}

pub(super) fn submitted(below: &str, packet_id: Option<u16>) -> Told {
    Told::Submitted(below.to_owned(), packet_id)
}

/// A message to the device on `t.Srv/cmd`.
fn message(qos: QoS, payload: u32) -> Message {
    Message {
        topic: format!("{BASE}/t.Srv/cmd").into(),
        payload: Bytes::copy_from_slice(&payload.to_be_bytes()),
        qos,
        retain: false,
        expires_at: None,
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
        property: false,
        major: None,
        id: None,
    }
}
