//! What the services ask of whoever holds the devices' connections and sessions.
//!
//! Today that is the broker of this process; which node owns a device's session is a question of
//! this one trait, so that the answer may become another node.

use std::path::Path;

use async_trait::async_trait;
use serde::Serialize;

use crate::{
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
    /// Whether it has a connection.
    pub connected: bool,
    /// Filters subscribed to.
    pub subscriptions: u64,
    /// Messages waiting for the device.
    pub queued_messages: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Messages that expired before they could be delivered.
    pub expired_messages: u64,
    /// Messages refused to their senders because the queue was full.
    pub refused_messages: u64,
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

    /// Erases a device's session with its queue, durably.
    ///
    /// # Errors
    /// When the session store fails.
    async fn erase_session(&self, identity: &Identity) -> Result<(), SessionsFailed>;

    /// Erases the sessions of a realm, durably.
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
