//! Sessions on disk: subscriptions, the outbound queue, its flow state and retained messages.
//!
//! One writer thread owns every write transaction and commits what came in while the last commit
//! was on its way. What must be on disk before which packet leaves is said at each call. Memory
//! holds subscriptions and counts; the contents of the queues are on disk alone, and read in parts.
//!
//! - `layout.rs`: tables, keys and bytes. `file.rs`: opening and its errors.
//! - `writer.rs`: the thread. `batch.rs`, `queue.rs`, `retained.rs`, `reaper.rs`: what a
//!   transaction is made of.
//! - `index.rs`: what is in memory. `reads.rs`: what is read beside the thread.

mod batch;
mod file;
mod index;
mod layout;
mod queue;
mod reads;
mod reaper;
mod retained;
#[cfg(test)]
mod tests;
mod types;
mod writer;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    thread,
};

use bytestring::ByteString;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    clock::{SharedClock, Timestamp},
    identity::{Identity, RealmName},
    mqtt::SessionEpoch,
};
use batch::{Batch, Failure};
use file::Opener;
use reads::Wanted;
use types::packet_id;
pub use types::*;
use writer::{Answer, Command, Inbox, Mark, State, Writer};

/// Commands that wait for the writer thread; who has one more waits for a place.
const COMMANDS_MAX: usize = 4_096;

/// Handle of the session store, cheap to clone.
///
/// # Cancel safety
/// A call whose future is dropped after it got a place in the line is carried out all the same.
#[derive(Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
}

struct Inner {
    inbox: Arc<Inbox>,
    state: Arc<State>,
    places: Arc<Semaphore>,
    clock: SharedClock,
    thread: std::sync::Mutex<Option<thread::JoinHandle<()>>>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Sessions {
    /// Opens or creates the file at `path` and starts the writer thread. May take long when the
    /// file was not closed in order and is large (the log tells how far it is): call it where
    /// blocking is allowed.
    ///
    /// Sessions that end with their connection are erased; the time of the others begins to run
    /// now, if it did not when the process ended.
    ///
    /// # Errors
    /// See [`OpenError`]; each names the path and says what to do.
    pub fn open(path: &Path, limits: QueueLimits, clock: SharedClock) -> Result<Self, OpenError> {
        Self::open_with(path, file::opener(path), limits, clock)
    }

    fn open_with(
        path: &Path,
        opener: Opener,
        mut limits: QueueLimits,
        clock: SharedClock,
    ) -> Result<Self, OpenError> {
        limits.messages = limits.messages.clamp(1, QueueLimits::MESSAGES_MAX);
        let failed = |failure: &Failure| OpenError::Io {
            path: path.to_owned(),
            reason: failure.to_string(),
        };
        let database = file::open(path, &opener)?;
        file::refuse_newer(path, &database)?;
        let unclean_stops = file::begin(&database, true).map_err(|failure| failed(&failure))?;
        let index = file::load(&database, unclean_stops).map_err(|failure| failed(&failure))?;
        let state = Arc::new(State::default());
        *state
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(database);
        let inbox = Arc::new(Inbox::default());
        let mut writer = Writer {
            inbox: Arc::clone(&inbox),
            state: Arc::clone(&state),
            index,
            opener,
            limits,
            opened_at: clock.wall(),
            clock: Arc::clone(&clock),
            soft_commits: 0,
            soft_marks: Vec::new(),
        };
        writer.end_orphans().map_err(|failure| failed(&failure))?;
        let thread = thread::Builder::new()
            .name("sessions".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| OpenError::Io {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        let places = Arc::new(Semaphore::new(COMMANDS_MAX));
        let thread = std::sync::Mutex::new(Some(thread));
        Ok(Self {
            inner: Arc::new(Inner {
                inbox,
                state,
                places,
                clock,
                thread,
            }),
        })
    }

    /// Starts or resumes the session of a device. Durable before it returns, and so before CONNACK:
    /// a session that went for this one cannot come back after a crash.
    ///
    /// A session whose time is over is erased here, whether the reaper saw it or not
    /// [MQTT5-4.1.0-2].
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn start(
        &self,
        identity: &Identity,
        request: StartRequest,
    ) -> Result<Started, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.start(&identity, &request))
            .await
    }

    /// Adds or replaces subscriptions; durable before it returns, and so before SUBACK. One outcome
    /// for each, in order.
    ///
    /// # Errors
    /// Any [`SessionsError`].
    pub async fn subscribe(
        &self,
        identity: &Identity,
        epoch: SessionEpoch,
        subscriptions: Vec<Subscription>,
    ) -> Result<Vec<Result<SubscribeOutcome, QuotaExceeded>>, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.subscribe(&identity, epoch, subscriptions))
            .await?
    }

    /// Removes subscriptions; durable before it returns, and so before UNSUBACK. Tells for each
    /// filter whether it was there.
    ///
    /// # Errors
    /// Any [`SessionsError`].
    pub async fn unsubscribe(
        &self,
        identity: &Identity,
        epoch: SessionEpoch,
        filters: Vec<ByteString>,
    ) -> Result<Vec<bool>, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.unsubscribe(&identity, epoch, &filters))
            .await?
    }

    /// The retained messages of a device whose topics match `filter`. Their `retain` is set.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn retained(
        &self,
        identity: &Identity,
        filter: &str,
    ) -> Result<Vec<Message>, SessionsError> {
        let (identity, filter) = (identity.clone(), filter.to_owned());
        let now = self.inner.clock.wall();
        self.read(move |state| state.read_retained(&identity, &filter, now))
            .await
    }

    /// Reads a part of the queue: messages behind place `after` (0: from the beginning), in order,
    /// at most so many and so many bytes, but at least one if there is one. Those that are over and
    /// were never sent are left out and removed.
    ///
    /// # Errors
    /// Any [`SessionsError`].
    pub async fn read_queue(
        &self,
        identity: &Identity,
        epoch: SessionEpoch,
        after: u64,
        messages_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Queued>, SessionsError> {
        let now = self.inner.clock.wall();
        let wanted = Wanted {
            epoch,
            after,
            messages_max,
            bytes_max,
            now,
        };
        let owned = identity.clone();
        let part = self
            .read(move |state| state.read_queue(&owned, wanted))
            .await?;
        for seq in part.expired {
            self.settle(identity, epoch, seq, Settled::Expired);
        }
        for seq in part.damaged {
            tracing::error!(%identity, seq, "damaged message in queue.v1 is dropped");
            self.settle(identity, epoch, seq, Settled::Refused);
        }
        Ok(part.messages)
    }

    /// Asks for the live feed to begin behind place `last_seq`, which it does if there is nothing
    /// behind it in the queue; that and the beginning of the feed are one step.
    ///
    /// # Errors
    /// Any [`SessionsError`]; after `Unavailable` ask again.
    pub async fn resume_feed(
        &self,
        identity: &Identity,
        epoch: SessionEpoch,
        last_seq: u64,
    ) -> Result<Resume, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.resume_feed(&identity, epoch, last_seq))
            .await?
    }

    /// A queued message was sent. Nobody waits for this; if it is lost in a crash, the message is
    /// sent again without DUP.
    pub fn mark_sent(&self, identity: &Identity, epoch: SessionEpoch, seq: u64) {
        let identity = identity.clone();
        self.inner.inbox.mark(Mark {
            identity,
            epoch,
            seq,
            settled: None,
        });
    }

    /// A queued message is done with. Nobody waits for this; if it is lost in a crash, the message
    /// is sent again, with DUP if it was [`FlowState::Sent`].
    pub fn settle(&self, identity: &Identity, epoch: SessionEpoch, seq: u64, how: Settled) {
        let identity = identity.clone();
        self.inner.inbox.mark(Mark {
            identity,
            epoch,
            seq,
            settled: Some(how),
        });
    }

    /// PUBREC was received; durable before it returns, and so before PUBREL: after a crash of ours
    /// the message is not sent a second time [MQTT-4.3.3-1].
    ///
    /// # Errors
    /// Any [`SessionsError`].
    pub async fn mark_received(
        &self,
        identity: &Identity,
        epoch: SessionEpoch,
        seq: u64,
    ) -> Result<(), SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.mark_received(&identity, epoch, seq))
            .await?
    }

    /// The connection ended. A session that ends with it is erased: true, and the engine has to
    /// forget its receipts. Of any other the time begins to run. False too when the session is a
    /// newer one by now.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`]: it is done when the store can write again (then without a
    /// word to the caller; see [`Sessions::take_erased`]). [`SessionsError::Closed`].
    pub async fn stop(
        &self,
        identity: &Identity,
        epoch: SessionEpoch,
        expiry: SessionExpiry,
        now: Timestamp,
    ) -> Result<bool, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.stop(&identity, epoch, expiry, now))
            .await
    }

    /// Removes the session of a device with its queue; durable before it returns. The feed of a
    /// connection that holds it ends. Returns the session that went.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn erase(&self, identity: &Identity) -> Result<Option<SessionEpoch>, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.erase(&identity)).await
    }

    /// Like [`Sessions::erase`], and the retained messages of the device go too.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn erase_device(
        &self,
        identity: &Identity,
    ) -> Result<Option<SessionEpoch>, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| {
            batch.erase_retained(&identity)?;
            batch.erase(&identity)
        })
        .await
    }

    /// Removes everything of a realm; durable before it returns. Returns the sessions that went.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn erase_realm(
        &self,
        realm: &RealmName,
    ) -> Result<Vec<(Identity, SessionEpoch)>, SessionsError> {
        let realm = realm.clone();
        self.run(move |batch| batch.erase_realm(&realm)).await
    }

    /// Hands a message to the session of a device: to its live connection, into its queue, or not.
    /// QoS 1 and 2 are durable before it returns. A message with `retain` is kept as the topic's
    /// retained one (durable too) even if the answer is that there is no session or subscription.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn enqueue(
        &self,
        identity: &Identity,
        message: Message,
    ) -> Result<Enqueued, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.enqueue(&identity, message))
            .await
    }

    /// What [`Sessions::enqueue`] would answer, without doing anything.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn probe(
        &self,
        identity: &Identity,
        message: Message,
    ) -> Result<Enqueued, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| batch.probe(&identity, &message))
            .await
    }

    /// Removes sessions and messages that are over at `now`, up to a bound; to be called now and
    /// then, and again at once when there was `more`.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn reap(&self, now: Timestamp) -> Result<Reaped, SessionsError> {
        self.run(move |batch| batch.reap(now)).await
    }

    /// Sessions that were erased without a call that says so: they ended with their connection, and
    /// that ended with the process or while the store could not write. The engine has to forget
    /// their receipts. Each is returned once.
    #[must_use]
    pub fn take_erased(&self) -> Vec<(Identity, SessionEpoch)> {
        let mut erased = self
            .inner
            .state
            .erased
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *erased)
    }

    /// What operators see of a session; `None` when there is none.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], [`SessionsError::Closed`].
    pub async fn summary(
        &self,
        identity: &Identity,
    ) -> Result<Option<SessionSummary>, SessionsError> {
        let identity = identity.clone();
        self.run(move |batch| Ok(batch.summary(&identity))).await
    }

    /// Whether the store can be written to.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`] says why not. It is tried again without being asked.
    pub fn health(&self) -> Result<(), SessionsError> {
        self.inner
            .state
            .trouble()
            .map_or(Ok(()), |why| Err(SessionsError::Unavailable(why)))
    }

    /// Copies the store, as it is at one moment, into the new file `path`, while it is in use.
    ///
    /// # Errors
    /// [`SessionsError::Unavailable`], of either file.
    pub async fn backup(&self, path: &Path) -> Result<(), SessionsError> {
        let path = PathBuf::from(path);
        self.read(move |state| state.backup(&path)).await
    }

    /// Writes what is left to be written, ends the thread and closes the file in order. Calls
    /// after this fail with [`SessionsError::Closed`].
    pub async fn close(&self) {
        self.inner.inbox.close();
        self.inner.places.close();
        let thread = self
            .inner
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // it panics nowhere: what could is caught in it
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    /// Has the writer thread apply `change`, and waits until it is committed.
    async fn run<T: Send + 'static>(
        &self,
        change: impl for<'b, 't> FnOnce(&'b mut Batch<'t>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, SessionsError> {
        let places = Arc::clone(&self.inner.places);
        let place = places
            .acquire_owned()
            .await
            .map_err(|_| SessionsError::Closed)?;
        let (sender, result) = oneshot::channel();
        let action = Box::new(move |batch: &mut Batch<'_>| {
            match change(batch) {
                // a caller that is gone is owed nothing
                Ok(value) => Ok(Box::new(move || drop(sender.send(value))) as Answer),
                Err(failure) => Err((failure, Box::new(move || drop(sender)) as Answer)),
            }
        });
        if !self.inner.inbox.push(Command {
            action,
            _place: place,
        }) {
            return Err(SessionsError::Closed);
        }
        result.await.map_err(|_| {
            if self.inner.places.is_closed() {
                return SessionsError::Closed;
            }
            let why = self.inner.state.trouble();
            SessionsError::Unavailable(why.unwrap_or_else(|| "the write failed".into()))
        })
    }

    /// Reads the committed state on a blocking thread.
    async fn read<T: Send + 'static>(
        &self,
        reader: impl FnOnce(&State) -> Result<T, SessionsError> + Send + 'static,
    ) -> Result<T, SessionsError> {
        if self.inner.places.is_closed() {
            return Err(SessionsError::Closed);
        }
        let state = Arc::clone(&self.inner.state);
        tokio::task::spawn_blocking(move || reader(&state))
            .await
            .unwrap_or_else(|_| Err(SessionsError::Unavailable("reading it panicked".into())))
    }
}
