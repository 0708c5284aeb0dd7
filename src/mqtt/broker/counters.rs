//! What the broker counts: plain atomics, read by telemetry.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    identity::RealmName,
    mqtt::{Denial, DisconnectReason, packet::QoS},
};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `by`.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// What was counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How an attempt to connect ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConnectOutcome {
    /// CONNACK with success.
    Accepted,
    /// Beyond the limit of connections in all.
    TooMany,
    /// Beyond a limit of the peer's address.
    TooManyFromAddress,
    /// TLS: no handshake in time.
    HandshakeTimeout,
    /// TLS: the client offered no version or cipher suite that we have.
    HandshakeUnsupported,
    /// TLS: the client's certificate was refused.
    CertificateRefused,
    /// TLS: the connection ended, or spoke something else.
    HandshakeFailed,
    /// No CONNECT in time.
    ConnectTimeout,
    /// The first packet was no CONNECT that could be read.
    Malformed,
    /// Protocol level that we do not speak.
    UnsupportedVersion,
    /// The client id is no identity (development listener).
    BadClientId,
    /// No such device.
    Unknown,
    /// Credentials inhibited.
    Inhibited,
    /// Deletion under way.
    Deleting,
    /// Not the newest certificate.
    Superseded,
    /// The certificate is revoked.
    Revoked,
    /// Held off after too many kicks.
    HeldOff,
    /// The database or the session store cannot be asked.
    Unavailable,
    /// A will that the device may not publish.
    BadWill,
    /// A newer connection came while this one waited.
    Outrun,
    /// We are stopping.
    Stopping,
    /// Ended by the client before CONNACK.
    Lost,
}

impl ConnectOutcome {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Accepted,
        Self::TooMany,
        Self::TooManyFromAddress,
        Self::HandshakeTimeout,
        Self::HandshakeUnsupported,
        Self::CertificateRefused,
        Self::HandshakeFailed,
        Self::ConnectTimeout,
        Self::Malformed,
        Self::UnsupportedVersion,
        Self::BadClientId,
        Self::Unknown,
        Self::Inhibited,
        Self::Deleting,
        Self::Superseded,
        Self::Revoked,
        Self::HeldOff,
        Self::Unavailable,
        Self::BadWill,
        Self::Outrun,
        Self::Stopping,
        Self::Lost,
    ];

    /// The value of the label `outcome`, and of the log field `reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::TooMany => "too_many",
            Self::TooManyFromAddress => "too_many_from_address",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::HandshakeUnsupported => "handshake_unsupported",
            Self::CertificateRefused => "certificate_refused",
            Self::HandshakeFailed => "handshake_failed",
            Self::ConnectTimeout => "connect_timeout",
            Self::Malformed => "malformed",
            Self::UnsupportedVersion => "unsupported_version",
            Self::BadClientId => "bad_client_id",
            Self::Unknown => "unknown",
            Self::Inhibited => "inhibited",
            Self::Deleting => "deleting",
            Self::Superseded => "superseded",
            Self::Revoked => "revoked",
            Self::HeldOff => "held_off",
            Self::Unavailable => "unavailable",
            Self::BadWill => "bad_will",
            Self::Outrun => "outrun",
            Self::Stopping => "stopping",
            Self::Lost => "lost",
        }
    }
}

/// What the broker counts since it was started.
#[derive(Debug, Default)]
pub struct BrokerCounters {
    connects: [Counter; ConnectOutcome::ALL.len()],
    refusals: Mutex<HashMap<(RealmName, &'static str), u64>>,
    disconnects: Mutex<HashMap<DisconnectReason, u64>>,
    denials: Mutex<HashMap<Denial, u64>>,
    publishes: [Counter; 3],
    deliveries: [Counter; 3],
    /// Publishes taken and not yet acknowledged may be read off as
    /// `publishes(1) + publishes(2) - acknowledged`.
    pub acknowledged: Counter,
    /// Filters of SUBSCRIBE packets that were refused.
    pub subscriptions_denied: Counter,
    /// Bytes read from devices, after TLS.
    pub bytes_in: Counter,
    /// Bytes written to devices, before TLS.
    pub bytes_out: Counter,
    /// Messages to devices refused because the session's queue was full.
    pub queue_full: Counter,
    /// Messages to devices whose time was over before they were delivered.
    pub expired: Counter,
}

impl BrokerCounters {
    /// An attempt to connect ended.
    pub fn connect(&self, outcome: ConnectOutcome) {
        self.connects[outcome as usize].increment();
    }

    /// Attempts to connect that ended so.
    #[must_use]
    pub fn connects(&self, outcome: ConnectOutcome) -> u64 {
        self.connects[outcome as usize].count()
    }

    /// Something of a realm's device was refused. `reason` is an enum's `as_str`, never text from
    /// the network, so that the table stays small.
    pub fn refuse(&self, realm: &RealmName, reason: &'static str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        *refusals.entry((realm.clone(), reason)).or_default() += 1;
    }

    /// Refusals by realm and reason.
    #[must_use]
    pub fn refusals(&self) -> Vec<((RealmName, &'static str), u64)> {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals
            .iter()
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }

    /// A connection ended.
    pub fn disconnect(&self, reason: DisconnectReason) {
        let mut disconnects = self
            .disconnects
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *disconnects.entry(reason).or_default() += 1;
    }

    /// Ended connections by reason.
    #[must_use]
    pub fn disconnects(&self) -> Vec<(DisconnectReason, u64)> {
        let disconnects = self
            .disconnects
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        disconnects
            .iter()
            .map(|(reason, count)| (*reason, *count))
            .collect()
    }

    /// The ACL refused a publish.
    pub fn deny(&self, denial: Denial) {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        *denials.entry(denial).or_default() += 1;
    }

    /// Refused publishes by reason.
    #[must_use]
    pub fn denials(&self) -> Vec<(Denial, u64)> {
        let denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        denials
            .iter()
            .map(|(denial, count)| (*denial, *count))
            .collect()
    }

    /// A publish of a device was taken.
    pub fn publish(&self, qos: QoS) {
        self.publishes[qos as usize].increment();
    }

    /// Publishes taken of a QoS.
    #[must_use]
    pub fn publishes(&self, qos: QoS) -> u64 {
        self.publishes[qos as usize].count()
    }

    /// A message was sent to a device.
    pub fn deliver(&self, qos: QoS) {
        self.deliveries[qos as usize].increment();
    }

    /// Messages sent of a QoS.
    #[must_use]
    pub fn deliveries(&self, qos: QoS) -> u64 {
        self.deliveries[qos as usize].count()
    }
}
