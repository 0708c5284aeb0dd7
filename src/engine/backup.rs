//! One archive of everything but the master key, made online, and its way back.
//!
//! The archive is a tar of plain files: a manifest first, then the database, the sessions, the
//! server's certificates and the CRLs. The manifest names every file with size and SHA-256, so that
//! a cut or changed archive is refused as a whole. The master key stays out: without it the secrets
//! in the archive are sealed; with another one it is of no use, and is refused.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use ring::digest::{self, SHA256};
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncWriteExt as _, sync::mpsc};
use tokio_util::task::TaskTracker;

use super::{
    actor::Actor,
    live::{LiveDevices, SessionsFailed},
};
use crate::{
    clock::{SharedClock, Timestamp},
    pki::MasterKey,
    store::{Change, Store, StoreError},
};

/// Name of the manifest, which is the first entry.
const MANIFEST: &str = "manifest.json";
/// Largest manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
/// Form of the archive that this program writes and reads.
const FORMAT: u32 = 1;
/// Name of the copy of the database.
const DATABASE: &str = "tanit.db";
/// Name of the copy of the sessions.
const SESSIONS: &str = "sessions.redb";
/// Files of the data directory that go with them, where they are there.
const CERTIFICATES: [&str; 4] = ["server-ca.crt", "server-ca.key", "server.crt", "server.key"];
/// Directory of the CRLs within the data directory and the archive.
const CRLS: &str = "crl";
/// Bytes of one chunk of the stream; eight wait for a slow reader, then the writer waits.
const CHUNK_BYTES: usize = 64 * 1024;
const CHUNKS_WAITING: usize = 8;

/// What [`Backups`] is made of.
#[derive(Debug)]
pub struct BackupsParts {
    /// The database.
    pub store: Arc<dyn Store>,
    /// The sessions.
    pub live: Arc<dyn LiveDevices>,
    /// Only its check value goes into an archive.
    pub master_key: Arc<MasterKey>,
    /// Time.
    pub clock: SharedClock,
    /// Data directory.
    pub data_dir: PathBuf,
    /// Where the writing of an archive runs.
    pub tracker: TaskTracker,
    /// Largest archive that is taken in, in bytes.
    pub archive_bytes_max: u64,
}

/// Makes archives and takes them in, one at a time.
#[derive(Debug)]
pub struct Backups {
    parts: BackupsParts,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Why there is no archive, or why one was not taken in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// Another backup or restore is under way.
    #[error("another backup or restore is under way")]
    Busy,
    /// The archive is not what a backup writes; nothing was changed.
    #[error("the archive is refused: {0}")]
    Refused(String),
    /// The archive was made under another master key.
    #[error(
        "the archive was made under another master key; put that key in place first, or its \
         secrets cannot be opened"
    )]
    ForeignKey,
    /// The archive is larger than allowed.
    #[error("the archive is larger than {0} bytes")]
    TooLarge(u64),
    /// The archive did not arrive whole.
    #[error("the archive did not arrive: {0}")]
    Upload(io::Error),
    /// A file here could not be read or written.
    #[error("{0} failed")]
    File(PathBuf, #[source] io::Error),
    /// The work was cut off; a bug.
    #[error("the work was cut off")]
    CutOff,
    /// The session store failed.
    #[error(transparent)]
    Sessions(#[from] SessionsFailed),
    /// The database failed, or is one that is not copied here.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The first entry of an archive.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    version: String,
    created_at: Timestamp,
    /// Tells the master key without giving it away.
    master_key_check: String,
    files: BTreeMap<String, FileEntry>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    bytes: u64,
    sha256: String,
}

/// The bytes of an archive as they are written. Dropping it ends the writing.
#[derive(Debug)]
pub struct Archive(mpsc::Receiver<io::Result<Bytes>>);

impl Stream for Archive {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

impl Backups {
    /// The service.
    #[must_use]
    pub fn new(parts: BackupsParts) -> Self {
        Self { parts, turn: Arc::default() }
    }

    /// Copies everything and answers with the archive of the copies; the copies go when it ends.
    ///
    /// # Errors
    /// `Busy`, or when a store or a file fails.
    pub async fn create(&self, by: &Actor) -> Result<Archive, BackupError> {
        let turn = self.turn.clone().try_lock_owned().map_err(|_| BackupError::Busy)?;
        let audit = by.did(self.parts.clock.wall(), "node.backup", "node");
        self.parts.store.apply(Change::Note, audit).await?;
        let data_dir = self.parts.data_dir.clone();
        let copies = tempfile::Builder::new()
            .prefix("backup-")
            .tempdir_in(&data_dir)
            .map_err(|error| BackupError::File(data_dir.clone(), error))?;
        // the database first: what is queued after its copy is in the sessions' copy at least,
        // what was queued before it is in the outbox or in both, and the queue knows it by its id
        self.parts.store.backup(&copies.path().join(DATABASE)).await?;
        self.parts.live.backup_sessions(&copies.path().join(SESSIONS)).await?;
        let base = Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            created_at: self.parts.clock.wall(),
            master_key_check: self.parts.master_key.check_value(),
            files: BTreeMap::new(),
        };
        let described = self.parts.tracker.spawn_blocking(move || {
            take_files(&data_dir, copies.path())?;
            describe(copies.path(), base).map(|manifest| (copies, manifest))
        });
        let (copies, manifest) = described.await.map_err(|_| BackupError::CutOff)??;
        let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
        self.parts.tracker.spawn_blocking(move || {
            let mut out = ChunkWriter { sender, chunk: Vec::with_capacity(CHUNK_BYTES) };
            let written = write_archive(copies.path(), &manifest, &mut out);
            let flushed = written.and_then(|()| out.flush());
            // the reader sees the end when `out` goes: by then all is as before
            drop((copies, turn));
            if let Err(error) = flushed {
                tracing::warn!(%error, "a backup was not written to its end");
                // the reader must see a broken stream, not a short one
                drop(out.sender.blocking_send(Err(error)));
            }
        });
        Ok(Archive(receiver))
    }

    /// Takes an archive in and unpacks it below the data directory; answers with the directory.
    /// Nothing of the running node is touched.
    ///
    /// # Errors
    /// `Busy`, `TooLarge`, `Upload`, `Refused`, `ForeignKey`, or when a file fails.
    pub async fn stage(
        &self,
        archive: impl Stream<Item = io::Result<Bytes>> + Send,
        by: &Actor,
    ) -> Result<PathBuf, BackupError> {
        let turn = self.turn.clone().try_lock_owned().map_err(|_| BackupError::Busy)?;
        let audit = by.did(self.parts.clock.wall(), "node.restore", "node");
        self.parts.store.apply(Change::Note, audit).await?;
        let place = self.parts.data_dir.join("restore");
        clear(&place).map_err(|error| BackupError::File(place.clone(), error))?;
        let upload = place.join("upload.tar");
        if let Err(error) = receive(archive, &upload, self.parts.archive_bytes_max).await {
            // half an archive is of no use; why there is no whole one is what counts
            drop(fs::remove_file(&upload));
            return Err(error);
        }
        let check = self.parts.master_key.check_value();
        let unpacked = self.parts.tracker.spawn_blocking(move || {
            let _turn = turn;
            let staged = place.join("staged");
            let unpacked = create_dir(&staged)
                .map_err(|error| BackupError::File(staged.clone(), error))
                .and_then(|()| unpack(&upload, &staged, &check));
            let removed = fs::remove_file(&upload);
            match unpacked {
                Ok(()) => removed.map(|()| staged).map_err(|e| BackupError::File(upload, e)),
                Err(error) => {
                    // what was refused must not lie about; the refusal is what counts
                    drop(fs::remove_dir_all(&staged));
                    Err(error)
                }
            }
        });
        unpacked.await.map_err(|_| BackupError::CutOff)?
    }
}

/// Copies certificates and CRLs beside the other copies.
fn take_files(data_dir: &Path, copies: &Path) -> Result<(), BackupError> {
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
        let wanted = name.to_str().is_some_and(|name| is_known(&format!("{CRLS}/{name}")));
        if wanted {
            copy(&entry.path(), &kept.join(name))?;
        }
    }
    Ok(())
}

/// Whether a backup writes a file of this name.
fn is_known(name: &str) -> bool {
    if name == DATABASE || name == SESSIONS || CERTIFICATES.contains(&name) {
        return true;
    }
    name.strip_prefix("crl/")
        .and_then(|file| file.strip_suffix(".pem"))
        .is_some_and(|realm| realm.parse::<crate::identity::RealmName>().is_ok())
}

/// Fills in the manifest for the files that are there.
fn describe(copies: &Path, mut manifest: Manifest) -> Result<Manifest, BackupError> {
    let mut names: Vec<String> =
        [DATABASE, SESSIONS].into_iter().chain(CERTIFICATES).map(str::to_owned).collect();
    if let Ok(entries) = fs::read_dir(copies.join(CRLS)) {
        let crls = entries.filter_map(Result::ok).filter_map(|e| e.file_name().into_string().ok());
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
struct Hashing<W> {
    inner: W,
    hash: digest::Context,
    bytes: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: digest::Context::new(&SHA256), bytes: 0 }
    }

    fn finish(self) -> FileEntry {
        use std::fmt::Write as _;
        let mut sha256 = String::with_capacity(64);
        for byte in self.hash.finish().as_ref() {
            // a String takes whatever it is given
            let _ = write!(sha256, "{byte:02x}");
        }
        FileEntry { bytes: self.bytes, sha256 }
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

fn write_archive(copies: &Path, manifest: &Manifest, out: &mut ChunkWriter) -> io::Result<()> {
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
struct ChunkWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
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

/// An empty directory that only we can read.
fn clear(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    create_dir(directory)
}

fn create_dir(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(directory)
}

fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

async fn receive(
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
fn unpack(upload: &Path, staged: &Path, key_check: &str) -> Result<(), BackupError> {
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
        let stated = manifest
            .files
            .remove(&name)
            .filter(|stated| stated.bytes == entry.size())
            .ok_or_else(|| {
                BackupError::Refused(format!("{name} is not what the manifest says"))
            })?;
        if unpack_entry(&mut entry, staged, &name)? != stated {
            return Err(BackupError::Refused(format!("{name} is damaged")));
        }
    }
    match manifest.files.keys().next() {
        Some(missing) => Err(BackupError::Refused(format!("{missing} is missing"))),
        None => looks_right(staged),
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
    let path = entry.path().map_err(|e| BackupError::Refused(e.to_string()))?;
    let name = path.to_str().unwrap_or_default().to_owned();
    let plain = entry.header().entry_type() == tar::EntryType::Regular;
    if plain && (name == MANIFEST || is_known(&name)) {
        return Ok(name);
    }
    Err(BackupError::Refused(format!("{} is nothing that a backup writes", path.display())))
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
    for (name, magic) in [(DATABASE, &b"SQLite format 3\0"[..]), (SESSIONS, &b"redb"[..])] {
        let mut head = vec![0; magic.len()];
        let read = File::open(staged.join(name)).and_then(|mut file| file.read_exact(&mut head));
        if read.is_err() || head != magic {
            return Err(BackupError::Refused(format!("{name} is missing or not such a file")));
        }
    }
    Ok(())
}
