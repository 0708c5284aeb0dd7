//! The installed interfaces of all realms, compiled and in memory, and how they are changed.
//!
//! Readers take a snapshot and never wait. Changes are made one at a time: checked, stored with
//! their audit row, then swapped in, so that a change is live when the call returns and a message is
//! judged by one version of an interface, never by a mixture.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use serde_json::Value as Json;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::counters::EngineCounters;
use crate::{
    identity::RealmName,
    interface::{
        Interface, InterfaceKey, InvalidInterface, Mapping, UpdateRefused, check_update,
        names_collide,
    },
    store::{AuditEntry, Change, InterfaceRow, Store, StoreError, Subject},
};

/// What is installed in one realm.
#[derive(Clone, Debug, Default)]
pub struct RealmInterfaces {
    by_name: HashMap<Arc<str>, BTreeMap<u32, Arc<Interface>>>,
    /// The realm's `datastream_maximum_storage_retention`; 0 is without limit.
    retention_seconds_max: u64,
}

impl RealmInterfaces {
    /// An interface by name and major.
    #[must_use]
    pub fn get(&self, name: &str, major: u32) -> Option<&Arc<Interface>> {
        self.by_name.get(name)?.get(&major)
    }

    /// How long a datastream value of this mapping is kept; `None` is for ever.
    #[must_use]
    pub fn retention(&self, mapping: &Mapping) -> Option<Duration> {
        let realm = Some(self.retention_seconds_max).filter(|seconds| *seconds > 0);
        let own = mapping.database_retention_ttl.map(u64::from);
        let seconds = match (own, realm) {
            (Some(own), Some(realm)) => Some(own.min(realm)),
            (own, realm) => own.or(realm),
        };
        seconds.map(Duration::from_secs)
    }

    fn insert(&mut self, interface: Arc<Interface>) {
        let name = Arc::clone(&interface.key().name);
        self.by_name
            .entry(name)
            .or_default()
            .insert(interface.major(), interface);
    }

    fn remove(&mut self, key: &InterfaceKey) {
        if let Some(majors) = self.by_name.get_mut(&key.name) {
            majors.remove(&key.major);
            if majors.is_empty() {
                self.by_name.remove(&key.name);
            }
        }
    }

    /// Refuses a key that is installed, or a name that another one is taken for.
    fn check_free(&self, name: &str, major: u32) -> Result<(), InterfaceChangeError> {
        if let Some(installed) = self.get(name, major) {
            return Err(InterfaceChangeError::AlreadyInstalled(
                installed.key().clone(),
            ));
        }
        match self.by_name.keys().find(|other| names_collide(name, other)) {
            Some(other) => Err(InterfaceChangeError::NameCollision(Arc::clone(other))),
            None => Ok(()),
        }
    }
}

/// Why an interface was not installed, updated or deleted. By whose fault: all but the last are
/// the caller's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceChangeError {
    /// There is no such realm: 404.
    #[error("realm does not exist")]
    RealmNotFound,
    /// The document breaks a rule: 422, with the fields in it.
    #[error("the interface {0}")]
    Invalid(#[from] InvalidInterface),
    /// Name and major are installed: 409.
    #[error("interface {0} already exists")]
    AlreadyInstalled(InterfaceKey),
    /// Another installed name differs from this one in hyphens or case only: 409.
    #[error("the name is too close to the installed interface {0}")]
    NameCollision(Arc<str>),
    /// The document's name is not that of the address: 409.
    #[error("the interface's name does not match the address")]
    NameMismatch,
    /// The document's major is not that of the address: 409.
    #[error("the interface's major version does not match the address")]
    MajorMismatch,
    /// Not installed: 404.
    #[error("interface {0} is not installed")]
    NotInstalled(InterfaceKey),
    /// The update is not one that a minor version may make: 409.
    #[error(transparent)]
    UpdateRefused(#[from] UpdateRefused),
    /// Only major version 0 can be deleted: 403.
    #[error("only major version 0 can be deleted")]
    MajorNotZero,
    /// A device declares it in its introspection: 403.
    #[error("interface {0} is declared by a device")]
    InUse(InterfaceKey),
    /// The store did not do it: 503 when it is not available, or else 500.
    #[error("the interface was not changed")]
    Store(#[source] StoreError),
}

impl From<StoreError> for InterfaceChangeError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(Subject::Realm) => Self::RealmNotFound,
            other => Self::Store(other),
        }
    }
}

type Realms = HashMap<RealmName, Arc<RealmInterfaces>>;

/// The installed interfaces of all realms.
#[derive(Debug)]
pub struct Interfaces {
    store: Arc<dyn Store>,
    counters: Arc<EngineCounters>,
    tracker: TaskTracker,
    realms: ArcSwap<Realms>,
    /// Held by whoever changes something.
    changes: Mutex<()>,
}

impl Interfaces {
    pub(super) fn new(
        store: Arc<dyn Store>,
        counters: Arc<EngineCounters>,
        tracker: TaskTracker,
    ) -> Self {
        Self {
            store,
            counters,
            tracker,
            realms: ArcSwap::default(),
            changes: Mutex::new(()),
        }
    }

    /// Reads everything anew from the store. A row that cannot be compiled is left out, with an
    /// error line: one interface never takes the others down.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        let mut realms: HashMap<RealmName, RealmInterfaces> = HashMap::new();
        for realm in self.store.realms().await? {
            let seconds = realm.datastream_maximum_storage_retention;
            realms.entry(realm.name).or_default().retention_seconds_max = seconds;
        }
        for row in self.store.interfaces().await? {
            match Interface::parse(row.document.as_bytes()) {
                Ok(interface) => {
                    realms
                        .entry(row.realm)
                        .or_default()
                        .insert(Arc::new(interface));
                }
                Err(error) => tracing::error!(
                    realm = %row.realm,
                    interface = %row.key,
                    error = &error as &dyn std::error::Error,
                    "an installed interface cannot be read; it is not available"
                ),
            }
        }
        let realms = realms
            .into_iter()
            .map(|(name, realm)| (name, Arc::new(realm)))
            .collect();
        self.realms.store(Arc::new(realms));
        Ok(())
    }

    /// What is installed in a realm now: one snapshot.
    #[must_use]
    pub fn of_realm(&self, realm: &RealmName) -> Arc<RealmInterfaces> {
        self.realms.load().get(realm).cloned().unwrap_or_default()
    }

    /// One interface.
    #[must_use]
    pub fn get(&self, realm: &RealmName, name: &str, major: u32) -> Option<Arc<Interface>> {
        self.realms.load().get(realm)?.get(name, major).cloned()
    }

    /// The installed majors of an interface, ascending; empty when there is none.
    #[must_use]
    pub fn majors(&self, realm: &RealmName, name: &str) -> Vec<u32> {
        let realm = self.of_realm(realm);
        realm
            .by_name
            .get(name)
            .map(|majors| majors.keys().copied().collect())
            .unwrap_or_default()
    }

    /// The names of the installed interfaces, sorted.
    #[must_use]
    pub fn names(&self, realm: &RealmName) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.of_realm(realm).by_name.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// All installed interfaces, by name and major.
    #[must_use]
    pub fn all(&self, realm: &RealmName) -> Vec<Arc<Interface>> {
        let realm = self.of_realm(realm);
        let mut all: Vec<_> = realm
            .by_name
            .values()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect();
        all.sort_unstable_by(|one, other| one.key().cmp(other.key()));
        all
    }

    /// Installs an interface. Live when the call returns.
    ///
    /// # Errors
    /// The first of: the document breaks a rule, a retention is above the realm's, name and major
    /// are installed, the name collides; or the store does not do it.
    ///
    /// # Cancel safety
    /// Once begun it is carried out, also if the future is dropped.
    pub async fn install(
        self: &Arc<Self>,
        realm: &RealmName,
        document: &Json,
        audit: AuditEntry,
    ) -> Result<Arc<Interface>, InterfaceChangeError> {
        let (this, realm, document) = (Arc::clone(self), realm.clone(), document.clone());
        self.detached(async move { this.do_install(&realm, &document, audit).await })
            .await
    }

    /// Replaces an interface by a newer minor. Live when the call returns.
    ///
    /// # Errors
    /// The first of: the document breaks a rule, it is not the one of the address, nothing is
    /// installed there, the change is more than a minor version may change; or the store does not
    /// do it.
    ///
    /// # Cancel safety
    /// Once begun it is carried out, also if the future is dropped.
    pub async fn update(
        self: &Arc<Self>,
        realm: &RealmName,
        key: &InterfaceKey,
        document: &Json,
        audit: AuditEntry,
    ) -> Result<Arc<Interface>, InterfaceChangeError> {
        let (this, realm, document) = (Arc::clone(self), realm.clone(), document.clone());
        let key = key.clone();
        self.detached(async move { this.do_update(&realm, &key, &document, audit).await })
            .await
    }

    /// Removes an interface of major 0 with all data on it.
    ///
    /// # Errors
    /// The first of: the major is not 0, it is not installed, a device declares it; or the store
    /// does not do it.
    ///
    /// # Cancel safety
    /// Once begun it is carried out, also if the future is dropped.
    pub async fn delete(
        self: &Arc<Self>,
        realm: &RealmName,
        key: &InterfaceKey,
        audit: AuditEntry,
    ) -> Result<(), InterfaceChangeError> {
        let (this, realm, key) = (Arc::clone(self), realm.clone(), key.clone());
        self.detached(async move { this.do_delete(&realm, &key, audit).await })
            .await
    }

    /// A realm was made, or its settings were changed: its retention counts from now on.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn refresh_realm(&self, realm: &RealmName) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        match self.store.realm(realm).await? {
            Some(row) => self.change(realm, |installed| {
                installed.retention_seconds_max = row.datastream_maximum_storage_retention;
            }),
            None => self.drop_realm(realm),
        }
        Ok(())
    }

    /// A realm was deleted.
    pub fn drop_realm(&self, realm: &RealmName) {
        self.realms.rcu(|realms| {
            let mut realms = Realms::clone(realms);
            realms.remove(realm);
            realms
        });
        self.counters.drop_realm(realm);
    }

    async fn do_install(
        &self,
        realm: &RealmName,
        document: &Json,
        audit: AuditEntry,
    ) -> Result<Arc<Interface>, InterfaceChangeError> {
        let _one_at_a_time = self.changes.lock().await;
        let row = self
            .store
            .realm(realm)
            .await?
            .ok_or(InterfaceChangeError::RealmNotFound)?;
        let installed = self.of_realm(realm);
        let interface = Interface::from_json(document);
        if let Err(InvalidInterface::Overlap(_)) = &interface
            && let Some((name, major)) = named(document)
        {
            // what is installed counts before overlaps
            installed.check_free(name, major)?;
        }
        let interface = interface?;
        interface.check_retention(row.datastream_maximum_storage_retention)?;
        installed.check_free(interface.name(), interface.major())?;
        let change = Change::InstallInterface(to_row(realm, &interface));
        self.store
            .apply(change, audit)
            .await
            .map_err(|error| match error {
                StoreError::Conflict(Subject::Interface) => {
                    InterfaceChangeError::AlreadyInstalled(interface.key().clone())
                }
                other => other.into(),
            })?;
        Ok(self.publish(realm, interface))
    }

    async fn do_update(
        &self,
        realm: &RealmName,
        key: &InterfaceKey,
        document: &Json,
        audit: AuditEntry,
    ) -> Result<Arc<Interface>, InterfaceChangeError> {
        let _one_at_a_time = self.changes.lock().await;
        let installed = self.of_realm(realm);
        let current = |name: &str, major: u32| {
            if name != &*key.name {
                return Err(InterfaceChangeError::NameMismatch);
            }
            if major != key.major {
                return Err(InterfaceChangeError::MajorMismatch);
            }
            let current = installed.get(name, major);
            current.ok_or_else(|| InterfaceChangeError::NotInstalled(key.clone()))
        };
        let interface = Interface::from_json(document);
        if let Err(InvalidInterface::Overlap(_)) = &interface
            && let Some((name, major)) = named(document)
        {
            // the address counts before overlaps
            current(name, major)?;
        }
        let interface = interface?;
        check_update(current(interface.name(), interface.major())?, &interface)?;
        let change = Change::UpdateInterface(to_row(realm, &interface));
        self.store
            .apply(change, audit)
            .await
            .map_err(|error| not_installed(error, key))?;
        Ok(self.publish(realm, interface))
    }

    async fn do_delete(
        &self,
        realm: &RealmName,
        key: &InterfaceKey,
        audit: AuditEntry,
    ) -> Result<(), InterfaceChangeError> {
        if key.major != 0 {
            return Err(InterfaceChangeError::MajorNotZero);
        }
        let _one_at_a_time = self.changes.lock().await;
        if self.get(realm, &key.name, key.major).is_none() {
            return Err(InterfaceChangeError::NotInstalled(key.clone()));
        }
        if self.store.interface_in_use(realm, key).await? {
            return Err(InterfaceChangeError::InUse(key.clone()));
        }
        // triggers that refer to it are to be asked for here
        let change = Change::DeleteInterface(realm.clone(), key.clone());
        self.store
            .apply(change, audit)
            .await
            .map_err(|error| not_installed(error, key))?;
        self.change(realm, |installed| installed.remove(key));
        Ok(())
    }

    fn publish(&self, realm: &RealmName, interface: Interface) -> Arc<Interface> {
        let interface = Arc::new(interface);
        self.change(realm, |installed| installed.insert(Arc::clone(&interface)));
        interface
    }

    fn change(&self, realm: &RealmName, change: impl Fn(&mut RealmInterfaces)) {
        self.realms.rcu(|realms| {
            let mut realms = Realms::clone(realms);
            change(Arc::make_mut(realms.entry(realm.clone()).or_default()));
            realms
        });
    }

    /// Runs a change to its end, so that what is stored is also what is in memory.
    async fn detached<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, InterfaceChangeError>> + Send + 'static,
    ) -> Result<T, InterfaceChangeError> {
        match self.tracker.spawn(change).await {
            Ok(done) => done,
            Err(join) => match join.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // the runtime is being shut down
                Err(_) => Err(InterfaceChangeError::Store(super::unavailable())),
            },
        }
    }
}

fn to_row(realm: &RealmName, interface: &Interface) -> InterfaceRow {
    InterfaceRow {
        realm: realm.clone(),
        key: interface.key().clone(),
        minor: interface.minor(),
        document: interface.to_json().to_string(),
    }
}

fn not_installed(error: StoreError, key: &InterfaceKey) -> InterfaceChangeError {
    match error {
        StoreError::NotFound(Subject::Interface) => InterfaceChangeError::NotInstalled(key.clone()),
        other => other.into(),
    }
}

/// Name and major of a document.
fn named(document: &Json) -> Option<(&str, u32)> {
    let name = document.get("interface_name")?.as_str()?;
    let major = document.get("version_major")?.as_u64()?;
    Some((name, u32::try_from(major).ok()?))
}
