//! Statements over many rows. The rows travel as one array a column (`UNNEST`), so that one
//! prepared statement serves any number of them in one round trip.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sqlx::Row as _;

use super::{
    Conn, Row,
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

/// One column of a list of rows.
fn column<T, C>(rows: &[T], column: impl Fn(&T) -> C) -> Vec<C> {
    rows.iter().map(column).collect()
}

/// Pairs of the position in the list (which counts from one) and the number found.
fn numbered(rows: Vec<Row>) -> Result<Vec<(usize, i64)>, StoreError> {
    rows.into_iter()
        .map(|row| {
            let position: i64 = row.try_get(0)?;
            Ok((
                usize::try_from(position - 1).unwrap_or(usize::MAX),
                row.try_get(1)?,
            ))
        })
        .collect()
}

pub(super) async fn device_numbers(
    conn: &mut Conn,
    identities: &[&Identity],
) -> Result<Vec<(usize, DeviceNumber)>, StoreError> {
    let found = sqlx::query(
        "SELECT wanted.position, device.id \
         FROM UNNEST($1::text[], $2::bytea[]) WITH ORDINALITY AS wanted (realm, id, position) \
         JOIN device ON device.realm = wanted.realm AND device.device_id = wanted.id",
    )
    .bind(column(identities, |identity| identity.realm.as_str()))
    .bind(column(
        identities,
        |identity| &identity.device.as_bytes()[..],
    ))
    .fetch_all(conn)
    .await?;
    numbered(found)
}

pub(super) async fn states(
    conn: &mut Conn,
    devices: &BTreeSet<DeviceNumber>,
) -> Result<HashMap<DeviceNumber, DeviceState>, StoreError> {
    if devices.is_empty() {
        return Ok(HashMap::new());
    }
    let devices: Vec<DeviceNumber> = devices.iter().copied().collect();
    let found = sqlx::query(
        "SELECT id, connected, presence_sequence, last_connection, last_disconnection, \
         last_seen_ip, pending_empty_cache, error_sequence FROM device WHERE id = ANY($1)",
    )
    .bind(devices)
    .fetch_all(conn)
    .await?;
    found.iter().map(rows::state).collect()
}

async fn of_devices(
    conn: &mut Conn,
    sql: &'static str,
    devices: &[DeviceNumber],
) -> Result<Vec<Row>, StoreError> {
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query(sql).bind(devices).fetch_all(conn).await?)
}

pub(super) async fn declared(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, Vec<DeclaredRow>>, StoreError> {
    let sql = "SELECT device, name, major, minor, declared FROM introspection \
               WHERE device = ANY($1)";
    rows::declared(&of_devices(conn, sql, devices).await?)
}

pub(super) async fn aliases(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, BTreeMap<String, String>>, StoreError> {
    let sql = "SELECT device, tag, alias FROM alias WHERE device = ANY($1)";
    rows::maps(&of_devices(conn, sql, devices).await?)
}

pub(super) async fn attributes(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, BTreeMap<String, String>>, StoreError> {
    let sql = "SELECT device, name, value FROM attribute WHERE device = ANY($1)";
    rows::maps(&of_devices(conn, sql, devices).await?)
}

/// Messages and bytes of each device, over all interfaces.
pub(super) async fn totals(
    conn: &mut Conn,
    devices: &[DeviceNumber],
) -> Result<HashMap<DeviceNumber, ExchangedWrite>, StoreError> {
    let sql = "SELECT device, CAST(SUM(messages) AS BIGINT), CAST(SUM(bytes) AS BIGINT) \
               FROM exchanged WHERE device = ANY($1) GROUP BY device";
    rows::totals(&of_devices(conn, sql, devices).await?)
}

pub(super) async fn receipts(
    conn: &mut Conn,
    receipts: &HashSet<(DeviceNumber, Receipt)>,
) -> Result<HashSet<(DeviceNumber, Receipt)>, StoreError> {
    if receipts.is_empty() {
        return Ok(HashSet::new());
    }
    let wanted: Vec<_> = receipts.iter().collect();
    let found = sqlx::query(
        "SELECT receipt.device, receipt.epoch, receipt.packet_id \
         FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) AS wanted (device, epoch, packet_id) \
         JOIN receipt USING (device, epoch, packet_id)",
    )
    .bind(column(&wanted, |(device, _)| *device))
    .bind(column(&wanted, |(_, receipt)| receipt.epoch.cast_signed()))
    .bind(column(&wanted, |(_, receipt)| i64::from(receipt.packet_id)))
    .fetch_all(conn)
    .await?;
    found.iter().map(rows::receipt).collect()
}

pub(super) async fn add_receipts(
    conn: &mut Conn,
    receipts: &BTreeSet<(DeviceNumber, u64, u16)>,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO receipt (device, epoch, packet_id) \
               SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) \
               ON CONFLICT DO NOTHING";
    execute_receipts(conn, sql, receipts).await
}

pub(super) async fn remove_receipts(
    conn: &mut Conn,
    receipts: &BTreeSet<(DeviceNumber, u64, u16)>,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM receipt USING UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) \
               AS gone (device, epoch, packet_id) WHERE receipt.device = gone.device \
               AND receipt.epoch = gone.epoch AND receipt.packet_id = gone.packet_id";
    execute_receipts(conn, sql, receipts).await
}

async fn execute_receipts(
    conn: &mut Conn,
    sql: &'static str,
    receipts: &BTreeSet<(DeviceNumber, u64, u16)>,
) -> Result<(), StoreError> {
    if receipts.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = receipts.iter().collect();
    sqlx::query(sql)
        .bind(column(&rows, |(device, _, _)| *device))
        .bind(column(&rows, |(_, epoch, _)| epoch.cast_signed()))
        .bind(column(&rows, |(_, _, packet_id)| i64::from(*packet_id)))
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn forget_receipts(
    conn: &mut Conn,
    sessions: &BTreeSet<(DeviceNumber, u64)>,
) -> Result<(), StoreError> {
    if sessions.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = sessions.iter().collect();
    sqlx::query(
        "DELETE FROM receipt USING UNNEST($1::bigint[], $2::bigint[]) AS gone (device, epoch) \
         WHERE receipt.device = gone.device AND receipt.epoch = gone.epoch",
    )
    .bind(column(&rows, |(device, _)| *device))
    .bind(column(&rows, |(_, epoch)| epoch.cast_signed()))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn add_interfaces(
    conn: &mut Conn,
    keys: &[&InterfaceKey],
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO interface_key (name, major) SELECT * FROM UNNEST($1::text[], $2::bigint[]) \
         ON CONFLICT DO NOTHING",
    )
    .bind(column(keys, |key| &*key.name))
    .bind(column(keys, |key| i64::from(key.major)))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn interface_numbers(
    conn: &mut Conn,
    keys: &[&InterfaceKey],
) -> Result<Vec<(usize, i64)>, StoreError> {
    let found = sqlx::query(
        "SELECT wanted.position, interface_key.id \
         FROM UNNEST($1::text[], $2::bigint[]) WITH ORDINALITY AS wanted (name, major, position) \
         JOIN interface_key USING (name, major)",
    )
    .bind(column(keys, |key| &*key.name))
    .bind(column(keys, |key| i64::from(key.major)))
    .fetch_all(conn)
    .await?;
    numbered(found)
}

pub(super) async fn add_series(
    conn: &mut Conn,
    series: &[(DeviceNumber, i64, &str)],
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO series (device, interface, path) \
         SELECT wanted.* FROM UNNEST($1::bigint[], $2::bigint[], $3::text[]) \
         AS wanted (device, interface, path) WHERE NOT EXISTS (SELECT 1 FROM series \
         WHERE series.device = wanted.device AND series.interface = wanted.interface \
         AND hashtextextended(series.path, 0) = hashtextextended(wanted.path COLLATE \"C\", 0) \
         AND series.path = wanted.path)",
    )
    .bind(column(series, |(device, _, _)| *device))
    .bind(column(series, |(_, interface, _)| *interface))
    .bind(column(series, |(_, _, path)| *path))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn series_numbers(
    conn: &mut Conn,
    series: &[(DeviceNumber, i64, &str)],
) -> Result<Vec<(usize, i64)>, StoreError> {
    let found = sqlx::query(
        "SELECT wanted.position, series.id \
         FROM UNNEST($1::bigint[], $2::bigint[], $3::text[]) WITH ORDINALITY \
         AS wanted (device, interface, path, position) \
         JOIN series ON series.device = wanted.device AND series.interface = wanted.interface \
         AND hashtextextended(series.path, 0) = hashtextextended(wanted.path COLLATE \"C\", 0) \
         AND series.path = wanted.path",
    )
    .bind(column(series, |(device, _, _)| *device))
    .bind(column(series, |(_, interface, _)| *interface))
    .bind(column(series, |(_, _, path)| *path))
    .fetch_all(conn)
    .await?;
    numbered(found)
}

pub(super) async fn add_samples(
    conn: &mut Conn,
    samples: &[SampleWrite],
    series: &[i64],
) -> Result<(), StoreError> {
    if samples.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO sample (series, value_at, received_at, expires_at, value) SELECT * FROM \
         UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[])",
    )
    .bind(column(samples, |sample| series[sample.series]))
    .bind(column(samples, |sample| sample.value_at))
    .bind(column(samples, |sample| sample.received_at))
    .bind(column(samples, |sample| sample.expires_at))
    .bind(
        samples
            .iter()
            .map(|sample| &sample.value[..])
            .collect::<Vec<_>>(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn set_properties(
    conn: &mut Conn,
    properties: &[(i64, &PropertyWrite)],
) -> Result<(), StoreError> {
    if properties.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO property (series, value, set_at) \
         SELECT * FROM UNNEST($1::bigint[], $2::bytea[], $3::bigint[]) \
         ON CONFLICT (series) DO UPDATE SET value = excluded.value, set_at = excluded.set_at",
    )
    .bind(column(properties, |(series, _)| *series))
    .bind(column(properties, |(_, property)| &property.value[..]))
    .bind(column(properties, |(_, property)| stamp(property.at)))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn unset_properties(conn: &mut Conn, series: &[i64]) -> Result<(), StoreError> {
    if !series.is_empty() {
        sqlx::query("DELETE FROM property WHERE series = ANY($1)")
            .bind(series)
            .execute(conn)
            .await?;
    }
    Ok(())
}

pub(super) async fn add_exchanged(
    conn: &mut Conn,
    rows: &[(DeviceNumber, i64, ExchangedWrite)],
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO exchanged AS old (device, interface, messages, bytes) \
         SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) \
         ON CONFLICT (device, interface) DO UPDATE SET \
         messages = old.messages + excluded.messages, bytes = old.bytes + excluded.bytes",
    )
    .bind(column(rows, |(device, _, _)| *device))
    .bind(column(rows, |(_, interface, _)| *interface))
    .bind(column(rows, |(_, _, add)| int(add.messages)))
    .bind(column(rows, |(_, _, add)| int(add.bytes)))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn put_states(
    conn: &mut Conn,
    states: &BTreeMap<DeviceNumber, DeviceState>,
) -> Result<(), StoreError> {
    if states.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = states.iter().collect();
    sqlx::query(
        "UPDATE device SET connected = new.connected, \
         presence_sequence = new.presence_sequence, last_connection = new.last_connection, \
         last_disconnection = new.last_disconnection, last_seen_ip = new.last_seen_ip, \
         pending_empty_cache = new.pending_empty_cache, error_sequence = new.error_sequence \
         FROM UNNEST($1::bigint[], $2::boolean[], $3::bigint[], $4::bigint[], $5::bigint[], \
         $6::text[], $7::boolean[], $8::bigint[]) AS new (id, connected, presence_sequence, \
         last_connection, last_disconnection, last_seen_ip, pending_empty_cache, error_sequence) \
         WHERE device.id = new.id",
    )
    .bind(column(&rows, |(device, _)| **device))
    .bind(column(&rows, |(_, state)| state.connected))
    .bind(column(&rows, |(_, state)| int(state.presence_sequence)))
    .bind(column(&rows, |(_, state)| state.last_connection.map(stamp)))
    .bind(column(&rows, |(_, state)| {
        state.last_disconnection.map(stamp)
    }))
    .bind(column(&rows, |(_, state)| state.last_seen_ip.as_deref()))
    .bind(column(&rows, |(_, state)| state.pending_empty_cache))
    .bind(column(&rows, |(_, state)| int(state.error_sequence)))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn put_declared(
    conn: &mut Conn,
    rows: &[(DeviceNumber, DeclaredRow)],
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO introspection (device, name, major, minor, declared) SELECT * FROM \
         UNNEST($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::boolean[]) \
         ON CONFLICT (device, name, major) DO UPDATE SET \
         minor = excluded.minor, declared = excluded.declared",
    )
    .bind(column(rows, |(device, _)| *device))
    .bind(
        rows.iter()
            .map(|(_, row)| row.name.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(column(rows, |(_, row)| i64::from(row.major)))
    .bind(column(rows, |(_, row)| i64::from(row.minor)))
    .bind(column(rows, |(_, row)| row.declared))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn remove_declared(
    conn: &mut Conn,
    rows: &[(DeviceNumber, String, u32)],
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "DELETE FROM introspection USING UNNEST($1::bigint[], $2::text[], $3::bigint[]) \
         AS gone (device, name, major) WHERE introspection.device = gone.device \
         AND introspection.name = gone.name AND introspection.major = gone.major",
    )
    .bind(column(rows, |(device, _, _)| *device))
    .bind(
        rows.iter()
            .map(|(_, name, _)| name.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(column(rows, |(_, _, major)| i64::from(*major)))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn put_errors(
    conn: &mut Conn,
    errors: &BTreeMap<(DeviceNumber, u64), ErrorWrite>,
) -> Result<(), StoreError> {
    if errors.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = errors.iter().collect();
    sqlx::query(
        "INSERT INTO device_error (device, slot, sequence, occurred_at, error_name, interface, \
         path, base64_payload, detail) SELECT * FROM UNNEST($1::bigint[], $2::bigint[], \
         $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[]) \
         ON CONFLICT (device, slot) DO UPDATE SET sequence = excluded.sequence, \
         occurred_at = excluded.occurred_at, error_name = excluded.error_name, \
         interface = excluded.interface, path = excluded.path, \
         base64_payload = excluded.base64_payload, detail = excluded.detail",
    )
    .bind(column(&rows, |((device, _), _)| *device))
    .bind(column(&rows, |((_, slot), _)| int(*slot)))
    .bind(column(&rows, |(_, error)| int(error.sequence)))
    .bind(column(&rows, |(_, error)| stamp(error.row.at)))
    .bind(column(&rows, |(_, error)| error.row.error_name.as_str()))
    .bind(column(&rows, |(_, error)| error.row.interface.as_deref()))
    .bind(column(&rows, |(_, error)| error.row.path.as_deref()))
    .bind(column(&rows, |(_, error)| {
        error.row.base64_payload.as_deref()
    }))
    .bind(column(&rows, |(_, error)| error.row.detail.as_deref()))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn put_history(
    conn: &mut Conn,
    history: &BTreeMap<(DeviceNumber, u64), HistoryWrite>,
) -> Result<(), StoreError> {
    if history.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = history.iter().collect();
    sqlx::query(
        "INSERT INTO history (device, slot, sequence, occurred_at, event, ip, reason) \
         SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], \
         $5::text[], $6::text[], $7::text[]) \
         ON CONFLICT (device, slot) DO UPDATE SET sequence = excluded.sequence, \
         occurred_at = excluded.occurred_at, event = excluded.event, ip = excluded.ip, \
         reason = excluded.reason",
    )
    .bind(column(&rows, |((device, _), _)| *device))
    .bind(column(&rows, |((_, slot), _)| int(*slot)))
    .bind(column(&rows, |(_, row)| int(row.sequence)))
    .bind(column(&rows, |(_, row)| stamp(row.at)))
    .bind(column(&rows, |(_, row)| row.event.as_str()))
    .bind(column(&rows, |(_, row)| row.ip.map(|ip| ip.to_string())))
    .bind(column(&rows, |(_, row)| row.reason.as_deref()))
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn add_tally(
    conn: &mut Conn,
    tally: &BTreeMap<(DeviceNumber, Tally, String, i64), u64>,
) -> Result<(), StoreError> {
    let rows: Vec<_> = tally.iter().collect();
    sqlx::query(
        "INSERT INTO tally AS old (device, kind, name, minute, occurrences) SELECT * FROM \
         UNNEST($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[]) \
         ON CONFLICT (device, kind, name, minute) DO UPDATE SET \
         occurrences = old.occurrences + excluded.occurrences",
    )
    .bind(column(&rows, |((device, _, _, _), _)| *device))
    .bind(column(&rows, |((_, kind, _, _), _)| *kind as i64))
    .bind(column(&rows, |((_, _, name, _), _)| name.as_str()))
    .bind(column(&rows, |((_, _, _, minute), _)| *minute))
    .bind(column(&rows, |(_, count)| int(**count)))
    .execute(conn)
    .await?;
    Ok(())
}
