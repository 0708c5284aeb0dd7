//! The loop of a connection: feed what was read, perform what the session wants, write once, wait.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Poll, Waker},
};

use bytestring::ByteString;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesOrdered};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    accept::Accepted,
    acks::AckInbox,
    feed::{Feed, READ_BYTES_MAX, READ_MESSAGES_MAX},
    finish::Stay,
    timers::Timers,
    wire::{OUTPUT_BYTES_MAX, Wire},
};
use crate::{
    interface::Ownership,
    mqtt::{
        Ack, DisconnectReason, InboundMessage, Permit,
        broker::Shared,
        codec::EncodeError,
        packet::Packet,
        session::{Closing, Context, Effect, Output, Session, Submission},
        sessions::{
            Delivery, Message, Queued, QuotaExceeded, Resume, SessionsError, Settled,
            SubscribeOutcome, Subscription,
        },
        takeover::{Claim, Order},
    },
};

/// Runs a connection to its end. A panic in it ends this connection and nothing else.
pub(super) async fn run<S: AsyncRead + AsyncWrite + Send + Unpin>(
    wire: &mut Wire<S>,
    accepted: Accepted,
    shared: &Shared,
) -> (Closing, Claim) {
    let Accepted {
        stay,
        session,
        started,
        mut claim,
        keep_alive,
        certificate_ends_at,
    } = accepted;
    let expiry = session.expiry();
    let connection = Connection {
        shared,
        stay: &stay,
        ownership: Box::new(|interface, major| {
            shared
                .registry
                .ownership(&stay.identity.realm, interface, major)
        }),
        wire,
        session,
        inbox: Arc::default(),
        reservation: None,
        permit: None,
        tasks: FuturesOrdered::new(),
        feed: Feed::new(started.deliveries, started.session_present),
        timers: Timers::new(keep_alive, certificate_ends_at, shared.clock.now()),
        claim: &mut claim,
        is_draining: false,
        closing: None,
    };
    let closing = AssertUnwindSafe(connection.run())
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            tracing::error!(
                realm = %stay.identity.realm,
                device_id = %stay.identity.device,
                "panic in a connection: this is a bug; the connection ends"
            );
            Closing {
                reason: DisconnectReason::InternalError,
                erase: false,
                expiry,
                will: None,
            }
        });
    (closing, claim)
}

/// Asks the registry who owns an interface of the device's realm.
type Lookup<'a> = dyn Fn(&str, u32) -> Option<Ownership> + Send + Sync + 'a;

struct Connection<'a, S> {
    shared: &'a Shared,
    stay: &'a Stay,
    ownership: Box<Lookup<'a>>,
    wire: &'a mut Wire<S>,
    session: Session,
    inbox: Arc<AckInbox>,
    /// Waits for room in the intake.
    reservation: Option<BoxFuture<'a, Permit>>,
    /// Room for the message that the session submits next.
    permit: Option<Permit>,
    /// What is being read from and written to disk. Few: one for subscriptions, one for the queue,
    /// and a PUBREC each for at most the outbound window.
    tasks: FuturesOrdered<BoxFuture<'a, Done>>,
    feed: Feed,
    timers: Timers,
    claim: &'a mut Claim,
    is_draining: bool,
    closing: Option<Closing>,
}

/// What a task has come to.
enum Done {
    Subscribed(Result<Vec<Result<SubscribeOutcome, QuotaExceeded>>, SessionsError>),
    Unsubscribed(Result<Vec<bool>, SessionsError>),
    Retained(Subscription, Result<Vec<Message>, SessionsError>),
    Received(u64, Result<(), SessionsError>),
    Queue(Result<Vec<Queued>, SessionsError>),
    Feed(Result<Resume, SessionsError>),
}

/// What a connection waits for.
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack of the loop"
)]
enum Event {
    Order(Order),
    Drain,
    Acks,
    Permit(Permit),
    Done(Done),
    Delivery(Option<Delivery>),
    Read(std::io::Result<bool>),
    Timer,
}

impl<'a, S: AsyncRead + AsyncWrite + Send + Unpin> Connection<'a, S> {
    async fn run(mut self) -> Closing {
        loop {
            self.take_acks();
            let is_all_read = self.turn();
            if self.wire.output_bytes() > 0 {
                self.write().await;
            }
            if let Some(closing) = self.closing.take() {
                return closing;
            }
            if is_all_read && !self.session.is_closed() {
                let event = self.next_event().await;
                self.handle(event);
            }
        }
    }

    /// Feeds the session with what was read. Returns false when it stopped because there is enough
    /// to be written.
    fn turn(&mut self) -> bool {
        loop {
            self.perform();
            if !self.session.wants_input() {
                return true;
            }
            if self.wire.output_bytes() >= OUTPUT_BYTES_MAX {
                return false;
            }
            match self.wire.decode() {
                Ok(None) => return true,
                Ok(Some(packet)) => {
                    self.timers.heard(self.shared.clock.now());
                    let context = context(self.shared, &*self.ownership);
                    self.session.packet(packet, &context);
                }
                Err(violation) => {
                    self.shared
                        .counters
                        .refuse(&self.stay.identity.realm, violation.as_str());
                    tracing::info!(
                        realm = %self.stay.identity.realm,
                        device_id = %self.stay.identity.device,
                        %violation,
                        "device broke the protocol"
                    );
                    self.session.violated(violation.reason_code());
                }
            }
        }
    }

    fn take_acks(&mut self) {
        for (slot, outcome) in self.inbox.take() {
            let context = context(self.shared, &*self.ownership);
            self.session.released(slot, outcome, &context);
        }
    }

    async fn next_event(&mut self) -> Event {
        let reads = self.session.wants_input();
        let takes_messages = self.session.wants_deliveries();
        if takes_messages && self.feed.begin_reading() {
            self.read_queue();
        }
        let clock = &*self.shared.clock;
        self.timers.set_reading(reads, clock.now());
        self.timers.arm(clock);
        let listens = takes_messages && self.feed.is_live();
        let Self {
            wire,
            claim,
            inbox,
            reservation,
            tasks,
            feed,
            timers,
            shared,
            ..
        } = self;
        tokio::select! {
            biased;
            order = claim.order() => Event::Order(order),
            () = shared.drain.cancelled(), if !self.is_draining => Event::Drain,
            () = inbox.arrival() => Event::Acks,
            permit = granted(reservation) => Event::Permit(permit),
            Some(done) = tasks.next(), if !tasks.is_empty() => Event::Done(done),
            () = timers.fired() => Event::Timer,
            delivery = feed.next(), if listens => Event::Delivery(delivery),
            read = wire.read(), if reads => Event::Read(read),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Order(Order::Leave(reason)) => self.session.end(reason),
            Event::Order(Order::Introspection(new)) => self.session.refresh_introspection(new),
            Event::Drain => {
                self.is_draining = true;
                self.reservation = None;
                self.session.drain();
            }
            Event::Acks | Event::Read(Ok(true)) => {}
            Event::Permit(permit) => {
                self.reservation = None;
                self.grant(permit);
            }
            Event::Done(done) => self.done(done),
            Event::Delivery(first) => self.deliver(first),
            Event::Read(Ok(false) | Err(_)) => {
                self.wire.give_up();
                self.session.lost(DisconnectReason::ConnectionLost);
            }
            Event::Timer => {
                if let Some(reason) = self.timers.due(&*self.shared.clock) {
                    self.session.end(reason);
                }
            }
        }
    }

    /// Writes the output. A device that does not take it is dropped; an order to leave is heard
    /// meanwhile, so that a dead socket does not hold up its device's next connection.
    async fn write(&mut self) {
        let began = self.shared.clock.now();
        let Self {
            wire,
            claim,
            session,
            shared,
            ..
        } = self;
        let failed = {
            let write = tokio::time::timeout(shared.settings.write_timeout, wire.flush());
            tokio::pin!(write);
            loop {
                tokio::select! {
                    biased;
                    written = &mut write => break match written {
                        Ok(Ok(())) => None,
                        Ok(Err(_)) => Some(DisconnectReason::ConnectionLost),
                        Err(_) => Some(DisconnectReason::SlowConsumer),
                    },
                    order = claim.order() => match order {
                        Order::Leave(reason) => break Some(reason),
                        Order::Introspection(new) => session.refresh_introspection(new),
                    },
                }
            }
        };
        if let Some(reason) = failed {
            self.wire.give_up();
            self.session.lost(reason);
            self.perform();
        }
        self.timers
            .was_deaf(self.shared.clock.now().saturating_duration_since(began));
    }

    /// Does what the session wants done.
    fn perform(&mut self) {
        while let Some(output) = self.session.next_output() {
            match output {
                Output::Send(packet) => self.send(&packet),
                Output::Do(effect) => self.effect(effect),
            }
        }
    }

    fn send(&mut self, packet: &Packet) {
        let counters = &self.shared.counters;
        match packet {
            Packet::Publish(publish) => counters.deliver(publish.qos),
            Packet::PubAck(_) | Packet::PubRec(_) => counters.acknowledged.increment(),
            Packet::SubAck(suback) => {
                let refused = suback
                    .reasons
                    .iter()
                    .filter(|reason| reason.is_failure())
                    .count();
                counters
                    .subscriptions_denied
                    .add(u64::try_from(refused).unwrap_or(u64::MAX));
            }
            _ => {}
        }
        let Err(error) = self.wire.push(packet) else {
            return;
        };
        let reason = match error {
            // an answer that is larger than the Maximum Packet Size the device asked for
            EncodeError::TooLarge { .. } => DisconnectReason::ProtocolError,
            _ => DisconnectReason::InternalError,
        };
        tracing::warn!(
            realm = %self.stay.identity.realm,
            device_id = %self.stay.identity.device,
            %error,
            "a packet could not be sent"
        );
        self.session.lost(reason);
    }

    fn effect(&mut self, effect: Effect) {
        let (shared, Stay { identity, epoch }) = (self.shared, self.stay);
        let (sessions, epoch) = (&shared.sessions, *epoch);
        match effect {
            Effect::Reserve { bytes } => self.reserve(bytes),
            Effect::Submit(submission) => self.submit(submission),
            Effect::Settle { slot, packet_id } => {
                let ack = slot.map_or_else(Ack::nobody, |slot| self.inbox.ack(slot));
                shared.intake.settle(identity, epoch, packet_id, ack);
            }
            Effect::Subscribe(new) => self.task(async move {
                Done::Subscribed(sessions.subscribe(identity, epoch, new).await)
            }),
            Effect::Unsubscribe(filters) => self.unsubscribe(filters),
            Effect::Retained(of) => self.task(async move {
                let messages = sessions.retained(identity, &of.filter).await;
                Done::Retained(of, messages)
            }),
            Effect::MarkSent(seq) => sessions.mark_sent(identity, epoch, seq),
            Effect::MarkReceived(seq) => self.task(async move {
                Done::Received(seq, sessions.mark_received(identity, epoch, seq).await)
            }),
            Effect::SettleQueued(seq, how) => {
                if how == Settled::Expired {
                    shared.counters.expired.increment();
                }
                sessions.settle(identity, epoch, seq, how);
            }
            Effect::Close(closing) => self.closing = Some(closing),
        }
    }

    fn unsubscribe(&mut self, filters: Vec<ByteString>) {
        let (sessions, stay) = (&self.shared.sessions, self.stay);
        self.task(async move {
            Done::Unsubscribed(
                sessions
                    .unsubscribe(&stay.identity, stay.epoch, filters)
                    .await,
            )
        });
    }

    fn task(&mut self, task: impl Future<Output = Done> + Send + 'a) {
        self.tasks.push_back(Box::pin(task));
    }

    /// Asks the intake for room; most often it is there at once.
    fn reserve(&mut self, bytes: usize) {
        let mut reservation = self.shared.intake.reserve(&self.stay.identity, bytes);
        // a pending one is polled again, with the task's own waker, before anything is waited for
        match reservation
            .as_mut()
            .poll(&mut std::task::Context::from_waker(Waker::noop()))
        {
            Poll::Ready(permit) => self.grant(permit),
            Poll::Pending => self.reservation = Some(reservation),
        }
    }

    fn grant(&mut self, permit: Permit) {
        self.permit = Some(permit);
        let context = context(self.shared, &*self.ownership);
        self.session.permit_granted(&context);
    }

    fn submit(&mut self, submission: Submission) {
        let Some(permit) = self.permit.take() else {
            tracing::error!("a message without a permit: this is a bug");
            self.session.end(DisconnectReason::InternalError);
            return;
        };
        let Submission {
            slot,
            delivery,
            topic,
            payload,
            received_at,
            denied,
        } = submission;
        let qos = delivery.map_or(crate::mqtt::packet::QoS::AtMostOnce, |delivery| {
            delivery.qos
        });
        self.shared.counters.publish(qos);
        if let Some(denial) = denied {
            self.shared.counters.deny(denial);
        }
        let message = InboundMessage {
            identity: self.stay.identity.clone(),
            session: self.stay.epoch,
            delivery,
            topic,
            payload,
            received_at,
            denied,
            ack: self.inbox.ack(slot),
        };
        self.shared.intake.submit(permit, message);
    }

    /// Reads what comes next in the queue.
    fn read_queue(&mut self) {
        let (sessions, stay) = (&self.shared.sessions, self.stay);
        let after = self.session.last_seq();
        self.task(async move {
            let read = sessions.read_queue(
                &stay.identity,
                stay.epoch,
                after,
                READ_MESSAGES_MAX,
                READ_BYTES_MAX,
            );
            Done::Queue(read.await)
        });
    }

    /// The queue was read to its end: the live feed goes on from there.
    fn resume_feed(&mut self) {
        let (sessions, stay) = (&self.shared.sessions, self.stay);
        let last = self.session.last_seq();
        self.task(async move {
            Done::Feed(sessions.resume_feed(&stay.identity, stay.epoch, last).await)
        });
    }

    fn done(&mut self, done: Done) {
        let context = context(self.shared, &*self.ownership);
        match done {
            Done::Subscribed(results) => self.session.subscribed(results.ok(), &context),
            Done::Unsubscribed(results) => {
                self.session.unsubscribed(results.ok().as_deref(), &context);
            }
            Done::Retained(of, Ok(messages)) => self.session.retained(&of, messages, &context),
            Done::Received(seq, stored) => self.session.marked_received(seq, stored.is_ok()),
            Done::Queue(Ok(queued)) if queued.is_empty() => self.resume_feed(),
            Done::Queue(Ok(queued)) => {
                for queued in queued {
                    self.session.deliver(queued, &context);
                }
                self.feed.fell_behind();
            }
            Done::Feed(Ok(Resume::Feeding)) => self.feed.went_live(),
            Done::Feed(Ok(Resume::More)) => self.feed.fell_behind(),
            Done::Queue(Err(error)) | Done::Feed(Err(error)) | Done::Retained(_, Err(error)) => {
                tracing::error!(
                    realm = %self.stay.identity.realm,
                    device_id = %self.stay.identity.device,
                    %error,
                    "the session cannot be read"
                );
                self.session.end(DisconnectReason::InternalError);
            }
        }
    }

    /// Takes from the feed what is there and has room.
    fn deliver(&mut self, first: Option<Delivery>) {
        let Some(mut delivery) = first else {
            // an order to leave comes before this one; without it, its session was erased
            self.session.end(DisconnectReason::Administrative);
            return;
        };
        loop {
            let context = context(self.shared, &*self.ownership);
            match delivery {
                Delivery::Queued(queued) => self.session.deliver(queued, &context),
                Delivery::Qos0(message) => self.session.deliver_qos0(message, &context),
                Delivery::Lagging => {
                    self.feed.fell_behind();
                    return;
                }
            }
            self.perform();
            let has_room = self.wire.output_bytes() < OUTPUT_BYTES_MAX;
            if !(has_room && self.session.wants_deliveries()) {
                return;
            }
            let Some(next) = self.feed.take() else { return };
            delivery = next;
        }
    }
}

fn context<'c>(shared: &Shared, ownership: &'c Lookup<'c>) -> Context<'c> {
    Context {
        now: shared.clock.wall(),
        ownership,
    }
}

/// Waits for the permit that was asked for, if one was.
async fn granted(reservation: &mut Option<BoxFuture<'_, Permit>>) -> Permit {
    match reservation {
        Some(reservation) => Pin::new(reservation).await,
        None => std::future::pending().await,
    }
}
