//! What a batch of units comes to, worked out before anything is written. Pure.
//!
//! The databases read what a batch touches ([`Needs`], [`Known`]), [`fold()`] plays the units on it in
//! order, and what is left to do is one list of rows a table ([`Writes`]): a counter that a thousand
//! messages increase is one row, a property that was set ten times is its last value. So the
//! statements of a commit depend on the number of tables, not on that of messages.

mod fold;
mod introspection;
mod writes;

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Effect, Receipt, Unit};
use crate::{clock::Timestamp, identity::Identity};

pub(super) use fold::fold;
pub(super) use introspection::{Declaration, DeclaredRow};
pub(super) use writes::{
    ErrorWrite, ExchangedWrite, HistoryWrite, OutboxWrite, PropertyWrite, SampleWrite, SeriesKey,
    Tally, Writes,
};

/// Device errors and presence events that are kept of a device, each.
pub(super) const RING_ROWS: u64 = 100;

/// How long errors and connects are counted by the minute, in minutes: a day.
pub(super) const TALLY_MINUTES: i64 = 24 * 60;

/// The minute of a stamp, since 1970.
pub(super) const fn minute_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(60_000_000)
}

/// A device's row in the database.
pub(super) type DeviceNumber = i64;

/// The part of a device's row that units change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceState {
    pub(super) connected: bool,
    pub(super) presence_sequence: u64,
    pub(super) last_connection: Option<Timestamp>,
    pub(super) last_disconnection: Option<Timestamp>,
    pub(super) last_seen_ip: Option<String>,
    pub(super) pending_empty_cache: bool,
    pub(super) error_sequence: u64,
}

/// What has to be read before a batch can be folded.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Devices whose [`DeviceState`] is needed.
    pub(super) states: BTreeSet<DeviceNumber>,
    /// Devices whose [`Declaration`] is needed.
    pub(super) declarations: BTreeSet<DeviceNumber>,
    /// Receipts that may be there.
    pub(super) receipts: HashSet<(DeviceNumber, Receipt)>,
}

impl Needs {
    /// Looks through `units`, of which the devices are known.
    pub(super) fn of(units: &[&Unit], devices: &HashMap<Identity, DeviceNumber>) -> Self {
        let mut needs = Self::default();
        for unit in units {
            let Some(&device) = devices.get(&unit.identity) else {
                continue;
            };
            if let Some(receipt) = unit.receipt {
                needs.receipts.insert((device, receipt));
            }
            for effect in &unit.effects {
                match effect {
                    Effect::SetIntrospection(_) => {
                        needs.declarations.insert(device);
                    }
                    Effect::RecordError(_)
                    | Effect::Connected { .. }
                    | Effect::Disconnected { .. }
                    | Effect::PendingEmptyCache(_) => {
                        needs.states.insert(device);
                    }
                    _ => {}
                }
            }
        }
        needs
    }
}

/// What the database says of what a batch touches.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The devices that exist.
    pub(super) devices: HashMap<Identity, DeviceNumber>,
    /// As [`Needs::states`].
    pub(super) states: HashMap<DeviceNumber, DeviceState>,
    /// As [`Needs::declarations`]; a device without rows may be left out.
    pub(super) declarations: HashMap<DeviceNumber, Declaration>,
    /// Those of [`Needs::receipts`] that are there.
    pub(super) receipts: HashSet<(DeviceNumber, Receipt)>,
}
