//! The broker of this process as the services know it: the owner of connections and sessions.

use std::{fmt, path::Path};

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
    },
    store::OutboxRow,
};

/// The broker with its sessions.
pub(super) struct Live(Broker);

impl Live {
    pub(super) const fn new(broker: Broker) -> Self {
        Self(broker)
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
        self.0.is_connected(identity)
    }

    fn connected_in_realm(&self, realm: &RealmName) -> usize {
        self.0.connected_in_realm(realm)
    }

    fn connected(&self) -> usize {
        self.0.live_sessions()
    }

    async fn disconnect(&self, identity: &Identity, reason: DisconnectReason) -> bool {
        self.0.disconnect(identity, reason).await
    }

    async fn disconnect_realm(&self, realm: &RealmName, reason: DisconnectReason) -> usize {
        self.0.disconnect_realm(realm, reason).await
    }

    async fn reverify(&self) -> usize {
        self.0.reverify().await
    }

    async fn erase_device(&self, identity: &Identity) -> Result<(), SessionsFailed> {
        self.0
            .erase_device(identity)
            .await
            .map(drop)
            .map_err(|error| failed(&error))
    }

    async fn erase_realm(&self, realm: &RealmName) -> Result<(), SessionsFailed> {
        self.0
            .erase_realm(realm)
            .await
            .map(drop)
            .map_err(|error| failed(&error))
    }

    async fn session(&self, identity: &Identity) -> Option<SessionView> {
        let summary = self.0.sessions().summary(identity).await.ok()??;
        let subscriptions = summary.subscriptions.into_iter().map(|subscription| {
            let filter = subscription.filter.to_string();
            SubscriptionView {
                filter,
                qos: subscription.options.qos as u8,
            }
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
        self.0
            .sessions()
            .backup(file)
            .await
            .map_err(|error| failed(&error))
    }
}

#[async_trait]
impl Downlink for Live {
    async fn reach(&self, message: &OutboxRow) -> Reach {
        match self.0.publisher().probe(outbound(message)).await {
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
        match self.0.publisher().publish(outbound(message)).await {
            Published::Delivered => Delivered::Delivering,
            Published::Queued { until } => Delivered::Queued { until },
            Published::NoSession => Delivered::NoSession,
            Published::NoSubscription => Delivered::NoSubscription,
            Published::QueueFull => Delivered::QueueFull,
            Published::Duplicate => Delivered::Duplicate,
            Published::NotConnected => Delivered::Refused {
                reason: "the device is not connected".to_owned(),
            },
            Published::Expired => Delivered::Refused {
                reason: "its time is over already".to_owned(),
            },
            Published::Refused(refusal) => Delivered::Refused {
                reason: refusal.to_string(),
            },
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
        major: message.major,
        id: Some(message.id),
    }
}
