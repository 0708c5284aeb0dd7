//! What an operator asks after the fact: errors, presence history, lists of the worst.

use sqlx::Row as _;

use super::{Pool, rows};
use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
    store::{
        DeviceErrorRow, HistoryRow, StoreError, TopRow,
        batch::{Tally, minute_of},
    },
};

/// The newest errors of a device, newest first.
pub(super) async fn device_errors(
    pool: &Pool,
    identity: &Identity,
) -> Result<Vec<DeviceErrorRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT occurred_at, error_name, interface, path, base64_payload, detail \
         FROM device JOIN device_error ON device_error.device = device.id \
         WHERE device.realm = $1 AND device.device_id = $2 ORDER BY sequence DESC",
    )
    .bind(identity.realm.as_str())
    .bind(&identity.device.as_bytes()[..])
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(DeviceErrorRow {
                at: Timestamp::from_micros(row.try_get(0)?),
                error_name: row.try_get(1)?,
                interface: row.try_get(2)?,
                path: row.try_get(3)?,
                base64_payload: row.try_get(4)?,
                detail: row.try_get(5)?,
            })
        })
        .collect()
}

/// The newest presence events of a device, newest first.
pub(super) async fn history(
    pool: &Pool,
    identity: &Identity,
) -> Result<Vec<HistoryRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT sequence, occurred_at, event, ip, reason \
         FROM device JOIN history ON history.device = device.id \
         WHERE device.realm = $1 AND device.device_id = $2 ORDER BY sequence DESC",
    )
    .bind(identity.realm.as_str())
    .bind(&identity.device.as_bytes()[..])
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(HistoryRow {
                sequence: rows::uint(row.try_get(0)?),
                at: Timestamp::from_micros(row.try_get(1)?),
                event: row.try_get(2)?,
                ip: rows::ip("history", row.try_get(3)?)?,
                reason: row.try_get(4)?,
            })
        })
        .collect()
}

/// The worst devices of a realm by what was counted from the minute of `since` on.
pub(super) async fn top(
    pool: &Pool,
    realm: &RealmName,
    what: Tally,
    since: Timestamp,
    limit: usize,
) -> Result<Vec<TopRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT device.device_id, tally.name, CAST(SUM(tally.occurrences) AS BIGINT) AS total \
         FROM tally JOIN device ON device.id = tally.device \
         WHERE tally.minute >= $3 AND tally.kind = $2 AND device.realm = $1 \
         GROUP BY device.device_id, tally.name \
         ORDER BY total DESC, device.device_id, tally.name LIMIT $4",
    )
    .bind(realm.as_str())
    .bind(what as i64)
    .bind(minute_of(since))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let name: String = row.try_get(1)?;
            Ok(TopRow {
                device: rows::device_id("device", row.try_get(0)?)?,
                error_name: (what == Tally::Errors).then_some(name),
                count: rows::uint(row.try_get(2)?),
            })
        })
        .collect()
}
