//! `tanit backup` and `tanit restore`: a node's whole state as one archive.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::json;
use tokio_util::io::ReaderStream;

use super::{
    Context,
    client::{Client, Request},
    exit::{Doing as _, Exit, Failure},
    files,
};

/// Write the database, the sessions and the certificates of a running node into one archive (tar).
///
/// The master key is not in it: keep a copy of master.key apart, without which the archive's keys
/// and secrets cannot be read. The file is made with mode 0600; one that exists is not overwritten.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tanit backup tanit-$(date +%F).tar")]
pub(super) struct Backup {
    /// File to be made.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Replace everything that a node holds by an archive of `tanit backup`; the node restarts with it.
///
/// The node needs the master key that the archive was made under.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tanit restore tanit-2026-01-31.tar --yes && tanit status")]
pub(super) struct Restore {
    /// Archive.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Backup {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let archive = files::create(&self.file, 0o600)?;
        match self.download(&client, archive).await.doing("back up") {
            Ok(bytes) => {
                let result = json!({ "file": self.file, "bytes": bytes });
                let text = format!("{}: {bytes} bytes", self.file.display());
                context.output.text(&result, &text);
                Ok(Exit::Done)
            }
            Err(failure) => {
                // half an archive must not look like one
                let _ = std::fs::remove_file(&self.file);
                Err(failure)
            }
        }
    }

    async fn download(&self, client: &Client, mut archive: File) -> Result<u64, Failure> {
        let writing = || format!("write {}", self.file.display());
        let mut answer = client
            .download(Request::post(["tanit", "v1", "backup"]))
            .await?;
        let mut bytes = 0;
        let broken = |error| Failure::failed(format!("the archive broke off: {error}"));
        while let Some(chunk) = answer.chunk().await.map_err(broken)? {
            archive.write_all(&chunk).doing(writing())?;
            bytes += chunk.len() as u64;
        }
        archive.sync_all().doing(writing())?;
        Ok(bytes)
    }
}

impl Restore {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let archive = open(&self.file).await?;
        context.confirm(&format!(
            "replace everything that the node holds by {}",
            self.file.display()
        ))?;
        let body = reqwest::Body::wrap_stream(ReaderStream::new(archive));
        let request = Request::post(["tanit", "v1", "restore"]).stream(body);
        let doing = format!("restore {}", self.file.display());
        let answer = client.send(request).await.doing(doing)?;
        context
            .output
            .text(&answer, "the node restarts with the archive");
        context
            .output
            .note("`tanit status` answers when it is ready");
        Ok(Exit::Done)
    }
}

async fn open(path: &Path) -> Result<tokio::fs::File, Failure> {
    tokio::fs::File::open(path)
        .await
        .doing(format_args!("read {}", path.display()))
}
