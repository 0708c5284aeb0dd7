//! The will of a connection: kept until the connection ends, then published once or dropped.
//!
//! A will is a publish like any other: its topic was looked at when CONNECT came, what it may say
//! is judged at the moment when it fires.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use bytestring::ByteString;

use super::super::{
    Denial,
    acl::{Acl, OwnershipLookup, Verdict},
    packet::Will,
    sessions::SessionExpiry,
};
use crate::interface::Introspection;

/// A will that is due, perhaps after a delay.
#[derive(Debug, PartialEq)]
pub struct PendingWill {
    /// Wait so long; a new connection that resumes the session within that time drops the will
    /// [MQTT5-3.1.3-9]. Never longer than the session lives.
    pub delay: Duration,
    will: Will,
    introspection: Arc<Introspection>,
}

/// A will as it is handed to the engine: without packet id, without anybody to answer.
#[derive(Debug, PartialEq)]
pub struct FiringWill {
    /// Inside the own subtree.
    pub topic: ByteString,
    /// Payload.
    pub payload: Bytes,
    /// Set when the ACL refuses it now.
    pub denied: Option<Denial>,
}

impl PendingWill {
    pub(super) fn new(
        will: Will,
        erase: bool,
        expiry: SessionExpiry,
        introspection: Arc<Introspection>,
    ) -> Self {
        let asked = Duration::from_secs(will.delay.into());
        let delay = match expiry {
            SessionExpiry::WithConnection => Duration::ZERO,
            SessionExpiry::After(_) | SessionExpiry::Never if erase => Duration::ZERO,
            SessionExpiry::After(life) => asked.min(life),
            SessionExpiry::Never => asked,
        };
        Self {
            delay,
            will,
            introspection,
        }
    }

    /// Fires it. `None` when its topic is not the device's own, which CONNECT has excluded.
    #[must_use]
    pub fn fire(self, acl: &Acl<'_>, ownership: &OwnershipLookup<'_>) -> Option<FiringWill> {
        let denied = match acl.publish(&self.introspection, ownership, &self.will.topic) {
            Verdict::Allowed => None,
            Verdict::Denied(denial) => Some(denial),
            Verdict::Foreign => return None,
        };
        Some(FiringWill {
            topic: self.will.topic,
            payload: self.will.payload,
            denied,
        })
    }
}
