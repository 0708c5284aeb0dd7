//! The document: fields, defaults and rules, and back to JSON (spec: interface documents).

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    Aggregation, FieldErrors, Interface, InterfaceKey, InterfaceType, InvalidInterface, Mapping,
    Ownership, Reliability, Retention,
    conflicts::{self, is_placeholder},
    errors::Fields,
    fields::{BLANK, FORMAT, INVALID, MUST_BE_BLANK, Names, Reader},
    is_interface_name,
    lookup::Lookup,
    segments,
};
use crate::payload::ValueType;

const DESCRIPTION_MAX: usize = 1000;
const DOC_MAX: usize = 100_000;
const ENDPOINT_MAX: usize = 256;
/// Shortest and (exclusive) longest `database_retention_ttl`, seconds.
const TTL_MIN: i64 = 60;
const TTL_END: i64 = 20 * 365 * 86_400;

const TYPES: Names<InterfaceType> = &[
    ("datastream", InterfaceType::Datastream),
    ("properties", InterfaceType::Properties),
];
const OWNERSHIPS: Names<Ownership> = &[
    ("device", Ownership::Device),
    ("server", Ownership::Server),
    // legacy
    ("producer", Ownership::Device),
    ("consumer", Ownership::Server),
];
const AGGREGATIONS: Names<Aggregation> = &[
    ("individual", Aggregation::Individual),
    ("object", Aggregation::Object),
];
const RELIABILITIES: Names<Reliability> = &[
    ("unreliable", Reliability::Unreliable),
    ("guaranteed", Reliability::Guaranteed),
    ("unique", Reliability::Unique),
];
const RETENTIONS: Names<Retention> = &[
    ("discard", Retention::Discard),
    ("volatile", Retention::Volatile),
    ("stored", Retention::Stored),
];
/// Whether a TTL applies.
const POLICIES: Names<bool> = &[("no_ttl", false), ("use_ttl", true)];

impl Interface {
    /// Reads and checks a document.
    ///
    /// # Errors
    /// With all fields that break a rule, or the endpoints that conflict.
    pub fn parse(json: &[u8]) -> Result<Self, InvalidInterface> {
        let document = serde_json::from_slice(json)
            .map_err(|error| InvalidInterface::NotAnObject(error.to_string()))?;
        Self::from_json(&document)
    }

    /// Checks a document that is read already. Unknown fields are ignored.
    ///
    /// # Errors
    /// With all fields that break a rule, or the endpoints that conflict.
    pub fn from_json(document: &Json) -> Result<Self, InvalidInterface> {
        let object = document
            .as_object()
            .ok_or_else(|| InvalidInterface::NotAnObject("it is another JSON value".into()))?;
        let mut reader = Reader::new(object);
        let head = Head::read(&mut reader);
        let (mappings, mapping_errors) = read_mappings(&mut reader, head.kind());
        let errors = FieldErrors {
            interface: reader.errors,
            mappings: mapping_errors,
        };
        // without errors all required fields are there
        match head.complete(mappings) {
            Some(interface) if errors.is_empty() => interface.checked(),
            _ => Err(InvalidInterface::Fields(errors)),
        }
    }

    /// Checks what concerns all mappings together, and compiles the lookup.
    fn checked(mut self) -> Result<Self, InvalidInterface> {
        let endpoints: Vec<&str> = self
            .mappings
            .iter()
            .map(|mapping| &*mapping.endpoint)
            .collect();
        if let Some(pair) = conflicts::alike(&endpoints).first() {
            let text = format!("contain conflicting endpoints: {pair}");
            return Err(InvalidInterface::field("mappings", text));
        }
        if self.aggregation == Aggregation::Object {
            check_object(&self.mappings)?;
        }
        let overlaps = conflicts::overlapping(&endpoints);
        if !overlaps.is_empty() {
            return Err(InvalidInterface::Overlap(overlaps));
        }
        self.lookup = Lookup::new(endpoints.into_iter());
        self.members = (0..self.mappings.len()).collect();
        let mappings = &self.mappings;
        self.members
            .sort_unstable_by(|a, b| mappings[*a].key().cmp(mappings[*b].key()));
        Ok(self)
    }

    /// Checks the time that values are kept against the realm's
    /// `datastream_maximum_storage_retention` in seconds; 0 allows any.
    ///
    /// # Errors
    /// With the mappings that ask for more.
    pub fn check_retention(&self, seconds_max: u64) -> Result<(), InvalidInterface> {
        let mut errors = FieldErrors::default();
        for mapping in &self.mappings {
            let mut fields = Fields::new();
            let ttl = mapping.database_retention_ttl.map(u64::from);
            if seconds_max > 0 && ttl.is_some_and(|ttl| ttl > seconds_max) {
                let text = format!("must be less than or equal to {seconds_max}");
                fields.insert("database_retention_ttl", vec![text]);
            }
            errors.mappings.push(fields);
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(InvalidInterface::Fields(errors))
        }
    }

    /// The document as GET shows it: fields that have their default are left out, mappings keep
    /// their order. [`Interface::from_json`] reads it back to an equal interface.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let mut document = json!({
            "interface_name": self.name(),
            "version_major": self.major(),
            "version_minor": self.minor,
            "type": self.kind,
            "ownership": self.ownership,
            "mappings": self.mappings.iter().map(mapping_to_json).collect::<Json>(),
        });
        if self.aggregation == Aggregation::Object {
            document["aggregation"] = json!(self.aggregation);
        }
        texts_to_json(
            &mut document,
            self.description.as_deref(),
            self.doc.as_deref(),
        );
        document
    }
}

fn texts_to_json(object: &mut Json, description: Option<&str>, doc: Option<&str>) {
    for (field, text) in [("description", description), ("doc", doc)] {
        if let Some(text) = text {
            object[field] = json!(text);
        }
    }
}

fn mapping_to_json(mapping: &Mapping) -> Json {
    let mut object = json!({ "endpoint": mapping.endpoint, "type": mapping.value_type });
    if mapping.reliability != Reliability::default() {
        object["reliability"] = json!(mapping.reliability);
    }
    if mapping.retention != Retention::default() {
        object["retention"] = json!(mapping.retention);
    }
    if mapping.expiry > 0 {
        object["expiry"] = json!(mapping.expiry);
    }
    if let Some(ttl) = mapping.database_retention_ttl {
        object["database_retention_policy"] = json!("use_ttl");
        object["database_retention_ttl"] = json!(ttl);
    }
    let flags = [
        ("explicit_timestamp", mapping.explicit_timestamp),
        ("allow_unset", mapping.allow_unset),
        ("required", mapping.required),
    ];
    for (field, _) in flags.into_iter().filter(|(_, set)| *set) {
        object[field] = json!(true);
    }
    texts_to_json(
        &mut object,
        mapping.description.as_deref(),
        mapping.doc.as_deref(),
    );
    object
}

/// The fields of the document but its mappings; `None` where absent or wrong.
struct Head {
    name: Option<Arc<str>>,
    major: Option<u32>,
    minor: Option<u32>,
    interface_type: Option<InterfaceType>,
    ownership: Option<Ownership>,
    aggregation: Aggregation,
    description: Option<String>,
    doc: Option<String>,
}

impl Head {
    fn read(reader: &mut Reader<'_>) -> Self {
        let major = reader.count("version_major");
        let minor = reader.count("version_minor");
        let interface_type = reader.name("type", TYPES);
        let head = Self {
            name: read_name(reader),
            major: reader.require("version_major", major),
            minor: reader.require("version_minor", minor),
            interface_type: reader.require("type", interface_type),
            ownership: read_ownership(reader),
            aggregation: read_aggregation(reader),
            description: reader.bounded_text("description", DESCRIPTION_MAX),
            doc: reader.bounded_text("doc", DOC_MAX),
        };
        if head.major == Some(0) && head.minor == Some(0) {
            reader.error(
                "version_minor",
                "must be greater than 0 when version_major is 0",
            );
        }
        if head.kind() == Some((InterfaceType::Properties, Aggregation::Object)) {
            reader.error("aggregation", "must be individual when type is properties");
        }
        head
    }

    fn kind(&self) -> Option<(InterfaceType, Aggregation)> {
        self.interface_type
            .map(|interface_type| (interface_type, self.aggregation))
    }

    /// The interface, its lookup still empty.
    fn complete(self, mappings: Vec<Mapping>) -> Option<Interface> {
        Some(Interface {
            key: InterfaceKey {
                name: self.name?,
                major: self.major?,
            },
            minor: self.minor?,
            kind: self.interface_type?,
            ownership: self.ownership?,
            aggregation: self.aggregation,
            description: self.description,
            doc: self.doc,
            mappings,
            lookup: Lookup::new(std::iter::empty()),
            members: Vec::new(),
        })
    }
}

fn read_name(reader: &mut Reader<'_>) -> Option<Arc<str>> {
    const FIELD: &str = "interface_name";
    let name = reader.text(FIELD);
    let name = reader.require(FIELD, name)?;
    reader.at_most(FIELD, name, Interface::NAME_BYTES_MAX);
    if !is_interface_name(name) {
        reader.error(FIELD, FORMAT);
    }
    if ["astarte", "control", "device"].contains(&name) {
        reader.error(FIELD, "is reserved");
    }
    Some(Arc::from(name))
}

fn read_ownership(reader: &mut Reader<'_>) -> Option<Ownership> {
    let legacy = reader.given("ownership").is_none() && reader.given("quality").is_some();
    let ownership = reader.name(if legacy { "quality" } else { "ownership" }, OWNERSHIPS);
    if legacy {
        ownership
    } else {
        reader.require("ownership", ownership)
    }
}

fn read_aggregation(reader: &mut Reader<'_>) -> Aggregation {
    let legacy = reader.given("aggregation").is_none() && reader.flag("aggregate") == Some(true);
    if legacy {
        return Aggregation::Object;
    }
    reader.name("aggregation", AGGREGATIONS).unwrap_or_default()
}

/// The mappings that are right, and the errors of each.
fn read_mappings(
    reader: &mut Reader<'_>,
    kind: Option<(InterfaceType, Aggregation)>,
) -> (Vec<Mapping>, Vec<Fields>) {
    const FIELD: &str = "mappings";
    let given = match reader.given(FIELD) {
        None => {
            reader.error(FIELD, BLANK);
            return (Vec::new(), Vec::new());
        }
        Some(Json::Array(given)) if given.iter().all(Json::is_object) => given,
        Some(_) => {
            reader.error(FIELD, INVALID);
            return (Vec::new(), Vec::new());
        }
    };
    if given.is_empty() {
        reader.error(FIELD, "should have at least 1 item(s)");
    }
    if given.len() > Interface::MAPPINGS_MAX {
        let most = Interface::MAPPINGS_MAX;
        reader.error(FIELD, format!("should have at most {most} item(s)"));
        return (Vec::new(), Vec::new());
    }
    let objects = given.iter().filter_map(Json::as_object);
    let (mappings, errors): (Vec<_>, Vec<_>) = objects
        .map(|object| {
            let mut reader = Reader::new(object);
            (read_mapping(&mut reader, kind), reader.errors)
        })
        .unzip();
    (mappings.into_iter().flatten().collect(), errors)
}

fn read_mapping(
    reader: &mut Reader<'_>,
    kind: Option<(InterfaceType, Aggregation)>,
) -> Option<Mapping> {
    let endpoint = read_endpoint(reader);
    let value_type = reader.text("type").map(ValueType::from_name);
    if value_type == Some(None) {
        reader.error("type", INVALID);
    }
    let value_type = reader.require("type", value_type.flatten());
    let reliability = reader
        .name("reliability", RELIABILITIES)
        .unwrap_or_default();
    let retention = reader.name("retention", RETENTIONS).unwrap_or_default();
    let mapping = Mapping {
        reliability,
        retention,
        expiry: reader.count("expiry").unwrap_or_default(),
        explicit_timestamp: reader.flag("explicit_timestamp").unwrap_or_default(),
        allow_unset: reader.flag("allow_unset").unwrap_or_default(),
        required: reader.flag("required").unwrap_or_default(),
        description: reader.bounded_text("description", DESCRIPTION_MAX),
        doc: reader.bounded_text("doc", DOC_MAX),
        database_retention_ttl: read_ttl(reader, kind),
        endpoint: endpoint?,
        value_type: value_type?,
    };
    if reader.flag("encrypted") == Some(true) {
        reader.error(
            "encrypted",
            "is not supported: payloads cannot be encrypted here",
        );
    }
    if let Some(kind) = kind {
        check_kind(reader, &mapping, kind);
    }
    Some(mapping)
}

/// Options that the interface's kind does not have must keep their default.
fn check_kind(reader: &mut Reader<'_>, mapping: &Mapping, kind: (InterfaceType, Aggregation)) {
    if kind.0 == InterfaceType::Properties {
        reader.default_only("reliability", &mapping.reliability);
        reader.default_only("retention", &mapping.retention);
        reader.default_only("expiry", &mapping.expiry);
        reader.default_only("explicit_timestamp", &mapping.explicit_timestamp);
    } else {
        reader.default_only("allow_unset", &mapping.allow_unset);
    }
    if kind.1 == Aggregation::Individual {
        reader.default_only("required", &mapping.required);
    }
}

fn read_endpoint(reader: &mut Reader<'_>) -> Option<Arc<str>> {
    const FIELD: &str = "endpoint";
    let legacy = reader.given(FIELD).is_none() && reader.given("path").is_some();
    let endpoint = reader.text(if legacy { "path" } else { FIELD });
    let endpoint = if legacy {
        endpoint
    } else {
        reader.require(FIELD, endpoint)
    }?;
    if endpoint.len() < 2 {
        reader.error(FIELD, "should be at least 2 character(s)");
    }
    reader.at_most(FIELD, endpoint, ENDPOINT_MAX);
    if !is_endpoint(endpoint) {
        reader.error(FIELD, FORMAT);
    }
    Some(Arc::from(endpoint))
}

/// One to 64 segments, each a literal or `%{placeholder}` of letters, digits and underscores that
/// does not begin with a digit.
fn is_endpoint(endpoint: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    endpoint.starts_with('/')
        && segments(endpoint).count() <= Interface::SEGMENTS_MAX
        && segments(endpoint).all(|segment| {
            let inner = segment
                .strip_prefix("%{")
                .and_then(|rest| rest.strip_suffix('}'));
            is_name(inner.unwrap_or(segment))
        })
}

/// The TTL that `use_ttl` demands and `no_ttl` forbids.
fn read_ttl(reader: &mut Reader<'_>, kind: Option<(InterfaceType, Aggregation)>) -> Option<u32> {
    const FIELD: &str = "database_retention_ttl";
    let use_ttl = reader
        .name("database_retention_policy", POLICIES)
        .unwrap_or_default();
    let ttl = reader.integer(FIELD);
    if kind.is_some_and(|kind| kind.0 == InterfaceType::Properties) {
        reader.default_only("database_retention_policy", &use_ttl);
        reader.default_only(FIELD, &ttl);
        return None;
    }
    match (use_ttl, ttl) {
        (false, None) => None,
        (false, Some(_)) => {
            reader.error(FIELD, MUST_BE_BLANK);
            None
        }
        (true, None) => reader.require(FIELD, None),
        (true, Some(ttl)) if ttl < TTL_MIN => {
            reader.error(FIELD, format!("must be greater than or equal to {TTL_MIN}"));
            None
        }
        (true, Some(ttl)) if ttl >= TTL_END => {
            reader.error(FIELD, format!("must be less than {TTL_END}"));
            None
        }
        (true, Some(ttl)) => u32::try_from(ttl).ok(),
    }
}

/// Endpoints of an object differ in their last segment alone, which is a literal, and agree in all
/// options but `required`.
fn check_object(mappings: &[Mapping]) -> Result<(), InvalidInterface> {
    let prefix = |mapping: &Mapping| {
        let endpoint = Arc::clone(&mapping.endpoint);
        endpoint
            .rsplit_once('/')
            .map(|(prefix, _)| prefix.to_owned())
    };
    let options = |mapping: &Mapping| {
        (
            mapping.retention,
            mapping.reliability,
            mapping.expiry,
            mapping.allow_unset,
            mapping.explicit_timestamp,
            mapping.database_retention_ttl,
        )
    };
    let Some((first, others)) = mappings.split_first() else {
        return Ok(());
    };
    let (first_prefix, first_options) = (prefix(first), options(first));
    let mut errors = FieldErrors::default();
    if let Some(other) = others.iter().find(|other| prefix(other) != first_prefix) {
        let (a, b) = (&first.endpoint, &other.endpoint);
        let rule = "in an object all but the last segment is the same, placeholder names included";
        errors.add(
            "mappings",
            format!("must have the same prefix in endpoints: {a} and {b} ({rule})"),
        );
    }
    if let Some(other) = others.iter().find(|other| options(other) != first_options) {
        let (a, b) = (&first.endpoint, &other.endpoint);
        let rule = "in an object all mappings have the same reliability, retention, expiry, \
                    explicit_timestamp and database retention";
        errors.add(
            "mappings",
            format!("contain conflicting attributes: {a} and {b} ({rule})"),
        );
    }
    if let Some(bad) = mappings
        .iter()
        .find(|mapping| is_placeholder(mapping.key()))
    {
        let rule = "in an object the last segment is the key, and no placeholder";
        errors.add(
            "mappings",
            format!("contain a placeholder as key: {} ({rule})", bad.endpoint),
        );
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(InvalidInterface::Fields(errors))
    }
}
