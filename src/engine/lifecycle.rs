//! Presence: connected and disconnected, durable, in order with the device's messages.

use std::net::IpAddr;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::{Engine, lane::Work};
use crate::{
    clock::Timestamp,
    identity::Identity,
    mqtt::{DisconnectReason, LifecycleSink},
};

#[async_trait]
impl LifecycleSink for Engine {
    async fn connected(&self, identity: &Identity, peer: Option<IpAddr>, at: Timestamp) {
        let (done, told) = oneshot::channel();
        let identity = identity.clone();
        let work = Work::Connected {
            identity: identity.clone(),
            ip: peer,
            at,
            done,
        };
        self.push(&identity, work);
        // an error: the engine is closed
        drop(told.await);
    }

    async fn disconnected(&self, identity: &Identity, reason: DisconnectReason, at: Timestamp) {
        let (done, told) = oneshot::channel();
        let identity = identity.clone();
        let reason = reason.as_str();
        let work = Work::Disconnected {
            identity: identity.clone(),
            reason,
            at,
            done,
        };
        self.push(&identity, work);
        drop(told.await);
    }
}
