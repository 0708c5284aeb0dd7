//! Taking an archive in: received whole, compared with its manifest, unpacked beside the data.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::io::AsyncWriteExt as _;

use super::{
    BackupError, CRLS, DATABASE, FORMAT, FileEntry, MANIFEST, MANIFEST_BYTES_MAX, Manifest,
    SESSIONS, create_dir, create_file, is_known, pack::Hashing,
};

/// Writes the archive to `path`, which must not be there.
pub(super) async fn receive(
    archive: impl Stream<Item = io::Result<Bytes>> + Send,
    path: &Path,
    bytes_max: u64,
) -> Result<(), BackupError> {
    let failed = |error| BackupError::File(path.to_owned(), error);
    let mut file = tokio::fs::File::from_std(create_file(path).map_err(failed)?);
    let mut archive = std::pin::pin!(archive);
    let mut bytes = 0_u64;
    while let Some(chunk) = archive.next().await {
        let chunk = chunk.map_err(BackupError::Upload)?;
        bytes += chunk.len() as u64;
        if bytes > bytes_max {
            return Err(BackupError::TooLarge(bytes_max));
        }
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)
}

/// Unpacks exactly what the manifest names, each file once, size and hash as stated.
pub(super) fn unpack(upload: &Path, staged: &Path, key_check: &str) -> Result<(), BackupError> {
    let broken = |error: io::Error| BackupError::Refused(format!("is not a whole tar: {error}"));
    let file = File::open(upload).map_err(|e| BackupError::File(upload.to_owned(), e))?;
    let mut archive = tar::Archive::new(file);
    let mut entries = archive.entries().map_err(broken)?;
    let first = entries
        .next()
        .ok_or_else(|| BackupError::Refused("is empty".to_owned()))?
        .map_err(broken)?;
    let mut manifest = read_manifest(first)?;
    if manifest.master_key_check != key_check {
        return Err(BackupError::ForeignKey);
    }
    for entry in entries {
        let mut entry = entry.map_err(broken)?;
        let name = entry_name(&entry)?;
        let promised = manifest
            .files
            .remove(&name)
            .filter(|promised| promised.bytes == entry.size())
            .ok_or_else(|| BackupError::Refused(format!("{name} is not what the manifest says")))?;
        if unpack_entry(&mut entry, staged, &name)? != promised {
            return Err(BackupError::Refused(format!("{name} is damaged")));
        }
    }
    match manifest.files.keys().next() {
        Some(missing) => Err(BackupError::Refused(format!("{missing} is missing"))),
        None => looks_right(staged).and_then(|()| settle(staged)),
    }
}

fn unpack_entry<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    staged: &Path,
    name: &str,
) -> Result<FileEntry, BackupError> {
    let path = staged.join(name);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => BackupError::Refused(format!("{name} is cut short")),
        _ => BackupError::File(path.clone(), error),
    };
    if name.starts_with(CRLS) && !staged.join(CRLS).exists() {
        create_dir(&staged.join(CRLS)).map_err(failed)?;
    }
    let mut out = Hashing::new(create_file(&path).map_err(failed)?);
    io::copy(entry, &mut out).map_err(failed)?;
    out.inner.sync_all().map_err(failed)?;
    Ok(out.finish())
}

/// The name of a plain file that a backup writes.
fn entry_name<R: Read>(entry: &tar::Entry<'_, R>) -> Result<String, BackupError> {
    let path = entry
        .path()
        .map_err(|e| BackupError::Refused(e.to_string()))?;
    let name = path.to_str().unwrap_or_default().to_owned();
    let plain = entry.header().entry_type() == tar::EntryType::Regular;
    if plain && (name == MANIFEST || is_known(&name)) {
        return Ok(name);
    }
    Err(BackupError::Refused(format!(
        "{} is nothing that a backup writes",
        path.display()
    )))
}

fn read_manifest<R: Read>(entry: tar::Entry<'_, R>) -> Result<Manifest, BackupError> {
    let refused = |what: String| BackupError::Refused(what);
    if entry_name(&entry)? != MANIFEST || entry.size() > MANIFEST_BYTES_MAX {
        return Err(refused(format!("does not begin with {MANIFEST}")));
    }
    let manifest: Manifest = serde_json::from_reader(entry)
        .map_err(|error| refused(format!("{MANIFEST} cannot be read: {error}")))?;
    if manifest.format != FORMAT {
        return Err(refused(format!(
            "has form {}, written by version {}; this program reads form {FORMAT}",
            manifest.format, manifest.version
        )));
    }
    if let Some(name) = manifest.files.keys().find(|name| !is_known(name)) {
        return Err(refused(format!("{name} is nothing that a backup writes")));
    }
    Ok(manifest)
}

/// Both stores are there and begin as such files do.
fn looks_right(staged: &Path) -> Result<(), BackupError> {
    for (name, magic) in [
        (DATABASE, &b"SQLite format 3\0"[..]),
        (SESSIONS, &b"redb"[..]),
    ] {
        let mut head = vec![0; magic.len()];
        let read = File::open(staged.join(name)).and_then(|mut file| file.read_exact(&mut head));
        if read.is_err() || head != magic {
            return Err(BackupError::Refused(format!(
                "{name} is missing or not such a file"
            )));
        }
    }
    Ok(())
}

/// Makes the names durable too; the files are already.
fn settle(staged: &Path) -> Result<(), BackupError> {
    let crls = staged.join(CRLS);
    for directory in [crls.as_path(), staged] {
        let synced = File::open(directory).and_then(|opened| opened.sync_all());
        match synced {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(BackupError::File(directory.to_owned(), error));
            }
            _ => {}
        }
    }
    Ok(())
}
