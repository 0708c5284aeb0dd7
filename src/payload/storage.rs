//! The form in which a store keeps a value: tagged, compact, bit-exact.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 1 | version of the form in the high four bits (1 now), type in the low four |
//! | rest | by type: double and datetime 8 bytes little-endian (IEEE 754; microseconds); boolean 1 byte; integer and longinteger a zigzag LEB128; string and blob a LEB128 length and the bytes |
//!
//! An array is the LEB128 number of its elements and their bodies without tags. An object is the
//! number of its members, each its key (as a string) and its value, tagged; tag 0x10 is a null
//! member. Values of a later version are refused, never guessed.

use bytes::Bytes;

use super::{Value, ValueType};
use crate::clock::Timestamp;

/// High four bits of every tag that this program writes.
const VERSION: u8 = 0x10;
/// Type bits of an object; 0 is the null member, 1 to 14 are [`ValueType`]s.
const OBJECT: u8 = 15;

/// Why bytes of a store are not a value: a later version's form, or damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidStorage {
    /// The first byte names a version that this program does not know.
    #[error("the stored value has the form of version {0}, which this program does not know")]
    UnknownVersion(u8),
    /// The type bits are none that may stand here.
    #[error("the stored value has the unknown type tag {0:#04x}")]
    UnknownTag(u8),
    /// The bytes end early, go on after the end, or hold what cannot be.
    #[error("the stored value is damaged")]
    Damaged,
}

impl Value {
    /// The value in the store's form; [`Value::from_storage`] gives it back bit by bit.
    #[must_use]
    pub fn to_storage(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        write_tagged(&mut out, self);
        out
    }

    /// Reads the store's form.
    ///
    /// # Errors
    /// When the bytes are not what [`Value::to_storage`] of this or an older version wrote.
    pub fn from_storage(bytes: &[u8]) -> Result<Self, InvalidStorage> {
        let mut reader = Reader(bytes);
        let value = match reader.tag()? {
            OBJECT => Self::Object(reader.members()?),
            tag => reader.body(type_of_tag(tag)?)?,
        };
        if reader.0.is_empty() {
            Ok(value)
        } else {
            Err(InvalidStorage::Damaged)
        }
    }
}

/// Tags are places in [`ValueType::ALL`], from 1 on. Never reorder it: stores hold these numbers.
fn type_of_tag(tag: u8) -> Result<ValueType, InvalidStorage> {
    usize::from(tag)
        .checked_sub(1)
        .and_then(|index| ValueType::ALL.get(index))
        .copied()
        .ok_or(InvalidStorage::UnknownTag(tag))
}

fn write_tagged(out: &mut Vec<u8>, value: &Value) {
    let tag = match value {
        Value::Object(_) => OBJECT,
        Value::Double(_) => 1,
        Value::Integer(_) => 2,
        Value::Boolean(_) => 3,
        Value::LongInteger(_) => 4,
        Value::String(_) => 5,
        Value::BinaryBlob(_) => 6,
        Value::DateTime(_) => 7,
        Value::DoubleArray(_) => 8,
        Value::IntegerArray(_) => 9,
        Value::BooleanArray(_) => 10,
        Value::LongIntegerArray(_) => 11,
        Value::StringArray(_) => 12,
        Value::BinaryBlobArray(_) => 13,
        Value::DateTimeArray(_) => 14,
    };
    out.push(VERSION | tag);
    write_body(out, value);
}

fn write_body(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Double(number) => write_double(out, *number),
        Value::Integer(number) => write_integer(out, i64::from(*number)),
        Value::Boolean(truth) => out.push(u8::from(*truth)),
        Value::LongInteger(number) => write_integer(out, *number),
        Value::String(text) => write_bytes(out, text.as_bytes()),
        Value::BinaryBlob(bytes) => write_bytes(out, bytes),
        Value::DateTime(at) => write_time(out, *at),
        Value::DoubleArray(all) => write_all(out, all, |out, number| write_double(out, *number)),
        Value::IntegerArray(all) => {
            write_all(out, all, |out, number| {
                write_integer(out, i64::from(*number));
            });
        }
        Value::BooleanArray(all) => write_all(out, all, |out, truth| out.push(u8::from(*truth))),
        Value::LongIntegerArray(all) => {
            write_all(out, all, |out, number| write_integer(out, *number));
        }
        Value::StringArray(all) => {
            write_all(out, all, |out, text| write_bytes(out, text.as_bytes()));
        }
        Value::BinaryBlobArray(all) => write_all(out, all, |out, bytes| write_bytes(out, bytes)),
        Value::DateTimeArray(all) => write_all(out, all, |out, at| write_time(out, *at)),
        Value::Object(members) => write_all(out, members, |out, (key, member)| {
            write_bytes(out, key.as_bytes());
            match member {
                None => out.push(VERSION),
                Some(value) => write_tagged(out, value),
            }
        }),
    }
}

fn write_all<T>(out: &mut Vec<u8>, all: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    write_length(out, all.len());
    for one in all {
        write(out, one);
    }
}

fn write_double(out: &mut Vec<u8>, number: f64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn write_time(out: &mut Vec<u8>, at: Timestamp) {
    out.extend_from_slice(&at.as_micros().to_le_bytes());
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    write_unsigned(out, length as u64);
}

/// Zigzag, so that small negative numbers stay short.
fn write_integer(out: &mut Vec<u8>, number: i64) {
    write_unsigned(out, (number << 1 ^ number >> 63).cast_unsigned());
}

fn write_unsigned(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(0x80 | low);
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], InvalidStorage> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(InvalidStorage::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, InvalidStorage> {
        Ok(self.take(1)?[0])
    }

    /// The type bits, after the version is checked.
    fn tag(&mut self) -> Result<u8, InvalidStorage> {
        let byte = self.byte()?;
        if byte & 0xf0 == VERSION {
            Ok(byte & 0x0f)
        } else {
            Err(InvalidStorage::UnknownVersion(byte >> 4))
        }
    }

    fn body(&mut self, value_type: ValueType) -> Result<Value, InvalidStorage> {
        Ok(match value_type {
            ValueType::Double => Value::Double(self.double()?),
            ValueType::Integer => Value::Integer(self.integer()?),
            ValueType::Boolean => Value::Boolean(self.boolean()?),
            ValueType::LongInteger => Value::LongInteger(self.long_integer()?),
            ValueType::String => Value::String(self.string()?),
            ValueType::BinaryBlob => Value::BinaryBlob(self.blob()?),
            ValueType::DateTime => Value::DateTime(self.time()?),
            ValueType::DoubleArray => Value::DoubleArray(self.all(Self::double)?),
            ValueType::IntegerArray => Value::IntegerArray(self.all(Self::integer)?),
            ValueType::BooleanArray => Value::BooleanArray(self.all(Self::boolean)?),
            ValueType::LongIntegerArray => Value::LongIntegerArray(self.all(Self::long_integer)?),
            ValueType::StringArray => Value::StringArray(self.all(Self::string)?),
            ValueType::BinaryBlobArray => Value::BinaryBlobArray(self.all(Self::blob)?),
            ValueType::DateTimeArray => Value::DateTimeArray(self.all(Self::time)?),
        })
    }

    fn all<T>(
        &mut self,
        read: impl Fn(&mut Self) -> Result<T, InvalidStorage>,
    ) -> Result<Vec<T>, InvalidStorage> {
        let count = self.length()?;
        // an element has one byte at least: a false count costs no memory
        if count > self.0.len() {
            return Err(InvalidStorage::Damaged);
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// Members of an object, whose values are no objects themselves.
    fn members(&mut self) -> Result<Vec<(String, Option<Value>)>, InvalidStorage> {
        self.all(|reader| {
            let key = reader.string()?;
            let value = match reader.tag()? {
                0 => None,
                tag => Some(reader.body(type_of_tag(tag)?)?),
            };
            Ok((key, value))
        })
    }

    fn eight(&mut self) -> Result<[u8; 8], InvalidStorage> {
        self.take(8)?
            .try_into()
            .map_err(|_| InvalidStorage::Damaged)
    }

    fn double(&mut self) -> Result<f64, InvalidStorage> {
        self.eight().map(f64::from_le_bytes)
    }

    fn time(&mut self) -> Result<Timestamp, InvalidStorage> {
        self.eight()
            .map(i64::from_le_bytes)
            .map(Timestamp::from_micros)
    }

    fn boolean(&mut self) -> Result<bool, InvalidStorage> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(InvalidStorage::Damaged),
        }
    }

    fn unsigned(&mut self) -> Result<u64, InvalidStorage> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(InvalidStorage::Damaged);
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(InvalidStorage::Damaged)
    }

    fn long_integer(&mut self) -> Result<i64, InvalidStorage> {
        let zigzag = self.unsigned()?;
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    fn integer(&mut self) -> Result<i32, InvalidStorage> {
        self.long_integer()?
            .try_into()
            .map_err(|_| InvalidStorage::Damaged)
    }

    fn length(&mut self) -> Result<usize, InvalidStorage> {
        self.unsigned()?
            .try_into()
            .map_err(|_| InvalidStorage::Damaged)
    }

    fn string(&mut self) -> Result<String, InvalidStorage> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| InvalidStorage::Damaged)
    }

    fn blob(&mut self) -> Result<Bytes, InvalidStorage> {
        let length = self.length()?;
        self.take(length).map(Bytes::copy_from_slice)
    }
}
