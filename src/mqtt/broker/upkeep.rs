//! What is done beside the connections: sessions and messages whose time is over are removed.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::Shared;

/// Between two runs of the reaper. What is over is never delivered or resumed; this only takes its
/// room back.
const REAP_EVERY: Duration = Duration::from_secs(5);

/// Starts it; it ends when the broker is closed.
pub(super) fn start(shared: &Arc<Shared>, closed: &CancellationToken) {
    let (shared, closed) = (Arc::clone(shared), closed.clone());
    shared.tracker.clone().spawn(async move {
        loop {
            reap(&shared, &closed).await;
            tokio::select! {
                () = closed.cancelled() => return,
                () = tokio::time::sleep(REAP_EVERY) => {}
            }
        }
    });
}

async fn reap(shared: &Shared, closed: &CancellationToken) {
    loop {
        for (identity, epoch) in shared.sessions.take_erased() {
            shared.intake.forget(&identity, epoch);
        }
        let reaped = match shared.sessions.reap(shared.clock.wall()).await {
            Ok(reaped) => reaped,
            Err(error) => {
                tracing::debug!(%error, "nothing reaped");
                return;
            }
        };
        for (identity, epoch) in &reaped.sessions {
            shared.intake.forget(identity, *epoch);
        }
        shared.counters.expired.add(reaped.messages as u64);
        if !reaped.more || closed.is_cancelled() {
            return;
        }
    }
}
