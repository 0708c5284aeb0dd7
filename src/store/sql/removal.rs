//! Removal of devices, realms and interfaces with all that is theirs.
//!
//! One transaction each, on the commit path: while it runs, nothing else is committed. A device
//! with tens of millions of samples therefore holds the others up; cutting the removal into bounded
//! pieces (marked by `deletion_in_progress`, taken up again after a restart) goes here.

use super::{Conn, devices, realms};
use crate::{
    identity::{Identity, RealmName},
    interface::InterfaceKey,
    store::{StoreError, cache::Caches},
};

/// What a device owns, in an order in which a table that others are found by comes last.
const OF_DEVICE: [&str; 13] = [
    "DELETE FROM sample WHERE series IN (SELECT id FROM series WHERE device = $1)",
    "DELETE FROM property WHERE series IN (SELECT id FROM series WHERE device = $1)",
    "DELETE FROM series WHERE device = $1",
    "DELETE FROM introspection WHERE device = $1",
    "DELETE FROM alias WHERE device = $1",
    "DELETE FROM attribute WHERE device = $1",
    "DELETE FROM exchanged WHERE device = $1",
    "DELETE FROM device_error WHERE device = $1",
    "DELETE FROM history WHERE device = $1",
    "DELETE FROM tally WHERE device = $1",
    "DELETE FROM receipt WHERE device = $1",
    "DELETE FROM outbox WHERE device = $1",
    "DELETE FROM device WHERE id = $1",
];

/// What a realm owns besides its devices.
const OF_REALM: [&str; 4] = [
    "DELETE FROM revocation WHERE realm = $1",
    "DELETE FROM realm_ca WHERE realm = $1",
    "DELETE FROM interface WHERE realm = $1",
    "DELETE FROM realm WHERE name = $1",
];

/// Data on an interface, of all devices of a realm. What was exchanged on it stays counted.
const OF_INTERFACE: [&str; 3] = [
    "DELETE FROM sample WHERE series IN (SELECT series.id FROM series \
     JOIN device ON device.id = series.device \
     JOIN interface_key ON interface_key.id = series.interface \
     WHERE device.realm = $1 AND interface_key.name = $2 AND interface_key.major = $3)",
    "DELETE FROM property WHERE series IN (SELECT series.id FROM series \
     JOIN device ON device.id = series.device \
     JOIN interface_key ON interface_key.id = series.interface \
     WHERE device.realm = $1 AND interface_key.name = $2 AND interface_key.major = $3)",
    "DELETE FROM series WHERE id IN (SELECT series.id FROM series \
     JOIN device ON device.id = series.device \
     JOIN interface_key ON interface_key.id = series.interface \
     WHERE device.realm = $1 AND interface_key.name = $2 AND interface_key.major = $3)",
];

/// Marks a device as being deleted.
pub(super) async fn begin(conn: &mut Conn, identity: &Identity) -> Result<(), StoreError> {
    let device = devices::number(conn, identity).await?;
    sqlx::query("UPDATE device SET deletion_in_progress = TRUE WHERE id = $1")
        .bind(device)
        .execute(conn)
        .await?;
    Ok(())
}

/// Removes a device. Its revocations stay, see the table.
pub(super) async fn device(
    conn: &mut Conn,
    caches: &mut Caches,
    identity: &Identity,
) -> Result<(), StoreError> {
    let device = devices::number(conn, identity).await?;
    caches.forget_device(identity);
    for sql in OF_DEVICE {
        sqlx::query(sql).bind(device).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Removes a realm.
pub(super) async fn realm(
    conn: &mut Conn,
    caches: &mut Caches,
    realm: &RealmName,
) -> Result<(), StoreError> {
    realms::require(conn, realm).await?;
    caches.clear();
    let devices: Vec<(i64,)> = sqlx::query_as("SELECT id FROM device WHERE realm = $1")
        .bind(realm.as_str())
        .fetch_all(&mut *conn)
        .await?;
    for (device,) in devices {
        for sql in OF_DEVICE {
            sqlx::query(sql).bind(device).execute(&mut *conn).await?;
        }
    }
    for sql in OF_REALM {
        sqlx::query(sql)
            .bind(realm.as_str())
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Removes what is stored on an interface.
pub(super) async fn interface(
    conn: &mut Conn,
    caches: &mut Caches,
    realm: &RealmName,
    key: &InterfaceKey,
) -> Result<(), StoreError> {
    caches.clear();
    for sql in OF_INTERFACE {
        sqlx::query(sql)
            .bind(realm.as_str())
            .bind(&*key.name)
            .bind(i64::from(key.major))
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}
