//! What of the sessions is in memory: everything but the contents of the queues.
//!
//! The writer thread owns it. It is changed while a transaction is prepared; when the transaction
//! fails it is read from the file again, so that it never shows what is not there.

use std::collections::HashMap;

use tokio::sync::mpsc;

use super::{Delivery, SessionExpiry, SessionSummary, Subscription, layout::CountsRow};
use crate::{
    clock::Timestamp,
    identity::Identity,
    mqtt::{
        SessionEpoch,
        packet::{QoS, Version},
        topics,
    },
};

/// Messages that the live feed of a connection holds, one more than that with its last word.
pub(super) const FEED_MESSAGES: usize = 128;

/// After an unclean stop the places in a queue go on so far behind the last one that is known.
///
/// A QoS 1 message is sent while its row is still on its way to the disk; after a crash the row may
/// be gone while the device's PUBACK is still under way. Were its packet id given to another
/// message at once, that PUBACK would settle the wrong one.
pub(super) const UNCLEAN_JUMP: u64 = 16_384;

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) sessions: HashMap<Identity, Entry>,
    /// Messages and bytes that are retained for a device.
    pub(super) retained: HashMap<Identity, (u32, u64)>,
    /// How often this file was not closed in order.
    pub(super) unclean_stops: u64,
}

/// One session.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) epoch: SessionEpoch,
    pub(super) version: Version,
    pub(super) expiry: SessionExpiry,
    /// Set while no connection holds it and it does not live for ever.
    pub(super) deadline: Option<Timestamp>,
    pub(super) created_at: Timestamp,
    pub(super) subscriptions: Vec<Subscription>,
    pub(super) next_seq: u64,
    /// No message in the queue has a lower seq than this.
    pub(super) oldest_seq: u64,
    pub(super) messages: u32,
    pub(super) bytes: u64,
    pub(super) expired: u64,
    pub(super) refused: u64,
    pub(super) feed: Option<Feed>,
}

impl Entry {
    pub(super) fn new(
        epoch: SessionEpoch,
        version: Version,
        expiry: SessionExpiry,
        created_at: Timestamp,
    ) -> Self {
        Self {
            epoch,
            version,
            expiry,
            deadline: None,
            created_at,
            subscriptions: Vec::new(),
            next_seq: 1,
            oldest_seq: 1,
            messages: 0,
            bytes: 0,
            expired: 0,
            refused: 0,
            feed: None,
        }
    }

    /// Whether a connection holds it.
    pub(super) fn is_live(&self) -> bool {
        self.feed
            .as_ref()
            .is_some_and(|feed| !feed.sender.is_closed())
    }

    /// Whether its time is over.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The earlier of the session's end and the message's.
    pub(super) fn until(&self, message: Option<Timestamp>) -> Option<Timestamp> {
        match (self.deadline, message) {
            (Some(session), Some(message)) => Some(session.min(message)),
            (one, other) => one.or(other),
        }
    }

    /// What all subscriptions that match `topic` grant together; `None` when none does.
    pub(super) fn grant(&self, topic: &str) -> Option<Grant> {
        let mut grant: Option<Grant> = None;
        for subscription in &self.subscriptions {
            if !topics::matches(&subscription.filter, topic) {
                continue;
            }
            let grant = grant.get_or_insert_default();
            grant.qos = grant.qos.max(subscription.options.qos);
            grant.retain_as_published |= subscription.options.retain_as_published;
            grant.ids.extend(subscription.id);
        }
        grant
    }

    pub(super) fn counts(&self, unclean_stops: u64) -> CountsRow {
        CountsRow {
            next_seq: self.next_seq,
            messages: self.messages,
            bytes: self.bytes,
            expired: self.expired,
            unclean_stops,
        }
    }

    pub(super) fn summary(&self) -> SessionSummary {
        SessionSummary {
            epoch: self.epoch,
            connected: self.is_live(),
            created_at: self.created_at,
            expires_at: self.deadline,
            subscriptions: self.subscriptions.clone(),
            queued_messages: self.messages,
            queued_bytes: self.bytes,
            expired_messages: self.expired,
            refused_messages: self.refused,
        }
    }
}

/// What overlapping subscriptions grant together: one delivery, the highest QoS, all ids.
#[derive(Debug, Default)]
pub(super) struct Grant {
    pub(super) qos: QoS,
    pub(super) retain_as_published: bool,
    pub(super) ids: Vec<u32>,
}

/// The way to the connection that holds a session. Only the writer thread sends, so that the room
/// it sees can only grow.
#[derive(Debug)]
pub(super) struct Feed {
    sender: mpsc::Sender<Delivery>,
    /// Silent: the connection has to read the queue first.
    pub(super) lagging: bool,
}

impl Feed {
    pub(super) fn new(lagging: bool) -> (Self, mpsc::Receiver<Delivery>) {
        let (sender, receiver) = mpsc::channel(FEED_MESSAGES + 1);
        (Self { sender, lagging }, receiver)
    }

    /// Whether it would take a message.
    pub(super) fn has_room(&self) -> bool {
        !self.lagging && self.sender.capacity() > 1
    }

    /// Sends it, or says `Lagging` as its last word; false when the message did not go.
    pub(super) fn push(&mut self, delivery: Delivery) -> bool {
        if self.has_room() {
            return self.sender.try_send(delivery).is_ok();
        }
        self.silence();
        false
    }

    /// Makes the connection read the queue.
    pub(super) fn silence(&mut self) {
        if !self.lagging {
            self.lagging = true;
            // the last place is kept for this
            let _ = self.sender.try_send(Delivery::Lagging);
        }
    }

    /// Makes the connection read the queue, even if it was told so before and has begun.
    pub(super) fn silence_again(&mut self) {
        self.lagging = true;
        // no room: it has not read the last one yet
        let _ = self.sender.try_send(Delivery::Lagging);
    }
}
