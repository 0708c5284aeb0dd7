//! Whether endpoints can stand in one interface (spec: conflicts between endpoints).
//!
//! Two rules. Without their placeholders and in lower case, endpoints differ. And compared segment
//! by segment over the shorter length, two endpoints have a pair of unlike literals somewhere: or
//! one path could belong to both, or one endpoint would be a prefix of the other. The second rule is
//! judged with bit sets, one bit for each endpoint, so that 1,024 endpoints of 64 segments cost a
//! million steps and not the 33 million of comparing each with each.

use super::{EndpointConflict, segments};

/// Most conflicts that are told of one document.
const TOLD_MAX: usize = 8;

const ALIKE: &str = "they are equal once placeholders are blanked and case is ignored";
const SAME_PATHS: &str = "a path can match both, since a placeholder stands for any segment";
const PREFIX: &str = "one is a prefix of the other";

/// Pairs that are equal without placeholders and case.
pub(super) fn alike(endpoints: &[&str]) -> Vec<EndpointConflict> {
    let mut normalised: Vec<(String, usize)> = endpoints
        .iter()
        .enumerate()
        .map(|(index, endpoint)| (blanked(endpoint).to_lowercase(), index))
        .collect();
    normalised.sort_unstable();
    let mut pairs: Vec<(usize, usize)> = normalised
        .windows(2)
        .filter(|pair| pair[0].0 == pair[1].0)
        .map(|pair| (pair[0].1, pair[1].1))
        .collect();
    pairs.sort_unstable();
    pairs.truncate(TOLD_MAX);
    pairs
        .into_iter()
        .map(|(a, b)| conflict(endpoints[a], endpoints[b], ALIKE))
        .collect()
}

/// The endpoint with its placeholders replaced by nothing.
pub(super) fn blanked(endpoint: &str) -> String {
    let mut blank = String::with_capacity(endpoint.len());
    for segment in segments(endpoint) {
        blank.push('/');
        if !is_placeholder(segment) {
            blank.push_str(segment);
        }
    }
    blank
}

pub(super) fn is_placeholder(segment: &str) -> bool {
    segment.starts_with("%{")
}

fn conflict(first: &str, second: &str, rule: &'static str) -> EndpointConflict {
    EndpointConflict {
        first: first.to_owned(),
        second: second.to_owned(),
        rule,
    }
}

/// A set of endpoints.
#[derive(Clone)]
struct Set(Vec<u64>);

impl Set {
    fn none(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn all(count: usize) -> Self {
        let mut set = Self::none(count);
        (0..count).for_each(|index| set.insert(index));
        set
    }

    fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn retain(&mut self, others: &Self) {
        self.0
            .iter_mut()
            .zip(&others.0)
            .for_each(|(word, other)| *word &= other);
    }

    /// The members above `index`.
    fn above(&self, index: usize) -> impl Iterator<Item = usize> {
        let bits = self.0.iter().enumerate().flat_map(|(place, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.checked_sub(1)?;
                Some(place * 64 + bit)
            })
        });
        bits.filter(move |member| *member > index)
    }
}

/// Pairs that overlap: no pair of unlike literals over the shorter length.
pub(super) fn overlapping(endpoints: &[&str]) -> Vec<EndpointConflict> {
    let count = endpoints.len();
    let split: Vec<Vec<&str>> = endpoints
        .iter()
        .map(|endpoint| segments(endpoint).collect())
        .collect();
    let deepest = split.iter().map(Vec::len).max().unwrap_or(0);
    // for each endpoint those that it has not been told apart from yet
    let mut alike = vec![Set::all(count); count];
    for level in 0..deepest {
        tell_apart(&split, level, &mut alike);
    }
    let pairs = (0..count).flat_map(|a| alike[a].above(a).map(move |b| (a, b)));
    pairs
        .take(TOLD_MAX)
        .map(|(a, b)| {
            let rule = if split[a].len() == split[b].len() {
                SAME_PATHS
            } else {
                PREFIX
            };
            conflict(endpoints[a], endpoints[b], rule)
        })
        .collect()
}

/// Removes from `alike` what the literals at `level` tell apart.
fn tell_apart(split: &[Vec<&str>], level: usize, alike: &mut [Set]) {
    let mut any = Set::none(split.len());
    let mut literals: Vec<(&str, usize)> = Vec::with_capacity(split.len());
    for (index, endpoint) in split.iter().enumerate() {
        match endpoint.get(level) {
            Some(segment) if !is_placeholder(segment) => literals.push((segment, index)),
            // a placeholder, or an endpoint that has ended, is like everything
            _ => any.insert(index),
        }
    }
    literals.sort_unstable();
    for same in literals.chunk_by(|a, b| a.0 == b.0) {
        let mut compatible = any.clone();
        for (_, index) in same {
            compatible.insert(*index);
        }
        for (_, index) in same {
            alike[*index].retain(&compatible);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule as the spec words it, pair by pair.
    fn naive(a: &str, b: &str) -> bool {
        segments(a)
            .zip(segments(b))
            .all(|(a, b)| a == b || is_placeholder(a) || is_placeholder(b))
    }

    fn endpoint() -> impl Strategy<Value = String> {
        prop::collection::vec(prop_oneof!["[a-c]", Just("%{p}".to_owned())], 1..5)
            .prop_map(|segments| format!("/{}", segments.join("/")))
    }

    proptest! {
        #[test]
        fn the_bit_sets_say_what_the_pairwise_rule_says(all in prop::collection::vec(endpoint(), 0..9)) {
            let endpoints: Vec<&str> = all.iter().map(String::as_str).collect();
            let expected = (0..all.len())
                .flat_map(|a| (a + 1..all.len()).map(move |b| (a, b)))
                .any(|(a, b)| naive(endpoints[a], endpoints[b]));
            prop_assert_eq!(!overlapping(&endpoints).is_empty(), expected);
            for pair in overlapping(&endpoints) {
                prop_assert!(naive(&pair.first, &pair.second));
            }
        }
    }

    #[test]
    fn more_than_64_endpoints_are_all_looked_at() {
        let many: Vec<String> = (0..130)
            .map(|n| format!("/e{n}/x"))
            .chain(["/e70".into()])
            .collect();
        let endpoints: Vec<&str> = many.iter().map(String::as_str).collect();
        let found = overlapping(&endpoints);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].first.as_str(), found[0].second.as_str()),
            ("/e70/x", "/e70")
        );
    }
}
