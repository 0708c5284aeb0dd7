//! Realm CAs and what is signed with them; who is let in by which certificate.
//!
//! Every realm has its own pool of CAs ([`Pools`]). A device's identity is the CN of its leaf
//! ([`identity_of`]), and the leaf must chain to the pool of exactly the realm that its CN names,
//! so that no realm's CA can speak for another realm. [`DeviceVerifier`] asks the pools during the
//! TLS handshake; [`Pools::accept`] asks them again afterwards and gives what the broker keeps of
//! the certificate; [`Pools::verify`] asks once more for live connections after a pool has changed.
//! [`RealmCa`] issues device certificates, [`MasterKey`] seals the keys that are stored, and
//! [`ServerCertificates`] holds the certificate that devices see. One crypto provider: ring.
//!
//! Every state that can change at run time lies behind an atomic pointer: a change is whole or not
//! at all, holds for the next handshake, and a broken input leaves the old state in place.

mod certificate_name;
mod chain_error;
mod csr;
mod der;
mod master_key;
mod pools;
mod private_key;
mod realm_ca;
mod server_certificate;
mod verdict;
mod verifier;

#[cfg(test)]
mod tests;

use std::{fmt::Write as _, sync::Arc};

pub use certificate_name::{CnError, identity_of};
pub use chain_error::{ChainError, ChainReason};
pub use csr::CsrError;
pub use master_key::{MasterKey, MasterKeyError, SealError};
pub use pools::{PoolContents, PoolError, Pools, RefusalCount};
pub use private_key::{InvalidPrivateKey, pkcs8};
pub use realm_ca::{CaError, IssuedCertificate, RealmCa};
pub use server_certificate::{ServerCertificateError, ServerCertificateFiles, ServerCertificates};
pub use verdict::{Cause, Verdict};
pub use verifier::DeviceVerifier;

use crate::clock::Timestamp;

/// What is known of the certificate that a device connects with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Serial number, lower-case hexadecimal without leading zeros.
    pub serial: String,
    /// End of validity.
    pub not_after: Timestamp,
    /// Hexadecimal SHA-256 of the realm CA's DER that the chain ends in.
    pub ca_fingerprint: String,
    /// The chain as presented, leaf first, DER; to verify it again when the pools change.
    pub chain: Vec<Arc<[u8]>>,
}

/// The one crypto provider of this program.
#[must_use]
pub fn crypto_provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
            text
        })
}

/// A serial number as it is stored and shown: lower-case hexadecimal without leading zeros.
fn serial_text(bytes: &[u8]) -> String {
    let text = hex(bytes);
    match text.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits => digits.to_owned(),
    }
}

/// Hexadecimal SHA-256 of a certificate's DER.
fn fingerprint(certificate_der: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, certificate_der).as_ref())
}
