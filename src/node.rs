//! Assembly: from settings to running tasks.
//!
//! [`Node::start`] is the one door, for the binary and for tests. HTTP and the control socket listen
//! first, alive and not ready; then the database, the session store and the engine are opened, stale
//! presence is closed, and the MQTT listener comes last. [`serve`] runs a node until a signal, and
//! starts it anew when a backup is restored.

mod control;
mod data_dir;
mod live;
mod restore;

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use data_dir::{DataDir, DataDirError};

use crate::{
    api::{self, Api, ApiParts, ApiSettings, NodeControl, ServiceSettings, server},
    clock::{SharedClock, SystemClock},
    config::Config,
    engine::{Engine, EngineSettings, IntakeLimits},
    identity::RealmName,
    mqtt::{
        broker::{Broker, BrokerError, BrokerParts, BrokerSettings},
        sessions::{OpenError, QueueLimits, Sessions},
    },
    pki::{
        MasterKey, MasterKeyError, Pools, ServerCertificateError, ServerCertificateFiles,
        ServerCertificates,
    },
    shutdown::{Asked, Shutdown, Signals},
    store::{Store, StoreError, postgres::PostgresStore, sqlite::SqliteStore},
    telemetry::{self, EXPIRY_DAYS, ExpiringCertificates, LogControl, Metrics, Sources},
};
use control::Control;
use live::Live;

/// Time between looks at what ends by time.
const UPKEEP_EVERY: Duration = Duration::from_mins(1);
/// Longest pause between attempts to reach the database at start.
const DATABASE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why a node did not start or did not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The master key.
    #[error(transparent)]
    MasterKey(#[from] MasterKeyError),
    /// The broker's own certificate.
    #[error("the server certificate cannot be used")]
    ServerCertificate(#[from] ServerCertificateError),
    /// The session store.
    #[error(transparent)]
    Sessions(#[from] OpenError),
    /// The database.
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    /// An address cannot be listened on.
    #[error("{key} = {address} cannot be listened on: {source}")]
    Listen {
        /// Key of the setting.
        key: &'static str,
        /// Address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The MQTT listeners.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The Housekeeping key.
    #[error("http.housekeeping_public_key = {}: {reason}", path.display())]
    HousekeepingKey {
        /// File.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The log filter.
    #[error(transparent)]
    Log(#[from] telemetry::InvalidFilter),
    /// A staged backup could not be put in place.
    #[error("the restored backup could not be put in place; what was there is still in {}: {source}", path.display())]
    Restore {
        /// Data directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Signals cannot be taken over.
    #[error("signals cannot be taken over")]
    Signals(#[source] std::io::Error),
}

impl NodeError {
    /// Whether the operator has to change a setting or a file before a start can succeed.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(
            self,
            Self::MasterKey(_)
                | Self::ServerCertificate(_)
                | Self::HousekeepingKey { .. }
                | Self::Log(_)
                | Self::Store(StoreError::SchemaTooNew { .. })
                | Self::DataDir(DataDirError::Unusable { .. })
        ) || matches!(self, Self::Sessions(OpenError::Newer { .. }))
    }
}

/// How a node ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop, and drained; `false`: it did not end in time, and was cut off.
    Stopped(bool),
    /// It is to start anew with the backup that was decided for.
    Restore,
}

/// Runs a node until a signal ends it.
///
/// # Errors
/// When it cannot start.
pub async fn serve(config: Config) -> Result<bool, NodeError> {
    let log = telemetry::start(&config.log)?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    raise_open_files();
    let mut signals = Signals::new().map_err(NodeError::Signals)?;
    let data_dir = DataDir::open(&config.data_dir)?;
    loop {
        restore::finish(data_dir.path())?;
        restore::sweep(data_dir.path());
        match run(&config, &log, &mut signals).await? {
            Ended::Stopped(drained) => return Ok(drained),
            Ended::Restore => {}
        }
    }
}

/// One life of a node: from start to a signal or a restore.
async fn run(config: &Config, log: &LogControl, signals: &mut Signals) -> Result<Ended, NodeError> {
    let shutdown = Shutdown::new();
    let starting = Node::start_with(config.clone(), Some(log.clone()), shutdown.clone());
    tokio::pin!(starting);
    let node = loop {
        tokio::select! {
            started = &mut starting => break started?,
            asked = signals.next() => if asked == Asked::Stop {
                tracing::info!("stopped before it was ready");
                shutdown.hard.cancel();
                return Ok(Ended::Stopped(true));
            },
        }
    };
    let mut restore = node.control.restore_asked();
    let restores = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => break false,
                Asked::Reload => drop(node.control.reload().await),
            },
            Ok(()) = restore.changed() => break true,
        }
    };
    let hard = shutdown.hard.clone();
    let stopping = node.stop();
    tokio::pin!(stopping);
    let drained = loop {
        tokio::select! {
            drained = &mut stopping => break drained,
            asked = signals.next() => if asked == Asked::Stop { hard.cancel() },
        }
    };
    Ok(if restores {
        Ended::Restore
    } else {
        Ended::Stopped(drained)
    })
}

/// The soft limit of open files becomes the hard one: each device is a file.
fn raise_open_files() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files could not be raised"),
    }
}

/// Longest time that the end waits for the store, behind the last commit.
const STORE_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running node.
#[derive(Debug)]
pub struct Node {
    broker: Broker,
    engine: Arc<Engine>,
    store: Arc<dyn Store>,
    control: Arc<Control>,
    shutdown: Shutdown,
    drain_timeout: Duration,
}

impl Node {
    /// Starts a node whose data directory the caller holds; returns once it serves.
    ///
    /// # Errors
    /// When something it needs cannot be used; the error says what to do.
    pub async fn start(config: Config) -> Result<Self, NodeError> {
        Self::start_with(config, None, Shutdown::new()).await
    }

    async fn start_with(
        config: Config,
        log: Option<LogControl>,
        shutdown: Shutdown,
    ) -> Result<Self, NodeError> {
        let clock = SystemClock::shared();
        let front = Front::open(&config, &clock, log, &shutdown).await?;
        let started = Self::start_behind(config, &front, clock, &shutdown).await;
        if started.is_err() {
            shutdown.soft.cancel();
            shutdown.hard.cancel();
        }
        started
    }

    async fn start_behind(
        config: Config,
        front: &Front,
        clock: SharedClock,
        shutdown: &Shutdown,
    ) -> Result<Self, NodeError> {
        let store = open_store(&config, front).await?;
        let master_key = open_master_key(&config, &*store).await?;
        for identity in store.close_stale(clock.wall()).await? {
            tracing::info!(%identity, "was connected when the node ended; disconnected now");
        }
        let settings = engine_settings(&config);
        let engine = Engine::start(store.clone(), settings, clock.clone(), &shutdown.tasks).await?;
        front.control.note("opening the session store");
        let sessions = open_sessions(&config, &clock).await?;
        let pools = Pools::new();
        let broker = Broker::bind(
            broker_settings(&config),
            BrokerParts {
                sessions: sessions.clone(),
                intake: engine.clone(),
                registry: engine.clone(),
                lifecycle: engine.clone(),
                tls: Some(front.certificates.mqtt_config(&pools, clock.clone())?),
                pools: pools.clone(),
                clock: clock.clone(),
                counters: Arc::default(),
            },
        )
        .await?;
        let expiring = Arc::new(ExpiringCertificates::default());
        let metrics = Metrics::new(Sources {
            engine: engine.counters().clone(),
            broker: broker.clone(),
            pools: pools.clone(),
            expiring: expiring.clone(),
        });
        let live = Arc::new(Live::new(broker.clone()));
        let parts = ApiParts {
            store: store.clone(),
            engine: engine.clone(),
            live: live.clone(),
            downlink: live,
            pools,
            master_key,
            node: front.control.clone(),
            metrics: Arc::new(move || metrics.render()),
            clock: clock.clone(),
            tracker: shutdown.tasks.clone(),
            data_dir: config.data_dir.clone(),
        };
        let api = Api::assemble(&parts, &service_settings(&config, &broker)?)
            .map_err(|error| housekeeping_key(&config, error.to_string()))?;
        front.control.complete(control::Parts {
            broker: broker.clone(),
            engine: engine.clone(),
            realms: api.realms.clone(),
        });
        resume(&api).await?;
        broker.open();
        front.door.lead_to(api::router(&api));
        front.control.ready();
        let addresses = broker.addresses();
        tracing::info!(mqtt = ?addresses.mqtt, insecure_dev = ?addresses.insecure_dev, "ready");
        let upkeep = Upkeep {
            expiring,
            certificates: front.certificates.clone(),
            store: store.clone(),
            clock,
        };
        shutdown.tasks.spawn(upkeep.run(shutdown.soft.clone()));
        Ok(Self {
            broker,
            engine,
            store,
            control: front.control.clone(),
            shutdown: shutdown.clone(),
            drain_timeout: config.mqtt.drain_timeout,
        })
    }

    /// Bound address of MQTT over TLS.
    #[must_use]
    pub const fn mqtt_address(&self) -> Option<SocketAddr> {
        self.broker.addresses().mqtt
    }

    /// The broker.
    #[must_use]
    pub const fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Stops: accepts no more, commits what was taken, sends the acknowledgements that are owed,
    /// closes. Returns whether all of it ended in time.
    pub async fn stop(self) -> bool {
        tracing::info!("stopping: no new connections, what was taken is committed");
        self.control.note("stopping");
        let hard = self.shutdown.hard.clone();
        let deadline = tokio::time::Instant::now() + self.drain_timeout;
        let at_once = || async {
            tokio::select! {
                () = hard.cancelled() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        };
        let closed = tokio::select! {
            closed = self.broker.close(self.drain_timeout) => closed,
            () = hard.cancelled() => self.broker.close(Duration::ZERO).await,
        };
        let committed = tokio::select! {
            () = self.engine.close() => true,
            () = at_once() => false,
        };
        if !committed {
            // the store takes nothing: what it was not given was not acknowledged either
            self.engine.abandon();
            self.engine.close().await;
        }
        self.shutdown.soft.cancel();
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        let drained = self.shutdown.drained(left).await && closed && committed;
        let stores_close = tokio::time::timeout(STORE_CLOSE_TIMEOUT, self.store.close());
        tokio::select! {
            // an error: a commit hangs in it, and the process ends without waiting for that
            _ = stores_close => {}
            () = hard.cancelled() => {}
        }
        tracing::info!(drained, "stopped");
        drained
    }
}

/// What listens before anything else is there: HTTP and the control socket.
struct Front {
    door: server::Door,
    control: Arc<Control>,
    certificates: ServerCertificates,
}

impl Front {
    async fn open(
        config: &Config,
        clock: &SharedClock,
        log: Option<LogControl>,
        shutdown: &Shutdown,
    ) -> Result<Self, NodeError> {
        let files = config
            .tls
            .certificates
            .iter()
            .map(|pair| ServerCertificateFiles {
                certificate: pair.certificate.clone(),
                key: pair.key.clone(),
            });
        let certificates = ServerCertificates::open(
            &config.data_dir,
            files.collect(),
            &host_name(),
            clock.clone(),
        )?;
        let address = config.http.listen;
        let listen = |source| NodeError::Listen {
            key: "http.listen",
            address: address.to_string(),
            source,
        };
        let tcp = TcpListener::bind(address).await.map_err(listen)?;
        let bound = tcp.local_addr().map_err(listen)?;
        let socket = config.control_socket();
        let unix = server::bind_control_socket(&socket).map_err(|source| NodeError::Listen {
            key: "control socket",
            address: socket.display().to_string(),
            source,
        })?;
        let control = Arc::new(Control::new(
            config.clone(),
            clock,
            bound,
            log,
            certificates.clone(),
        ));
        let door = server::Door::new(api::starting(&(control.clone() as Arc<dyn NodeControl>)));
        let tcp = if config.http.tls {
            server::Listener::Tls(tcp, certificates.https_config()?)
        } else {
            server::Listener::Tcp(tcp)
        };
        let limits = api_settings(config).limits;
        for listener in [tcp, server::Listener::Unix(unix)] {
            let serving = server::serve(
                listener,
                door.clone(),
                limits,
                shutdown.tasks.clone(),
                shutdown.soft.clone(),
            );
            shutdown.tasks.spawn(serving);
        }
        tracing::info!(http = %bound, tls = config.http.tls, "HTTP listens");
        Ok(Self {
            door,
            control,
            certificates,
        })
    }
}

/// Fills the pools, and goes on with what a crash interrupted.
async fn resume(api: &Api) -> Result<(), NodeError> {
    api.realms.load().await?;
    if let Err(error) = api.devices.resume_deletions().await {
        tracing::error!(%error, "deletions of devices could not be resumed");
    }
    let requeued = api.writes.requeue().await?;
    if requeued > 0 {
        tracing::info!(
            requeued,
            "values for devices that a crash left over are queued"
        );
    }
    Ok(())
}

/// What is done by time: the server certificate is renewed, device certificates that end soon are
/// counted.
struct Upkeep {
    expiring: Arc<ExpiringCertificates>,
    certificates: ServerCertificates,
    store: Arc<dyn Store>,
    clock: SharedClock,
}

impl Upkeep {
    async fn run(self, stop: CancellationToken) {
        loop {
            if let Err(error) = self.certificates.renew_if_due() {
                tracing::error!(%error, "the server certificate could not be renewed");
            }
            match self.count_expiring().await {
                Ok(counts) => self.expiring.set(counts),
                Err(error) => tracing::debug!(%error, "certificates could not be counted"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(UPKEEP_EVERY) => {}
            }
        }
    }

    async fn count_expiring(&self) -> Result<Vec<(RealmName, Vec<u64>)>, StoreError> {
        let now = self.clock.wall();
        let until = EXPIRY_DAYS.map(|days| now.saturating_add(Duration::from_hours(24 * days)));
        let mut counts = Vec::new();
        for realm in self.store.realms().await? {
            let of_realm = self
                .store
                .expiring_certificates(&realm.name, &until)
                .await?;
            counts.push((realm.name, of_realm));
        }
        Ok(counts)
    }
}

/// Opens the database; one that cannot be reached is waited for, one that cannot be used is not.
async fn open_store(config: &Config, front: &Front) -> Result<Arc<dyn Store>, NodeError> {
    let mut pause = Duration::from_millis(100);
    loop {
        let opened: Result<Arc<dyn Store>, StoreError> = match &config.database.url {
            Some(url) => PostgresStore::connect(url)
                .await
                .map(|store| Arc::new(store) as _),
            None => SqliteStore::open(&config.data_dir.join("tanit.db"))
                .await
                .map(|store| Arc::new(store) as _),
        };
        match opened {
            Ok(store) => return Ok(store),
            Err(StoreError::Unavailable(error)) => {
                let seconds = pause.as_secs_f32();
                tracing::warn!(%error, seconds, "the database cannot be reached; trying again");
                front.control.note("the database cannot be reached");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(DATABASE_PAUSE_MAX);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the master key. One is made while no realm is stored; afterwards another key would open
/// nothing of what is stored, and is refused.
async fn open_master_key(config: &Config, store: &dyn Store) -> Result<Arc<MasterKey>, NodeError> {
    let path = config.master_key_path();
    let realms = store.realms().await?;
    let key = MasterKey::load_or_create(&path, realms.is_empty())?;
    for realm in realms {
        let cas = store.cas(&realm.name).await?;
        let sealed = cas.into_iter().filter_map(|ca| ca.key_sealed);
        if sealed
            .chain(realm.jwt_private_key_sealed)
            .any(|sealed| !key.has_sealed(&sealed))
        {
            return Err(MasterKeyError::Foreign(path).into());
        }
    }
    Ok(Arc::new(key))
}

/// Opens the session store off the runtime: a repair takes its time, and health is answered.
async fn open_sessions(config: &Config, clock: &SharedClock) -> Result<Sessions, NodeError> {
    let path = config.data_dir.join("sessions.redb");
    let limits = queue_limits(config);
    let clock = clock.clone();
    let opened = tokio::task::spawn_blocking(move || Sessions::open(&path, limits, clock)).await;
    match opened {
        Ok(opened) => Ok(opened?),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

fn bytes(size: bytesize::ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

fn engine_settings(config: &Config) -> EngineSettings {
    EngineSettings {
        intake: IntakeLimits {
            window_messages: config.mqtt.window_messages_max.get().into(),
            window_bytes: bytes(config.mqtt.window_bytes_max),
            shared_messages: config.engine.intake_messages_max,
            shared_bytes: bytes(config.engine.intake_bytes_max),
        },
        lanes: if config.database.url.is_some() {
            NonZeroUsize::MIN.saturating_add(1)
        } else {
            NonZeroUsize::MIN
        },
        batch_messages: config.engine.batch_messages_max,
        enforce_latest_certificate: config.pairing.enforce_latest_certificate,
        inhibited_devices: config.mqtt.inhibited_devices,
        ..EngineSettings::default()
    }
}

fn queue_limits(config: &Config) -> QueueLimits {
    QueueLimits {
        messages: config.mqtt.queue_messages_max,
        bytes: config.mqtt.queue_bytes_max.as_u64(),
        subscriptions: config.mqtt.subscriptions_max,
    }
}

fn broker_settings(config: &Config) -> BrokerSettings {
    let mqtt = &config.mqtt;
    BrokerSettings {
        listen: Some(mqtt.listen),
        insecure_dev_listen: mqtt.insecure_dev_listen,
        insecure_dev_anywhere: mqtt.insecure_dev_anywhere,
        connections_max: connections_max(config),
        connections_per_address_max: mqtt.connections_per_address_max,
        handshakes_at_work_max: match mqtt.handshakes_max {
            0 => BrokerSettings::default().handshakes_at_work_max,
            set => set,
        },
        handshake_timeout: mqtt.handshake_timeout,
        connect_timeout: mqtt.connect_timeout,
        write_timeout: mqtt.write_timeout,
        packet_bytes_max: bytes(mqtt.packet_bytes_max),
        first_packet_bytes_max: bytes(mqtt.first_packet_bytes_max),
        topic_levels_max: mqtt.topic_levels_max,
        window_messages: mqtt.window_messages_max,
        window_bytes: bytes(mqtt.window_bytes_max),
        inbound_qos2_max: mqtt.qos2_ids_max,
        outbound_inflight: mqtt.inflight_max,
        filters_per_packet_max: mqtt.subscriptions_max,
        queue: queue_limits(config),
        session_expiry_max: mqtt.session_expiry,
        keep_alive_max: mqtt.keep_alive_max,
        certificate_expiry_grace: mqtt.certificate_expiry_grace,
        ..BrokerSettings::default()
    }
}

/// Files that are left for connections, when the rest has what it needs.
fn connections_max(config: &Config) -> usize {
    const OTHER_FILES: u64 = 256;
    if config.mqtt.connections_max > 0 {
        return config.mqtt.connections_max;
    }
    let files = rlimit::getrlimit(rlimit::Resource::NOFILE).map_or(1024, |(soft, _)| soft);
    let http = config.http.connections_max as u64;
    let left = files.saturating_sub(http.min(files / 4) + OTHER_FILES);
    usize::try_from(left).unwrap_or(usize::MAX).max(16)
}

fn api_settings(config: &Config) -> ApiSettings {
    let http = &config.http;
    ApiSettings {
        limits: api::Limits {
            requests: http.requests_max,
            body_bytes: bytes(http.body_bytes_max),
            request_timeout: http.request_timeout,
            connections: http.connections_max,
            ..api::Limits::default()
        },
        ..ApiSettings::default()
    }
}

fn service_settings(config: &Config, broker: &Broker) -> Result<ServiceSettings, NodeError> {
    let housekeeping_public_key = match &config.http.housekeeping_public_key {
        None => None,
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(|error| housekeeping_key(config, error.to_string()))?,
        ),
    };
    Ok(ServiceSettings {
        api: api_settings(config),
        housekeeping_public_key,
        broker_url: broker_url(config, broker),
        certificate_lifetime: config.pairing.certificate_lifetime,
        enforce_latest_certificate: config.pairing.enforce_latest_certificate,
        failed_secrets_per_minute: config.http.failed_secrets_per_minute,
        inhibited_devices: config.mqtt.inhibited_devices,
        archive_bytes_max: u64::MAX,
    })
}

fn housekeeping_key(config: &Config, reason: String) -> NodeError {
    let path = config
        .http
        .housekeeping_public_key
        .clone()
        .unwrap_or_default();
    NodeError::HousekeepingKey { path, reason }
}

/// What Pairing tells devices to connect to.
fn broker_url(config: &Config, broker: &Broker) -> String {
    let port = broker
        .addresses()
        .mqtt
        .map_or(config.mqtt.listen.port(), |bound| bound.port());
    config
        .pairing
        .broker_url
        .clone()
        .unwrap_or_else(|| format!("mqtts://{}:{port}/", host_name()))
}

fn host_name() -> String {
    let name = gethostname::gethostname().to_string_lossy().into_owned();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}
