//! The end of a connection: everything that has to happen exactly once after it.

use std::{sync::Arc, time::Duration};

use super::wills;
use crate::{
    identity::Identity,
    mqtt::{
        SessionEpoch,
        broker::Shared,
        session::Closing,
        sessions::{SessionExpiry, SessionsError},
        takeover::Claim,
    },
};

/// Between attempts to write the end of a session down.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// Who is connected, and with which session.
#[derive(Clone, Debug)]
pub(super) struct Stay {
    pub(super) identity: Identity,
    pub(super) epoch: SessionEpoch,
}

/// Clears up after a connection and gives its claim back.
pub(super) async fn finish(shared: &Arc<Shared>, stay: &Stay, closing: Closing, claim: Claim) {
    let Closing {
        reason,
        erase,
        expiry,
        will,
    } = closing;
    if let Some(will) = will {
        wills::leave(shared, stay, will).await;
    }
    if let Some(epoch) = stop_session(shared, stay, erase, expiry).await {
        shared.intake.forget(&stay.identity, epoch);
    }
    shared
        .lifecycle
        .disconnected(&stay.identity, reason, shared.clock.wall())
        .await;
    shared.counters.disconnect(reason);
    tracing::info!(
        realm = %stay.identity.realm,
        device_id = %stay.identity.device,
        reason = reason.as_str(),
        "disconnected"
    );
    drop(claim);
}

/// Stops or erases the session; returns the epoch of one that went. Tries again while the disk does
/// not take it, since the next CONNECT must not find what was erased; gives up when the node stops.
async fn stop_session(
    shared: &Shared,
    stay: &Stay,
    erase: bool,
    expiry: SessionExpiry,
) -> Option<SessionEpoch> {
    let Stay { identity, epoch } = stay;
    let mut pause = RETRY_FIRST;
    loop {
        let stopped = if erase {
            shared.sessions.erase(identity).await
        } else {
            let now = shared.clock.wall();
            let erased = shared.sessions.stop(identity, *epoch, expiry, now).await;
            erased.map(|erased| erased.then_some(*epoch))
        };
        let error = match stopped {
            Ok(went) => return went,
            Err(SessionsError::Gone | SessionsError::Closed) => return None,
            Err(error) => error,
        };
        tracing::error!(
            realm = %identity.realm,
            device_id = %identity.device,
            %error,
            "the end of a session could not be written down"
        );
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_LAST),
            () = shared.drain.cancelled() => return None,
        }
    }
}
