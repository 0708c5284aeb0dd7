//! What a write asks of whoever holds the devices' sessions.

use async_trait::async_trait;
use serde::Serialize;

use crate::{clock::Timestamp, store::OutboxRow};

/// Whether a message would get to a device, now or out of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Its session has a subscription that matches.
    Subscribed,
    /// It has no session.
    NoSession,
    /// It has one, but no subscription that matches.
    NoSubscription,
    /// Its queue takes no more.
    QueueFull,
    /// The session store cannot be asked.
    Unavailable,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Delivered {
    /// A live connection took it.
    #[serde(rename = "delivered")]
    Delivering,
    /// It waits in the queue, durably.
    Queued {
        /// Until then at most; `None` is without limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// The device has no session.
    NoSession,
    /// It has one, but no subscription that matches.
    NoSubscription,
    /// The queue held it already.
    Duplicate,
    /// The queue takes no more.
    QueueFull,
    /// The broker does not deliver it, and why.
    Refused {
        /// The reason, in words.
        reason: String,
    },
    /// The session store did not take it; trying again later may help.
    Unavailable,
}

/// The sessions of the devices, as writes see them. The broker's publisher stands behind it.
#[async_trait]
pub trait Downlink: std::fmt::Debug + Send + Sync + 'static {
    /// Whether `message` would get to its device. Changes nothing.
    async fn reach(&self, message: &OutboxRow) -> Reach;

    /// Hands `message` to its device's session. QoS 1 and 2 are durable in its queue when this
    /// returns; the queue knows a message that it holds already by its id, and of a property it
    /// keeps the newest alone. Nothing is retained.
    async fn deliver(&self, message: &OutboxRow) -> Delivered;
}
