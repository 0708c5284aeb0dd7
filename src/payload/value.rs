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
        self.serialize(f)
    }
}

/// A value that passed the check of its type.
///
/// `Object` holds the members of an aggregate, keys sorted, `None` for a member that was null.
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
