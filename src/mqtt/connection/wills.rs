//! Wills that are due: handed to the engine at once, or after their delay.
//!
//! A delayed will is published exactly once, or dropped because its device came back in time: who
//! takes it out of the table decides. When the node stops they are published at once, since nothing
//! would remember them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::finish::Stay;
use crate::{
    identity::Identity,
    mqtt::{
        Ack, InboundMessage,
        acl::Acl,
        broker::Shared,
        session::{FiringWill, PendingWill},
    },
};

/// Wills whose delay is running, by device. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DelayedWills(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<Identity, Waiting>,
    last: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    fate: oneshot::Sender<Fate>,
}

#[derive(Debug)]
enum Fate {
    Publish,
    Drop,
}

impl DelayedWills {
    /// Wills that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table().waiting.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device is back. Its will is dropped if its session goes on, and published if that
    /// session has ended [MQTT5-3.1.3-9].
    pub(super) fn came_back(&self, identity: &Identity, session_present: bool) {
        if let Some(waiting) = self.table().waiting.remove(identity) {
            let fate = if session_present {
                Fate::Drop
            } else {
                Fate::Publish
            };
            // the task takes its will out of the table before it ends
            let _ = waiting.fate.send(fate);
        }
    }

    /// Takes a place in the table; `None` when it is full.
    fn wait(&self, identity: &Identity, max: usize) -> Option<(u64, oneshot::Receiver<Fate>)> {
        let mut table = self.table();
        if table.waiting.len() >= max {
            return None;
        }
        table.last += 1;
        let number = table.last;
        let (fate, receiver) = oneshot::channel();
        // an older one of the same device loses its sender, and with it nothing is left to wait for
        table
            .waiting
            .insert(identity.clone(), Waiting { number, fate });
        Some((number, receiver))
    }

    /// Takes will `number` out; `false` when somebody else has.
    fn take(&self, identity: &Identity, number: u64) -> bool {
        let mut table = self.table();
        let is_there = table
            .waiting
            .get(identity)
            .is_some_and(|will| will.number == number);
        if is_there {
            table.waiting.remove(identity);
        }
        is_there
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes `will`, now or after its delay.
pub(super) async fn leave(shared: &Arc<Shared>, stay: &Stay, will: PendingWill) {
    let waits = !will.delay.is_zero() && !shared.drain.is_cancelled();
    let place = waits
        .then(|| {
            shared
                .wills
                .wait(&stay.identity, shared.settings.delayed_wills_max)
        })
        .flatten();
    let Some((number, mut fate)) = place else {
        publish(shared, stay, will).await;
        return;
    };
    let (shared, stay) = (Arc::clone(shared), stay.clone());
    shared.tracker.clone().spawn(async move {
        let due = async {
            tokio::select! {
                () = tokio::time::sleep(will.delay) => {}
                () = shared.drain.cancelled() => {}
            }
        };
        let decided = tokio::select! {
            fate = &mut fate => fate,
            () = due => {
                if shared.wills.take(&stay.identity, number) {
                    Ok(Fate::Publish)
                } else {
                    fate.await
                }
            }
        };
        if !matches!(decided, Ok(Fate::Drop)) {
            publish(&shared, &stay, will).await;
        }
    });
}

async fn publish(shared: &Shared, stay: &Stay, will: PendingWill) {
    let identity = &stay.identity;
    let acl = Acl {
        identity,
        levels_max: shared.settings.topic_levels_max,
    };
    let ownership =
        |interface: &str, major| shared.registry.ownership(&identity.realm, interface, major);
    let Some(FiringWill {
        topic,
        payload,
        denied,
    }) = will.fire(&acl, &ownership)
    else {
        return;
    };
    if let Some(denial) = denied {
        shared.counters.deny(denial);
    }
    let permit = shared
        .intake
        .reserve(identity, topic.len() + payload.len())
        .await;
    let message = InboundMessage {
        identity: identity.clone(),
        session: stay.epoch,
        delivery: None,
        topic,
        payload,
        received_at: shared.clock.wall(),
        denied,
        ack: Ack::nobody(),
    };
    shared.intake.submit(permit, message);
}
