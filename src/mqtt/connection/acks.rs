//! Where the acks of one connection report to.
//!
//! The engine releases acks from its own threads, many at once after a commit. They are collected
//! here and wake the connection once; it answers all of them in one write. Never more than the
//! session's window and the PUBRELs it lets wait are under way, which bounds the list.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Notify;

use crate::mqtt::{Ack, AckSlot, Outcome, session::Slot};

/// An answered duty: `None` is an ack that was dropped.
pub(super) type Answered = (Slot, Option<Outcome>);

/// Answers that the connection has not seen yet.
#[derive(Debug, Default)]
pub(super) struct AckInbox {
    answered: Mutex<VecDeque<Answered>>,
    arrived: Notify,
}

impl AckInbox {
    /// An ack that reports here.
    pub(super) fn ack(self: &Arc<Self>, slot: Slot) -> Ack {
        Ack::new(InboxSlot {
            inbox: Arc::clone(self),
            slot,
        })
    }

    /// Takes all that has arrived.
    pub(super) fn take(&self) -> VecDeque<Answered> {
        std::mem::take(&mut *self.answered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something has arrived.
    ///
    /// # Cancel safety
    /// It is: an arrival is remembered.
    pub(super) async fn arrival(&self) {
        self.arrived.notified().await;
    }
}

struct InboxSlot {
    inbox: Arc<AckInbox>,
    slot: Slot,
}

impl AckSlot for InboxSlot {
    fn settle(self: Box<Self>, outcome: Option<Outcome>) {
        let mut answered = self
            .inbox
            .answered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let first = answered.is_empty();
        answered.push_back((self.slot, outcome));
        drop(answered);
        if first {
            self.inbox.arrived.notify_one();
        }
    }
}
