//! What rustls asks during a device's handshake.
//!
//! The realm is not known before the certificate arrives, so the server gives no hints of
//! acceptable CAs and clients choose freely. Signatures are verified as the provider says. A
//! refusal is counted and logged here, within the span of the connection, which holds the peer.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use super::{ChainError, ChainReason, Pools, crypto_provider};
use crate::clock::Timestamp;

/// Asks the [`Pools`] in the handshake; a certificate is mandatory.
#[derive(Debug)]
pub struct DeviceVerifier {
    pools: Pools,
    algorithms: WebPkiSupportedAlgorithms,
}

impl DeviceVerifier {
    /// A verifier over these pools, as they are at each handshake.
    #[must_use]
    pub fn new(pools: Pools) -> Self {
        Self {
            pools,
            algorithms: crypto_provider().signature_verification_algorithms,
        }
    }
}

impl ClientCertVerifier for DeviceVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let mut chain: Vec<&[u8]> = vec![end_entity];
        chain.extend(intermediates.iter().map(AsRef::<[u8]>::as_ref));
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp::from_micros(seconds.saturating_mul(1_000_000));
        match self.pools.find(&chain, now) {
            Ok(_) => Ok(ClientCertVerified::assertion()),
            Err(error) => {
                self.pools.count_refusal(&error);
                tracing::info!(
                    reason = error.reason.as_str(),
                    claimed = error.claimed.as_ref().map(tracing::field::display),
                    issuer = ?error.issuer,
                    "{error}"
                );
                Err(Error::InvalidCertificate(alert_of(error)))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The error whose TLS alert tells the device most (RFC 8446 section 6.2).
fn alert_of(error: ChainError) -> CertificateError {
    match error.reason {
        ChainReason::Expired | ChainReason::CaExpired => CertificateError::Expired,
        ChainReason::NotYetValid => CertificateError::NotValidYet,
        ChainReason::Revoked => CertificateError::Revoked,
        ChainReason::UnknownIssuer | ChainReason::UnknownRealm => CertificateError::UnknownIssuer,
        ChainReason::BadSignature => CertificateError::BadSignature,
        ChainReason::NotACertificate => CertificateError::BadEncoding,
        ChainReason::NoClientAuth => CertificateError::InvalidPurpose,
        _ => CertificateError::Other(OtherError(Arc::new(error))),
    }
}
