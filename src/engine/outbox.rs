//! What was stored for a device and is not surely in its session queue yet.
//!
//! A server-owned write commits its value together with a row of the outbox, then the session queue
//! takes the message, then the row goes. A row that a crash left over is delivered again at start:
//! a property twice is harmless, and the queue knows a datastream value by the row's id.

use super::Engine;
use crate::store::{Committed, Effect, OutboxRow, StoreError, Unit};

impl Engine {
    /// Takes a message out of the outbox: the session queue has it, or it was refused for good.
    ///
    /// # Errors
    /// When the store is not available. The message is then delivered again at the next start.
    pub async fn outbox_done(&self, row: &OutboxRow) -> Result<(), StoreError> {
        let effects = vec![Effect::RemoveOutbox { id: row.id }];
        let identity = row.identity.clone();
        let unit = Unit {
            identity,
            receipt: None,
            effects,
            counted: None,
        };
        match self.run(unit).await? {
            Committed::Done | Committed::Duplicate | Committed::NoDevice => {}
            Committed::Refused => {
                tracing::error!(id = row.id, "a message cannot be taken out of the outbox");
            }
        }
        Ok(())
    }

    /// Delivers what is left in the outbox, oldest first, before the first device is let in.
    /// `deliver` answers whether the message is settled: queued, or refused for good.
    /// Returns how many rows were settled.
    ///
    /// # Errors
    /// When the store is not available.
    pub async fn replay_outbox(
        &self,
        mut deliver: impl AsyncFnMut(&OutboxRow) -> bool,
    ) -> Result<usize, StoreError> {
        let mut settled = 0;
        for row in self.store.outbox().await? {
            if deliver(&row).await {
                self.outbox_done(&row).await?;
                settled += 1;
            }
        }
        Ok(settled)
    }
}
