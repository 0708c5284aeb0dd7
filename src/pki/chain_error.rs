//! Why a chain is refused, in one list for handshakes, Pairing's verify, logs and metrics.

use rustls::CertificateError;

use super::certificate_name;
use crate::identity::{Identity, RealmName};

/// Why a certificate is not let in; the names are those of logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ChainReason {
    /// No certificate, or one that is not X.509.
    NotACertificate,
    /// No CN, two CNs, another string type, or not `<realm>/<device id>`.
    CommonName,
    /// A CN of another device than was asked about.
    OtherIdentity,
    /// There is no such realm, or it has no CA.
    UnknownRealm,
    /// More certificates than are looked at.
    ChainTooLong,
    /// The leaf does not carry clientAuth.
    NoClientAuth,
    /// The validity of the leaf or of an intermediate is over.
    Expired,
    /// The validity of the leaf or of an intermediate has not begun.
    NotYetValid,
    /// The validity of the realm's CA is over.
    CaExpired,
    /// On the realm's list of revoked certificates, or on its CRL.
    Revoked,
    /// The chain does not end in a CA of this realm.
    UnknownIssuer,
    /// The chain leads to a CA's name, but the signature is not by its key.
    BadSignature,
    /// An algorithm that is not supported.
    UnsupportedAlgorithm,
    /// A certificate without `CA:true` issued another.
    NotACa,
    /// A name constraint of a CA excludes it.
    NameNotPermitted,
    /// Anything else that makes a chain invalid: a path length, a critical extension.
    InvalidChain,
}

impl ChainReason {
    /// The name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotACertificate => "not_a_certificate",
            Self::CommonName => "common_name",
            Self::OtherIdentity => "other_identity",
            Self::UnknownRealm => "unknown_realm",
            Self::ChainTooLong => "chain_too_long",
            Self::NoClientAuth => "no_client_auth",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::CaExpired => "ca_expired",
            Self::Revoked => "revoked",
            Self::UnknownIssuer => "unknown_issuer",
            Self::BadSignature => "bad_signature",
            Self::UnsupportedAlgorithm => "unsupported_algorithm",
            Self::NotACa => "not_a_ca",
            Self::NameNotPermitted => "name_not_permitted",
            Self::InvalidChain => "invalid_chain",
        }
    }

    /// The reason behind what the TLS library says of a chain with these intermediates.
    pub(super) fn of(error: &rustls::Error, others: &[impl AsRef<[u8]>]) -> Self {
        let rustls::Error::InvalidCertificate(error) = error else {
            return Self::InvalidChain;
        };
        match error {
            CertificateError::BadEncoding => Self::NotACertificate,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::Revoked => Self::Revoked,
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::BadSignature => Self::BadSignature,
            CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                Self::UnsupportedAlgorithm
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::NameNotPermitted
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::NoClientAuth
            }
            _ if others.iter().any(|other| !is_ca(other.as_ref())) => Self::NotACa,
            _ => Self::InvalidChain,
        }
    }
}

/// A certificate that is not let in, with what a log line should say. The peer's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device certificate is refused ({}): {detail}", .reason.as_str())]
pub struct ChainError {
    /// Why.
    pub reason: ChainReason,
    /// The realm that the CN names, where that realm exists.
    pub realm: Option<RealmName>,
    /// The identity that the CN claims, where it is one.
    pub claimed: Option<Identity>,
    /// The leaf's issuer as text; empty when there is no certificate.
    pub issuer: String,
    /// More, for people.
    pub detail: String,
}

fn is_ca(der: &[u8]) -> bool {
    certificate_name::parse(der).is_ok_and(|certificate| certificate.is_ca())
}
