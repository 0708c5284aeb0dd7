//! Durations as `30s` or `90days`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&in_words(*span))
}

/// As people set it: whole days are not turned into months.
pub(super) fn in_words(span: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    let days = span.as_secs() / DAY;
    let rest = span.saturating_sub(Duration::from_secs(days * DAY));
    match (days, rest.is_zero()) {
        (0, _) => humantime::format_duration(span).to_string(),
        (_, true) => format!("{days}days"),
        (_, false) => format!("{days}days {}", humantime::format_duration(rest)),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text).map_err(|error| {
        serde::de::Error::custom(format!("{text:?} is no duration such as \"30s\": {error}"))
    })
}

/// The same, where absent means none.
pub(super) mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(crate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => super::serialize(span, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else {
            return Ok(None);
        };
        humantime::parse_duration(&text).map(Some).map_err(|error| {
            serde::de::Error::custom(format!("{text:?} is no duration such as \"30s\": {error}"))
        })
    }
}
