//! Stored data as AppEngine shows it: interfaces of a device,
//! snapshots, and what stands on one path.
//!
//! An interface is read with the major version that the device declares now; what older majors
//! stored stays in the store and is not reachable here. [`show`] turns rows into JSON.

mod downsample;
mod show;

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::interfaces::Interfaces;
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::{Aggregation, Interface, InterfaceType, PathError},
    payload::BigIntegers,
    store::{DeviceRow, SampleQuery, Store, StoreError},
};
use show::{Series, Tree};

/// Most samples of one answer; also how many there are when no limit is asked for.
pub const SAMPLES_MAX: usize = 10_000;

/// How the samples of a path are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A list of objects.
    #[default]
    Structured,
    /// A list of rows, with the columns in the metadata.
    Table,
    /// A list of pairs for each value.
    DisjointTables,
}

/// The values of one key, thinned out for a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downsample {
    /// How many samples stay; more than 2.
    pub to: usize,
    /// Which member of an object counts; objects without it are left as they are.
    pub key: Option<String>,
}

/// What is asked of samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadQuery {
    /// From this value time on.
    pub since: Option<Timestamp>,
    /// After this value time.
    pub since_after: Option<Timestamp>,
    /// Before this value time.
    pub to: Option<Timestamp>,
    /// At most so many, [`SAMPLES_MAX`] at the very most. With a limit and no beginning the newest
    /// come first, in every other case the oldest.
    pub limit: Option<usize>,
    /// Layout.
    pub format: Format,
    /// Whether times are milliseconds instead of ISO 8601.
    pub keep_milliseconds: bool,
    /// How longintegers are shown, where it is asked for: else numbers in snapshots and
    /// properties, strings in series and objects.
    pub big_integers: Option<BigIntegers>,
    /// Thinned out for a graph.
    pub downsample: Option<Downsample>,
}

impl ReadQuery {
    fn samples(&self) -> SampleQuery {
        SampleQuery {
            since: self.since,
            since_after: self.since_after,
            to: self.to,
            limit: self.limit.unwrap_or(SAMPLES_MAX).min(SAMPLES_MAX),
            newest_first: self.limit.is_some()
                && self.since.is_none()
                && self.since_after.is_none(),
        }
    }
}

/// An answer: what stands under `data`, and under `metadata` where there is such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// `data`.
    pub data: Json,
    /// `metadata`.
    pub metadata: Option<Json>,
}

impl From<Json> for Shown {
    fn from(data: Json) -> Self {
        Self {
            data,
            metadata: None,
        }
    }
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No such device.
    #[error("device not found")]
    DeviceNotFound,
    /// The device does not declare the interface.
    #[error("interface not found in device introspection")]
    NotDeclared,
    /// The device declares it with a major version that is not installed.
    #[error("interface not found")]
    NotInstalled,
    /// No endpoint has the form of the path.
    #[error("endpoint not found")]
    EndpointNotFound,
    /// Nothing is stored there, or the path stops short.
    #[error("path not found")]
    PathNotFound,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A device's row and one of its interfaces.
pub(super) struct Subject {
    pub(super) row: DeviceRow,
    pub(super) interface: Arc<Interface>,
}

/// Finds the interface that a device declares under `name`.
pub(super) async fn subject(
    store: &dyn Store,
    interfaces: &Interfaces,
    identity: &Identity,
    name: &str,
) -> Result<Subject, ReadError> {
    let row = store
        .device(identity)
        .await?
        .ok_or(ReadError::DeviceNotFound)?;
    let version = row
        .introspection
        .version(name)
        .ok_or(ReadError::NotDeclared)?;
    let interface = interfaces.get(&identity.realm, name, version.major);
    Ok(Subject {
        row,
        interface: interface.ok_or(ReadError::NotInstalled)?,
    })
}

/// What is stored of devices, for AppEngine.
#[derive(Debug)]
pub struct Reads {
    store: Arc<dyn Store>,
    interfaces: Arc<Interfaces>,
}

impl Reads {
    /// The service.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, interfaces: Arc<Interfaces>) -> Self {
        Self { store, interfaces }
    }

    /// The device that has an alias.
    ///
    /// # Errors
    /// `DeviceNotFound`, or when the store fails.
    pub async fn by_alias(&self, realm: &RealmName, alias: &str) -> Result<DeviceId, ReadError> {
        self.store
            .device_by_alias(realm, alias)
            .await?
            .ok_or(ReadError::DeviceNotFound)
    }

    /// The names of the interfaces that a device declares, sorted.
    ///
    /// # Errors
    /// `DeviceNotFound`, or when the store fails.
    pub async fn interfaces(&self, identity: &Identity) -> Result<Vec<Arc<str>>, ReadError> {
        let row = self
            .store
            .device(identity)
            .await?
            .ok_or(ReadError::DeviceNotFound)?;
        Ok(row
            .introspection
            .iter()
            .map(|(name, _)| Arc::clone(name))
            .collect())
    }

    /// Everything that an interface has now: all set properties, or the newest sample of each path;
    /// of an object interface with one path its samples. A tree by the segments of the paths.
    ///
    /// # Errors
    /// `DeviceNotFound`, `NotDeclared`, `NotInstalled`, or when the store fails.
    pub async fn snapshot(
        &self,
        identity: &Identity,
        name: &str,
        query: &ReadQuery,
    ) -> Result<Shown, ReadError> {
        let interface = self.subject(identity, name).await?.interface;
        if interface.interface_type() == InterfaceType::Properties {
            return self
                .properties_below(identity, &interface, "/", query)
                .await;
        }
        let newest = self.store.newest_samples(identity, interface.key()).await?;
        let mut tree = Tree::default();
        match (interface.aggregation(), newest.as_slice()) {
            (Aggregation::Object, [(path, _)]) => {
                let shown = self.series(identity, &interface, path, query).await?;
                tree.insert(
                    path,
                    shown.map_or_else(|| Json::Array(Vec::new()), |it| it.data),
                );
            }
            (Aggregation::Object, several) => {
                for (path, sample) in several {
                    tree.insert(path, show::object(&interface, sample, query));
                }
            }
            (Aggregation::Individual, paths) => {
                for (path, sample) in paths {
                    tree.insert(path, show::newest(sample, query));
                }
            }
        }
        Ok(tree.into_json().into())
    }

    /// What stands on a path: a property or the properties below, or the samples.
    ///
    /// # Errors
    /// As [`Reads::snapshot`]; `EndpointNotFound` when the interface has no such endpoint,
    /// `PathNotFound` when a datastream has no samples there.
    pub async fn path(
        &self,
        identity: &Identity,
        name: &str,
        path: &str,
        query: &ReadQuery,
    ) -> Result<Shown, ReadError> {
        let interface = self.subject(identity, name).await?.interface;
        let path = canonical(path);
        if interface.aggregation() == Aggregation::Object {
            interface
                .resolve_object(path)
                .map_err(|_| ReadError::PathNotFound)?;
            let shown = self.series(identity, &interface, path, query).await?;
            return shown.ok_or(ReadError::PathNotFound);
        }
        let stops_short = match interface.resolve(path) {
            Ok(_) => false,
            Err(PathError::AmbiguousPath) => true,
            Err(_) => return Err(ReadError::EndpointNotFound),
        };
        match (interface.interface_type(), stops_short) {
            (InterfaceType::Properties, true) => {
                self.properties_below(identity, &interface, path, query)
                    .await
            }
            (InterfaceType::Properties, false) => {
                self.property(identity, &interface, path, query).await
            }
            (InterfaceType::Datastream, true) => Err(ReadError::PathNotFound),
            (InterfaceType::Datastream, false) => {
                let shown = self.series(identity, &interface, path, query).await?;
                shown.ok_or(ReadError::PathNotFound)
            }
        }
    }

    async fn subject(&self, identity: &Identity, name: &str) -> Result<Subject, ReadError> {
        subject(&*self.store, &self.interfaces, identity, name).await
    }

    /// One property; an empty object when it is not set.
    async fn property(
        &self,
        identity: &Identity,
        interface: &Interface,
        path: &str,
        query: &ReadQuery,
    ) -> Result<Shown, ReadError> {
        let rows = self.store.properties(identity, interface.key()).await?;
        let row = rows.into_iter().find(|row| row.path == path);
        let style = show::style(query, BigIntegers::Numbers);
        let data = row.map_or_else(|| Json::Object(Map::new()), |row| row.value.to_json(style));
        Ok(data.into())
    }

    /// The properties whose paths begin with `prefix`, a tree by the segments after it.
    async fn properties_below(
        &self,
        identity: &Identity,
        interface: &Interface,
        prefix: &str,
        query: &ReadQuery,
    ) -> Result<Shown, ReadError> {
        let style = show::style(query, BigIntegers::Numbers);
        let prefix = prefix.trim_end_matches('/');
        let mut tree = Tree::default();
        for row in self.store.properties(identity, interface.key()).await? {
            let below = row
                .path
                .strip_prefix(prefix)
                .filter(|below| below.starts_with('/'));
            if let Some(below) = below {
                tree.insert(below, row.value.to_json(style));
            }
        }
        Ok(tree.into_json().into())
    }

    /// The samples of a path; `None` when there are none.
    async fn series(
        &self,
        identity: &Identity,
        interface: &Interface,
        path: &str,
        query: &ReadQuery,
    ) -> Result<Option<Shown>, ReadError> {
        let wanted = query.samples();
        if wanted.limit == 0 {
            return Ok(Some(Json::Array(Vec::new()).into()));
        }
        let samples = self
            .store
            .samples(identity, interface.key(), path, &wanted)
            .await?;
        if samples.is_empty() {
            let tables = query.format == Format::DisjointTables
                && interface.aggregation() == Aggregation::Object;
            return Ok(tables.then(|| Json::Object(Map::new()).into()));
        }
        let samples = match &query.downsample {
            Some(wish) => downsample::thin_out(samples, wish, interface.aggregation()),
            None => samples,
        };
        Ok(Some(
            Series {
                interface,
                path,
                samples: &samples,
                query,
            }
            .show(),
        ))
    }
}

/// The path without one trailing slash, as it is stored.
pub(super) fn canonical(path: &str) -> &str {
    match path.strip_suffix('/') {
        Some(stripped) if !stripped.is_empty() && !stripped.ends_with('/') => stripped,
        _ => path,
    }
}
