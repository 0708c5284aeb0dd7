//! Pairing: a device is registered, proves itself by its secret, and is given certificates.
//!
//! The secret is 256 random bits, shown once; what is kept is its HMAC under the master key,
//! compared in constant time. A bcrypt hash imported from Astarte is recognised and replaced at
//! its first use. Failed attempts are held off by device and address. A certificate is handed out
//! only after its serial is on record.

use std::{net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::rand::SecureRandom;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::{
    Engine,
    actor::Actor,
    attempts::SecretAttempts,
    live::LiveDevices,
    realms::{RealmError, Realms},
};
use crate::{
    clock::{SharedClock, Timestamp},
    identity::{DeviceId, Identity, InvalidDeviceId, RealmName},
    interface::Introspection,
    mqtt::DisconnectReason,
    pki::{Cause, CsrError, MasterKey, Pools, Verdict},
    store::{Change, DeviceRow, SecretHash, Store, StoreError, Subject},
};

/// The version of Astarte that Pairing says it is.
pub const ASTARTE_VERSION: &str = "1.3.0";

/// Bytes of a credentials secret.
const SECRET_BYTES: usize = 32;
/// Longest secret that is looked at, in bytes.
const SECRET_TEXT_MAX: usize = 256;
/// bcrypt checks at a time; each holds a core for a good part of a second.
const BCRYPT_AT_ONCE: usize = 2;
/// Highest bcrypt cost that is worked through; each step doubles the time.
const BCRYPT_COST_MAX: u32 = 14;

/// What Pairing is told by the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairingSettings {
    /// Where devices connect, `mqtts://<host>:<port>/`.
    pub broker_url: String,
    /// Validity of issued certificates.
    pub certificate_lifetime: Duration,
    /// Whether the broker demands a device's newest certificate.
    pub enforce_latest_certificate: bool,
    /// Wrong secrets that are looked at in a minute, for each device and address; more are held
    /// off.
    pub failed_secrets_per_minute: NonZeroU32,
}

/// What [`Pairing`] is made of.
#[derive(Debug)]
pub struct PairingParts {
    /// Where devices are kept.
    pub store: Arc<dyn Store>,
    /// The realms with their CAs.
    pub realms: Arc<Realms>,
    /// The engine, which remembers devices.
    pub engine: Arc<Engine>,
    /// Who holds the connections.
    pub live: Arc<dyn LiveDevices>,
    /// The pools that certificates are verified with.
    pub pools: Pools,
    /// Key of the secrets' HMAC.
    pub master_key: Arc<MasterKey>,
    /// Time.
    pub clock: SharedClock,
}

/// The pairing service.
#[derive(Debug)]
pub struct Pairing {
    parts: PairingParts,
    settings: PairingSettings,
    attempts: SecretAttempts,
    bcrypt: Arc<Semaphore>,
}

/// A device that was just registered.
#[derive(Debug)]
pub struct Registered {
    /// Its id in canonical form.
    pub device: DeviceId,
    /// Its secret: 44 characters of base64. Not kept.
    pub credentials_secret: Zeroizing<String>,
}

/// Why a device was not registered or unregistered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The id is not one, even an extended one.
    #[error(transparent)]
    InvalidId(#[from] InvalidDeviceId),
    /// The device is registered and has asked for a certificate.
    #[error("device already registered")]
    AlreadyRegistered,
    /// The realm's limit is reached.
    #[error("device registration limit reached")]
    LimitReached,
    /// No such realm.
    #[error("realm not found")]
    RealmNotFound,
    /// No such device.
    #[error("device not found")]
    DeviceNotFound,
    /// The machine has no randomness.
    #[error("no randomness for a secret")]
    NoRandomness,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

/// Why a device has not proved itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// No such device.
    #[error("device not found")]
    UnknownDevice,
    /// Another secret, or the device is unregistered.
    #[error("wrong credentials secret")]
    Wrong,
    /// Too many failures; nothing was compared.
    #[error("too many failed attempts")]
    HeldOff(Duration),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why no certificate was issued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The device's credentials are inhibited, or it is being deleted.
    #[error("the device's credentials are inhibited")]
    Inhibited,
    /// The request is not a usable CSR.
    #[error(transparent)]
    Csr(#[from] CsrError),
    /// The device was deleted meanwhile.
    #[error("device not found")]
    DeviceNotFound,
    /// The realm's CA cannot be used.
    #[error(transparent)]
    Realm(#[from] RealmError),
    /// The signer died; a bug.
    #[error("the signer failed")]
    Signer,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

/// How far a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairingStatus {
    /// Registered, but it never asked for a certificate.
    Pending,
    /// It has asked for one.
    Confirmed,
    /// Its credentials are inhibited.
    Inhibited,
}

impl PairingStatus {
    /// Of a device.
    #[must_use]
    pub const fn of(device: &DeviceRow) -> Self {
        if device.credentials_inhibited {
            Self::Inhibited
        } else if device.first_credentials_request.is_some() {
            Self::Confirmed
        } else {
            Self::Pending
        }
    }

    /// Its name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
            Self::Inhibited => "inhibited",
        }
    }
}

impl Pairing {
    /// The service.
    #[must_use]
    pub fn new(parts: PairingParts, settings: PairingSettings) -> Self {
        let attempts = SecretAttempts::new(parts.clock.clone(), settings.failed_secrets_per_minute);
        Self {
            parts,
            settings,
            attempts,
            bcrypt: Arc::new(Semaphore::new(BCRYPT_AT_ONCE)),
        }
    }

    /// Where devices connect.
    #[must_use]
    pub fn broker_url(&self) -> &str {
        &self.settings.broker_url
    }

    /// Registers a device; one that has never asked for a certificate gets a new secret.
    ///
    /// # Errors
    /// `AlreadyRegistered`, `LimitReached`, `RealmNotFound`, or when the store fails.
    pub async fn register(
        &self,
        identity: Identity,
        introspection: Option<Introspection>,
        by: &Actor,
    ) -> Result<Registered, RegisterError> {
        let secret = new_secret()?;
        let at = self.parts.clock.wall();
        let audit = by.did(at, "device.register", &identity);
        let device = identity.device;
        let change = Change::RegisterDevice {
            identity: identity.clone(),
            secret: SecretHash::Hmac(self.parts.master_key.secret_hmac(&secret)),
            introspection,
            at,
        };
        self.parts.store.apply(change, audit).await?;
        self.parts.engine.refresh_device(&identity);
        Ok(Registered {
            device,
            credentials_secret: secret,
        })
    }

    /// Forgets a device's secret: every secret is refused until it is registered again.
    ///
    /// # Errors
    /// `DeviceNotFound`, or when the store fails.
    pub async fn unregister(&self, identity: &Identity, by: &Actor) -> Result<(), RegisterError> {
        let audit = by.did(self.parts.clock.wall(), "device.unregister", identity);
        Ok(self
            .parts
            .store
            .apply(Change::UnregisterDevice(identity.clone()), audit)
            .await?)
    }

    /// The device that proves itself by `secret`. `address` is where it calls from; `None` is the
    /// Unix socket, where attempts are not counted.
    ///
    /// # Errors
    /// As [`SecretError`] says.
    pub async fn authenticate(
        &self,
        identity: &Identity,
        secret: &str,
        address: Option<IpAddr>,
    ) -> Result<DeviceRow, SecretError> {
        if let Some(wait) = address.and_then(|at| self.attempts.held_off(identity, at)) {
            return Err(SecretError::HeldOff(wait));
        }
        let device = self
            .device(identity)
            .await?
            .ok_or(SecretError::UnknownDevice)?;
        if self.proves(&device, secret).await {
            return Ok(device);
        }
        if let Some(address) = address {
            self.attempts.failed(identity, address);
        }
        Err(SecretError::Wrong)
    }

    /// One device, for a caller who needs no secret.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn device(&self, identity: &Identity) -> Result<Option<DeviceRow>, StoreError> {
        self.parts.store.device(identity).await
    }

    async fn proves(&self, device: &DeviceRow, secret: &str) -> bool {
        match &device.secret {
            _ if secret.len() > SECRET_TEXT_MAX => false,
            None => false,
            Some(SecretHash::Hmac(kept)) => self.parts.master_key.verify_secret(secret, kept),
            Some(SecretHash::Bcrypt(hash)) => {
                let proved = self.bcrypt_matches(hash.clone(), secret).await;
                if proved {
                    self.replace_hash(&device.identity, secret).await;
                }
                proved
            }
        }
    }

    async fn bcrypt_matches(&self, hash: String, secret: &str) -> bool {
        let cost = hash
            .parse::<bcrypt::HashParts>()
            .map(|parts| parts.get_cost());
        if !cost.is_ok_and(|cost| cost <= BCRYPT_COST_MAX) {
            tracing::warn!("an imported secret hash is unreadable or too costly");
            return false;
        }
        let Ok(_turn) = self.bcrypt.acquire().await else {
            return false;
        };
        let secret = Zeroizing::new(secret.to_owned());
        tokio::task::spawn_blocking(move || bcrypt::verify(secret.as_bytes(), &hash))
            .await
            .is_ok_and(|verified| verified.unwrap_or(false))
    }

    /// The proof stands even if the hash cannot be replaced now: it is tried again next time.
    async fn replace_hash(&self, identity: &Identity, secret: &str) {
        let hash = SecretHash::Hmac(self.parts.master_key.secret_hmac(secret));
        let audit = Actor::tanit().did(self.parts.clock.wall(), "device.replace_secret", identity);
        let change = Change::ReplaceSecret(identity.clone(), hash);
        if let Err(error) = self.parts.store.apply(change, audit).await {
            tracing::warn!(device = %identity, %error, "an imported hash was not replaced");
        }
    }

    /// Issues a certificate for the key of a CSR, valid at once: one PEM certificate.
    ///
    /// # Errors
    /// As [`IssueError`] says; nothing is handed out that is not on record.
    pub async fn issue(
        &self,
        device: &DeviceRow,
        csr_pem: String,
        address: Option<IpAddr>,
    ) -> Result<String, IssueError> {
        if device.credentials_inhibited || device.deletion_in_progress {
            return Err(IssueError::Inhibited);
        }
        let identity = device.identity.clone();
        let ca = self.parts.realms.issuing_ca(&identity.realm).await?;
        let (now, lifetime) = (self.parts.clock.wall(), self.settings.certificate_lifetime);
        let subject = identity.clone();
        // an RSA key takes milliseconds to sign
        let signed =
            tokio::task::spawn_blocking(move || ca.issue(&csr_pem, &subject, lifetime, now));
        let certificate = signed.await.map_err(|_| IssueError::Signer)??;
        let change = Change::RecordCertificate {
            identity: identity.clone(),
            serial: certificate.serial,
            aki: certificate.aki,
            not_after: certificate.not_after,
            ip: address,
            at: now,
        };
        let audit = device_actor(&identity, address).did(now, "certificate.issue", &identity);
        self.parts.store.apply(change, audit).await?;
        if self.settings.enforce_latest_certificate {
            // whatever certificate it is connected with is not the newest any more
            self.parts
                .live
                .disconnect(&identity, DisconnectReason::Superseded)
                .await;
        }
        Ok(certificate.pem)
    }

    /// What the broker would say to this certificate if the device came with it now.
    #[must_use]
    pub fn verify(&self, device: &DeviceRow, certificate_pem: &str) -> Verdict {
        let verdict = self
            .parts
            .pools
            .verdict(certificate_pem, &device.identity, self.now());
        let valid = matches!(verdict, Verdict::Valid { .. });
        if valid && self.settings.enforce_latest_certificate && !is_newest(device, certificate_pem)
        {
            return Verdict::Invalid(Cause::Revoked);
        }
        verdict
    }

    /// Now, as answers are stamped.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.parts.clock.wall()
    }
}

/// Whether this is the certificate that was issued to the device last.
fn is_newest(device: &DeviceRow, certificate_pem: &str) -> bool {
    let serial = pem::parse(certificate_pem).ok().and_then(|block| {
        let (_, certificate) = x509_parser::parse_x509_certificate(block.contents()).ok()?;
        Some(format!("{:x}", certificate.tbs_certificate.serial))
    });
    serial.is_some() && serial == device.certificate_serial
}

/// A device that acts on its own account.
fn device_actor(identity: &Identity, address: Option<IpAddr>) -> Actor {
    Actor::named(match address {
        Some(address) => format!("device:{identity}@{address}"),
        None => format!("device:{identity}"),
    })
}

/// 32 random bytes in standard base64 with padding: 44 characters.
fn new_secret() -> Result<Zeroizing<String>, RegisterError> {
    let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
    ring::rand::SystemRandom::new()
        .fill(bytes.as_mut_slice())
        .map_err(|_| RegisterError::NoRandomness)?;
    Ok(Zeroizing::new(STANDARD.encode(bytes.as_slice())))
}

/// The identity that a Pairing route names; extended ids are cut to their first 128 bits.
///
/// # Errors
/// When it is not a device id.
pub fn identity_from(realm: &RealmName, hw_id: &str) -> Result<Identity, InvalidDeviceId> {
    Ok(Identity::new(
        realm.clone(),
        DeviceId::parse_extended(hw_id)?,
    ))
}

impl From<StoreError> for RegisterError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict(Subject::Device) => Self::AlreadyRegistered,
            StoreError::LimitReached => Self::LimitReached,
            StoreError::NotFound(Subject::Realm) => Self::RealmNotFound,
            StoreError::NotFound(Subject::Device) => Self::DeviceNotFound,
            other => Self::Store(other),
        }
    }
}

impl From<StoreError> for IssueError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(Subject::Device) => Self::DeviceNotFound,
            other => Self::Store(other),
        }
    }
}
