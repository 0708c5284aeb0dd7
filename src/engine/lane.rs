//! One lane: the messages of some of the devices, judged strictly in order.
//!
//! A device belongs to one lane, by the hash of its identity, and everything that concerns it goes
//! through it in the order of its arrival: messages, presence, receipts, writes of the API. The
//! lane has two stages with a queue before each: this one *judges* (resolve, decode, validate),
//! [`batch`](super::batch) *commits*. While a commit is on its way the next messages are judged, so
//! that a batch is what came in meanwhile; there are no timers. An introspection counts from the
//! message after it on, committed or not; if its commit fails the device's connection ends.

use std::{net::IpAddr, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{StreamExt as _, stream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    batch::{End, Judged},
    cache::Devices,
    errors::{DeviceError, Refusal},
    health::{Backoff, Health},
    interfaces::Interfaces,
    judge::{self, About, Accepted, Target, Verdict},
    queue::{Queue, TakeLimits, Weight},
};
use crate::{
    clock::Timestamp,
    identity::Identity,
    interface::Introspection,
    mqtt::{
        Ack, AfterRefusal, Delivery, InboundMessage, Outcome, Permit, SessionEpoch, packet::QoS,
    },
    store::{Committed, DeviceRow, Effect, Receipt, Store, StoreError, Unit},
};

/// What arrives at a lane.
#[derive(Debug)]
pub(super) enum Work {
    /// A message, with its room in the intake.
    Message {
        room: Permit,
        message: InboundMessage,
    },
    /// PUBREL: the receipt goes.
    Settle {
        identity: Identity,
        receipt: Receipt,
        ack: Ack,
    },
    /// A session was erased.
    Forget {
        identity: Identity,
        epoch: SessionEpoch,
    },
    /// A device is connected; `done` is told once that is durable.
    Connected {
        identity: Identity,
        ip: Option<IpAddr>,
        at: Timestamp,
        done: oneshot::Sender<()>,
    },
    /// It is not any more.
    Disconnected {
        identity: Identity,
        reason: &'static str,
        at: Timestamp,
        done: oneshot::Sender<()>,
    },
    /// A write of the API.
    Run {
        unit: Box<Unit>,
        answer: oneshot::Sender<Result<Committed, StoreError>>,
    },
    /// The device may have changed outside the lane.
    Refresh { identity: Identity },
    /// Told once everything before it is committed and released.
    Barrier { done: oneshot::Sender<()> },
}

impl Weight for Work {
    fn bytes(&self) -> usize {
        match self {
            Self::Message { message, .. } => message.payload.len() + message.topic.len(),
            _ => 64,
        }
    }
}

/// What is judged at once before other tasks get their turn.
const TAKE: TakeLimits = TakeLimits {
    items: 256,
    bytes: 4 * 1024 * 1024,
};

/// Devices that are read from the store at the same time.
const LOADS_AT_ONCE: usize = 16;

/// The judging stage.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) store: Arc<dyn Store>,
    pub(super) interfaces: Arc<Interfaces>,
    pub(super) health: Arc<Health>,
    pub(super) arrivals: Arc<Queue<Work>>,
    pub(super) judged: Arc<Queue<Judged>>,
    pub(super) devices: Devices,
    /// A clean kick that may turn out to be none.
    pub(super) doubt: Option<Doubt>,
    /// Cancelled when the engine is given up: nothing is waited for any more.
    pub(super) abandoned: CancellationToken,
}

/// A refused message with a clean kick that the device sent before: if it was stored then (by the
/// rules of that time) it is answered again, and nobody is kicked. Only the store knows.
#[derive(Debug)]
pub(super) struct Doubt {
    identity: Identity,
    session: SessionEpoch,
    committed: oneshot::Receiver<Committed>,
}

impl Lane {
    /// Judges until the queue is closed and empty, or the engine is given up.
    pub(super) async fn run(mut self) {
        let abandoned = self.abandoned.clone();
        tokio::select! {
            () = self.work() => {}
            () = abandoned.cancelled() => {}
        }
        self.judged.close();
    }

    async fn work(&mut self) {
        while let Some(batch) = self.arrivals.take(TAKE).await {
            let mut absent = self.load_all(self.missing(&batch)).await;
            for work in batch {
                // read again behind a connect in the same batch
                if let Some(identity) = self.speaker(&work)
                    && !absent.contains(&identity)
                {
                    absent.extend(self.load_all(vec![identity]).await);
                }
                self.handle(work);
                self.settle_doubt().await;
            }
            self.devices.trim();
            // a long line must not keep a worker thread to itself
            tokio::task::yield_now().await;
        }
    }

    /// Waits for the commit of a repeated message that was refused: what comes behind it is judged
    /// by what became of it. Rare: it was sent before the connection was lost, and what it was
    /// judged by has changed since.
    async fn settle_doubt(&mut self) {
        if let Some(doubt) = self.doubt.take()
            && doubt.committed.await == Ok(Committed::Duplicate)
        {
            self.unpoison(&doubt.identity, Some(doubt.session));
        }
    }

    /// The sender of a message, if the lane has to read it first.
    fn speaker(&self, work: &Work) -> Option<Identity> {
        match work {
            Work::Message { message, .. } if self.devices.needs_load(&message.identity) => {
                Some(message.identity.clone())
            }
            _ => None,
        }
    }

    /// The devices of a batch that have to be read before it is judged.
    fn missing(&self, batch: &[Work]) -> Vec<Identity> {
        let mut missing: Vec<_> = batch.iter().filter_map(|work| self.speaker(work)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Reads devices from the store, and waits while it is not available. Returns those that are
    /// not there, or whose rows cannot be read.
    async fn load_all(&mut self, missing: Vec<Identity>) -> Vec<Identity> {
        let this = &*self;
        let rows: Vec<_> = stream::iter(missing)
            .map(|identity| async move {
                let row = this.load(&identity).await;
                (identity, row)
            })
            .buffer_unordered(LOADS_AT_ONCE)
            .collect()
            .await;
        let mut absent = Vec::new();
        for (identity, row) in rows {
            match row {
                Some(row) => self.devices.loaded(&identity, row),
                None => absent.push(identity),
            }
        }
        absent
    }

    async fn load(&self, identity: &Identity) -> Option<DeviceRow> {
        let mut backoff = Backoff::new();
        loop {
            match self.store.device(identity).await {
                Ok(row) => return row,
                Err(error @ StoreError::Unavailable(_)) => {
                    self.health.failed("reading a device", &error);
                    refuse_runs(&self.arrivals);
                    backoff.wait().await;
                }
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        realm = %identity.realm,
                        device_id = %identity.device,
                        "a device cannot be read; its messages are not acknowledged"
                    );
                    return None;
                }
            }
        }
    }

    fn handle(&mut self, work: Work) {
        let judged = match work {
            Work::Message { room, message } => self.message(room, message),
            Work::Settle {
                identity,
                receipt,
                ack,
            } => Judged::new(
                unit(identity, vec![Effect::RemoveReceipt(receipt)]),
                End::Settled(ack),
            ),
            Work::Forget { identity, epoch } => {
                self.unpoison(&identity, Some(epoch));
                let effect = Effect::ForgetReceipts { epoch: epoch.0 };
                Judged::new(unit(identity, vec![effect]), End::Nothing)
            }
            Work::Connected {
                identity,
                ip,
                at,
                done,
            } => {
                self.unpoison(&identity, None);
                self.devices.refresh(&identity);
                let effect = Effect::Connected { at, ip };
                Judged::new(unit(identity, vec![effect]), End::Told(done))
            }
            Work::Disconnected {
                identity,
                reason,
                at,
                done,
            } => {
                self.unpoison(&identity, None);
                let effect = Effect::Disconnected {
                    at,
                    reason: reason.to_owned(),
                };
                Judged::new(unit(identity, vec![effect]), End::Told(done))
            }
            Work::Run { unit, answer } => self.run_unit(*unit, answer),
            Work::Refresh { identity } => {
                self.devices.refresh(&identity);
                return;
            }
            Work::Barrier { done } => Judged::without_unit(End::Told(done)),
        };
        // closed: the engine was given up, and whoever waits is told by the drop
        drop(self.judged.push(judged));
    }

    /// The session's end, or a new connection, lifts the ban.
    fn unpoison(&mut self, identity: &Identity, epoch: Option<SessionEpoch>) {
        if let Some(device) = self.devices.get_mut(identity)
            && (epoch.is_none() || device.poisoned == epoch)
        {
            device.poisoned = None;
        }
    }

    /// A write of the API: stamped in line with the device's own messages.
    fn run_unit(
        &mut self,
        mut unit: Unit,
        answer: oneshot::Sender<Result<Committed, StoreError>>,
    ) -> Judged {
        for effect in &mut unit.effects {
            if let Effect::AppendSample { received_at, .. } = effect {
                *received_at = self.devices.entry(&unit.identity).stamp(*received_at);
            }
        }
        Judged::new(unit, End::Answer(answer))
    }

    /// Judges a message and makes the unit that stores it, or the row of its error.
    fn message(&mut self, room: Permit, message: InboundMessage) -> Judged {
        let bytes = message.payload.len() + message.topic.len();
        let Some((at, introspection)) = self.admit(&message) else {
            return Judged::without_unit(End::Dropped {
                ack: message.ack,
                room,
            })
            .weighing(bytes);
        };
        let target = Target {
            identity: &message.identity,
            topic: &message.topic,
            payload: &message.payload,
            at,
            denied: message.denied,
        };
        // one snapshot for the whole message
        let installed = self.interfaces.of_realm(&message.identity.realm);
        let Verdict { about, result } = guarded(&message.identity, || {
            judge::judge(&target, &introspection, &installed)
        });
        let receipt = receipt_of(&message);
        let mut doubt = None;
        let (effects, counted, outcome, error, pin) = match result {
            Ok(Accepted { effects, declared }) => {
                let pin = declared.map(|new| self.devices.declare(&message.identity, new));
                (effects, true, Outcome::Stored, None, pin)
            }
            Err(refusal) => {
                let error = refusal.error;
                let then = self.consequence(&message, error);
                let row = refusal.into_row(at, about.interface, about.path, &message.payload);
                let mut effects = vec![Effect::RecordError(row)];
                if then == AfterRefusal::CleanKick {
                    effects.push(Effect::PendingEmptyCache(true));
                    doubt = self.doubt(&message);
                }
                let outcome = Outcome::Refused {
                    reason: error.reason(),
                    then,
                };
                (effects, error.counts(), outcome, Some(error), None)
            }
        };
        let counted = counted.then_some((about.key, about.bytes));
        let unit = Unit {
            identity: message.identity,
            receipt,
            effects,
            counted,
        };
        let end = End::Message {
            ack: message.ack,
            room,
            outcome,
            error,
        };
        Judged::new(unit, end)
            .pinned(pin)
            .doubted(doubt)
            .weighing(bytes)
    }

    /// Whom to tell how the unit of a message that is sent again was committed.
    fn doubt(&mut self, message: &InboundMessage) -> Option<oneshot::Sender<Committed>> {
        let repeated = |delivery: &Delivery| delivery.dup && delivery.qos == QoS::ExactlyOnce;
        message.delivery.as_ref().filter(|it| repeated(it))?;
        let (sender, committed) = oneshot::channel();
        self.doubt = Some(Doubt {
            identity: message.identity.clone(),
            session: message.session,
            committed,
        });
        Some(sender)
    }

    /// The stamp of a message and the introspection that it is judged by. `None` when it is not
    /// handled: its session was kicked, or its device is deleted or cannot be read.
    fn admit(&mut self, message: &InboundMessage) -> Option<(Timestamp, Arc<Introspection>)> {
        let device = self.devices.get_mut(&message.identity)?;
        let introspection = Arc::clone(device.introspection()?);
        // the will of a kicked session is none of what was sent behind the refused message
        if device.poisoned == Some(message.session) && message.ack.is_owed() {
            return None;
        }
        Some((device.stamp(message.received_at), introspection))
    }

    /// What a refusal means for the session. After a clean kick the rest of it is not handled.
    ///
    /// The hold-off of devices that are kicked again and again, and the setting that only discards
    /// bad messages, belong here.
    fn consequence(&mut self, message: &InboundMessage, error: DeviceError) -> AfterRefusal {
        // where nobody waits for the answer (a will) nobody can be kicked
        if !message.ack.is_owed() {
            return AfterRefusal::Continue;
        }
        let then = error.then();
        if then == AfterRefusal::CleanKick {
            self.devices.entry(&message.identity).poisoned = Some(message.session);
        }
        then
    }
}

/// Callers of the API are told at once that the store is down, and nothing is written later.
pub(super) fn refuse_runs(arrivals: &Queue<Work>) {
    for work in arrivals.extract(|work| matches!(work, Work::Run { .. })) {
        if let Work::Run { answer, .. } = work {
            drop(answer.send(Err(super::unavailable())));
        }
    }
}

/// A unit that counts as no message.
const fn unit(identity: Identity, effects: Vec<Effect>) -> Unit {
    Unit {
        identity,
        receipt: None,
        effects,
        counted: None,
    }
}

fn receipt_of(message: &InboundMessage) -> Option<Receipt> {
    let delivery = message
        .delivery
        .filter(|delivery| delivery.qos == QoS::ExactlyOnce)?;
    Some(Receipt {
        epoch: message.session.0,
        packet_id: delivery.packet_id.get(),
    })
}

/// Runs a judgement; should it panic, which is a bug, that message alone is refused.
fn guarded<'m>(identity: &Identity, judge: impl FnOnce() -> Verdict<'m>) -> Verdict<'m> {
    std::panic::catch_unwind(AssertUnwindSafe(judge)).unwrap_or_else(|_| {
        tracing::error!(
            realm = %identity.realm,
            device_id = %identity.device,
            "judging a message panicked; the message is refused"
        );
        let refusal = Refusal::because(
            DeviceError::InternalError,
            "the message could not be judged",
        );
        Verdict {
            about: About::default(),
            result: Err(refusal),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_judging_refuses_that_message() {
        let identity = "acme/Zm9vYmFyYmF6cXV4MTIzNA".parse().unwrap();
        let Verdict { result, .. } = guarded(&identity, || panic!("on purpose"));
        let refusal = result.unwrap_err();
        assert_eq!(refusal.error, DeviceError::InternalError);
        assert_eq!(refusal.error.then(), AfterRefusal::Continue);
    }
}
