//! Plays units on what is known, in order.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    Declaration, DeviceNumber, DeviceState, ErrorWrite, Known, OutboxWrite, PropertyWrite,
    RING_ROWS, SampleWrite, SeriesKey, Tally, Writes, minute_of,
};
use crate::{
    clock::Timestamp,
    interface::{InterfaceKey, Introspection},
    store::{Committed, DeviceErrorRow, Effect, HistoryRow, Receipt, Unit},
};

/// What becomes of each unit, and what has to be written for it.
pub(in crate::store) fn fold(units: &[&Unit], known: Known) -> (Vec<Committed>, Writes) {
    let mut fold = Fold {
        states: known.states,
        receipts: known.receipts,
        stored: known.declarations,
        ..Fold::default()
    };
    let outcomes = units
        .iter()
        .map(|unit| match known.devices.get(&unit.identity) {
            Some(&device) => fold.unit(device, unit),
            None => Committed::NoDevice,
        })
        .collect();
    (outcomes, fold.finish())
}

#[derive(Default)]
struct Fold {
    /// Device rows as they are after the units so far.
    states: HashMap<DeviceNumber, DeviceState>,
    /// Receipts that are there after the units so far.
    receipts: HashSet<(DeviceNumber, Receipt)>,
    /// Introspections in the database.
    stored: HashMap<DeviceNumber, Declaration>,
    /// Introspections that replaced them.
    declared: HashMap<DeviceNumber, Declaration>,
    /// Positions in the list of series.
    series: HashMap<SeriesKey, usize>,
    /// Keys of the samples so far.
    sample_keys: HashSet<(usize, i64, i64)>,
    writes: Writes,
}

impl Fold {
    fn unit(&mut self, device: DeviceNumber, unit: &Unit) -> Committed {
        if let Some(receipt) = unit.receipt {
            if !self.receipts.insert((device, receipt)) {
                return Committed::Duplicate;
            }
            self.writes.add_receipt(device, receipt);
        }
        for effect in &unit.effects {
            self.effect(device, effect);
        }
        if let Some((interface, bytes)) = &unit.counted {
            let counter = self
                .writes
                .exchanged
                .entry((device, interface.clone()))
                .or_default();
            counter.messages = counter.messages.saturating_add(1);
            counter.bytes = counter.bytes.saturating_add(*bytes);
        }
        Committed::Done
    }

    fn effect(&mut self, device: DeviceNumber, effect: &Effect) {
        match effect {
            Effect::SetIntrospection(new) => self.declare(device, new),
            Effect::AppendSample {
                interface,
                path,
                value,
                value_at,
                received_at,
                expires_at,
            } => {
                let series = self.series(device, interface, path);
                let sample = SampleWrite {
                    series,
                    value_at: value_at.as_micros(),
                    received_at: received_at.as_micros(),
                    expires_at: expires_at.map(Timestamp::as_micros),
                    value: value.to_storage(),
                };
                self.sample(sample);
            }
            Effect::SetProperty {
                interface,
                path,
                value,
                at,
            } => {
                let series = self.series(device, interface, path);
                let property = PropertyWrite {
                    value: value.to_storage(),
                    at: *at,
                };
                self.writes.properties.insert(series, Some(property));
            }
            Effect::UnsetProperty { interface, path } => {
                let series = self.series(device, interface, path);
                self.writes.properties.insert(series, None);
            }
            Effect::RecordError(row) => self.error(device, row),
            Effect::Connected { at, ip } => {
                self.connected(device, *at, ip.map(|ip| ip.to_string()));
            }
            Effect::Disconnected { at, reason } => self.disconnected(device, *at, reason),
            Effect::PendingEmptyCache(pending) => {
                self.change(device, |state| state.pending_empty_cache = *pending);
            }
            Effect::RemoveReceipt(receipt) => {
                self.receipts.remove(&(device, *receipt));
                self.writes.remove_receipt(device, *receipt);
            }
            Effect::ForgetReceipts { epoch } => {
                self.receipts
                    .retain(|(of, receipt)| (*of, receipt.epoch) != (device, *epoch));
                self.writes.forget_receipts(device, *epoch);
            }
            Effect::AddOutbox(row) => {
                self.writes.outbox_added.push(OutboxWrite {
                    device,
                    row: row.clone(),
                });
            }
            Effect::RemoveOutbox { id } => {
                self.writes.outbox_added.retain(|added| added.row.id != *id);
                self.writes.outbox_removed.push(*id);
            }
        }
    }

    fn series(&mut self, device: DeviceNumber, interface: &InterfaceKey, path: &Arc<str>) -> usize {
        let key = SeriesKey {
            device,
            interface: interface.clone(),
            path: Arc::clone(path),
        };
        let list = &mut self.writes.series;
        *self.series.entry(key).or_insert_with_key(|key| {
            list.push(key.clone());
            list.len() - 1
        })
    }

    /// Two samples with one key cannot come from a device whose reception stamps increase; should
    /// they come all the same, the later one moves by a microsecond rather than replace the other.
    fn sample(&mut self, mut sample: SampleWrite) {
        while !self
            .sample_keys
            .insert((sample.series, sample.value_at, sample.received_at))
        {
            sample.received_at += 1;
        }
        self.writes.samples.push(sample);
    }

    fn declare(&mut self, device: DeviceNumber, new: &Introspection) {
        let before = self
            .declared
            .get(&device)
            .or_else(|| self.stored.get(&device));
        let after = before.map_or_else(
            || Declaration::default().replaced_by(new),
            |before| before.replaced_by(new),
        );
        self.declared.insert(device, after);
    }

    /// Changes a device's row. The rows of all devices that need it are read before the fold.
    fn change<T>(&mut self, device: DeviceNumber, change: impl FnOnce(&mut DeviceState) -> T) -> T {
        let state = self.states.entry(device).or_default();
        let result = change(state);
        self.writes.states.insert(device, state.clone());
        result
    }

    fn error(&mut self, device: DeviceNumber, row: &DeviceErrorRow) {
        let sequence = self.change(device, |state| {
            state.error_sequence += 1;
            state.error_sequence
        });
        let row = printable(row);
        self.count(device, Tally::Errors, row.error_name.clone(), row.at);
        let key = (device, sequence % RING_ROWS);
        self.writes.errors.insert(key, ErrorWrite { sequence, row });
    }

    fn connected(&mut self, device: DeviceNumber, at: Timestamp, ip: Option<String>) {
        if self
            .states
            .get(&device)
            .is_some_and(|state| state.connected)
        {
            return;
        }
        let sequence = self.change(device, |state| {
            state.connected = true;
            state.presence_sequence += 1;
            state.last_connection = Some(at);
            state.last_seen_ip.clone_from(&ip);
            state.presence_sequence
        });
        self.count(device, Tally::Connects, String::new(), at);
        let ip = ip.and_then(|ip| ip.parse().ok());
        let event = "connected".to_owned();
        self.history(
            device,
            HistoryRow {
                sequence,
                at,
                event,
                ip,
                reason: None,
            },
        );
    }

    fn disconnected(&mut self, device: DeviceNumber, at: Timestamp, reason: &str) {
        if !self
            .states
            .get(&device)
            .is_some_and(|state| state.connected)
        {
            return;
        }
        let sequence = self.change(device, |state| {
            state.connected = false;
            state.presence_sequence += 1;
            state.last_disconnection = Some(at);
            state.presence_sequence
        });
        let event = "disconnected".to_owned();
        let reason = Some(without_nul(reason));
        self.history(
            device,
            HistoryRow {
                sequence,
                at,
                event,
                ip: None,
                reason,
            },
        );
    }

    fn history(&mut self, device: DeviceNumber, row: HistoryRow) {
        self.writes
            .history
            .insert((device, row.sequence % RING_ROWS), row);
    }

    fn count(&mut self, device: DeviceNumber, what: Tally, name: String, at: Timestamp) {
        *self
            .writes
            .tally
            .entry((device, what, name, minute_of(at)))
            .or_default() += 1;
    }

    fn finish(mut self) -> Writes {
        for (device, new) in self.declared {
            let old = self.stored.remove(&device).unwrap_or_default();
            let (put, removed) = old.difference(&new);
            self.writes
                .declared
                .extend(put.into_iter().map(|row| (device, row)));
            let removed = removed
                .into_iter()
                .map(|(name, major)| (device, name, major));
            self.writes.undeclared.extend(removed);
        }
        self.writes
    }
}

/// The row in a form that every database takes: an error may quote what a device sent, and
/// PostgreSQL has no U+0000 in texts.
fn printable(row: &DeviceErrorRow) -> DeviceErrorRow {
    let clean = |text: &Option<String>| text.as_deref().map(without_nul);
    DeviceErrorRow {
        at: row.at,
        error_name: without_nul(&row.error_name),
        interface: clean(&row.interface),
        path: clean(&row.path),
        base64_payload: clean(&row.base64_payload),
        detail: clean(&row.detail),
    }
}

fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
