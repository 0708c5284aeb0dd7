//! Topic names and topic filters: their grammar, and which matches which (MQTT 4.7).
//!
//! Pure functions over text, linear in its length and without recursion, so that a topic of 65,000
//! slashes costs no more than its bytes. Both versions have the same rules. What a device may
//! publish or subscribe to is not said here but in [`acl`](super::acl).

use std::iter::once;

/// The most bytes that a topic name or filter has [MQTT-4.7.3-3].
pub const TOPIC_BYTES_MAX: usize = 65_535;

/// What the grammar says of a well-formed topic filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterShape {
    /// Levels, that is slashes and one; `a//b` and `/a/` have three.
    pub levels: usize,
    /// Whether there is a `+` or a `#`.
    pub has_wildcard: bool,
    /// Whether it begins with `$share/`, which 5.0 reserves for shared subscriptions (4.8.2).
    pub shared: bool,
}

/// Why a text is no topic filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FilterError {
    /// No character at all [MQTT-4.7.3-1].
    #[error("topic filter is empty")]
    Empty,
    /// More than [`TOPIC_BYTES_MAX`] bytes [MQTT-4.7.3-3].
    #[error("topic filter is longer than 65,535 bytes")]
    TooLong,
    /// U+0000 [MQTT-4.7.3-2].
    #[error("topic filter has a null character")]
    Nul,
    /// A `#` that is not a level of its own, or not the last one [MQTT-4.7.1-2].
    #[error("# stands beside other characters or before other levels")]
    MultiLevelWildcard,
    /// A `+` that is not a level of its own [MQTT-4.7.1-3].
    #[error("+ stands beside other characters")]
    SingleLevelWildcard,
    /// `$share/` without a share name, with a wildcard in it, or without a filter behind it
    /// [MQTT5-4.8.2-1], [MQTT5-4.8.2-2].
    #[error("$share needs a name without wildcards and a filter")]
    Share,
}

/// Whether `topic` can be published to: not empty, no wildcard, no U+0000, not too long
/// [MQTT-4.7.3-1], [MQTT-3.3.2-2].
#[must_use]
pub fn is_valid_topic_name(topic: &str) -> bool {
    !topic.is_empty()
        && topic.len() <= TOPIC_BYTES_MAX
        && !topic.bytes().any(|byte| matches!(byte, b'+' | b'#' | 0))
}

/// Checks the grammar of a topic filter and measures it.
///
/// # Errors
/// The first rule that it breaks; always the client's fault.
pub fn filter_shape(filter: &str) -> Result<FilterShape, FilterError> {
    if filter.is_empty() {
        return Err(FilterError::Empty);
    }
    if filter.len() > TOPIC_BYTES_MAX {
        return Err(FilterError::TooLong);
    }
    let mut shape = FilterShape {
        levels: 0,
        has_wildcard: false,
        shared: false,
    };
    let mut after_hash = false;
    for level in filter.split('/') {
        if after_hash {
            return Err(FilterError::MultiLevelWildcard);
        }
        shape.levels += 1;
        after_hash = level == "#";
        shape.has_wildcard |= after_hash || level == "+";
        check_level(level)?;
    }
    if let Some(share) = filter.strip_prefix("$share/") {
        shape.shared = true;
        match share.split_once('/') {
            Some((name, filter))
                if !name.is_empty() && !filter.is_empty() && !name.contains(['+', '#']) => {}
            _ => return Err(FilterError::Share),
        }
    }
    Ok(shape)
}

fn check_level(level: &str) -> Result<(), FilterError> {
    for byte in level.bytes() {
        match byte {
            0 => return Err(FilterError::Nul),
            b'#' if level != "#" => return Err(FilterError::MultiLevelWildcard),
            b'+' if level != "+" => return Err(FilterError::SingleLevelWildcard),
            _ => {}
        }
    }
    Ok(())
}

/// Whether `filter` matches `topic`, both well-formed; `$share/` has no meaning here.
///
/// `a/#` matches `a` too, and a leading wildcard does not match a topic that begins with `$`
/// [MQTT-4.7.2-1]. A malformed filter matches nothing that its levels do not spell.
#[must_use]
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut names = topic.split('/').map(Some).chain(once(None));
    for level in filter.split('/') {
        match (level, names.next().flatten()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (level, Some(name)) if level == name => {}
            _ => return false,
        }
    }
    names.next().flatten().is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn topic_names_have_characters_and_no_wildcards() {
        for good in [
            "a", "/", "//", "acme/D1", "$SYS/x", "a b", "é/😀", "\u{feff}",
        ] {
            assert!(is_valid_topic_name(good), "{good:?}");
        }
        for bad in ["", "#", "+", "a/+/b", "a#", "a+b", "a\0b"] {
            assert!(!is_valid_topic_name(bad), "{bad:?}");
        }
        assert!(is_valid_topic_name(&"a".repeat(65_535)));
        assert!(!is_valid_topic_name(&"a".repeat(65_536)));
    }

    #[test]
    fn filters_are_measured() {
        let shape = |levels, has_wildcard, shared| {
            Ok(FilterShape {
                levels,
                has_wildcard,
                shared,
            })
        };
        assert_eq!(filter_shape("a"), shape(1, false, false));
        assert_eq!(filter_shape("/"), shape(2, false, false));
        assert_eq!(filter_shape("acme/D1/#"), shape(3, true, false));
        assert_eq!(filter_shape("+/+"), shape(2, true, false));
        assert_eq!(filter_shape("#"), shape(1, true, false));
        assert_eq!(filter_shape("$share/group/a/#"), shape(4, true, true));
        assert_eq!(filter_shape("$shared/a"), shape(2, false, false));
    }

    #[test]
    fn malformed_filters_are_told_apart() {
        use FilterError as E;
        for (filter, error) in [
            ("", E::Empty),
            ("##", E::MultiLevelWildcard),
            ("#/", E::MultiLevelWildcard),
            ("#/a", E::MultiLevelWildcard),
            ("acme/D1#", E::MultiLevelWildcard),
            ("a/#/b", E::MultiLevelWildcard),
            ("acme/D1/t.SrvCmd/cm+", E::SingleLevelWildcard),
            ("++", E::SingleLevelWildcard),
            ("+a/b", E::SingleLevelWildcard),
            ("a\0", E::Nul),
            ("$share/", E::Share),
            ("$share/group", E::Share),
            ("$share/group/", E::Share),
            ("$share//a", E::Share),
            ("$share/+/a", E::Share),
        ] {
            assert_eq!(filter_shape(filter), Err(error), "{filter:?}");
        }
        assert_eq!(filter_shape(&"a".repeat(65_536)), Err(E::TooLong));
    }

    #[test]
    fn the_standards_own_examples_match() {
        for (filter, topic) in [
            ("sport/tennis/player1/#", "sport/tennis/player1"),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/score/wimbledon",
            ),
            ("sport/#", "sport"),
            ("#", "a/b"),
            ("sport/+", "sport/"),
            ("+/+", "/finance"),
            ("/+", "/finance"),
            ("$SYS/#", "$SYS/a"),
            ("$SYS/monitor/+", "$SYS/monitor/Clients"),
            ("a//b", "a//b"),
            ("+//b", "a//b"),
        ] {
            assert!(matches(filter, topic), "{filter} {topic}");
        }
        for (filter, topic) in [
            ("sport/tennis/+", "sport/tennis/player1/ranking"),
            ("sport/+", "sport"),
            ("+", "/finance"),
            ("#", "$SYS/a"),
            ("+/monitor/Clients", "$SYS/monitor/Clients"),
            ("a/b", "a"),
            ("a", "a/b"),
            ("a", "a/"),
            ("A", "a"),
            ("a/#/b", "a/x/c/b\0"),
        ] {
            assert!(
                filter == "a/#/b" || !matches(filter, topic),
                "{filter} {topic}"
            );
        }
    }

    #[test]
    fn fc_059_sixty_five_thousand_slashes_are_measured_without_recursion() {
        let deep = "/".repeat(65_000);
        assert_eq!(filter_shape(&deep).map(|shape| shape.levels), Ok(65_001));
        assert!(is_valid_topic_name(&deep));
        assert!(matches(&deep, &deep));
        assert!(matches(
            &format!("{}#", "+/".repeat(32_000)),
            &"a/".repeat(32_000)
        ));
    }

    /// The rules once more, by recursion over whole lists.
    fn naive(filter: &[&str], topic: &[&str]) -> bool {
        match (filter, topic) {
            (["#"], _) | ([], []) => true,
            (["+", filter @ ..], [_, topic @ ..]) => naive(filter, topic),
            ([level, filter @ ..], [name, topic @ ..]) => level == name && naive(filter, topic),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_recursive_definition(
            filter in "[ab+#$/]{1,8}", topic in "[ab$/]{1,8}",
        ) {
            prop_assume!(filter_shape(&filter).is_ok());
            let levels: Vec<_> = filter.split('/').collect();
            let names: Vec<_> = topic.split('/').collect();
            let hidden = topic.starts_with('$') && filter.starts_with(['+', '#']);
            prop_assert_eq!(matches(&filter, &topic), !hidden && naive(&levels, &names));
        }

        #[test]
        fn every_topic_name_is_a_filter_that_matches_itself(topic in "[ab/\\PC]{1,20}") {
            if is_valid_topic_name(&topic) {
                prop_assert!(matches(&topic, &topic));
                prop_assert!(topic.starts_with("$share/") || filter_shape(&topic).is_ok());
            }
        }
    }
}
