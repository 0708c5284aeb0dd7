//! Sessions on disk: subscriptions, the outbound queue, its flow state and retained messages.
//!
//! One writer thread owns every write transaction and commits what came in while the last commit
//! was on its way. What must be on disk before which packet leaves is said at each call.

mod types;

use std::path::Path;

use bytestring::ByteString;

use crate::{
    clock::{SharedClock, Timestamp},
    identity::{Identity, RealmName},
    mqtt::SessionEpoch,
};
pub use types::*;

/// Handle of the session store, cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions {}

#[expect(clippy::unused_async, clippy::todo, unused_variables, missing_docs, clippy::missing_errors_doc, reason = "signatures for now")]
impl Sessions {
    pub fn open(path: &Path, limits: QueueLimits, clock: SharedClock) -> Result<Self, OpenError> {
        todo!()
    }
    pub async fn start(&self, identity: &Identity, request: StartRequest) -> Result<Started, SessionsError> {
        todo!()
    }
    pub async fn subscribe(&self, identity: &Identity, epoch: SessionEpoch, subscriptions: Vec<Subscription>) -> Result<Vec<Result<SubscribeOutcome, QuotaExceeded>>, SessionsError> {
        todo!()
    }
    pub async fn unsubscribe(&self, identity: &Identity, epoch: SessionEpoch, filters: Vec<ByteString>) -> Result<Vec<bool>, SessionsError> {
        todo!()
    }
    pub async fn retained(&self, identity: &Identity, filter: &str) -> Result<Vec<Message>, SessionsError> {
        todo!()
    }
    pub async fn read_queue(&self, identity: &Identity, epoch: SessionEpoch, after: u64, messages_max: usize, bytes_max: usize) -> Result<Vec<Queued>, SessionsError> {
        todo!()
    }
    pub async fn resume_feed(&self, identity: &Identity, epoch: SessionEpoch, last_seq: u64) -> Result<Resume, SessionsError> {
        todo!()
    }
    pub fn mark_sent(&self, identity: &Identity, epoch: SessionEpoch, seq: u64) {
        todo!()
    }
    pub fn settle(&self, identity: &Identity, epoch: SessionEpoch, seq: u64, how: Settled) {
        todo!()
    }
    pub async fn mark_received(&self, identity: &Identity, epoch: SessionEpoch, seq: u64) -> Result<(), SessionsError> {
        todo!()
    }
    pub async fn stop(&self, identity: &Identity, epoch: SessionEpoch, expiry: SessionExpiry, now: Timestamp) -> Result<bool, SessionsError> {
        todo!()
    }
    pub async fn erase(&self, identity: &Identity) -> Result<Option<SessionEpoch>, SessionsError> {
        todo!()
    }
    pub async fn erase_realm(&self, realm: &RealmName) -> Result<Vec<(Identity, SessionEpoch)>, SessionsError> {
        todo!()
    }
    pub async fn enqueue(&self, identity: &Identity, message: Message) -> Result<Enqueued, SessionsError> {
        todo!()
    }
    pub async fn reap(&self, now: Timestamp) -> Result<Reaped, SessionsError> {
        todo!()
    }
    pub async fn summary(&self, identity: &Identity) -> Result<Option<SessionSummary>, SessionsError> {
        todo!()
    }
    pub async fn backup(&self, file: &Path) -> Result<(), SessionsError> {
        todo!()
    }
    pub async fn close(&self) {
        todo!()
    }
}
