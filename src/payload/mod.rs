//! Values and their forms: BSON on the wire, JSON in the APIs, compact bytes in the store. Pure.
//!
//! A device's payload goes through [`decode()`] and then, with the type that its mapping declares,
//! [`Envelope::individual`] or [`Envelope::object`]; what comes from an API goes through
//! [`Value::from_json`]. Both end in one validator (`check`), so that a value gets the same verdict
//! on either way. BSON is read with `bson::RawDocument` alone, at most three levels deep, so that
//! hostile nesting costs nothing. Limits are those of Astarte: 65,536 bytes for a string or blob,
//! 1,024 elements for an array.

mod check;
mod decode;
mod encode;
mod json;
mod storage;
#[cfg(test)]
mod tests;
mod value;

pub use check::{BYTES_MAX, ELEMENTS_MAX, ObjectTypes, ValueError};
pub use decode::{Content, Envelope, Undecodable, decode};
pub use encode::encode;
pub use json::{BigIntegers, Style};
pub use storage::InvalidStorage;
pub use value::{Value, ValueType};
