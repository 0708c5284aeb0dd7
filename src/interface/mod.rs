//! Interface documents: read, checked by every rule, compiled for lookup. Pure.
//!
//! An [`Interface`] obeys all rules of its kind (`document`, `conflicts`); [`Interface::resolve`]
//! finds the mapping of a path without allocation (`lookup`); [`check_update`] says whether a newer
//! minor may replace an installed one. [`Introspection`] is what a device declares of itself.

mod conflicts;
mod document;
mod errors;
mod fields;
mod introspection;
mod lookup;
#[cfg(test)]
mod tests;
mod update;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

pub use errors::{EndpointConflict, FieldErrors, InvalidInterface};
pub use introspection::{
    Introspection, IntrospectionDiff, InvalidIntrospection, MajorMinor, MinorUpdate,
};
pub use lookup::PathError;
pub use update::{UpdateRefused, check_update};

use crate::payload::{ObjectTypes, ValueType};
use lookup::Lookup;

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

impl Mapping {
    /// The last segment of the endpoint: the key of the value in an object.
    #[must_use]
    pub fn key(&self) -> &str {
        self.endpoint.rsplit('/').next().unwrap_or_default()
    }
}

/// An interface that obeys every rule, with its lookup.
#[derive(Clone, Debug)]
pub struct Interface {
    key: InterfaceKey,
    minor: u32,
    kind: InterfaceType,
    ownership: Ownership,
    aggregation: Aggregation,
    description: Option<String>,
    doc: Option<String>,
    mappings: Vec<Mapping>,
    lookup: Lookup,
    /// Of an object: its mappings by key, sorted.
    members: Vec<usize>,
}

impl Interface {
    /// Longest name, in bytes (a name is ASCII).
    pub const NAME_BYTES_MAX: usize = 128;
    /// Most mappings.
    pub const MAPPINGS_MAX: usize = 1024;
    /// Most segments of an endpoint.
    pub const SEGMENTS_MAX: usize = 64;

    /// Name and major version.
    #[must_use]
    pub const fn key(&self) -> &InterfaceKey {
        &self.key
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key.name
    }

    /// Major version.
    #[must_use]
    pub const fn major(&self) -> u32 {
        self.key.major
    }

    /// Minor version.
    #[must_use]
    pub const fn minor(&self) -> u32 {
        self.minor
    }

    /// Datastream or properties.
    #[must_use]
    pub const fn interface_type(&self) -> InterfaceType {
        self.kind
    }

    /// Who writes its values.
    #[must_use]
    pub const fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// Whether a message carries one value or an object.
    #[must_use]
    pub const fn aggregation(&self) -> Aggregation {
        self.aggregation
    }

    /// `description`, if given.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// `doc`, if given.
    #[must_use]
    pub fn doc(&self) -> Option<&str> {
        self.doc.as_deref()
    }

    /// Its mappings, in the order of the document.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping of a path of an individual interface. A `%{placeholder}` stands for any segment
    /// that is not empty; one trailing slash is ignored. Allocates nothing. On an interface of
    /// object aggregation ask [`Interface::resolve_object`].
    ///
    /// # Errors
    /// When the path belongs to no mapping.
    pub fn resolve(&self, path: &str) -> Result<&Mapping, PathError> {
        self.lookup
            .find(path)
            .map(|mapping| &self.mappings[mapping])
    }

    /// Whether objects are published on `path`: the endpoints without their last segment, `/` where
    /// they have one only.
    ///
    /// # Errors
    /// `MappingNotFound` for a full endpoint, another prefix or another depth; `InvalidPath`.
    pub fn resolve_object(&self, path: &str) -> Result<(), PathError> {
        let mut given = lookup::inner(path)?
            .into_iter()
            .flat_map(|rest| rest.split('/'));
        let prefix = self.mappings[0]
            .endpoint
            .rsplit_once('/')
            .map_or("", |(prefix, _)| prefix);
        let fits = segments(prefix).all(|segment| {
            given
                .next()
                .is_some_and(|it| it == segment || conflicts::is_placeholder(segment))
        });
        if fits && given.next().is_none() {
            Ok(())
        } else {
            Err(PathError::MappingNotFound)
        }
    }

    /// The mapping of a key of an object.
    #[must_use]
    pub fn object_mapping(&self, key: &str) -> Option<&Mapping> {
        let place = self
            .members
            .binary_search_by(|index| self.mappings[*index].key().cmp(key));
        place.ok().map(|place| &self.mappings[self.members[place]])
    }

    /// What is legal but odd about it, one line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let shallow = self.aggregation == Aggregation::Object
            && segments(&self.mappings[0].endpoint).count() == 1;
        let text = "endpoints of an object should have two segments or more: AppEngine cannot \
                    address the path /";
        if shallow {
            vec![text.to_owned()]
        } else {
            Vec::new()
        }
    }
}

impl PartialEq for Interface {
    fn eq(&self, other: &Self) -> bool {
        // the lookup follows from the mappings
        self.key == other.key
            && self.minor == other.minor
            && self.kind == other.kind
            && self.ownership == other.ownership
            && self.aggregation == other.aggregation
            && self.description == other.description
            && self.doc == other.doc
            && self.mappings == other.mappings
    }
}

impl ObjectTypes for Interface {
    fn member(&self, key: &str) -> Option<ValueType> {
        self.object_mapping(key).map(|mapping| mapping.value_type)
    }

    fn required(&self) -> impl Iterator<Item = &str> {
        self.mappings
            .iter()
            .filter(|mapping| mapping.required)
            .map(Mapping::key)
    }
}

/// The segments of an endpoint, which begins with a slash.
fn segments(endpoint: &str) -> impl Iterator<Item = &str> {
    endpoint.split('/').skip(1)
}

/// Whether `name` has the form of an interface name: labels between dots, of letters, digits and
/// (in the middle ones) hyphens; the first and the last begin with a letter. Length and reserved
/// names are not looked at: an introspection may hold any.
#[must_use]
pub fn is_interface_name(name: &str) -> bool {
    let begins = |label: &str| label.starts_with(|first: char| first.is_ascii_alphabetic());
    let alphanumeric = |label: &str| label.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let middle = |label: &str| {
        label.starts_with(|first: char| first.is_ascii_alphanumeric())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let (front, last) = name
        .rsplit_once('.')
        .map_or((None, name), |(a, b)| (Some(a), b));
    begins(last)
        && alphanumeric(last)
        && front.is_none_or(|front| {
            let mut labels = front.split('.');
            labels
                .next()
                .is_some_and(|first| begins(first) && alphanumeric(first))
                && labels.all(middle)
        })
}

/// The name as the realm compares it: without hyphens, in lower case. Two interfaces whose names
/// differ and whose normalised names do not cannot be installed side by side.
#[must_use]
pub fn normalised_name(name: &str) -> String {
    name.chars()
        .filter(|char| *char != '-')
        .map(|char| char.to_ascii_lowercase())
        .collect()
}

/// Whether two names are different and yet the same to the realm.
#[must_use]
pub fn names_collide(one: &str, other: &str) -> bool {
    one != other && normalised_name(one) == normalised_name(other)
}
