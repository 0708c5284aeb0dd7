//! Time, passed in.
//!
//! Nothing in Tanit reads the ambient clock: what needs the time is handed a [`Clock`], so that
//! keep-alive, expiry and retention are tested without waiting. Intervals are measured on the
//! monotonic clock ([`Clock::now`]); wall time ([`Clock::wall`]) is only stamped on what is stored.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};

/// A point of wall time: microseconds since 1970-01-01T00:00:00Z, leap seconds not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The first moment that can be printed: 0000-01-01T00:00:00Z.
    pub const MIN: Self = Self(-62_167_219_200_000_000);
    /// The last millisecond that can be printed: 9999-12-31T23:59:59.999Z.
    pub const MAX: Self = Self(253_402_300_799_999_000);

    /// From microseconds since the epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From milliseconds since the epoch; `None` outside the years 0 to 9999.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Option<Self> {
        match millis.checked_mul(1000) {
            Some(micros) if micros >= Self::MIN.0 && micros <= Self::MAX.0 => Some(Self(micros)),
            _ => None,
        }
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since the epoch, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// This moment moved by `by`, kept within the printable years.
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros).min(Self::MAX.0))
    }

    /// This moment moved back by `by`, kept within the printable years.
    #[must_use]
    pub fn saturating_sub(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros).max(Self::MIN.0))
    }

    /// The time from `earlier` to this moment; zero when it lies after it.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads ISO 8601 with an offset (`2026-01-31T10:20:30.123Z`); `None` if it is not that.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parsed = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(parsed.unix_timestamp_nanos().div_euclid(1000))
            .ok()
            .map(Self)
    }

    /// The same moment for the `time` crate.
    #[must_use]
    pub fn to_offset_date_time(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    /// ISO 8601 with milliseconds and `Z`, as Astarte's APIs print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
        );
        let text = self
            .to_offset_date_time()
            .format(&format)
            .map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("is not an ISO 8601 time"))
    }
}

/// Where the time comes from.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The monotonic clock, for intervals and deadlines.
    fn now(&self) -> Instant;
    /// The wall clock, for stamps.
    fn wall(&self) -> Timestamp;
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The machine's clocks, shared.
    #[must_use]
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clocks"
)]
impl Clock for SystemClock {
    fn now(&self) -> Instant {
        // tokio's instant is the machine's, but follows a paused runtime in tests
        tokio::time::Instant::now().into_std()
    }

    fn wall(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
            Err(before) => {
                Timestamp(-i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX))
            }
        }
    }
}

/// A clock that stands still until it is moved, for tests.
#[derive(Debug)]
pub struct ManualClock {
    start: Instant,
    state: Mutex<(Duration, Timestamp)>,
}

impl ManualClock {
    /// A clock that shows `wall`.
    #[must_use]
    pub fn new(wall: Timestamp) -> Arc<Self> {
        Arc::new(Self {
            start: tokio::time::Instant::now().into_std(),
            state: Mutex::new((Duration::ZERO, wall)),
        })
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state.lock().expect("no panic while the clock is held");
        state.0 += by;
        state.1 = state.1.saturating_add(by);
    }

    /// Sets the wall clock alone, as an operator or NTP may.
    pub fn set_wall(&self, wall: Timestamp) {
        self.state
            .lock()
            .expect("no panic while the clock is held")
            .1 = wall;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.start
            + self
                .state
                .lock()
                .expect("no panic while the clock is held")
                .0
    }

    fn wall(&self) -> Timestamp {
        self.state
            .lock()
            .expect("no panic while the clock is held")
            .1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_reads_iso_8601_with_milliseconds() {
        let stamp = Timestamp::from_millis(1_700_000_000_123).expect("in range");
        assert_eq!(stamp.to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(
            Timestamp::parse("2023-11-14T23:13:20.123+01:00"),
            Some(stamp)
        );
        assert_eq!(Timestamp::parse("yesterday"), None);
    }

    #[test]
    fn the_edges_of_the_printable_years_are_printable() {
        assert_eq!(Timestamp::MIN.to_string(), "0000-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(Timestamp::from_millis(253_402_300_800_000), None);
        assert_eq!(Timestamp::from_millis(i64::MIN), None);
    }
}
