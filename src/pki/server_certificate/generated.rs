//! A server certificate made here, under a CA made here, for those who bring none.

use std::{
    fs,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use x509_parser::extensions::GeneralName;

use super::{ServerCertificateError, ServerCertificateFiles, read};
use crate::{clock::Timestamp, pki::certificate_name};

const DAY: Duration = Duration::from_hours(24);
const CA_LIFETIME: Duration = Duration::from_hours(20 * 365 * 24);
const LIFETIME: Duration = Duration::from_hours(365 * 24);
/// Renewed so long before its end.
const RENEWED_BEFORE: Duration = Duration::from_hours(30 * 24);

pub(super) struct Generated {
    directory: PathBuf,
    names: Vec<SanType>,
    host_name: String,
}

pub(super) struct Made {
    pub(super) files: ServerCertificateFiles,
    pub(super) ca_pem: String,
}

impl Generated {
    pub(super) fn new(directory: &Path, host_name: &str) -> Self {
        let mut names = Vec::new();
        for name in ["localhost", host_name] {
            // a host name that is no DNS name (such as one with an underscore) is left out
            if let Ok(name) = rcgen::string::Ia5String::try_from(name)
                && rustls::pki_types::DnsName::try_from(name.as_str()).is_ok()
                && !names.contains(&SanType::DnsName(name.clone()))
            {
                names.push(SanType::DnsName(name));
            }
        }
        names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        names.push(SanType::IpAddress(IpAddr::V6(Ipv6Addr::LOCALHOST)));
        Self {
            directory: directory.to_owned(),
            names,
            host_name: host_name.to_owned(),
        }
    }

    /// The files, made or renewed where they are missing, due, or for another host name.
    pub(super) fn open_or_make(&self, now: Timestamp) -> Result<Made, ServerCertificateError> {
        let ca = self.ca(now)?;
        let files = ServerCertificateFiles {
            certificate: self.directory.join("server.crt"),
            key: self.directory.join("server.key"),
        };
        if !self.is_good(&files, &ca, now) {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(making)?;
            let issuer = Issuer::from_ca_cert_pem(&ca.pem, &ca.key).map_err(making)?;
            let certificate = self.params(now, ca.not_after).signed_by(&key, &issuer);
            let certificate = certificate.map_err(making)?.pem();
            // the key first: a crash between the two leaves a pair that does not match, which is
            // seen and made anew
            write(&files.key, key.serialize_pem().as_bytes(), 0o600)?;
            write(&files.certificate, certificate.as_bytes(), 0o644)?;
        }
        Ok(Made {
            files,
            ca_pem: ca.pem,
        })
    }

    fn params(&self, now: Timestamp, ca_not_after: Timestamp) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.not_before = now.saturating_sub(DAY).to_offset_date_time();
        params.not_after = now
            .saturating_add(LIFETIME)
            .min(ca_not_after)
            .to_offset_date_time();
        params.subject_alt_names.clone_from(&self.names);
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, self.host_name.as_str());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params
    }

    /// The CA in the directory, or a new one when there is none or it is about to end.
    fn ca(&self, now: Timestamp) -> Result<Ca, ServerCertificateError> {
        let certificate = self.directory.join("server-ca.crt");
        let key = self.directory.join("server-ca.key");
        // without a server certificate, one of the two alone is what a first start left that was
        // cut off
        let was_used = self.directory.join("server.crt").exists();
        let found = [certificate.exists(), key.exists()];
        if found == [true, true] || (was_used && found != [false, false]) {
            let ca = Ca::read(&certificate, &key)?;
            if !is_due(ca.not_after, now) {
                return Ok(ca);
            }
            tracing::warn!(path = %certificate.display(), not_after = %ca.not_after,
                "the server's CA ends; a new one is made, and clients need its certificate");
        }
        let ca = Ca::make(now)?;
        write(&key, ca.key.serialize_pem().as_bytes(), 0o600)?;
        write(&certificate, ca.pem.as_bytes(), 0o644)?;
        Ok(ca)
    }

    /// Whether the pair on disk can be served on.
    fn is_good(&self, files: &ServerCertificateFiles, ca: &Ca, now: Timestamp) -> bool {
        let Ok(pair) = super::read_pair(files, now) else {
            return false;
        };
        let Some(leaf) = pair.key.cert.first() else {
            return false;
        };
        let Ok(leaf) = certificate_name::parse(leaf) else {
            return false;
        };
        let Ok(ca_der) = pem::parse(&ca.pem) else {
            return false;
        };
        let Ok(ca) = certificate_name::parse(ca_der.contents()) else {
            return false;
        };
        !is_due(pair.not_after, now)
            && leaf.verify_signature(Some(ca.public_key())).is_ok()
            && self.names.iter().all(|name| has_name(&leaf, name))
    }
}

/// Whether it is time to renew what ends then.
pub(super) fn is_due(not_after: Timestamp, now: Timestamp) -> bool {
    not_after <= now.saturating_add(RENEWED_BEFORE)
}

fn has_name(leaf: &x509_parser::certificate::X509Certificate<'_>, name: &SanType) -> bool {
    let Ok(Some(names)) = leaf.subject_alternative_name() else {
        return false;
    };
    names
        .value
        .general_names
        .iter()
        .any(|present| match (present, name) {
            (GeneralName::DNSName(present), SanType::DnsName(name)) => *present == name.as_str(),
            (GeneralName::IPAddress(present), SanType::IpAddress(IpAddr::V4(name))) => {
                *present == name.octets()
            }
            (GeneralName::IPAddress(present), SanType::IpAddress(IpAddr::V6(name))) => {
                *present == name.octets()
            }
            _ => false,
        })
}

struct Ca {
    pem: String,
    key: KeyPair,
    not_after: Timestamp,
}

impl Ca {
    fn make(now: Timestamp) -> Result<Self, ServerCertificateError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(making)?;
        let not_after = now.saturating_add(CA_LIFETIME);
        let mut params = CertificateParams::default();
        params.not_before = now.saturating_sub(DAY).to_offset_date_time();
        params.not_after = not_after.to_offset_date_time();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "Tanit server CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).map_err(making)?.pem();
        Ok(Self {
            pem,
            key,
            not_after,
        })
    }

    fn read(certificate: &Path, key: &Path) -> Result<Self, ServerCertificateError> {
        let content = |path: &Path, what: &str| ServerCertificateError::Content {
            path: path.to_owned(),
            what: format!(
                "{what}; restore it, or remove server-ca.crt and server-ca.key to have a \
                           new CA made (clients then need its certificate)"
            ),
        };
        let text = read(certificate)?;
        let pem = String::from_utf8(text).map_err(|_| content(certificate, "is not PEM"))?;
        let der = pem::parse(&pem).map_err(|_| content(certificate, "is not PEM"))?;
        let parsed = certificate_name::parse(der.contents())
            .map_err(|_| content(certificate, "is not a certificate"))?;
        let not_after = certificate_name::timestamp(parsed.validity().not_after);
        let key_pem = zeroize::Zeroizing::new(read(key)?);
        let key_pair = std::str::from_utf8(&key_pem)
            .ok()
            .and_then(|text| KeyPair::from_pem(text).ok())
            .ok_or_else(|| content(key, "is not a private key"))?;
        if key_pair.public_key_raw() != parsed.public_key().subject_public_key.data.as_ref() {
            return Err(content(key, "does not belong to server-ca.crt"));
        }
        Ok(Self {
            pem,
            key: key_pair,
            not_after,
        })
    }
}

/// Writes a whole file or none: a temporary one beside it, flushed, then renamed.
fn write(path: &Path, contents: &[u8], mode: u32) -> Result<(), ServerCertificateError> {
    let replace = || -> io::Result<()> {
        let temporary = path.with_extension("new");
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        if let Some(directory) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            fs::File::open(directory)?.sync_all()?;
        }
        Ok(())
    };
    replace().map_err(|source| ServerCertificateError::Io {
        path: path.to_owned(),
        doing: "written",
        source,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn making(error: rcgen::Error) -> ServerCertificateError {
    ServerCertificateError::Making(error.to_string())
}
