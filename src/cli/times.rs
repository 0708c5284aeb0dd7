//! Times and durations as people write them.

use std::time::Duration;

use crate::clock::Timestamp;

/// A moment: ISO 8601, or so long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    At(Timestamp),
    Ago(Duration),
}

impl Moment {
    pub(super) fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => now.saturating_sub(ago),
        }
    }
}

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(at) = Timestamp::parse(text) {
            return Ok(Self::At(at));
        }
        humantime::parse_duration(text).map(Self::Ago).map_err(|_| {
            "is neither a time such as 2026-01-31T10:20:30Z nor a time ago such as 90s, 1h, 2days"
                .to_owned()
        })
    }
}

/// A duration; `never` is none.
pub(super) fn expiry(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "never" | "0" => Ok(None),
        _ => match humantime::parse_duration(text) {
            Ok(expiry) if expiry >= Duration::from_secs(1) => Ok(Some(expiry)),
            _ => Err(
                "is no duration from one second on, such as 8h or 30days, and not never".to_owned(),
            ),
        },
    }
}

/// A duration for waiting.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "is no duration such as 500ms, 30s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_so_long_ago() {
        let now = Timestamp::parse("2026-01-31T10:20:30Z").unwrap();
        let resolved = |text: &str| text.parse::<Moment>().map(|m| m.resolve(now).to_string());
        assert_eq!(resolved("1h").unwrap(), "2026-01-31T09:20:30.000Z");
        assert_eq!(
            resolved("2026-01-01T00:00:00+01:00").unwrap(),
            "2025-12-31T23:00:00.000Z"
        );
        assert!(resolved("yesterday").is_err());
    }

    #[test]
    fn a_token_lives_a_second_at_least_or_for_ever() {
        assert_eq!(expiry("8h"), Ok(Some(Duration::from_hours(8))));
        assert_eq!(expiry("never"), Ok(None));
        assert!(expiry("5ms").is_err());
    }
}
