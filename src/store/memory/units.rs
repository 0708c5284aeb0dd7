//! Units, one by one.

use std::collections::{BTreeSet, VecDeque};

use super::{Device, State};
use crate::{
    clock::Timestamp,
    identity::Identity,
    interface::Introspection,
    store::{
        Committed, Effect, HistoryRow, NODE_RESTART, Unit,
        batch::{Declaration, RING_ROWS, Tally, minute_of},
    },
};

impl State {
    /// Does what a unit says, or nothing of it.
    pub(super) fn unit(&mut self, unit: &Unit, poisoned: &BTreeSet<String>) -> Committed {
        let Some(device) = self.devices.get_mut(&unit.identity) else {
            return Committed::NoDevice;
        };
        if unit
            .receipt
            .is_some_and(|receipt| device.receipts.contains(&receipt))
        {
            return Committed::Duplicate;
        }
        if unit
            .effects
            .iter()
            .any(|effect| is_poisoned(effect, poisoned))
        {
            return Committed::Refused;
        }
        device.receipts.extend(unit.receipt);
        for effect in &unit.effects {
            match effect {
                Effect::AddOutbox(row) => {
                    if self.outbox.iter().all(|known| known.id != row.id) {
                        self.outbox.push(row.clone());
                    }
                }
                Effect::RemoveOutbox { id } => self.outbox.retain(|row| row.id != *id),
                effect => device.effect(effect),
            }
        }
        if let Some((interface, bytes)) = &unit.counted {
            device.row.total_received_msgs += 1;
            device.row.total_received_bytes += bytes;
            if let Some(key) = interface {
                let exchanged = device.exchanged.entry(key.clone()).or_default();
                exchanged.0 += 1;
                exchanged.1 += bytes;
            }
        }
        Committed::Done
    }

    /// Disconnects all devices that are connected.
    pub(super) fn close_stale(&mut self, at: Timestamp) -> Vec<Identity> {
        let mut stale = Vec::new();
        for (identity, device) in &mut self.devices {
            if device.row.connected {
                stale.push(identity.clone());
                device.disconnected(at, NODE_RESTART);
            }
        }
        stale
    }
}

fn is_poisoned(effect: &Effect, poisoned: &BTreeSet<String>) -> bool {
    match effect {
        Effect::AppendSample { path, .. }
        | Effect::SetProperty { path, .. }
        | Effect::UnsetProperty { path, .. } => poisoned.contains(&**path),
        _ => false,
    }
}

impl Device {
    fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::SetIntrospection(new) => self.declare(new),
            Effect::AppendSample {
                interface,
                path,
                value,
                value_at,
                received_at,
                ..
            } => {
                let place = (interface.clone(), path.clone());
                let series = self.samples.entry(place).or_default();
                let mut key = (*value_at, *received_at);
                while series.contains_key(&key) {
                    key.1 = Timestamp::from_micros(key.1.as_micros() + 1);
                }
                series.insert(key, value.clone());
            }
            Effect::SetProperty {
                interface,
                path,
                value,
                at,
            } => {
                self.properties
                    .insert((interface.clone(), path.clone()), (value.clone(), *at));
            }
            Effect::UnsetProperty { interface, path } => {
                self.properties.remove(&(interface.clone(), path.clone()));
            }
            Effect::RecordError(row) => {
                self.count(Tally::Errors, row.error_name.clone(), row.at);
                push(&mut self.errors, row.clone());
            }
            Effect::Connected { at, ip } => {
                if !self.row.connected {
                    self.row.connected = true;
                    self.row.last_connection = Some(*at);
                    self.row.last_seen_ip = *ip;
                    self.count(Tally::Connects, String::new(), *at);
                    self.presence(*at, "connected", |row| row.ip = *ip);
                }
            }
            Effect::Disconnected { at, reason } => self.disconnected(*at, reason),
            Effect::PendingEmptyCache(pending) => self.row.pending_empty_cache = *pending,
            Effect::RemoveReceipt(receipt) => drop(self.receipts.remove(receipt)),
            Effect::ForgetReceipts { epoch } => {
                self.receipts.retain(|receipt| receipt.epoch != *epoch);
            }
            // the state's own
            Effect::AddOutbox(_) | Effect::RemoveOutbox { .. } => {}
        }
    }

    /// Replaces the introspection.
    pub(super) fn declare(&mut self, new: &Introspection) {
        let old = Declaration {
            current: std::mem::take(&mut self.row.introspection),
            previous: std::mem::take(&mut self.row.previous_interfaces),
        };
        let replaced = old.replaced_by(new);
        self.row.introspection = replaced.current;
        self.row.previous_interfaces = replaced.previous;
    }

    fn disconnected(&mut self, at: Timestamp, reason: &str) {
        if self.row.connected {
            self.row.connected = false;
            self.row.last_disconnection = Some(at);
            self.presence(at, "disconnected", |row| {
                row.reason = Some(reason.to_owned());
            });
        }
    }

    fn presence(&mut self, at: Timestamp, event: &str, fill: impl FnOnce(&mut HistoryRow)) {
        self.row.presence_sequence += 1;
        let sequence = self.row.presence_sequence;
        let mut row = HistoryRow {
            sequence,
            at,
            event: event.to_owned(),
            ip: None,
            reason: None,
        };
        fill(&mut row);
        push(&mut self.history, row);
    }

    fn count(&mut self, what: Tally, name: String, at: Timestamp) {
        *self.tally.entry((what, name, minute_of(at))).or_default() += 1;
    }
}

/// Adds to a list of which the newest rows are kept.
fn push<T>(list: &mut VecDeque<T>, row: T) {
    list.push_back(row);
    while list.len() as u64 > RING_ROWS {
        list.pop_front();
    }
}
