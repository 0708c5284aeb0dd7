//! Accepting sockets: limits first, then TLS, then the connection.
//!
//! The accept loop only counts and spawns. Whoever is beyond a limit is closed before anything is
//! computed for it. A handshake has one deadline in all; waiting for the peer's bytes costs nothing
//! but memory, which the limits bound; the asymmetric work is done under a permit, so that a fleet
//! that returns at once cannot keep established connections waiting.

mod admission;
mod handshake;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    broker::{Peer, Shared},
    connection,
};
pub(super) use admission::Admission;
use admission::Place;
pub(super) use handshake::Handshakes;

/// Connections that the kernel holds for us until they are accepted.
const BACKLOG: u32 = 1_024;
/// Pauses after an accept that failed for want of something, e.g. file descriptors.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_LAST: Duration = Duration::from_secs(1);

/// What listens, and what comes of a socket.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) shared: Arc<Shared>,
    pub(super) admission: Arc<Admission>,
    /// `None`: plaintext, for development.
    pub(super) handshakes: Option<Arc<Handshakes>>,
    /// Cancelled: devices are let in.
    pub(super) opened: CancellationToken,
    /// Cancelled: nobody is let in any more.
    pub(super) closed: CancellationToken,
    /// Cancelled: connections are dropped where they stand.
    pub(super) hard: CancellationToken,
}

/// Binds an address.
///
/// # Errors
/// What the system says.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // a restart must not wait for the old connections' TIME_WAIT
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Door {
    /// Accepts until the door is closed.
    pub(super) async fn accept(self, listener: TcpListener) {
        tokio::select! {
            () = self.closed.cancelled() => return,
            () = self.opened.cancelled() => {}
        }
        let mut pause = PAUSE_FIRST;
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    pause = PAUSE_FIRST;
                    self.admit(stream, address);
                }
                Err(error) if is_peers_fault(&error) => {
                    tracing::debug!(%error, "connection ended before it was accepted");
                }
                Err(error) => {
                    if pause == PAUSE_FIRST {
                        tracing::error!(%error, "no connection can be accepted; trying again");
                    }
                    tokio::select! {
                        () = self.closed.cancelled() => return,
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_LAST),
                    }
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, address: SocketAddr) {
        let place = match self.admission.enter(address.ip()) {
            Ok(place) => place,
            Err(outcome) => {
                self.shared.counters.connect(outcome);
                tracing::debug!(peer = %address, reason = outcome.as_str(), "connection refused");
                return;
            }
        };
        let door = self.clone();
        let span = tracing::info_span!("connection", peer = %address);
        let serving = async move {
            let hard = door.hard.clone();
            tokio::select! {
                biased;
                () = hard.cancelled() => {}
                () = door.serve(stream, address, place) => {}
            }
        };
        self.shared.tracker.spawn(serving.instrument(span));
    }

    async fn serve(self, stream: TcpStream, address: SocketAddr, mut place: Place) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "connection ended as soon as it began");
            return;
        }
        let Some(handshakes) = &self.handshakes else {
            place.handshake_ended();
            let peer = Peer {
                address,
                identity: None,
            };
            return Box::pin(connection::serve(stream, peer, self.shared)).await;
        };
        let done = tokio::select! {
            biased;
            () = self.closed.cancelled() => return,
            done = Box::pin(handshakes.shake_hands(stream)) => done,
        };
        place.handshake_ended();
        match done {
            Ok((stream, identity, certificate)) => {
                let identity = Some((identity, Arc::new(certificate)));
                let peer = Peer { address, identity };
                Box::pin(connection::serve(stream, peer, self.shared)).await;
            }
            Err(outcome) => self.shared.counters.connect(outcome),
        }
        drop(place);
    }
}

/// Errors of the one connection, not of the listener (accept(2)).
fn is_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
    )
}
