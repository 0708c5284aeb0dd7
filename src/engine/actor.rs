//! Who changes something, as the audit log names it.

use std::fmt::Display;

use crate::{clock::Timestamp, store::AuditEntry};

/// The author of a change: `socket:<uid>`, `token:<realm or housekeeping>@<address>`,
/// `device:<realm>/<device id>@<address>`, or `tanit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor(String);

impl Actor {
    /// An actor of this name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// This program, on its own account.
    #[must_use]
    pub fn tanit() -> Self {
        Self::named("tanit")
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The audit row of what it does.
    #[must_use]
    pub fn did(&self, at: Timestamp, action: &str, object: impl Display) -> AuditEntry {
        AuditEntry {
            at,
            actor: self.0.clone(),
            action: action.to_owned(),
            object: object.to_string(),
        }
    }
}
