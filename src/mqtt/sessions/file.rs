//! The file: opening it, reading the index from it, and what its errors mean.

use std::{
    collections::HashMap,
    fs::{OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::Duration,
};

use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError,
    backends::FileBackend,
};

use super::{
    OpenError, SessionExpiry,
    batch::Failure,
    index::{Entry, Index, UNCLEAN_JUMP},
    layout,
};

/// Pages that redb keeps in memory, in bytes. Its own default is 1 GiB.
const CACHE_BYTES: usize = 64 << 20;

/// Opens the database; called again when a failed write has spoilt it.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, DatabaseError> + Send>;

/// Opens or creates the file at `path`.
pub(super) fn opener(path: &Path) -> Opener {
    let path = path.to_owned();
    Box::new(move || create(&path))
}

/// Opens or creates a file that its owner alone can read: payloads are in it.
fn create(path: &Path) -> Result<Database, DatabaseError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    builder(path).create_with_backend(FileBackend::new(file)?)
}

/// A builder that says how far a repair has come.
pub(super) fn builder(path: &Path) -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    let path = PathBuf::from(path);
    builder.set_repair_callback(move |repair| {
        tracing::warn!(
            path = %path.display(),
            progress_percent = repair.progress() * 100.0,
            "session store was not closed in order and is being repaired"
        );
    });
    builder
}

/// Opens the database and says what is wrong with it if that fails.
pub(super) fn open(path: &Path, opener: &Opener) -> Result<Database, OpenError> {
    // redb may panic on a file that something else has written to
    match catch_unwind(AssertUnwindSafe(opener)) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(error)) => Err(open_error(path, error)),
        Err(_) => Err(damaged(path, "its pages contradict each other")),
    }
}

fn open_error(path: &Path, error: DatabaseError) -> OpenError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            OpenError::Locked { path }
        }
        DatabaseError::Storage(StorageError::Io(error))
            if !matches!(
                error.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            ) =>
        {
            OpenError::Io {
                path,
                reason: error.to_string(),
            }
        }
        DatabaseError::UpgradeRequired(version) => OpenError::Newer {
            path,
            table: format!("file format {version}"),
        },
        other => OpenError::Damaged {
            path,
            reason: other.to_string(),
        },
    }
}

fn damaged(path: &Path, reason: &str) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Refuses tables of a version that this program does not know.
pub(super) fn refuse_newer(path: &Path, database: &Database) -> Result<(), OpenError> {
    let unreadable = |error: &dyn std::fmt::Display| damaged(path, &error.to_string());
    let reading = database.begin_read().map_err(|error| unreadable(&error))?;
    for table in reading.list_tables().map_err(|error| unreadable(&error))? {
        let name = redb::TableHandle::name(&table);
        if !layout::ALL.iter().any(|(known, _)| *known == name) {
            return Err(OpenError::Newer {
                path: path.to_owned(),
                table: name.to_owned(),
            });
        }
    }
    Ok(())
}

/// Creates the tables and notes that the file is in use. This is a write that has to reach the
/// disk, so it also tells whether writing works.
pub(super) fn begin(database: &Database, first: bool) -> Result<u64, Failure> {
    let mut writing = database.begin_write()?;
    writing.set_durability(Durability::Immediate)?;
    writing.set_quick_repair(true);
    let unclean_stops = {
        for (_, definition) in layout::ALL {
            writing.open_table(definition)?;
        }
        let mut meta = writing.open_table(layout::META)?;
        let read = |key| -> Result<Option<u64>, Failure> {
            Ok(meta
                .get(key)?
                .and_then(|value| layout::number(value.value())))
        };
        let clean = read(layout::CLEAN)?;
        let mut unclean_stops = read(layout::UNCLEAN_STOPS)?.unwrap_or(0);
        if first && clean == Some(0) {
            unclean_stops += 1;
        }
        meta.insert(layout::CLEAN, &0u64.to_le_bytes()[..])?;
        meta.insert(layout::UNCLEAN_STOPS, &unclean_stops.to_le_bytes()[..])?;
        unclean_stops
    };
    writing.commit()?;
    Ok(unclean_stops)
}

/// Notes that the file is closed in order.
pub(super) fn finish(database: &Database) -> Result<(), Failure> {
    let mut writing = database.begin_write()?;
    writing.set_durability(Durability::Immediate)?;
    writing.set_quick_repair(true);
    writing
        .open_table(layout::META)?
        .insert(layout::CLEAN, &1u64.to_le_bytes()[..])?;
    writing.commit()?;
    Ok(())
}

/// Reads the index. Rows that cannot be read are passed over, and said.
pub(super) fn load(database: &Database, unclean_stops: u64) -> Result<Index, Failure> {
    let reading = database.begin_read()?;
    let mut index = Index {
        unclean_stops,
        ..Index::default()
    };
    for row in reading.open_table(layout::SESSIONS)?.iter()? {
        let (key, value) = row?;
        let parsed =
            layout::split_identity(key.value()).zip(layout::SessionRow::decode(value.value()));
        let Some(((identity, _), row)) = parsed else {
            tracing::error!(key = ?key.value(), "damaged row in sessions.v1 passed over");
            continue;
        };
        let mut entry = Entry::new(row.epoch, row.version, row.expiry, row.created_at);
        entry.deadline = row.deadline;
        index.sessions.insert(identity, entry);
    }
    for row in reading.open_table(layout::COUNTS)?.iter()? {
        let (key, value) = row?;
        let Some((identity, _)) = layout::split_identity(key.value()) else {
            continue;
        };
        let Some(entry) = index.sessions.get_mut(&identity) else {
            continue;
        };
        let Some(counts) = layout::CountsRow::decode(value.value()) else {
            continue;
        };
        let since = unclean_stops.saturating_sub(counts.unclean_stops);
        entry.next_seq = counts
            .next_seq
            .saturating_add(UNCLEAN_JUMP.saturating_mul(since));
        entry.messages = counts.messages;
        entry.bytes = counts.bytes;
        entry.expired = counts.expired;
    }
    for row in reading.open_table(layout::SUBSCRIPTIONS)?.iter()? {
        let (key, value) = row?;
        let Some((identity, filter)) = layout::split_identity(key.value()) else {
            continue;
        };
        let Some(entry) = index.sessions.get_mut(&identity) else {
            continue;
        };
        entry
            .subscriptions
            .extend(layout::decode_subscription(filter, value.value()));
    }
    index.retained = count_retained(&reading)?;
    Ok(index)
}

fn count_retained(
    reading: &redb::ReadTransaction,
) -> Result<HashMap<crate::identity::Identity, (u32, u64)>, Failure> {
    let mut retained = HashMap::<_, (u32, u64)>::new();
    for row in reading.open_table(layout::RETAINED)?.iter()? {
        let (key, value) = row?;
        let Some((identity, _)) = layout::split_identity(key.value()) else {
            continue;
        };
        let Some(head) = layout::decode_head(value.value()) else {
            continue;
        };
        let count = retained.entry(identity).or_default();
        *count = (count.0 + 1, count.1 + head.cost);
    }
    Ok(retained)
}

/// Copies everything, as it was at one moment, into a new file.
pub(super) fn copy(reading: &redb::ReadTransaction, file: &Path) -> Result<(), Failure> {
    let target = create(file)?;
    let mut writing = target.begin_write()?;
    writing.set_quick_repair(true);
    for (_, definition) in layout::ALL {
        let from = reading.open_table(definition)?;
        let mut to = writing.open_table(definition)?;
        for row in from.iter()? {
            let (key, value) = row?;
            to.insert(key.value(), value.value())?;
        }
    }
    writing.commit()?;
    target.close()?;
    Ok(())
}

/// The span by which a session outlives its connection; `None`: for ever.
pub(super) const fn outlives(expiry: SessionExpiry) -> Option<Duration> {
    match expiry {
        SessionExpiry::WithConnection => Some(Duration::ZERO),
        SessionExpiry::After(after) => Some(after),
        SessionExpiry::Never => None,
    }
}
