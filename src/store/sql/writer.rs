//! The commit task: the one writer, and the only place that begins and ends transactions.
//!
//! It takes what has arrived, commits it in one transaction, answers, and takes what has arrived
//! meanwhile. No timer: an idle system commits at once, a loaded one in bulk. When the database
//! refuses a value, the batch is undone and done again unit by unit, each in a savepoint, so that
//! the culprit alone is refused. When the database cannot do anything, nothing is written and all
//! are told; the next batch tries again, over a new connection where need be.

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Conn, UNITS_TIMEOUT, changes,
    link::Link,
    units::{self, Care},
};
use crate::store::{
    AuditEntry, Change, Committed, StoreError, Unit, attempt::Attempt, cache::Caches,
};

/// Calls that wait for the commit task; more wait in their own call.
const JOBS_MAX: usize = 1024;
/// Units of one transaction, beyond which no further call joins it.
const BATCH_UNITS_MAX: usize = 4096;
/// How long a ping waits for its transaction.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Changes of one transaction.
const BATCH_CHANGES_MAX: usize = 128;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// A call that waits for its commit.
#[derive(Debug)]
enum Job {
    Units(Vec<Unit>, Reply<Vec<Committed>>),
    Change(Box<(Change, AuditEntry)>, Reply<()>),
    /// Changes nothing, and is answered when a transaction went through.
    Ping(Reply<()>),
}

impl Job {
    const fn is_change(&self) -> bool {
        matches!(self, Self::Change(..))
    }
}

/// What became of a job whose transaction is committed.
#[derive(Debug)]
enum Done {
    Units(Vec<Committed>),
    Change(Result<(), StoreError>),
    Ping,
}

/// The store's end of the commit task.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Writer {
    /// Starts the commit task on an open connection.
    pub(super) fn start(link: Link) -> Self {
        let (jobs, arriving) = mpsc::channel(JOBS_MAX);
        let closing = CancellationToken::new();
        let tasks = TaskTracker::new();
        let task = CommitTask {
            link,
            caches: Caches::new(),
            closing: closing.clone(),
        };
        tasks.spawn(task.run(arriving));
        tasks.close();
        Self {
            jobs,
            closing,
            tasks,
        }
    }

    /// Commits units, together with what else waits.
    pub(super) async fn commit(&self, units: Vec<Unit>) -> Result<Vec<Committed>, StoreError> {
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let (reply, answer) = oneshot::channel();
        self.send(Job::Units(units, reply)).await?;
        answer.await.map_err(|_| closed())?
    }

    /// Makes a change, together with what else waits.
    pub(super) async fn apply(&self, change: Change, audit: AuditEntry) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Change(Box::new((change, audit)), reply))
            .await?;
        answer.await.map_err(|_| closed())?
    }

    /// Whether a transaction goes through, soon enough to call the database available.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let pong = async {
            self.send(Job::Ping(reply)).await?;
            answer.await.map_err(|_| closed())?
        };
        let late = |_| StoreError::unavailable("the database has not committed for a second");
        timeout(PING_TIMEOUT, pong).await.map_err(late)?
    }

    async fn send(&self, job: Job) -> Result<(), StoreError> {
        self.jobs.send(job).await.map_err(|_| closed())
    }

    /// Takes nothing more, commits what was taken, and ends.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable(sqlx::Error::PoolClosed)
}

struct CommitTask {
    link: Link,
    caches: Caches,
    closing: CancellationToken,
}

impl CommitTask {
    async fn run(mut self, mut arriving: mpsc::Receiver<Job>) {
        while let Some(first) = self.next(&mut arriving).await {
            let jobs = gather(first, &mut arriving);
            let result = self.commit(&jobs).await;
            answer(jobs, result);
        }
        self.link.close().await;
    }

    async fn next(&self, arriving: &mut mpsc::Receiver<Job>) -> Option<Job> {
        tokio::select! {
            () = self.closing.cancelled() => {
                arriving.close();
                arriving.recv().await
            }
            job = arriving.recv() => job,
        }
    }

    /// Commits a batch, or leaves nothing of it.
    async fn commit(&mut self, jobs: &[Job]) -> Result<Vec<Done>, StoreError> {
        let mut care = Care::Fast;
        loop {
            match self.attempt(jobs, care).await {
                Ok(Attempt::Committed(done)) => {
                    self.caches.keep();
                    return Ok(done);
                }
                Ok(Attempt::InDoubt(done)) => {
                    self.caches.clear();
                    if self.link.was_committed(&self.closing).await? {
                        return Ok(done);
                    }
                }
                Err(error) => {
                    self.caches.discard();
                    self.link.undo(&error).await;
                    if !(error.refuses_a_value() && care == Care::Fast) {
                        return Err(error);
                    }
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the database refused a value of a batch, committing it one by one"
                    );
                    care = Care::Careful;
                }
            }
        }
    }

    async fn attempt(
        &mut self,
        jobs: &[Job],
        care: Care,
    ) -> Result<Attempt<Vec<Done>>, StoreError> {
        let connection = self.link.connection().await?;
        if connection.is_new {
            self.caches.clear();
        }
        let conn = connection.conn;
        super::begin(conn).await?;
        // a change may be a long removal; messages are short, or their connection is dead
        let limit = if jobs.iter().any(Job::is_change) {
            Duration::MAX
        } else {
            UNITS_TIMEOUT
        };
        let done = timeout(limit, perform(conn, &mut self.caches, jobs, care)).await;
        self.link
            .commit(done.map_err(StoreError::unavailable)??)
            .await
    }
}

/// Takes what has arrived behind `first`, up to the bounds of a batch.
fn gather(first: Job, arriving: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let (mut units, mut changes) = (0, 0);
    let mut jobs = Vec::new();
    let mut next = Some(first);
    while let Some(job) = next {
        match &job {
            Job::Units(list, _) => units += list.len(),
            Job::Change(..) | Job::Ping(_) => changes += 1,
        }
        jobs.push(job);
        let full = units >= BATCH_UNITS_MAX || changes >= BATCH_CHANGES_MAX;
        next = if full { None } else { arriving.try_recv().ok() };
    }
    jobs
}

/// Does all jobs in order, inside the transaction under way. Units that follow each other are one
/// batch, also over several calls.
async fn perform(
    conn: &mut Conn,
    caches: &mut Caches,
    jobs: &[Job],
    care: Care,
) -> Result<Vec<Done>, StoreError> {
    let mut done = Vec::with_capacity(jobs.len());
    let mut rest = jobs;
    while let Some(job) = rest.first() {
        let single = match job {
            Job::Units(..) => None,
            Job::Ping(_) => Some(Done::Ping),
            Job::Change(change, _) => {
                let (change, audit) = &**change;
                Some(Done::Change(
                    perform_change(conn, caches, change, audit).await?,
                ))
            }
        };
        if let Some(single) = single {
            done.push(single);
            rest = &rest[1..];
            continue;
        }
        let lists: Vec<&Vec<Unit>> = rest
            .iter()
            .map_while(|job| match job {
                Job::Units(units, _) => Some(units),
                Job::Change(..) | Job::Ping(_) => None,
            })
            .collect();
        let units: Vec<&Unit> = lists.iter().flat_map(|units| units.iter()).collect();
        let mut outcomes = perform_units(conn, caches, &units, care).await?.into_iter();
        for units in &lists {
            done.push(Done::Units(outcomes.by_ref().take(units.len()).collect()));
        }
        rest = &rest[lists.len()..];
    }
    Ok(done)
}

async fn perform_units(
    conn: &mut Conn,
    caches: &mut Caches,
    units: &[&Unit],
    care: Care,
) -> Result<Vec<Committed>, StoreError> {
    if care == Care::Fast {
        return units::commit(conn, caches, units, care).await;
    }
    let mut outcomes = Vec::with_capacity(units.len());
    for unit in units {
        savepoint(conn).await?;
        match units::commit(conn, caches, std::slice::from_ref(unit), care).await {
            Ok(outcome) => outcomes.extend(outcome),
            Err(error) if error.refuses_a_value() => {
                undo_to_savepoint(conn).await?;
                caches.discard();
                tracing::error!(
                    identity = %unit.identity,
                    error = &error as &dyn std::error::Error,
                    "the database refused a message"
                );
                outcomes.push(Committed::Refused);
            }
            Err(error) => return Err(error),
        }
        release_savepoint(conn).await?;
    }
    Ok(outcomes)
}

/// Makes a change; one that cannot be made leaves nothing behind and does not disturb the others.
async fn perform_change(
    conn: &mut Conn,
    caches: &mut Caches,
    change: &Change,
    audit: &AuditEntry,
) -> Result<Result<(), StoreError>, StoreError> {
    savepoint(conn).await?;
    let result = changes::apply(conn, caches, change, audit).await;
    match result {
        Err(StoreError::Unavailable(error)) => return Err(StoreError::Unavailable(error)),
        Err(_) => {
            undo_to_savepoint(conn).await?;
            caches.discard();
        }
        Ok(()) => {}
    }
    release_savepoint(conn).await?;
    Ok(result)
}

async fn savepoint(conn: &mut Conn) -> Result<(), StoreError> {
    sqlx::query("SAVEPOINT part").execute(conn).await?;
    Ok(())
}

async fn undo_to_savepoint(conn: &mut Conn) -> Result<(), StoreError> {
    sqlx::query("ROLLBACK TO SAVEPOINT part")
        .execute(conn)
        .await?;
    Ok(())
}

async fn release_savepoint(conn: &mut Conn) -> Result<(), StoreError> {
    sqlx::query("RELEASE SAVEPOINT part").execute(conn).await?;
    Ok(())
}

/// Tells each caller what became of its job. A caller that is gone is owed nothing.
fn answer(jobs: Vec<Job>, result: Result<Vec<Done>, StoreError>) {
    match result {
        Ok(done) => {
            for (job, done) in jobs.into_iter().zip(done) {
                match (job, done) {
                    (Job::Units(_, reply), Done::Units(outcomes)) => drop(reply.send(Ok(outcomes))),
                    (Job::Change(_, reply), Done::Change(result)) => drop(reply.send(result)),
                    (Job::Ping(reply), Done::Ping) => drop(reply.send(Ok(()))),
                    // perform answers in kind; a reply that is dropped is an error to its caller
                    _ => {}
                }
            }
        }
        Err(error) => {
            for job in jobs {
                match job {
                    Job::Units(_, reply) => drop(reply.send(Err(error.for_another()))),
                    Job::Change(_, reply) | Job::Ping(reply) => {
                        drop(reply.send(Err(error.for_another())));
                    }
                }
            }
        }
    }
}
