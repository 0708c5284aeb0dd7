//! The CA pools, one per realm, and the question that they answer: whose chain is this?
//!
//! The CN of the leaf names the realm, and only that realm's CAs are tried. A pool is immutable;
//! changing it puts another in its place, whole or not at all, and the next question meets the new
//! one. A realm whose pool cannot be built keeps the pool that it had, and no other realm notices.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime, pem::PemObject as _},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use x509_parser::{prelude::FromDer as _, revocation_list::CertificateRevocationList};

use super::{
    ChainError, ChainReason, PeerCertificate,
    certificate_name::{self, Leaf},
    crypto_provider, fingerprint, realm_ca,
};
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    store::{CaRow, RevocationRow},
};

/// Most certificates in a presented chain, the leaf included. Bounds the work of path building.
pub(super) const CHAIN_CERTIFICATES_MAX: usize = 6;
/// Most CAs in a realm's pool.
const POOL_CAS_MAX: usize = 64;

/// What a realm's pool is made of.
#[derive(Clone, Debug, Default)]
pub struct PoolContents {
    /// The CAs, one PEM block each: roots or intermediates.
    pub certificates_pem: Vec<String>,
    /// Revoked certificates by device and serial number (lower-case hexadecimal, no leading zeros).
    pub revoked: Vec<(DeviceId, String)>,
    /// The realm's CRL file: one or more PEM blocks `X509 CRL`.
    pub crl_pem: Option<String>,
}

impl PoolContents {
    /// From what the store holds of a realm, and its CRL file.
    #[must_use]
    pub fn from_rows(
        cas: &[CaRow],
        revocations: &[RevocationRow],
        crl_pem: Option<String>,
    ) -> Self {
        Self {
            certificates_pem: cas.iter().map(|ca| ca.certificate_pem.clone()).collect(),
            revoked: revocations
                .iter()
                .map(|row| (row.identity.device, row.serial.clone()))
                .collect(),
            crl_pem,
        }
    }
}

/// Why a realm's pool was not replaced; the realm keeps the one it had. The operator's to mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A CA is no CA.
    #[error("CA number {index} of the realm {realm} cannot be used")]
    Ca {
        /// Whose.
        realm: RealmName,
        /// Which, counted from 1.
        index: usize,
        /// Why.
        source: realm_ca::CaError,
    },
    /// Too many of them.
    #[error("the realm {realm} has {count} CAs, more than {POOL_CAS_MAX}; remove old ones")]
    TooManyCas {
        /// Whose.
        realm: RealmName,
        /// How many.
        count: usize,
    },
    /// The CRL is broken.
    #[error("the CRL of the realm {realm} cannot be used: {what}")]
    Crl {
        /// Whose.
        realm: RealmName,
        /// Why.
        what: String,
    },
    /// The verifier could not be built.
    #[error("the pool of the realm {realm} cannot be used: {what}")]
    Verifier {
        /// Whose.
        realm: RealmName,
        /// Why.
        what: String,
    },
}

/// How often certificates were refused in handshakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalCount {
    /// Realm that the certificates named; `None` when there is no such realm.
    pub realm: Option<RealmName>,
    /// Why.
    pub reason: ChainReason,
    /// How often since start.
    pub count: u64,
}

/// The pools of all realms; a handle, cheap to clone.
#[derive(Clone, Default)]
pub struct Pools(Arc<Shared>);

#[derive(Default)]
struct Shared {
    realms: ArcSwap<HashMap<RealmName, Arc<RealmPool>>>,
    /// Bounded by realms times reasons.
    refusals: Mutex<BTreeMap<(Option<RealmName>, ChainReason), u64>>,
}

struct RealmPool {
    cas: Vec<PoolCa>,
    revoked: HashSet<(DeviceId, String)>,
}

/// One CA with a verifier of its own, so that it is known which CA a chain ends in.
struct PoolCa {
    fingerprint: String,
    /// Its name as text, and as its bytes.
    subject: (String, Vec<u8>),
    not_before: Timestamp,
    not_after: Timestamp,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools")
            .field("realms", &self.0.realms.load().len())
            .finish()
    }
}

impl Pools {
    /// No realm yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a realm's pool in the place of the one it had; live for the next question. A realm
    /// without a CA has a pool that lets nobody in.
    ///
    /// # Errors
    /// When any part cannot be used; then nothing has changed.
    pub fn replace(&self, realm: &RealmName, contents: &PoolContents) -> Result<(), PoolError> {
        let pool = Arc::new(RealmPool::build(realm, contents)?);
        self.0.realms.rcu(|realms| {
            let mut realms = HashMap::clone(realms);
            realms.insert(realm.clone(), Arc::clone(&pool));
            realms
        });
        Ok(())
    }

    /// Removes a realm's pool: none of its devices is let in any more.
    pub fn remove(&self, realm: &RealmName) {
        self.0.realms.rcu(|realms| {
            let mut realms = HashMap::clone(realms);
            realms.remove(realm);
            realms
        });
        self.refusals_held()
            .retain(|(of, _), _| of.as_ref() != Some(realm));
    }

    /// The realms that have a pool.
    #[must_use]
    pub fn realms(&self) -> Vec<RealmName> {
        self.0.realms.load().keys().cloned().collect()
    }

    /// Whose chain this is, and what to keep of it: the leaf first, DER, as the TLS session gives it.
    ///
    /// # Errors
    /// When it is nobody's here.
    pub fn accept(
        &self,
        chain: &[impl AsRef<[u8]>],
        now: Timestamp,
    ) -> Result<(Identity, PeerCertificate), ChainError> {
        let (identity, leaf, ca_fingerprint) = self.find(chain, now)?;
        let peer = PeerCertificate {
            serial: leaf.serial,
            not_after: leaf.not_after,
            ca_fingerprint,
            chain: chain
                .iter()
                .map(|certificate| Arc::from(certificate.as_ref()))
                .collect(),
        };
        Ok((identity, peer))
    }

    /// Whether this chain still is `identity`'s: asked for live connections when a pool has changed.
    ///
    /// # Errors
    /// When it is not.
    pub fn verify(
        &self,
        identity: &Identity,
        chain: &[impl AsRef<[u8]>],
        now: Timestamp,
    ) -> Result<PeerCertificate, ChainError> {
        let (found, peer) = self.accept(chain, now)?;
        if found == *identity {
            return Ok(peer);
        }
        Err(ChainError {
            reason: ChainReason::OtherIdentity,
            realm: Some(found.realm.clone()),
            claimed: Some(found),
            issuer: String::new(),
            detail: format!("the certificate is not {identity}'s"),
        })
    }

    /// How often certificates were refused in handshakes, by realm and reason.
    #[must_use]
    pub fn refusals(&self) -> Vec<RefusalCount> {
        self.refusals_held()
            .iter()
            .map(|((realm, reason), count)| RefusalCount {
                realm: realm.clone(),
                reason: *reason,
                count: *count,
            })
            .collect()
    }

    pub(super) fn count_refusal(&self, error: &ChainError) {
        let mut refusals = self.refusals_held();
        *refusals
            .entry((error.realm.clone(), error.reason))
            .or_default() += 1;
    }

    fn refusals_held(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<(Option<RealmName>, ChainReason), u64>> {
        self.0
            .refusals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity, the leaf and the fingerprint of the CA that the chain ends in.
    pub(super) fn find(
        &self,
        chain: &[impl AsRef<[u8]>],
        now: Timestamp,
    ) -> Result<(Identity, Leaf, String), ChainError> {
        let mut refusal = ChainError {
            reason: ChainReason::NotACertificate,
            realm: None,
            claimed: None,
            issuer: String::new(),
            detail: "no certificate".to_owned(),
        };
        let refused = |mut refusal: ChainError, reason: ChainReason, detail: String| {
            refusal.reason = reason;
            refusal.detail = detail;
            refusal
        };
        let Some((leaf_der, others)) = chain.split_first() else {
            return Err(refusal);
        };
        let leaf_der = leaf_der.as_ref();
        let leaf = match Leaf::read(leaf_der) {
            Ok(leaf) => leaf,
            Err(error) => {
                return Err(refused(
                    refusal,
                    ChainReason::NotACertificate,
                    format!("it {error}"),
                ));
            }
        };
        refusal.issuer.clone_from(&leaf.issuer);
        let identity = match &leaf.identity {
            Ok(identity) => identity.clone(),
            Err(error) => {
                return Err(refused(
                    refusal,
                    ChainReason::CommonName,
                    format!("it {error}"),
                ));
            }
        };
        refusal.claimed = Some(identity.clone());
        let Some(pool) = self.0.realms.load().get(&identity.realm).map(Arc::clone) else {
            let detail = format!("there is no realm {}", identity.realm);
            return Err(refused(refusal, ChainReason::UnknownRealm, detail));
        };
        refusal.realm = Some(identity.realm.clone());
        match pool.check(&identity, &leaf, leaf_der, others, now) {
            Ok(ca) => Ok((identity, leaf, ca)),
            Err((reason, detail)) => Err(refused(refusal, reason, detail)),
        }
    }
}

type Refused = (ChainReason, String);

impl RealmPool {
    fn build(realm: &RealmName, contents: &PoolContents) -> Result<Self, PoolError> {
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
            Some(pem) => read_crls(pem, &ders).map_err(|what| PoolError::Crl {
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
        })
    }

    /// The fingerprint of the CA that the chain ends in.
    fn check(
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
        let ca = self.path(leaf_der, others, now)?;
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

    fn path(
        &self,
        leaf: &[u8],
        others: &[impl AsRef<[u8]>],
        now: Timestamp,
    ) -> Result<String, Refused> {
        let end_entity = CertificateDer::from(leaf);
        let intermediates: Vec<_> = others
            .iter()
            .map(|other| CertificateDer::from(other.as_ref()))
            .collect();
        let at = unix_time(now);
        let mut worst = (
            ChainReason::UnknownIssuer,
            "the realm has no CA that issued it".to_owned(),
        );
        for ca in &self.cas {
            match ca
                .verifier
                .verify_client_cert(&end_entity, &intermediates, at)
            {
                Ok(_) if (ca.not_before..=ca.not_after).contains(&now) => {
                    return Ok(ca.fingerprint.clone());
                }
                Ok(_) => {
                    let detail = format!(
                        "the realm's CA {} is valid from {} to {}",
                        ca.fingerprint, ca.not_before, ca.not_after
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
        let validity = certificate.validity();
        let not_before = certificate_name::timestamp(validity.not_before);
        let not_after = certificate_name::timestamp(validity.not_after);
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
            not_before,
            not_after,
            verifier,
        })
    }
}

#[derive(Clone)]
struct Crl {
    der: CertificateRevocationListDer<'static>,
    issuer: Vec<u8>,
    /// Issued by a CA of the pool, not by an intermediate below it.
    of_pool: bool,
}

/// Reads a CRL file. The signature of a CRL whose issuer is in the pool is checked here, so that a
/// broken file is noticed when it is read and not when a device connects; one of an intermediate is
/// checked when a chain shows that intermediate.
fn read_crls(text: &str, cas: &[Vec<u8>]) -> Result<Vec<Crl>, String> {
    let ders = CertificateRevocationListDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("not PEM: {error}"))?;
    if ders.is_empty() {
        return Err("there is no PEM block X509 CRL in it".to_owned());
    }
    let cas = cas
        .iter()
        .map(|der| certificate_name::parse(der))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    let mut crls = Vec::with_capacity(ders.len());
    for der in ders {
        let Ok(([], crl)) = CertificateRevocationList::from_der(&der) else {
            return Err("it holds a block that is no CRL".to_owned());
        };
        let issuer = crl.issuer().as_raw().to_vec();
        let mut issuers = cas
            .iter()
            .filter(|ca| ca.subject().as_raw() == issuer)
            .peekable();
        let of_pool = issuers.peek().is_some();
        if of_pool && !issuers.any(|ca| crl.verify_signature(ca.public_key()).is_ok()) {
            return Err(format!(
                "its signature is not by the CA {} that it names",
                crl.issuer()
            ));
        }
        crls.push(Crl {
            der,
            issuer,
            of_pool,
        });
    }
    Ok(crls)
}

pub(super) fn unix_time(now: Timestamp) -> UnixTime {
    let micros = u64::try_from(now.as_micros()).unwrap_or(0);
    UnixTime::since_unix_epoch(Duration::from_micros(micros))
}
