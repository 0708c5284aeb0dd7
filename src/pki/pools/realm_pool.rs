//! One realm's pool: its CAs, what is revoked, and which chains were found good.

use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    RootCertStore,
    pki_types::CertificateDer,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::{
    CHAIN_CERTIFICATES_MAX, POOL_CAS_MAX, PoolContents, PoolError,
    crl::{self, Crl},
    unix_time,
};
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    pki::{
        ChainReason,
        certificate_name::{self, Leaf},
        crypto_provider, fingerprint, realm_ca,
    },
};

/// Most chains that are remembered as good; beyond it, all are forgotten.
const KNOWN_CHAINS_MAX: usize = 16_384;

/// A realm's pool; it never changes.
pub(super) struct RealmPool {
    cas: Vec<PoolCa>,
    revoked: HashSet<(DeviceId, String)>,
    known: KnownChains,
}

/// One CA with a verifier of its own, so that it is known which CA a chain ends in.
struct PoolCa {
    fingerprint: String,
    /// Its name as text, and as its bytes.
    subject: (String, Vec<u8>),
    validity: RangeInclusive<Timestamp>,
    verifier: Arc<dyn ClientCertVerifier>,
}

type Refused = (ChainReason, String);

impl RealmPool {
    pub(super) fn build(realm: &RealmName, contents: &PoolContents) -> Result<Self, PoolError> {
        let count = contents.certificates_pem.len();
        if count > POOL_CAS_MAX {
            return Err(PoolError::TooManyCas {
                realm: realm.clone(),
                count,
            });
        }
        let mut ders = Vec::with_capacity(count);
        for (index, certificate_pem) in contents.certificates_pem.iter().enumerate() {
            let der = realm_ca::one_certificate(certificate_pem).and_then(|der| {
                let certificate =
                    certificate_name::parse(&der).map_err(|_| realm_ca::CaError::Certificate)?;
                realm_ca::check_ca(&certificate).map(|()| der.clone())
            });
            ders.push(der.map_err(|source| PoolError::Ca {
                realm: realm.clone(),
                index: index + 1,
                source,
            })?);
        }
        let crls = match &contents.crl_pem {
            Some(pem) => crl::read(pem, &ders).map_err(|what| PoolError::Crl {
                realm: realm.clone(),
                what,
            })?,
            None => Vec::new(),
        };
        let cas = ders
            .into_iter()
            .map(|der| PoolCa::build(der, &crls))
            .collect::<Result<_, _>>()
            .map_err(|what| PoolError::Verifier {
                realm: realm.clone(),
                what,
            })?;
        Ok(Self {
            cas,
            revoked: contents.revoked.iter().cloned().collect(),
            known: KnownChains::default(),
        })
    }

    /// The fingerprint of the CA that the chain ends in.
    pub(super) fn check(
        &self,
        identity: &Identity,
        leaf: &Leaf,
        leaf_der: &[u8],
        others: &[impl AsRef<[u8]>],
        now: Timestamp,
    ) -> Result<String, Refused> {
        if others.len() >= CHAIN_CERTIFICATES_MAX {
            let detail = format!(
                "{} certificates were sent, at most {CHAIN_CERTIFICATES_MAX} are looked at",
                others.len() + 1
            );
            return Err((ChainReason::ChainTooLong, detail));
        }
        if !leaf.has_client_auth {
            let detail = "its extendedKeyUsage does not name clientAuth".to_owned();
            return Err((ChainReason::NoClientAuth, detail));
        }
        let ca = self.known_path(leaf_der, others, now)?;
        // only a certificate that is the device's own says anything about revocation
        if self
            .revoked
            .contains(&(identity.device, leaf.serial.clone()))
        {
            return Err((
                ChainReason::Revoked,
                format!("serial {} is revoked", leaf.serial),
            ));
        }
        Ok(ca)
    }

    /// The same as [`RealmPool::path`], from memory where that is as good. A connection asks three
    /// times (handshake, accept, CONNECT), a fleet that comes back asks all at once.
    fn known_path(
        &self,
        leaf: &[u8],
        others: &[impl AsRef<[u8]>],
        now: Timestamp,
    ) -> Result<String, Refused> {
        let key = chain_key(leaf, others);
        if let Some(ca) = self.known.get(&key, now) {
            return Ok(self.cas[ca].fingerprint.clone());
        }
        let ca = self.path(leaf, others, now)?;
        if let Some(validity) = self.cas[ca].validity_with(leaf, others) {
            self.known.insert(key, (ca, validity));
        }
        Ok(self.cas[ca].fingerprint.clone())
    }

    /// Builds a path to one of the CAs; gives its index.
    fn path(
        &self,
        leaf: &[u8],
        others: &[impl AsRef<[u8]>],
        now: Timestamp,
    ) -> Result<usize, Refused> {
        let end_entity = CertificateDer::from(leaf);
        let intermediates: Vec<_> = others
            .iter()
            .map(|other| CertificateDer::from(other.as_ref()))
            .collect();
        let at = unix_time(now);
        let mut worst = (ChainReason::UnknownIssuer, String::new());
        for (index, ca) in self.cas.iter().enumerate() {
            match ca
                .verifier
                .verify_client_cert(&end_entity, &intermediates, at)
            {
                Ok(_) if ca.validity.contains(&now) => return Ok(index),
                Ok(_) => {
                    let detail = format!(
                        "the realm's CA {} is valid from {} to {}",
                        ca.fingerprint,
                        ca.validity.start(),
                        ca.validity.end()
                    );
                    worst = (ChainReason::CaExpired, detail);
                }
                Err(error) => {
                    let reason = ChainReason::of(&error, others);
                    // what a CA says that knows the issuer beats "not mine"
                    if reason != ChainReason::UnknownIssuer {
                        worst = (reason, error.to_string());
                    }
                }
            }
        }
        if worst.0 == ChainReason::UnknownIssuer {
            worst.1 = self.why_unknown(leaf, others);
        }
        Err(worst)
    }

    /// What to say of a chain whose issuer is not known. Names are compared byte by byte, so one
    /// that merely looks the same deserves a word (RFC 5280 section 7.1).
    fn why_unknown(&self, leaf: &[u8], others: &[impl AsRef<[u8]>]) -> String {
        for der in std::iter::once(leaf).chain(others.iter().map(AsRef::as_ref)) {
            let Ok(certificate) = certificate_name::parse(der) else {
                continue;
            };
            let issuer = certificate.issuer();
            let text = issuer.to_string();
            let lookalike = self
                .cas
                .iter()
                .find(|ca| ca.subject.0 == text && ca.subject.1 != issuer.as_raw());
            if let Some(ca) = lookalike {
                return format!(
                    "the issuer has the name of the realm's CA {}, but in another encoding \
                     (UTF8String against PrintableString); they have to be the same bytes",
                    ca.fingerprint
                );
            }
        }
        "the realm has no CA that issued it".to_owned()
    }
}

impl PoolCa {
    fn build(der: Vec<u8>, crls: &[Crl]) -> Result<Self, String> {
        let certificate = certificate_name::parse(&der).map_err(|error| error.to_string())?;
        let validity = certificate_name::validity(&certificate);
        let own_crls: Vec<_> = crls
            .iter()
            .filter(|crl| !crl.of_pool || crl.issuer == certificate.subject().as_raw())
            .map(|crl| crl.der.clone())
            .collect();
        let fingerprint = fingerprint(&der);
        let subject = (
            certificate.subject().to_string(),
            certificate.subject().as_raw().to_vec(),
        );
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(der))
            .map_err(|error| error.to_string())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), crypto_provider())
            .with_crls(own_crls)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            fingerprint,
            subject,
            validity,
            verifier,
        })
    }

    /// When this CA and all these certificates are valid. `None` when one of them is no certificate.
    fn validity_with(
        &self,
        leaf: &[u8],
        others: &[impl AsRef<[u8]>],
    ) -> Option<RangeInclusive<Timestamp>> {
        let (mut start, mut end) = (*self.validity.start(), *self.validity.end());
        for der in std::iter::once(leaf).chain(others.iter().map(AsRef::as_ref)) {
            let validity = certificate_name::validity(&certificate_name::parse(der).ok()?);
            start = start.max(*validity.start());
            end = end.min(*validity.end());
        }
        Some(start..=end)
    }
}

type ChainKey = [u8; 32];

/// Chains that were found good in this pool, by the SHA-256 of what was presented: the CA that each
/// ends in, and the time within which all its certificates are valid. As the pool never changes,
/// within that time the answer cannot either.
#[derive(Default)]
struct KnownChains(Mutex<HashMap<ChainKey, (usize, RangeInclusive<Timestamp>)>>);

impl KnownChains {
    fn get(&self, key: &ChainKey, now: Timestamp) -> Option<usize> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ca, validity) = known.get(key)?;
        validity.contains(&now).then_some(*ca)
    }

    fn insert(&self, key: ChainKey, found: (usize, RangeInclusive<Timestamp>)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_CHAINS_MAX {
            known.clear();
        }
        known.insert(key, found);
    }
}

/// Each certificate with its length in front, so that no two chains look the same.
fn chain_key(leaf: &[u8], others: &[impl AsRef<[u8]>]) -> ChainKey {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    for der in std::iter::once(leaf).chain(others.iter().map(AsRef::as_ref)) {
        digest.update(&der.len().to_be_bytes());
        digest.update(der);
    }
    let mut key = [0; 32];
    key.copy_from_slice(digest.finish().as_ref());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_told_apart_by_where_their_certificates_end() {
        let one: [&[u8]; 1] = [b"bc"];
        let two: [&[u8]; 2] = [b"b", b"c"];
        let none: [&[u8]; 0] = [];
        let keys = [
            chain_key(b"a", &one),
            chain_key(b"a", &two),
            chain_key(b"ab", &two[1..]),
            chain_key(b"abc", &none),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(
                !keys[..index].contains(key),
                "chain {index} looks like another"
            );
        }
    }

    #[test]
    fn no_more_chains_are_remembered_than_stated() {
        let known = KnownChains::default();
        for number in 0..=KNOWN_CHAINS_MAX as u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            known.insert(key, (0, Timestamp::MIN..=Timestamp::MAX));
            assert_eq!(known.get(&key, Timestamp::MIN), Some(0));
        }
        assert!(known.0.lock().unwrap().len() <= KNOWN_CHAINS_MAX);
    }
}
