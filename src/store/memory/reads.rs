//! Questions.

use std::{cmp::Reverse, collections::BTreeMap};

use super::State;
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::InterfaceKey,
    payload::Value,
    store::{
        CaRow, DeviceFilter, DeviceRow, DeviceStats, ExchangedRow, PropertyRow, Sample,
        SampleQuery, TopRow,
        batch::{Tally, minute_of},
    },
};

fn sample((&(value_at, received_at), value): (&(Timestamp, Timestamp), &Value)) -> Sample {
    Sample {
        value_at,
        received_at,
        value: value.clone(),
    }
}

impl State {
    fn rows<'a>(&'a self, realm: &'a RealmName) -> impl Iterator<Item = &'a DeviceRow> {
        let devices = self.devices.values().map(|device| &device.row);
        devices.filter(move |row| row.identity.realm == *realm)
    }

    pub(super) fn cas(&self, realm: &RealmName) -> Vec<CaRow> {
        let mut cas: Vec<CaRow> = self
            .cas
            .iter()
            .filter(|ca| ca.realm == *realm)
            .cloned()
            .collect();
        cas.sort_by_key(|ca| (Reverse(ca.added_at), ca.fingerprint.clone()));
        cas
    }

    pub(super) fn device_by_alias(&self, realm: &RealmName, alias: &str) -> Option<DeviceId> {
        let mut rows = self.rows(realm);
        let row = rows.find(|row| row.aliases.values().any(|known| known == alias))?;
        Some(row.identity.device)
    }

    pub(super) fn list(&self, realm: &RealmName, filter: &DeviceFilter) -> Vec<DeviceRow> {
        self.rows(realm)
            .filter(|row| filter.after.is_none_or(|after| row.identity.device > after))
            .filter(|row| {
                filter
                    .connected
                    .is_none_or(|wanted| row.connected == wanted)
            })
            .filter(|row| {
                filter
                    .credentials_inhibited
                    .is_none_or(|wanted| row.credentials_inhibited == wanted)
            })
            .filter(|row| {
                let name = filter.interface.as_deref();
                name.is_none_or(|name| row.introspection.version(name).is_some())
            })
            .take(filter.limit)
            .cloned()
            .collect()
    }

    pub(super) fn stats(&self, realm: &RealmName) -> DeviceStats {
        DeviceStats {
            total_devices: self.rows(realm).count() as u64,
            connected_devices: self.rows(realm).filter(|row| row.connected).count() as u64,
        }
    }

    pub(super) fn interface_in_use(&self, realm: &RealmName, key: &InterfaceKey) -> bool {
        self.rows(realm).any(|row| {
            row.introspection
                .version(&key.name)
                .is_some_and(|version| version.major == key.major)
        })
    }

    pub(super) fn exchanged(&self, identity: &Identity) -> Vec<ExchangedRow> {
        let Some(device) = self.devices.get(identity) else {
            return Vec::new();
        };
        let exchanged = device.exchanged.iter();
        exchanged
            .map(|(interface, &(messages, bytes))| ExchangedRow {
                interface: interface.clone(),
                messages,
                bytes,
            })
            .collect()
    }

    pub(super) fn expiring_certificates(&self, realm: &RealmName, until: &[Timestamp]) -> Vec<u64> {
        let ends: Vec<_> = self
            .rows(realm)
            .filter_map(|row| row.certificate_not_after)
            .collect();
        until
            .iter()
            .map(|until| ends.iter().filter(|end| *end <= until).count() as u64)
            .collect()
    }

    pub(super) fn samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
        path: &str,
        query: &SampleQuery,
    ) -> Vec<Sample> {
        let place = (interface.clone(), path.into());
        let device = self.devices.get(identity);
        let Some(series) = device.and_then(|device| device.samples.get(&place)) else {
            return Vec::new();
        };
        let wanted = series.iter().filter(|((at, _), _)| {
            query.since.is_none_or(|since| *at >= since)
                && query.since_after.is_none_or(|after| *at > after)
                && query.to.is_none_or(|to| *at < to)
        });
        if query.newest_first {
            wanted.rev().take(query.limit).map(sample).collect()
        } else {
            wanted.take(query.limit).map(sample).collect()
        }
    }

    pub(super) fn newest_samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Vec<(String, Sample)> {
        let Some(device) = self.devices.get(identity) else {
            return Vec::new();
        };
        let series = device.samples.iter().filter(|((of, _), _)| of == interface);
        series
            .filter_map(|((_, path), series)| {
                Some((path.to_string(), sample(series.last_key_value()?)))
            })
            .collect()
    }

    pub(super) fn properties(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Vec<PropertyRow> {
        let Some(device) = self.devices.get(identity) else {
            return Vec::new();
        };
        let properties = device
            .properties
            .iter()
            .filter(|((of, _), _)| of == interface);
        properties
            .map(|((_, path), (value, at))| PropertyRow {
                path: path.to_string(),
                value: value.clone(),
                at: *at,
            })
            .collect()
    }

    pub(super) fn top(
        &self,
        realm: &RealmName,
        what: Tally,
        since: Timestamp,
        limit: usize,
    ) -> Vec<TopRow> {
        let mut counts: BTreeMap<(DeviceId, &str), u64> = BTreeMap::new();
        for (identity, device) in self.devices.iter().filter(|(of, _)| of.realm == *realm) {
            for ((kind, name, minute), count) in &device.tally {
                if *kind == what && *minute >= minute_of(since) {
                    *counts.entry((identity.device, name)).or_default() += count;
                }
            }
        }
        let mut rows: Vec<_> = counts.into_iter().collect();
        rows.sort_by_key(|&(key, count)| (Reverse(count), key));
        rows.truncate(limit);
        rows.into_iter()
            .map(|((device, name), count)| TopRow {
                device,
                error_name: (what == Tally::Errors).then(|| name.to_owned()),
                count,
            })
            .collect()
    }
}
