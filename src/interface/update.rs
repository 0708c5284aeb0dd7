//! Whether a newer minor may replace an installed interface (spec: life cycle).

use std::collections::HashMap;

use super::{Interface, Mapping, conflicts::blanked};

/// Why an interface may not replace the installed one of the same name and major: HTTP 409.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateRefused {
    /// Type, ownership or aggregation differ.
    #[error("Invalid update: {0} may not change within a major version")]
    KindChanged(&'static str),
    /// The minor is the installed one.
    #[error("Interface minor version was not increased: {0} is installed")]
    NotIncreased(u32),
    /// The minor is lower.
    #[error("Interface downgrade not allowed: minor version {0} is installed")]
    Downgrade(u32),
    /// Installed endpoints are gone.
    #[error("Interface update has missing endpoints: {}", .0.join(", "))]
    MissingEndpoints(Vec<String>),
    /// An installed endpoint changed in what may not change.
    #[error("Interface update contains incompatible endpoint changes: {field} of {endpoint}")]
    IncompatibleEndpoint {
        /// Installed endpoint.
        endpoint: String,
        /// What changed.
        field: &'static str,
    },
}

/// Whether `new` may replace `old`, which has the same name and major. Endpoints may come new, and
/// documentation, `explicit_timestamp`, `retention` and `expiry` may change; nothing else may.
///
/// # Errors
/// The first rule that is broken, in the order of the spec.
pub fn check_update(old: &Interface, new: &Interface) -> Result<(), UpdateRefused> {
    let kinds = [
        ("type", old.kind == new.kind),
        ("ownership", old.ownership == new.ownership),
        ("aggregation", old.aggregation == new.aggregation),
    ];
    if let Some((field, _)) = kinds.into_iter().find(|(_, same)| !same) {
        return Err(UpdateRefused::KindChanged(field));
    }
    if new.minor == old.minor {
        return Err(UpdateRefused::NotIncreased(old.minor));
    }
    if new.minor < old.minor {
        return Err(UpdateRefused::Downgrade(old.minor));
    }
    let by_form: HashMap<String, &Mapping> = new
        .mappings
        .iter()
        .map(|mapping| (blanked(&mapping.endpoint), mapping))
        .collect();
    let mut missing = Vec::new();
    let mut kept = Vec::new();
    for mapping in &old.mappings {
        match by_form.get(&blanked(&mapping.endpoint)) {
            None => missing.push(mapping.endpoint.to_string()),
            Some(newer) => kept.push((mapping, *newer)),
        }
    }
    if !missing.is_empty() {
        return Err(UpdateRefused::MissingEndpoints(missing));
    }
    match kept
        .into_iter()
        .find_map(|(old, new)| Some((old, changed(old, new)?)))
    {
        None => Ok(()),
        Some((mapping, field)) => Err(UpdateRefused::IncompatibleEndpoint {
            endpoint: mapping.endpoint.to_string(),
            field,
        }),
    }
}

/// What changed between two mappings of one form and may not.
fn changed(old: &Mapping, new: &Mapping) -> Option<&'static str> {
    let same = [
        ("endpoint", old.endpoint == new.endpoint),
        ("type", old.value_type == new.value_type),
        ("reliability", old.reliability == new.reliability),
        ("allow_unset", old.allow_unset == new.allow_unset),
        (
            "database_retention_ttl",
            old.database_retention_ttl == new.database_retention_ttl,
        ),
        ("required", old.required == new.required),
    ];
    same.into_iter()
        .find(|(_, same)| !same)
        .map(|(field, _)| field)
}
