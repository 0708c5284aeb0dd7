//! The engine: what a device says is resolved, decoded, validated and committed, then acknowledged.
//!
//! It implements the traits that [`crate::mqtt`] asks for. One stage of the path each: `intake`
//! (bounds), `lane` (order within a device), `judge` with `introspection`, `control` and `data`
//! (what a message means), `batch` (group commit); beside them `registry` (who may connect),
//! `lifecycle` (presence), and the services that the control API calls: `interfaces`, `realms`,
//! `devices`, `pairing`, `reads`, `writes`.
//!
//! Invariants: an ack is released only after the store has committed its message, or the row of its
//! error; the messages of a device are judged and released in the order of their arrival; nothing
//! that was accepted is lost while the store is down.

pub mod actor;
mod attempts;
pub mod backup;
mod batch;
mod cache;
mod control;
mod counters;
mod data;
pub mod devices;
mod errors;
mod health;
mod intake;
mod interfaces;
mod introspection;
mod judge;
mod lane;
mod lifecycle;
pub mod live;
mod outbox;
pub mod pairing;
mod queue;
pub mod reads;
pub mod realms;
mod registry;
#[cfg(test)]
mod tests;
pub mod tokens;
pub mod writes;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    num::NonZeroUsize,
    sync::Arc,
};

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use counters::{Counter, EngineCounters, Gauge, Histogram, HistogramSnapshot};
pub use errors::DeviceError;
pub use intake::IntakeLimits;
pub use interfaces::{InterfaceChangeError, Interfaces, RealmInterfaces};
pub use registry::InhibitedDevices;

use crate::{
    clock::SharedClock,
    identity::Identity,
    mqtt::{Ack, InboundMessage, Intake, Permit, SessionEpoch, packet::PacketId},
    store::{Committed, Receipt, Store, StoreError, Unit},
};
use batch::Committer;
use cache::Devices;
use health::Health;
use intake::Bounds;
use lane::{Lane, Work};
use queue::{Queue, TakeLimits};

/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// How much may be under way.
    pub intake: IntakeLimits,
    /// Lanes, each with commits of its own. SQLite has one writer: 1.
    pub lanes: NonZeroUsize,
    /// Most messages of one transaction.
    pub batch_messages: NonZeroUsize,
    /// Most bytes of one transaction, about; a single larger message is one by itself.
    pub batch_bytes: usize,
    /// Devices whose introspection is kept in memory, over all lanes.
    pub cached_devices: usize,
    /// Whether only the newest certificate that was issued to a device is accepted.
    pub enforce_latest_certificate: bool,
    /// What inhibition means on MQTT.
    pub inhibited_devices: InhibitedDevices,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            intake: IntakeLimits::default(),
            lanes: NonZeroUsize::MIN,
            batch_messages: NonZeroUsize::MIN.saturating_add(999),
            batch_bytes: 4 * 1024 * 1024,
            cached_devices: 20_000,
            enforce_latest_certificate: false,
            inhibited_devices: InhibitedDevices::Refuse,
        }
    }
}

/// The engine. One for each process, shared.
#[derive(Debug)]
pub struct Engine {
    store: Arc<dyn Store>,
    settings: EngineSettings,
    clock: SharedClock,
    counters: Arc<EngineCounters>,
    health: Arc<Health>,
    interfaces: Arc<Interfaces>,
    bounds: Bounds,
    lanes: Box<[Arc<Queue<Work>>]>,
    tasks: TaskTracker,
    abandoned: CancellationToken,
}

impl Engine {
    /// Reads the installed interfaces and starts the lanes, whose tasks are spawned on `tracker`.
    ///
    /// # Errors
    /// When the interfaces cannot be read.
    pub async fn start(
        store: Arc<dyn Store>,
        settings: EngineSettings,
        clock: SharedClock,
        tracker: &TaskTracker,
    ) -> Result<Arc<Self>, StoreError> {
        let counters = Arc::new(EngineCounters::default());
        let interfaces =
            Interfaces::new(Arc::clone(&store), Arc::clone(&counters), tracker.clone());
        let interfaces = Arc::new(interfaces);
        interfaces.load().await?;
        let lanes = (0..settings.lanes.get())
            .map(|_| Arc::new(Queue::new()))
            .collect();
        let engine = Arc::new(Self {
            health: Arc::new(Health::new(Arc::clone(&clock), Arc::clone(&counters))),
            bounds: Bounds::new(settings.intake, Arc::clone(&counters)),
            tasks: TaskTracker::new(),
            abandoned: CancellationToken::new(),
            store,
            settings,
            clock,
            counters,
            interfaces,
            lanes,
        });
        for arrivals in &engine.lanes {
            engine.start_lane(arrivals, tracker);
        }
        engine.tasks.close();
        Ok(engine)
    }

    fn start_lane(&self, arrivals: &Arc<Queue<Work>>, tracker: &TaskTracker) {
        let judged = Arc::new(Queue::new());
        let lane = Lane {
            store: Arc::clone(&self.store),
            interfaces: Arc::clone(&self.interfaces),
            health: Arc::clone(&self.health),
            arrivals: Arc::clone(arrivals),
            judged: Arc::clone(&judged),
            devices: Devices::new(self.settings.cached_devices / self.settings.lanes),
            doubt: None,
            abandoned: self.abandoned.clone(),
        };
        let committer = Committer {
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            counters: Arc::clone(&self.counters),
            health: Arc::clone(&self.health),
            arrivals: Arc::clone(arrivals),
            judged,
            limits: TakeLimits {
                items: self.settings.batch_messages.get(),
                bytes: self.settings.batch_bytes,
            },
            abandoned: self.abandoned.clone(),
        };
        tracker.spawn(self.tasks.track_future(lane.run()));
        tracker.spawn(self.tasks.track_future(committer.run()));
    }

    /// The installed interfaces of all realms, and how they are changed.
    #[must_use]
    pub const fn interfaces(&self) -> &Arc<Interfaces> {
        &self.interfaces
    }

    /// What the engine counts; also whether the store is available.
    #[must_use]
    pub const fn counters(&self) -> &Arc<EngineCounters> {
        &self.counters
    }

    /// Commits a write of the API, in order with the device's own stream. Reception stamps in it
    /// are moved forward where the device's newest is not older. Introspections are not set so.
    ///
    /// # Errors
    /// `Unavailable` when the store is down (nothing is written then, also not later; an attempt
    /// that was under way is answered first), or when the engine is closed.
    ///
    /// # Cancel safety
    /// Dropped before its transaction has begun, nothing is written.
    pub async fn run(&self, unit: Unit) -> Result<Committed, StoreError> {
        let (answer, answered) = oneshot::channel();
        let identity = unit.identity.clone();
        self.push(
            &identity,
            Work::Run {
                unit: Box::new(unit),
                answer,
            },
        );
        answered.await.unwrap_or_else(|_| Err(unavailable()))
    }

    /// Tells the lane that a device was changed otherwise than through it (registered again,
    /// deleted), so that its introspection is read again.
    pub fn refresh_device(&self, identity: &Identity) {
        self.push(
            identity,
            Work::Refresh {
                identity: identity.clone(),
            },
        );
    }

    /// Waits until everything that was submitted before is committed and released.
    pub async fn drain(&self) {
        let mut barriers = Vec::with_capacity(self.lanes.len());
        for lane in &self.lanes {
            let (done, told) = oneshot::channel();
            if lane.push(Work::Barrier { done }).is_ok() {
                barriers.push(told);
            }
        }
        for barrier in barriers {
            // an error: the engine was given up
            drop(barrier.await);
        }
    }

    /// Takes nothing more, and waits until what was taken is committed and released. The broker is
    /// closed before, since presence goes through the lanes too. While the store is down this takes
    /// for ever: put a limit on it, then [`abandon`](Self::abandon).
    pub async fn close(&self) {
        for lane in &self.lanes {
            lane.close();
        }
        self.tasks.wait().await;
    }

    /// Ends at once: what is not committed is dropped, unacknowledged, and its devices send it
    /// again.
    pub fn abandon(&self) {
        self.abandoned.cancel();
        for lane in &self.lanes {
            lane.close();
            lane.extract(|_| true);
        }
    }

    /// Hands over to the device's lane. After the end the work is dropped: an ack in it closes its
    /// connection.
    fn push(&self, identity: &Identity, work: Work) {
        drop(self.lane(identity).push(work));
    }

    fn lane(&self, identity: &Identity) -> &Queue<Work> {
        let mut hasher = DefaultHasher::new();
        identity.hash(&mut hasher);
        let index = hasher.finish() % self.lanes.len() as u64;
        &self.lanes[usize::try_from(index).unwrap_or(0)]
    }
}

#[async_trait]
impl Intake for Engine {
    async fn reserve(&self, identity: &Identity, bytes: usize) -> Permit {
        Permit::new(self.bounds.reserve(identity, bytes).await)
    }

    fn submit(&self, permit: Permit, message: InboundMessage) {
        let identity = message.identity.clone();
        self.push(
            &identity,
            Work::Message {
                room: permit,
                message,
            },
        );
    }

    fn settle(&self, identity: &Identity, epoch: SessionEpoch, packet_id: PacketId, ack: Ack) {
        let receipt = Receipt {
            epoch: epoch.0,
            packet_id: packet_id.get(),
        };
        self.push(
            identity,
            Work::Settle {
                identity: identity.clone(),
                receipt,
                ack,
            },
        );
    }

    fn forget(&self, identity: &Identity, epoch: SessionEpoch) {
        self.push(
            identity,
            Work::Forget {
                identity: identity.clone(),
                epoch,
            },
        );
    }
}

/// The answer to whom the store's own error went to somebody else.
fn unavailable() -> StoreError {
    StoreError::Unavailable(sqlx::Error::Io(std::io::Error::other(
        "the store does not answer",
    )))
}
