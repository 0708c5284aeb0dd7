//! The API on its sockets: TCP, TLS over TCP, and the Unix socket.
//!
//! One task for each connection, all on the node's tracker. Limits hold before work is done: a
//! bounded number of connections (more wait to be accepted), a deadline for the handshake and for
//! each request's head. At the end the listener goes first and every connection finishes the
//! request it is in. What is served can change while it is served ([`Door`]), so that health is
//! answered before the rest of the node is there.

use std::{
    convert::Infallible, io, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use axum::{Router, body::Body, response::Response};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use super::{Limits, auth::Peer};

/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What is served behind the listeners; can be exchanged while they serve.
#[derive(Clone, Debug)]
pub struct Door(Arc<ArcSwap<Router>>);

impl Door {
    /// Serves this.
    #[must_use]
    pub fn new(router: Router) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(router)))
    }

    /// Serves this from the next request on.
    pub fn lead_to(&self, router: Router) {
        self.0.store(Arc::new(router));
    }
}

/// A listener that is bound already.
#[derive(Debug)]
pub enum Listener {
    /// Plain HTTP; the configuration says where that is right.
    Tcp(TcpListener),
    /// HTTPS; the certificate behind the configuration may be exchanged while it is served.
    Tls(TcpListener, Arc<rustls::ServerConfig>),
    /// The control socket.
    Unix(UnixListener),
}

/// Binds the control socket, readable and writable by its owner alone. A socket file that is left
/// over is removed: the caller holds the data directory's lock, so nobody listens there.
///
/// # Errors
/// When the socket cannot be bound.
pub fn bind_control_socket(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // the data directory is 0700, so nobody else reaches the socket before its mode is set
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves until `stop`, then finishes what is under way; connections run on `tracker`.
pub async fn serve(
    listener: Listener,
    door: Door,
    limits: Limits,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    let connections = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accept(&listener, &connections) => accepted,
        };
        match accepted {
            Ok(accepted) => {
                let serving = serve_connection(accepted, door.clone(), limits, stop.clone());
                tracker.spawn(serving);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the API was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection and its place under the limit.
struct Accepted {
    stream: Stream,
    peer: Peer,
    place: OwnedSemaphorePermit,
}

enum Stream {
    Tcp(TcpStream),
    Tls(TcpStream, Arc<rustls::ServerConfig>),
    Unix(UnixStream),
}

async fn accept(listener: &Listener, connections: &Arc<Semaphore>) -> io::Result<Accepted> {
    let place = connections
        .clone()
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, peer) = match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            (Stream::Tcp(stream), Peer::Tcp(address))
        }
        Listener::Tls(listener, config) => {
            let (stream, address) = listener.accept().await?;
            (Stream::Tls(stream, config.clone()), Peer::Tcp(address))
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            (Stream::Unix(stream), Peer::Socket { uid })
        }
    };
    Ok(Accepted {
        stream,
        peer,
        place,
    })
}

async fn serve_connection(accepted: Accepted, door: Door, limits: Limits, stop: CancellationToken) {
    let Accepted {
        stream,
        peer,
        place: _place,
    } = accepted;
    match stream {
        Stream::Tcp(stream) => {
            // an answer goes out at once
            let _ = stream.set_nodelay(true);
            serve_http(stream, peer, door, limits, stop).await;
        }
        Stream::Tls(stream, config) => {
            let _ = stream.set_nodelay(true);
            let handshake = TlsAcceptor::from(config).accept(stream);
            match tokio::time::timeout(limits.handshake_timeout, handshake).await {
                Ok(Ok(stream)) => serve_http(stream, peer, door, limits, stop).await,
                Ok(Err(error)) => tracing::debug!(?peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(?peer, "TLS handshake took too long"),
            }
        }
        Stream::Unix(stream) => serve_http(stream, peer, door, limits, stop).await,
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    door: Door,
    limits: Limits,
    stop: CancellationToken,
) {
    let service = service_fn(move |request| answer(door.clone(), peer, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(?peer, %error, "a connection to the API broke off");
    }
}

async fn answer(
    door: Door,
    peer: Peer,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    let router = Router::clone(&door.0.load());
    router.oneshot(request).await
}
