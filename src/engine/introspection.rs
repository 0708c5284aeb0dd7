//! Introspection: what a device declares replaces what it declared before, whole or not at all.

use std::sync::Arc;

use super::{
    errors::{DeviceError, Refusal},
    judge::{Accepted, Target},
};
use crate::{interface::Introspection, store::Effect};

/// Judges an introspection. Whether the interfaces are installed is not asked.
pub(super) fn judge(target: &Target<'_>) -> Result<Accepted, Refusal> {
    let invalid =
        |why: &dyn std::fmt::Display| Refusal::because(DeviceError::InvalidIntrospection, why);
    let declared = Introspection::parse(target.payload).map_err(|error| invalid(&error))?;
    Ok(Accepted {
        effects: vec![Effect::SetIntrospection(declared.clone())],
        declared: Some(Arc::new(declared)),
    })
}
