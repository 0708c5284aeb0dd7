//! BSON as devices send it: taken apart once, checked whole, without recursion over what it holds.
//!
//! Only `bson::RawDocument` is used: the crate's owned documents recurse, and 10 KB of nesting
//! would end the process. The walk here goes [`LEVELS_MAX`] levels down and no further. It refuses
//! what Astarte's decoder refuses and the crate lets through: array keys other than 0, 1, 2, …, a
//! key that comes twice, types that no value has, binary subtypes 7 to 127, odd NaNs.

use ::bson::{
    RawBsonRef, RawDocument,
    error::Error as BsonError,
    raw::{RawElement, RawIter},
    spec::ElementType,
};
use bytes::Bytes;

use super::{
    Value, ValueType,
    check::{self, Found, NOT_FINITE, OUT_OF_RANGE, OUT_OF_YEARS, ObjectTypes, Source, ValueError},
};
use crate::clock::Timestamp;

/// Documents and arrays inside each other: the envelope, an object, an array in it.
const LEVELS_MAX: u8 = 3;
/// The NaN that Astarte's decoder knows; it is decoded, and refused by its type.
const CANONICAL_NAN: u64 = 0x7ff8_0000_0000_0000;

/// Why a payload is not BSON of the form that values have: `undecodable_bson_payload`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Undecodable {
    /// Lengths, tags, UTF-8 or terminators are wrong.
    #[error("is not BSON: {0}")]
    Malformed(String),
    /// An element has a type that no value of Astarte has.
    #[error("has an element of the foreign type {0:#04x}")]
    ForeignType(u8),
    /// Binary data of a subtype that is not assigned to data.
    #[error("has binary data of the foreign subtype {0:#04x}")]
    ForeignSubtype(u8),
    /// Documents or arrays inside each other, more than [`LEVELS_MAX`].
    #[error("is nested more than {LEVELS_MAX} levels deep")]
    TooDeep,
    /// The keys of an array are not "0", "1", "2", ….
    #[error("has an array whose keys do not count from 0")]
    ArrayKeys,
    /// A document has a key twice.
    #[error("has a key twice")]
    DuplicateKey,
    /// A NaN other than the canonical one.
    #[error("has a NaN that is not the canonical one")]
    OddNan,
}

impl Undecodable {
    /// Astarte's name of the error.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        "undecodable_bson_payload"
    }
}

impl From<BsonError> for Undecodable {
    fn from(error: BsonError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// A data payload, its BSON known to be sound: value, and time if it carries one.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    body: Body<'a>,
    millis: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    /// No payload at all, or null.
    Unset,
    /// The element `v`.
    Value(RawBsonRef<'a>),
    /// `v` is a blob of no bytes, and neither time nor metadata come with it: a value where blobs
    /// are declared, an unset elsewhere.
    EmptyBlob(RawBsonRef<'a>),
    /// There is no `v`: the document itself is the object.
    Whole(&'a RawDocument),
}

/// What a payload says about its path.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// It has this value.
    Value(Value),
    /// It has none any more.
    Unset,
}

/// Takes the payload of a data message apart. No bytes at all are an unset.
///
/// # Errors
/// When it is not BSON of the form that values have.
pub fn decode(payload: &[u8]) -> Result<Envelope<'_>, Undecodable> {
    if payload.is_empty() {
        return Ok(Envelope {
            body: Body::Unset,
            millis: None,
        });
    }
    let document = RawDocument::from_bytes(payload)?;
    walk(document.iter_elements(), Keys::Names, 1)?;
    envelope(document)
}

/// What the keys of a document are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    Names,
    Indices,
}

/// Checks all elements, at most [`LEVELS_MAX`] levels down.
fn walk(elements: RawIter<'_>, keys: Keys, level: u8) -> Result<(), Undecodable> {
    if level > LEVELS_MAX {
        return Err(Undecodable::TooDeep);
    }
    let mut names = Vec::new();
    for (index, element) in elements.enumerate() {
        let element = element?;
        match keys {
            Keys::Names => names.push(element.key().as_str()),
            Keys::Indices if is_index(element.key().as_str(), index) => {}
            Keys::Indices => return Err(Undecodable::ArrayKeys),
        }
        match checked(&element)? {
            RawBsonRef::Document(inner) => walk(inner.iter_elements(), Keys::Names, level + 1)?,
            RawBsonRef::Array(inner) => walk(inner.iter_elements(), Keys::Indices, level + 1)?,
            _ => {}
        }
    }
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Undecodable::DuplicateKey);
    }
    Ok(())
}

fn is_index(key: &str, index: usize) -> bool {
    let canonical = key == "0" || key.starts_with(|first: char| matches!(first, '1'..='9'));
    canonical && key.parse() == Ok(index)
}

/// The element's value, when its type is one that values have.
fn checked<'a>(element: &RawElement<'a>) -> Result<RawBsonRef<'a>, Undecodable> {
    match element.element_type() {
        ElementType::Double
        | ElementType::String
        | ElementType::EmbeddedDocument
        | ElementType::Array
        | ElementType::Binary
        | ElementType::Boolean
        | ElementType::DateTime
        | ElementType::Null
        | ElementType::Int32
        | ElementType::Int64 => {}
        foreign => return Err(Undecodable::ForeignType(foreign as u8)),
    }
    let value = element.value()?;
    match value {
        RawBsonRef::Double(number) if number.is_nan() && number.to_bits() != CANONICAL_NAN => {
            Err(Undecodable::OddNan)
        }
        RawBsonRef::Binary(binary) => match u8::from(binary.subtype) {
            foreign @ 7..=0x7f => Err(Undecodable::ForeignSubtype(foreign)),
            _ => Ok(value),
        },
        _ => Ok(value),
    }
}

fn envelope(document: &RawDocument) -> Result<Envelope<'_>, Undecodable> {
    let (mut value, mut millis, mut metadata) = (None, None, false);
    for element in document.iter_elements() {
        let element = element?;
        match (element.key().as_str(), element.value()?) {
            ("v", v) => value = Some(v),
            ("t", RawBsonRef::DateTime(at)) => millis = Some(at.timestamp_millis()),
            ("m", RawBsonRef::Document(_)) => metadata = true,
            // other keys, and a `t` or `m` of another type, mean nothing
            _ => {}
        }
    }
    let body = match value {
        None => {
            return Ok(Envelope {
                body: Body::Whole(document),
                millis: None,
            });
        }
        Some(RawBsonRef::Null) => Body::Unset,
        Some(v @ RawBsonRef::Binary(blob))
            if blob.bytes.is_empty() && millis.is_none() && !metadata =>
        {
            Body::EmptyBlob(v)
        }
        Some(v) => Body::Value(v),
    };
    Ok(Envelope { body, millis })
}

impl Envelope<'_> {
    /// The time that the payload carries; `None` when it carries none. Ask only where the mapping
    /// has explicit timestamps: elsewhere it means nothing, not even when it is out of range.
    ///
    /// # Errors
    /// `UnexpectedType` when it lies outside the years 0 to 9999.
    pub fn timestamp(&self) -> Result<Option<Timestamp>, ValueError> {
        let found = OUT_OF_YEARS;
        let outside = || ValueError::UnexpectedType {
            key: Some("t".into()),
            expected: "datetime",
            found,
        };
        self.millis
            .map(|millis| Timestamp::from_millis(millis).ok_or_else(outside))
            .transpose()
    }

    /// The content, for a mapping of an individual interface.
    ///
    /// # Errors
    /// When the value is not one of `value_type`.
    pub fn individual(&self, value_type: ValueType) -> Result<Content, ValueError> {
        let element = match self.body {
            Body::EmptyBlob(blob) if value_type == ValueType::BinaryBlob => blob,
            Body::Unset | Body::EmptyBlob(_) => return Ok(Content::Unset),
            Body::Whole(_) => {
                let found = "a document without \"v\"";
                return Err(check::wrong_aggregation(value_type.name(), found));
            }
            Body::Value(element) => element,
        };
        check::individual(&element, value_type).map(Content::Value)
    }

    /// The content, for an interface of object aggregation. Members that are missing stay missing,
    /// null members are `None`.
    ///
    /// # Errors
    /// When a member is not one of `types`, or a required one is missing.
    pub fn object(&self, types: &impl ObjectTypes) -> Result<Content, ValueError> {
        let document = match self.body {
            Body::Unset | Body::EmptyBlob(_) => return Ok(Content::Unset),
            Body::Whole(document) | Body::Value(RawBsonRef::Document(document)) => document,
            Body::Value(element) => {
                return Err(check::wrong_aggregation("object", element.found()));
            }
        };
        // `decode` has seen every element: none fails now
        let members = document
            .iter()
            .filter_map(Result::ok)
            .map(|(key, member)| (key.as_str(), member));
        check::object(members, types).map(Content::Value)
    }
}

impl<'a> Source<'a> for RawBsonRef<'a> {
    fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    fn found(&self) -> Found {
        match self {
            Self::Double(number) if number.is_finite() => "double",
            Self::Double(_) => NOT_FINITE,
            Self::Int32(_) => "integer",
            Self::Int64(_) => "longinteger",
            Self::Boolean(_) => "boolean",
            Self::String(_) => "string",
            Self::Binary(_) => "binaryblob",
            Self::DateTime(_) => "datetime",
            Self::Array(_) => "array",
            Self::Document(_) => "document",
            Self::Null => "null",
            _ => "a foreign type",
        }
    }

    fn double(&self) -> Result<f64, Found> {
        match *self {
            Self::Double(number) if number.is_finite() => Ok(number),
            Self::Int32(number) => Ok(f64::from(number)),
            #[expect(
                clippy::cast_precision_loss,
                reason = "a double holds what a double holds"
            )]
            Self::Int64(number) => Ok(number as f64),
            _ => Err(self.found()),
        }
    }

    fn integer(&self) -> Result<i32, Found> {
        match *self {
            Self::Int32(number) => Ok(number),
            Self::Int64(number) => number.try_into().map_err(|_| OUT_OF_RANGE),
            _ => Err(self.found()),
        }
    }

    fn long_integer(&self) -> Result<i64, Found> {
        match *self {
            Self::Int32(number) => Ok(i64::from(number)),
            Self::Int64(number) => Ok(number),
            _ => Err(self.found()),
        }
    }

    fn boolean(&self) -> Result<bool, Found> {
        if let Self::Boolean(truth) = *self {
            Ok(truth)
        } else {
            Err(self.found())
        }
    }

    fn string(&self) -> Result<&'a str, Found> {
        if let Self::String(text) = *self {
            Ok(text)
        } else {
            Err(self.found())
        }
    }

    fn blob(&self) -> Result<Bytes, Found> {
        match *self {
            Self::Binary(binary) => Ok(Bytes::copy_from_slice(binary.bytes)),
            _ => Err(self.found()),
        }
    }

    fn time(&self) -> Result<Timestamp, Found> {
        let millis = match *self {
            Self::DateTime(at) => at.timestamp_millis(),
            Self::Int32(number) => i64::from(number),
            Self::Int64(number) => number,
            _ => return Err(self.found()),
        };
        Timestamp::from_millis(millis).ok_or(OUT_OF_YEARS)
    }

    fn elements(&self) -> Result<Box<dyn Iterator<Item = Self> + 'a>, Found> {
        match *self {
            // `decode` has seen every element: none fails now
            Self::Array(array) => Ok(Box::new(array.into_iter().filter_map(Result::ok))),
            _ => Err(self.found()),
        }
    }
}
