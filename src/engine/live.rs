//! What the services ask of whoever holds the devices' connections and sessions.
//!
//! Today that is the broker of this process; which node owns a device's session is a question of
//! this one trait, so that the answer may become another node.

use std::path::Path;

use async_trait::async_trait;
use serde::Serialize;

use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
    mqtt::DisconnectReason,
};

/// The session store did not do what it was asked; nothing was lost, trying again may help.
#[derive(Debug, thiserror::Error)]
#[error("the session store failed: {0}")]
pub struct SessionsFailed(pub String);

/// A device's session, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionView {
    /// Whether a connection holds it.
    pub connected: bool,
    /// When it began.
    pub created_at: Timestamp,
    /// When it ends unless the device comes back; `None` while connected and for endless ones.
    pub expires_at: Option<Timestamp>,
    /// What it is subscribed to.
    pub subscriptions: Vec<SubscriptionView>,
    /// Messages waiting for the device.
    pub queued_messages: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Messages that expired before they could be delivered.
    pub expired_messages: u64,
    /// Messages refused to their senders because the queue was full.
    pub refused_messages: u64,
}

/// A subscription, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubscriptionView {
    /// Topic filter.
    pub filter: String,
    /// Granted QoS.
    pub qos: u8,
}

/// The owner of connections and sessions.
#[async_trait]
pub trait LiveDevices: std::fmt::Debug + Send + Sync + 'static {
    /// Whether a device is connected.
    fn is_connected(&self, identity: &Identity) -> bool;

    /// How many devices of a realm are connected.
    fn connected_in_realm(&self, realm: &RealmName) -> usize;

    /// How many devices are connected.
    fn connected(&self) -> usize;

    /// Closes a device's connection; returns once it is gone, whether there was one.
    async fn disconnect(&self, identity: &Identity, reason: DisconnectReason) -> bool;

    /// Closes all connections of a realm; returns once they are gone, how many there were.
    async fn disconnect_realm(&self, realm: &RealmName, reason: DisconnectReason) -> usize;

    /// Verifies the certificates of all live connections again, after pools have changed; returns
    /// how many were closed.
    async fn reverify(&self) -> usize;

    /// Erases a device's session, its queue and its retained messages, durably.
    ///
    /// # Errors
    /// When the session store fails.
    async fn erase_device(&self, identity: &Identity) -> Result<(), SessionsFailed>;

    /// Erases the same of all devices of a realm, durably.
    ///
    /// # Errors
    /// When the session store fails.
    async fn erase_realm(&self, realm: &RealmName) -> Result<(), SessionsFailed>;

    /// A device's session; `None` when it has none.
    async fn session(&self, identity: &Identity) -> Option<SessionView>;

    /// Writes a consistent copy of the session store to `file`, online.
    ///
    /// # Errors
    /// When the session store or the file fails.
    async fn backup_sessions(&self, file: &Path) -> Result<(), SessionsFailed>;
}
