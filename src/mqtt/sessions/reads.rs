//! What is read from the file beside the writer thread: the committed state, on blocking threads.

use std::{path::Path, sync::PoisonError};

use redb::{ReadTransaction, ReadableDatabase};

use super::{
    FlowState, Message, Queued, SessionsError, batch::Failure, file, layout, packet_id,
    writer::State,
};
use crate::{
    clock::Timestamp,
    identity::Identity,
    mqtt::{SessionEpoch, topics},
};

/// Which part of a queue is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) epoch: SessionEpoch,
    pub(super) after: u64,
    pub(super) messages_max: usize,
    pub(super) bytes_max: usize,
    pub(super) now: Timestamp,
}

/// A part of a queue, and the places of messages that are over or damaged and were left out.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) messages: Vec<Queued>,
    pub(super) expired: Vec<u64>,
    pub(super) damaged: Vec<u64>,
}

impl State {
    /// The committed state of this moment.
    fn begin_read(&self) -> Result<ReadTransaction, SessionsError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        match database.as_ref() {
            Some(database) => database
                .begin_read()
                .map_err(|error| unavailable(&error.into())),
            None => Err(SessionsError::Unavailable(
                self.trouble().unwrap_or_else(|| "it is not open".into()),
            )),
        }
    }

    pub(super) fn read_queue(
        &self,
        identity: &Identity,
        wanted: Wanted,
    ) -> Result<Part, SessionsError> {
        let reading = self.begin_read()?;
        if !is_session(&reading, identity, wanted.epoch).map_err(|error| unavailable(&error))? {
            return Err(SessionsError::Gone);
        }
        read_part(&reading, identity, wanted).map_err(|error| unavailable(&error))
    }

    pub(super) fn read_retained(
        &self,
        identity: &Identity,
        filter: &str,
        now: Timestamp,
    ) -> Result<Vec<Message>, SessionsError> {
        let reading = self.begin_read()?;
        retained(&reading, identity, filter, now).map_err(|error| unavailable(&error))
    }

    pub(super) fn backup(&self, path: &Path) -> Result<(), SessionsError> {
        let reading = self.begin_read()?;
        file::copy(&reading, path).map_err(|error| unavailable(&error))
    }
}

fn unavailable(failure: &Failure) -> SessionsError {
    SessionsError::Unavailable(failure.to_string().into())
}

fn is_session(
    reading: &ReadTransaction,
    identity: &Identity,
    epoch: SessionEpoch,
) -> Result<bool, Failure> {
    let row = reading
        .open_table(layout::SESSIONS)?
        .get(&*layout::identity_key(identity))?;
    let row = row.and_then(|row| layout::SessionRow::decode(row.value()));
    Ok(row.is_some_and(|row| row.epoch == epoch))
}

fn read_part(
    reading: &ReadTransaction,
    identity: &Identity,
    wanted: Wanted,
) -> Result<Part, Failure> {
    let flow = reading.open_table(layout::FLOW)?;
    let queue = reading.open_table(layout::QUEUE)?;
    let from = layout::seq_key(identity, wanted.after.saturating_add(1));
    let to = layout::seq_key(identity, u64::MAX);
    let (mut part, mut bytes) = (Part::default(), 0);
    for row in queue.range(&*from..&*to)? {
        let (key, value) = row?;
        let Some(seq) = key.value().last_chunk().map(|seq| u64::from_be_bytes(*seq)) else {
            continue;
        };
        let state = flow.get(key.value())?;
        let state = layout::decode_flow(state.as_ref().map(redb::AccessGuard::value));
        let Some(message) = layout::decode_message(value.value()) else {
            part.damaged.push(seq);
            continue;
        };
        let over = message.expires_at.is_some_and(|at| at <= wanted.now);
        if over && state == FlowState::Waiting {
            part.expired.push(seq);
            continue;
        }
        bytes += message.topic.len() + message.payload.len();
        let full = part.messages.len() >= wanted.messages_max || bytes > wanted.bytes_max;
        if full && !part.messages.is_empty() {
            break;
        }
        part.messages.push(Queued {
            seq,
            packet_id: packet_id(seq),
            state,
            message,
        });
    }
    Ok(part)
}

fn retained(
    reading: &ReadTransaction,
    identity: &Identity,
    filter: &str,
    now: Timestamp,
) -> Result<Vec<Message>, Failure> {
    let prefix = layout::identity_key(identity);
    let end = layout::prefix_end(&prefix);
    let mut messages = Vec::new();
    for row in reading
        .open_table(layout::RETAINED)?
        .range(&*prefix..&*end)?
    {
        let (key, value) = row?;
        let Some(topic) = key.value().get(prefix.len()..) else {
            continue;
        };
        let Ok(topic) = std::str::from_utf8(topic) else {
            continue;
        };
        if !topics::matches(filter, topic) {
            continue;
        }
        let message = layout::decode_message(value.value());
        messages.extend(message.filter(|message| message.expires_at.is_none_or(|at| at > now)));
    }
    Ok(messages)
}
