//! The identity that a certificate carries: exactly one CN, `<realm>/<device id>`.
//!
//! The CN becomes the prefix of every topic of the device, so anything ambiguous is refused: no CN,
//! two of them (also inside one multi-valued RDN), a string type other than `PrintableString` and
//! `UTF8String`, and everything that [`Identity`] does not accept. Both string types with the same
//! text are the same identity (RFC 5280 section 7.1).

use std::ops::RangeInclusive;

use x509_parser::{
    asn1_rs::Tag,
    certificate::X509Certificate,
    extensions::{ExtendedKeyUsage, ParsedExtension},
    oid_registry::OID_X509_EXT_EXTENDED_KEY_USAGE,
};

use super::serial_text;
use crate::{
    clock::Timestamp,
    identity::{Identity, InvalidIdentity},
};

/// Why a certificate carries no identity. All of these are the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CnError {
    /// Not one X.509 certificate in DER.
    #[error("is not an X.509 certificate")]
    NotACertificate,
    /// The subject has no CN.
    #[error("has no common name")]
    Missing,
    /// The subject has more than one CN.
    #[error("has more than one common name")]
    Several,
    /// The CN is neither a `PrintableString` nor a `UTF8String`, or is not UTF-8.
    #[error("has a common name that is neither a PrintableString nor a UTF8String")]
    Encoding,
    /// The CN's text is not `<realm>/<device id>`.
    #[error("has a common name that {0}")]
    NotAnIdentity(#[from] InvalidIdentity),
}

/// The identity in the leaf certificate `leaf`, DER.
///
/// # Errors
/// When the certificate does not carry exactly one identity in exactly one form.
pub fn identity_of(leaf: &[u8]) -> Result<Identity, CnError> {
    identity_in(&parse(leaf)?)
}

/// Reads one certificate with nothing behind it.
pub(super) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, CnError> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(CnError::NotACertificate),
    }
}

fn identity_in(certificate: &X509Certificate<'_>) -> Result<Identity, CnError> {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next().ok_or(CnError::Missing)?;
    if names.next().is_some() {
        return Err(CnError::Several);
    }
    let value = name.attr_value();
    if !matches!(value.tag(), Tag::PrintableString | Tag::Utf8String) {
        return Err(CnError::Encoding);
    }
    let text = std::str::from_utf8(value.data).map_err(|_| CnError::Encoding)?;
    Ok(text.parse()?)
}

/// What the pools ask of a leaf, read once.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) identity: Result<Identity, CnError>,
    pub(super) serial: String,
    pub(super) not_after: Timestamp,
    pub(super) has_client_auth: bool,
    /// The issuer's name for logs, cut to a sane length.
    pub(super) issuer: String,
}

impl Leaf {
    pub(super) fn read(der: &[u8]) -> Result<Self, CnError> {
        let certificate = parse(der)?;
        Ok(Self {
            identity: identity_in(&certificate),
            serial: serial_text(certificate.raw_serial()),
            not_after: timestamp(certificate.validity().not_after),
            has_client_auth: has_client_auth(&certificate),
            issuer: certificate.issuer().to_string().chars().take(256).collect(),
        })
    }
}

/// Whether the extension is there, once, and names clientAuth (RFC 5280 section 4.2.1.12).
fn has_client_auth(certificate: &X509Certificate<'_>) -> bool {
    match certificate.get_extension_unique(&OID_X509_EXT_EXTENDED_KEY_USAGE) {
        Ok(Some(extension)) => matches!(
            extension.parsed_extension(),
            ParsedExtension::ExtendedKeyUsage(ExtendedKeyUsage {
                client_auth: true,
                ..
            })
        ),
        _ => false,
    }
}

/// First and last moment of a certificate's validity.
pub(super) fn validity(certificate: &X509Certificate<'_>) -> RangeInclusive<Timestamp> {
    let validity = certificate.validity();
    timestamp(validity.not_before)..=timestamp(validity.not_after)
}

/// A certificate's time, which has whole seconds.
pub(super) fn timestamp(time: x509_parser::time::ASN1Time) -> Timestamp {
    Timestamp::from_micros(time.timestamp().saturating_mul(1_000_000))
        .clamp(Timestamp::MIN, Timestamp::MAX)
}
