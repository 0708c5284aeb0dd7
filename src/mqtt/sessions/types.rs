//! What goes into the session store and what comes out of it.

use std::{num::NonZeroU16, path::PathBuf, time::Duration};

use bytes::Bytes;
use bytestring::ByteString;
use tokio::sync::mpsc;

use crate::{
    clock::Timestamp,
    mqtt::{
        SessionEpoch,
        packet::{PacketId, PublishProperties, QoS, SubscribeOptions, Version},
    },
};

/// Bounds of one session; more is refused to whoever asks for it, nothing accepted is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Messages of QoS 1 and 2 in the outbound queue, 1 to 60,000 (they need packet ids).
    pub messages: u32,
    /// Bytes of topics and payloads in the outbound queue.
    pub bytes: u64,
    /// Subscriptions.
    pub subscriptions: usize,
}

impl QueueLimits {
    /// Most messages that a queue may be allowed to hold: each of them holds one of 65,535 ids.
    pub const MESSAGES_MAX: u32 = 60_000;
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            messages: 1_000,
            bytes: 16 << 20,
            subscriptions: 1_024,
        }
    }
}

/// How long a session outlives its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionExpiry {
    /// It ends with the connection: 3.1.1 with Clean Session, 5.0 with an interval of 0.
    WithConnection,
    /// So long after the connection ended.
    After(Duration),
    /// It stays: 3.1.1 without Clean Session, 5.0 with an interval of 0xFFFFFFFF.
    Never,
}

/// A connection asks for its session.
#[derive(Clone, Copy, Debug)]
pub struct StartRequest {
    /// Clean Session or Clean Start: what there was is erased first [MQTT-3.1.2-6].
    pub clean_start: bool,
    /// As granted, not as asked for.
    pub expiry: SessionExpiry,
    /// Of the connection.
    pub version: Version,
    /// The wall clock.
    pub now: Timestamp,
}

/// A session that was started or resumed; it is on disk.
#[derive(Debug)]
pub struct Started {
    /// Names the session.
    pub epoch: SessionEpoch,
    /// Whether it was there before [MQTT-3.2.2-2]. If so the feed is silent until the connection
    /// has read the queue and called `resume_feed`; a new session is fed at once.
    pub session_present: bool,
    /// What it is subscribed to.
    pub subscriptions: Vec<Subscription>,
    /// An older session that went for this one: the engine has to forget its receipts.
    pub erased: Option<SessionEpoch>,
    /// Live messages. Ends when the session is erased or taken by another connection.
    pub deliveries: mpsc::Receiver<Delivery>,
}

/// A subscription of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Topic filter, valid and inside the device's own subtree.
    pub filter: ByteString,
    /// As granted.
    pub options: SubscribeOptions,
    /// Subscription Identifier of 5.0.
    pub id: Option<u32>,
}

/// What became of one filter of a SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeOutcome {
    /// It was not there before.
    New,
    /// It was there; its options are now the new ones [MQTT-3.8.4-3].
    Replaced,
}

/// The session has as many subscriptions as it may have: SUBACK 0x80 / 0x97.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session has as many subscriptions as it may have")]
pub struct QuotaExceeded;

/// A message to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Topic name, whole.
    pub topic: ByteString,
    /// Payload.
    pub payload: Bytes,
    /// From the store: the lower of the publish's and the highest granted one. To it: the publish's.
    pub qos: QoS,
    /// To the store: keep it as the topic's retained message (an empty payload removes that one).
    /// From it: the flag to be sent.
    pub retain: bool,
    /// Not delivered after this moment.
    pub expires_at: Option<Timestamp>,
    /// Subscription Identifiers of all subscriptions that match.
    pub subscription_ids: Vec<u32>,
    /// Properties of 5.0. The message expiry is in `expires_at`, not here.
    pub properties: PublishProperties,
    /// A newer one of the same topic replaces it as long as it was not sent.
    pub property: bool,
    /// Of the interface it was written for; it is not sent to a device that declares another one.
    pub major: Option<u32>,
    /// By which a message that is enqueued again after a crash is known.
    pub id: Option<u128>,
}

/// A message in the outbound queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Place in the queue, from 1; never reused within a session.
    pub seq: u64,
    /// Follows from `seq`; no other message in the queue has it.
    pub packet_id: PacketId,
    /// How far its flow has come.
    pub state: FlowState,
    /// QoS 1 or 2.
    pub message: Message,
}

/// How far the flow of an outbound message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// Never sent.
    Waiting,
    /// Sent at least once: the next time with DUP [MQTT-3.3.1-1].
    Sent,
    /// PUBREC was received: only PUBREL is owed [MQTT-4.3.3-1].
    Received,
}

/// How an outbound message was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// PUBACK or PUBCOMP was received.
    Delivered,
    /// Its time was over before it was sent.
    Expired,
    /// The device may not receive it (any more).
    Refused,
    /// Larger than the client's Maximum Packet Size [MQTT5-3.1.2-25].
    TooLarge,
}

/// What the live feed carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// From the queue; in the order of `seq`. Skip it when `seq` was seen before.
    Queued(Queued),
    /// QoS 0.
    Qos0(Message),
    /// The feed was full and is silent now: read the queue, then call `resume_feed`.
    Lagging,
}

/// Answer of `resume_feed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// From now on the feed brings everything after `last_seq`.
    Feeding,
    /// There is more in the queue: read on, then ask again.
    More,
}

/// What became of a message that was handed to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A live connection took it (QoS 1 and 2: it is on disk too).
    Delivering,
    /// On disk until the device takes it, at most until the earlier of the message's and the
    /// session's end.
    Queued {
        /// `None`: for ever.
        until: Option<Timestamp>,
    },
    /// The device has no session.
    NoSession,
    /// It has, but no subscription that matches.
    NoSubscription,
    /// The session's queue is full (QoS 0: the connection does not keep up).
    QueueFull,
    /// Of QoS 0 after the subscription's maximum was applied, and the device is not connected.
    NotConnected,
    /// A message of this id was enqueued before.
    Duplicate,
    /// Its time is over already.
    Expired,
}

/// What operators see of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// Names the session.
    pub epoch: SessionEpoch,
    /// Whether a connection holds it.
    pub connected: bool,
    /// When it began.
    pub created_at: Timestamp,
    /// When it ends unless the device comes back; `None` while connected and for endless ones.
    pub expires_at: Option<Timestamp>,
    /// Its subscriptions.
    pub subscriptions: Vec<Subscription>,
    /// Messages in its queue.
    pub queued_messages: u32,
    /// Their bytes, topics and payloads.
    pub queued_bytes: u64,
    /// Messages whose time was over before they could be delivered, since the session began.
    pub expired_messages: u64,
    /// Messages refused because the queue was full, since the process started.
    pub refused_messages: u64,
}

/// What a run of the reaper removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Sessions whose time was over: the engine has to forget their receipts.
    pub sessions: Vec<(crate::identity::Identity, SessionEpoch)>,
    /// Messages whose time was over.
    pub messages: usize,
    /// Whether the run stopped at its bound and there is more to do.
    pub more: bool,
}

/// Why the session store could not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionsError {
    /// Nothing was written and nothing may be acknowledged; try again later. The store tries to
    /// recover by itself.
    #[error("the session store cannot write: {0}")]
    Unavailable(std::sync::Arc<str>),
    /// The session was erased or is a newer one by now.
    #[error("the session is gone")]
    Gone,
    /// The store was closed.
    #[error("the session store is closed")]
    Closed,
}

/// Why the session store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by another process; stop that one, or choose another data directory", .path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It is no session store, or a broken one.
    #[error("{} is damaged ({reason}); restore it from a backup, or move it away to start with empty sessions", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A newer program wrote it.
    #[error("{} was written by a newer version ({table}); use that version, or restore a backup of this one", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The table that is not known.
        table: String,
    },
    /// It cannot be read or written.
    #[error("{} cannot be opened: {reason}; check the path, its permissions and the free space", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

/// The packet id of a place in the queue.
pub(super) fn packet_id(seq: u64) -> PacketId {
    let number = (seq.saturating_sub(1) % 65_535) + 1;
    u16::try_from(number)
        .ok()
        .and_then(NonZeroU16::new)
        .unwrap_or(NonZeroU16::MIN)
}
