//! What a device declares of itself: the interfaces it speaks, and their versions.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::is_interface_name;

/// Version of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MajorMinor {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

impl MajorMinor {
    /// Largest major or minor, the largest that Astarte's database holds.
    pub const NUMBER_MAX: u32 = i32::MAX.cast_unsigned();
}

/// Interface names and their versions, as declared on the device's base topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Introspection(BTreeMap<Arc<str>, MajorMinor>);

/// Why a payload is no introspection: `invalid_introspection`. Nothing of it is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidIntrospection {
    /// Not UTF-8.
    #[error("the introspection is not UTF-8")]
    NotUtf8,
    /// More than [`Introspection::ENTRIES_MAX`] entries.
    #[error(
        "the introspection has more than {} entries",
        Introspection::ENTRIES_MAX
    )]
    TooMany,
    /// An entry that is not `name:major:minor` with numbers from 0 to 2,147,483,647.
    #[error("entry {index} of the introspection is not name:major:minor: {entry:?}")]
    Entry {
        /// Its place, from zero.
        index: usize,
        /// Its first characters.
        entry: String,
    },
}

impl InvalidIntrospection {
    /// Astarte's name of the error.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        "invalid_introspection"
    }
}

/// What one introspection has and another has not, each list sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntrospectionDiff {
    /// Interfaces that are new, or new with this major.
    pub added: Vec<(Arc<str>, MajorMinor)>,
    /// Interfaces that are gone, or gone with this major; with their old versions.
    pub removed: Vec<(Arc<str>, MajorMinor)>,
    /// Interfaces whose minor alone changed.
    pub minor_updated: Vec<MinorUpdate>,
}

/// An interface whose minor changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinorUpdate {
    /// Interface name.
    pub name: Arc<str>,
    /// Its major.
    pub major: u32,
    /// Minor before.
    pub old_minor: u32,
    /// Minor now.
    pub new_minor: u32,
}

impl Introspection {
    /// Most entries of a payload, duplicates counted.
    pub const ENTRIES_MAX: usize = 4096;

    /// Reads the payload of the base topic: entries `name:major:minor` with `;` between, or no
    /// bytes at all. Of a name that comes twice the last entry counts. A leading `+` or zeros of a
    /// number are tolerated, 0:0 is too; numbers end at [`MajorMinor::NUMBER_MAX`] and are never
    /// cut. Whether the interfaces are installed is not asked.
    ///
    /// # Errors
    /// When any entry is wrong, or there are too many.
    pub fn parse(payload: &[u8]) -> Result<Self, InvalidIntrospection> {
        let text = std::str::from_utf8(payload).map_err(|_| InvalidIntrospection::NotUtf8)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut entries = BTreeMap::new();
        for (index, entry) in text.split(';').enumerate() {
            if index >= Self::ENTRIES_MAX {
                return Err(InvalidIntrospection::TooMany);
            }
            let (name, version) =
                parse_entry(entry).ok_or_else(|| InvalidIntrospection::Entry {
                    index,
                    entry: entry.chars().take(64).collect(),
                })?;
            entries.insert(Arc::from(name), version);
        }
        Ok(Self(entries))
    }

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

    /// What changes from this one to `new`. A changed major is a removal and an addition.
    #[must_use]
    pub fn diff(&self, new: &Self) -> IntrospectionDiff {
        let mut diff = IntrospectionDiff::default();
        for (name, version) in new.iter() {
            match self.version(name) {
                Some(old) if old.major == version.major => {
                    if old.minor != version.minor {
                        diff.minor_updated.push(MinorUpdate {
                            name: Arc::clone(name),
                            major: version.major,
                            old_minor: old.minor,
                            new_minor: version.minor,
                        });
                    }
                }
                _ => diff.added.push((Arc::clone(name), version)),
            }
        }
        for (name, version) in self.iter() {
            if new
                .version(name)
                .is_none_or(|now| now.major != version.major)
            {
                diff.removed.push((Arc::clone(name), version));
            }
        }
        diff
    }
}

fn parse_entry(entry: &str) -> Option<(&str, MajorMinor)> {
    let (name, version) = entry.split_once(':')?;
    let (major, minor) = version.split_once(':')?;
    let version = MajorMinor {
        major: number(major)?,
        minor: number(minor)?,
    };
    is_interface_name(name).then_some((name, version))
}

fn number(text: &str) -> Option<u32> {
    // "-0" is Astarte's zero too
    let number: i64 = text.parse().ok()?;
    u32::try_from(number)
        .ok()
        .filter(|number| *number <= MajorMinor::NUMBER_MAX)
}

impl fmt::Display for Introspection {
    /// The form of the wire: `name:major:minor;…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, version)) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ";" };
            write!(f, "{separator}{name}:{}:{}", version.major, version.minor)?;
        }
        Ok(())
    }
}

impl FromIterator<(Arc<str>, MajorMinor)> for Introspection {
    fn from_iter<T: IntoIterator<Item = (Arc<str>, MajorMinor)>>(entries: T) -> Self {
        Self(entries.into_iter().collect())
    }
}
