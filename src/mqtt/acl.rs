//! Who may say and hear what: the whole access matrix. Pure.
//!
//! | action | allowed |
//! | --- | --- |
//! | publish | the base topic, `capabilities`, `control/emptyCache`, `control/producer/properties`, device-owned interfaces of the introspection |
//! | will | as publish, but at CONNECT only the subtree is looked at; the rest when it fires |
//! | subscribe | any valid filter whose first two levels are literally the device's own |
//! | deliver | `control/consumer/…`, server-owned interfaces of the introspection, in the major that the message was written for |
//!
//! Topics are taken apart by [`DeviceTopic`] alone, which the engine's router uses too, so that the
//! two never disagree about slashes. Nothing here recurses, and each call is linear in its topic.

use super::{
    Denial,
    topics::{filter_shape, is_valid_topic_name},
};
use crate::{
    identity::{ControlTopic, DeviceTopic, Identity},
    interface::{Introspection, Ownership},
};

/// Answers who owns an installed interface of the device's realm; `None`: not installed.
pub type OwnershipLookup<'a> = dyn Fn(&str, u32) -> Option<Ownership> + 'a;

/// The rights of one device.
#[derive(Clone, Copy, Debug)]
pub struct Acl<'a> {
    /// Whose rights.
    pub identity: &'a Identity,
    /// Levels that a topic name or filter may have.
    pub levels_max: usize,
}

/// What becomes of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the engine.
    Allowed,
    /// Inside the own subtree, but not the device's to write: it goes to the engine as refused, so
    /// that the device error is recorded in its place.
    Denied(Denial),
    /// Outside the own subtree: the connection is closed (5.0: 0x87 first), nothing is recorded.
    Foreign,
}

/// Why a topic filter is refused; the code of SUBACK follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeDenied {
    /// No topic filter [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.3-1].
    #[error("is no valid topic filter")]
    Malformed,
    /// Its first two levels are not literally the device's own.
    #[error("is outside the device's own topics")]
    Foreign,
    /// A shared subscription; there are none.
    #[error("is a shared subscription, which is not supported")]
    Shared,
    /// It has more levels than allowed.
    #[error("has too many levels")]
    TooDeep,
}

/// Why a will is refused at CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WillDenied {
    /// No topic name [MQTT-3.3.2-2].
    #[error("the will's topic is no valid topic name")]
    Malformed,
    /// Outside the device's own subtree.
    #[error("the will's topic is outside the device's own topics")]
    Foreign,
}

impl Acl<'_> {
    /// Judges a PUBLISH, or a will that fires.
    #[must_use]
    pub fn publish(
        &self,
        introspection: &Introspection,
        ownership: &OwnershipLookup<'_>,
        topic: &str,
    ) -> Verdict {
        let Some(parsed) = DeviceTopic::parse(self.identity, topic) else {
            return Verdict::Foreign;
        };
        if levels(topic) > self.levels_max {
            return Verdict::Denied(Denial::InvalidPath);
        }
        match parsed {
            DeviceTopic::Introspection
            | DeviceTopic::Capabilities
            | DeviceTopic::Control(ControlTopic::EmptyCache | ControlTopic::ProducerProperties) => {
                Verdict::Allowed
            }
            DeviceTopic::Control(ControlTopic::ConsumerProperties | ControlTopic::Other(_)) => {
                Verdict::Denied(Denial::UnexpectedControl)
            }
            DeviceTopic::Data { path, .. } if path.contains("//") => {
                Verdict::Denied(Denial::InvalidPath)
            }
            DeviceTopic::Data { interface, .. } => {
                match owner(introspection, ownership, interface) {
                    Some(Ownership::Device) => Verdict::Allowed,
                    Some(Ownership::Server) => Verdict::Denied(Denial::ServerOwned),
                    None => Verdict::Denied(Denial::InterfaceNotDeclared),
                }
            }
        }
    }

    /// Whether `topic` lies in the device's own subtree, whatever else may be wrong with it.
    #[must_use]
    pub fn is_own(&self, topic: &str) -> bool {
        DeviceTopic::parse(self.identity, topic).is_some()
    }

    /// Judges the will of a CONNECT. What it may say is judged when it fires.
    ///
    /// # Errors
    /// When its topic is malformed or foreign: the CONNECT is refused.
    pub fn will(&self, topic: &str) -> Result<(), WillDenied> {
        if !is_valid_topic_name(topic) {
            return Err(WillDenied::Malformed);
        }
        if self.is_own(topic) {
            Ok(())
        } else {
            Err(WillDenied::Foreign)
        }
    }

    /// Judges one filter of a SUBSCRIBE. The introspection is not looked at: devices subscribe
    /// before they send it.
    ///
    /// # Errors
    /// When the filter is refused.
    pub fn subscribe(&self, filter: &str) -> Result<(), SubscribeDenied> {
        let shape = filter_shape(filter).map_err(|_| SubscribeDenied::Malformed)?;
        let mut parts = filter.splitn(3, '/');
        let first = parts.next().unwrap_or_default();
        if first == "$share" {
            return Err(SubscribeDenied::Shared);
        }
        let second = parts.next().unwrap_or_default();
        if first != self.identity.realm.as_str() || second.parse() != Ok(self.identity.device) {
            return Err(SubscribeDenied::Foreign);
        }
        if shape.levels > self.levels_max {
            return Err(SubscribeDenied::TooDeep);
        }
        Ok(())
    }

    /// Whether a message on `topic` may be delivered to the device now. `major` is that of the
    /// interface it was written for: to a device that has gone to another one it means nothing.
    #[must_use]
    pub fn deliver(
        &self,
        introspection: &Introspection,
        ownership: &OwnershipLookup<'_>,
        topic: &str,
        major: Option<u32>,
    ) -> bool {
        match DeviceTopic::parse(self.identity, topic) {
            Some(DeviceTopic::Control(ControlTopic::ConsumerProperties)) => true,
            Some(DeviceTopic::Control(ControlTopic::Other(path))) => path.starts_with("/consumer/"),
            Some(DeviceTopic::Data { interface, .. }) => {
                let declared = introspection.version(interface);
                owner(introspection, ownership, interface) == Some(Ownership::Server)
                    && major.is_none_or(|major| declared.is_some_and(|now| now.major == major))
            }
            _ => false,
        }
    }
}

/// Who owns `interface` in the version that is declared, if it is declared and installed.
fn owner(
    introspection: &Introspection,
    ownership: &OwnershipLookup<'_>,
    interface: &str,
) -> Option<Ownership> {
    let version = introspection.version(interface)?;
    ownership(interface, version.major)
}

/// Levels of a topic name; never 0.
fn levels(topic: &str) -> usize {
    topic.bytes().filter(|byte| *byte == b'/').count() + 1
}

#[cfg(test)]
mod tests;
