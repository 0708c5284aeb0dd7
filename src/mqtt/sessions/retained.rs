//! Retained messages' part of a transaction. They belong to the device, not to its session, and are
//! bounded per device like its queue.

use redb::ReadableTable;

use super::{
    Message,
    batch::{Batch, Failure},
    layout,
};
use crate::identity::Identity;

impl Batch<'_> {
    /// Keeps the message as its topic's retained one, or removes that one; false when the device
    /// has as many as it may have.
    pub(super) fn retain(
        &mut self,
        identity: &Identity,
        message: &Message,
    ) -> Result<bool, Failure> {
        let key = layout::key(identity, message.topic.as_bytes());
        if message.payload.is_empty() {
            self.forget_retained(identity, &key)?;
            return Ok(true);
        }
        if !self.has_room_to_retain(identity, &key, message)? {
            self.purge_retained(identity)?;
            if !self.has_room_to_retain(identity, &key, message)? {
                return Ok(false);
            }
        }
        self.forget_retained(identity, &key)?;
        let row = layout::encode_message(&Message {
            id: None,
            ..message.clone()
        });
        self.tables.retained.insert(&*key, &*row)?;
        let (messages, bytes) = self.index.retained.entry(identity.clone()).or_default();
        *messages += 1;
        *bytes = bytes.saturating_add(layout::cost(message));
        self.durably();
        Ok(true)
    }

    fn has_room_to_retain(
        &self,
        identity: &Identity,
        key: &[u8],
        message: &Message,
    ) -> Result<bool, Failure> {
        let old = self.tables.retained.get(key)?;
        let old = old
            .as_ref()
            .and_then(|row| layout::decode_head(row.value()));
        let (messages, bytes) = self
            .index
            .retained
            .get(identity)
            .copied()
            .unwrap_or_default();
        let messages = if old.is_some() {
            messages
        } else {
            messages + 1
        };
        let bytes = bytes.saturating_sub(old.map_or(0, |head| head.cost));
        Ok(messages <= self.limits.messages
            && bytes.saturating_add(layout::cost(message)) <= self.limits.bytes)
    }

    fn forget_retained(&mut self, identity: &Identity, key: &[u8]) -> Result<(), Failure> {
        let Some(cost) = self
            .tables
            .retained
            .remove(key)?
            .map(|row| layout::decode_head(row.value()).map_or(0, |head| head.cost))
        else {
            return Ok(());
        };
        self.durably();
        if let Some((messages, bytes)) = self.index.retained.get_mut(identity) {
            *messages = messages.saturating_sub(1);
            *bytes = bytes.saturating_sub(cost);
        }
        Ok(())
    }

    /// Removes retained messages of a device whose time is over. They are not delivered anyway;
    /// their room is taken back when it is needed.
    fn purge_retained(&mut self, identity: &Identity) -> Result<(), Failure> {
        let prefix = layout::identity_key(identity);
        let end = layout::prefix_end(&prefix);
        let mut over = Vec::new();
        for row in self.tables.retained.range(&*prefix..&*end)? {
            let (key, value) = row?;
            let Some(head) = layout::decode_head(value.value()) else {
                continue;
            };
            if head.expires_at.is_some_and(|at| at <= self.now) {
                over.push((key.value().to_vec(), head.cost));
            }
        }
        for (key, cost) in over {
            self.tables.retained.remove(&*key)?;
            self.outcome.changed = true;
            if let Some((messages, bytes)) = self.index.retained.get_mut(identity) {
                *messages = messages.saturating_sub(1);
                *bytes = bytes.saturating_sub(cost);
            }
        }
        Ok(())
    }
}
