//! The audit log.

use sqlx::Row as _;

use super::{Conn, Pool};
use crate::{
    clock::Timestamp,
    store::{AuditEntry, StoreError},
};

pub(super) async fn add(conn: &mut Conn, entry: &AuditEntry) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO audit (occurred_at, actor, action, object) VALUES ($1, $2, $3, $4)")
        .bind(entry.at.as_micros())
        .bind(&entry.actor)
        .bind(&entry.action)
        .bind(&entry.object)
        .execute(conn)
        .await?;
    Ok(())
}

/// The newest entries, newest first.
pub(super) async fn newest(pool: &Pool, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
    let rows = sqlx::query(
        "SELECT occurred_at, actor, action, object FROM audit ORDER BY position DESC LIMIT $1",
    )
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(AuditEntry {
                at: Timestamp::from_micros(row.try_get(0)?),
                actor: row.try_get(1)?,
                action: row.try_get(2)?,
                object: row.try_get(3)?,
            })
        })
        .collect()
}
