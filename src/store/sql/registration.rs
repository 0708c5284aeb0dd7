//! What Pairing writes of a device: registration, secrets, certificates.

use super::{Conn, devices, realms};
use crate::{
    clock::Timestamp,
    identity::Identity,
    store::{Change, SecretHash, StoreError, Subject, batch::DeviceNumber},
};

/// The two columns of a secret.
fn columns(secret: &SecretHash) -> (Option<&[u8]>, Option<&str>) {
    match secret {
        SecretHash::Hmac(hash) => (Some(hash), None),
        SecretHash::Bcrypt(hash) => (None, Some(hash)),
    }
}

/// Makes a device, or gives one that has no certificate yet (or was unregistered) a new secret.
pub(super) async fn register(
    conn: &mut Conn,
    identity: &Identity,
    secret: &SecretHash,
    at: Timestamp,
) -> Result<DeviceNumber, StoreError> {
    let known: Option<(DeviceNumber, bool)> = sqlx::query_as(
        "SELECT id, (first_credentials_request IS NULL \
         OR (secret_hmac IS NULL AND secret_bcrypt IS NULL)) AND NOT deletion_in_progress \
         FROM device WHERE realm = $1 AND device_id = $2",
    )
    .bind(identity.realm.as_str())
    .bind(&identity.device.as_bytes()[..])
    .fetch_optional(&mut *conn)
    .await?;
    match known {
        Some((_, false)) => Err(StoreError::Conflict(Subject::Device)),
        Some((device, true)) => {
            let (hmac, bcrypt) = columns(secret);
            sqlx::query(
                "UPDATE device SET secret_hmac = $2, secret_bcrypt = $3, \
                 credentials_inhibited = FALSE WHERE id = $1",
            )
            .bind(device)
            .bind(hmac)
            .bind(bcrypt)
            .execute(conn)
            .await?;
            Ok(device)
        }
        None => {
            check_limit(conn, identity).await?;
            create(conn, identity, secret, at).await
        }
    }
}

async fn check_limit(conn: &mut Conn, identity: &Identity) -> Result<(), StoreError> {
    realms::require(conn, &identity.realm).await?;
    let reached: Option<(i64,)> = sqlx::query_as(
        "SELECT device_registration_limit FROM realm \
         WHERE name = $1 AND device_registration_limit IS NOT NULL \
         AND device_registration_limit <= (SELECT COUNT(*) FROM device WHERE realm = $1)",
    )
    .bind(identity.realm.as_str())
    .fetch_optional(conn)
    .await?;
    if reached.is_some() {
        Err(StoreError::LimitReached)
    } else {
        Ok(())
    }
}

async fn create(
    conn: &mut Conn,
    identity: &Identity,
    secret: &SecretHash,
    at: Timestamp,
) -> Result<DeviceNumber, StoreError> {
    let (hmac, bcrypt) = columns(secret);
    let (device,) = sqlx::query_as(
        "INSERT INTO device (realm, device_id, secret_hmac, secret_bcrypt, first_registration) \
         VALUES ($1, $2, $3, $4, $5) RETURNING id",
    )
    .bind(identity.realm.as_str())
    .bind(&identity.device.as_bytes()[..])
    .bind(hmac)
    .bind(bcrypt)
    .bind(at.as_micros())
    .fetch_one(conn)
    .await?;
    Ok(device)
}

pub(super) async fn unregister(conn: &mut Conn, identity: &Identity) -> Result<(), StoreError> {
    let device = devices::number(conn, identity).await?;
    sqlx::query(
        "UPDATE device SET secret_hmac = NULL, secret_bcrypt = NULL, \
         first_credentials_request = NULL WHERE id = $1",
    )
    .bind(device)
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn replace_secret(
    conn: &mut Conn,
    identity: &Identity,
    secret: &SecretHash,
) -> Result<(), StoreError> {
    let device = devices::number(conn, identity).await?;
    let (hmac, bcrypt) = columns(secret);
    sqlx::query("UPDATE device SET secret_hmac = $2, secret_bcrypt = $3 WHERE id = $1")
        .bind(device)
        .bind(hmac)
        .bind(bcrypt)
        .execute(conn)
        .await?;
    Ok(())
}

/// [`Change::RecordCertificate`].
pub(super) async fn record_certificate(conn: &mut Conn, change: &Change) -> Result<(), StoreError> {
    let Change::RecordCertificate {
        identity,
        serial,
        aki,
        not_after,
        ip,
        at,
    } = change
    else {
        return Ok(());
    };
    let device = devices::number(conn, identity).await?;
    sqlx::query(
        "UPDATE device SET certificate_serial = $2, certificate_aki = $3, \
         certificate_not_after = $4, last_credentials_request_ip = $5, \
         first_credentials_request = COALESCE(first_credentials_request, $6) WHERE id = $1",
    )
    .bind(device)
    .bind(serial)
    .bind(aki)
    .bind(not_after.as_micros())
    .bind(ip.map(|ip| ip.to_string()))
    .bind(at.as_micros())
    .execute(conn)
    .await?;
    Ok(())
}
