//! The store in memory, for tests.
//!
//! It keeps the same contract as the databases, in the plainest way, and breaks on command: it can
//! stall ([`MemoryStore::stall`]), fail ([`MemoryStore::fail_next`]) and refuse a value
//! ([`MemoryStore::poison`]). Nothing of it survives the process.

mod changes;
mod reads;
mod units;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{
    AuditEntry, CaRow, Change, Committed, DeviceErrorRow, DeviceFilter, DeviceRow, DeviceStats,
    ExchangedRow, HistoryRow, InterfaceRow, OutboxRow, PropertyRow, RealmRow, Receipt,
    RevocationRow, Sample, SampleQuery, Store, StoreError, TopRow, Unit, batch::Tally,
};
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::InterfaceKey,
    payload::Value,
};

/// A place where a device stores values.
type Place = (InterfaceKey, Arc<str>);

/// All that is stored.
#[derive(Clone, Debug, Default)]
struct State {
    realms: BTreeMap<RealmName, RealmRow>,
    cas: Vec<CaRow>,
    revocations: BTreeMap<(Identity, String), RevocationRow>,
    devices: BTreeMap<Identity, Device>,
    interfaces: BTreeMap<(RealmName, InterfaceKey), InterfaceRow>,
    audit: Vec<AuditEntry>,
    outbox: Vec<OutboxRow>,
}

/// A device with all that is its own.
#[derive(Clone, Debug)]
struct Device {
    row: DeviceRow,
    exchanged: BTreeMap<InterfaceKey, (u64, u64)>,
    /// Value by (value time, reception).
    samples: BTreeMap<Place, BTreeMap<(Timestamp, Timestamp), Value>>,
    properties: BTreeMap<Place, (Value, Timestamp)>,
    /// Oldest first.
    errors: VecDeque<DeviceErrorRow>,
    /// Oldest first.
    history: VecDeque<HistoryRow>,
    receipts: HashSet<Receipt>,
    /// How often by what, name and minute.
    tally: BTreeMap<(Tally, String, i64), u64>,
}

/// Whether commits go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    Stalled,
    Closed,
}

/// The store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
    gate: watch::Sender<Gate>,
    /// Writes go one after the other, in the order in which they came.
    turn: tokio::sync::Mutex<()>,
    failures_left: AtomicU64,
    poisoned: Mutex<BTreeSet<String>>,
    commits: AtomicU64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Mutex::default(),
            gate: watch::Sender::new(Gate::Open),
            turn: tokio::sync::Mutex::new(()),
            failures_left: AtomicU64::new(0),
            poisoned: Mutex::default(),
            commits: AtomicU64::new(0),
        }
    }

    /// From now on no write returns, until [`Self::resume`].
    pub fn stall(&self) {
        self.gate.send_replace(Gate::Stalled);
    }

    /// Lets the stalled writes go through, in the order in which they came.
    pub fn resume(&self) {
        self.gate.send_replace(Gate::Open);
    }

    /// The next `writes` writes are answered with [`StoreError::Unavailable`] and write nothing.
    pub fn fail_next(&self, writes: u64) {
        self.failures_left.store(writes, Ordering::SeqCst);
    }

    /// Units that write to this path are refused, as by a constraint of a database.
    pub fn poison(&self, path: &str) {
        self.poisoned
            .lock()
            .expect("no panic while it is held")
            .insert(path.to_owned());
    }

    /// How many calls of [`Store::commit`] were answered with success.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    /// Waits while stalled, then does `write` on the state.
    async fn write<T>(
        &self,
        write: impl FnOnce(&mut State) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let _turn = self.turn.lock().await;
        let mut gate = self.gate.subscribe();
        let open = gate
            .wait_for(|gate| *gate != Gate::Stalled)
            .await
            .map(|gate| *gate);
        if open.is_ok_and(|gate| gate == Gate::Closed) {
            return Err(StoreError::Unavailable(sqlx::Error::PoolClosed));
        }
        let take = |left: u64| left.checked_sub(1);
        if self
            .failures_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_ok()
        {
            return Err(StoreError::unavailable("made to fail"));
        }
        write(&mut self.state())
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, units: Vec<Unit>) -> Result<Vec<Committed>, StoreError> {
        let poisoned = self
            .poisoned
            .lock()
            .expect("no panic while it is held")
            .clone();
        let outcomes = self
            .write(|state| {
                Ok(units
                    .iter()
                    .map(|unit| state.unit(unit, &poisoned))
                    .collect())
            })
            .await?;
        self.commits.fetch_add(1, Ordering::SeqCst);
        Ok(outcomes)
    }

    async fn apply(&self, change: Change, audit: AuditEntry) -> Result<(), StoreError> {
        self.write(|state| {
            let mut changed = state.clone();
            changed.change(change)?;
            changed.audit.push(audit);
            *state = changed;
            Ok(())
        })
        .await
    }

    async fn close_stale(&self, at: Timestamp) -> Result<Vec<Identity>, StoreError> {
        self.write(|state| Ok(state.close_stale(at))).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        match *self.gate.borrow() {
            Gate::Open => Ok(()),
            Gate::Stalled => Err(StoreError::unavailable("stalled")),
            Gate::Closed => Err(StoreError::Unavailable(sqlx::Error::PoolClosed)),
        }
    }

    async fn close(&self) {
        self.gate.send_if_modified(|gate| {
            // what is stalled will not be committed any more
            let was_stalled = *gate == Gate::Stalled;
            if was_stalled {
                *gate = Gate::Closed;
            }
            was_stalled
        });
        let _turn = self.turn.lock().await;
        self.gate.send_replace(Gate::Closed);
    }

    async fn backup(&self, _file: &Path) -> Result<(), StoreError> {
        Err(StoreError::NotOffered(
            "the store in memory has no file to copy",
        ))
    }

    async fn realms(&self) -> Result<Vec<RealmRow>, StoreError> {
        Ok(self.state().realms.values().cloned().collect())
    }

    async fn realm(&self, realm: &RealmName) -> Result<Option<RealmRow>, StoreError> {
        Ok(self.state().realms.get(realm).cloned())
    }

    async fn cas(&self, realm: &RealmName) -> Result<Vec<CaRow>, StoreError> {
        Ok(self.state().cas(realm))
    }

    async fn revocations(&self, realm: &RealmName) -> Result<Vec<RevocationRow>, StoreError> {
        let state = self.state();
        let rows = state
            .revocations
            .values()
            .filter(|row| row.identity.realm == *realm);
        Ok(rows.cloned().collect())
    }

    async fn device(&self, identity: &Identity) -> Result<Option<DeviceRow>, StoreError> {
        Ok(self
            .state()
            .devices
            .get(identity)
            .map(|device| device.row.clone()))
    }

    async fn device_by_alias(
        &self,
        realm: &RealmName,
        alias: &str,
    ) -> Result<Option<DeviceId>, StoreError> {
        Ok(self.state().device_by_alias(realm, alias))
    }

    async fn devices(
        &self,
        realm: &RealmName,
        filter: &DeviceFilter,
    ) -> Result<Vec<DeviceRow>, StoreError> {
        Ok(self.state().list(realm, filter))
    }

    async fn device_stats(&self, realm: &RealmName) -> Result<DeviceStats, StoreError> {
        Ok(self.state().stats(realm))
    }

    async fn interface_in_use(
        &self,
        realm: &RealmName,
        key: &InterfaceKey,
    ) -> Result<bool, StoreError> {
        Ok(self.state().interface_in_use(realm, key))
    }

    async fn exchanged(&self, identity: &Identity) -> Result<Vec<ExchangedRow>, StoreError> {
        Ok(self.state().exchanged(identity))
    }

    async fn expiring_certificates(
        &self,
        realm: &RealmName,
        until: &[Timestamp],
    ) -> Result<Vec<u64>, StoreError> {
        Ok(self.state().expiring_certificates(realm, until))
    }

    async fn interfaces(&self) -> Result<Vec<InterfaceRow>, StoreError> {
        Ok(self.state().interfaces.values().cloned().collect())
    }

    async fn samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
        path: &str,
        query: &SampleQuery,
    ) -> Result<Vec<Sample>, StoreError> {
        Ok(self.state().samples(identity, interface, path, query))
    }

    async fn newest_samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Result<Vec<(String, Sample)>, StoreError> {
        Ok(self.state().newest_samples(identity, interface))
    }

    async fn properties(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Result<Vec<PropertyRow>, StoreError> {
        Ok(self.state().properties(identity, interface))
    }

    async fn device_errors(&self, identity: &Identity) -> Result<Vec<DeviceErrorRow>, StoreError> {
        let state = self.state();
        let device = state.devices.get(identity);
        Ok(device.map_or_else(Vec::new, |device| {
            device.errors.iter().rev().cloned().collect()
        }))
    }

    async fn history(&self, identity: &Identity) -> Result<Vec<HistoryRow>, StoreError> {
        let state = self.state();
        let device = state.devices.get(identity);
        Ok(device.map_or_else(Vec::new, |device| {
            device.history.iter().rev().cloned().collect()
        }))
    }

    async fn top_errors(
        &self,
        realm: &RealmName,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopRow>, StoreError> {
        Ok(self.state().top(realm, Tally::Errors, since, limit))
    }

    async fn top_reconnects(
        &self,
        realm: &RealmName,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopRow>, StoreError> {
        Ok(self.state().top(realm, Tally::Connects, since, limit))
    }

    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(self
            .state()
            .audit
            .iter()
            .rev()
            .take(limit)
            .cloned()
            .collect())
    }

    async fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError> {
        Ok(self.state().outbox.clone())
    }
}
