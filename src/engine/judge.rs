//! What a message of a device means: one function from the message, what the device declares and
//! what is installed, to what is stored or why not. Nothing here waits, and nothing is changed.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    control, data,
    errors::{DeviceError, Refusal},
    interfaces::RealmInterfaces,
    introspection,
};
use crate::{
    clock::Timestamp,
    identity::{DeviceTopic, Identity},
    interface::{InterfaceKey, Introspection},
    mqtt::Denial,
    store::Effect,
};

/// A message to be judged.
#[derive(Debug)]
pub(super) struct Target<'m> {
    /// From whom.
    pub(super) identity: &'m Identity,
    /// Topic name, inside the device's subtree.
    pub(super) topic: &'m str,
    /// Payload.
    pub(super) payload: &'m Bytes,
    /// Reception stamp.
    pub(super) at: Timestamp,
    /// The broker's ACL has refused it already.
    pub(super) denied: Option<Denial>,
}

/// What a message is about, as far as it is known; for statistics and error rows.
#[derive(Debug, Default)]
pub(super) struct About<'m> {
    /// Interface name in the topic.
    pub(super) interface: Option<&'m str>,
    /// Path in the topic.
    pub(super) path: Option<&'m str>,
    /// The interface and major, once resolved.
    pub(super) key: Option<InterfaceKey>,
    /// What the message counts: payload, interface name and path.
    pub(super) bytes: u64,
}

/// What an accepted message does.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Effects on the store.
    pub(super) effects: Vec<Effect>,
    /// What the device declares from now on.
    pub(super) declared: Option<Arc<Introspection>>,
}

impl From<Effect> for Accepted {
    fn from(effect: Effect) -> Self {
        Self {
            effects: vec![effect],
            declared: None,
        }
    }
}

/// The judgement of a message.
#[derive(Debug)]
pub(super) struct Verdict<'m> {
    pub(super) about: About<'m>,
    pub(super) result: Result<Accepted, Refusal>,
}

/// Judges a message by the introspection before it and one snapshot of the realm's interfaces.
pub(super) fn judge<'m>(
    target: &Target<'m>,
    introspection: &Introspection,
    installed: &RealmInterfaces,
) -> Verdict<'m> {
    let topic = DeviceTopic::parse(target.identity, target.topic);
    let mut about = about(topic, target.payload.len());
    let result = match (target.denied, topic) {
        (Some(denial), _) => Err(Refusal::new(denial.into())),
        (None, Some(DeviceTopic::Introspection)) => introspection::judge(target),
        (None, Some(DeviceTopic::Capabilities)) => control::capabilities(target),
        (None, Some(DeviceTopic::Control(topic))) => control::judge(topic),
        (None, Some(DeviceTopic::Data { interface, path })) => data::judge(
            target,
            interface,
            path,
            introspection,
            installed,
            &mut about,
        ),
        // the broker lets no such message through
        (None, None) => Err(Refusal::because(
            DeviceError::InternalError,
            "topic of another device",
        )),
    };
    Verdict { about, result }
}

fn about(topic: Option<DeviceTopic<'_>>, payload_bytes: usize) -> About<'_> {
    let (interface, path) = match topic {
        Some(DeviceTopic::Data { interface, path }) => (Some(interface), Some(path)),
        Some(DeviceTopic::Control(topic)) => (None, Some(control::path(topic))),
        _ => (None, None),
    };
    let names = interface.map_or(0, str::len) + path.map_or(0, str::len);
    About {
        interface,
        path,
        key: None,
        bytes: (payload_bytes + names) as u64,
    }
}
