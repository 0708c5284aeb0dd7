//! A PostgreSQL server of the test run's own: socket only, in a temporary directory, started from
//! the system's binaries and gone with the test process, however that ends.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;

/// A server.
#[derive(Debug)]
pub(crate) struct Cluster {
    binaries: PathBuf,
    folder: PathBuf,
    databases: AtomicU32,
    /// Stops the server and removes the folder once its standard input ends, that is, with us.
    _guard: Child,
}

/// The server that tests share, each with a database of its own; `None` when there are no
/// binaries, which is said once.
pub(crate) fn shared() -> Option<&'static Cluster> {
    static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
    SHARED.get_or_init(Cluster::start_own).as_ref()
}

impl Cluster {
    /// A server for one test alone, which may stop it.
    pub(crate) fn start_own() -> Option<Self> {
        let Some(binaries) = binaries() else {
            super::skipped("PostgreSQL is not installed (initdb, pg_ctl); run make deps as root");
            return None;
        };
        let folder = TempDir::with_prefix("tanit-pg-")
            .expect("a temporary directory")
            .keep();
        if is_root() {
            run(Command::new("chown").arg("nobody").arg(&folder));
        }
        let cluster = Self {
            _guard: guard(&binaries, &folder),
            binaries,
            folder,
            databases: AtomicU32::new(0),
        };
        run(cluster
            .tool("initdb")
            .args([
                "--username=tanit",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-locale",
            ])
            .args(["--no-sync", "--pgdata"])
            .arg(cluster.data()));
        cluster.start();
        Some(cluster)
    }

    /// Starts the server, and returns when it answers.
    pub(crate) fn start(&self) {
        let options = format!(
            "-k {} -c listen_addresses= -c fsync=off -c max_connections=200",
            self.folder.display()
        );
        run(self
            .tool("pg_ctl")
            .args(["start", "--wait", "--silent", "--pgdata"])
            .arg(self.data())
            .arg("--log")
            .arg(self.folder.join("log"))
            .args(["--options", &options]));
    }

    /// Stops the server at once, as a crash would.
    pub(crate) fn stop(&self) {
        run(self
            .tool("pg_ctl")
            .args(["stop", "--wait", "--silent", "--mode=immediate", "--pgdata"])
            .arg(self.data()));
    }

    /// The URL of a new and empty database.
    pub(crate) async fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::SeqCst));
        let mut conn = PgConnection::connect(&self.url("postgres"))
            .await
            .expect("it answers");
        let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(create)
            .execute(&mut conn)
            .await
            .expect("a new database");
        conn.close().await.expect("closed");
        self.url(&name)
    }

    /// The directory of its socket, whose name is `.s.PGSQL.5432`.
    pub(crate) fn socket_folder(&self) -> &Path {
        &self.folder
    }

    fn url(&self, database: &str) -> String {
        url(&self.folder, database)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// One of the server's programs, as a plain user: it refuses to run as root.
    fn tool(&self, name: &str) -> Command {
        let program = self.binaries.join(name);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "nobody", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }
}

/// The URL of a database behind the socket in `folder`.
pub(crate) fn url(folder: &Path, database: &str) -> String {
    format!(
        "postgres://tanit@localhost/{database}?host={}",
        folder.display()
    )
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where `initdb` and `pg_ctl` are.
fn binaries() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    folders.into_iter().find(|folder| {
        ["initdb", "pg_ctl", "postgres"]
            .iter()
            .all(|name| folder.join(name).is_file())
    })
}

fn guard(binaries: &Path, folder: &Path) -> Child {
    let user = if is_root() {
        "runuser -u nobody --"
    } else {
        ""
    };
    let script = format!(
        "cat >/dev/null; cd /; {user} '{}' stop --silent --mode=immediate --pgdata '{}/data'; \
         rm -rf '{}'",
        binaries.join("pg_ctl").display(),
        folder.display(),
        folder.display()
    );
    Command::new("setsid")
        .args(["sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}

fn run(command: &mut Command) {
    let output = command.stdout(Stdio::piped()).output().expect("it runs");
    assert!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
