//! Interface documents: read, checked by every rule, compiled for lookup. Pure.
//!
//! An [`Interface`] obeys all rules of its kind; [`Interface::resolve`] finds the mapping of a path
//! without allocation. [`Introspection`] is what a device declares of itself.

mod introspection;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

pub use introspection::{Introspection, MajorMinor};

use crate::payload::ValueType;

/// Which interface: its name and major version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InterfaceKey {
    /// Interface name.
    pub name: Arc<str>,
    /// Major version.
    pub major: u32,
}

impl fmt::Display for InterfaceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} v{}", self.name, self.major)
    }
}

/// Who writes the values of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ownership {
    /// The device.
    Device,
    /// The server, through AppEngine.
    Server,
}

/// What kind of values an interface carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceType {
    /// A stream of values with time.
    Datastream,
    /// The newest value of each path, synchronised.
    Properties,
}

/// Whether a message carries one value or an object of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aggregation {
    /// One value for each message.
    #[default]
    Individual,
    /// One object for each message.
    Object,
}

/// How surely a datastream value is delivered; fixes the QoS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reliability {
    /// QoS 0.
    #[default]
    Unreliable,
    /// QoS 1.
    Guaranteed,
    /// QoS 2.
    Unique,
}

/// What a device does with values that it cannot send; of no effect on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are Astarte's")]
pub enum Retention {
    #[default]
    Discard,
    Volatile,
    Stored,
}

/// One endpoint of an interface and the rules for its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Endpoint, such as `/%{probe}/celsius`.
    pub endpoint: Arc<str>,
    /// Type of its values.
    pub value_type: ValueType,
    /// Reliability; properties are always `Unique` on the wire.
    pub reliability: Reliability,
    /// Retention on the device.
    pub retention: Retention,
    /// Seconds that a value waits for delivery; 0 is without limit.
    pub expiry: u32,
    /// `database_retention_ttl` in seconds when the policy is `use_ttl`.
    pub database_retention_ttl: Option<u32>,
    /// Whether values carry their own time.
    pub explicit_timestamp: bool,
    /// Whether a property may be unset.
    pub allow_unset: bool,
    /// Whether an object must carry this key.
    pub required: bool,
    /// `description`, if given.
    pub description: Option<String>,
    /// `doc`, if given.
    pub doc: Option<String>,
}
