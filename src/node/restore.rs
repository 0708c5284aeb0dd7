//! Putting a restored backup in place, so that a crash in between leaves either the old state or
//! the new one.
//!
//! The backup service has unpacked and checked the archive into a staged directory below the data
//! directory. [`begin`] renames that to `restore/ready`, in one step; from then on the restore
//! happens. [`finish`] moves each file of it over the one in place; it is run at every start, so an
//! interrupted restore is completed by the next one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::NodeError;
use crate::engine::backup::COPIES_PREFIX;

/// Files beside a database that belong to its old state.
const COMPANIONS: [&str; 2] = ["tanit.db-wal", "tanit.db-shm"];

/// Decides for the staged backup.
pub(super) fn begin(data_dir: &Path, staged: &Path) -> Result<(), NodeError> {
    let ready = ready(data_dir);
    let failed = |source| NodeError::Restore {
        path: data_dir.to_owned(),
        source,
    };
    fs::rename(staged, &ready).map_err(failed)?;
    sync(&data_dir.join("restore")).map_err(failed)
}

/// Completes a restore that was decided for; nothing happens where none was.
pub(super) fn finish(data_dir: &Path) -> Result<(), NodeError> {
    let ready = ready(data_dir);
    if !ready.exists() {
        return Ok(());
    }
    move_in(data_dir, &ready).map_err(|source| NodeError::Restore {
        path: data_dir.to_owned(),
        source,
    })?;
    tracing::info!("the restored backup is in place");
    Ok(())
}

/// Removes what a backup or restore left behind that a crash cut off: whole copies of the
/// databases. Called after [`finish`], before anything else is made.
pub(super) fn sweep(data_dir: &Path) {
    let entries = match fs::read_dir(data_dir) {
        Ok(entries) => entries,
        Err(error) => return tracing::warn!(%error, "the data directory cannot be listed"),
    };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let is_left_over = name == "restore" || name.to_string_lossy().starts_with(COPIES_PREFIX);
        if is_left_over
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            let path = entry.path();
            tracing::warn!(%error, path = %path.display(), "a left-over copy cannot be removed");
        }
    }
}

fn ready(data_dir: &Path) -> PathBuf {
    data_dir.join("restore").join("ready")
}

fn move_in(data_dir: &Path, ready: &Path) -> io::Result<()> {
    // the old log would be replayed into the restored database; it goes while the old database
    // is still there only if the new one has not been moved yet, so it goes first either way
    if ready.join("tanit.db").exists() {
        for companion in COMPANIONS {
            remove_if_there(&data_dir.join(companion))?;
        }
    }
    for entry in fs::read_dir(ready)? {
        let entry = entry?;
        let target = data_dir.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            match fs::remove_dir_all(&target) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(entry.path(), target)?;
    }
    sync(data_dir)?;
    fs::remove_dir(ready)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(data_dir: &Path) -> PathBuf {
        let staged = data_dir.join("restore").join("staged");
        fs::create_dir_all(staged.join("crl")).unwrap();
        fs::write(staged.join("tanit.db"), "new").unwrap();
        fs::write(staged.join("sessions.redb"), "new").unwrap();
        fs::write(staged.join("crl").join("acme.pem"), "new").unwrap();
        staged
    }

    #[test]
    fn a_decided_restore_is_finished_at_the_next_start_wherever_it_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path();
        fs::write(data_dir.join("tanit.db"), "old").unwrap();
        fs::write(data_dir.join("tanit.db-wal"), "old").unwrap();
        fs::create_dir(data_dir.join("crl")).unwrap();
        let staged = staged(data_dir);
        finish(data_dir).unwrap();
        assert_eq!(
            fs::read_to_string(data_dir.join("tanit.db")).unwrap(),
            "old"
        );
        begin(data_dir, &staged).unwrap();
        // one file was moved before the process died
        fs::rename(ready(data_dir).join("tanit.db"), data_dir.join("tanit.db")).unwrap();
        finish(data_dir).unwrap();
        for file in ["tanit.db", "sessions.redb", "crl/acme.pem"] {
            assert_eq!(
                fs::read_to_string(data_dir.join(file)).unwrap(),
                "new",
                "{file}"
            );
        }
        finish(data_dir).unwrap();
        assert!(!ready(data_dir).exists());
    }

    #[test]
    fn copies_that_a_crash_left_are_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path();
        for left_over in ["backup-x1", "restore/staged", "crl"] {
            fs::create_dir_all(data_dir.join(left_over)).unwrap();
        }
        fs::write(data_dir.join("backup-x1").join("tanit.db"), "copy").unwrap();
        fs::write(data_dir.join("backup-mine.tar"), "an operator's").unwrap();
        sweep(data_dir);
        let left = |name: &str| data_dir.join(name).exists();
        assert!(!left("backup-x1") && !left("restore"));
        assert!(left("crl") && left("backup-mine.tar"));
    }

    #[test]
    fn the_old_log_goes_with_the_old_database() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path();
        fs::write(data_dir.join("tanit.db-wal"), "old").unwrap();
        begin(data_dir, &staged(data_dir)).unwrap();
        finish(data_dir).unwrap();
        assert!(!data_dir.join("tanit.db-wal").exists());
    }
}
