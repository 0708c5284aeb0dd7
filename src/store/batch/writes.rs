//! The rows that a batch puts and removes, a list for each table.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{DeviceNumber, DeviceState, introspection::DeclaredRow};
use crate::{
    clock::Timestamp,
    interface::InterfaceKey,
    store::{DeviceErrorRow, HistoryRow, OutboxRow, Receipt},
};

/// Names a series before it has a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::store) struct SeriesKey {
    pub(in crate::store) device: DeviceNumber,
    pub(in crate::store) interface: InterfaceKey,
    pub(in crate::store) path: Arc<str>,
}

/// A sample to be appended.
#[derive(Debug)]
pub(in crate::store) struct SampleWrite {
    /// Position in [`Writes::series`].
    pub(in crate::store) series: usize,
    pub(in crate::store) value_at: i64,
    pub(in crate::store) received_at: i64,
    pub(in crate::store) expires_at: Option<i64>,
    pub(in crate::store) value: Vec<u8>,
}

/// What a property becomes.
#[derive(Debug)]
pub(in crate::store) struct PropertyWrite {
    pub(in crate::store) value: Vec<u8>,
    pub(in crate::store) at: Timestamp,
}

/// What is added to a counter.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct ExchangedWrite {
    pub(in crate::store) messages: u64,
    pub(in crate::store) bytes: u64,
}

/// A device error and its place in the device's ring.
#[derive(Debug)]
pub(in crate::store) struct ErrorWrite {
    pub(in crate::store) sequence: u64,
    pub(in crate::store) row: DeviceErrorRow,
}

/// A presence event; its place is its sequence.
pub(in crate::store) type HistoryWrite = HistoryRow;

/// What is counted by the minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) enum Tally {
    /// Device errors, by name.
    Errors = 0,
    /// Connects.
    Connects = 1,
}

/// A message for the outbox.
#[derive(Debug)]
pub(in crate::store) struct OutboxWrite {
    pub(in crate::store) device: DeviceNumber,
    pub(in crate::store) row: OutboxRow,
}

/// All that a batch puts and removes. No key occurs twice in a list; removals come first.
#[derive(Debug, Default)]
pub(in crate::store) struct Writes {
    /// Series that are referred to.
    pub(in crate::store) series: Vec<SeriesKey>,
    /// Samples, in order.
    pub(in crate::store) samples: Vec<SampleWrite>,
    /// Position in `series` to what the property becomes; `None` is unset.
    pub(in crate::store) properties: BTreeMap<usize, Option<PropertyWrite>>,
    /// Counters; those without an interface are of the device alone.
    pub(in crate::store) exchanged: HashMap<(DeviceNumber, Option<InterfaceKey>), ExchangedWrite>,
    /// Device rows that changed.
    pub(in crate::store) states: BTreeMap<DeviceNumber, DeviceState>,
    /// Introspection rows to be put.
    pub(in crate::store) declared: Vec<(DeviceNumber, DeclaredRow)>,
    /// Introspection rows to be removed: device, name, major.
    pub(in crate::store) undeclared: Vec<(DeviceNumber, String, u32)>,
    /// Errors by (device, slot).
    pub(in crate::store) errors: BTreeMap<(DeviceNumber, u64), ErrorWrite>,
    /// Presence events by (device, slot).
    pub(in crate::store) history: BTreeMap<(DeviceNumber, u64), HistoryWrite>,
    /// Counts by the minute.
    pub(in crate::store) tally: BTreeMap<(DeviceNumber, Tally, String, i64), u64>,
    /// Sessions whose receipts go: device, epoch.
    pub(in crate::store) receipts_forgotten: BTreeSet<(DeviceNumber, u64)>,
    /// Receipts to be removed: device, epoch, packet id.
    pub(in crate::store) receipts_removed: BTreeSet<(DeviceNumber, u64, u16)>,
    /// Receipts to be added.
    pub(in crate::store) receipts_added: BTreeSet<(DeviceNumber, u64, u16)>,
    /// Messages to be taken out of the outbox.
    pub(in crate::store) outbox_removed: Vec<u128>,
    /// Messages to be put into the outbox, in order.
    pub(in crate::store) outbox_added: Vec<OutboxWrite>,
}

impl Writes {
    /// Adds a receipt.
    pub(super) fn add_receipt(&mut self, device: DeviceNumber, receipt: Receipt) {
        self.receipts_added
            .insert((device, receipt.epoch, receipt.packet_id));
    }

    /// Removes a receipt, here or in the database.
    pub(super) fn remove_receipt(&mut self, device: DeviceNumber, receipt: Receipt) {
        let key = (device, receipt.epoch, receipt.packet_id);
        self.receipts_added.remove(&key);
        self.receipts_removed.insert(key);
    }

    /// Removes all receipts of a session, here and in the database.
    pub(super) fn forget_receipts(&mut self, device: DeviceNumber, epoch: u64) {
        self.receipts_added
            .retain(|&(of, session, _)| (of, session) != (device, epoch));
        self.receipts_forgotten.insert((device, epoch));
    }
}
