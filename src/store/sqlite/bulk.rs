//! Statements over many rows. The rows travel as one JSON text that SQLite takes apart again
//! (`json_each`), so that one prepared statement serves any number of them: what costs here is the
//! way to the connection's thread and back. Values are blobs and travel as parameters, in
//! statements of a few prepared sizes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;
use sqlx::{AssertSqlSafe, Row as _, sqlite::SqliteRow};

use super::{
    Conn,
    rows::{self, int, stamp},
};
use crate::{
    identity::Identity,
    interface::InterfaceKey,
    store::{
        Receipt, StoreError,
        batch::{
            DeclaredRow, DeviceNumber, DeviceState, ErrorWrite, ExchangedWrite, HistoryWrite,
            PropertyWrite, SampleWrite, Tally,
        },
    },
};

/// Rows of one statement that carries blobs, largest first. A batch takes as many of the largest
/// as it fills, then of the next.
const STATEMENT_ROWS: [usize; 5] = [256, 64, 16, 4, 1];

fn json<T: Serialize>(rows: &[T]) -> Result<String, StoreError> {
    serde_json::to_string(rows)
        .map_err(|error| StoreError::Database(sqlx::Error::Encode(Box::new(error))))
}

async fn execute<T: Serialize>(
    conn: &mut Conn,
    sql: &'static str,
    rows: &[T],
) -> Result<(), StoreError> {
    if !rows.is_empty() {
        sqlx::query(sql).bind(json(rows)?).execute(conn).await?;
    }
    Ok(())
}

async fn fetch<T: Serialize>(
    conn: &mut Conn,
    sql: &'static str,
    rows: &[T],
) -> Result<Vec<SqliteRow>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query(sql).bind(json(rows)?).fetch_all(conn).await?)
}

/// Pairs of the position in the list and the number found.
fn numbered(rows: Vec<SqliteRow>) -> Result<Vec<(usize, i64)>, StoreError> {
    rows.into_iter()
        .map(|row| {
            let position: i64 = row.try_get(0)?;
            Ok((
                usize::try_from(position).unwrap_or(usize::MAX),
                row.try_get(1)?,
            ))
        })
        .collect()
}

pub(super) async fn device_numbers(
    conn: &mut Conn,
    identities: &[&Identity],
) -> Result<Vec<(usize, DeviceNumber)>, StoreError> {
    let rows: Vec<_> = identities
        .iter()
        .map(|identity| (identity.realm.as_str(), hex(identity.device.as_bytes())))
        .collect();
    let sql = "SELECT wanted.key, device.id FROM json_each($1) AS wanted CROSS JOIN device \
               ON device.realm = wanted.value->>0 AND device.device_id = unhex(wanted.value->>1)";
    numbered(fetch(conn, sql, &rows).await?)
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // writing to a string does not fail
            let _ = write!(text, "{byte:02x}");
            text
        })
}

pub(super) async fn states(
    conn: &mut Conn,
    devices: &BTreeSet<DeviceNumber>,
) -> Result<HashMap<DeviceNumber, DeviceState>, StoreError> {
    let devices: Vec<_> = devices.iter().copied().collect();
    let sql = "SELECT id, connected, presence_sequence, last_connection, last_disconnection, \
               last_seen_ip, pending_empty_cache, error_sequence \
               FROM device WHERE id IN (SELECT value FROM json_each($1))";
    fetch(conn, sql, &devices)
        .await?
        .iter()
        .map(rows::state)
        .collect()
}

pub(super) async fn declared(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, Vec<DeclaredRow>>, StoreError> {
    let sql = "SELECT device, name, major, minor, declared FROM introspection \
               WHERE device IN (SELECT value FROM json_each($1))";
    rows::declared(&fetch(conn, sql, devices).await?)
}

pub(super) async fn aliases(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, BTreeMap<String, String>>, StoreError> {
    let sql = "SELECT device, tag, alias FROM alias \
               WHERE device IN (SELECT value FROM json_each($1))";
    rows::maps(&fetch(conn, sql, devices).await?)
}

pub(super) async fn attributes(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, BTreeMap<String, String>>, StoreError> {
    let sql = "SELECT device, name, value FROM attribute \
               WHERE device IN (SELECT value FROM json_each($1))";
    rows::maps(&fetch(conn, sql, devices).await?)
}

/// Messages and bytes of each device, over all interfaces.
pub(super) async fn totals(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, ExchangedWrite>, StoreError> {
    let sql = "SELECT device, SUM(messages), SUM(bytes) FROM exchanged \
               WHERE device IN (SELECT value FROM json_each($1)) GROUP BY device";
    rows::totals(&fetch(conn, sql, devices).await?)
}

pub(super) async fn receipts(
    conn: &mut Conn,
    receipts: &HashSet<(DeviceNumber, Receipt)>,
) -> Result<HashSet<(DeviceNumber, Receipt)>, StoreError> {
    let wanted: Vec<_> = receipts
        .iter()
        .map(|(device, receipt)| (device, receipt.epoch.cast_signed(), receipt.packet_id))
        .collect();
    let sql = "SELECT receipt.device, receipt.epoch, receipt.packet_id \
               FROM json_each($1) AS wanted CROSS JOIN receipt \
               ON receipt.device = wanted.value->>0 AND receipt.epoch = wanted.value->>1 \
               AND receipt.packet_id = wanted.value->>2";
    fetch(conn, sql, &wanted)
        .await?
        .iter()
        .map(rows::receipt)
        .collect()
}

pub(super) async fn add_receipts(
    conn: &mut Conn,
    receipts: &BTreeSet<(DeviceNumber, u64, u16)>,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO receipt (device, epoch, packet_id) \
               SELECT value->>0, value->>1, value->>2 FROM json_each($1) WHERE TRUE \
               ON CONFLICT DO NOTHING";
    execute(conn, sql, &receipt_rows(receipts)).await
}

pub(super) async fn remove_receipts(
    conn: &mut Conn,
    receipts: &BTreeSet<(DeviceNumber, u64, u16)>,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM receipt WHERE (device, epoch, packet_id) IN \
               (SELECT value->>0, value->>1, value->>2 FROM json_each($1))";
    execute(conn, sql, &receipt_rows(receipts)).await
}

fn receipt_rows(receipts: &BTreeSet<(DeviceNumber, u64, u16)>) -> Vec<(i64, i64, u16)> {
    receipts
        .iter()
        .map(|(device, epoch, id)| (*device, epoch.cast_signed(), *id))
        .collect()
}

pub(super) async fn forget_receipts(
    conn: &mut Conn,
    sessions: &BTreeSet<(DeviceNumber, u64)>,
) -> Result<(), StoreError> {
    let rows: Vec<_> = sessions
        .iter()
        .map(|(device, epoch)| (device, epoch.cast_signed()))
        .collect();
    let sql = "DELETE FROM receipt WHERE (device, epoch) IN \
               (SELECT value->>0, value->>1 FROM json_each($1))";
    execute(conn, sql, &rows).await
}

pub(super) async fn add_interfaces(
    conn: &mut Conn,
    keys: &[&InterfaceKey],
) -> Result<(), StoreError> {
    let rows: Vec<_> = keys.iter().map(|key| (&*key.name, key.major)).collect();
    let sql = "INSERT INTO interface_key (name, major) \
               SELECT value->>0, value->>1 FROM json_each($1) WHERE TRUE ON CONFLICT DO NOTHING";
    execute(conn, sql, &rows).await
}

pub(super) async fn interface_numbers(
    conn: &mut Conn,
    keys: &[&InterfaceKey],
) -> Result<Vec<(usize, i64)>, StoreError> {
    let rows: Vec<_> = keys.iter().map(|key| (&*key.name, key.major)).collect();
    let sql = "SELECT wanted.key, interface_key.id \
               FROM json_each($1) AS wanted CROSS JOIN interface_key \
               ON interface_key.name = wanted.value->>0 AND interface_key.major = wanted.value->>1";
    numbered(fetch(conn, sql, &rows).await?)
}

pub(super) async fn add_series(
    conn: &mut Conn,
    series: &[(DeviceNumber, i64, &str)],
) -> Result<(), StoreError> {
    let sql = "INSERT INTO series (device, interface, path) \
               SELECT value->>0, value->>1, value->>2 FROM json_each($1) WHERE TRUE \
               ON CONFLICT DO NOTHING";
    execute(conn, sql, series).await
}

pub(super) async fn series_numbers(
    conn: &mut Conn,
    series: &[(DeviceNumber, i64, &str)],
) -> Result<Vec<(usize, i64)>, StoreError> {
    let sql = "SELECT wanted.key, series.id FROM json_each($1) AS wanted CROSS JOIN series \
               ON series.device = wanted.value->>0 AND series.interface = wanted.value->>1 \
               AND series.path = wanted.value->>2";
    numbered(fetch(conn, sql, series).await?)
}

pub(super) async fn add_samples(
    conn: &mut Conn,
    samples: &[SampleWrite],
    series: &[i64],
) -> Result<(), StoreError> {
    let head = "INSERT INTO sample (series, value_at, received_at, expires_at, value) VALUES ";
    for chunk in chunks(samples) {
        let mut query = sqlx::query(AssertSqlSafe(values(head, "(?,?,?,?,?)", chunk.len(), "")));
        for sample in chunk {
            query = query
                .bind(series[sample.series])
                .bind(sample.value_at)
                .bind(sample.received_at)
                .bind(sample.expires_at)
                .bind(&sample.value);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

pub(super) async fn set_properties(
    conn: &mut Conn,
    properties: &[(i64, &PropertyWrite)],
) -> Result<(), StoreError> {
    let head = "INSERT INTO property (series, value, set_at) VALUES ";
    let tail =
        " ON CONFLICT (series) DO UPDATE SET value = excluded.value, set_at = excluded.set_at";
    for chunk in chunks(properties) {
        let mut query = sqlx::query(AssertSqlSafe(values(head, "(?,?,?)", chunk.len(), tail)));
        for (series, property) in chunk {
            query = query
                .bind(series)
                .bind(&property.value)
                .bind(property.at.as_micros());
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

pub(super) async fn unset_properties(conn: &mut Conn, series: &[i64]) -> Result<(), StoreError> {
    let sql = "DELETE FROM property WHERE series IN (SELECT value FROM json_each($1))";
    execute(conn, sql, series).await
}

/// Cuts a list into pieces of the prepared sizes.
fn chunks<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = STATEMENT_ROWS
            .into_iter()
            .find(|&size| size <= rows.len())?;
        let (chunk, rest) = rows.split_at(size);
        rows = rest;
        Some(chunk)
    })
}

/// A statement over `count` rows; nothing in it comes from outside.
fn values(head: &str, row: &str, count: usize, tail: &str) -> String {
    let mut sql = String::with_capacity(head.len() + count * (row.len() + 1) + tail.len());
    sql.push_str(head);
    for n in 0..count {
        if n > 0 {
            sql.push(',');
        }
        sql.push_str(row);
    }
    sql.push_str(tail);
    sql
}

pub(super) async fn add_exchanged(
    conn: &mut Conn,
    rows: &[(DeviceNumber, i64, ExchangedWrite)],
) -> Result<(), StoreError> {
    let rows: Vec<_> = rows
        .iter()
        .map(|(device, interface, add)| (device, interface, int(add.messages), int(add.bytes)))
        .collect();
    let sql = "INSERT INTO exchanged (device, interface, messages, bytes) \
               SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each($1) WHERE TRUE \
               ON CONFLICT (device, interface) DO UPDATE SET \
               messages = messages + excluded.messages, bytes = bytes + excluded.bytes";
    execute(conn, sql, &rows).await
}

pub(super) async fn put_states(
    conn: &mut Conn,
    states: &BTreeMap<DeviceNumber, DeviceState>,
) -> Result<(), StoreError> {
    let rows: Vec<_> = states
        .iter()
        .map(|(device, state)| {
            (
                device,
                state.connected,
                int(state.presence_sequence),
                state.last_connection.map(stamp),
                state.last_disconnection.map(stamp),
                &state.last_seen_ip,
                state.pending_empty_cache,
                int(state.error_sequence),
            )
        })
        .collect();
    let sql = "UPDATE device SET connected = new.value->>1, presence_sequence = new.value->>2, \
               last_connection = new.value->>3, last_disconnection = new.value->>4, \
               last_seen_ip = new.value->>5, pending_empty_cache = new.value->>6, \
               error_sequence = new.value->>7 \
               FROM json_each($1) AS new WHERE device.id = new.value->>0";
    execute(conn, sql, &rows).await
}

pub(super) async fn put_declared(
    conn: &mut Conn,
    rows: &[(DeviceNumber, DeclaredRow)],
) -> Result<(), StoreError> {
    let rows: Vec<_> = rows
        .iter()
        .map(|(device, row)| (device, &row.name, row.major, row.minor, row.declared))
        .collect();
    let sql = "INSERT INTO introspection (device, name, major, minor, declared) \
               SELECT value->>0, value->>1, value->>2, value->>3, value->>4 \
               FROM json_each($1) WHERE TRUE ON CONFLICT (device, name, major) DO UPDATE SET \
               minor = excluded.minor, declared = excluded.declared";
    execute(conn, sql, &rows).await
}

pub(super) async fn remove_declared(
    conn: &mut Conn,
    rows: &[(DeviceNumber, String, u32)],
) -> Result<(), StoreError> {
    let sql = "DELETE FROM introspection WHERE (device, name, major) IN \
               (SELECT value->>0, value->>1, value->>2 FROM json_each($1))";
    execute(conn, sql, rows).await
}

pub(super) async fn put_errors(
    conn: &mut Conn,
    errors: &BTreeMap<(DeviceNumber, u64), ErrorWrite>,
) -> Result<(), StoreError> {
    let rows: Vec<_> = errors
        .iter()
        .map(|((device, slot), ErrorWrite { sequence, row })| {
            (
                device,
                slot,
                int(*sequence),
                stamp(row.at),
                &row.error_name,
                &row.interface,
                &row.path,
                &row.base64_payload,
                &row.detail,
            )
        })
        .collect();
    let sql = "INSERT INTO device_error (device, slot, sequence, occurred_at, error_name, \
               interface, path, base64_payload, detail) \
               SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, \
               value->>7, value->>8 FROM json_each($1) WHERE TRUE \
               ON CONFLICT (device, slot) DO UPDATE SET sequence = excluded.sequence, \
               occurred_at = excluded.occurred_at, error_name = excluded.error_name, \
               interface = excluded.interface, path = excluded.path, \
               base64_payload = excluded.base64_payload, detail = excluded.detail";
    execute(conn, sql, &rows).await
}

pub(super) async fn put_history(
    conn: &mut Conn,
    history: &BTreeMap<(DeviceNumber, u64), HistoryWrite>,
) -> Result<(), StoreError> {
    let rows: Vec<_> = history
        .iter()
        .map(|((device, slot), row)| {
            let ip = row.ip.map(|ip| ip.to_string());
            (
                device,
                slot,
                int(row.sequence),
                stamp(row.at),
                &row.event,
                ip,
                &row.reason,
            )
        })
        .collect();
    let sql = "INSERT INTO history (device, slot, sequence, occurred_at, event, ip, reason) \
               SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6 \
               FROM json_each($1) WHERE TRUE ON CONFLICT (device, slot) DO UPDATE SET \
               sequence = excluded.sequence, occurred_at = excluded.occurred_at, \
               event = excluded.event, ip = excluded.ip, reason = excluded.reason";
    execute(conn, sql, &rows).await
}

pub(super) async fn add_tally(
    conn: &mut Conn,
    tally: &BTreeMap<(DeviceNumber, Tally, String, i64), u64>,
) -> Result<(), StoreError> {
    let rows: Vec<_> = tally
        .iter()
        .map(|((device, kind, name, minute), count)| {
            (device, *kind as i64, name, minute, int(*count))
        })
        .collect();
    let sql = "INSERT INTO tally (device, kind, name, minute, occurrences) \
               SELECT value->>0, value->>1, value->>2, value->>3, value->>4 \
               FROM json_each($1) WHERE TRUE ON CONFLICT (device, kind, name, minute) DO UPDATE \
               SET occurrences = occurrences + excluded.occurrences";
    execute(conn, sql, &rows).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_list_in_order_and_have_prepared_sizes() {
        for length in [0, 1, 3, 5, 15, 63, 255, 256, 1000, 1023] {
            let rows: Vec<usize> = (0..length).collect();
            let pieces: Vec<&[usize]> = chunks(&rows).collect();
            assert!(
                pieces
                    .iter()
                    .all(|piece| STATEMENT_ROWS.contains(&piece.len()))
            );
            assert!(
                pieces.len() <= 16,
                "{length} rows in {} statements",
                pieces.len()
            );
            assert_eq!(pieces.concat(), rows);
        }
    }
}
