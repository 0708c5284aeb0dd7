//! The store's trait: each method is a line that names where it is done.

use std::path::Path;

use async_trait::async_trait;

use super::{SqlStore, audit, backup, cas, data, devices, interfaces, outbox, realms, reports};
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::InterfaceKey,
    store::{
        AuditEntry, CaRow, Change, Committed, DeviceErrorRow, DeviceFilter, DeviceRow, DeviceStats,
        Effect, ExchangedRow, HistoryRow, InterfaceRow, NODE_RESTART, OutboxRow, PropertyRow,
        RealmRow, RevocationRow, Sample, SampleQuery, Store, StoreError, TopRow, Unit,
        batch::Tally,
    },
};

/// Stale devices that are closed with one transaction.
const STALE_BATCH: usize = 1000;

#[async_trait]
impl Store for SqlStore {
    async fn commit(&self, units: Vec<Unit>) -> Result<Vec<Committed>, StoreError> {
        self.writer.commit(units).await
    }

    async fn apply(&self, change: Change, audit: AuditEntry) -> Result<(), StoreError> {
        self.writer.apply(change, audit).await
    }

    async fn close_stale(&self, at: Timestamp) -> Result<Vec<Identity>, StoreError> {
        let stale = devices::connected(&self.pool).await?;
        for part in stale.chunks(STALE_BATCH) {
            let units = part.iter().map(|identity| Unit {
                identity: identity.clone(),
                receipt: None,
                effects: vec![Effect::Disconnected {
                    at,
                    reason: NODE_RESTART.to_owned(),
                }],
                counted: None,
            });
            self.writer.commit(units.collect()).await?;
        }
        Ok(stale)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.writer.ping().await
    }

    async fn close(&self) {
        self.writer.close().await;
        self.pool.close().await;
    }

    async fn backup(&self, file: &Path) -> Result<(), StoreError> {
        backup(self, file).await
    }

    async fn realms(&self) -> Result<Vec<RealmRow>, StoreError> {
        realms::all(&self.pool).await
    }

    async fn realm(&self, realm: &RealmName) -> Result<Option<RealmRow>, StoreError> {
        realms::one(&self.pool, realm).await
    }

    async fn cas(&self, realm: &RealmName) -> Result<Vec<CaRow>, StoreError> {
        cas::all(&self.pool, realm).await
    }

    async fn revocations(&self, realm: &RealmName) -> Result<Vec<RevocationRow>, StoreError> {
        cas::revocations(&self.pool, realm).await
    }

    async fn device(&self, identity: &Identity) -> Result<Option<DeviceRow>, StoreError> {
        devices::one(&self.pool, identity).await
    }

    async fn device_by_alias(
        &self,
        realm: &RealmName,
        alias: &str,
    ) -> Result<Option<DeviceId>, StoreError> {
        devices::by_alias(&self.pool, realm, alias).await
    }

    async fn devices(
        &self,
        realm: &RealmName,
        filter: &DeviceFilter,
    ) -> Result<Vec<DeviceRow>, StoreError> {
        devices::list(&self.pool, realm, filter).await
    }

    async fn device_stats(&self, realm: &RealmName) -> Result<DeviceStats, StoreError> {
        devices::stats(&self.pool, realm).await
    }

    async fn interface_in_use(
        &self,
        realm: &RealmName,
        key: &InterfaceKey,
    ) -> Result<bool, StoreError> {
        interfaces::in_use(&self.pool, realm, key).await
    }

    async fn exchanged(&self, identity: &Identity) -> Result<Vec<ExchangedRow>, StoreError> {
        devices::exchanged(&self.pool, identity).await
    }

    async fn expiring_certificates(
        &self,
        realm: &RealmName,
        until: &[Timestamp],
    ) -> Result<Vec<u64>, StoreError> {
        devices::expiring_certificates(&self.pool, realm, until).await
    }

    async fn interfaces(&self) -> Result<Vec<InterfaceRow>, StoreError> {
        interfaces::all(&self.pool).await
    }

    async fn samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
        path: &str,
        query: &SampleQuery,
    ) -> Result<Vec<Sample>, StoreError> {
        data::samples(&self.pool, identity, interface, path, query).await
    }

    async fn newest_samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Result<Vec<(String, Sample)>, StoreError> {
        data::newest_samples(&self.pool, identity, interface).await
    }

    async fn properties(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Result<Vec<PropertyRow>, StoreError> {
        data::properties(&self.pool, identity, interface).await
    }

    async fn device_errors(&self, identity: &Identity) -> Result<Vec<DeviceErrorRow>, StoreError> {
        reports::device_errors(&self.pool, identity).await
    }

    async fn history(&self, identity: &Identity) -> Result<Vec<HistoryRow>, StoreError> {
        reports::history(&self.pool, identity).await
    }

    async fn top_errors(
        &self,
        realm: &RealmName,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopRow>, StoreError> {
        reports::top(&self.pool, realm, Tally::Errors, since, limit).await
    }

    async fn top_reconnects(
        &self,
        realm: &RealmName,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopRow>, StoreError> {
        reports::top(&self.pool, realm, Tally::Connects, since, limit).await
    }

    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        audit::newest(&self.pool, limit).await
    }

    async fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError> {
        outbox::all(&self.pool).await
    }
}
