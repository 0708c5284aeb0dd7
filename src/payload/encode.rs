//! BSON as devices receive it: the type of the mapping, always the same bytes for the same value.

use ::bson::{
    DateTime, RawArrayBuf, RawBinaryRef, RawBsonRef, RawDocumentBuf, raw::CString, raw::cstr,
    spec::BinarySubtype,
};

use super::Value;
use crate::clock::Timestamp;

/// The envelope `{v}`, or `{v, t}` with a time, of a value.
///
/// The element has the type of the value and no other, since devices decode by type: a
/// longinteger stays 64 bits however small, a double is never an integer. Null members of an object
/// are left out.
#[must_use]
pub fn encode(value: &Value, at: Option<Timestamp>) -> Vec<u8> {
    let mut document = RawDocumentBuf::new();
    append(&mut document, &CString::from(cstr!("v")), value);
    if let Some(at) = at {
        document.append(cstr!("t"), time(at));
    }
    document.into_bytes()
}

fn append(document: &mut RawDocumentBuf, key: &CString, value: &Value) {
    match value {
        Value::Double(number) => document.append(key, *number),
        Value::Integer(number) => document.append(key, *number),
        Value::Boolean(truth) => document.append(key, *truth),
        Value::LongInteger(number) => document.append(key, *number),
        Value::String(text) => document.append(key, text.as_str()),
        Value::BinaryBlob(bytes) => document.append(key, blob(bytes)),
        Value::DateTime(stamp) => document.append(key, time(*stamp)),
        Value::DoubleArray(all) => document.append(key, array(all, |one| RawBsonRef::Double(*one))),
        Value::IntegerArray(all) => document.append(key, array(all, |one| RawBsonRef::Int32(*one))),
        Value::BooleanArray(all) => {
            document.append(key, array(all, |one| RawBsonRef::Boolean(*one)));
        }
        Value::LongIntegerArray(all) => {
            document.append(key, array(all, |one| RawBsonRef::Int64(*one)));
        }
        Value::StringArray(all) => document.append(key, array(all, |one| RawBsonRef::String(one))),
        Value::BinaryBlobArray(all) => document.append(key, array(all, |one| blob(one).into())),
        Value::DateTimeArray(all) => {
            document.append(key, array(all, |one| RawBsonRef::DateTime(time(*one))));
        }
        Value::Object(members) => {
            let mut inner = RawDocumentBuf::new();
            for (name, member) in members {
                // keys are endpoint segments: they hold no NUL
                if let (Ok(name), Some(member)) = (CString::try_from(name.clone()), member) {
                    append(&mut inner, &name, member);
                }
            }
            document.append(key, inner);
        }
    }
}

fn array<'a, T>(all: &'a [T], element: impl Fn(&'a T) -> RawBsonRef<'a>) -> RawArrayBuf {
    let mut array = RawArrayBuf::new();
    for one in all {
        array.push(element(one));
    }
    array
}

fn blob(bytes: &[u8]) -> RawBinaryRef<'_> {
    RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    }
}

fn time(at: Timestamp) -> DateTime {
    DateTime::from_millis(at.as_millis())
}
