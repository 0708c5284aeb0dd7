//! The CA pools, one per realm, and the question that they answer: whose chain is this?
//!
//! The CN of the leaf names the realm, and only that realm's CAs are tried. A pool is immutable;
//! changing it puts another in its place, whole or not at all, and the next question meets the new
//! one. A realm whose pool cannot be built keeps the pool that it had, and no other realm notices.

mod crl;
mod realm_pool;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::pki_types::UnixTime;

use super::{ChainError, ChainReason, PeerCertificate, certificate_name::Leaf, realm_ca};
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    store::{CaRow, RevocationRow},
};
use realm_pool::RealmPool;

/// Most certificates in a presented chain, the leaf included. Bounds the work of path building.
const CHAIN_CERTIFICATES_MAX: usize = 6;
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

pub(super) fn unix_time(now: Timestamp) -> UnixTime {
    let micros = u64::try_from(now.as_micros()).unwrap_or(0);
    UnixTime::since_unix_epoch(Duration::from_micros(micros))
}
