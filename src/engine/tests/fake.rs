//! A store that keeps just what the engine needs, and stalls, fails or refuses when it is told to.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Mutex,
};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::{InterfaceKey, Introspection},
    payload::Value,
    store::{
        AuditEntry, CaRow, Change, Committed, DeviceErrorRow, DeviceFilter, DeviceRow, DeviceStats,
        Effect, ExchangedRow, HistoryRow, InterfaceRow, OutboxRow, PropertyRow, RealmRow, Receipt,
        RevocationRow, Sample, SampleQuery, Store, StoreError, Subject, TopRow, Unit,
    },
};

/// How the next attempt to commit fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Unavailable,
    Database,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) realms: BTreeMap<RealmName, RealmRow>,
    pub(super) devices: HashMap<Identity, DeviceRow>,
    pub(super) interfaces: Vec<InterfaceRow>,
    pub(super) revocations: Vec<RevocationRow>,
    pub(super) receipts: HashSet<(Identity, Receipt)>,
    pub(super) properties: BTreeMap<String, Value>,
    pub(super) errors: Vec<DeviceErrorRow>,
    pub(super) history: Vec<&'static str>,
    pub(super) outbox: Vec<OutboxRow>,
    /// Every unit that was stored, in order.
    pub(super) units: Vec<Unit>,
    /// Units of each transaction.
    pub(super) batches: Vec<usize>,
    /// What the next attempts do; empty: they succeed.
    pub(super) faults: VecDeque<Fault>,
    /// Units with an effect of this path are refused.
    pub(super) refused_path: Option<&'static str>,
    /// With it, the whole transaction fails instead.
    pub(super) refusal_breaks_the_batch: bool,
    pub(super) reads_fail: usize,
}

#[derive(Debug)]
pub(super) struct FakeStore {
    pub(super) state: Mutex<State>,
    stalled: watch::Sender<bool>,
    attempts: watch::Sender<usize>,
}

impl FakeStore {
    pub(super) fn new() -> Self {
        let (stalled, _) = watch::channel(false);
        let (attempts, _) = watch::channel(0);
        Self {
            state: Mutex::default(),
            stalled,
            attempts,
        }
    }

    pub(super) fn with<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(&mut self.state.lock().unwrap())
    }

    /// Commits begin and do not end.
    pub(super) fn stall(&self) {
        self.stalled.send_replace(true);
    }

    pub(super) fn resume(&self) {
        self.stalled.send_replace(false);
    }

    /// Waits until so many commits have begun since the start.
    pub(super) async fn attempted(&self, count: usize) {
        self.attempts
            .subscribe()
            .wait_for(|attempts| *attempts >= count)
            .await
            .unwrap();
    }

    pub(super) fn attempts(&self) -> usize {
        *self.attempts.borrow()
    }

    /// The values of all samples, in the order in which they were stored.
    pub(super) fn samples(&self) -> Vec<Value> {
        self.effects(|effect| match effect {
            Effect::AppendSample { value, .. } => Some(value.clone()),
            _ => None,
        })
    }

    pub(super) fn effects<T>(&self, pick: impl Fn(&Effect) -> Option<T>) -> Vec<T> {
        self.with(|state| {
            state
                .units
                .iter()
                .flat_map(|unit| &unit.effects)
                .filter_map(pick)
                .collect()
        })
    }

    pub(super) fn error_names(&self) -> Vec<String> {
        self.with(|state| {
            state
                .errors
                .iter()
                .map(|row| row.error_name.clone())
                .collect()
        })
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable(sqlx::Error::PoolTimedOut)
}

impl State {
    fn refuses(&self, unit: &Unit) -> bool {
        let of_path = |effect: &Effect| matches!(effect, Effect::AppendSample { path, .. } if Some(&**path) == self.refused_path);
        unit.effects.iter().any(of_path)
    }

    fn commit_one(&mut self, unit: &Unit) -> Committed {
        if self.refuses(unit) {
            return Committed::Refused;
        }
        if !self.devices.contains_key(&unit.identity) {
            return Committed::NoDevice;
        }
        if let Some(receipt) = unit.receipt
            && !self.receipts.insert((unit.identity.clone(), receipt))
        {
            return Committed::Duplicate;
        }
        for effect in &unit.effects {
            self.apply_effect(&unit.identity, effect);
        }
        let device = self.devices.get_mut(&unit.identity).unwrap();
        if let Some((_, bytes)) = &unit.counted {
            device.total_received_msgs += 1;
            device.total_received_bytes += bytes;
        }
        self.units.push(unit.clone());
        Committed::Done
    }

    fn apply_effect(&mut self, identity: &Identity, effect: &Effect) {
        let device = self.devices.get_mut(identity).unwrap();
        match effect {
            Effect::SetIntrospection(declared) => device.introspection = declared.clone(),
            Effect::SetProperty { path, value, .. } => {
                self.properties.insert(path.to_string(), value.clone());
            }
            Effect::UnsetProperty { path, .. } => {
                self.properties.remove(&**path);
            }
            Effect::RecordError(row) => self.errors.push(row.clone()),
            Effect::Connected { .. } => self.history.push("connected"),
            Effect::Disconnected { .. } => self.history.push("disconnected"),
            Effect::PendingEmptyCache(pending) => device.pending_empty_cache = *pending,
            Effect::RemoveReceipt(receipt) => {
                self.receipts.remove(&(identity.clone(), *receipt));
            }
            Effect::ForgetReceipts { epoch } => {
                self.receipts
                    .retain(|(of, receipt)| of != identity || receipt.epoch != *epoch);
            }
            Effect::AddOutbox(row) => self.outbox.push(row.clone()),
            Effect::RemoveOutbox { id } => self.outbox.retain(|row| row.id != *id),
            Effect::AppendSample { .. } => {}
        }
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn commit(&self, units: Vec<Unit>) -> Result<Vec<Committed>, StoreError> {
        self.attempts.send_modify(|attempts| *attempts += 1);
        self.stalled
            .subscribe()
            .wait_for(|stalled| !stalled)
            .await
            .unwrap();
        self.with(|state| {
            match state.faults.pop_front() {
                Some(Fault::Unavailable) => return Err(unavailable()),
                Some(Fault::Database) => {
                    return Err(StoreError::Database(sqlx::Error::RowNotFound));
                }
                None => {}
            }
            if state.refusal_breaks_the_batch && units.iter().any(|unit| state.refuses(unit)) {
                return Err(StoreError::Database(sqlx::Error::RowNotFound));
            }
            state.batches.push(units.len());
            Ok(units.iter().map(|unit| state.commit_one(unit)).collect())
        })
    }

    async fn apply(&self, change: Change, _: AuditEntry) -> Result<(), StoreError> {
        self.with(|state| {
            match change {
                Change::InstallInterface(row) => state.interfaces.push(row),
                Change::UpdateInterface(row) => {
                    state.interfaces.retain(|old| old.key != row.key);
                    state.interfaces.push(row);
                }
                Change::DeleteInterface(_, key) => {
                    if !state.interfaces.iter().any(|row| row.key == key) {
                        return Err(StoreError::NotFound(Subject::Interface));
                    }
                    state.interfaces.retain(|row| row.key != key);
                }
                other => unimplemented!("{other:?}"),
            }
            Ok(())
        })
    }

    async fn device(&self, identity: &Identity) -> Result<Option<DeviceRow>, StoreError> {
        self.with(|state| {
            if state.reads_fail > 0 {
                state.reads_fail -= 1;
                return Err(unavailable());
            }
            Ok(state.devices.get(identity).cloned())
        })
    }

    async fn realms(&self) -> Result<Vec<RealmRow>, StoreError> {
        Ok(self.with(|state| state.realms.values().cloned().collect()))
    }

    async fn realm(&self, realm: &RealmName) -> Result<Option<RealmRow>, StoreError> {
        Ok(self.with(|state| state.realms.get(realm).cloned()))
    }

    async fn revocations(&self, _: &RealmName) -> Result<Vec<RevocationRow>, StoreError> {
        Ok(self.with(|state| state.revocations.clone()))
    }

    async fn interfaces(&self) -> Result<Vec<InterfaceRow>, StoreError> {
        Ok(self.with(|state| state.interfaces.clone()))
    }

    async fn interface_in_use(
        &self,
        realm: &RealmName,
        key: &InterfaceKey,
    ) -> Result<bool, StoreError> {
        let declares = |introspection: &Introspection| {
            introspection
                .version(&key.name)
                .is_some_and(|version| version.major == key.major)
        };
        Ok(self.with(|state| {
            state
                .devices
                .values()
                .any(|row| row.identity.realm == *realm && declares(&row.introspection))
        }))
    }

    async fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError> {
        Ok(self.with(|state| state.outbox.clone()))
    }

    async fn close_stale(&self, _: Timestamp) -> Result<Vec<Identity>, StoreError> {
        unimplemented!()
    }
    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn close(&self) {}
    async fn backup(&self, _: &std::path::Path) -> Result<(), StoreError> {
        unimplemented!()
    }
    async fn cas(&self, _: &RealmName) -> Result<Vec<CaRow>, StoreError> {
        unimplemented!()
    }
    async fn device_by_alias(
        &self,
        _: &RealmName,
        _: &str,
    ) -> Result<Option<DeviceId>, StoreError> {
        unimplemented!()
    }
    async fn devices(&self, _: &RealmName, _: &DeviceFilter) -> Result<Vec<DeviceRow>, StoreError> {
        unimplemented!()
    }
    async fn device_stats(&self, _: &RealmName) -> Result<DeviceStats, StoreError> {
        unimplemented!()
    }
    async fn exchanged(&self, _: &Identity) -> Result<Vec<ExchangedRow>, StoreError> {
        unimplemented!()
    }
    async fn expiring_certificates(
        &self,
        _: &RealmName,
        _: &[Timestamp],
    ) -> Result<Vec<u64>, StoreError> {
        unimplemented!()
    }
    async fn samples(
        &self,
        _: &Identity,
        _: &InterfaceKey,
        _: &str,
        _: &SampleQuery,
    ) -> Result<Vec<Sample>, StoreError> {
        unimplemented!()
    }
    async fn newest_samples(
        &self,
        _: &Identity,
        _: &InterfaceKey,
    ) -> Result<Vec<(String, Sample)>, StoreError> {
        unimplemented!()
    }
    async fn properties(
        &self,
        _: &Identity,
        _: &InterfaceKey,
    ) -> Result<Vec<PropertyRow>, StoreError> {
        unimplemented!()
    }
    async fn device_errors(&self, _: &Identity) -> Result<Vec<DeviceErrorRow>, StoreError> {
        Ok(self.with(|state| state.errors.clone()))
    }
    async fn history(&self, _: &Identity) -> Result<Vec<HistoryRow>, StoreError> {
        unimplemented!()
    }
    async fn top_errors(
        &self,
        _: &RealmName,
        _: Timestamp,
        _: usize,
    ) -> Result<Vec<TopRow>, StoreError> {
        unimplemented!()
    }
    async fn top_reconnects(
        &self,
        _: &RealmName,
        _: Timestamp,
        _: usize,
    ) -> Result<Vec<TopRow>, StoreError> {
        unimplemented!()
    }
    async fn audit(&self, _: usize) -> Result<Vec<AuditEntry>, StoreError> {
        unimplemented!()
    }
}
