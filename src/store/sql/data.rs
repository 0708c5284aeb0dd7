//! What devices stored: samples and properties, read.

use sqlx::Row as _;

use super::{Conn, NEWEST_SAMPLES, Pool, Row, bulk, rows};
use crate::{
    clock::Timestamp,
    identity::Identity,
    interface::InterfaceKey,
    payload::Value,
    store::{PropertyRow, Sample, SampleQuery, StoreError},
};

/// Samples of one series.
pub(super) async fn samples(
    pool: &Pool,
    identity: &Identity,
    interface: &InterfaceKey,
    path: &str,
    query: &SampleQuery,
) -> Result<Vec<Sample>, StoreError> {
    let mut conn = pool.acquire().await?;
    let Some(series) = series(&mut conn, identity, interface, path).await? else {
        return Ok(Vec::new());
    };
    // stamps are whole microseconds: after one is from the next on
    let since = query.since.map_or(i64::MIN, Timestamp::as_micros);
    let since_after = query
        .since_after
        .map_or(i64::MIN, |at| at.as_micros().saturating_add(1));
    let sql = if query.newest_first {
        "SELECT value_at, received_at, value FROM sample \
         WHERE series = $1 AND value_at >= $2 AND value_at < $3 \
         ORDER BY value_at DESC, received_at DESC LIMIT $4"
    } else {
        "SELECT value_at, received_at, value FROM sample \
         WHERE series = $1 AND value_at >= $2 AND value_at < $3 \
         ORDER BY value_at, received_at LIMIT $4"
    };
    let rows = sqlx::query(sql)
        .bind(series)
        .bind(since.max(since_after))
        .bind(query.to.map_or(i64::MAX, Timestamp::as_micros))
        .bind(i64::try_from(query.limit).unwrap_or(i64::MAX))
        .fetch_all(&mut *conn)
        .await?;
    rows.iter().map(|row| sample(row, 0)).collect()
}

/// The number of a series, if anything was ever stored in it.
async fn series(
    conn: &mut Conn,
    identity: &Identity,
    interface: &InterfaceKey,
    path: &str,
) -> Result<Option<i64>, StoreError> {
    let Some(&(_, device)) = bulk::device_numbers(conn, &[identity]).await?.first() else {
        return Ok(None);
    };
    let Some(&(_, interface)) = bulk::interface_numbers(conn, &[interface]).await?.first() else {
        return Ok(None);
    };
    let found = bulk::series_numbers(conn, &[(device, interface, path)]).await?;
    Ok(found.first().map(|&(_, series)| series))
}

/// The paths of an interface that have samples, each with its newest one.
pub(super) async fn newest_samples(
    pool: &Pool,
    identity: &Identity,
    interface: &InterfaceKey,
) -> Result<Vec<(String, Sample)>, StoreError> {
    let rows = sqlx::query(NEWEST_SAMPLES)
        .bind(identity.realm.as_str())
        .bind(&identity.device.as_bytes()[..])
        .bind(&*interface.name)
        .bind(i64::from(interface.major))
        .fetch_all(pool)
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, sample(row, 1)?)))
        .collect()
}

/// The set properties of an interface, by path.
pub(super) async fn properties(
    pool: &Pool,
    identity: &Identity,
    interface: &InterfaceKey,
) -> Result<Vec<PropertyRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT series.path, property.value, property.set_at \
         FROM device JOIN series ON series.device = device.id \
         JOIN interface_key ON interface_key.id = series.interface \
         JOIN property ON property.series = series.id \
         WHERE device.realm = $1 AND device.device_id = $2 \
         AND interface_key.name = $3 AND interface_key.major = $4 ORDER BY series.path",
    )
    .bind(identity.realm.as_str())
    .bind(&identity.device.as_bytes()[..])
    .bind(&*interface.name)
    .bind(i64::from(interface.major))
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(PropertyRow {
                path: row.try_get(0)?,
                value: value("property", row.try_get(1)?)?,
                at: Timestamp::from_micros(row.try_get(2)?),
            })
        })
        .collect()
}

/// Three columns from `first` on.
fn sample(row: &Row, first: usize) -> Result<Sample, StoreError> {
    Ok(Sample {
        value_at: Timestamp::from_micros(row.try_get(first)?),
        received_at: Timestamp::from_micros(row.try_get(first + 1)?),
        value: value("sample", row.try_get(first + 2)?)?,
    })
}

fn value(table: &'static str, bytes: &[u8]) -> Result<Value, StoreError> {
    Value::from_storage(bytes).map_err(|error| rows::corrupt(table, error.to_string()))
}
