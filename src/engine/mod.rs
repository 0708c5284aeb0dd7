//! The engine: what a device says is resolved, decoded, validated and committed, then acknowledged.
//!
//! It implements the traits that [`crate::mqtt`] asks for. One stage of the path each: `intake`
//! (bounds), `lane` (order within a device), `batch` (group commit), `introspection`, `data`;
//! beside them the services that the control API calls: `interfaces`, `realms`, `devices`,
//! `pairing`, `reads`, `writes`.

pub mod actor;
mod attempts;
pub mod backup;
pub mod devices;
pub mod live;
pub mod pairing;
pub mod realms;
pub mod tokens;
