//! What the broker counts, as plain atomics by enum; telemetry reads them. No device labels.

use std::sync::atomic::{AtomicU64, Ordering};

use super::packet::QoS;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// What was counted.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The value of the metric's label.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

counted! {
    /// How a connection that came past the handshake began.
    ConnectOutcome {
        /// CONNACK 0.
        Accepted = "accepted",
        /// The first packet was no CONNECT, or a malformed one.
        Malformed = "malformed",
        /// A protocol level that is not spoken here.
        UnsupportedVersion = "unsupported_version",
        /// No complete CONNECT within the deadline.
        TooSlow = "too_slow",
        /// The peer went away first.
        Lost = "lost",
        /// On the plaintext development listener: the client id is no identity.
        NoIdentity = "no_identity",
        /// Enhanced authentication was asked for.
        BadAuthenticationMethod = "bad_authentication_method",
        /// The will's topic is malformed or foreign.
        WillRefused = "will_refused",
        /// No such device or realm.
        Unknown = "unknown",
        /// Its credentials are inhibited.
        Inhibited = "inhibited",
        /// It is being deleted.
        Deleting = "deleting",
        /// Not its newest certificate.
        Superseded = "superseded",
        /// Its certificate is revoked.
        Revoked = "revoked",
        /// Its certificate has expired since the handshake.
        Expired = "expired",
        /// Held off after repeated kicks.
        HeldOff = "held_off",
        /// A database cannot be asked.
        Unavailable = "unavailable",
        /// A newer connection of the same device came while this one waited.
        Outrun = "outrun",
        /// The node was stopping.
        Stopping = "stopping",
    }
}

counted! {
    /// What the access matrix refused.
    AclDenied {
        /// A publish inside the own subtree.
        Publish = "publish",
        /// A publish outside it.
        PublishForeign = "publish_foreign",
        /// A filter.
        Subscribe = "subscribe",
        /// A message that was queued and may not be delivered any more.
        Deliver = "deliver",
        /// A will at CONNECT.
        Will = "will",
    }
}

/// All counters of connections.
#[derive(Debug)]
pub struct ConnectionCounters {
    connects: Box<[Counter]>,
    denied: Box<[Counter]>,
    publishes: [Counter; 3],
    deliveries: [Counter; 3],
    /// Connections closed for bytes that are no MQTT or break its rules.
    pub violations: Counter,
    /// Messages whose time was over before they could be delivered.
    pub expired: Counter,
}

impl Default for ConnectionCounters {
    fn default() -> Self {
        let zeroes = |count: usize| (0..count).map(|_| Counter::default()).collect();
        Self {
            connects: zeroes(ConnectOutcome::ALL.len()),
            denied: zeroes(AclDenied::ALL.len()),
            publishes: Default::default(),
            deliveries: Default::default(),
            violations: Counter::default(),
            expired: Counter::default(),
        }
    }
}

impl ConnectionCounters {
    /// Connects that ended so.
    #[must_use]
    pub fn connects(&self, outcome: ConnectOutcome) -> &Counter {
        &self.connects[outcome as usize]
    }

    /// Refusals of the access matrix.
    #[must_use]
    pub fn denied(&self, action: AclDenied) -> &Counter {
        &self.denied[action as usize]
    }

    /// Publishes of devices that were handed to the engine.
    #[must_use]
    pub fn publishes(&self, qos: QoS) -> &Counter {
        &self.publishes[qos as usize]
    }

    /// Messages sent to devices.
    #[must_use]
    pub fn deliveries(&self, qos: QoS) -> &Counter {
        &self.deliveries[qos as usize]
    }
}
