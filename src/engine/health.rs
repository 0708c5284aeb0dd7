//! Whether the store does what it is asked, how that is told, and when it is tried again.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::counters::EngineCounters;
use crate::{clock::SharedClock, store::StoreError};

/// Least time between two lines about the same outage.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Tells of outages of the store: one line at their beginning, then one every half minute, and one
/// at the end.
#[derive(Debug)]
pub(super) struct Health {
    clock: SharedClock,
    counters: Arc<EngineCounters>,
    last_line: Mutex<Option<Instant>>,
}

impl Health {
    /// A commit that takes longer than this counts as an outage until it is done.
    pub(super) const SLOW_COMMIT: Duration = Duration::from_secs(1);

    pub(super) fn new(clock: SharedClock, counters: Arc<EngineCounters>) -> Self {
        Self {
            clock,
            counters,
            last_line: Mutex::new(None),
        }
    }

    /// The store did not do `what`, and it will be tried again.
    pub(super) fn failed(&self, what: &'static str, error: &StoreError) {
        self.counters.commit_retries.add(1);
        self.counters.set_store_available(false);
        if self.line_is_due() {
            tracing::error!(
                error = error as &dyn std::error::Error,
                what,
                "the store is not available; nothing is acknowledged, trying again"
            );
        }
    }

    /// A commit has been under way for [`Self::SLOW_COMMIT`].
    pub(super) fn slow(&self) {
        self.counters.set_store_available(false);
        if self.line_is_due() {
            tracing::warn!("the store does not finish a commit; nothing is acknowledged meanwhile");
        }
    }

    /// The store took a commit.
    pub(super) fn succeeded(&self) {
        if !self.counters.set_store_available(true) {
            *self
                .last_line
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = None;
            tracing::info!("the store is available again");
        }
    }

    /// Whether enough time has passed since the last line of this kind; if so it starts anew.
    pub(super) fn line_is_due(&self) -> bool {
        let now = self.clock.now();
        let mut last = self
            .last_line
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.duration_since(last) >= LINE_INTERVAL);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// How long to wait before the next attempt: 50 ms, doubling to 2 s, each shortened by up to half
/// at random so that lanes do not knock together.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(2);

    pub(super) const fn new() -> Self {
        Self(Self::FIRST)
    }

    fn next(&mut self) -> Duration {
        let full = self.0;
        self.0 = (full * 2).min(Self::LONGEST);
        full.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// Waits.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_two_seconds() {
        let mut backoff = Backoff::new();
        for full in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let wait = backoff.next().as_millis();
            assert!((full / 2..=full).contains(&wait), "{wait} of {full}");
        }
    }
}
