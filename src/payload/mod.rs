//! Values and their forms: BSON on the wire, JSON in the APIs, compact bytes in the store. Pure.
//!
//! BSON is read with `bson::RawDocument` alone, at most three levels deep, so that hostile nesting
//! costs nothing. Limits are those of Astarte: 65,536 bytes for a string or blob, 1,024 elements
//! for an array.

mod storage;
mod value;

pub use storage::InvalidStorage;
pub use value::{Value, ValueType};
