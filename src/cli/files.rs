//! Files that verbs read and write.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use super::{
    exit::{Doing as _, Failure},
    secret::Secret,
};

/// Largest text file that is read: a document, a key, a certificate.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A whole file, of sane size.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    use io::Read as _;

    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(path)?
            .take(BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(io::Error::other("it is larger than 4 MiB"));
        }
        Ok(bytes)
    };
    read().doing(format_args!("read {}", path.display()))
}

/// A whole text file.
pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read(path)?)
        .map_err(|_| Failure::failed(format!("{} is not a text file", path.display())))
}

/// A secret as it was given, or from the file behind the `@`.
pub(super) fn read_secret(given: &Secret) -> Result<Secret, Failure> {
    match given.expose().strip_prefix('@') {
        Some(path) => Ok(Secret::new(read_text(Path::new(path))?.trim())),
        None => Ok(given.clone()),
    }
}

/// Whether files can be made in a directory.
pub(super) fn check_writable(directory: &Path) -> Result<(), Failure> {
    let made = tempfile::NamedTempFile::new_in(directory);
    made.map(drop)
        .doing(format_args!("write into {}", directory.display()))
}

/// Makes a file that must not exist yet.
pub(super) fn create(path: &Path, mode: u32) -> Result<fs::File, Failure> {
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .doing(format_args!("make {}", path.display()))
}

/// Puts a file in place, whole or not at all, whatever was there.
pub(super) fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<(), Failure> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let write = || -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;

        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(contents)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().doing(format_args!("write {}", path.display()))
}
