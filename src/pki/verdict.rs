//! Pairing's verify: whether a device's certificate would be let in, and if not, in Astarte's words.
//!
//! Unlike in Astarte, whose certificate it is counts too.

use super::{ChainReason, Pools, certificate_name, realm_ca};
use crate::{clock::Timestamp, identity::Identity};

/// The answer to a device that asks about its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It would be let in.
    Valid {
        /// End of its validity.
        until: Timestamp,
    },
    /// It would not.
    Invalid(Cause),
}

/// Why it would not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub enum Cause {
    Expired,
    InvalidIssuer,
    InvalidSignature,
    NameNotPermitted,
    MissingBasicConstraint,
    InvalidKeyUsage,
    Revoked,
    Invalid,
}

impl Cause {
    /// The name in the answer.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "EXPIRED",
            Self::InvalidIssuer => "INVALID_ISSUER",
            Self::InvalidSignature => "INVALID_SIGNATURE",
            Self::NameNotPermitted => "NAME_NOT_PERMITTED",
            Self::MissingBasicConstraint => "MISSING_BASIC_CONSTRAINT",
            Self::InvalidKeyUsage => "INVALID_KEY_USAGE",
            Self::Revoked => "REVOKED",
            Self::Invalid => "INVALID",
        }
    }

    const fn of(reason: ChainReason) -> Self {
        match reason {
            // Astarte's library has one name for both ends of the validity
            ChainReason::Expired | ChainReason::NotYetValid | ChainReason::CaExpired => {
                Self::Expired
            }
            ChainReason::UnknownIssuer => Self::InvalidIssuer,
            ChainReason::BadSignature => Self::InvalidSignature,
            ChainReason::NameNotPermitted => Self::NameNotPermitted,
            ChainReason::NotACa => Self::MissingBasicConstraint,
            ChainReason::NoClientAuth => Self::InvalidKeyUsage,
            ChainReason::Revoked => Self::Revoked,
            _ => Self::Invalid,
        }
    }
}

impl Pools {
    /// Whether `certificate_pem` (exactly one certificate) is `identity`'s and would be let in.
    /// Never an error: rubbish is `Invalid` too.
    #[must_use]
    pub fn verdict(&self, certificate_pem: &str, identity: &Identity, now: Timestamp) -> Verdict {
        let Ok(der) = realm_ca::one_certificate(certificate_pem) else {
            return Verdict::Invalid(Cause::Invalid);
        };
        if certificate_name::identity_of(&der).as_ref() != Ok(identity) {
            return Verdict::Invalid(Cause::Invalid);
        }
        match self.find(&[der], now) {
            Ok((_, leaf, _)) => Verdict::Valid {
                until: leaf.not_after,
            },
            Err(error) => Verdict::Invalid(Cause::of(error.reason)),
        }
    }
}
