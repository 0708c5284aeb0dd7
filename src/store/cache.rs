//! Numbers that the commit path remembers: of devices, interfaces and series.
//!
//! What is remembered is committed: numbers learnt inside a transaction are kept apart until it is
//! (`keep`) and dropped when it is not (`discard`). Forgetting is always
//! allowed, the database is asked again.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

use super::batch::{DeviceNumber, SeriesKey};
use crate::{identity::Identity, interface::InterfaceKey};

/// Most devices that are remembered, about 100 bytes each.
const DEVICES_MAX: usize = 200_000;
/// Most interfaces that are remembered.
const INTERFACES_MAX: usize = 4096;
/// Most series that are remembered, about 200 bytes each.
const SERIES_MAX: usize = 200_000;

/// All numbers that the commit path remembers.
#[derive(Debug)]
pub(super) struct Caches {
    pub(super) devices: Numbers<Identity>,
    pub(super) interfaces: Numbers<InterfaceKey>,
    pub(super) series: Numbers<SeriesKey>,
}

impl Caches {
    pub(super) fn new() -> Self {
        Self {
            devices: Numbers::new(DEVICES_MAX),
            interfaces: Numbers::new(INTERFACES_MAX),
            series: Numbers::new(SERIES_MAX),
        }
    }

    /// The transaction is committed: what it taught holds.
    pub(super) fn keep(&mut self) {
        self.devices.keep();
        self.interfaces.keep();
        self.series.keep();
    }

    /// The transaction, or a part of it, is undone: what it taught may not hold.
    pub(super) fn discard(&mut self) {
        self.devices.fresh.clear();
        self.interfaces.fresh.clear();
        self.series.fresh.clear();
    }

    /// Forgets a device that is being removed.
    pub(super) fn forget_device(&mut self, identity: &Identity) -> Option<DeviceNumber> {
        self.devices.forget(identity)
    }

    /// Forgets everything: series were removed, or another program may have written.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

/// A bounded map in two generations: what was not used while the younger one filled up goes.
#[derive(Debug)]
pub(super) struct Numbers<K> {
    young: HashMap<K, i64>,
    old: HashMap<K, i64>,
    /// Learnt in the transaction under way.
    fresh: HashMap<K, i64>,
    entries_max: usize,
}

impl<K: Eq + Hash + Clone> Numbers<K> {
    fn new(entries_max: usize) -> Self {
        let (young, old, fresh) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self {
            young,
            old,
            fresh,
            entries_max,
        }
    }

    /// The number of a key, if it is remembered.
    pub(super) fn find<Q>(&mut self, key: &Q) -> Option<i64>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if let Some(number) = self.fresh.get(key).or_else(|| self.young.get(key)) {
            return Some(*number);
        }
        let (key, number) = self.old.remove_entry(key)?;
        self.insert(key, number);
        Some(number)
    }

    /// Remembers what the transaction under way found or made.
    pub(super) fn learn(&mut self, key: K, number: i64) {
        self.fresh.insert(key, number);
    }

    fn forget(&mut self, key: &K) -> Option<i64> {
        let fresh = self.fresh.remove(key);
        let young = self.young.remove(key);
        let old = self.old.remove(key);
        fresh.or(young).or(old)
    }

    fn keep(&mut self) {
        for (key, number) in std::mem::take(&mut self.fresh) {
            self.insert(key, number);
        }
    }

    fn insert(&mut self, key: K, number: i64) {
        if self.young.len() >= self.entries_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_undone_transaction_taught_is_forgotten() {
        let mut numbers = Numbers::new(8);
        numbers.learn("a", 1);
        numbers.fresh.clear();
        assert_eq!(numbers.find("a"), None);
        numbers.learn("a", 2);
        numbers.keep();
        numbers.fresh.clear();
        assert_eq!(numbers.find("a"), Some(2));
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_what_is_used_stays() {
        let mut numbers = Numbers::new(8);
        for n in 0..100 {
            numbers.learn(n, n);
            numbers.keep();
            assert_eq!(numbers.find(&0), Some(0), "after {n}");
            assert!(numbers.young.len() + numbers.old.len() <= 8);
        }
        assert_eq!(numbers.find(&50), None);
    }
}
