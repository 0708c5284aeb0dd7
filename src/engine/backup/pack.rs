//! Writing an archive: copies are taken, described and sent as a stream of chunks.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use bytes::Bytes;
use ring::digest::{self, SHA256};
use tokio::sync::mpsc;

use super::{
    BackupError, CERTIFICATES, CHUNK_BYTES, CRLS, DATABASE, FileEntry, MANIFEST, Manifest,
    SESSIONS, create_dir, is_known,
};

/// Copies certificates and CRLs beside the other copies.
pub(super) fn take_files(data_dir: &Path, copies: &Path) -> Result<(), BackupError> {
    let copy = |from: &Path, to: &Path| match fs::copy(from, to) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BackupError::File(from.to_owned(), error)),
    };
    for name in CERTIFICATES {
        copy(&data_dir.join(name), &copies.join(name))?;
    }
    let crls = data_dir.join(CRLS);
    let entries = match fs::read_dir(&crls) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(BackupError::File(crls, error)),
    };
    let kept = copies.join(CRLS);
    create_dir(&kept).map_err(|error| BackupError::File(kept.clone(), error))?;
    for entry in entries {
        let entry = entry.map_err(|error| BackupError::File(crls.clone(), error))?;
        let name = entry.file_name();
        let wanted = name
            .to_str()
            .is_some_and(|name| is_known(&format!("{CRLS}/{name}")));
        if wanted {
            copy(&entry.path(), &kept.join(name))?;
        }
    }
    Ok(())
}

/// Fills in the manifest for the files that are there.
pub(super) fn describe(copies: &Path, mut manifest: Manifest) -> Result<Manifest, BackupError> {
    let mut names: Vec<String> = [DATABASE, SESSIONS]
        .into_iter()
        .chain(CERTIFICATES)
        .map(str::to_owned)
        .collect();
    if let Ok(entries) = fs::read_dir(copies.join(CRLS)) {
        let crls = entries
            .filter_map(Result::ok)
            .filter_map(|e| e.file_name().into_string().ok());
        names.extend(crls.map(|file| format!("{CRLS}/{file}")));
    }
    for name in names {
        let path = copies.join(&name);
        match File::open(&path) {
            Ok(file) => {
                let entry = describe_file(file).map_err(|e| BackupError::File(path, e))?;
                manifest.files.insert(name, entry);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(BackupError::File(path, error)),
        }
    }
    Ok(manifest)
}

fn describe_file(mut file: File) -> io::Result<FileEntry> {
    let mut sink = Hashing::new(io::sink());
    io::copy(&mut file, &mut sink)?;
    Ok(sink.finish())
}

/// Passes bytes on, counting and hashing them.
pub(super) struct Hashing<W> {
    pub(super) inner: W,
    hash: digest::Context,
    bytes: u64,
}

impl<W> Hashing<W> {
    pub(super) fn new(inner: W) -> Self {
        Self {
            inner,
            hash: digest::Context::new(&SHA256),
            bytes: 0,
        }
    }

    pub(super) fn finish(self) -> FileEntry {
        use std::fmt::Write as _;
        let mut sha256 = String::with_capacity(64);
        for byte in self.hash.finish().as_ref() {
            // a String takes whatever it is given
            let _ = write!(sha256, "{byte:02x}");
        }
        FileEntry {
            bytes: self.bytes,
            sha256,
        }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

pub(super) fn write_archive(
    copies: &Path,
    manifest: &Manifest,
    out: &mut ChunkWriter,
) -> io::Result<()> {
    let mut tar = tar::Builder::new(out);
    tar.mode(tar::HeaderMode::Deterministic);
    let text = serde_json::to_vec_pretty(manifest)?;
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o600);
    tar.append_data(&mut header, MANIFEST, text.as_slice())?;
    for (name, entry) in &manifest.files {
        let mut header = tar::Header::new_gnu();
        header.set_size(entry.bytes);
        header.set_mode(0o600);
        let file = File::open(copies.join(name))?;
        tar.append_data(&mut header, name, file)?;
    }
    tar.finish()
}

/// Sends what is written as chunks; waits when the reader is slow, fails when it is gone.
pub(super) struct ChunkWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
}

impl ChunkWriter {
    pub(super) fn new(sender: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self {
            sender,
            chunk: Vec::with_capacity(CHUNK_BYTES),
        }
    }

    /// Tells the reader that the stream is broken, not short.
    pub(super) fn break_off(self, error: io::Error) {
        // a reader that is gone need not be told
        drop(self.sender.blocking_send(Err(error)));
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        self.sender
            .blocking_send(Ok(Bytes::from(chunk)))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the caller is gone"))
    }
}
