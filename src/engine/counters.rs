//! What the engine counts. Plain atomics, read by telemetry; no label names a device.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::errors::DeviceError;
use crate::identity::RealmName;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    pub(super) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Relaxed);
    }
}

/// Durations, counted in buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; Histogram::BOUNDS_SECONDS.len()],
    count: AtomicU64,
    sum_micros: AtomicU64,
}

/// What a [`Histogram`] holds at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramSnapshot {
    /// Upper bound in seconds, and how many were not above it (cumulative).
    pub buckets: Vec<(f64, u64)>,
    /// How many in all.
    pub count: u64,
    /// Their sum in seconds.
    pub sum_seconds: f64,
}

impl Histogram {
    /// Upper bounds of the buckets, in seconds; what is above the last is in the count alone.
    pub const BOUNDS_SECONDS: [f64; 14] = [
        0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
    ];

    pub(super) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(index) = Self::BOUNDS_SECONDS
            .iter()
            .position(|bound| seconds <= *bound)
        {
            self.buckets[index].fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.sum_micros
            .fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// What it holds now.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut below = 0;
        let buckets = Self::BOUNDS_SECONDS
            .iter()
            .zip(&self.buckets)
            .map(|(bound, bucket)| {
                below += bucket.load(Relaxed);
                (*bound, below)
            })
            .collect();
        HistogramSnapshot {
            buckets,
            count: self.count.load(Relaxed),
            sum_seconds: Duration::from_micros(self.sum_micros.load(Relaxed)).as_secs_f64(),
        }
    }
}

/// What the engine counts.
#[derive(Debug)]
pub struct EngineCounters {
    /// Messages that hold room in the intake now.
    pub intake_messages: Gauge,
    /// Their bytes (payload and topic).
    pub intake_bytes: Gauge,
    /// Reservations that wait for room now.
    pub intake_waiting: Gauge,
    /// Messages stored.
    pub messages_stored: Counter,
    /// QoS 2 messages that were stored before and came again.
    pub messages_repeated: Counter,
    /// Messages refused and acknowledged.
    pub messages_refused: Counter,
    /// Messages left unacknowledged: behind a clean kick, of a deleted device, or at the end.
    pub messages_dropped: Counter,
    /// Transactions that the store took.
    pub batches: Counter,
    /// Units in them.
    pub units: Counter,
    /// How long a commit took, the successful attempt alone.
    pub commit_seconds: Histogram,
    /// Commits that were tried again because the store was not available.
    pub commit_retries: Counter,
    store_available: AtomicBool,
    errors: Mutex<BTreeMap<(RealmName, DeviceError), u64>>,
}

impl Default for EngineCounters {
    fn default() -> Self {
        Self {
            intake_messages: Gauge::default(),
            intake_bytes: Gauge::default(),
            intake_waiting: Gauge::default(),
            messages_stored: Counter::default(),
            messages_repeated: Counter::default(),
            messages_refused: Counter::default(),
            messages_dropped: Counter::default(),
            batches: Counter::default(),
            units: Counter::default(),
            commit_seconds: Histogram::default(),
            commit_retries: Counter::default(),
            store_available: AtomicBool::new(true),
            errors: Mutex::default(),
        }
    }
}

impl EngineCounters {
    /// Whether the last commit reached the store.
    #[must_use]
    pub fn store_available(&self) -> bool {
        self.store_available.load(Relaxed)
    }

    /// Device errors by realm and name.
    #[must_use]
    pub fn errors(&self) -> Vec<(RealmName, DeviceError, u64)> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors
            .iter()
            .map(|((realm, error), count)| (realm.clone(), *error, *count))
            .collect()
    }

    pub(super) fn set_store_available(&self, available: bool) -> bool {
        self.store_available.swap(available, Relaxed)
    }

    pub(super) fn count_error(&self, realm: &RealmName, error: DeviceError) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry((realm.clone(), error)).or_default() += 1;
    }

    pub(super) fn drop_realm(&self, realm: &RealmName) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.retain(|(other, _), _| other != realm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_the_slowest_are_in_the_count_alone() {
        let histogram = Histogram::default();
        for millis in [1, 1, 3, 60_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count, 4);
        let below: Vec<u64> = snapshot.buckets.iter().map(|(_, below)| *below).collect();
        assert_eq!(below, [0, 0, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert!((snapshot.sum_seconds - 60.005).abs() < 1e-9);
    }
}
