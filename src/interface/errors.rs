//! Why a document is no interface: by field, as Astarte's 422 answers tell it.

use std::{collections::BTreeMap, fmt};

use serde_json::{Map, Value as Json};

/// Messages by field name.
pub(super) type Fields = BTreeMap<&'static str, Vec<String>>;

/// Why a document is no interface.
///
/// [`InvalidInterface::to_json`] gives the `errors` object of Astarte's 422 answer, [`fmt::Display`]
/// one line for people with the same facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidInterface {
    /// Not a JSON object at all.
    NotAnObject(String),
    /// Fields that break a rule, each with its messages.
    Fields(FieldErrors),
    /// Endpoints that a path could belong to at once.
    Overlap(Vec<EndpointConflict>),
}

/// Messages for the fields of a document and of its mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors {
    pub(super) interface: Fields,
    /// One for each mapping, empty where it is right; empty altogether when all are.
    pub(super) mappings: Vec<Fields>,
}

/// Two endpoints that cannot stand in one interface, and the rule that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConflict {
    /// The earlier one.
    pub first: String,
    /// The later one.
    pub second: String,
    /// The rule, in words.
    pub rule: &'static str,
}

impl fmt::Display for EndpointConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} ({})", self.first, self.second, self.rule)
    }
}

impl FieldErrors {
    pub(super) fn add(&mut self, field: &'static str, message: impl Into<String>) {
        self.interface
            .entry(field)
            .or_default()
            .push(message.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.interface.is_empty() && self.mappings.iter().all(BTreeMap::is_empty)
    }
}

impl InvalidInterface {
    /// An error of one field.
    pub(super) fn field(field: &'static str, message: impl Into<String>) -> Self {
        let mut errors = FieldErrors::default();
        errors.add(field, message);
        Self::Fields(errors)
    }

    /// The `errors` object: `{"<field>": ["…"], "mappings": [{}, {"<field>": ["…"]}]}`, or
    /// `{"detail": "…"}`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let mut errors = Map::new();
        match self {
            Self::NotAnObject(_) | Self::Overlap(_) => {
                errors.insert("detail".into(), self.to_string().into());
            }
            Self::Fields(fields) => {
                errors = messages(&fields.interface);
                let faulty = fields.mappings.iter().any(|mapping| !mapping.is_empty());
                if faulty && !errors.contains_key("mappings") {
                    let each = fields.mappings.iter().map(messages);
                    errors.insert("mappings".into(), each.collect());
                }
            }
        }
        errors.into()
    }
}

fn messages(fields: &Fields) -> Map<String, Json> {
    fields
        .iter()
        .map(|(field, texts)| ((*field).to_owned(), texts.as_slice().into()))
        .collect()
}

impl fmt::Display for InvalidInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnObject(why) => write!(f, "is not a JSON object: {why}"),
            Self::Overlap(conflicts) => {
                f.write_str("Overlapping endpoints in interface mappings: ")?;
                list(f, conflicts.iter())
            }
            Self::Fields(fields) => {
                let own = fields.interface.iter().flat_map(|(field, texts)| {
                    texts.iter().map(move |text| format!("{field} {text}"))
                });
                let below = fields
                    .mappings
                    .iter()
                    .enumerate()
                    .flat_map(|(index, mapping)| {
                        mapping.iter().flat_map(move |(field, texts)| {
                            texts
                                .iter()
                                .map(move |text| format!("mappings[{index}].{field} {text}"))
                        })
                    });
                list(f, own.chain(below))
            }
        }
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, all: impl Iterator<Item = T>) -> fmt::Result {
    for (index, one) in all.enumerate() {
        if index > 0 {
            f.write_str("; ")?;
        }
        write!(f, "{one}")?;
    }
    Ok(())
}

impl std::error::Error for InvalidInterface {}
