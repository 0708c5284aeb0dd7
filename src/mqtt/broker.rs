//! The broker's handle: start, look at and change live connections, publish, close.
//!
//! What it asks of an engine are the three traits of [`super`]; it knows no engine. `settings.rs`
//! has every limit, `counters.rs` what is counted, `upkeep.rs` the tasks beside the connections.

mod counters;
mod settings;
mod upkeep;

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use counters::{BrokerCounters, ConnectOutcome, Counter};
pub use settings::BrokerSettings;

use super::{
    DeviceRegistry, DisconnectReason, Intake, LifecycleSink, PeerCertificate, SessionEpoch,
    connection::DelayedWills,
    listener::{self, Admission, Door, Handshakes},
    publisher::Publisher,
    sessions::{Sessions, SessionsError},
    takeover::Owners,
};
use crate::{
    clock::SharedClock,
    identity::{Identity, RealmName},
    interface::Introspection,
    pki::{ChainReason, Pools},
};

/// What every connection of a broker shares.
#[derive(Clone)]
pub struct Shared {
    /// Limits and times.
    pub settings: Arc<BrokerSettings>,
    /// Sessions on disk.
    pub sessions: Sessions,
    /// Which connection owns which identity.
    pub owners: Owners,
    /// Whose certificates are accepted.
    pub pools: Pools,
    /// Where publishes go.
    pub intake: Arc<dyn Intake>,
    /// Who may connect.
    pub registry: Arc<dyn DeviceRegistry>,
    /// Who is told of presence.
    pub lifecycle: Arc<dyn LifecycleSink>,
    /// The time.
    pub clock: SharedClock,
    /// What is counted.
    pub counters: Arc<BrokerCounters>,
    /// Tasks that a connection starts.
    pub tracker: TaskTracker,
    /// Wills whose delay is running.
    pub wills: DelayedWills,
    /// Cancelled when the node stops: read no more, send the acks that are owed, say
    /// DISCONNECT 0x8B (5.0), close as `Shutdown`.
    pub drain: CancellationToken,
}

/// Who is at the other end of an accepted connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// From the certificate; `None` on the development listener, where the client id claims it.
    pub identity: Option<(Identity, Arc<PeerCertificate>)>,
}

/// What a broker is made of.
pub struct BrokerParts {
    /// The session store, opened.
    pub sessions: Sessions,
    /// Where publishes go.
    pub intake: Arc<dyn Intake>,
    /// Who may connect.
    pub registry: Arc<dyn DeviceRegistry>,
    /// Who is told of presence.
    pub lifecycle: Arc<dyn LifecycleSink>,
    /// For the TLS listener. Reload happens behind it: its certificate resolver and its verifier
    /// look at what is current.
    pub tls: Option<Arc<ServerConfig>>,
    /// The pools that `tls` verifies against.
    pub pools: Pools,
    /// The time.
    pub clock: SharedClock,
    /// What is counted.
    pub counters: Arc<BrokerCounters>,
}

/// Where a broker listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// MQTT over TLS.
    pub mqtt: Option<SocketAddr>,
    /// Plaintext MQTT for development.
    pub insecure_dev: Option<SocketAddr>,
}

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Plaintext where others could reach it.
    #[error(
        "the plaintext development listener {address} is not on loopback: any peer could be any \
         device there; bind 127.0.0.1, or force it if that is what you want"
    )]
    NotLoopback {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// A TLS listener without a TLS configuration.
    #[error("a TLS listener needs a TLS configuration")]
    NoTls,
}

/// A running broker. Cheap to clone; it stops by [`Broker::close`], not when the handles go.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
    publisher: Publisher,
    addresses: Addresses,
    /// Cancelled: devices are let in.
    opened: CancellationToken,
    /// Cancelled: nobody is let in any more.
    closed: CancellationToken,
    /// Cancelled: connections are dropped where they stand.
    hard: CancellationToken,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Broker {
    /// Binds the listeners and lets devices in.
    ///
    /// # Errors
    /// See [`BrokerError`]. Nothing runs then.
    pub async fn start(settings: BrokerSettings, parts: BrokerParts) -> Result<Self, BrokerError> {
        let broker = Self::bind(settings, parts).await?;
        broker.open();
        Ok(broker)
    }

    /// Binds the listeners; who connects waits until [`Broker::open`].
    ///
    /// # Errors
    /// See [`BrokerError`]. Nothing runs then.
    #[expect(clippy::unused_async, reason = "needs a runtime, and says so")]
    pub async fn bind(settings: BrokerSettings, parts: BrokerParts) -> Result<Self, BrokerError> {
        let tls = bind(settings.listen)?;
        if tls.is_some() && parts.tls.is_none() {
            return Err(BrokerError::NoTls);
        }
        let insecure = bind(loopback(&settings)?)?;
        let address = |listener: &Option<TcpListener>| {
            listener
                .as_ref()
                .and_then(|listener| listener.local_addr().ok())
        };
        let addresses = Addresses {
            mqtt: address(&tls),
            insecure_dev: address(&insecure),
        };
        let publisher = Publisher::new(
            parts.sessions.clone(),
            Arc::clone(&parts.counters),
            settings.topic_levels_max,
            settings.packet_bytes_max,
        );
        let admission = Arc::new(Admission::new(&settings));
        let handshakes = parts.tls.map(|config| {
            let (pools, clock) = (parts.pools.clone(), Arc::clone(&parts.clock));
            Arc::new(Handshakes::new(config, pools, clock, &settings))
        });
        let shared = Arc::new(Shared {
            settings: Arc::new(settings),
            sessions: parts.sessions,
            owners: Owners::default(),
            pools: parts.pools,
            intake: parts.intake,
            registry: parts.registry,
            lifecycle: parts.lifecycle,
            clock: parts.clock,
            counters: parts.counters,
            tracker: TaskTracker::new(),
            wills: DelayedWills::default(),
            drain: CancellationToken::new(),
        });
        let broker = Self {
            shared,
            publisher,
            addresses,
            opened: CancellationToken::new(),
            closed: CancellationToken::new(),
            hard: CancellationToken::new(),
        };
        broker.listen(tls, handshakes, &admission);
        broker.listen(insecure, None, &admission);
        upkeep::start(&broker.shared, &broker.closed);
        Ok(broker)
    }

    /// Lets devices in, those first that came since the listeners were bound.
    pub fn open(&self) {
        self.opened.cancel();
    }

    fn listen(
        &self,
        listener: Option<TcpListener>,
        handshakes: Option<Arc<Handshakes>>,
        admission: &Arc<Admission>,
    ) {
        let Some(listener) = listener else { return };
        if let (Some(address), None) = (self.addresses.insecure_dev, &handshakes) {
            tracing::warn!(%address, "plaintext development listener: any peer can be any device");
        }
        let door = Door {
            shared: Arc::clone(&self.shared),
            admission: Arc::clone(admission),
            handshakes,
            opened: self.opened.clone(),
            closed: self.closed.clone(),
            hard: self.hard.clone(),
        };
        self.shared.tracker.spawn(door.accept(listener));
    }

    /// Where it listens; the real ports where 0 was asked for.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Devices that are connected.
    #[must_use]
    pub fn live_sessions(&self) -> usize {
        self.shared.owners.len()
    }

    /// Whether a device is connected.
    #[must_use]
    pub fn is_connected(&self, identity: &Identity) -> bool {
        self.shared.owners.is_connected(identity)
    }

    /// Devices of a realm that are connected.
    #[must_use]
    pub fn connected_in_realm(&self, realm: &RealmName) -> usize {
        self.shared.owners.count_in_realm(realm)
    }

    /// Ends the connection of a device and returns once it is gone in every respect; false when
    /// there was none.
    pub async fn disconnect(&self, identity: &Identity, reason: DisconnectReason) -> bool {
        self.shared.owners.kick(identity, reason).await
    }

    /// Ends all connections of a realm and returns once they are gone; how many there were.
    pub async fn disconnect_realm(&self, realm: &RealmName, reason: DisconnectReason) -> usize {
        let devices = self.shared.owners.identities(Some(realm));
        self.disconnect_all(devices.into_iter().map(|identity| (identity, reason)))
            .await
    }

    async fn disconnect_all(
        &self,
        devices: impl Iterator<Item = (Identity, DisconnectReason)>,
    ) -> usize {
        // all are told before the first is waited for
        let leaving: Vec<_> = devices
            .filter_map(|(identity, reason)| self.shared.owners.tell_to_go(&identity, reason))
            .collect();
        for gone in &leaving {
            gone.cancelled().await;
        }
        leaving.len()
    }

    /// Ends the connection of a device, if there is one, and erases its session and its receipts.
    /// Retained messages stay. Returns the session that went.
    ///
    /// # Errors
    /// The session store's.
    pub async fn erase_session(
        &self,
        identity: &Identity,
    ) -> Result<Option<SessionEpoch>, SessionsError> {
        self.disconnect(identity, DisconnectReason::Administrative)
            .await;
        let epoch = self.shared.sessions.erase(identity).await?;
        self.forget(identity, epoch);
        Ok(epoch)
    }

    /// Ends the connection of a device that is deleted, and erases everything that the broker has
    /// of it. The registry must not let it in any more.
    ///
    /// # Errors
    /// The session store's.
    pub async fn erase_device(
        &self,
        identity: &Identity,
    ) -> Result<Option<SessionEpoch>, SessionsError> {
        self.disconnect(identity, DisconnectReason::Deleted).await;
        let epoch = self.shared.sessions.erase_device(identity).await?;
        self.forget(identity, epoch);
        Ok(epoch)
    }

    /// Like [`Broker::erase_device`] for every device of a realm; how many sessions went.
    ///
    /// # Errors
    /// The session store's.
    pub async fn erase_realm(&self, realm: &RealmName) -> Result<usize, SessionsError> {
        self.disconnect_realm(realm, DisconnectReason::Deleted)
            .await;
        let erased = self.shared.sessions.erase_realm(realm).await?;
        for (identity, epoch) in &erased {
            self.shared.intake.forget(identity, *epoch);
        }
        Ok(erased.len())
    }

    fn forget(&self, identity: &Identity, epoch: Option<SessionEpoch>) {
        if let Some(epoch) = epoch {
            self.shared.intake.forget(identity, epoch);
        }
    }

    /// Verifies the certificates of the live connections again, after a pool has changed, and ends
    /// those that are not accepted any more; returns how many, once they are gone.
    pub async fn reverify(&self) -> usize {
        let now = self.shared.clock.wall();
        let refused = self.shared.owners.certificates().into_iter().filter_map(|(identity, it)| {
            let error = self.shared.pools.verify(&identity, &it.chain, now).err()?;
            let reason = match error.reason {
                // its own timer ends it, after the grace that is configured
                ChainReason::Expired => return None,
                ChainReason::Revoked => DisconnectReason::Revoked,
                _ => DisconnectReason::CaRemoved,
            };
            tracing::info!(%identity, reason = error.reason.as_str(), "certificate not accepted any more");
            Some((identity, reason))
        });
        self.disconnect_all(refused).await
    }

    /// Gives a device's connection, if there is one, a new introspection to rule it.
    pub fn refresh_introspection(&self, identity: &Identity, introspection: Arc<Introspection>) {
        self.shared
            .owners
            .refresh_introspection(identity, introspection);
    }

    /// Publishes to devices.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// The session store.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.shared.sessions
    }

    /// What is counted.
    #[must_use]
    pub fn counters(&self) -> &Arc<BrokerCounters> {
        &self.shared.counters
    }

    /// Stops in good order: nobody is let in any more, what was taken is acknowledged as the engine
    /// releases it, 5.0 clients are told, sockets and the session store are closed. What is not done
    /// after `grace` is dropped where it stands; nothing that was acknowledged is lost by that.
    /// Returns whether all was done.
    pub async fn close(&self, grace: Duration) -> bool {
        self.closed.cancel();
        self.shared.drain.cancel();
        self.shared.tracker.close();
        let in_time = tokio::time::timeout(grace, self.shared.tracker.wait())
            .await
            .is_ok();
        if !in_time {
            tracing::warn!(
                connections = self.live_sessions(),
                "not all connections ended in time"
            );
            self.hard.cancel();
            self.shared.tracker.wait().await;
        }
        self.shared.sessions.close().await;
        in_time
    }
}

/// Binds an address, if there is one.
fn bind(address: Option<SocketAddr>) -> Result<Option<TcpListener>, BrokerError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let bound = listener::bind(address);
    bound
        .map(Some)
        .map_err(|source| BrokerError::Listen { address, source })
}

/// The development listener's address, which is loopback unless forced.
fn loopback(settings: &BrokerSettings) -> Result<Option<SocketAddr>, BrokerError> {
    match settings.insecure_dev_listen {
        Some(address) if !address.ip().is_loopback() && !settings.insecure_dev_anywhere => {
            Err(BrokerError::NotLoopback { address })
        }
        address => Ok(address),
    }
}
