//! The data directory: made, guarded, and held by one process at a time.

use std::{
    fs::{DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// It cannot be made or written.
    #[error(
        "the data directory {} cannot be used: {source}; give another with --data-dir, or make it \
         writable for this user",
        path.display()
    )]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process holds it.
    #[error(
        "the data directory {} is in use by another tanit serve{}; stop that one, or give another \
         with --data-dir",
        path.display(),
        holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    Held {
        /// Which.
        path: PathBuf,
        /// Process id of the holder, if it said.
        holder: Option<u32>,
    },
}

/// A data directory that is ours as long as this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    #[expect(dead_code, reason = "the lock goes with the file")]
    lock: File,
}

impl DataDir {
    /// Makes the directory where it is missing (mode 0700) and takes its lock.
    ///
    /// # Errors
    /// When it cannot be made or written, or another process holds it.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable {
            path: path.to_owned(),
            source,
        };
        make(path).map_err(unusable)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(unusable)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = read_holder(&mut lock);
                return Err(DataDirError::Held {
                    path: path.to_owned(),
                    holder,
                });
            }
            Err(error) => return Err(unusable(error.into())),
        }
        write_holder(&mut lock).map_err(unusable)?;
        Ok(Self {
            path: path.to_owned(),
            lock,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn read_holder(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_holder(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_held_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let held = DataDir::open(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        let error = DataDir::open(&path).unwrap_err().to_string();
        assert!(error.contains("in use") && error.contains(&std::process::id().to_string()));
        drop(held);
        assert!(DataDir::open(&path).is_ok());
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        std::fs::write(&path, "").unwrap();
        let error = DataDir::open(&path).unwrap_err().to_string();
        assert!(error.contains("data"), "{error}");
    }
}
