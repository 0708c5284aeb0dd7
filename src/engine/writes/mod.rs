//! Server-owned values: checked, stored, and handed to the device's session.
//!
//! A write touches two stores. The value is committed first, in one transaction with a row of the
//! outbox; then the session queue takes the message, durably; then the outbox row goes and the
//! caller is answered. A crash between leaves the row, and [`Writes::requeue`] delivers it at the
//! next start: a property as it stands then, a datastream value by the id that the queue knows it
//! by. Where the device has to be reached (`guaranteed`, `unique`), that is asked first and nothing
//! is stored when it cannot be. Writes of one device are made one at a time, so that its queue gets
//! the values in the order in which the store has them, and each runs to its end even if its caller
//! goes away.

mod downlink;
mod locks;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value as Json;
use tokio_util::task::TaskTracker;

pub use downlink::{Delivered, Downlink, Reach};

use super::{
    Engine,
    reads::{self, ReadError, Subject},
};
use crate::{
    clock::{SharedClock, Timestamp},
    identity::Identity,
    interface::{
        Aggregation, Interface, InterfaceType, Mapping, Ownership, PathError, Reliability,
    },
    mqtt::packet::QoS,
    payload::{self, Value, ValueError},
    store::{Committed, Effect, OutboxRow, Store, StoreError, Unit},
};
use locks::Locks;

/// Why nothing was written, or not delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Device or interface cannot be addressed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The interface is the device's own.
    #[error("the interface is owned by the device")]
    DeviceOwned,
    /// The path stops short of an endpoint.
    #[error("the path stops short: endpoints go on after it")]
    IncompletePath,
    /// The value is none of the mapping.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The mapping does not allow that.
    #[error("the mapping does not allow an unset")]
    UnsetNotAllowed,
    /// The device has to be reached and cannot be; nothing was stored.
    #[error("cannot push to the device: {0}")]
    Unreachable(&'static str),
    /// The value is stored, and the device does not get it: its queue filled up, or the broker
    /// refused the message meanwhile.
    #[error("the value is stored but was not delivered: {0}")]
    NotDelivered(String),
    /// The value is stored, and is delivered once the session store works again and this program
    /// was started again.
    #[error("the value is stored and its delivery waits for the session store")]
    DeliveryDelayed,
    /// The store did not do it.
    #[error(transparent)]
    Store(StoreError),
    /// The database refused what should have been right: a fault of ours.
    #[error("the database refused the write")]
    Refused,
}

impl From<StoreError> for WriteError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What [`Writes`] is made of.
#[derive(Debug)]
pub struct WritesParts {
    /// Where values are kept.
    pub store: Arc<dyn Store>,
    /// By which they get there, in order with what the device sends.
    pub engine: Arc<Engine>,
    /// Who holds the devices' sessions.
    pub downlink: Arc<dyn Downlink>,
    /// Time.
    pub clock: SharedClock,
    /// Where writes run.
    pub tracker: TaskTracker,
}

/// Writes of server-owned values. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Writes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: WritesParts,
    locks: Locks,
}

/// What a write puts on a path.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Value(Value),
    Unset,
}

impl Content {
    /// The payload that the device gets.
    fn payload(&self) -> Vec<u8> {
        match self {
            Self::Value(value) => payload::encode(value, None),
            Self::Unset => Vec::new(),
        }
    }
}

/// A write that passed every check.
struct Checked {
    identity: Identity,
    interface: Arc<Interface>,
    path: Arc<str>,
    content: Content,
    qos: QoS,
    at: Timestamp,
    /// When it is too late to deliver it.
    undelivered_after: Option<Timestamp>,
    /// When its row may go.
    kept_until: Option<Timestamp>,
}

impl Writes {
    /// The service.
    #[must_use]
    pub fn new(parts: WritesParts) -> Self {
        Self(Arc::new(Inner {
            parts,
            locks: Locks::default(),
        }))
    }

    /// Writes a value on a path of a server-owned interface and hands it to the device's session.
    /// What became of that is the answer; a property, and an unreliable value, are written whether
    /// or not the device can be reached.
    ///
    /// # Errors
    /// See [`WriteError`]. All but `NotDelivered` and `DeliveryDelayed` mean that nothing was
    /// stored.
    ///
    /// # Cancel safety
    /// Once begun it is carried out, also if the future is dropped.
    pub async fn set(
        &self,
        identity: &Identity,
        interface: &str,
        path: &str,
        value: &Json,
    ) -> Result<Delivered, WriteError> {
        let subject = self.0.subject(identity, interface).await?;
        let path = reads::canonical(path);
        let (mapping, value) = read_value(&subject.interface, path, value)?;
        let checked = self
            .0
            .checked(identity, &subject.interface, mapping, path, value);
        self.run(checked).await
    }

    /// Unsets a property on a path. On a datastream there is nothing to unset: that is accepted and
    /// does nothing.
    ///
    /// # Errors
    /// See [`WriteError`].
    ///
    /// # Cancel safety
    /// As [`Writes::set`].
    pub async fn unset(
        &self,
        identity: &Identity,
        interface: &str,
        path: &str,
    ) -> Result<(), WriteError> {
        let subject = self.0.subject(identity, interface).await?;
        let path = reads::canonical(path);
        let interface = &subject.interface;
        let mapping = resolve(interface, path)?;
        if interface.interface_type() == InterfaceType::Datastream {
            return Ok(());
        }
        if !mapping.allow_unset {
            return Err(WriteError::UnsetNotAllowed);
        }
        let checked = self
            .0
            .checked(identity, interface, mapping, path, Content::Unset);
        self.run(checked).await.map(drop)
    }

    /// Delivers what a crash left over, oldest first; how many messages were settled. To be called
    /// at the start, before a device is let in or a write is made.
    ///
    /// # Errors
    /// When the store is not available.
    pub async fn requeue(&self) -> Result<usize, StoreError> {
        let inner = &self.0;
        inner
            .parts
            .engine
            .replay_outbox(async |row| match inner.current(row).await {
                Some(row) => inner.parts.downlink.deliver(&row).await != Delivered::Unavailable,
                None => true,
            })
            .await
    }

    async fn run(&self, checked: Checked) -> Result<Delivered, WriteError> {
        let inner = Arc::clone(&self.0);
        let write = self
            .0
            .parts
            .tracker
            .spawn(async move { inner.write(checked).await });
        match write.await {
            Ok(done) => done,
            Err(join) => match join.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // the runtime is being shut down
                Err(_) => Err(WriteError::Store(super::unavailable())),
            },
        }
    }
}

impl Inner {
    /// The device and its interface, which has to be the server's.
    async fn subject(&self, identity: &Identity, interface: &str) -> Result<Subject, WriteError> {
        let interfaces = self.parts.engine.interfaces();
        let subject = reads::subject(&*self.parts.store, interfaces, identity, interface).await?;
        if subject.row.deletion_in_progress {
            return Err(ReadError::DeviceNotFound.into());
        }
        match subject.interface.ownership() {
            Ownership::Server => Ok(subject),
            Ownership::Device => Err(WriteError::DeviceOwned),
        }
    }

    fn checked(
        &self,
        identity: &Identity,
        interface: &Arc<Interface>,
        mapping: &Mapping,
        path: &str,
        content: Content,
    ) -> Checked {
        let now = self.parts.clock.wall();
        let installed = self.parts.engine.interfaces().of_realm(&identity.realm);
        let datastream = interface.interface_type() == InterfaceType::Datastream;
        let seconds = u64::from(mapping.expiry);
        Checked {
            identity: identity.clone(),
            interface: Arc::clone(interface),
            path: Arc::from(path),
            content,
            qos: qos(interface, mapping),
            at: now,
            undelivered_after: (datastream && seconds > 0)
                .then(|| now.saturating_add(std::time::Duration::from_secs(seconds))),
            kept_until: installed
                .retention(mapping)
                .filter(|_| datastream)
                .map(|kept| now.saturating_add(kept)),
        }
    }

    async fn write(&self, write: Checked) -> Result<Delivered, WriteError> {
        let _one_at_a_time = self.locks.of(&write.identity).lock().await;
        let row = outbox_row(&write);
        if write.must_reach() {
            self.ensure_reach(&row).await?;
        }
        let effects = match write.qos {
            // at most once: a crash may lose it
            QoS::AtMostOnce => vec![write.effect()],
            _ => vec![write.effect(), Effect::AddOutbox(row.clone())],
        };
        let identity = write.identity.clone();
        let unit = Unit {
            identity,
            receipt: None,
            effects,
            counted: None,
        };
        match self.parts.engine.run(unit).await? {
            Committed::Done | Committed::Duplicate => {}
            Committed::NoDevice => return Err(ReadError::DeviceNotFound.into()),
            Committed::Refused => return Err(WriteError::Refused),
        }
        let delivered = self.parts.downlink.deliver(&row).await;
        if delivered != Delivered::Unavailable && write.qos != QoS::AtMostOnce {
            self.settle(&row).await;
        }
        answer(&write, delivered)
    }

    /// Whether the message would get to the device, or into its queue.
    async fn ensure_reach(&self, row: &OutboxRow) -> Result<(), WriteError> {
        let why = match self.parts.downlink.reach(row).await {
            Reach::Subscribed => return Ok(()),
            Reach::NoSession => "the device has no session",
            Reach::NoSubscription => "the device is not subscribed to the path",
            Reach::QueueFull => "the device's queue is full",
            Reach::Unavailable => "the session store is not available",
        };
        Err(WriteError::Unreachable(why))
    }

    async fn settle(&self, row: &OutboxRow) {
        if let Err(error) = self.parts.engine.outbox_done(row).await {
            tracing::warn!(
                identity = %row.identity,
                topic = row.topic,
                error = &error as &dyn std::error::Error,
                "a delivered message stays in the outbox and is queued again at the next start"
            );
        }
    }

    /// What an outbox row asks for now. A property is delivered as it stands, since newer writes
    /// may have been delivered since; `None` when the device does not have it any more.
    async fn current(&self, row: &OutboxRow) -> Option<OutboxRow> {
        if !row.property {
            return Some(row.clone());
        }
        let (interface, path) = split_topic(&row.topic)?;
        let interfaces = self.parts.engine.interfaces();
        let subject =
            match reads::subject(&*self.parts.store, interfaces, &row.identity, interface).await {
                Ok(subject) => subject,
                Err(ReadError::Store(error)) => {
                    tracing::warn!(
                        identity = %row.identity,
                        topic = row.topic,
                        error = &error as &dyn std::error::Error,
                        "a property is delivered as it was first written"
                    );
                    return Some(row.clone());
                }
                Err(_) => return None,
            };
        let key = subject.interface.key();
        let rows = self.parts.store.properties(&row.identity, key).await.ok()?;
        let set = rows.into_iter().find(|property| property.path == path);
        let content = set.map_or(Content::Unset, |property| Content::Value(property.value));
        Some(OutboxRow {
            payload: content.payload(),
            major: Some(key.major),
            ..row.clone()
        })
    }
}

impl Checked {
    /// Properties and unreliable values are written even if the device does not get them.
    fn must_reach(&self) -> bool {
        self.interface.interface_type() == InterfaceType::Datastream && self.qos != QoS::AtMostOnce
    }

    fn effect(&self) -> Effect {
        let (interface, path) = (self.interface.key().clone(), Arc::clone(&self.path));
        match (&self.content, self.interface.interface_type()) {
            (Content::Unset, _) => Effect::UnsetProperty { interface, path },
            (Content::Value(value), InterfaceType::Properties) => Effect::SetProperty {
                interface,
                path,
                value: value.clone(),
                at: self.at,
            },
            (Content::Value(value), InterfaceType::Datastream) => Effect::AppendSample {
                interface,
                path,
                value: value.clone(),
                // values have milliseconds
                value_at: Timestamp::from_millis(self.at.as_millis()).unwrap_or(self.at),
                received_at: self.at,
                expires_at: self.kept_until,
            },
        }
    }
}

fn outbox_row(write: &Checked) -> OutboxRow {
    OutboxRow {
        id: rand::random(),
        identity: write.identity.clone(),
        topic: format!(
            "/{}{}",
            write.interface.name(),
            write.path.trim_end_matches('/')
        ),
        payload: write.content.payload(),
        qos: write.qos as u8,
        expires_at: write.undelivered_after,
        property: write.interface.interface_type() == InterfaceType::Properties,
        major: Some(write.interface.key().major),
    }
}

/// Interface and path of a topic below the device's base.
fn split_topic(topic: &str) -> Option<(&str, &str)> {
    let below = topic.strip_prefix('/')?;
    Some(below.split_at(below.find('/')?))
}

/// What a delivery means to the caller.
fn answer(write: &Checked, delivered: Delivered) -> Result<Delivered, WriteError> {
    let told = match &delivered {
        Delivered::QueueFull => "the device's queue is full".to_owned(),
        Delivered::Refused { reason } => reason.clone(),
        Delivered::NoSession | Delivered::NoSubscription if write.must_reach() => {
            "the device's session ended meanwhile".to_owned()
        }
        Delivered::Unavailable if write.qos != QoS::AtMostOnce => {
            return Err(WriteError::DeliveryDelayed);
        }
        _ => return Ok(delivered),
    };
    if write.qos == QoS::AtMostOnce {
        return Ok(delivered);
    }
    Err(WriteError::NotDelivered(told))
}

/// QoS of what the device gets: 2 for properties, by reliability for datastreams.
fn qos(interface: &Interface, mapping: &Mapping) -> QoS {
    match (interface.interface_type(), mapping.reliability) {
        (InterfaceType::Properties, _) | (_, Reliability::Unique) => QoS::ExactlyOnce,
        (_, Reliability::Guaranteed) => QoS::AtLeastOnce,
        (_, Reliability::Unreliable) => QoS::AtMostOnce,
    }
}

/// The mapping of a path that is written to; of an object any one, they agree in what counts.
fn resolve<'i>(interface: &'i Interface, path: &str) -> Result<&'i Mapping, WriteError> {
    let not_found = WriteError::Read(ReadError::EndpointNotFound);
    if interface.aggregation() == Aggregation::Object {
        interface
            .resolve_object(path)
            .map_err(|_| WriteError::Read(ReadError::PathNotFound))?;
        return interface.mappings().first().ok_or(not_found);
    }
    interface.resolve(path).map_err(|error| match error {
        PathError::AmbiguousPath => WriteError::IncompletePath,
        PathError::MappingNotFound | PathError::InvalidPath => not_found,
    })
}

fn read_value<'i>(
    interface: &'i Interface,
    path: &str,
    value: &Json,
) -> Result<(&'i Mapping, Content), WriteError> {
    let mapping = resolve(interface, path)?;
    let value = match interface.aggregation() {
        Aggregation::Individual => Value::from_json(mapping.value_type, value)?,
        Aggregation::Object => Value::object_from_json(interface, value)?,
    };
    Ok((mapping, Content::Value(value)))
}
