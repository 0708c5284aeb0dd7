//! What a device declares of itself: the interfaces it speaks, and their versions.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

/// Version of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MajorMinor {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

/// Interface names and their versions, as declared on the device's base topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Introspection(BTreeMap<Arc<str>, MajorMinor>);

impl Introspection {
    /// The version declared of an interface.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<MajorMinor> {
        self.0.get(name).copied()
    }

    /// All entries, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, MajorMinor)> {
        self.0.iter().map(|(name, version)| (name, *version))
    }

    /// How many interfaces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the device declares nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(Arc<str>, MajorMinor)> for Introspection {
    fn from_iter<T: IntoIterator<Item = (Arc<str>, MajorMinor)>>(entries: T) -> Self {
        Self(entries.into_iter().collect())
    }
}
