//! Columns to fields. A row that this program cannot have written is [`StoreError::Corrupt`].

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    str::FromStr,
};

use sqlx::Row as _;

use super::Row;
use crate::{
    clock::Timestamp,
    identity::DeviceId,
    store::{
        Receipt, StoreError,
        batch::{DeclaredRow, DeviceNumber, DeviceState, ExchangedWrite},
    },
};

/// A count for a signed column; what does not fit is its largest number.
pub(super) fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A count from a signed column; what is negative is zero.
pub(super) fn uint(column: i64) -> u64 {
    u64::try_from(column).unwrap_or(0)
}

/// A stamp for a column.
pub(super) fn stamp(at: Timestamp) -> i64 {
    at.as_micros()
}

/// A row of `table` that cannot be read.
pub(super) fn corrupt(table: &'static str, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt {
        table,
        what: what.into(),
    }
}

/// A text that obeys a grammar.
pub(super) fn parsed<T: FromStr>(table: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse()
        .map_err(|_| corrupt(table, format!("{text:?} is not what it should be")))
}

/// A column of a small unsigned number.
pub(super) fn small(table: &'static str, column: i64) -> Result<u32, StoreError> {
    u32::try_from(column).map_err(|_| corrupt(table, format!("{column} is out of range")))
}

/// A device id's column.
pub(super) fn device_id(table: &'static str, bytes: &[u8]) -> Result<DeviceId, StoreError> {
    let bytes = bytes
        .try_into()
        .map_err(|_| corrupt(table, "a device id is not of 16 bytes"))?;
    Ok(DeviceId::from_bytes(bytes))
}

/// An address's column.
pub(super) fn ip(table: &'static str, text: Option<String>) -> Result<Option<IpAddr>, StoreError> {
    text.map(|text| parsed(table, &text)).transpose()
}

/// `id` and the columns of [`DeviceState`].
pub(super) fn state(row: &Row) -> Result<(DeviceNumber, DeviceState), StoreError> {
    let at = |column: Option<i64>| column.map(Timestamp::from_micros);
    let state = DeviceState {
        connected: row.try_get("connected")?,
        presence_sequence: uint(row.try_get("presence_sequence")?),
        last_connection: at(row.try_get("last_connection")?),
        last_disconnection: at(row.try_get("last_disconnection")?),
        last_seen_ip: row.try_get("last_seen_ip")?,
        pending_empty_cache: row.try_get("pending_empty_cache")?,
        error_sequence: uint(row.try_get("error_sequence")?),
    };
    Ok((row.try_get("id")?, state))
}

/// Rows of `introspection`, by device.
pub(super) fn declared(
    rows: &[Row],
) -> Result<HashMap<DeviceNumber, Vec<DeclaredRow>>, StoreError> {
    let mut devices: HashMap<DeviceNumber, Vec<DeclaredRow>> = HashMap::new();
    for row in rows {
        devices
            .entry(row.try_get("device")?)
            .or_default()
            .push(DeclaredRow {
                name: row.try_get("name")?,
                major: small("introspection", row.try_get("major")?)?,
                minor: small("introspection", row.try_get("minor")?)?,
                declared: row.try_get("declared")?,
            });
    }
    Ok(devices)
}

/// Rows of a device, a key and a value, by device.
pub(super) fn maps(
    rows: &[Row],
) -> Result<HashMap<DeviceNumber, BTreeMap<String, String>>, StoreError> {
    let mut devices: HashMap<DeviceNumber, BTreeMap<String, String>> = HashMap::new();
    for row in rows {
        devices
            .entry(row.try_get(0)?)
            .or_default()
            .insert(row.try_get(1)?, row.try_get(2)?);
    }
    Ok(devices)
}

/// Rows of a device, its messages and bytes.
pub(super) fn totals(rows: &[Row]) -> Result<HashMap<DeviceNumber, ExchangedWrite>, StoreError> {
    rows.iter()
        .map(|row| {
            let (messages, bytes) = (uint(row.try_get(1)?), uint(row.try_get(2)?));
            Ok((row.try_get(0)?, ExchangedWrite { messages, bytes }))
        })
        .collect()
}

/// A row of `receipt`.
pub(super) fn receipt(row: &Row) -> Result<(DeviceNumber, Receipt), StoreError> {
    let epoch: i64 = row.try_get(1)?;
    let packet_id = u16::try_from(row.try_get::<i64, _>(2)?)
        .map_err(|_| corrupt("receipt", "a packet id is out of range"))?;
    Ok((
        row.try_get(0)?,
        Receipt {
            epoch: epoch.cast_unsigned(),
            packet_id,
        },
    ))
}
