//! Durations as `30s` or `90days`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_duration(*span))
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
