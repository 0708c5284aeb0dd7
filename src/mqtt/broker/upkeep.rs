//! What is done beside the connections: sessions and messages whose time is over are removed, and
//! a wall clock that was set is spoken of.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::clock::{Clock, Timestamp};

/// Between two runs of the reaper. What is over is never delivered or resumed; this only takes its
/// room back.
const REAP_EVERY: Duration = Duration::from_secs(5);
/// The wall clock is said to have jumped when it is off by so much between two runs; what adjusts it
/// slowly stays far below.
const JUMP: Duration = Duration::from_secs(10);

/// Starts it; it ends when the broker is closed.
pub(super) fn start(shared: &Arc<Shared>, closed: &CancellationToken) {
    let (shared, closed) = (Arc::clone(shared), closed.clone());
    shared.tracker.clone().spawn(async move {
        let mut clocks = Clocks::of(&*shared.clock);
        loop {
            clocks.watch(&*shared.clock);
            reap(&shared, &closed).await;
            tokio::select! {
                () = closed.cancelled() => return,
                () = tokio::time::sleep(REAP_EVERY) => {}
            }
        }
    });
}

async fn reap(shared: &Shared, closed: &CancellationToken) {
    loop {
        for (identity, epoch) in shared.sessions.take_erased() {
            shared.intake.forget(&identity, epoch);
        }
        let reaped = match shared.sessions.reap(shared.clock.wall()).await {
            Ok(reaped) => reaped,
            Err(error) => {
                tracing::debug!(%error, "nothing reaped");
                return;
            }
        };
        for (identity, epoch) in &reaped.sessions {
            shared.intake.forget(identity, *epoch);
        }
        shared.counters.expired.add(reaped.messages as u64);
        if !reaped.more || closed.is_cancelled() {
            return;
        }
    }
}

/// Both clocks at one moment.
#[derive(Debug)]
struct Clocks {
    monotonic: Instant,
    wall: Timestamp,
}

/// How far the wall clock is from where the monotonic one has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    Ahead(Duration),
    Back(Duration),
}

impl Clocks {
    fn of(clock: &dyn Clock) -> Self {
        Self {
            monotonic: clock.now(),
            wall: clock.wall(),
        }
    }

    /// Warns when the wall clock jumped since the last look: stamps are from it, while keep-alives
    /// and deadlines are not.
    fn watch(&mut self, clock: &dyn Clock) {
        match self.jumped(clock) {
            Some(Jump::Ahead(by)) => tracing::warn!(
                seconds = by.as_secs(),
                "the wall clock jumped ahead; reception stamps follow it"
            ),
            Some(Jump::Back(by)) => tracing::warn!(
                seconds = by.as_secs(),
                "the wall clock jumped back; reception stamps of a device stand until it is caught up"
            ),
            None => {}
        }
    }

    fn jumped(&mut self, clock: &dyn Clock) -> Option<Jump> {
        let before = std::mem::replace(self, Self::of(clock));
        let elapsed = self.monotonic.saturating_duration_since(before.monotonic);
        let expected = before.wall.saturating_add(elapsed);
        let ahead = self.wall.saturating_since(expected);
        let back = expected.saturating_since(self.wall);
        match (ahead >= JUMP, back >= JUMP) {
            (true, _) => Some(Jump::Ahead(ahead)),
            (_, true) => Some(Jump::Back(back)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn fc_062_a_wall_clock_that_was_set_is_noticed_once_and_time_that_passes_is_not() {
        let start = Timestamp::parse("2026-01-31T10:20:30Z").expect("a time");
        let clock = ManualClock::new(start);
        let mut clocks = Clocks::of(&*clock);
        clock.advance(Duration::from_hours(1));
        assert_eq!(clocks.jumped(&*clock), None);
        let hours = Duration::from_hours(3);
        clock.set_wall(clock.wall().saturating_add(hours));
        assert_eq!(clocks.jumped(&*clock), Some(Jump::Ahead(hours)));
        assert_eq!(clocks.jumped(&*clock), None);
        clock.set_wall(clock.wall().saturating_sub(hours));
        assert_eq!(clocks.jumped(&*clock), Some(Jump::Back(hours)));
        clock.set_wall(clock.wall().saturating_add(Duration::from_secs(2)));
        assert_eq!(clocks.jumped(&*clock), None, "an adjustment");
    }
}
