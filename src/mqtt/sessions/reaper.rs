//! The reaper's part of a transaction: messages and ids whose time is over.

use std::time::Duration;

use super::{
    FlowState,
    batch::{Batch, Failure, first_rows},
    layout,
};
use crate::clock::Timestamp;

/// Messages, and ids, that one run of the reaper removes.
const REAP_MESSAGES: usize = 1_000;
/// The id of a settled message is known for so long, counted from the start of the process at the
/// earliest: whoever enqueues left-overs again after a crash has done so by then.
const IDS_KEPT: Duration = Duration::from_mins(10);

impl Batch<'_> {
    /// Removes messages whose time is over and that were never sent: how many, and whether there
    /// is more to do.
    pub(super) fn reap_messages(&mut self, now: Timestamp) -> Result<(usize, bool), Failure> {
        let to = layout::time_key(now.saturating_add(Duration::from_micros(1)), &[]);
        let due = first_rows(&self.tables.deadlines, &[], &to, REAP_MESSAGES)?;
        let mut removed = 0;
        for (key, _) in &due {
            self.tables.deadlines.remove(&**key)?;
            self.outcome.changed = true;
            let place = layout::split_time(key).and_then(|(_, rest)| layout::split_identity(rest));
            let Some((identity, seq)) = place else {
                continue;
            };
            let Some(seq) = seq.try_into().ok().map(u64::from_be_bytes) else {
                continue;
            };
            // one that was sent is finished, whatever its time [MQTT5-3.3.2-5]
            if self.state(&identity, seq)? == FlowState::Waiting && self.remove(&identity, seq)? {
                self.count_expired(&identity);
                removed += 1;
            }
        }
        Ok((removed, due.len() == REAP_MESSAGES))
    }

    /// Forgets the ids of messages that were settled long ago.
    pub(super) fn reap_ids(&mut self, now: Timestamp) -> Result<bool, Failure> {
        if now.saturating_since(self.opened_at) < IDS_KEPT {
            return Ok(false);
        }
        let to = layout::time_key(now.saturating_sub(IDS_KEPT), &[]);
        let due = first_rows(&self.tables.settled_ids, &[], &to, REAP_MESSAGES)?;
        for (key, _) in &due {
            self.tables.settled_ids.remove(&**key)?;
            if let Some((_, id_key)) = layout::split_time(key) {
                self.tables.ids.remove(id_key)?;
            }
            self.outcome.changed = true;
        }
        Ok(due.len() == REAP_MESSAGES)
    }
}
