//! The fourteen types and their values.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// One of Astarte's fourteen types, named as interface documents do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are Astarte's")]
pub enum ValueType {
    Double,
    Integer,
    Boolean,
    LongInteger,
    String,
    BinaryBlob,
    DateTime,
    DoubleArray,
    IntegerArray,
    BooleanArray,
    LongIntegerArray,
    StringArray,
    BinaryBlobArray,
    DateTimeArray,
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ValueType {
    /// The type's name in interface documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
            Self::LongInteger => "longinteger",
            Self::String => "string",
            Self::BinaryBlob => "binaryblob",
            Self::DateTime => "datetime",
            Self::DoubleArray => "doublearray",
            Self::IntegerArray => "integerarray",
            Self::BooleanArray => "booleanarray",
            Self::LongIntegerArray => "longintegerarray",
            Self::StringArray => "stringarray",
            Self::BinaryBlobArray => "binaryblobarray",
            Self::DateTimeArray => "datetimearray",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|value_type| value_type.name() == name)
    }

    /// All types, in the order of their tags in the store.
    pub const ALL: [Self; 14] = [
        Self::Double,
        Self::Integer,
        Self::Boolean,
        Self::LongInteger,
        Self::String,
        Self::BinaryBlob,
        Self::DateTime,
        Self::DoubleArray,
        Self::IntegerArray,
        Self::BooleanArray,
        Self::LongIntegerArray,
        Self::StringArray,
        Self::BinaryBlobArray,
        Self::DateTimeArray,
    ];
}

/// A value that passed the check of its type.
///
/// `Object` holds the members of an aggregate, keys sorted, `None` for a member that was null. A
/// datetime has whole milliseconds and lies in the years 0 to 9999; a double is finite.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are Astarte's")]
pub enum Value {
    Double(f64),
    Integer(i32),
    Boolean(bool),
    LongInteger(i64),
    String(String),
    BinaryBlob(Bytes),
    DateTime(Timestamp),
    DoubleArray(Vec<f64>),
    IntegerArray(Vec<i32>),
    BooleanArray(Vec<bool>),
    LongIntegerArray(Vec<i64>),
    StringArray(Vec<String>),
    BinaryBlobArray(Vec<Bytes>),
    DateTimeArray(Vec<Timestamp>),
    Object(Vec<(String, Option<Value>)>),
}

impl Value {
    /// The type that it is a value of; `None` for an object.
    #[must_use]
    pub const fn value_type(&self) -> Option<ValueType> {
        Some(match self {
            Self::Double(_) => ValueType::Double,
            Self::Integer(_) => ValueType::Integer,
            Self::Boolean(_) => ValueType::Boolean,
            Self::LongInteger(_) => ValueType::LongInteger,
            Self::String(_) => ValueType::String,
            Self::BinaryBlob(_) => ValueType::BinaryBlob,
            Self::DateTime(_) => ValueType::DateTime,
            Self::DoubleArray(_) => ValueType::DoubleArray,
            Self::IntegerArray(_) => ValueType::IntegerArray,
            Self::BooleanArray(_) => ValueType::BooleanArray,
            Self::LongIntegerArray(_) => ValueType::LongIntegerArray,
            Self::StringArray(_) => ValueType::StringArray,
            Self::BinaryBlobArray(_) => ValueType::BinaryBlobArray,
            Self::DateTimeArray(_) => ValueType::DateTimeArray,
            Self::Object(_) => return None,
        })
    }
}
