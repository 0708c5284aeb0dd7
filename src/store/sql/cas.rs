//! The CAs of a realm's pool, and what was revoked of them.

use sqlx::Row as _;

use super::{Conn, Pool, realms, rows};
use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
    store::{CaRow, RevocationRow, StoreError, Subject},
};

/// Adds a CA; when it issues, the others of the realm no longer do.
pub(super) async fn add(conn: &mut Conn, ca: &CaRow) -> Result<(), StoreError> {
    realms::require(conn, &ca.realm).await?;
    if ca.issuing {
        sqlx::query("UPDATE realm_ca SET issuing = FALSE WHERE realm = $1 AND issuing")
            .bind(ca.realm.as_str())
            .execute(&mut *conn)
            .await?;
    }
    let made = sqlx::query(
        "INSERT INTO realm_ca (realm, fingerprint, certificate_pem, key_sealed, issuing, added_at) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (realm, fingerprint) DO NOTHING",
    )
    .bind(ca.realm.as_str())
    .bind(&ca.fingerprint)
    .bind(&ca.certificate_pem)
    .bind(&ca.key_sealed)
    .bind(ca.issuing)
    .bind(ca.added_at.as_micros())
    .execute(conn)
    .await?;
    if made.rows_affected() == 0 {
        Err(StoreError::Conflict(Subject::Ca))
    } else {
        Ok(())
    }
}

pub(super) async fn remove(
    conn: &mut Conn,
    realm: &RealmName,
    fingerprint: &str,
) -> Result<(), StoreError> {
    let removed = sqlx::query("DELETE FROM realm_ca WHERE realm = $1 AND fingerprint = $2")
        .bind(realm.as_str())
        .bind(fingerprint)
        .execute(conn)
        .await?;
    if removed.rows_affected() == 0 {
        Err(StoreError::NotFound(Subject::Ca))
    } else {
        Ok(())
    }
}

/// The CAs of a realm, newest first.
pub(super) async fn all(pool: &Pool, realm: &RealmName) -> Result<Vec<CaRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT fingerprint, certificate_pem, key_sealed, issuing, added_at FROM realm_ca \
         WHERE realm = $1 ORDER BY added_at DESC, fingerprint",
    )
    .bind(realm.as_str())
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(CaRow {
                realm: realm.clone(),
                fingerprint: row.try_get(0)?,
                certificate_pem: row.try_get(1)?,
                key_sealed: row.try_get(2)?,
                issuing: row.try_get(3)?,
                added_at: Timestamp::from_micros(row.try_get(4)?),
            })
        })
        .collect()
}

pub(super) async fn revoke(conn: &mut Conn, row: &RevocationRow) -> Result<(), StoreError> {
    realms::require(conn, &row.identity.realm).await?;
    sqlx::query(
        "INSERT INTO revocation (realm, device_id, serial, revoked_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT DO NOTHING",
    )
    .bind(row.identity.realm.as_str())
    .bind(&row.identity.device.as_bytes()[..])
    .bind(&row.serial)
    .bind(row.revoked_at.as_micros())
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn revocations(
    pool: &Pool,
    realm: &RealmName,
) -> Result<Vec<RevocationRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT device_id, serial, revoked_at FROM revocation WHERE realm = $1 \
         ORDER BY device_id, serial",
    )
    .bind(realm.as_str())
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let device = rows::device_id("revocation", row.try_get(0)?)?;
            Ok(RevocationRow {
                identity: Identity::new(realm.clone(), device),
                serial: row.try_get(1)?,
                revoked_at: Timestamp::from_micros(row.try_get(2)?),
            })
        })
        .collect()
}
