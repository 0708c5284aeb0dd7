//! The committing stage of a lane: one transaction per batch, then the acknowledgements, in order.
//!
//! A batch is what was judged while the previous commit was on its way. Nothing is released before
//! the store has answered; while it is not available the batch is tried again for as long as it
//! takes, and nothing is lost. Only writes of the API do not wait: their callers are told.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    cache::Pin,
    counters::EngineCounters,
    errors::{DeviceError, Refusal},
    health::{Backoff, Health},
    lane::{self, Work},
    queue::{Queue, TakeLimits, Weight},
};
use crate::{
    clock::SharedClock,
    mqtt::{Ack, AfterRefusal, Outcome, Permit},
    store::{Committed, Effect, Store, StoreError, Unit},
};

/// What was judged, in its place in the line.
#[derive(Debug)]
pub(super) struct Judged {
    unit: Option<Unit>,
    end: End,
    bytes: usize,
    pin: Option<Pin>,
    doubt: Option<oneshot::Sender<Committed>>,
}

/// Who is told once it is committed.
#[derive(Debug)]
pub(super) enum End {
    /// A message: its ack is released with this outcome.
    Message {
        ack: Ack,
        room: Permit,
        outcome: Outcome,
        error: Option<DeviceError>,
    },
    /// A message that is not handled: its ack is dropped, in its place.
    Dropped { ack: Ack, room: Permit },
    /// A PUBREL.
    Settled(Ack),
    /// Presence, or a barrier.
    Told(oneshot::Sender<()>),
    /// A write of the API.
    Answer(oneshot::Sender<Result<Committed, StoreError>>),
    /// Nobody.
    Nothing,
}

impl Judged {
    pub(super) const fn new(unit: Unit, end: End) -> Self {
        Self {
            unit: Some(unit),
            end,
            bytes: 0,
            pin: None,
            doubt: None,
        }
    }

    pub(super) const fn without_unit(end: End) -> Self {
        Self {
            unit: None,
            end,
            bytes: 0,
            pin: None,
            doubt: None,
        }
    }

    pub(super) fn pinned(self, pin: Option<Pin>) -> Self {
        Self { pin, ..self }
    }

    /// The lane wants to know how it was committed before it goes on.
    pub(super) fn doubted(self, doubt: Option<oneshot::Sender<Committed>>) -> Self {
        Self { doubt, ..self }
    }

    pub(super) fn weighing(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    const fn is_write_of_the_api(&self) -> bool {
        matches!(self.end, End::Answer(_))
    }

    /// Takes a write of the API back: its caller has gone, or is told that the store is down.
    fn withdraw(&mut self) {
        if !self.is_write_of_the_api() {
            return;
        }
        if let End::Answer(answer) = std::mem::replace(&mut self.end, End::Nothing) {
            drop(answer.send(Err(super::unavailable())));
            self.unit = None;
        }
    }
}

impl Weight for Judged {
    fn bytes(&self) -> usize {
        self.bytes + 64
    }
}

/// The committing stage.
#[derive(Debug)]
pub(super) struct Committer {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: SharedClock,
    pub(super) counters: Arc<EngineCounters>,
    pub(super) health: Arc<Health>,
    pub(super) arrivals: Arc<Queue<Work>>,
    pub(super) judged: Arc<Queue<Judged>>,
    pub(super) limits: TakeLimits,
    /// Cancelled when the engine is given up.
    pub(super) abandoned: CancellationToken,
}

impl Committer {
    /// Commits until the queue is closed and empty, or the engine is given up; then what is left
    /// is dropped unacknowledged.
    pub(super) async fn run(self) {
        let abandoned = self.abandoned.clone();
        tokio::select! {
            () = self.work() => {}
            () = abandoned.cancelled() => {
                self.judged.close();
                let left = self.judged.extract(|_| true);
                tracing::warn!(messages = left.len(), "gave up what was not committed");
            }
        }
    }

    async fn work(&self) {
        while let Some(mut batch) = self.judged.take(self.limits).await {
            for judged in &mut batch {
                if matches!(&judged.end, End::Answer(answer) if answer.is_closed()) {
                    judged.withdraw();
                }
            }
            let committed = self.commit(&mut batch).await;
            self.release(batch, committed).await;
        }
    }

    /// Commits all units of a batch, however long it takes; answers for each unit that is (still)
    /// in it.
    async fn commit(&self, batch: &mut [Judged]) -> Vec<Committed> {
        let mut backoff = Backoff::new();
        loop {
            let units: Vec<Unit> = batch
                .iter()
                .filter_map(|judged| judged.unit.clone())
                .collect();
            if units.is_empty() {
                return Vec::new();
            }
            match self.attempt(units).await {
                Ok(committed) => return committed,
                Err(error @ StoreError::Unavailable(_)) => {
                    self.health.failed("commit", &error);
                    batch.iter_mut().for_each(Judged::withdraw);
                    for mut judged in self.judged.extract(Judged::is_write_of_the_api) {
                        judged.withdraw();
                    }
                    lane::refuse_runs(&self.arrivals);
                    backoff.wait().await;
                }
                Err(error) => {
                    self.complain("a batch", &error);
                    let units = batch
                        .iter()
                        .filter_map(|judged| judged.unit.clone())
                        .collect();
                    return self.commit_one_by_one(units).await;
                }
            }
        }
    }

    /// After a failure that trying again does not help: whatever the store takes by itself is
    /// stored, and only the culprit is refused.
    async fn commit_one_by_one(&self, units: Vec<Unit>) -> Vec<Committed> {
        let mut committed = Vec::with_capacity(units.len());
        for unit in &units {
            committed.push(self.commit_alone(unit).await);
        }
        committed
    }

    /// Commits one unit, however long it takes.
    async fn commit_alone(&self, unit: &Unit) -> Committed {
        let mut backoff = Backoff::new();
        loop {
            match self.attempt(vec![unit.clone()]).await {
                Ok(committed) => return committed.first().copied().unwrap_or(Committed::Refused),
                Err(error @ StoreError::Unavailable(_)) => {
                    self.health.failed("commit", &error);
                    backoff.wait().await;
                }
                Err(error) => {
                    self.complain("a unit", &error);
                    return Committed::Refused;
                }
            }
        }
    }

    async fn attempt(&self, units: Vec<Unit>) -> Result<Vec<Committed>, StoreError> {
        let count = units.len();
        let began = self.clock.now();
        let mut commit = self.store.commit(units);
        let in_time = tokio::time::timeout(Health::SLOW_COMMIT, &mut commit).await;
        let committed = if let Ok(committed) = in_time {
            committed?
        } else {
            self.health.slow();
            commit.await?
        };
        self.counters
            .commit_seconds
            .observe(self.clock.now().duration_since(began));
        self.counters.batches.add(1);
        self.counters.units.add(count as u64);
        self.health.succeeded();
        debug_assert_eq!(committed.len(), count, "the store answers for each unit");
        Ok(committed)
    }

    fn complain(&self, what: &'static str, error: &StoreError) {
        if self.health.line_is_due() {
            let error = error as &dyn std::error::Error;
            tracing::error!(error, what, "the store failed; trying message by message");
        }
    }

    /// Tells everyone, in order.
    async fn release(&self, batch: Vec<Judged>, committed: Vec<Committed>) {
        let mut committed = committed.into_iter();
        for judged in batch {
            let Judged {
                unit,
                end,
                pin,
                doubt,
                ..
            } = judged;
            let how = match &unit {
                None => Committed::Done,
                // the store answered for fewer units than it was given: not stored, for all we know
                Some(_) => committed.next().unwrap_or(Committed::NoDevice),
            };
            let declared = pin.is_some();
            drop(pin);
            if let Some(unit) = &unit
                && match how {
                    Committed::Done => false,
                    Committed::Duplicate => declared,
                    Committed::NoDevice | Committed::Refused => true,
                }
            {
                // what the lane believes of the device may be wrong now
                let identity = unit.identity.clone();
                drop(self.arrivals.push(Work::Refresh { identity }));
            }
            if let Some(doubt) = doubt {
                // an error: the lane was given up
                let _ = doubt.send(how);
            }
            self.tell(unit, end, how).await;
        }
    }

    async fn tell(&self, unit: Option<Unit>, end: End, how: Committed) {
        match end {
            End::Message {
                ack,
                room,
                outcome,
                error,
            } => {
                let realm = unit.as_ref().map(|unit| unit.identity.realm.clone());
                let (outcome, error) = match (how, unit) {
                    (Committed::Done, _) => (Some(outcome), error),
                    (Committed::Duplicate, _) => {
                        self.counters.messages_repeated.add(1);
                        ack.release(Outcome::Stored);
                        return drop(room);
                    }
                    (Committed::Refused, Some(unit)) => self.refuse_for_good(unit).await,
                    (Committed::NoDevice | Committed::Refused, _) => (None, None),
                };
                if let (Some(realm), Some(error)) = (realm, error) {
                    self.counters.count_error(&realm, error);
                }
                self.let_go(ack, outcome);
                drop(room);
            }
            End::Dropped { ack, room } => {
                self.let_go(ack, None);
                drop(room);
            }
            End::Settled(ack) if matches!(how, Committed::Done | Committed::Duplicate) => {
                ack.release(Outcome::Stored);
            }
            End::Settled(ack) => drop(ack),
            End::Told(done) => drop(done.send(())),
            End::Answer(answer) => drop(answer.send(Ok(how))),
            End::Nothing => {}
        }
    }

    fn let_go(&self, ack: Ack, outcome: Option<Outcome>) {
        let counter = match outcome {
            Some(Outcome::Stored) => &self.counters.messages_stored,
            Some(Outcome::Refused { .. }) => &self.counters.messages_refused,
            None => &self.counters.messages_dropped,
        };
        counter.add(1);
        if let Some(outcome) = outcome {
            ack.release(outcome);
        }
    }

    /// The store takes everything but this unit: a bug. The message would come back for ever, so
    /// it is refused once its error row is stored; if not even that can be, it is not acknowledged.
    async fn refuse_for_good(&self, unit: Unit) -> (Option<Outcome>, Option<DeviceError>) {
        let error = DeviceError::InternalError;
        tracing::error!(
            realm = %unit.identity.realm,
            device_id = %unit.identity.device,
            "the store refused a message; it is not stored"
        );
        let refusal = Refusal::because(error, "the store refused the message");
        let row = refusal.into_row(self.clock.wall(), None, None, b"");
        let unit = Unit {
            effects: vec![Effect::RecordError(row)],
            counted: None,
            ..unit
        };
        match self.commit_alone(&unit).await {
            Committed::Done | Committed::Duplicate => {
                let then = AfterRefusal::Continue;
                (
                    Some(Outcome::Refused {
                        reason: error.reason(),
                        then,
                    }),
                    Some(error),
                )
            }
            Committed::NoDevice | Committed::Refused => (None, None),
        }
    }
}
