//! The task of one socket, from CONNECT to the moment when the device is gone in every respect.
//!
//! `accept.rs` reads the CONNECT and lets the device in, `run.rs` is the loop, `finish.rs` clears
//! up. What MQTT asks is decided by [`super::session`]; here bytes are moved, effects performed and
//! clocks watched. One task owns the stream, and nothing that it waits for keeps acknowledgements,
//! deliveries or timers waiting: permits and writes to disk are futures beside the others.
//!
//! Order at the end of a connection: socket, will, session, receipts, the engine is told that the
//! device is disconnected, and then the identity is free for the next connection.

mod accept;
mod acks;
mod feed;
mod finish;
mod run;
mod timers;
mod wills;
mod wire;

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    broker::{BrokerSettings, Peer, Shared},
    session::{Limits, Policy},
};
pub use wills::DelayedWills;

/// Serves one socket until its device is gone: its will handled, its session stopped, the engine
/// told, its identity free for the next connection. Refuses, counts and logs by itself whoever does
/// not get that far.
///
/// `peer` carries identity and certificate of a handshake; without them the client id is believed,
/// as on the plaintext development listener.
///
/// # Cancel safety
/// Not safe: dropped after CONNACK, the future leaves the device recorded as connected. To end a
/// connection, kick it through [`Owners`](super::takeover::Owners) or cancel [`Shared::drain`].
pub async fn serve<S>(stream: S, peer: Peer, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let settings = &shared.settings;
    let mut wire = wire::Wire::new(stream, settings, Arc::clone(&shared.counters));
    match accept::accept(&mut wire, &peer, &shared).await {
        Err(outcome) => {
            shared.counters.connect(outcome);
            wire.close().await;
        }
        Ok(accepted) => {
            let stay = accepted.stay.clone();
            let (closing, claim) = run::run(&mut wire, accepted, &shared).await;
            let linger = wire.shut_down().await;
            finish::finish(&shared, &stay, closing, claim).await;
            if linger {
                wire.linger().await;
            }
        }
    }
}

impl Limits {
    /// The session's part of the broker's settings.
    fn of(settings: &BrokerSettings) -> Self {
        Self {
            topic_levels_max: settings.topic_levels_max,
            window_messages_max: usize::from(settings.window_messages.get()),
            window_bytes_max: settings.window_bytes,
            qos2_ids_max: settings.inbound_qos2_max,
            inflight_max: settings.outbound_inflight.get(),
            filters_max: settings.filters_per_packet_max,
            topic_alias_max: settings.topic_alias_max,
        }
    }
}

impl Policy {
    /// What CONNECT may ask for under these settings.
    fn of(settings: &BrokerSettings) -> Self {
        Self {
            session_expiry_max: settings.session_expiry_max,
            keep_alive_max: settings.keep_alive_max,
            packet_bytes_max: settings.packet_bytes_max,
            receive_max: settings.inbound_qos2_max,
            topic_alias_max: settings.topic_alias_max,
        }
    }
}

#[cfg(test)]
mod tests;
