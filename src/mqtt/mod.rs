//! The broker: devices come in by their certificates, and every publish goes to an [`Intake`].
//!
//! This module declares what it asks of an engine ([`Intake`], [`DeviceRegistry`],
//! [`LifecycleSink`]) and knows no engine, so that it can be embedded with another one and tested
//! with a recorder. A PUBACK or PUBREC leaves when the engine releases the message's [`Ack`].

pub mod acl;
pub mod broker;
pub mod codec;
pub mod connection;
pub mod listener;
pub mod packet;
pub mod publisher;
pub mod session;
pub mod sessions;
pub mod takeover;
pub mod topics;

use std::{net::IpAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use bytestring::ByteString;

use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
    interface::{Introspection, Ownership},
};
use packet::{PacketId, QoS, ReasonCode};

pub use crate::pki::PeerCertificate;

/// Names one session of a device: 64 random bits, new with every new session, never a counter, so
/// that a session store restored from an older backup cannot repeat one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionEpoch(pub u64);

/// How a QoS 1 or 2 message was delivered to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its packet id.
    pub packet_id: PacketId,
    /// QoS 1 or 2.
    pub qos: QoS,
    /// The DUP flag.
    pub dup: bool,
}

/// A message of a device on its way into the engine.
#[derive(Debug)]
pub struct InboundMessage {
    /// From whom.
    pub identity: Identity,
    /// Its session.
    pub session: SessionEpoch,
    /// `None` for QoS 0 and for wills.
    pub delivery: Option<Delivery>,
    /// Topic name, inside the device's own subtree.
    pub topic: ByteString,
    /// Payload.
    pub payload: Bytes,
    /// Stamped when the packet was read.
    pub received_at: Timestamp,
    /// Set when the broker's ACL refused it: nothing may be stored, the device error is recorded
    /// and the message released as refused, in its place.
    pub denied: Option<Denial>,
    /// The duty to answer it.
    pub ack: Ack,
}

/// Why the ACL refused a publish inside the device's own subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denial {
    /// The interface is not in the introspection, or not installed: `interface_loading_failed`.
    InterfaceNotDeclared,
    /// `write_on_server_owned_interface`.
    ServerOwned,
    /// The topic has more levels than allowed, or `//` in its path: `invalid_path`.
    InvalidPath,
    /// Under `control/`, but nothing that a device may send: `unexpected_control_message`.
    UnexpectedControl,
}

impl Denial {
    /// The name in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InterfaceNotDeclared => "interface_not_declared",
            Self::ServerOwned => "server_owned",
            Self::InvalidPath => "invalid_path",
            Self::UnexpectedControl => "unexpected_control",
        }
    }
}

/// What the engine decided about a message, once it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stored.
    Stored,
    /// Refused for good; the row of its device error is committed.
    Refused {
        /// For 5.0: `NOT_AUTHORIZED`, `TOPIC_NAME_INVALID` or `PAYLOAD_FORMAT_INVALID`.
        reason: ReasonCode,
        /// What becomes of the session.
        then: AfterRefusal,
    },
}

/// What follows a refused message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRefusal {
    /// The connection goes on.
    Continue,
    /// After this acknowledgement the session is erased and the connection closed.
    CleanKick,
}

/// The duty to answer one message. Consumed by [`Ack::release`]; dropped without it, it closes the
/// device's connection, and the device sends again [MQTT-4.4.0-1].
#[must_use = "an unreleased Ack closes the device's connection"]
pub struct Ack(Option<Box<dyn AckSlot>>);

/// Where an [`Ack`] reports to. `outcome` is `None` when the ack was dropped unreleased.
pub trait AckSlot: Send {
    /// Called exactly once.
    fn settle(self: Box<Self>, outcome: Option<Outcome>);
}

impl Ack {
    /// An ack that reports to `slot`.
    pub fn new(slot: impl AckSlot + 'static) -> Self {
        Self(Some(Box::new(slot)))
    }

    /// An ack that nobody waits for: QoS 0, wills.
    pub fn nobody() -> Self {
        Self(None)
    }

    /// Whether somebody waits for the answer; not so for wills.
    #[must_use]
    pub const fn is_owed(&self) -> bool {
        self.0.is_some()
    }

    /// Lets the answer go: the message is durable, or refused for good.
    pub fn release(mut self, outcome: Outcome) {
        if let Some(slot) = self.0.take() {
            slot.settle(Some(outcome));
        }
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.settle(None);
        }
    }
}

impl std::fmt::Debug for Ack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Ack(owed)"
        } else {
            "Ack(nobody)"
        })
    }
}

/// Room for one message in the intake, given back when dropped: hold it as long as the message.
pub struct Permit(#[expect(dead_code, reason = "held for its Drop")] Box<dyn Send + Sync>);

impl Permit {
    /// Wraps whatever gives the room back when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Box::new(guard))
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Permit")
    }
}

/// The engine's bounded entrance. Messages of one device are handled in the order of `submit`.
#[async_trait]
pub trait Intake: Send + Sync + 'static {
    /// Waits until a message of `bytes` payload and topic bytes has room.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the line and nothing else.
    async fn reserve(&self, identity: &Identity, bytes: usize) -> Permit;

    /// Hands over a message; never waits.
    fn submit(&self, permit: Permit, message: InboundMessage);

    /// At PUBREL: removes the receipt durably, then releases `ack` (whose PUBCOMP waits for it).
    /// In order with `submit` of the same device. Unknown receipts are released too.
    fn settle(&self, identity: &Identity, epoch: SessionEpoch, packet_id: PacketId, ack: Ack);

    /// A session was erased: its receipts go. In order with `submit` of the same device.
    fn forget(&self, identity: &Identity, epoch: SessionEpoch);
}

/// Whether a device may connect.
#[derive(Clone, Debug)]
pub enum Admission {
    /// It may, and this is what it declares.
    Allowed {
        /// The stored introspection.
        introspection: Arc<Introspection>,
    },
    /// No such device or realm: CONNACK 5 / 0x87.
    Unknown,
    /// Its credentials are inhibited: CONNACK 5 / 0x87.
    Inhibited,
    /// Its deletion is under way: CONNACK 5 / 0x87.
    Deleting,
    /// Only its newest certificate is accepted, and this is an older one: CONNACK 5 / 0x87.
    Superseded,
    /// This certificate is revoked: CONNACK 5 / 0x87.
    Revoked,
    /// Kicked again and again; held off for so long: CONNACK 3 / 0x97.
    HeldOff(Duration),
    /// The database cannot be asked: CONNACK 3 / 0x88. Never a wrong "not authorised".
    Unavailable,
}

/// What the broker asks about devices.
#[async_trait]
pub trait DeviceRegistry: Send + Sync + 'static {
    /// Asked at every CONNECT; `certificate` is `None` on the plaintext development listener.
    async fn admit(&self, identity: &Identity, certificate: Option<&PeerCertificate>) -> Admission;

    /// Who owns an installed interface; `None` when it is not installed. Answered from memory.
    fn ownership(&self, realm: &RealmName, interface: &str, major: u32) -> Option<Ownership>;
}

/// Why a connection ended; its name is what operators see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectReason {
    /// The device sent DISCONNECT.
    ClientDisconnect,
    /// The device asked for its will to be published (5.0, 0x04).
    ClientDisconnectWithWill,
    /// The socket ended without DISCONNECT.
    ConnectionLost,
    /// Nothing came in for 1.5 times the keep-alive.
    KeepAliveTimeout,
    /// A newer connection with the same identity took over.
    TakenOver,
    /// The device broke the protocol.
    ProtocolError,
    /// The device published or asked for what is not its own.
    NotAuthorized,
    /// The engine refused a message and the session was erased.
    CleanKick,
    /// An operator disconnected it.
    Administrative,
    /// Its credentials were inhibited.
    Inhibited,
    /// It was deleted, or its realm was.
    Deleted,
    /// Its certificate was revoked.
    Revoked,
    /// A newer certificate was issued, and only the newest is accepted.
    Superseded,
    /// Its certificate has expired.
    CertificateExpired,
    /// Its CA left the realm's pool.
    CaRemoved,
    /// It did not read what it was sent.
    SlowConsumer,
    /// We failed: the store refused for good, or a bug.
    InternalError,
    /// This node stops.
    Shutdown,
    /// This node was restarted and found the device recorded as connected.
    NodeRestart,
}

impl DisconnectReason {
    /// The name in events, history and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientDisconnect => "client_disconnect",
            Self::ClientDisconnectWithWill => "client_disconnect_with_will",
            Self::ConnectionLost => "connection_lost",
            Self::KeepAliveTimeout => "keep_alive_timeout",
            Self::TakenOver => "taken_over",
            Self::ProtocolError => "protocol_error",
            Self::NotAuthorized => "not_authorized",
            Self::CleanKick => "clean_kick",
            Self::Administrative => "administrative",
            Self::Inhibited => "inhibited",
            Self::Deleted => "deleted",
            Self::Revoked => "revoked",
            Self::Superseded => "superseded",
            Self::CertificateExpired => "certificate_expired",
            Self::CaRemoved => "ca_removed",
            Self::SlowConsumer => "slow_consumer",
            Self::InternalError => "internal_error",
            Self::Shutdown => "shutdown",
            Self::NodeRestart => "node_restart",
        }
    }
}

/// Told of presence, in order: connected and disconnected of one device strictly alternate.
///
/// Both are durable before they return, and wait while the database is down; both are in order with
/// the device's messages in the [`Intake`].
#[async_trait]
pub trait LifecycleSink: Send + Sync + 'static {
    /// A device is connected; its CONNACK follows.
    async fn connected(&self, identity: &Identity, peer: Option<IpAddr>, at: Timestamp);

    /// It is not any more.
    async fn disconnected(&self, identity: &Identity, reason: DisconnectReason, at: Timestamp);
}
