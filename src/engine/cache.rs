//! What a lane remembers of its devices: a bounded cache over the store.
//!
//! A device's introspection is read from the store when it is first needed after a connect, and
//! from then on kept by the lane, through which every change of it goes. What has changed and is
//! not committed yet is *pinned*: it can be neither forgotten nor read again.

use std::{collections::HashMap, sync::Arc};

use crate::{
    clock::Timestamp, identity::Identity, interface::Introspection, mqtt::SessionEpoch,
    store::DeviceRow,
};

/// Held by every judged change of an introspection until it is committed.
pub(super) type Pin = Arc<()>;

/// What a lane knows of one device.
#[derive(Debug)]
pub(super) struct Device {
    introspection: Option<Arc<Introspection>>,
    /// Session of which a message was refused with a clean kick: the rest of it is not handled.
    pub(super) poisoned: Option<SessionEpoch>,
    last_stamp: Timestamp,
    pin: Pin,
    used: u64,
    bytes: usize,
}

impl Device {
    /// What it declares, including what is judged and not committed yet; `None` until loaded.
    pub(super) const fn introspection(&self) -> Option<&Arc<Introspection>> {
        self.introspection.as_ref()
    }

    /// The reception stamp of a message that came in at `received_at`: strictly above the one
    /// before, so that stamps of a device never go back, whatever the clock does.
    pub(super) fn stamp(&mut self, received_at: Timestamp) -> Timestamp {
        let next = Timestamp::from_micros(self.last_stamp.as_micros().saturating_add(1));
        self.last_stamp = received_at.max(next);
        self.last_stamp
    }

    fn is_pinned(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }
}

/// The devices that a lane remembers.
#[derive(Debug)]
pub(super) struct Devices {
    known: HashMap<Identity, Device>,
    limit: usize,
    bytes: usize,
    tick: u64,
    /// Newest stamp of any device that was forgotten: where the stamps of an unknown one begin.
    floor: Timestamp,
}

/// Most bytes that the introspections of a lane's devices may take.
const BYTES_MAX: usize = 64 * 1024 * 1024;

impl Devices {
    pub(super) fn new(limit: usize) -> Self {
        let floor = Timestamp::MIN;
        Self {
            known: HashMap::new(),
            limit: limit.max(1),
            bytes: 0,
            tick: 0,
            floor,
        }
    }

    /// The device, made with nothing loaded if it is unknown.
    pub(super) fn entry(&mut self, identity: &Identity) -> &mut Device {
        self.tick += 1;
        if !self.known.contains_key(identity) {
            let device = Device {
                introspection: None,
                poisoned: None,
                last_stamp: self.floor,
                pin: Pin::default(),
                used: 0,
                bytes: 0,
            };
            self.known.insert(identity.clone(), device);
        }
        let device = self
            .known
            .get_mut(identity)
            .expect("it was there or has been inserted");
        device.used = self.tick;
        device
    }

    pub(super) fn get_mut(&mut self, identity: &Identity) -> Option<&mut Device> {
        self.known.get_mut(identity)
    }

    /// Whether the introspection has to be read before a message of this device is judged.
    pub(super) fn needs_load(&self, identity: &Identity) -> bool {
        self.known
            .get(identity)
            .is_none_or(|device| device.introspection.is_none())
    }

    /// Takes what was read from the store.
    pub(super) fn loaded(&mut self, identity: &Identity, row: DeviceRow) {
        let newest = row
            .last_connection
            .max(row.last_disconnection)
            .unwrap_or(Timestamp::MIN);
        let device = self.entry(identity);
        device.last_stamp = device.last_stamp.max(newest);
        self.set(identity, Arc::new(row.introspection));
    }

    /// Takes an introspection that is judged and not committed yet.
    pub(super) fn declare(&mut self, identity: &Identity, declared: Arc<Introspection>) -> Pin {
        self.set(identity, declared);
        Arc::clone(&self.entry(identity).pin)
    }

    /// Something outside the lane may have changed the device: it is read again when needed.
    pub(super) fn refresh(&mut self, identity: &Identity) {
        if let Some(device) = self.known.get_mut(identity)
            && !device.is_pinned()
        {
            device.introspection = None;
            self.bytes -= std::mem::take(&mut device.bytes);
        }
    }

    /// Forgets the devices that were not used for longest, when there are too many. Poisoned and
    /// pinned ones stay.
    pub(super) fn trim(&mut self) {
        if self.known.len() <= self.limit && self.bytes <= BYTES_MAX {
            return;
        }
        let mut by_use: Vec<_> = self
            .known
            .iter()
            .map(|(identity, device)| (device.used, identity.clone()))
            .collect();
        by_use.sort_unstable_by_key(|(used, _)| *used);
        for (_, identity) in by_use {
            if self.known.len() <= self.limit - self.limit / 4
                && self.bytes <= BYTES_MAX - BYTES_MAX / 4
            {
                break;
            }
            self.forget(&identity);
        }
    }

    fn forget(&mut self, identity: &Identity) {
        let Some(device) = self.known.get(identity) else {
            return;
        };
        if device.poisoned.is_some() || device.is_pinned() {
            return;
        }
        self.floor = self.floor.max(device.last_stamp);
        self.bytes -= device.bytes;
        self.known.remove(identity);
    }

    fn set(&mut self, identity: &Identity, declared: Arc<Introspection>) {
        let bytes = declared.iter().map(|(name, _)| name.len() + 64).sum();
        let device = self.entry(identity);
        device.introspection = Some(declared);
        let before = std::mem::replace(&mut device.bytes, bytes);
        self.bytes = self.bytes + bytes - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(number: u8) -> Identity {
        Identity::new(
            "acme".parse().unwrap(),
            crate::identity::DeviceId::from_bytes([number; 16]),
        )
    }

    fn declared(name: &str) -> Arc<Introspection> {
        let version = crate::interface::MajorMinor { major: 1, minor: 0 };
        Arc::new([(Arc::from(name), version)].into_iter().collect())
    }

    #[test]
    fn stamps_go_on_though_the_clock_goes_back_and_the_device_was_forgotten() {
        let mut devices = Devices::new(1);
        let at = Timestamp::from_micros;
        assert_eq!(devices.entry(&identity(1)).stamp(at(1000)), at(1000));
        assert_eq!(devices.entry(&identity(1)).stamp(at(500)), at(1001));
        assert_eq!(devices.entry(&identity(1)).stamp(at(1001)), at(1002));
        devices.entry(&identity(2));
        devices.trim();
        assert!(
            devices.get_mut(&identity(1)).is_none(),
            "it was used before the other"
        );
        assert_eq!(devices.entry(&identity(1)).stamp(at(10)), at(1003));
    }

    #[test]
    fn uncommitted_introspections_and_poisoned_sessions_are_never_forgotten() {
        let mut devices = Devices::new(1);
        let pin = devices.declare(&identity(1), declared("a.B"));
        devices.entry(&identity(2)).poisoned = Some(SessionEpoch(1));
        devices.entry(&identity(3));
        devices.trim();
        devices.refresh(&identity(1));
        assert!(!devices.needs_load(&identity(1)));
        assert!(devices.get_mut(&identity(2)).is_some());
        assert!(devices.get_mut(&identity(3)).is_none());
        drop(pin);
        devices.refresh(&identity(1));
        assert!(devices.needs_load(&identity(1)));
        assert_eq!(devices.bytes, 0);
    }
}
