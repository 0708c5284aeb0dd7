//! One TLS handshake: deadline, permit, identity.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustls::{ServerConfig, server::ClientHello};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tokio_util::sync::PollSemaphore;

use crate::{
    clock::SharedClock,
    identity::Identity,
    mqtt::{
        PeerCertificate,
        broker::{BrokerSettings, ConnectOutcome},
    },
    pki::Pools,
};

/// Of what a client offers so much is kept for the log.
const OFFERED_MAX: usize = 48;

/// A device whose handshake succeeded.
pub(super) type Shaken = (TlsStream<TcpStream>, Identity, PeerCertificate);

/// Does TLS handshakes.
pub(in crate::mqtt) struct Handshakes {
    config: Arc<ServerConfig>,
    pools: Pools,
    clock: SharedClock,
    at_work: Arc<Semaphore>,
    timeout: Duration,
}

impl Handshakes {
    pub(in crate::mqtt) fn new(
        config: Arc<ServerConfig>,
        pools: Pools,
        clock: SharedClock,
        settings: &BrokerSettings,
    ) -> Self {
        let at_work = Arc::new(Semaphore::new(settings.handshakes_at_work_max.max(1)));
        Self {
            config,
            pools,
            clock,
            at_work,
            timeout: settings.handshake_timeout,
        }
    }

    /// The handshake, within its time in all.
    ///
    /// # Errors
    /// What the attempt counts as; it is logged.
    pub(super) async fn shake_hands(&self, stream: TcpStream) -> Result<Shaken, ConnectOutcome> {
        timeout(self.timeout, self.shake(stream))
            .await
            .unwrap_or_else(|_| {
                tracing::info!(
                    reason = "handshake_timeout",
                    "TLS handshake not done in time"
                );
                Err(ConnectOutcome::HandshakeTimeout)
            })
    }

    async fn shake(&self, stream: TcpStream) -> Result<Shaken, ConnectOutcome> {
        // nothing is computed until the ClientHello is whole
        let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
        let started = acceptor.await.map_err(|error| refuse(&error, None))?;
        let offered = Offered::of(&started.client_hello());
        let accepting = started.into_stream(Arc::clone(&self.config));
        let stream = under_permit(accepting, PollSemaphore::new(Arc::clone(&self.at_work)))
            .await
            .map_err(|error| refuse(&error, Some(&offered)))?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        match self.pools.accept(chain, self.clock.wall()) {
            Ok((identity, certificate)) => Ok((stream, identity, certificate)),
            // the pool changed while the handshake went on
            Err(error) => {
                tracing::info!(reason = error.reason.as_str(), "{error}");
                Err(ConnectOutcome::CertificateRefused)
            }
        }
    }
}

/// Polls `work` only while it holds a permit, and holds it only while it polls: what a handshake
/// computes it computes in `poll`, and while it waits for bytes others may compute.
async fn under_permit<F: Future>(work: F, mut permits: PollSemaphore) -> F::Output {
    let mut work = pin!(work);
    poll_fn(move |context: &mut Context<'_>| -> Poll<F::Output> {
        let permit = ready!(permits.poll_acquire(context));
        let poll = work.as_mut().poll(context);
        drop(permit);
        poll
    })
    .await
}

/// What the client offered, for the log line of a handshake that found nothing in common.
struct Offered {
    suites: Vec<rustls::CipherSuite>,
    schemes: Vec<rustls::SignatureScheme>,
    server_name: bool,
}

impl Offered {
    fn of(hello: &ClientHello<'_>) -> Self {
        Self {
            suites: hello
                .cipher_suites()
                .iter()
                .take(OFFERED_MAX)
                .copied()
                .collect(),
            schemes: hello
                .signature_schemes()
                .iter()
                .take(OFFERED_MAX)
                .copied()
                .collect(),
            server_name: hello.server_name().is_some(),
        }
    }
}

/// Counts and logs a handshake that failed.
fn refuse(error: &io::Error, offered: Option<&Offered>) -> ConnectOutcome {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let outcome = outcome_of(tls);
    let reason = outcome.as_str();
    match (outcome, offered) {
        // the verifier has said which certificate and why
        (ConnectOutcome::CertificateRefused, _) => {
            tracing::debug!(reason, %error, "TLS handshake refused");
        }
        (ConnectOutcome::HandshakeUnsupported, Some(offered)) => tracing::warn!(
            reason,
            offered_cipher_suites = ?offered.suites,
            offered_signature_schemes = ?offered.schemes,
            server_name = offered.server_name,
            "TLS client has nothing in common with us: {error}; \
             TLS 1.2 needs an ECDHE suite with AES-GCM or ChaCha20-Poly1305"
        ),
        _ => tracing::info!(reason, %error, "TLS handshake failed"),
    }
    outcome
}

fn outcome_of(error: Option<&rustls::Error>) -> ConnectOutcome {
    match error {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            ConnectOutcome::CertificateRefused
        }
        Some(rustls::Error::PeerIncompatible(_)) => ConnectOutcome::HandshakeUnsupported,
        _ => ConnectOutcome::HandshakeFailed,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Work that counts how many are being polled at once, and waits once in between.
    async fn work(at_once: Arc<AtomicUsize>, most: Arc<AtomicUsize>) {
        for _ in 0..10 {
            let mut waited = false;
            poll_fn(|context| {
                let now = at_once.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                std::thread::yield_now();
                at_once.fetch_sub(1, Ordering::SeqCst);
                if std::mem::replace(&mut waited, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn fc_052_no_more_handshakes_are_computed_at_once_than_there_are_permits() {
        let (at_once, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let permits = Arc::new(Semaphore::new(2));
        let tracker = tokio_util::task::TaskTracker::new();
        for _ in 0..200 {
            let work = work(Arc::clone(&at_once), Arc::clone(&most));
            tracker.spawn(under_permit(work, PollSemaphore::new(Arc::clone(&permits))));
        }
        tracker.close();
        tracker.wait().await;
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)));
        assert_eq!(permits.available_permits(), 2);
    }

    #[tokio::test]
    async fn a_handshake_that_waits_for_bytes_holds_no_permit() {
        let permits = Arc::new(Semaphore::new(1));
        let waiting = under_permit(
            std::future::pending::<()>(),
            PollSemaphore::new(Arc::clone(&permits)),
        );
        let mut waiting = pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(permits.available_permits(), 1);
    }
}
