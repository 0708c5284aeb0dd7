//! Realms.

use sqlx::Row as _;

use super::{
    Conn, Pool, Row,
    rows::{int, parsed, uint},
};
use crate::{
    clock::Timestamp,
    identity::RealmName,
    store::{Change, RealmRow, StoreError, Subject},
};

pub(super) async fn create(conn: &mut Conn, realm: &RealmRow) -> Result<(), StoreError> {
    let made = sqlx::query(
        "INSERT INTO realm (name, jwt_public_key_pem, jwt_private_key_sealed, \
         device_registration_limit, datastream_maximum_storage_retention, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
    )
    .bind(realm.name.as_str())
    .bind(&realm.jwt_public_key_pem)
    .bind(&realm.jwt_private_key_sealed)
    .bind(realm.device_registration_limit.map(int))
    .bind(int(realm.datastream_maximum_storage_retention))
    .bind(realm.created_at.as_micros())
    .execute(conn)
    .await?;
    if made.rows_affected() == 0 {
        Err(StoreError::Conflict(Subject::Realm))
    } else {
        Ok(())
    }
}

/// [`Change::UpdateRealm`].
pub(super) async fn update(conn: &mut Conn, change: &Change) -> Result<(), StoreError> {
    let Change::UpdateRealm {
        realm: name,
        jwt_public_key_pem,
        jwt_private_key_sealed,
        device_registration_limit,
        datastream_maximum_storage_retention,
    } = change
    else {
        return Ok(());
    };
    let found = sqlx::query(SELECT_ONE)
        .bind(name.as_str())
        .fetch_optional(&mut *conn)
        .await?;
    let mut realm = row(&found.ok_or(StoreError::NotFound(Subject::Realm))?)?;
    if let Some(key) = jwt_public_key_pem {
        realm.jwt_public_key_pem.clone_from(key);
        realm.jwt_private_key_sealed = None;
    }
    if jwt_private_key_sealed.is_some() {
        realm
            .jwt_private_key_sealed
            .clone_from(jwt_private_key_sealed);
    }
    if let Some(limit) = device_registration_limit {
        realm.device_registration_limit = *limit;
    }
    if let Some(retention) = datastream_maximum_storage_retention {
        realm.datastream_maximum_storage_retention = *retention;
    }
    sqlx::query(
        "UPDATE realm SET jwt_public_key_pem = $2, jwt_private_key_sealed = $3, \
         device_registration_limit = $4, datastream_maximum_storage_retention = $5 \
         WHERE name = $1",
    )
    .bind(name.as_str())
    .bind(&realm.jwt_public_key_pem)
    .bind(&realm.jwt_private_key_sealed)
    .bind(realm.device_registration_limit.map(int))
    .bind(int(realm.datastream_maximum_storage_retention))
    .execute(conn)
    .await?;
    Ok(())
}

/// `NotFound(Realm)` unless it is there.
pub(super) async fn require(conn: &mut Conn, realm: &RealmName) -> Result<(), StoreError> {
    let found = sqlx::query("SELECT 1 FROM realm WHERE name = $1")
        .bind(realm.as_str())
        .fetch_optional(conn)
        .await?;
    found.map(drop).ok_or(StoreError::NotFound(Subject::Realm))
}

const SELECT_ONE: &str = "SELECT name, jwt_public_key_pem, jwt_private_key_sealed, \
    device_registration_limit, datastream_maximum_storage_retention, created_at \
    FROM realm WHERE name = $1";

pub(super) async fn one(pool: &Pool, realm: &RealmName) -> Result<Option<RealmRow>, StoreError> {
    let found = sqlx::query(SELECT_ONE)
        .bind(realm.as_str())
        .fetch_optional(pool)
        .await?;
    found.map(|found| row(&found)).transpose()
}

/// All realms by name.
pub(super) async fn all(pool: &Pool) -> Result<Vec<RealmRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT name, jwt_public_key_pem, jwt_private_key_sealed, device_registration_limit, \
         datastream_maximum_storage_retention, created_at FROM realm ORDER BY name",
    )
    .fetch_all(pool)
    .await?;
    rows.iter().map(row).collect()
}

fn row(row: &Row) -> Result<RealmRow, StoreError> {
    let limit: Option<i64> = row.try_get("device_registration_limit")?;
    Ok(RealmRow {
        name: parsed("realm", row.try_get("name")?)?,
        jwt_public_key_pem: row.try_get("jwt_public_key_pem")?,
        jwt_private_key_sealed: row.try_get("jwt_private_key_sealed")?,
        device_registration_limit: limit.map(uint),
        datastream_maximum_storage_retention: uint(
            row.try_get("datastream_maximum_storage_retention")?,
        ),
        created_at: Timestamp::from_micros(row.try_get("created_at")?),
    })
}
