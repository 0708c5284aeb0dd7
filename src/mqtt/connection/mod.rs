//! The task of one socket, from CONNECT to the moment when the device is gone in every respect.
//!
//! [`serve`] reads the CONNECT, lets the device in (`accept.rs`), runs the loop (`run.rs`) and
//! clears up (`finish.rs`). What MQTT asks is decided by [`super::session`]; here bytes are moved,
//! effects performed and clocks watched. One task owns the stream; nothing it waits for keeps
//! acknowledgements, deliveries or timers waiting.

mod accept;
mod acks;
mod finish;
mod read;
mod run;
mod wills;

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    DeviceRegistry, Intake, LifecycleSink, PeerCertificate, counters::ConnectionCounters,
    session::Limits, sessions::Sessions, takeover::Owners,
};
use crate::{clock::SharedClock, identity::Identity};
use wills::PendingWills;

/// What a connection may take and how long; the defaults are those of `config/tanit.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Largest packet, in bytes, fixed header included.
    pub packet_bytes_max: usize,
    /// Largest CONNECT.
    pub first_packet_bytes_max: usize,
    /// From the end of the handshake to a complete CONNECT, in all.
    pub connect_timeout: Duration,
    /// Time that a device may take to read what it was sent.
    pub write_timeout: Duration,
    /// Longest keep-alive; 5.0 clients are told. `None`: any, none too.
    pub keep_alive_max: Option<Duration>,
    /// Longest life of a session without a connection; `None`: for ever.
    pub session_expiry: Option<Duration>,
    /// How long a connection outlives its certificate.
    pub certificate_expiry_grace: Duration,
    /// Longest time that a stop waits for owed acknowledgements.
    pub drain_timeout: Duration,
    /// Bounds of the session machine.
    pub session: Limits,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            packet_bytes_max: 300 << 10,
            first_packet_bytes_max: 80 << 10,
            connect_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            keep_alive_max: None,
            session_expiry: None,
            certificate_expiry_grace: Duration::ZERO,
            drain_timeout: Duration::from_secs(20),
            session: Limits::default(),
        }
    }
}

/// What all connections of a broker share.
pub struct Shared {
    /// Limits and times.
    pub settings: ConnectionSettings,
    /// Sessions on disk.
    pub sessions: Sessions,
    /// Which connection owns which identity.
    pub owners: Owners,
    /// The engine's entrance.
    pub intake: Arc<dyn Intake>,
    /// What the engine knows of devices.
    pub registry: Arc<dyn DeviceRegistry>,
    /// Whom presence is told.
    pub lifecycle: Arc<dyn LifecycleSink>,
    /// Where the time comes from.
    pub clock: SharedClock,
    /// What is counted.
    pub counters: Arc<ConnectionCounters>,
    /// Cancelled when the broker stops: who has no session yet is closed, delayed wills fire.
    /// Connections with a session are told by [`Owners`] (`Shutdown`), acknowledge what was taken,
    /// and close.
    pub stopping: CancellationToken,
    /// Tracks what outlives a connection: delayed wills.
    pub tasks: TaskTracker,
    /// Wills whose delay is running; empty at start.
    pub wills: PendingWills,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Who is at the other end of a socket.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address; `None` where there is none, as in tests.
    pub address: Option<IpAddr>,
    /// Identity and certificate after a handshake. `None` on the plaintext development listener,
    /// where the client id of CONNECT is believed.
    pub certificate: Option<(Identity, Arc<PeerCertificate>)>,
}

/// Serves one socket until the device is gone: its will handled, its session stopped, its
/// disconnection durable, its identity free for the next connection. Never panics on what it reads.
pub async fn serve<S>(stream: S, peer: Peer, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    accept::serve(stream, peer, shared).await;
}

#[cfg(test)]
mod tests;
