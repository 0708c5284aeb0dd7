//! Realms and their CAs: made, changed, removed, and live at once.
//!
//! A realm's pool (its CAs, its revoked serials, its CRL file) is rebuilt from the store after
//! every change and swapped in before the call returns; connections that the new pool would refuse
//! are closed. One rebuild runs at a time, so that an older state never replaces a newer one. A
//! realm whose pool cannot be built keeps its old one, or none, and never takes another realm down.

mod cas;
mod error;

use std::{path::PathBuf, sync::Arc, time::Duration};

use zeroize::Zeroizing;

pub use cas::CaView;
pub use error::RealmError;

use super::{
    Engine,
    actor::Actor,
    live::LiveDevices,
    tokens::{self, TokenApi, TokenKey, TokenKeyPair},
};
use crate::{
    clock::SharedClock,
    identity::RealmName,
    mqtt::DisconnectReason,
    pki::{MasterKey, PoolContents, Pools},
    store::{Change, DeviceStats, RealmRow, Store, StoreError},
};

/// Largest CRL file that is read, in bytes.
const CRL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Label under which realm keys for tokens are sealed.
const TOKEN_KEY_LABEL: &str = "realm-jwt-key";

/// The realms of this installation.
#[derive(Debug)]
pub struct Realms {
    store: Arc<dyn Store>,
    engine: Arc<Engine>,
    live: Arc<dyn LiveDevices>,
    pools: Pools,
    master_key: Arc<MasterKey>,
    clock: SharedClock,
    /// Directory of the CRL files, `<realm>.pem` each.
    crls: PathBuf,
    /// Held over reading the store and swapping the pool.
    rebuilding: tokio::sync::Mutex<()>,
}

/// A realm to be made.
#[derive(Debug)]
pub struct NewRealm {
    /// Name.
    pub name: RealmName,
    /// Where the key for its tokens comes from.
    pub key: NewTokenKey,
    /// Most devices that may be registered.
    pub device_registration_limit: Option<u64>,
    /// Longest time that datastream values are kept, in seconds; 0 is without limit.
    pub datastream_maximum_storage_retention: u64,
}

/// Where the key for a realm's tokens comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewTokenKey {
    /// Its owner has the private key; this is the public one, PEM.
    Given(String),
    /// A pair is made here and the private key kept, sealed.
    Keep,
    /// A pair is made here and the private key handed out once.
    Return,
}

/// A realm that was made.
#[derive(Debug)]
pub struct CreatedRealm {
    /// Its row.
    pub row: RealmRow,
    /// Its private key for tokens where it was asked for, PEM; not kept.
    pub private_key_pem: Option<Zeroizing<String>>,
}

/// Changes to a realm; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealmPatch {
    /// New public key, PEM; a kept private key is dropped.
    pub jwt_public_key_pem: Option<String>,
    /// New limit; the inner `None` removes it.
    pub device_registration_limit: Option<Option<u64>>,
    /// New maximum in seconds; 0 is none.
    pub datastream_maximum_storage_retention: Option<u64>,
}

/// What [`Realms`] is made of.
#[derive(Debug)]
pub struct RealmsParts {
    /// Where realms are kept.
    pub store: Arc<dyn Store>,
    /// The engine, which holds the realms' interfaces.
    pub engine: Arc<Engine>,
    /// Who holds the connections.
    pub live: Arc<dyn LiveDevices>,
    /// The pools that the listener verifies with.
    pub pools: Pools,
    /// Seals private keys.
    pub master_key: Arc<MasterKey>,
    /// Time.
    pub clock: SharedClock,
    /// Directory of the CRL files.
    pub crls: PathBuf,
}

impl Realms {
    /// The realms kept in the store; their pools are empty until [`Realms::load`].
    #[must_use]
    pub fn new(parts: RealmsParts) -> Self {
        let RealmsParts {
            store,
            engine,
            live,
            pools,
            master_key,
            clock,
            crls,
        } = parts;
        Self {
            store,
            engine,
            live,
            pools,
            master_key,
            clock,
            crls,
            rebuilding: tokio::sync::Mutex::default(),
        }
    }

    /// Builds the pools of all realms, at start and on reload, and closes the connections that
    /// they refuse. Answers with the realms whose pool was refused, each with the reason; those
    /// keep their old pool.
    ///
    /// # Errors
    /// When the realms cannot be listed.
    pub async fn load(&self) -> Result<Vec<(RealmName, RealmError)>, StoreError> {
        let mut refused = Vec::new();
        for row in self.store.realms().await? {
            if let Err(error) = self.rebuild_pool(&row.name).await {
                tracing::warn!(realm = %row.name, %error, "the realm's pool was not replaced");
                refused.push((row.name, error));
            }
        }
        self.live.reverify().await;
        Ok(refused)
    }

    /// All realms by name.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self) -> Result<Vec<RealmRow>, StoreError> {
        self.store.realms().await
    }

    /// One realm.
    ///
    /// # Errors
    /// `NotFound`, or when the store fails.
    pub async fn show(&self, realm: &RealmName) -> Result<RealmRow, RealmError> {
        self.store.realm(realm).await?.ok_or(RealmError::NotFound)
    }

    /// Devices of a realm, counted.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn stats(&self, realm: &RealmName) -> Result<DeviceStats, StoreError> {
        self.store.device_stats(realm).await
    }

    /// Makes a realm with its first CA; usable when this returns.
    ///
    /// # Errors
    /// `Exists`, `Key`, or when something here fails.
    pub async fn create(&self, new: NewRealm, by: &Actor) -> Result<CreatedRealm, RealmError> {
        let now = self.clock.wall();
        let (public_key_pem, sealed, returned) = self.token_key(new.key)?;
        let row = RealmRow {
            name: new.name,
            jwt_public_key_pem: public_key_pem,
            jwt_private_key_sealed: sealed,
            device_registration_limit: new.device_registration_limit,
            datastream_maximum_storage_retention: new.datastream_maximum_storage_retention,
            created_at: now,
        };
        let ca = self.new_ca(&row.name)?;
        let change = Change::CreateRealm(row.clone(), ca);
        self.apply(change, by.did(now, "realm.create", &row.name))
            .await?;
        self.rebuild_pool(&row.name).await?;
        self.engine.interfaces().refresh_realm(&row.name).await?;
        Ok(CreatedRealm {
            row,
            private_key_pem: returned,
        })
    }

    /// Public key, sealed private key to keep, private key to hand out.
    #[expect(clippy::type_complexity, reason = "named in the line above, used once")]
    fn token_key(
        &self,
        key: NewTokenKey,
    ) -> Result<(String, Option<Vec<u8>>, Option<Zeroizing<String>>), RealmError> {
        if let NewTokenKey::Given(pem) = key {
            TokenKey::parse(&pem)?;
            return Ok((pem, None, None));
        }
        let pair = TokenKeyPair::generate()?;
        if key == NewTokenKey::Return {
            return Ok((pair.public_key_pem, None, Some(pair.private_key_pem)));
        }
        let sealed = self
            .master_key
            .seal(TOKEN_KEY_LABEL, pair.private_key_pem.as_bytes())
            .map_err(|error| RealmError::Sealed(error.to_string()))?;
        Ok((pair.public_key_pem, Some(sealed), None))
    }

    /// Changes a realm and returns it.
    ///
    /// # Errors
    /// `NotFound`, `Key`, or when the store fails.
    pub async fn patch(
        &self,
        realm: &RealmName,
        patch: RealmPatch,
        by: &Actor,
    ) -> Result<RealmRow, RealmError> {
        if let Some(pem) = &patch.jwt_public_key_pem {
            TokenKey::parse(pem)?;
        }
        let change = Change::UpdateRealm {
            realm: realm.clone(),
            jwt_public_key_pem: patch.jwt_public_key_pem,
            jwt_private_key_sealed: None,
            device_registration_limit: patch.device_registration_limit,
            datastream_maximum_storage_retention: patch.datastream_maximum_storage_retention,
        };
        self.apply(change, by.did(self.clock.wall(), "realm.update", realm))
            .await?;
        self.engine.interfaces().refresh_realm(realm).await?;
        self.show(realm).await
    }

    /// Removes a realm with everything in it. Connections are refused first, then closed; sessions
    /// go before the rows, so that nothing of a device reaches a later owner of its id.
    ///
    /// # Errors
    /// `NotFound`; `DevicesConnected` unless forced; when a store fails. After a failure half-way
    /// the realm is still there, and the call may be repeated.
    pub async fn delete(
        &self,
        realm: &RealmName,
        force: bool,
        by: &Actor,
    ) -> Result<(), RealmError> {
        self.show(realm).await?;
        let connected = self.live.connected_in_realm(realm);
        if connected > 0 && !force {
            return Err(RealmError::DevicesConnected(connected));
        }
        let rebuilding = self.rebuilding.lock().await;
        self.pools.remove(realm);
        let gone = self.remove_realm(realm, by).await;
        drop(rebuilding);
        if gone.is_err() {
            // still there: its devices may come back
            self.rebuild_pool(realm).await?;
        }
        gone
    }

    async fn remove_realm(&self, realm: &RealmName, by: &Actor) -> Result<(), RealmError> {
        self.live
            .disconnect_realm(realm, DisconnectReason::Deleted)
            .await;
        self.live.erase_realm(realm).await?;
        let audit = by.did(self.clock.wall(), "realm.delete", realm);
        self.apply(Change::DeleteRealm(realm.clone()), audit)
            .await?;
        self.engine.interfaces().drop_realm(realm);
        // a device that was let in before the pool was gone
        self.live
            .disconnect_realm(realm, DisconnectReason::Deleted)
            .await;
        self.live.erase_realm(realm).await?;
        Ok(())
    }

    /// Rebuilds a realm's pool and closes the connections that it refuses.
    ///
    /// # Errors
    /// When the pool was refused or the store fails; the old pool stays.
    pub async fn refresh(&self, realm: &RealmName) -> Result<(), RealmError> {
        self.rebuild_pool(realm).await?;
        self.live.reverify().await;
        Ok(())
    }

    async fn rebuild_pool(&self, realm: &RealmName) -> Result<(), RealmError> {
        let _rebuilding = self.rebuilding.lock().await;
        let cas = self.store.cas(realm).await?;
        let revocations = self.store.revocations(realm).await?;
        let contents = PoolContents::from_rows(&cas, &revocations, self.crl(realm).await?);
        self.pools
            .replace(realm, &contents)
            .map_err(|error| RealmError::Pool(error.to_string()))
    }

    /// The realm's CRL file, if there is one.
    async fn crl(&self, realm: &RealmName) -> Result<Option<String>, RealmError> {
        let path = self.crls.join(format!("{realm}.pem"));
        let refuse = |what: String| RealmError::Pool(format!("{}: {what}", path.display()));
        match tokio::fs::metadata(&path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refuse(error.to_string())),
            Ok(metadata) if metadata.len() > CRL_BYTES_MAX => {
                return Err(refuse(format!("is larger than {CRL_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
        }
        tokio::fs::read_to_string(&path)
            .await
            .map(Some)
            .map_err(|error| refuse(error.to_string()))
    }

    /// Signs a token of the realm with its kept private key; it allows everything in `apis`.
    ///
    /// # Errors
    /// `NotFound`, `NoPrivateKey`, `Token`, or when something here fails.
    pub async fn sign_token(
        &self,
        realm: &RealmName,
        apis: &[TokenApi],
        expiry: Option<Duration>,
        by: &Actor,
    ) -> Result<String, RealmError> {
        if apis.is_empty() {
            return Err(RealmError::Token("names no API"));
        }
        if apis.contains(&TokenApi::Housekeeping) {
            return Err(RealmError::Token(
                "a realm's key does not count in Housekeeping",
            ));
        }
        let row = self.show(realm).await?;
        let sealed = row.jwt_private_key_sealed.ok_or(RealmError::NoPrivateKey)?;
        let opened = self
            .master_key
            .open(TOKEN_KEY_LABEL, &sealed)
            .map_err(|error| RealmError::Sealed(error.to_string()))?;
        let pem = std::str::from_utf8(&opened)
            .map_err(|_| RealmError::Sealed("is not text".to_owned()))?;
        let now = self.clock.wall();
        let token = tokens::sign(pem, &tokens::claims(apis, now, expiry))?;
        self.apply(Change::Note, by.did(now, "token.sign", realm))
            .await?;
        Ok(token)
    }

    async fn apply(
        &self,
        change: Change,
        audit: crate::store::AuditEntry,
    ) -> Result<(), RealmError> {
        use crate::store::Subject;
        self.store
            .apply(change, audit)
            .await
            .map_err(|error| match error {
                StoreError::NotFound(Subject::Realm) => RealmError::NotFound,
                StoreError::Conflict(Subject::Realm) => RealmError::Exists,
                StoreError::NotFound(Subject::Ca) => RealmError::CaNotFound,
                StoreError::Conflict(Subject::Ca) => RealmError::CaExists,
                other => RealmError::Store(other),
            })
    }
}
