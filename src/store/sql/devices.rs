//! Devices: their rows, their lists, and what AppEngine changes of them.

use std::{collections::BTreeMap, sync::Arc};

use sqlx::Row as _;

use super::{
    Conn, Pool, Row, bulk,
    rows::{self, parsed, small, uint},
};
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::{InterfaceKey, Introspection},
    store::{
        Change, DeviceFilter, DeviceRow, DeviceStats, ExchangedRow, SecretHash, StoreError,
        Subject,
        batch::{Declaration, DeviceNumber},
    },
};

/// The number of a device; `NotFound(Device)` if it is not there.
pub(super) async fn number(
    conn: &mut Conn,
    identity: &Identity,
) -> Result<DeviceNumber, StoreError> {
    let found: Option<(DeviceNumber,)> =
        sqlx::query_as("SELECT id FROM device WHERE realm = $1 AND device_id = $2")
            .bind(identity.realm.as_str())
            .bind(&identity.device.as_bytes()[..])
            .fetch_optional(conn)
            .await?;
    found
        .map(|(number,)| number)
        .ok_or(StoreError::NotFound(Subject::Device))
}

/// Replaces the introspection of a device outside the stream of its messages.
pub(super) async fn declare(
    conn: &mut Conn,
    device: DeviceNumber,
    new: &Introspection,
) -> Result<(), StoreError> {
    let stored = bulk::declared(conn, &[device])
        .await?
        .remove(&device)
        .unwrap_or_default();
    let old = Declaration::from_rows(stored);
    let (put, removed) = old.difference(&old.replaced_by(new));
    let put: Vec<_> = put.into_iter().map(|row| (device, row)).collect();
    let removed: Vec<_> = removed
        .into_iter()
        .map(|(name, major)| (device, name, major))
        .collect();
    bulk::remove_declared(conn, &removed).await?;
    bulk::put_declared(conn, &put).await
}

/// [`Change::PatchDevice`].
pub(super) async fn patch(conn: &mut Conn, change: &Change) -> Result<(), StoreError> {
    let Change::PatchDevice {
        identity,
        aliases,
        attributes,
        credentials_inhibited,
    } = change
    else {
        return Ok(());
    };
    let device = number(conn, identity).await?;
    if let Some(inhibited) = credentials_inhibited {
        sqlx::query("UPDATE device SET credentials_inhibited = $2 WHERE id = $1")
            .bind(device)
            .bind(inhibited)
            .execute(&mut *conn)
            .await?;
    }
    patch_aliases(conn, device, &identity.realm, aliases).await?;
    patch_attributes(conn, device, attributes).await
}

/// All tags that are touched lose their alias first, so that one patch can exchange two.
async fn patch_aliases(
    conn: &mut Conn,
    device: DeviceNumber,
    realm: &RealmName,
    aliases: &BTreeMap<String, Option<String>>,
) -> Result<(), StoreError> {
    for (tag, alias) in aliases {
        let removed = sqlx::query("DELETE FROM alias WHERE device = $1 AND tag = $2")
            .bind(device)
            .bind(tag)
            .execute(&mut *conn)
            .await?;
        if removed.rows_affected() == 0 && alias.is_none() {
            return Err(StoreError::NotFound(Subject::Alias));
        }
    }
    for (tag, alias) in aliases {
        let Some(alias) = alias else { continue };
        let made = sqlx::query(
            "INSERT INTO alias (device, tag, realm, alias) VALUES ($1, $2, $3, $4) \
             ON CONFLICT DO NOTHING",
        )
        .bind(device)
        .bind(tag)
        .bind(realm.as_str())
        .bind(alias)
        .execute(&mut *conn)
        .await?;
        if made.rows_affected() == 0 {
            return Err(StoreError::Conflict(Subject::Alias));
        }
    }
    Ok(())
}

async fn patch_attributes(
    conn: &mut Conn,
    device: DeviceNumber,
    attributes: &BTreeMap<String, Option<String>>,
) -> Result<(), StoreError> {
    for (name, value) in attributes {
        let query = match value {
            Some(value) => sqlx::query(
                "INSERT INTO attribute (device, name, value) VALUES ($1, $2, $3) \
                 ON CONFLICT (device, name) DO UPDATE SET value = excluded.value",
            )
            .bind(device)
            .bind(name)
            .bind(value),
            None => sqlx::query("DELETE FROM attribute WHERE device = $1 AND name = $2")
                .bind(device)
                .bind(name),
        };
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// One device.
pub(super) async fn one(pool: &Pool, identity: &Identity) -> Result<Option<DeviceRow>, StoreError> {
    let mut conn = pool.acquire().await?;
    let found = sqlx::query("SELECT * FROM device WHERE realm = $1 AND device_id = $2")
        .bind(identity.realm.as_str())
        .bind(&identity.device.as_bytes()[..])
        .fetch_optional(&mut *conn)
        .await?;
    let rows: Vec<Row> = found.into_iter().collect();
    Ok(complete(&mut conn, &rows).await?.pop())
}

/// Devices of a realm.
pub(super) async fn list(
    pool: &Pool,
    realm: &RealmName,
    filter: &DeviceFilter,
) -> Result<Vec<DeviceRow>, StoreError> {
    let mut conn = pool.acquire().await?;
    let after = filter
        .after
        .as_ref()
        .map_or(&[][..], |id| &id.as_bytes()[..]);
    let rows = sqlx::query(
        "SELECT * FROM device WHERE realm = $1 AND device_id > $2 \
         AND ($3 IS NULL OR connected = $3) AND ($4 IS NULL OR credentials_inhibited = $4) \
         AND ($5 IS NULL OR EXISTS (SELECT 1 FROM introspection \
         WHERE introspection.device = device.id AND name = $5 AND declared)) \
         ORDER BY device_id LIMIT $6",
    )
    .bind(realm.as_str())
    .bind(after)
    .bind(filter.connected)
    .bind(filter.credentials_inhibited)
    .bind(&filter.interface)
    .bind(i64::try_from(filter.limit).unwrap_or(i64::MAX))
    .fetch_all(&mut *conn)
    .await?;
    complete(&mut conn, &rows).await
}

/// Joins rows of `device` with what other tables hold of the same devices.
async fn complete(conn: &mut Conn, rows: &[Row]) -> Result<Vec<DeviceRow>, StoreError> {
    let numbers: Vec<DeviceNumber> = rows
        .iter()
        .map(|row| row.try_get("id"))
        .collect::<Result<_, _>>()?;
    let mut declared = bulk::declared(conn, &numbers).await?;
    let mut aliases = bulk::aliases(conn, &numbers).await?;
    let mut attributes = bulk::attributes(conn, &numbers).await?;
    let totals = bulk::totals(conn, &numbers).await?;
    let mut devices = Vec::with_capacity(rows.len());
    for (row, number) in rows.iter().zip(&numbers) {
        let mut device = bare(row)?;
        let declaration = Declaration::from_rows(declared.remove(number).unwrap_or_default());
        device.introspection = declaration.current;
        device.previous_interfaces = declaration.previous;
        device.aliases = aliases.remove(number).unwrap_or_default();
        device.attributes = attributes.remove(number).unwrap_or_default();
        if let Some(total) = totals.get(number) {
            device.total_received_msgs = total.messages;
            device.total_received_bytes = total.bytes;
        }
        devices.push(device);
    }
    Ok(devices)
}

/// What the row of `device` itself says.
fn bare(row: &Row) -> Result<DeviceRow, StoreError> {
    let at = |name: &str| -> Result<Option<Timestamp>, StoreError> {
        let column: Option<i64> = row.try_get(name)?;
        Ok(column.map(Timestamp::from_micros))
    };
    let realm = parsed("device", row.try_get("realm")?)?;
    let device = rows::device_id("device", row.try_get("device_id")?)?;
    let first_registration: i64 = row.try_get("first_registration")?;
    Ok(DeviceRow {
        identity: Identity::new(realm, device),
        secret: secret(row)?,
        credentials_inhibited: row.try_get("credentials_inhibited")?,
        deletion_in_progress: row.try_get("deletion_in_progress")?,
        first_registration: Timestamp::from_micros(first_registration),
        first_credentials_request: at("first_credentials_request")?,
        last_credentials_request_ip: rows::ip(
            "device",
            row.try_get("last_credentials_request_ip")?,
        )?,
        certificate_serial: row.try_get("certificate_serial")?,
        certificate_aki: row.try_get("certificate_aki")?,
        certificate_not_after: at("certificate_not_after")?,
        introspection: Introspection::default(),
        previous_interfaces: BTreeMap::new(),
        connected: row.try_get("connected")?,
        presence_sequence: uint(row.try_get("presence_sequence")?),
        last_connection: at("last_connection")?,
        last_disconnection: at("last_disconnection")?,
        last_seen_ip: rows::ip("device", row.try_get("last_seen_ip")?)?,
        pending_empty_cache: row.try_get("pending_empty_cache")?,
        total_received_msgs: 0,
        total_received_bytes: 0,
        aliases: BTreeMap::new(),
        attributes: BTreeMap::new(),
    })
}

fn secret(row: &Row) -> Result<Option<SecretHash>, StoreError> {
    let hmac: Option<&[u8]> = row.try_get("secret_hmac")?;
    if let Some(hmac) = hmac {
        let hmac = hmac
            .try_into()
            .map_err(|_| rows::corrupt("device", "a hash is not of 32 bytes"))?;
        return Ok(Some(SecretHash::Hmac(hmac)));
    }
    let bcrypt: Option<String> = row.try_get("secret_bcrypt")?;
    Ok(bcrypt.map(SecretHash::Bcrypt))
}

pub(super) async fn by_alias(
    pool: &Pool,
    realm: &RealmName,
    alias: &str,
) -> Result<Option<DeviceId>, StoreError> {
    let found = sqlx::query(
        "SELECT device.device_id FROM alias JOIN device ON device.id = alias.device \
         WHERE alias.realm = $1 AND alias.alias = $2",
    )
    .bind(realm.as_str())
    .bind(alias)
    .fetch_optional(pool)
    .await?;
    found
        .map(|row| rows::device_id("device", row.try_get(0)?))
        .transpose()
}

pub(super) async fn stats(pool: &Pool, realm: &RealmName) -> Result<DeviceStats, StoreError> {
    let (total, connected): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT COUNT(*) FROM device WHERE realm = $1), \
         (SELECT COUNT(*) FROM device WHERE realm = $1 AND connected)",
    )
    .bind(realm.as_str())
    .fetch_one(pool)
    .await?;
    Ok(DeviceStats {
        total_devices: uint(total),
        connected_devices: uint(connected),
    })
}

/// Devices that are recorded as connected, in all realms.
pub(super) async fn connected(pool: &Pool) -> Result<Vec<Identity>, StoreError> {
    let rows = sqlx::query("SELECT realm, device_id FROM device WHERE connected ORDER BY id")
        .fetch_all(pool)
        .await?;
    rows.iter()
        .map(|row| {
            let realm = parsed("device", row.try_get(0)?)?;
            Ok(Identity::new(
                realm,
                rows::device_id("device", row.try_get(1)?)?,
            ))
        })
        .collect()
}

/// What a device exchanged, by interface.
pub(super) async fn exchanged(
    pool: &Pool,
    identity: &Identity,
) -> Result<Vec<ExchangedRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT interface_key.name, interface_key.major, exchanged.messages, exchanged.bytes \
         FROM device JOIN exchanged ON exchanged.device = device.id \
         JOIN interface_key ON interface_key.id = exchanged.interface \
         WHERE device.realm = $1 AND device.device_id = $2 \
         ORDER BY interface_key.name, interface_key.major",
    )
    .bind(identity.realm.as_str())
    .bind(&identity.device.as_bytes()[..])
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let name: String = row.try_get(0)?;
            let major = small("interface_key", row.try_get(1)?)?;
            Ok(ExchangedRow {
                interface: InterfaceKey {
                    name: Arc::from(name),
                    major,
                },
                messages: uint(row.try_get(2)?),
                bytes: uint(row.try_get(3)?),
            })
        })
        .collect()
}

/// How many newest certificates of a realm end by each of these times.
pub(super) async fn expiring_certificates(
    pool: &Pool,
    realm: &RealmName,
    until: &[Timestamp],
) -> Result<Vec<u64>, StoreError> {
    let mut counts = Vec::with_capacity(until.len());
    for until in until {
        let (count,): (i64,) = sqlx::query_as(
            "SELECT COUNT(*) FROM device WHERE realm = $1 AND certificate_not_after <= $2",
        )
        .bind(realm.as_str())
        .bind(until.as_micros())
        .fetch_one(pool)
        .await?;
        counts.push(uint(count));
    }
    Ok(counts)
}
