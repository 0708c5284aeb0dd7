//! The broker's handle, its settings and what it shares with its connections.

mod counters;
mod settings;

use std::{net::SocketAddr, sync::Arc};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use counters::{BrokerCounters, ConnectOutcome, Counter};
pub use settings::BrokerSettings;

use super::{
    DeviceRegistry, Intake, LifecycleSink, PeerCertificate, connection::DelayedWills,
    sessions::Sessions, takeover::Owners,
};
use crate::{clock::SharedClock, identity::Identity};

/// What every connection of a broker shares.
#[derive(Clone)]
pub struct Shared {
    /// Limits and times.
    pub settings: Arc<BrokerSettings>,
    /// Sessions on disk.
    pub sessions: Sessions,
    /// Which connection owns which identity.
    pub owners: Owners,
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
