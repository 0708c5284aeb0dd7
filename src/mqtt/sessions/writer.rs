//! The writer thread: takes what came in, applies it in one transaction, commits, answers.
//!
//! A batch is what came in while the last commit was on its way. If somebody waits for something
//! to be durable the commit is flushed, otherwise it is visible at once and flushed with the next
//! one, at the latest after [`SOFT_FLUSH`] of silence or [`SOFT_COMMITS_MAX`] such commits.
//!
//! When a commit fails nothing of it is answered with success; the database is opened again, which
//! tells whether writing works, and the index is read anew. Until then every call fails at once.

use std::{
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use redb::{Database, Durability};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    QueueLimits, Settled,
    batch::{Batch, Failure, Tables},
    file::{self, Opener},
    index::Index,
};
use crate::{
    clock::{SharedClock, Timestamp},
    identity::Identity,
    mqtt::SessionEpoch,
};

/// Commands in one transaction.
const BATCH_COMMANDS: usize = 1_000;
/// Marks in one transaction.
const BATCH_MARKS: usize = 10_000;
/// Soft changes are flushed after so much silence.
const SOFT_FLUSH: Duration = Duration::from_millis(500);
/// Soft commits in a row until one is flushed.
const SOFT_COMMITS_MAX: u32 = 64;
/// While writing fails it is tried again so often.
const RETRY: Duration = Duration::from_millis(500);

/// Says the result to whoever waits; called once what it says is committed.
pub(super) type Answer = Box<dyn FnOnce() + Send>;
/// A change. Its caller learns that it failed when it is dropped uncalled or its answer is. With a
/// failure comes an answer only to be dropped: when the trouble has been noted.
pub(super) type Action =
    Box<dyn for<'b, 't> FnOnce(&'b mut Batch<'t>) -> Result<Answer, (Failure, Answer)> + Send>;

/// An action and its place in the line.
pub(super) struct Command {
    pub(super) action: Action,
    pub(super) _place: OwnedSemaphorePermit,
}

/// A change that nobody waits for.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) identity: Identity,
    pub(super) epoch: SessionEpoch,
    pub(super) seq: u64,
    /// `None`: it was sent.
    pub(super) settled: Option<Settled>,
}

/// What waits for the writer thread.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Bounded by the places that its senders hold.
    commands: VecDeque<Command>,
    /// At most two for each message that a connection has in hand, which its windows bound.
    marks: Vec<Mark>,
    closing: bool,
    closed: bool,
}

impl Inbox {
    /// Hands over a command; false when the store is closed.
    pub(super) fn push(&self, command: Command) -> bool {
        let mut waiting = self.waiting();
        if waiting.closing || waiting.closed {
            return false;
        }
        waiting.commands.push_back(command);
        drop(waiting);
        self.came.notify_one();
        true
    }

    /// Hands over a mark.
    pub(super) fn mark(&self, mark: Mark) {
        let mut waiting = self.waiting();
        if waiting.closed {
            return;
        }
        waiting.marks.push(mark);
        drop(waiting);
        self.came.notify_one();
    }

    /// Lets the thread end once it has done everything.
    pub(super) fn close(&self) {
        self.waiting().closing = true;
        self.came.notify_one();
    }

    /// Takes marks back that could not be written; they do no harm when they are applied twice.
    fn put_back(&self, mut marks: Vec<Mark>) {
        let mut waiting = self.waiting();
        marks.append(&mut waiting.marks);
        waiting.marks = marks;
    }

    /// Waits for work, at most so long; for marks too unless in `trouble`. Marks made before a
    /// command was handed over are there when that command is.
    fn take(&self, at_most: Option<Duration>, trouble: bool) -> Work {
        let mut waiting = self.waiting();
        let is_idle = |waiting: &mut Waiting| {
            waiting.commands.is_empty() && (trouble || waiting.marks.is_empty()) && !waiting.closing
        };
        waiting = match at_most {
            None => self
                .came
                .wait_while(waiting, is_idle)
                .unwrap_or_else(PoisonError::into_inner),
            Some(at_most) => {
                self.came
                    .wait_timeout_while(waiting, at_most, is_idle)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        let commands = waiting.commands.len().min(BATCH_COMMANDS);
        let commands: Vec<_> = waiting.commands.drain(..commands).collect();
        let marks = waiting.marks.len().min(BATCH_MARKS);
        let marks = if marks == waiting.marks.len() {
            mem::take(&mut waiting.marks)
        } else {
            waiting.marks.drain(..marks).collect()
        };
        let last = waiting.closing && waiting.commands.is_empty() && waiting.marks.is_empty();
        Work {
            commands,
            marks,
            last,
        }
    }

    /// Nothing comes in any more; what is left is dropped, which tells its callers.
    fn shut(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        let left = mem::take(&mut *waiting);
        waiting.closed = true;
        drop(waiting);
        drop(left);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

struct Work {
    commands: Vec<Command>,
    marks: Vec<Mark>,
    last: bool,
}

/// What the thread shares with the handle.
#[derive(Debug, Default)]
pub(super) struct State {
    /// `None` while it cannot be written to.
    pub(super) database: RwLock<Option<Database>>,
    /// Why it cannot.
    pub(super) trouble: Mutex<Option<Arc<str>>>,
    /// Sessions that were erased because their connection did not outlive a restart.
    pub(super) erased: Mutex<Vec<(Identity, SessionEpoch)>>,
}

impl State {
    pub(super) fn trouble(&self) -> Option<Arc<str>> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The thread's own.
pub(super) struct Writer {
    pub(super) inbox: Arc<Inbox>,
    pub(super) state: Arc<State>,
    pub(super) index: Index,
    pub(super) opener: Opener,
    pub(super) limits: QueueLimits,
    pub(super) clock: SharedClock,
    pub(super) opened_at: Timestamp,
    /// Commits since the last flushed one.
    pub(super) soft_commits: u32,
    /// The marks in them: they are lost when writing fails before the next flush.
    pub(super) soft_marks: Vec<Mark>,
}

impl Writer {
    /// Works until the inbox is closed.
    pub(super) fn run(mut self) {
        loop {
            let trouble = self.state.trouble().is_some();
            let at_most = if trouble {
                Some(RETRY)
            } else {
                (self.soft_commits > 0).then_some(SOFT_FLUSH)
            };
            let work = self.inbox.take(at_most, trouble);
            let last = work.last;
            if trouble {
                self.recover();
            }
            self.work(work);
            if last {
                break;
            }
        }
        self.finish();
        self.inbox.shut();
    }

    /// One transaction, if there is anything to do.
    fn work(&mut self, work: Work) {
        let Work {
            commands, marks, ..
        } = work;
        let idle = commands.is_empty() && marks.is_empty();
        if idle && self.soft_commits == 0 {
            return;
        }
        if self.state.trouble().is_some() {
            self.inbox.put_back(marks);
            return;
        }
        // owned here, so that callers are told after the trouble has been noted
        let (mut commands, mut answers) = (commands.into_iter(), Vec::new());
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.transact(&mut commands, &marks, &mut answers, idle)
        }));
        let failure = match done {
            Ok(Ok(())) => {
                if self.soft_commits == 0 {
                    self.soft_marks.clear();
                } else {
                    self.soft_marks.extend(marks);
                }
                return answers.into_iter().for_each(|answer| answer());
            }
            Ok(Err(failure)) => failure,
            Err(_) => Failure::from_text("a change panicked"),
        };
        self.inbox.put_back(marks);
        self.inbox.put_back(mem::take(&mut self.soft_marks));
        self.fail(&failure);
        drop((commands, answers));
        self.recover();
    }

    fn transact(
        &mut self,
        commands: &mut impl Iterator<Item = Command>,
        marks: &[Mark],
        answers: &mut Vec<Answer>,
        flush: bool,
    ) -> Result<(), Failure> {
        let state = Arc::clone(&self.state);
        let database = state
            .database
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let database = database
            .as_ref()
            .ok_or_else(|| Failure::from_text("not open"))?;
        let mut writing = database.begin_write()?;
        writing.set_quick_repair(true);
        let tables = Tables::open(&writing)?;
        let now = self.clock.wall();
        let mut batch = Batch::new(tables, &mut self.index, self.limits, now, self.opened_at);
        for mark in marks {
            batch.mark(mark)?;
        }
        for command in commands {
            match (command.action)(&mut batch) {
                Ok(answer) => answers.push(answer),
                Err((failure, answer)) => {
                    answers.push(answer);
                    return Err(failure);
                }
            }
        }
        let outcome = batch.finish()?;
        let durable = outcome.durable || flush || self.soft_commits >= SOFT_COMMITS_MAX;
        writing.set_durability(if durable {
            Durability::Immediate
        } else {
            Durability::None
        })?;
        if durable || outcome.changed {
            writing.commit()?;
            self.soft_commits = if durable { 0 } else { self.soft_commits + 1 };
        } else {
            writing.abort()?;
        }
        outcome.deliver(&mut self.index);
        Ok(())
    }

    /// Notes that writing fails. Said once; whoever asks meanwhile is told.
    fn fail(&mut self, failure: &Failure) {
        let mut trouble = self
            .state
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if trouble.is_none() {
            tracing::error!(reason = %failure, "session store cannot write; nothing is lost, trying again");
        }
        *trouble = Some(failure.to_string().into());
    }

    /// Opens the database again and reads the index from it.
    fn recover(&mut self) {
        // closed first: its lock would keep us out
        *self
            .state
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner) = None;
        match self.reopen() {
            Ok(()) => {
                *self
                    .state
                    .trouble
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = None;
                for feed in self
                    .index
                    .sessions
                    .values_mut()
                    .filter_map(|entry| entry.feed.as_mut())
                {
                    // rows may be there that it was not told of
                    feed.silence_again();
                }
                tracing::info!("session store writes again");
            }
            Err(failure) => self.fail(&failure),
        }
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        let opener = &self.opener;
        let (database, mut index) = catch_unwind(AssertUnwindSafe(
            || -> Result<(Database, Index), Failure> {
                let database = opener()?;
                let unclean_stops = file::begin(&database, false)?;
                let index = file::load(&database, unclean_stops)?;
                Ok((database, index))
            },
        ))
        .unwrap_or_else(|_| Err(Failure::from_text("opening it panicked")))?;
        for (identity, entry) in &mut index.sessions {
            let Some(old) = self.index.sessions.remove(identity) else {
                continue;
            };
            if old.epoch != entry.epoch {
                continue;
            }
            // what was given away stays given away
            entry.next_seq = entry.next_seq.max(old.next_seq);
            entry.refused = old.refused;
            entry.feed = old.feed;
        }
        self.index = index;
        *self
            .state
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(database);
        self.soft_commits = 0;
        self.end_orphans()
    }

    /// Sessions without a connection are over, or their time begins to run.
    pub(super) fn end_orphans(&mut self) -> Result<(), Failure> {
        let state = Arc::clone(&self.state);
        let database = state
            .database
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let database = database
            .as_ref()
            .ok_or_else(|| Failure::from_text("not open"))?;
        let mut writing = database.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        writing.set_quick_repair(true);
        let now = self.clock.wall();
        let tables = Tables::open(&writing)?;
        let mut batch = Batch::new(tables, &mut self.index, self.limits, now, self.opened_at);
        let erased = batch.end_orphans()?;
        batch.finish()?;
        writing.commit()?;
        self.state
            .erased
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(erased);
        Ok(())
    }

    fn finish(&mut self) {
        let mut database = self
            .state
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = database.take()
            && let Err(failure) = file::finish(&database)
        {
            tracing::error!(reason = %failure, "session store could not be closed in order");
        }
        *self
            .state
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some("it is closed".into());
    }
}
