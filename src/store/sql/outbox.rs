//! Server-owned messages between their commit here and their place in the session queue.

use sqlx::Row as _;

use super::{
    Conn, Pool,
    rows::{self, parsed},
};
use crate::{
    clock::Timestamp,
    identity::Identity,
    store::{OutboxRow, StoreError, batch::Writes},
};

/// Takes out and puts in what a batch says. These rows come from the API, a few a batch.
pub(super) async fn write(conn: &mut Conn, writes: &Writes) -> Result<(), StoreError> {
    for id in &writes.outbox_removed {
        sqlx::query("DELETE FROM outbox WHERE id = $1")
            .bind(&id.to_be_bytes()[..])
            .execute(&mut *conn)
            .await?;
    }
    for added in &writes.outbox_added {
        let row = &added.row;
        sqlx::query(
            "INSERT INTO outbox (id, device, topic, payload, qos, expires_at, property, major) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING",
        )
        .bind(&row.id.to_be_bytes()[..])
        .bind(added.device)
        .bind(&row.topic)
        .bind(&row.payload)
        .bind(i64::from(row.qos))
        .bind(row.expires_at.map(Timestamp::as_micros))
        .bind(row.property)
        .bind(row.major.map(i64::from))
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

/// All rows, oldest first.
pub(super) async fn all(pool: &Pool) -> Result<Vec<OutboxRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT outbox.id, device.realm, device.device_id, outbox.topic, outbox.payload, \
         outbox.qos, outbox.expires_at, outbox.property, outbox.major \
         FROM outbox JOIN device ON device.id = outbox.device ORDER BY outbox.position",
    )
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let id: &[u8] = row.try_get(0)?;
            let id = id
                .try_into()
                .map_err(|_| rows::corrupt("outbox", "an id is not of 16 bytes"))?;
            let realm = parsed("device", row.try_get(1)?)?;
            let device = rows::device_id("device", row.try_get(2)?)?;
            let qos = u8::try_from(row.try_get::<i64, _>(5)?)
                .map_err(|_| rows::corrupt("outbox", "a QoS is out of range"))?;
            let major = row
                .try_get::<Option<i64>, _>(8)?
                .map(u32::try_from)
                .transpose()
                .map_err(|_| rows::corrupt("outbox", "a major is out of range"))?;
            Ok(OutboxRow {
                id: u128::from_be_bytes(id),
                identity: Identity::new(realm, device),
                topic: row.try_get(3)?,
                payload: row.try_get(4)?,
                qos,
                expires_at: row
                    .try_get::<Option<i64>, _>(6)?
                    .map(Timestamp::from_micros),
                property: row.try_get(7)?,
                major,
            })
        })
        .collect()
}
