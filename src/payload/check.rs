//! The one validator: whatever a value came in as, the same rules make a [`Value`] of it.
//!
//! [`Source`] is an element as it came (BSON or JSON); [`individual`] and [`object`] hold it
//! against the declared types. Sizes: a string or blob by itself has at most [`BYTES_MAX`] bytes,
//! an array at most [`ELEMENTS_MAX`] elements; an element that is too large counts as one of the
//! wrong type, as Astarte does.

use bytes::Bytes;

use super::{Value, ValueType};
use crate::clock::Timestamp;

/// Most bytes of a string or a blob.
pub const BYTES_MAX: usize = 65_536;
/// Most elements of an array.
pub const ELEMENTS_MAX: usize = 1024;

/// Why a value is not one of its mapping. `name` gives Astarte's name of the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// Wrong type, out of range, or an object where a single value belongs and the reverse.
    #[error("{}expected {expected}, found {found}", place(key.as_deref()))]
    UnexpectedType {
        /// Member of an object, if it is one.
        key: Option<String>,
        /// What the interface declares: the name of a type, or `object`.
        expected: &'static str,
        /// What came, in words.
        found: &'static str,
    },
    /// A string or blob above [`BYTES_MAX`], an array above [`ELEMENTS_MAX`].
    #[error(
        "{}is too large: at most {BYTES_MAX} bytes or {ELEMENTS_MAX} elements",
        place(key.as_deref())
    )]
    SizeExceeded {
        /// Member of an object, if it is one.
        key: Option<String>,
    },
    /// An object has a member that the interface does not declare.
    #[error("the object has the key {key:?}, which the interface does not declare")]
    UnexpectedKey {
        /// The key.
        key: String,
    },
    /// An object lacks a member that the interface requires.
    #[error("the object lacks the required key {key:?}")]
    MissingKey {
        /// The key.
        key: String,
    },
}

impl ValueError {
    /// Astarte's name of the error.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::UnexpectedType { .. } => "unexpected_value_type",
            Self::SizeExceeded { .. } => "value_size_exceeded",
            Self::UnexpectedKey { .. } => "unexpected_object_key",
            Self::MissingKey { .. } => "missing_required_mapping",
        }
    }

    /// The same error, of a member of an object.
    fn of_member(self, name: &str) -> Self {
        match self {
            Self::UnexpectedType {
                expected, found, ..
            } => Self::UnexpectedType {
                key: Some(name.to_owned()),
                expected,
                found,
            },
            Self::SizeExceeded { .. } => Self::SizeExceeded {
                key: Some(name.to_owned()),
            },
            other => other,
        }
    }
}

fn place(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| format!("{key:?}: "))
}

/// What was found instead, in words.
pub(super) type Found = &'static str;

/// The words for an integer that the type cannot hold.
pub(super) const OUT_OF_RANGE: Found = "an integer out of range";
/// The words for NaN and the infinities.
pub(super) const NOT_FINITE: Found = "a number that is not finite";
/// The words for a time that cannot be printed.
pub(super) const OUT_OF_YEARS: Found = "a time outside the years 0 to 9999";

/// One element as it came, whatever its encoding.
pub(super) trait Source<'a>: Sized {
    /// Whether it is null.
    fn is_null(&self) -> bool;
    /// What it is, in words.
    fn found(&self) -> Found;
    /// As a double; integers are doubles too.
    fn double(&self) -> Result<f64, Found>;
    /// As an integer of 32 bits.
    fn integer(&self) -> Result<i32, Found>;
    /// As an integer of 64 bits.
    fn long_integer(&self) -> Result<i64, Found>;
    /// As a boolean.
    fn boolean(&self) -> Result<bool, Found>;
    /// As text.
    fn string(&self) -> Result<&'a str, Found>;
    /// As bytes.
    fn blob(&self) -> Result<Bytes, Found>;
    /// As a point of time, whole milliseconds.
    fn time(&self) -> Result<Timestamp, Found>;
    /// As an array.
    fn elements(&self) -> Result<Box<dyn Iterator<Item = Self> + 'a>, Found>;
}

/// Reads `source` as a single value of `value_type`.
pub(super) fn individual<'a, S: Source<'a>>(
    source: &S,
    value_type: ValueType,
) -> Result<Value, ValueError> {
    let expected = value_type.name();
    let unexpected = |found| ValueError::UnexpectedType {
        key: None,
        expected,
        found,
    };
    let value = match value_type {
        ValueType::Double => source.double().map(Value::Double),
        ValueType::Integer => source.integer().map(Value::Integer),
        ValueType::Boolean => source.boolean().map(Value::Boolean),
        ValueType::LongInteger => source.long_integer().map(Value::LongInteger),
        ValueType::DateTime => source.time().map(Value::DateTime),
        ValueType::String => source.string().map(|text| Value::String(text.to_owned())),
        ValueType::BinaryBlob => source.blob().map(Value::BinaryBlob),
        array => return elements(source, array),
    }
    .map_err(unexpected)?;
    let bytes = match &value {
        Value::String(text) => text.len(),
        Value::BinaryBlob(blob) => blob.len(),
        _ => 0,
    };
    if bytes > BYTES_MAX {
        Err(ValueError::SizeExceeded { key: None })
    } else {
        Ok(value)
    }
}

fn elements<'a, S: Source<'a>>(source: &S, array: ValueType) -> Result<Value, ValueError> {
    match array {
        ValueType::DoubleArray => all(source, array, S::double).map(Value::DoubleArray),
        ValueType::IntegerArray => all(source, array, S::integer).map(Value::IntegerArray),
        ValueType::BooleanArray => all(source, array, S::boolean).map(Value::BooleanArray),
        ValueType::LongIntegerArray => {
            all(source, array, S::long_integer).map(Value::LongIntegerArray)
        }
        ValueType::DateTimeArray => all(source, array, S::time).map(Value::DateTimeArray),
        ValueType::BinaryBlobArray => {
            let small = |blob: Bytes| (blob.len() <= BYTES_MAX).then_some(blob);
            all(source, array, |one| {
                small(one.blob()?).ok_or("an element that is too large")
            })
            .map(Value::BinaryBlobArray)
        }
        // single values do not come here
        _ => {
            let small = |text: &str| (text.len() <= BYTES_MAX).then(|| text.to_owned());
            all(source, array, |one| {
                small(one.string()?).ok_or("an element that is too large")
            })
            .map(Value::StringArray)
        }
    }
}

fn all<'a, S: Source<'a>, T>(
    source: &S,
    array: ValueType,
    read: impl Fn(&S) -> Result<T, Found>,
) -> Result<Vec<T>, ValueError> {
    let unexpected = |found| ValueError::UnexpectedType {
        key: None,
        expected: array.name(),
        found,
    };
    // the number is looked at first, so that a huge array is refused before it is copied
    let count = source
        .elements()
        .map_err(unexpected)?
        .take(ELEMENTS_MAX + 1)
        .count();
    if count > ELEMENTS_MAX {
        return Err(ValueError::SizeExceeded { key: None });
    }
    let mut values = Vec::with_capacity(count);
    for element in source.elements().map_err(unexpected)? {
        values.push(read(&element).map_err(unexpected)?);
    }
    Ok(values)
}

/// The types that the members of an object may have.
pub trait ObjectTypes {
    /// The type of the member of that key; `None` when the interface does not declare it.
    fn member(&self, key: &str) -> Option<ValueType>;
    /// The keys that must be there.
    fn required(&self) -> impl Iterator<Item = &str>;
}

/// Reads `members` as an object of `types`. The first fault found is told.
pub(super) fn object<'a, S: Source<'a>>(
    members: impl Iterator<Item = (&'a str, S)>,
    types: &impl ObjectTypes,
) -> Result<Value, ValueError> {
    let mut read = Vec::new();
    for (key, member) in members {
        let value_type = types.member(key).ok_or_else(|| ValueError::UnexpectedKey {
            key: key.to_owned(),
        })?;
        let value = if member.is_null() {
            None
        } else {
            Some(individual(&member, value_type).map_err(|error| error.of_member(key))?)
        };
        read.push((key.to_owned(), value));
    }
    read.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let missing = |key: &&str| {
        read.binary_search_by(|(known, _)| known.as_str().cmp(key))
            .is_err()
    };
    match types.required().find(missing) {
        Some(key) => Err(ValueError::MissingKey {
            key: key.to_owned(),
        }),
        None => Ok(Value::Object(read)),
    }
}

/// The error for a single value where an object belongs, and the reverse.
pub(super) const fn wrong_aggregation(expected: &'static str, found: Found) -> ValueError {
    ValueError::UnexpectedType {
        key: None,
        expected,
        found,
    }
}
