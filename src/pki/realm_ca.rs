//! A realm's CA: made here or brought by the operator, and what it issues.
//!
//! A device certificate has one profile: subject exactly `CN=<identity>`, the
//! CA's own name as issuer byte for byte, 128-bit serial, `CA:false`, digitalSignature, clientAuth,
//! both key identifiers.

use std::{fmt, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
    SerialNumber, SigningKey as _,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use x509_parser::{certificate::X509Certificate, extensions::ParsedExtension, oid_registry};

use super::{
    MasterKey, SealError, certificate_name,
    csr::{self, CsrError},
    der::{self, element, fields_of},
    fingerprint, hex, private_key, serial_text,
};
use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
    store::CaRow,
};

/// How long a CA made here is valid: ten years.
const CA_LIFETIME: Duration = Duration::from_hours(3652 * 24);
/// A certificate is valid from so long before it was issued, for devices with slow clocks.
const BACKDATED: Duration = Duration::from_mins(5);
const PEM_BYTES_MAX: usize = 64 * 1024;

/// Why a CA cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaError {
    /// Not exactly one PEM certificate.
    #[error("the CA's certificate is not exactly one PEM block CERTIFICATE")]
    CertificatePem,
    /// Not an X.509 certificate.
    #[error("the CA's certificate is not an X.509 certificate")]
    Certificate,
    /// No CA.
    #[error("the certificate is not a CA's: basicConstraints must say CA:TRUE")]
    NotACa,
    /// May not sign certificates.
    #[error("the CA's keyUsage does not allow it to sign certificates (keyCertSign)")]
    KeyUsage,
    /// Validity over.
    #[error("the CA's certificate has expired on {0}")]
    Expired(Timestamp),
    /// A key that is not supported.
    #[error(
        "the CA's public key is not accepted: EC on P-256 or P-384, or RSA of 2048 bits to 8192"
    )]
    PublicKey,
    /// The private key is not readable.
    #[error(
        "the CA's private key is not one unencrypted PEM key; \
         `openssl pkcs8 -topk8 -nocrypt -in KEY -out KEY.pem` makes one of it"
    )]
    PrivateKey,
    /// The private key is another's.
    #[error("the private key does not belong to the CA's certificate")]
    KeyMismatch,
    /// The row's key cannot be opened.
    #[error("the sealed private key of the CA {fingerprint} {source}")]
    Sealed {
        /// Which CA.
        fingerprint: String,
        /// Why.
        source: SealError,
    },
    /// Ours: making it failed.
    #[error("the CA could not be made: {0}")]
    Making(String),
}

/// A certificate just issued to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// One PEM block, no chain.
    pub pem: String,
    /// Serial number, lower-case hexadecimal without leading zeros.
    pub serial: String,
    /// Authority key identifier, lower-case hexadecimal.
    pub aki: String,
    /// End of validity.
    pub not_after: Timestamp,
}

/// A CA of a realm, with its private key where that is here.
pub struct RealmCa {
    realm: RealmName,
    certificate_pem: String,
    fingerprint: String,
    subject: String,
    /// The subject's DER, as it goes into what this CA issues.
    subject_der: Vec<u8>,
    key_identifier: Vec<u8>,
    not_after: Timestamp,
    key: Option<KeyPair>,
}

impl fmt::Debug for RealmCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealmCa")
            .field("realm", &self.realm)
            .field("fingerprint", &self.fingerprint)
            .field("issues", &self.key.is_some())
            .finish_non_exhaustive()
    }
}

impl RealmCa {
    /// Makes a CA for `realm`: P-256, ten years, signs leaves only (path length 0). Its name holds
    /// random digits, so that the CAs of a realm can be told apart by name.
    ///
    /// # Errors
    /// When the machine gives no random numbers.
    pub fn generate(realm: &RealmName, now: Timestamp) -> Result<Self, CaError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(making)?;
        let serial = random_serial().map_err(CaError::Making)?;
        let mut params = CertificateParams::default();
        params.not_before = now.saturating_sub(BACKDATED).to_offset_date_time();
        params.not_after = now.saturating_add(CA_LIFETIME).to_offset_date_time();
        params.distinguished_name = DistinguishedName::new();
        let name = format!("{realm} device CA {}", &hex(&serial)[..8]);
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.self_signed(&key).map_err(making)?;
        Self::new(realm, certificate.der(), Some(key))
    }

    /// Takes an operator's CA: a root or an intermediate, with its private key if it is to issue.
    /// Keys are PKCS #8, SEC 1 or PKCS #1, unencrypted.
    ///
    /// # Errors
    /// When it is not a valid CA certificate, or the key is not readable or not its own.
    pub fn import(
        realm: &RealmName,
        certificate_pem: &str,
        key_pem: Option<&str>,
        now: Timestamp,
    ) -> Result<Self, CaError> {
        let certificate_der = one_certificate(certificate_pem)?;
        let key = key_pem.map(read_key).transpose()?;
        let ca = Self::new(realm, &certificate_der, key)?;
        if ca.not_after < now {
            return Err(CaError::Expired(ca.not_after));
        }
        Ok(ca)
    }

    /// Reads a stored CA.
    ///
    /// # Errors
    /// When the row's certificate is damaged, or its key cannot be opened.
    pub fn from_row(row: &CaRow, master_key: &MasterKey) -> Result<Self, CaError> {
        let certificate_der = one_certificate(&row.certificate_pem)?;
        let key = match &row.key_sealed {
            Some(sealed) => {
                let opened = master_key
                    .open(&key_label(&row.realm, &row.fingerprint), sealed)
                    .map_err(|source| CaError::Sealed {
                        fingerprint: row.fingerprint.clone(),
                        source,
                    })?;
                Some(KeyPair::try_from(opened.as_slice()).map_err(|_| CaError::PrivateKey)?)
            }
            None => None,
        };
        Self::new(&row.realm, &certificate_der, key)
    }

    /// The row to store, the key sealed under the master key.
    ///
    /// # Errors
    /// When the key cannot be sealed.
    pub fn to_row(
        &self,
        issuing: bool,
        master_key: &MasterKey,
        now: Timestamp,
    ) -> Result<CaRow, SealError> {
        let label = key_label(&self.realm, &self.fingerprint);
        let key_sealed = self
            .key
            .as_ref()
            .map(|key| master_key.seal(&label, key.serialized_der()))
            .transpose()?;
        Ok(CaRow {
            realm: self.realm.clone(),
            fingerprint: self.fingerprint.clone(),
            certificate_pem: self.certificate_pem.clone(),
            key_sealed,
            issuing,
            added_at: now,
        })
    }

    fn new(
        realm: &RealmName,
        certificate_der: &[u8],
        key: Option<KeyPair>,
    ) -> Result<Self, CaError> {
        let certificate =
            certificate_name::parse(certificate_der).map_err(|_| CaError::Certificate)?;
        check_ca(&certificate)?;
        if let Some(key) = &key
            && key.der_bytes() != certificate.public_key().subject_public_key.data.as_ref()
        {
            return Err(CaError::KeyMismatch);
        }
        Ok(Self {
            realm: realm.clone(),
            certificate_pem: pem_block("CERTIFICATE", certificate_der),
            fingerprint: fingerprint(certificate_der),
            subject: certificate.subject().to_string(),
            subject_der: certificate.subject().as_raw().to_vec(),
            key_identifier: key_identifier(&certificate),
            not_after: certificate_name::timestamp(certificate.validity().not_after),
            key,
        })
    }

    /// The realm it is of.
    #[must_use]
    pub const fn realm(&self) -> &RealmName {
        &self.realm
    }

    /// Hexadecimal SHA-256 of its DER.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Its certificate, PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Its name, for people.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// End of its validity.
    #[must_use]
    pub const fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Whether its private key is here.
    #[must_use]
    pub const fn can_issue(&self) -> bool {
        self.key.is_some()
    }

    /// Issues a certificate to `identity` for the public key of the request, valid for `lifetime`
    /// or until this CA ends.
    ///
    /// # Errors
    /// See [`CsrError`]: the request's fault, or the CA's.
    pub fn issue(
        &self,
        csr_pem: &str,
        identity: &Identity,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<IssuedCertificate, CsrError> {
        if identity.realm != self.realm {
            return Err(CsrError::WrongRealm(identity.realm.clone()));
        }
        let Some(key) = &self.key else {
            return Err(CsrError::NoKey(self.fingerprint.clone()));
        };
        if self.not_after <= now {
            return Err(CsrError::CaExpired(self.fingerprint.clone()));
        }
        let public_key = csr::public_key(csr_pem)?;

        let serial = random_serial().map_err(CsrError::Signing)?;
        let not_after = whole_seconds(now.saturating_add(lifetime)).min(self.not_after);
        let params = leaf_params(identity, &serial, not_after, now);
        let mut issuer = CertificateParams::default();
        issuer.distinguished_name = DistinguishedName::new();
        issuer.key_identifier_method = KeyIdMethod::PreSpecified(self.key_identifier.clone());
        let issuer = Issuer::new(issuer, key);
        let unnamed = params.signed_by(&public_key, &issuer).map_err(signing)?;
        let certificate = self.with_own_name(unnamed.der(), key)?;
        Ok(IssuedCertificate {
            pem: pem_block("CERTIFICATE", &certificate),
            serial: serial_text(&serial),
            aki: hex(&self.key_identifier),
            not_after,
        })
    }

    /// Puts this CA's name, byte for byte, in the place of the empty issuer, and signs again. (The
    /// library encodes names anew and has no repeated attributes such as two `DC`s; path building
    /// compares bytes.)
    fn with_own_name(&self, unnamed: &[u8], key: &KeyPair) -> Result<Vec<u8>, CsrError> {
        let certificate = certificate_name::parse(unnamed).map_err(signing)?;
        let tbs = certificate.tbs_certificate.as_ref();
        let fields = fields_of(tbs).ok_or_else(|| signing("unexpected shape"))?;
        // version, serial, signature, issuer, then the rest (RFC 5280 section 4.1)
        let [version, serial, algorithm, _, rest @ ..] = fields.as_slice() else {
            return Err(signing("unexpected shape"));
        };
        let mut parts = vec![*version, *serial, *algorithm, &self.subject_der];
        parts.extend_from_slice(rest);
        let tbs = element(der::SEQUENCE, &parts);
        let signature = key.sign(&tbs).map_err(signing)?;
        Ok(element(
            der::SEQUENCE,
            &[
                &tbs,
                algorithm,
                &element(der::BIT_STRING, &[&[0], &signature]),
            ],
        ))
    }
}

fn leaf_params(
    identity: &Identity,
    serial: &[u8],
    not_after: Timestamp,
    now: Timestamp,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = now.saturating_sub(BACKDATED).to_offset_date_time();
    params.not_after = not_after.to_offset_date_time();
    params.serial_number = Some(SerialNumber::from_slice(serial));
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, identity.to_string());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params
}

/// Whether a certificate may stand in a realm's pool.
pub(super) fn check_ca(certificate: &X509Certificate<'_>) -> Result<(), CaError> {
    match certificate.basic_constraints() {
        Ok(Some(constraints)) if constraints.value.ca => {}
        _ => return Err(CaError::NotACa),
    }
    match certificate.key_usage() {
        Ok(Some(usage)) if !usage.value.key_cert_sign() => return Err(CaError::KeyUsage),
        Ok(_) => {}
        Err(_) => return Err(CaError::Certificate),
    }
    if !csr::is_accepted(certificate.public_key()) {
        return Err(CaError::PublicKey);
    }
    Ok(())
}

/// The DER of the one certificate in a PEM text.
pub(super) fn one_certificate(pem_text: &str) -> Result<Vec<u8>, CaError> {
    if pem_text.len() > PEM_BYTES_MAX {
        return Err(CaError::CertificatePem);
    }
    match pem::parse_many(pem_text)
        .map_err(|_| CaError::CertificatePem)?
        .as_slice()
    {
        [block] if block.tag() == "CERTIFICATE" => Ok(block.contents().to_vec()),
        _ => Err(CaError::CertificatePem),
    }
}

/// The subject key identifier, or the SHA-256 of the key cut to 160 bits (RFC 7093 section 2).
fn key_identifier(certificate: &X509Certificate<'_>) -> Vec<u8> {
    let extension = certificate
        .get_extension_unique(&oid_registry::OID_X509_EXT_SUBJECT_KEY_IDENTIFIER)
        .ok()
        .flatten();
    if let Some(ParsedExtension::SubjectKeyIdentifier(identifier)) =
        extension.map(x509_parser::extensions::X509Extension::parsed_extension)
    {
        return identifier.0.to_vec();
    }
    let key = &certificate.public_key().subject_public_key.data;
    ring::digest::digest(&ring::digest::SHA256, key).as_ref()[..20].to_vec()
}

/// A private key of any of the usual forms.
fn read_key(pem_text: &str) -> Result<KeyPair, CaError> {
    let pkcs8 = private_key::pkcs8(pem_text).map_err(|_| CaError::PrivateKey)?;
    KeyPair::try_from(pkcs8.as_slice()).map_err(|_| CaError::PrivateKey)
}

fn key_label(realm: &RealmName, fingerprint: &str) -> String {
    format!("realm ca key {realm} {fingerprint}")
}

/// 16 octets, positive, never with a leading zero (RFC 5280 section 4.1.2.2 allows 20).
fn random_serial() -> Result<[u8; 16], String> {
    let mut serial = [0; 16];
    SystemRandom::new()
        .fill(&mut serial)
        .map_err(|_| "no random numbers".to_owned())?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.as_micros().div_euclid(1_000_000) * 1_000_000)
}

pub(super) fn pem_block(tag: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), config)
}

fn making(error: impl fmt::Display) -> CaError {
    CaError::Making(error.to_string())
}

fn signing(error: impl fmt::Display) -> CsrError {
    CsrError::Signing(error.to_string())
}
