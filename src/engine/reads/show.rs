//! Rows as JSON: trees by path segment, lists and tables of samples.

use serde_json::{Map, Value as Json, json};

use super::{Format, ReadQuery, Shown};
use crate::{
    interface::{Aggregation, Interface, Mapping},
    payload::{BigIntegers, Style, Value},
    store::Sample,
};

/// The style of a query where longintegers are shown like `otherwise` unless asked for.
pub(super) fn style(query: &ReadQuery, otherwise: BigIntegers) -> Style {
    Style {
        big_integers: query.big_integers.unwrap_or(otherwise),
        milliseconds: query.keep_milliseconds,
    }
}

/// Values at the leaves of a tree whose branches are path segments.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The value of the path `/`, if that is one.
    whole: Option<Json>,
    branches: Map<String, Json>,
}

impl Tree {
    /// Puts a value at a path. Endpoints are no prefixes of each other, so that a leaf never
    /// becomes a branch; should a store hold such, the later one stays.
    pub(super) fn insert(&mut self, path: &str, leaf: Json) {
        let mut segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let Some(last) = segments.pop() else {
            self.whole = Some(leaf);
            return;
        };
        let mut branch = &mut self.branches;
        for segment in segments {
            let next = branch.entry(segment).or_insert_with(|| json!({}));
            if !next.is_object() {
                *next = json!({});
            }
            let Json::Object(below) = next else { return };
            branch = below;
        }
        branch.insert(last.to_owned(), leaf);
    }

    pub(super) fn into_json(self) -> Json {
        self.whole.unwrap_or(Json::Object(self.branches))
    }
}

/// The newest sample of a path, for a snapshot of an individual datastream.
pub(super) fn newest(sample: &Sample, query: &ReadQuery) -> Json {
    let style = style(query, BigIntegers::Numbers);
    json!({
        "value": sample.value.to_json(style),
        "timestamp": style.time(sample.value_at),
        "reception_timestamp": style.time(sample.received_at),
    })
}

/// One object sample: every key that the interface declares, null where it is missing, and
/// `timestamp`.
pub(super) fn object(interface: &Interface, sample: &Sample, query: &ReadQuery) -> Json {
    let style = style(query, BigIntegers::Strings);
    let mut shown: Map<String, Json> = keys(interface)
        .map(|key| (key.to_owned(), member(&sample.value, key, style)))
        .collect();
    shown.insert("timestamp".to_owned(), style.time(sample.value_at));
    shown.into()
}

fn keys(interface: &Interface) -> impl Iterator<Item = &str> {
    interface.mappings().iter().map(Mapping::key)
}

/// A member of an object; null when it is missing or null.
fn member(value: &Value, key: &str, style: Style) -> Json {
    let Value::Object(members) = value else {
        return Json::Null;
    };
    let found = members.iter().find(|(known, _)| known == key);
    found
        .and_then(|(_, value)| value.as_ref())
        .map_or(Json::Null, |value| value.to_json(style))
}

/// The samples of one path and how they are wanted.
pub(super) struct Series<'a> {
    pub(super) interface: &'a Interface,
    pub(super) path: &'a str,
    pub(super) samples: &'a [Sample],
    pub(super) query: &'a ReadQuery,
}

impl Series<'_> {
    pub(super) fn show(&self) -> Shown {
        match (self.interface.aggregation(), self.query.format) {
            (Aggregation::Individual, Format::Structured) => self.list(),
            (Aggregation::Individual, Format::Table) => self.table(),
            (Aggregation::Individual, Format::DisjointTables) => self.pairs(),
            (Aggregation::Object, Format::Structured) => self.object_list(),
            (Aggregation::Object, Format::Table) => self.object_table(),
            (Aggregation::Object, Format::DisjointTables) => self.object_pairs(),
        }
    }

    fn style(&self) -> Style {
        style(self.query, BigIntegers::Strings)
    }

    fn each(&self, shown: impl Fn(&Sample, Style) -> Json) -> Json {
        let style = self.style();
        self.samples
            .iter()
            .map(|sample| shown(sample, style))
            .collect()
    }

    fn list(&self) -> Shown {
        self.each(|sample, style| {
            json!({
                "timestamp": style.time(sample.value_at),
                "value": sample.value.to_json(style),
            })
        })
        .into()
    }

    fn table(&self) -> Shown {
        let last = self.path.rsplit('/').next().unwrap_or_default();
        let data = self.each(|sample, style| {
            json!([style.time(sample.value_at), sample.value.to_json(style)])
        });
        Shown {
            data,
            metadata: Some(columns(&["timestamp", last])),
        }
    }

    fn pairs(&self) -> Shown {
        let pairs = self.each(|sample, style| {
            json!([sample.value.to_json(style), style.time(sample.value_at)])
        });
        json!({ "value": pairs }).into()
    }

    fn object_list(&self) -> Shown {
        let shown = self
            .samples
            .iter()
            .map(|sample| object(self.interface, sample, self.query));
        shown.collect::<Json>().into()
    }

    fn object_table(&self) -> Shown {
        let mut header: Vec<&str> = keys(self.interface).chain(["timestamp"]).collect();
        header.sort_unstable();
        let data = self.each(|sample, style| {
            let cells = header.iter().map(|column| match *column {
                "timestamp" => style.time(sample.value_at),
                key => member(&sample.value, key, style),
            });
            cells.collect()
        });
        Shown {
            data,
            metadata: Some(columns(&header)),
        }
    }

    fn object_pairs(&self) -> Shown {
        let pairs = |key: &str| {
            self.each(|sample, style| {
                json!([
                    member(&sample.value, key, style),
                    style.time(sample.value_at)
                ])
            })
        };
        let shown: Map<String, Json> = keys(self.interface)
            .map(|key| (key.to_owned(), pairs(key)))
            .collect();
        Json::Object(shown).into()
    }
}

fn columns(header: &[&str]) -> Json {
    let places: Map<String, Json> = header
        .iter()
        .enumerate()
        .map(|(place, column)| ((*column).to_owned(), place.into()))
        .collect();
    json!({ "columns": places, "table_header": header })
}
