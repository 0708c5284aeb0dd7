//! One transaction in the making: sessions and subscriptions. The queue's part is in `queue.rs`.
//!
//! A method that fails with [`Failure`] fails the whole transaction. What a caller may get wrong
//! (a session that is gone) is in the inner result, and changes nothing.

use redb::{ReadableTable, Table, WriteTransaction};

use super::{
    Delivery, QueueLimits, QuotaExceeded, Reaped, SessionExpiry, SessionSummary, SessionsError,
    StartRequest, Started, SubscribeOutcome, Subscription,
    file::outlives,
    index::{Entry, Feed, Index},
    layout::{self, SessionRow},
};
use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
    mqtt::SessionEpoch,
};

/// Sessions that one run of the reaper erases.
const REAP_SESSIONS: usize = 100;

/// Why a transaction failed, in the database's words.
#[derive(Debug)]
pub(super) struct Failure(String);

impl Failure {
    pub(super) fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into().to_string())
    }
}

pub(super) type Rows<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// The tables of a write transaction.
pub(super) struct Tables<'t> {
    pub(super) sessions: Rows<'t>,
    pub(super) subscriptions: Rows<'t>,
    pub(super) counts: Rows<'t>,
    pub(super) queue: Rows<'t>,
    pub(super) flow: Rows<'t>,
    pub(super) properties: Rows<'t>,
    pub(super) deadlines: Rows<'t>,
    pub(super) ids: Rows<'t>,
    pub(super) settled_ids: Rows<'t>,
    pub(super) retained: Rows<'t>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(writing: &'t WriteTransaction) -> Result<Self, Failure> {
        Ok(Self {
            sessions: writing.open_table(layout::SESSIONS)?,
            subscriptions: writing.open_table(layout::SUBSCRIPTIONS)?,
            counts: writing.open_table(layout::COUNTS)?,
            queue: writing.open_table(layout::QUEUE)?,
            flow: writing.open_table(layout::FLOW)?,
            properties: writing.open_table(layout::PROPERTIES)?,
            deadlines: writing.open_table(layout::DEADLINES)?,
            ids: writing.open_table(layout::IDS)?,
            settled_ids: writing.open_table(layout::SETTLED_IDS)?,
            retained: writing.open_table(layout::RETAINED)?,
        })
    }
}

/// A transaction that is being prepared.
pub(super) struct Batch<'t> {
    pub(super) tables: Tables<'t>,
    pub(super) index: &'t mut Index,
    pub(super) limits: QueueLimits,
    pub(super) now: Timestamp,
    /// When the store was opened.
    pub(super) opened_at: Timestamp,
    /// Sessions whose counts have changed; written at the end, once each.
    touched: Vec<Identity>,
    pub(super) outcome: Outcome,
}

/// What a prepared transaction asks for.
#[derive(Default)]
pub(super) struct Outcome {
    /// Somebody waits for it to be on disk.
    pub(super) durable: bool,
    /// It changes something.
    pub(super) changed: bool,
    /// To be delivered after the commit, in order.
    pub(super) held: Vec<(Identity, SessionEpoch, Delivery)>,
}

impl Outcome {
    /// Delivers what waited for the commit.
    pub(super) fn deliver(self, index: &mut Index) {
        for (identity, epoch, delivery) in self.held {
            if let Some(entry) = index.sessions.get_mut(&identity)
                && entry.epoch == epoch
                && let Some(feed) = &mut entry.feed
            {
                feed.push(delivery);
            }
        }
    }
}

impl<'t> Batch<'t> {
    pub(super) fn new(
        tables: Tables<'t>,
        index: &'t mut Index,
        limits: QueueLimits,
        now: Timestamp,
        opened_at: Timestamp,
    ) -> Self {
        let outcome = Outcome::default();
        Self {
            tables,
            index,
            limits,
            now,
            opened_at,
            touched: Vec::new(),
            outcome,
        }
    }

    /// Writes the counts that changed.
    pub(super) fn finish(mut self) -> Result<Outcome, Failure> {
        self.touched.sort_unstable();
        self.touched.dedup();
        for identity in &self.touched {
            if let Some(entry) = self.index.sessions.get(identity) {
                let row = entry.counts(self.index.unclean_stops).encode();
                self.tables
                    .counts
                    .insert(&*layout::identity_key(identity), &*row)?;
            }
        }
        Ok(self.outcome)
    }

    pub(super) fn touch(&mut self, identity: &Identity) {
        self.outcome.changed = true;
        if self.touched.last() != Some(identity) {
            self.touched.push(identity.clone());
        }
    }

    pub(super) fn durably(&mut self) {
        self.outcome.durable = true;
        self.outcome.changed = true;
    }

    /// The session, if it is still this one.
    pub(super) fn entry(
        &mut self,
        identity: &Identity,
        epoch: SessionEpoch,
    ) -> Result<&mut Entry, SessionsError> {
        self.index
            .sessions
            .get_mut(identity)
            .filter(|entry| entry.epoch == epoch)
            .ok_or(SessionsError::Gone)
    }

    pub(super) fn start(
        &mut self,
        identity: &Identity,
        request: &StartRequest,
    ) -> Result<Started, Failure> {
        self.durably();
        let kept = self.index.sessions.get(identity).is_some_and(|entry| {
            !request.clean_start
                && !entry.is_over(request.now)
                // its connection ended without saying so
                && entry.expiry != SessionExpiry::WithConnection
        });
        let erased = if kept { None } else { self.erase(identity)? };
        let entry = self
            .index
            .sessions
            .entry(identity.clone())
            .or_insert_with(|| {
                let epoch = SessionEpoch(rand::random());
                Entry::new(epoch, request.version, request.expiry, request.now)
            });
        entry.version = request.version;
        entry.expiry = request.expiry;
        entry.deadline = None;
        let (feed, deliveries) = Feed::new(kept);
        entry.feed = Some(feed);
        let started = Started {
            epoch: entry.epoch,
            session_present: kept,
            subscriptions: entry.subscriptions.clone(),
            erased,
            deliveries,
        };
        self.write_session(identity)?;
        self.touch(identity);
        Ok(started)
    }

    fn write_session(&mut self, identity: &Identity) -> Result<(), Failure> {
        if let Some(entry) = self.index.sessions.get(identity) {
            let row = SessionRow {
                epoch: entry.epoch,
                version: entry.version,
                expiry: entry.expiry,
                deadline: entry.deadline,
                created_at: entry.created_at,
            };
            self.tables
                .sessions
                .insert(&*layout::identity_key(identity), &*row.encode())?;
            self.outcome.changed = true;
        }
        Ok(())
    }

    pub(super) fn stop(
        &mut self,
        identity: &Identity,
        epoch: SessionEpoch,
        expiry: SessionExpiry,
        now: Timestamp,
    ) -> Result<bool, Failure> {
        let Ok(entry) = self.entry(identity, epoch) else {
            return Ok(false);
        };
        entry.feed = None;
        entry.expiry = expiry;
        match outlives(expiry) {
            Some(after) if after.is_zero() => {
                self.erase(identity)?;
                return Ok(true);
            }
            after => entry.deadline = after.map(|after| now.saturating_add(after)),
        }
        self.durably();
        self.write_session(identity)?;
        Ok(false)
    }

    /// Sessions that no connection holds and that have no deadline: the node was stopped or could
    /// not write when their connection ended. Returns those that are over.
    pub(super) fn end_orphans(&mut self) -> Result<Vec<(Identity, SessionEpoch)>, Failure> {
        let orphans: Vec<_> = self
            .index
            .sessions
            .iter()
            .filter(|(_, entry)| {
                !entry.is_live() && entry.deadline.is_none() && entry.expiry != SessionExpiry::Never
            })
            .map(|(identity, entry)| (identity.clone(), entry.epoch, entry.expiry))
            .collect();
        let mut erased = Vec::new();
        for (identity, epoch, expiry) in orphans {
            if self.stop(&identity, epoch, expiry, self.now)? {
                erased.push((identity, epoch));
            }
        }
        Ok(erased)
    }

    pub(super) fn subscribe(
        &mut self,
        identity: &Identity,
        epoch: SessionEpoch,
        subscriptions: Vec<Subscription>,
    ) -> Result<Result<Vec<Result<SubscribeOutcome, QuotaExceeded>>, SessionsError>, Failure> {
        let limit = self.limits.subscriptions;
        let mut outcomes = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            let entry = match self.entry(identity, epoch) {
                Ok(entry) => entry,
                Err(gone) => return Ok(Err(gone)),
            };
            let key = layout::key(identity, subscription.filter.as_bytes());
            let value = layout::encode_subscription(&subscription);
            let same = |known: &&mut Subscription| known.filter == subscription.filter;
            let outcome = if let Some(known) = entry.subscriptions.iter_mut().find(same) {
                *known = subscription;
                SubscribeOutcome::Replaced
            } else if entry.subscriptions.len() < limit {
                entry.subscriptions.push(subscription);
                SubscribeOutcome::New
            } else {
                outcomes.push(Err(QuotaExceeded));
                continue;
            };
            self.tables.subscriptions.insert(&*key, &value[..])?;
            self.durably();
            outcomes.push(Ok(outcome));
        }
        Ok(Ok(outcomes))
    }

    pub(super) fn unsubscribe(
        &mut self,
        identity: &Identity,
        epoch: SessionEpoch,
        filters: &[bytestring::ByteString],
    ) -> Result<Result<Vec<bool>, SessionsError>, Failure> {
        let mut existed = Vec::with_capacity(filters.len());
        for filter in filters {
            let entry = match self.entry(identity, epoch) {
                Ok(entry) => entry,
                Err(gone) => return Ok(Err(gone)),
            };
            let before = entry.subscriptions.len();
            entry.subscriptions.retain(|known| known.filter != *filter);
            let found = entry.subscriptions.len() != before;
            if found {
                self.tables
                    .subscriptions
                    .remove(&*layout::key(identity, filter.as_bytes()))?;
                self.durably();
            }
            existed.push(found);
        }
        Ok(Ok(existed))
    }

    /// Removes the session with everything that is its own. Retained messages are not.
    pub(super) fn erase(&mut self, identity: &Identity) -> Result<Option<SessionEpoch>, Failure> {
        let Some(entry) = self.index.sessions.remove(identity) else {
            return Ok(None);
        };
        self.durably();
        let prefix = layout::identity_key(identity);
        self.remove_deadlines_of(&prefix)?;
        self.tables.sessions.remove(&*prefix)?;
        self.tables.counts.remove(&*prefix)?;
        self.settle_ids_of(&prefix)?;
        let tables = &mut self.tables;
        for table in [
            &mut tables.subscriptions,
            &mut tables.queue,
            &mut tables.flow,
            &mut tables.properties,
        ] {
            remove_prefix(table, &prefix)?;
        }
        Ok(Some(entry.epoch))
    }

    pub(super) fn erase_retained(&mut self, identity: &Identity) -> Result<(), Failure> {
        if self.index.retained.remove(identity).is_some() {
            self.durably();
            remove_prefix(&mut self.tables.retained, &layout::identity_key(identity))?;
        }
        Ok(())
    }

    pub(super) fn erase_realm(
        &mut self,
        realm: &RealmName,
    ) -> Result<Vec<(Identity, SessionEpoch)>, Failure> {
        let of_realm = |identity: &&Identity| identity.realm == *realm;
        let sessions: Vec<_> = self
            .index
            .sessions
            .keys()
            .filter(of_realm)
            .cloned()
            .collect();
        let retained: Vec<_> = self
            .index
            .retained
            .keys()
            .filter(of_realm)
            .cloned()
            .collect();
        let mut erased = Vec::with_capacity(sessions.len());
        for identity in sessions {
            if let Some(epoch) = self.erase(&identity)? {
                erased.push((identity, epoch));
            }
        }
        for identity in retained {
            self.erase_retained(&identity)?;
        }
        remove_prefix(&mut self.tables.ids, &layout::realm_prefix(realm.as_str()))?;
        Ok(erased)
    }

    /// Removes what is over at `now`, up to a bound.
    pub(super) fn reap(&mut self, now: Timestamp) -> Result<Reaped, Failure> {
        let over: Vec<_> = self
            .index
            .sessions
            .iter()
            .filter(|(_, entry)| entry.is_over(now) && !entry.is_live())
            .map(|(identity, _)| identity.clone())
            .take(REAP_SESSIONS)
            .collect();
        let mut reaped = Reaped {
            more: over.len() == REAP_SESSIONS,
            ..Reaped::default()
        };
        for identity in over {
            if let Some(epoch) = self.erase(&identity)? {
                reaped.sessions.push((identity, epoch));
            }
        }
        let (messages, more) = self.reap_messages(now)?;
        reaped.messages = messages;
        reaped.more |= more | self.reap_ids(now)?;
        Ok(reaped)
    }

    pub(super) fn summary(&self, identity: &Identity) -> Option<SessionSummary> {
        self.index.sessions.get(identity).map(Entry::summary)
    }
}

/// Removes all rows whose key begins with `prefix`.
pub(super) fn remove_prefix(table: &mut Rows<'_>, prefix: &[u8]) -> Result<(), Failure> {
    table.retain_in(prefix..&layout::prefix_end(prefix), |_, _| false)?;
    Ok(())
}

/// A row, copied: key and value.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// The first rows of a range, copied so that the table can be changed while they are looked at.
pub(super) fn first_rows(
    table: &Rows<'_>,
    from: &[u8],
    to: &[u8],
    rows_max: usize,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for row in table.range(from..to)?.take(rows_max) {
        let (key, value) = row?;
        rows.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(rows)
}
