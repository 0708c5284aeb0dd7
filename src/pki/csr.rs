//! Certificate requests: what of a CSR is believed, and that is its public key alone.
//!
//! Subject, extensions and attributes are ignored; the signature proves that
//! the sender holds the private key.

use rcgen::SubjectPublicKeyInfo;
use x509_parser::{
    certification_request::X509CertificationRequest, oid_registry, prelude::FromDer as _,
    public_key::PublicKey, x509,
};

const PEM_BYTES_MAX: usize = 16 * 1024;
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Why no certificate was issued for a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CsrError {
    /// The device's: not exactly one PEM block `CERTIFICATE REQUEST` (RFC 7468) of sane size.
    #[error("is not a valid PEM CSR")]
    NotPem,
    /// The device's: not a PKCS #10 request (RFC 2986).
    #[error("is not a valid PEM CSR: no PKCS #10 request")]
    Malformed,
    /// The device's: the signature does not fit the public key.
    #[error("is not a valid PEM CSR: its signature is wrong, or of a kind that is not supported")]
    Signature,
    /// The device's: a key that cannot be used.
    #[error(
        "has a public key that is not accepted: EC on P-256 or P-384, or RSA of 2048 bits to 8192"
    )]
    Key,
    /// The caller's: the identity is not of the CA's realm.
    #[error("the CA is not of the realm {0}")]
    WrongRealm(crate::identity::RealmName),
    /// The operator's: this CA has no private key here.
    #[error("the CA {0} only verifies: its private key is not here")]
    NoKey(String),
    /// The operator's: the CA's own validity is over.
    #[error("the CA {0} has expired; rotate the realm's CA")]
    CaExpired(String),
    /// Ours: signing failed.
    #[error("the certificate could not be signed: {0}")]
    Signing(String),
}

impl CsrError {
    /// Whether the request is at fault (HTTP 422), rather than the installation.
    #[must_use]
    pub const fn is_the_requests_fault(&self) -> bool {
        matches!(
            self,
            Self::NotPem | Self::Malformed | Self::Signature | Self::Key
        )
    }
}

/// The public key of a request whose signature is right.
pub(super) fn public_key(csr_pem: &str) -> Result<SubjectPublicKeyInfo, CsrError> {
    if csr_pem.len() > PEM_BYTES_MAX {
        return Err(CsrError::NotPem);
    }
    let blocks = pem::parse_many(csr_pem).map_err(|_| CsrError::NotPem)?;
    let [block] = blocks.as_slice() else {
        return Err(CsrError::NotPem);
    };
    if block.tag() != "CERTIFICATE REQUEST" {
        return Err(CsrError::NotPem);
    }
    let ([], request) =
        X509CertificationRequest::from_der(block.contents()).map_err(|_| CsrError::Malformed)?
    else {
        return Err(CsrError::Malformed);
    };
    let key = &request.certification_request_info.subject_pki;
    if !is_accepted(key) {
        return Err(CsrError::Key);
    }
    request
        .verify_signature()
        .map_err(|_| CsrError::Signature)?;
    SubjectPublicKeyInfo::from_der(key.raw).map_err(|_| CsrError::Key)
}

/// Keys that the TLS stack can verify: EC on P-256 or P-384, RSA of 2048 bits or more. (ring has
/// no P-521: a device with such a key could never finish a handshake.)
pub(super) fn is_accepted(key: &x509::SubjectPublicKeyInfo<'_>) -> bool {
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => RSA_BITS.contains(&rsa.key_size()),
        Ok(PublicKey::EC(_)) => {
            let curve = key
                .algorithm
                .parameters
                .as_ref()
                .and_then(|any| any.as_oid().ok());
            curve.is_some_and(|curve| {
                curve == oid_registry::OID_EC_P256 || curve == oid_registry::OID_NIST_EC_P384
            })
        }
        _ => false,
    }
}
