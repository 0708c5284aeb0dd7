//! What a write asks of whoever holds the devices' sessions.

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    mqtt::{
        packet::QoS,
        publisher::{OutboundMessage, Published, Publisher},
    },
    store::OutboxRow,
};

/// The sessions of the devices, as writes see them; the broker's [`Publisher`] is one.
#[async_trait]
pub trait Downlink: std::fmt::Debug + Send + Sync + 'static {
    /// What [`Downlink::publish`] would say at this moment, without doing it.
    async fn probe(&self, message: OutboundMessage) -> Published;

    /// Hands a message to its device's session. QoS 1 and 2 are durable in its queue when this
    /// returns; a message that the queue holds already is known by its id.
    async fn publish(&self, message: OutboundMessage) -> Published;
}

#[async_trait]
impl Downlink for Publisher {
    async fn probe(&self, message: OutboundMessage) -> Published {
        Self::probe(self, message).await
    }

    async fn publish(&self, message: OutboundMessage) -> Published {
        Self::publish(self, message).await
    }
}

/// The message that an outbox row asks for. AppEngine's values are never retained.
pub(super) fn message(row: &OutboxRow) -> OutboundMessage {
    OutboundMessage {
        identity: row.identity.clone(),
        topic: row.topic.clone(),
        payload: Bytes::copy_from_slice(&row.payload),
        // the store holds what was written here
        qos: QoS::from_u8(row.qos).unwrap_or(QoS::ExactlyOnce),
        retain: false,
        expires_at: row.expires_at,
        property: row.property,
        id: Some(row.id),
    }
}
