//! Commits units inside the transaction under way: read what they touch, fold, write the rows.

use std::collections::HashMap;

use super::{Conn, bulk};
use crate::{
    identity::Identity,
    interface::InterfaceKey,
    store::{
        Committed, StoreError, Unit,
        batch::{self, Declaration, DeviceNumber, Known, Needs, SampleWrite, SeriesKey, Writes},
        cache::Caches,
    },
};

/// Number of a series without an interface, in `exchanged`.
pub(super) const NO_INTERFACE: i64 = 0;

/// How samples are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    /// Many rows a statement; a key that is there already fails the batch.
    Fast,
    /// One row a statement; a key that is there already moves the new row by a microsecond.
    Careful,
}

/// Stores what `units` do, in order, and tells what became of each.
pub(super) async fn commit(
    conn: &mut Conn,
    caches: &mut Caches,
    units: &[&Unit],
    care: Care,
) -> Result<Vec<Committed>, StoreError> {
    let devices = device_numbers(conn, caches, units).await?;
    let needs = Needs::of(units, &devices);
    let known = Known {
        states: bulk::states(conn, &needs.states).await?,
        declarations: declarations(conn, &needs).await?,
        receipts: bulk::receipts(conn, &needs.receipts).await?,
        devices,
    };
    let (outcomes, writes) = batch::fold(units, known);
    write(conn, caches, writes, care).await?;
    Ok(outcomes)
}

/// The numbers of the devices of `units` that exist.
async fn device_numbers(
    conn: &mut Conn,
    caches: &mut Caches,
    units: &[&Unit],
) -> Result<HashMap<Identity, DeviceNumber>, StoreError> {
    let mut numbers = HashMap::new();
    let mut unknown = Vec::new();
    for unit in units {
        if numbers.contains_key(&unit.identity) {
            continue;
        }
        let number = caches.devices.find(&unit.identity);
        if number.is_none() {
            unknown.push(&unit.identity);
        }
        numbers.insert(unit.identity.clone(), number);
    }
    if !unknown.is_empty() {
        for (index, number) in bulk::device_numbers(conn, &unknown).await? {
            if let Some(&identity) = unknown.get(index) {
                caches.devices.learn(identity.clone(), number);
                numbers.insert(identity.clone(), Some(number));
            }
        }
    }
    Ok(numbers
        .into_iter()
        .filter_map(|(identity, number)| Some((identity, number?)))
        .collect())
}

async fn declarations(
    conn: &mut Conn,
    needs: &Needs,
) -> Result<HashMap<DeviceNumber, Declaration>, StoreError> {
    let devices: Vec<DeviceNumber> = needs.declarations.iter().copied().collect();
    Ok(bulk::declared(conn, &devices)
        .await?
        .into_iter()
        .map(|(device, rows)| (device, Declaration::from_rows(rows)))
        .collect())
}

/// Writes the rows of a batch. Removals come first, so that what was removed and put again stays.
async fn write(
    conn: &mut Conn,
    caches: &mut Caches,
    writes: Writes,
    care: Care,
) -> Result<(), StoreError> {
    let series = series_numbers(conn, caches, &writes.series).await?;
    write_samples(conn, &writes.samples, &series, care).await?;
    write_properties(conn, &writes, &series).await?;
    write_exchanged(conn, caches, &writes).await?;

    bulk::forget_receipts(conn, &writes.receipts_forgotten).await?;
    bulk::remove_receipts(conn, &writes.receipts_removed).await?;
    bulk::add_receipts(conn, &writes.receipts_added).await?;

    bulk::put_states(conn, &writes.states).await?;
    bulk::remove_declared(conn, &writes.undeclared).await?;
    bulk::put_declared(conn, &writes.declared).await?;
    bulk::put_errors(conn, &writes.errors).await?;
    bulk::put_history(conn, &writes.history).await?;
    write_tally(conn, &writes).await?;

    super::outbox::write(conn, &writes).await?;
    Ok(())
}

async fn write_samples(
    conn: &mut Conn,
    samples: &[SampleWrite],
    series: &[i64],
    care: Care,
) -> Result<(), StoreError> {
    match care {
        Care::Fast => bulk::add_samples(conn, samples, series).await,
        Care::Careful => {
            for sample in samples {
                sqlx::query(
                    "INSERT INTO sample (series, value_at, received_at, expires_at, value) \
                     SELECT $1, $2, COALESCE((SELECT MAX(received_at) + 1 FROM sample \
                     WHERE series = $1 AND value_at = $2 AND received_at >= $3), $3), $4, $5",
                )
                .bind(series[sample.series])
                .bind(sample.value_at)
                .bind(sample.received_at)
                .bind(sample.expires_at)
                .bind(&sample.value)
                .execute(&mut *conn)
                .await?;
            }
            Ok(())
        }
    }
}

async fn write_properties(
    conn: &mut Conn,
    writes: &Writes,
    series: &[i64],
) -> Result<(), StoreError> {
    let mut set = Vec::new();
    let mut unset = Vec::new();
    for (index, property) in &writes.properties {
        match property {
            Some(property) => set.push((series[*index], property)),
            None => unset.push(series[*index]),
        }
    }
    bulk::unset_properties(conn, &unset).await?;
    bulk::set_properties(conn, &set).await
}

async fn write_exchanged(
    conn: &mut Conn,
    caches: &mut Caches,
    writes: &Writes,
) -> Result<(), StoreError> {
    let keys: Vec<&InterfaceKey> = writes
        .exchanged
        .keys()
        .filter_map(|(_, interface)| interface.as_ref())
        .collect();
    let numbers = interface_numbers(conn, caches, &keys).await?;
    let rows: Vec<_> = writes
        .exchanged
        .iter()
        .map(|((device, interface), exchanged)| {
            let number = interface.as_ref().and_then(|key| numbers.get(key).copied());
            (*device, number.unwrap_or(NO_INTERFACE), *exchanged)
        })
        .collect();
    bulk::add_exchanged(conn, &rows).await
}

async fn write_tally(conn: &mut Conn, writes: &Writes) -> Result<(), StoreError> {
    let Some(newest) = writes.tally.keys().map(|(_, _, _, minute)| *minute).max() else {
        return Ok(());
    };
    bulk::add_tally(conn, &writes.tally).await?;
    sqlx::query("DELETE FROM tally WHERE minute < $1")
        .bind(newest - batch::TALLY_MINUTES)
        .execute(conn)
        .await?;
    Ok(())
}

/// The numbers of interfaces; new ones are given.
pub(super) async fn interface_numbers(
    conn: &mut Conn,
    caches: &mut Caches,
    keys: &[&InterfaceKey],
) -> Result<HashMap<InterfaceKey, i64>, StoreError> {
    let mut numbers = HashMap::new();
    let mut unknown: Vec<&InterfaceKey> = Vec::new();
    for &key in keys {
        if numbers.contains_key(key) || unknown.contains(&key) {
            continue;
        }
        match caches.interfaces.find(key) {
            Some(number) => drop(numbers.insert(key.clone(), number)),
            None => unknown.push(key),
        }
    }
    if !unknown.is_empty() {
        bulk::add_interfaces(conn, &unknown).await?;
        for (index, number) in bulk::interface_numbers(conn, &unknown).await? {
            if let Some(&key) = unknown.get(index) {
                caches.interfaces.learn(key.clone(), number);
                numbers.insert(key.clone(), number);
            }
        }
    }
    Ok(numbers)
}

/// The numbers of `keys`, in their order; new ones are given.
async fn series_numbers(
    conn: &mut Conn,
    caches: &mut Caches,
    keys: &[SeriesKey],
) -> Result<Vec<i64>, StoreError> {
    let mut numbers: Vec<Option<i64>> = keys.iter().map(|key| caches.series.find(key)).collect();
    if numbers.iter().any(Option::is_none) {
        learn_series(conn, caches, keys, &mut numbers).await?;
    }
    let corrupt = || StoreError::Corrupt {
        table: "series",
        what: "a row that was just put cannot be found".to_owned(),
    };
    numbers
        .into_iter()
        .map(|number| number.ok_or_else(corrupt))
        .collect()
}

async fn learn_series(
    conn: &mut Conn,
    caches: &mut Caches,
    keys: &[SeriesKey],
    numbers: &mut [Option<i64>],
) -> Result<(), StoreError> {
    let positions: Vec<usize> = (0..keys.len()).filter(|&n| numbers[n].is_none()).collect();
    let interfaces: Vec<&InterfaceKey> = positions.iter().map(|&n| &keys[n].interface).collect();
    let interfaces = interface_numbers(conn, caches, &interfaces).await?;
    let wanted: Vec<(DeviceNumber, i64, &str)> = positions
        .iter()
        .map(|&n| {
            let key = &keys[n];
            let interface = interfaces
                .get(&key.interface)
                .copied()
                .unwrap_or(NO_INTERFACE);
            (key.device, interface, &*key.path)
        })
        .collect();
    bulk::add_series(conn, &wanted).await?;
    for (index, number) in bulk::series_numbers(conn, &wanted).await? {
        if let Some(&position) = positions.get(index) {
            caches.series.learn(keys[position].clone(), number);
            numbers[position] = Some(number);
        }
    }
    Ok(())
}
