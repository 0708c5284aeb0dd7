//! How a new introspection replaces the old one (Astarte MQTT v1, Introspection).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::interface::{Introspection, MajorMinor};

/// Interfaces that a device declared before and that are remembered. A device that declares new
/// names for ever must not fill the database; the alphabetically first of the older ones go.
const PREVIOUS_INTERFACES_MAX: usize = 1024;

/// What a device declares and what it declared before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Declaration {
    pub(in crate::store) current: Introspection,
    /// (name, major) to minor.
    pub(in crate::store) previous: BTreeMap<(String, u32), u32>,
}

/// A row of the table `introspection`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct DeclaredRow {
    pub(in crate::store) name: String,
    pub(in crate::store) major: u32,
    pub(in crate::store) minor: u32,
    /// Whether it is declared now, not before.
    pub(in crate::store) declared: bool,
}

impl Declaration {
    /// This declaration after the device declared `new`: a (name, major) that left goes to the
    /// previous interfaces, one that is there leaves them.
    pub(in crate::store) fn replaced_by(&self, new: &Introspection) -> Self {
        let declared: BTreeSet<(&str, u32)> = new
            .iter()
            .map(|(name, version)| (&**name, version.major))
            .collect();
        let left = |name: &str, major: u32| !declared.contains(&(name, major));

        let gone: BTreeMap<(String, u32), u32> = self
            .current
            .iter()
            .filter(|(name, version)| left(name, version.major))
            .map(|(name, version)| ((name.to_string(), version.major), version.minor))
            .collect();
        let mut previous: BTreeMap<(String, u32), u32> = self
            .previous
            .iter()
            .filter(|((name, major), _)| left(name, *major))
            .map(|(key, minor)| (key.clone(), *minor))
            .collect();
        while previous.len() + gone.len() > PREVIOUS_INTERFACES_MAX
            && previous.pop_first().is_some()
        {}
        previous.extend(gone.into_iter().take(PREVIOUS_INTERFACES_MAX));
        Self {
            current: new.clone(),
            previous,
        }
    }

    /// Its rows.
    pub(in crate::store) fn rows(&self) -> impl Iterator<Item = DeclaredRow> {
        let current = self.current.iter().map(|(name, version)| DeclaredRow {
            name: name.to_string(),
            major: version.major,
            minor: version.minor,
            declared: true,
        });
        let previous = self
            .previous
            .iter()
            .map(|((name, major), minor)| DeclaredRow {
                name: name.clone(),
                major: *major,
                minor: *minor,
                declared: false,
            });
        current.chain(previous)
    }

    /// The declaration that has these rows.
    pub(in crate::store) fn from_rows(rows: impl IntoIterator<Item = DeclaredRow>) -> Self {
        let mut current: Vec<(Arc<str>, MajorMinor)> = Vec::new();
        let mut previous = BTreeMap::new();
        for row in rows {
            if row.declared {
                let version = MajorMinor {
                    major: row.major,
                    minor: row.minor,
                };
                current.push((Arc::from(row.name), version));
            } else {
                previous.insert((row.name, row.major), row.minor);
            }
        }
        Self {
            current: current.into_iter().collect(),
            previous,
        }
    }

    /// What has to be written to turn this into `new`: rows to be put, and keys to be removed.
    pub(in crate::store) fn difference(
        &self,
        new: &Self,
    ) -> (Vec<DeclaredRow>, Vec<(String, u32)>) {
        let key = |row: DeclaredRow| ((row.name, row.major), (row.minor, row.declared));
        let mut old: BTreeMap<_, _> = self.rows().map(key).collect();
        let mut put = Vec::new();
        for row in new.rows() {
            let before = old.remove(&(row.name.clone(), row.major));
            if before != Some((row.minor, row.declared)) {
                put.push(row);
            }
        }
        (put, old.into_keys().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introspection(entries: &[(&str, u32, u32)]) -> Introspection {
        entries
            .iter()
            .map(|&(name, major, minor)| (Arc::from(name), MajorMinor { major, minor }))
            .collect()
    }

    #[test]
    fn what_leaves_or_changes_major_is_remembered_and_what_comes_back_is_not() {
        let first = Declaration::default().replaced_by(&introspection(&[
            ("a", 0, 1),
            ("b", 1, 2),
            ("c", 1, 0),
        ]));
        assert!(first.previous.is_empty());

        let second = first.replaced_by(&introspection(&[("b", 2, 0), ("c", 1, 5)]));
        let previous: Vec<_> = second.previous.clone().into_iter().collect();
        assert_eq!(
            previous,
            [(("a".to_owned(), 0), 1), (("b".to_owned(), 1), 2)]
        );

        let third = second.replaced_by(&introspection(&[("a", 0, 3), ("b", 2, 0), ("c", 1, 5)]));
        let previous: Vec<_> = third.previous.into_iter().collect();
        assert_eq!(previous, [(("b".to_owned(), 1), 2)]);
    }

    #[test]
    fn a_minor_update_remembers_nothing() {
        let first = Declaration::default().replaced_by(&introspection(&[("a", 1, 1)]));
        let second = first.replaced_by(&introspection(&[("a", 1, 2)]));
        assert!(second.previous.is_empty());
    }

    #[test]
    fn the_difference_turns_the_old_rows_into_the_new_ones() {
        let old = Declaration::default().replaced_by(&introspection(&[("a", 0, 1), ("b", 1, 2)]));
        let new = old.replaced_by(&introspection(&[("b", 1, 3), ("c", 0, 1)]));
        let (put, removed) = old.difference(&new);
        let mut rows: BTreeMap<_, _> = old
            .rows()
            .map(|row| ((row.name.clone(), row.major), row))
            .collect();
        for key in removed {
            rows.remove(&key);
        }
        for row in put {
            rows.insert((row.name.clone(), row.major), row);
        }
        assert_eq!(Declaration::from_rows(rows.into_values()), new);
    }

    #[test]
    fn nothing_changes_when_the_same_is_declared_again() {
        let old = Declaration::default().replaced_by(&introspection(&[("a", 0, 1), ("b", 1, 2)]));
        let new = old.replaced_by(&introspection(&[("b", 1, 2), ("a", 0, 1)]));
        assert_eq!(old.difference(&new), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_device_that_declares_new_names_for_ever_does_not_grow_for_ever() {
        let mut declaration = Declaration::default();
        for round in 0..5_u32 {
            let names: Vec<String> = (0..400)
                .map(|n| format!("org.example.R{round}N{n}"))
                .collect();
            let new = names
                .iter()
                .map(|name| (Arc::from(name.as_str()), MajorMinor { major: 1, minor: 0 }))
                .collect();
            declaration = declaration.replaced_by(&new);
        }
        assert_eq!(declaration.previous.len(), PREVIOUS_INTERFACES_MAX);
        assert!(
            declaration
                .previous
                .contains_key(&("org.example.R3N7".to_owned(), 1))
        );
    }
}
