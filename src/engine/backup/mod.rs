//! One archive of everything but the master key, made online, and its way back.
//!
//! The archive is a tar of plain files: a manifest first, then the database, the sessions, the
//! server's certificates and the CRLs. The manifest names every file with size and SHA-256, so that
//! a cut or changed archive is refused as a whole. The master key stays out: without it the secrets
//! in the archive are sealed; with another one it is of no use, and is refused.

mod pack;
mod unpack;

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, mpsc};
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

/// What the directories below the data directory begin with, where a backup keeps its copies. One
/// that is there at the start was left by a crash.
pub const COPIES_PREFIX: &str = "backup-";

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
    /// Set when a staged archive was handed over: it must lie still until the node has taken it.
    handed_over: AtomicBool,
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
        Self {
            parts,
            turn: Arc::default(),
            handed_over: AtomicBool::new(false),
        }
    }

    fn turn(&self) -> Result<OwnedMutexGuard<()>, BackupError> {
        if self.handed_over.load(Ordering::Acquire) {
            return Err(BackupError::Busy);
        }
        self.turn
            .clone()
            .try_lock_owned()
            .map_err(|_| BackupError::Busy)
    }

    /// The node restarts with what was staged: from now on everything else is `Busy`.
    pub fn handed_over(&self) {
        self.handed_over.store(true, Ordering::Release);
    }

    /// Copies everything and answers with the archive of the copies; the copies go when it ends.
    ///
    /// # Errors
    /// `Busy`, or when a store or a file fails.
    pub async fn create(&self, by: &Actor) -> Result<Archive, BackupError> {
        let turn = self.turn()?;
        let audit = by.did(self.parts.clock.wall(), "node.backup", "node");
        self.parts.store.apply(Change::Note, audit).await?;
        let data_dir = self.parts.data_dir.clone();
        let copies = tempfile::Builder::new()
            .prefix(COPIES_PREFIX)
            .tempdir_in(&data_dir)
            .map_err(|error| BackupError::File(data_dir.clone(), error))?;
        // the database first: what is queued after its copy is in the sessions' copy at least,
        // what was queued before it is in the outbox or in both, and the queue knows it by its id
        self.parts
            .store
            .backup(&copies.path().join(DATABASE))
            .await?;
        self.parts
            .live
            .backup_sessions(&copies.path().join(SESSIONS))
            .await?;
        let base = Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            created_at: self.parts.clock.wall(),
            master_key_check: self.parts.master_key.check_value(),
            files: BTreeMap::new(),
        };
        let described = self.parts.tracker.spawn_blocking(move || {
            pack::take_files(&data_dir, copies.path())?;
            pack::describe(copies.path(), base).map(|manifest| (copies, manifest))
        });
        let (copies, manifest) = described.await.map_err(|_| BackupError::CutOff)??;
        let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
        self.parts.tracker.spawn_blocking(move || {
            let mut out = pack::ChunkWriter::new(sender);
            let written = pack::write_archive(copies.path(), &manifest, &mut out);
            let flushed = written.and_then(|()| out.flush());
            // the reader sees the end when `out` goes: by then all is as before
            drop((copies, turn));
            if let Err(error) = flushed {
                tracing::warn!(%error, "a backup was not written to its end");
                out.break_off(error);
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
        let turn = self.turn()?;
        let audit = by.did(self.parts.clock.wall(), "node.restore", "node");
        self.parts.store.apply(Change::Note, audit).await?;
        let place = self.parts.data_dir.join("restore");
        clear(&place).map_err(|error| BackupError::File(place.clone(), error))?;
        let upload = place.join("upload.tar");
        if let Err(error) = unpack::receive(archive, &upload, self.parts.archive_bytes_max).await {
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
                .and_then(|()| unpack::unpack(&upload, &staged, &check));
            let removed = fs::remove_file(&upload);
            match unpacked {
                Ok(()) => removed
                    .map(|()| staged)
                    .map_err(|e| BackupError::File(upload, e)),
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

/// Whether a backup writes a file of this name.
fn is_known(name: &str) -> bool {
    if name == DATABASE || name == SESSIONS || CERTIFICATES.contains(&name) {
        return true;
    }
    name.strip_prefix("crl/")
        .and_then(|file| file.strip_suffix(".pem"))
        .is_some_and(|realm| realm.parse::<crate::identity::RealmName>().is_ok())
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
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}
