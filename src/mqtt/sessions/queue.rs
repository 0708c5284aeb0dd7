//! The outbound queue's part of a transaction.
//!
//! Rows of a message: itself in `queue.v1`; its flow state once it was sent; its deadline; its id;
//! for a property, which row holds the newest value of that topic. All come and go together.

use redb::ReadableTable;

use super::{
    Delivery, Enqueued, FlowState, Message, Queued, Resume, SessionsError, Settled,
    batch::{Batch, Failure, first_rows},
    index::Feed,
    layout, packet_id,
    writer::Mark,
};
use crate::{
    clock::Timestamp,
    identity::Identity,
    mqtt::{SessionEpoch, packet::QoS},
};

/// Packet ids there are.
const PACKET_IDS: u64 = 65_535;

impl Batch<'_> {
    pub(super) fn enqueue(
        &mut self,
        identity: &Identity,
        mut message: Message,
    ) -> Result<Enqueued, Failure> {
        if message.expires_at.is_some_and(|at| at <= self.now) {
            return Ok(Enqueued::Expired);
        }
        if message.retain && !self.retain(identity, &message)? {
            return Ok(Enqueued::QueueFull);
        }
        let now = self.now;
        let Some(entry) = self
            .index
            .sessions
            .get(identity)
            .filter(|entry| !entry.is_over(now))
        else {
            return Ok(Enqueued::NoSession);
        };
        if let Some(id) = message.id
            && self
                .tables
                .ids
                .get(&*layout::key(identity, &id.to_be_bytes()))?
                .is_some()
        {
            return Ok(Enqueued::Duplicate);
        }
        let Some(grant) = entry.grant(&message.topic) else {
            return Ok(Enqueued::NoSubscription);
        };
        message.qos = message.qos.min(grant.qos);
        message.retain &= grant.retain_as_published;
        message.subscription_ids = grant.ids;
        if message.qos == QoS::AtMostOnce {
            return Ok(self.pass_on(identity, message));
        }
        self.store(identity, message)
    }

    /// What `enqueue` would say, without doing it. A property that would replace another one may be
    /// taken although the queue is said to be full.
    pub(super) fn probe(
        &self,
        identity: &Identity,
        message: &Message,
    ) -> Result<Enqueued, Failure> {
        if message.expires_at.is_some_and(|at| at <= self.now) {
            return Ok(Enqueued::Expired);
        }
        let entry = self
            .index
            .sessions
            .get(identity)
            .filter(|entry| !entry.is_over(self.now));
        let Some(entry) = entry else {
            return Ok(Enqueued::NoSession);
        };
        if let Some(id) = message.id
            && self
                .tables
                .ids
                .get(&*layout::key(identity, &id.to_be_bytes()))?
                .is_some()
        {
            return Ok(Enqueued::Duplicate);
        }
        let Some(grant) = entry.grant(&message.topic) else {
            return Ok(Enqueued::NoSubscription);
        };
        let has_room = entry.feed.as_ref().is_some_and(Feed::has_room) && entry.is_live();
        if message.qos.min(grant.qos) == QoS::AtMostOnce {
            return Ok(match (entry.is_live(), has_room) {
                (false, _) => Enqueued::NotConnected,
                (true, false) => Enqueued::QueueFull,
                (true, true) => Enqueued::Delivering,
            });
        }
        let bytes = entry.bytes.saturating_add(layout::cost(message));
        Ok(
            if entry.messages >= self.limits.messages || bytes > self.limits.bytes {
                Enqueued::QueueFull
            } else if has_room {
                Enqueued::Delivering
            } else {
                Enqueued::Queued {
                    until: entry.until(message.expires_at),
                }
            },
        )
    }

    /// QoS 0: to a live connection or not at all.
    fn pass_on(&mut self, identity: &Identity, message: Message) -> Enqueued {
        let Some(entry) = self.index.sessions.get_mut(identity) else {
            return Enqueued::NoSession;
        };
        if !entry.is_live() {
            return Enqueued::NotConnected;
        }
        let Some(feed) = entry.feed.as_mut().filter(|feed| feed.has_room()) else {
            return Enqueued::QueueFull;
        };
        // behind what waits for this commit
        if self.outcome.held.iter().any(|(held, ..)| held == identity) {
            let epoch = entry.epoch;
            self.outcome
                .held
                .push((identity.clone(), epoch, Delivery::Qos0(message)));
        } else {
            feed.push(Delivery::Qos0(message));
        }
        Enqueued::Delivering
    }

    /// QoS 1 and 2: on disk, and to a live connection.
    fn store(&mut self, identity: &Identity, message: Message) -> Result<Enqueued, Failure> {
        if message.property {
            self.replace_property(identity, &message.topic)?;
        }
        let cost = layout::cost(&message);
        let seq = self.next_seq(identity)?;
        let limits = self.limits;
        let Some(entry) = self.index.sessions.get_mut(identity) else {
            return Ok(Enqueued::NoSession);
        };
        if entry.messages >= limits.messages || entry.bytes.saturating_add(cost) > limits.bytes {
            entry.refused += 1;
            return Ok(Enqueued::QueueFull);
        }
        entry.next_seq = seq + 1;
        entry.messages += 1;
        entry.bytes += cost;
        let (epoch, until) = (entry.epoch, entry.until(message.expires_at));
        self.touch(identity);
        self.durably();
        let key = layout::seq_key(identity, seq);
        self.tables
            .queue
            .insert(&*key, &*layout::encode_message(&message))?;
        if let Some(at) = message.expires_at {
            self.tables
                .deadlines
                .insert(&*layout::time_key(at, &key), &[][..])?;
        }
        let seq_value = seq.to_le_bytes();
        if message.property {
            let key = layout::key(identity, message.topic.as_bytes());
            self.tables.properties.insert(&*key, &seq_value[..])?;
        }
        if let Some(id) = message.id {
            let key = layout::key(identity, &id.to_be_bytes());
            self.tables.ids.insert(&*key, &seq_value[..])?;
        }
        Ok(self.feed(identity, epoch, seq, message, until))
    }

    /// Gives a stored message to the live connection. QoS 1 does not wait for the commit unless
    /// something of this session does: the feed is in order.
    fn feed(
        &mut self,
        identity: &Identity,
        epoch: SessionEpoch,
        seq: u64,
        message: Message,
        until: Option<Timestamp>,
    ) -> Enqueued {
        let queued = Enqueued::Queued { until };
        let Some(entry) = self.index.sessions.get_mut(identity) else {
            return queued;
        };
        if !entry.is_live() {
            return queued;
        }
        let Some(feed) = &mut entry.feed else {
            return queued;
        };
        if !feed.has_room() {
            feed.silence();
            return queued;
        }
        let waits = message.qos == QoS::ExactlyOnce
            || self.outcome.held.iter().any(|(held, ..)| held == identity);
        let delivery = Delivery::Queued(Queued {
            seq,
            packet_id: packet_id(seq),
            state: FlowState::Waiting,
            message,
        });
        if waits {
            self.outcome.held.push((identity.clone(), epoch, delivery));
        } else {
            feed.push(delivery);
        }
        Enqueued::Delivering
    }

    /// The next place in the queue whose packet id no queued message has.
    fn next_seq(&mut self, identity: &Identity) -> Result<u64, Failure> {
        let Some(entry) = self.index.sessions.get(identity) else {
            return Ok(1);
        };
        let (mut seq, mut oldest) = (entry.next_seq, entry.oldest_seq);
        if seq.saturating_sub(oldest) < PACKET_IDS {
            return Ok(seq);
        }
        let (from, to) = (
            layout::seq_key(identity, 0),
            layout::seq_key(identity, u64::MAX),
        );
        oldest = match self.tables.queue.range(&*from..&*to)?.next() {
            Some(row) => row?
                .0
                .value()
                .last_chunk()
                .map_or(oldest, |seq| u64::from_be_bytes(*seq)),
            None => seq,
        };
        // ends: fewer messages than packet ids are allowed in a queue
        while self.is_id_taken(identity, seq, oldest)? {
            seq += 1;
        }
        if let Some(entry) = self.index.sessions.get_mut(identity) {
            entry.oldest_seq = oldest;
        }
        Ok(seq)
    }

    fn is_id_taken(&self, identity: &Identity, seq: u64, oldest: u64) -> Result<bool, Failure> {
        let mut other = seq;
        while let Some(earlier) = other
            .checked_sub(PACKET_IDS)
            .filter(|earlier| *earlier >= oldest)
        {
            if self
                .tables
                .queue
                .get(&*layout::seq_key(identity, earlier))?
                .is_some()
            {
                return Ok(true);
            }
            other = earlier;
        }
        Ok(false)
    }

    /// Removes the queued value of a property that was not sent yet.
    fn replace_property(&mut self, identity: &Identity, topic: &str) -> Result<(), Failure> {
        let key = layout::key(identity, topic.as_bytes());
        let seq = self
            .tables
            .properties
            .get(&*key)?
            .and_then(|seq| layout::number(seq.value()));
        if let Some(seq) = seq
            && self.state(identity, seq)? == FlowState::Waiting
        {
            self.remove(identity, seq)?;
        }
        Ok(())
    }

    pub(super) fn state(&self, identity: &Identity, seq: u64) -> Result<FlowState, Failure> {
        let row = self.tables.flow.get(&*layout::seq_key(identity, seq))?;
        Ok(layout::decode_flow(
            row.as_ref().map(redb::AccessGuard::value),
        ))
    }

    /// Removes a message and all its rows; false when it was not there.
    pub(super) fn remove(&mut self, identity: &Identity, seq: u64) -> Result<bool, Failure> {
        let key = layout::seq_key(identity, seq);
        let Some(row) = self.tables.queue.remove(&*key)? else {
            return Ok(false);
        };
        self.tables.flow.remove(&*key)?;
        let mut cost = 0;
        if let Some(head) = layout::decode_head(row.value()) {
            cost = head.cost;
            if let Some(at) = head.expires_at {
                self.tables.deadlines.remove(&*layout::time_key(at, &key))?;
            }
            if head.property {
                let key = layout::key(identity, head.topic.as_bytes());
                let newest = self
                    .tables
                    .properties
                    .get(&*key)?
                    .and_then(|seq| layout::number(seq.value()));
                if newest == Some(seq) {
                    self.tables.properties.remove(&*key)?;
                }
            }
            if let Some(id) = head.id {
                let key = layout::key(identity, &id.to_be_bytes());
                self.tables.ids.insert(&*key, &0u64.to_le_bytes()[..])?;
                self.tables
                    .settled_ids
                    .insert(&*layout::time_key(self.now, &key), &[][..])?;
            }
        }
        drop(row);
        if let Some(entry) = self.index.sessions.get_mut(identity) {
            entry.messages = entry.messages.saturating_sub(1);
            entry.bytes = entry.bytes.saturating_sub(cost);
        }
        self.touch(identity);
        Ok(true)
    }

    /// Applies a mark; one that comes too late is passed over.
    pub(super) fn mark(&mut self, mark: &Mark) -> Result<(), Failure> {
        if self.entry(&mark.identity, mark.epoch).is_err() {
            return Ok(());
        }
        match mark.settled {
            None => self.advance(&mark.identity, mark.seq, FlowState::Sent),
            Some(how) => {
                let was_there = self.remove(&mark.identity, mark.seq)?;
                if was_there && how == Settled::Expired {
                    self.count_expired(&mark.identity);
                }
                Ok(())
            }
        }
    }

    pub(super) fn count_expired(&mut self, identity: &Identity) {
        if let Some(entry) = self.index.sessions.get_mut(identity) {
            entry.expired += 1;
        }
    }

    /// Moves the flow of a message on, never back.
    fn advance(&mut self, identity: &Identity, seq: u64, to: FlowState) -> Result<(), Failure> {
        let key = layout::seq_key(identity, seq);
        if self.tables.queue.get(&*key)?.is_none() {
            return Ok(());
        }
        let now = layout::encode_flow(self.state(identity, seq)?);
        let next = layout::encode_flow(to);
        if next > now {
            self.tables.flow.insert(&*key, &next[..])?;
            self.outcome.changed = true;
        }
        Ok(())
    }

    pub(super) fn mark_received(
        &mut self,
        identity: &Identity,
        epoch: SessionEpoch,
        seq: u64,
    ) -> Result<Result<(), SessionsError>, Failure> {
        if let Err(gone) = self.entry(identity, epoch) {
            return Ok(Err(gone));
        }
        self.advance(identity, seq, FlowState::Received)?;
        self.durably();
        Ok(Ok(()))
    }

    pub(super) fn resume_feed(
        &mut self,
        identity: &Identity,
        epoch: SessionEpoch,
        last_seq: u64,
    ) -> Result<Result<Resume, SessionsError>, Failure> {
        let from = layout::seq_key(identity, last_seq.saturating_add(1));
        let to = layout::seq_key(identity, u64::MAX);
        let more = self.tables.queue.range(&*from..&*to)?.next().is_some();
        let entry = match self.entry(identity, epoch) {
            Ok(entry) => entry,
            Err(gone) => return Ok(Err(gone)),
        };
        let Some(feed) = &mut entry.feed else {
            return Ok(Err(SessionsError::Gone));
        };
        if more {
            return Ok(Ok(Resume::More));
        }
        feed.lagging = false;
        Ok(Ok(Resume::Feeding))
    }

    /// Removes the deadlines of a whole queue, before the queue itself goes.
    pub(super) fn remove_deadlines_of(&mut self, prefix: &[u8]) -> Result<(), Failure> {
        let end = layout::prefix_end(prefix);
        for row in self.tables.queue.range(prefix..&*end)? {
            let (key, value) = row?;
            if let Some(at) = layout::decode_head(value.value()).and_then(|head| head.expires_at) {
                self.tables
                    .deadlines
                    .remove(&*layout::time_key(at, key.value()))?;
            }
        }
        Ok(())
    }

    /// The ids of a queue that is erased: they stay known for a while, like those of messages
    /// that were delivered.
    pub(super) fn settle_ids_of(&mut self, prefix: &[u8]) -> Result<(), Failure> {
        let end = layout::prefix_end(prefix);
        for (key, value) in first_rows(&self.tables.ids, prefix, &end, usize::MAX)? {
            if layout::number(&value) != Some(0) {
                self.tables.ids.insert(&*key, &0u64.to_le_bytes()[..])?;
                self.tables
                    .settled_ids
                    .insert(&*layout::time_key(self.now, &key), &[][..])?;
            }
        }
        Ok(())
    }
}
