//! Installed interfaces.

use std::sync::Arc;

use sqlx::Row as _;

use super::{
    Conn, Pool, realms,
    rows::{parsed, small},
};
use crate::{
    identity::RealmName,
    interface::InterfaceKey,
    store::{InterfaceRow, StoreError, Subject},
};

pub(super) async fn install(conn: &mut Conn, row: &InterfaceRow) -> Result<(), StoreError> {
    realms::require(conn, &row.realm).await?;
    let made = sqlx::query(
        "INSERT INTO interface (realm, name, major, minor, document) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT DO NOTHING",
    )
    .bind(row.realm.as_str())
    .bind(&*row.key.name)
    .bind(i64::from(row.key.major))
    .bind(i64::from(row.minor))
    .bind(&row.document)
    .execute(conn)
    .await?;
    if made.rows_affected() == 0 {
        Err(StoreError::Conflict(Subject::Interface))
    } else {
        Ok(())
    }
}

pub(super) async fn update(conn: &mut Conn, row: &InterfaceRow) -> Result<(), StoreError> {
    let changed = sqlx::query(
        "UPDATE interface SET minor = $4, document = $5 \
         WHERE realm = $1 AND name = $2 AND major = $3",
    )
    .bind(row.realm.as_str())
    .bind(&*row.key.name)
    .bind(i64::from(row.key.major))
    .bind(i64::from(row.minor))
    .bind(&row.document)
    .execute(conn)
    .await?;
    found(changed.rows_affected())
}

pub(super) async fn remove(
    conn: &mut Conn,
    realm: &RealmName,
    key: &InterfaceKey,
) -> Result<(), StoreError> {
    let removed =
        sqlx::query("DELETE FROM interface WHERE realm = $1 AND name = $2 AND major = $3")
            .bind(realm.as_str())
            .bind(&*key.name)
            .bind(i64::from(key.major))
            .execute(conn)
            .await?;
    found(removed.rows_affected())
}

fn found(rows: u64) -> Result<(), StoreError> {
    if rows == 0 {
        Err(StoreError::NotFound(Subject::Interface))
    } else {
        Ok(())
    }
}

/// The interfaces of all realms.
pub(super) async fn all(pool: &Pool) -> Result<Vec<InterfaceRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT realm, name, major, minor, document FROM interface ORDER BY realm, name, major",
    )
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let name: String = row.try_get(1)?;
            let major = small("interface", row.try_get(2)?)?;
            Ok(InterfaceRow {
                realm: parsed("interface", row.try_get(0)?)?,
                key: InterfaceKey {
                    name: Arc::from(name),
                    major,
                },
                minor: small("interface", row.try_get(3)?)?,
                document: row.try_get(4)?,
            })
        })
        .collect()
}

/// Whether any device of the realm declares this interface and major.
pub(super) async fn in_use(
    pool: &Pool,
    realm: &RealmName,
    key: &InterfaceKey,
) -> Result<bool, StoreError> {
    let found = sqlx::query(
        "SELECT 1 FROM introspection JOIN device ON device.id = introspection.device \
         WHERE introspection.name = $2 AND introspection.major = $3 AND introspection.declared \
         AND device.realm = $1 LIMIT 1",
    )
    .bind(realm.as_str())
    .bind(&*key.name)
    .bind(i64::from(key.major))
    .fetch_optional(pool)
    .await?;
    Ok(found.is_some())
}
