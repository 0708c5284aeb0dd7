//! The broker of this process as the services know it: the owner of connections and sessions.

use std::{
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    engine::{
        live::{LiveDevices, SessionView, SessionsFailed, SubscriptionView},
        writes::{Delivered, Downlink, Reach},
    },
    identity::{Identity, RealmName},
    mqtt::{
        DisconnectReason,
        broker::Broker,
        packet::QoS,
        publisher::{OutboundMessage, Published},
        sessions::Sessions,
    },
    store::OutboxRow,
};

/// The sessions, and the broker once it is there.
pub(super) struct Live {
    sessions: Sessions,
    broker: OnceLock<Broker>,
}

impl Live {
    /// Without a broker nobody is connected.
    pub(super) fn new(sessions: Sessions) -> Arc<Self> {
        Arc::new(Self { sessions, broker: OnceLock::new() })
    }

    pub(super) fn attach(&self, broker: Broker) {
        assert!(self.broker.set(broker).is_ok(), "a node has one broker");
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Live")
    }
}

fn failed(error: &impl std::error::Error) -> SessionsFailed {
    SessionsFailed(error.to_string())
}

#[async_trait]
impl LiveDevices for Live {
    fn is_connected(&self, identity: &Identity) -> bool {
        self.broker.get().is_some_and(|broker| broker.is_connected(identity))
    }

    fn connected_in_realm(&self, realm: &RealmName) -> usize {
        self.broker.get().map_or(0, |broker| broker.connected_in_realm(realm))
    }

    fn connected(&self) -> usize {
        self.broker.get().map_or(0, Broker::live_sessions)
    }

    async fn disconnect(&self, identity: &Identity, reason: DisconnectReason) -> bool {
        match self.broker.get() {
            Some(broker) => broker.disconnect(identity, reason).await,
            None => false,
        }
    }

    async fn disconnect_realm(&self, realm: &RealmName, reason: DisconnectReason) -> usize {
        match self.broker.get() {
            Some(broker) => broker.disconnect_realm(realm, reason).await,
            None => 0,
        }
    }

    async fn reverify(&self) -> usize {
        match self.broker.get() {
            Some(broker) => broker.reverify().await,
            None => 0,
        }
    }

    async fn erase_device(&self, identity: &Identity) -> Result<(), SessionsFailed> {
        let erased = match self.broker.get() {
            Some(broker) => broker.erase_device(identity).await,
            None => self.sessions.erase_device(identity).await,
        };
        erased.map(drop).map_err(|error| failed(&error))
    }

    async fn erase_realm(&self, realm: &RealmName) -> Result<(), SessionsFailed> {
        let erased = match self.broker.get() {
            Some(broker) => broker.erase_realm(realm).await.map(drop),
            None => self.sessions.erase_realm(realm).await.map(drop),
        };
        erased.map_err(|error| failed(&error))
    }

    async fn session(&self, identity: &Identity) -> Option<SessionView> {
        let summary = self.sessions.summary(identity).await.ok()??;
        let subscriptions = summary.subscriptions.into_iter().map(|subscription| {
            let filter = subscription.filter.to_string();
            SubscriptionView { filter, qos: subscription.options.qos as u8 }
        });
        Some(SessionView {
            connected: summary.connected,
            created_at: summary.created_at,
            expires_at: summary.expires_at,
            subscriptions: subscriptions.collect(),
            queued_messages: u64::from(summary.queued_messages),
            queued_bytes: summary.queued_bytes,
            expired_messages: summary.expired_messages,
            refused_messages: summary.refused_messages,
        })
    }

    async fn backup_sessions(&self, file: &Path) -> Result<(), SessionsFailed> {
        self.sessions.backup(file).await.map_err(|error| failed(&error))
    }
}

#[async_trait]
impl Downlink for Live {
    async fn reach(&self, message: &OutboxRow) -> Reach {
        let Some(broker) = self.broker.get() else { return Reach::Unavailable };
        match broker.publisher().probe(outbound(message)).await {
            Published::NoSession => Reach::NoSession,
            Published::NoSubscription => Reach::NoSubscription,
            Published::QueueFull => Reach::QueueFull,
            Published::Unavailable => Reach::Unavailable,
            Published::Delivered
            | Published::Queued { .. }
            | Published::NotConnected
            | Published::Duplicate
            | Published::Expired
            | Published::Refused(_) => Reach::Subscribed,
        }
    }

    async fn deliver(&self, message: &OutboxRow) -> Delivered {
        let Some(broker) = self.broker.get() else { return Delivered::Unavailable };
        match broker.publisher().publish(outbound(message)).await {
            Published::Delivered => Delivered::Delivering,
            Published::Queued { until } => Delivered::Queued { until },
            Published::NoSession => Delivered::NoSession,
            Published::NoSubscription => Delivered::NoSubscription,
            Published::QueueFull => Delivered::QueueFull,
            Published::Duplicate => Delivered::Duplicate,
            Published::NotConnected => {
                Delivered::Refused { reason: "the device is not connected".to_owned() }
            }
            Published::Expired => {
                Delivered::Refused { reason: "its time is over already".to_owned() }
            }
            Published::Refused(refusal) => Delivered::Refused { reason: refusal.to_string() },
            Published::Unavailable => Delivered::Unavailable,
        }
    }
}

fn outbound(message: &OutboxRow) -> OutboundMessage {
    OutboundMessage {
        identity: message.identity.clone(),
        topic: message.topic.clone(),
        payload: Bytes::copy_from_slice(&message.payload),
        qos: QoS::from_u8(message.qos).unwrap_or(QoS::ExactlyOnce),
        retain: false,
        expires_at: message.expires_at,
        property: message.property,
        id: Some(message.id),
    }
}
