//! The API on real sockets.

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::{
    server::{self, Door, Listener},
    starting,
};

/// A running server.
struct Serving {
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Serving {
    fn start(listener: Listener, router: Router, limits: Limits) -> (Self, Door) {
        let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
        let door = Door::new(router);
        tracker.spawn(server::serve(
            listener,
            door.clone(),
            limits,
            tracker.clone(),
            stop.clone(),
        ));
        (Self { stop, tracker }, door)
    }

    async fn end(self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

async fn tcp() -> (Listener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (Listener::Tcp(listener), address)
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn pairing_answers_are_never_chunked_and_carry_their_length() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    let (listener, address) = tcp().await;
    let (serving, _) = Serving::start(listener, house.router.clone(), Limits::default());
    let path = format!("/pairing/v1/acme/devices/{ID}");
    let verify = format!("{path}/protocols/astarte_mqtt_v1/credentials/verify");
    let body = r#"{"data":{"client_crt":"x"}}"#;
    let length = body.len();
    for request in [
        format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\nconnection: close\r\n\r\n"
        ),
        format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer no\r\nconnection: close\r\n\r\n"
        ),
        format!(
            "POST {verify} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ),
    ] {
        let answer = talk(TcpStream::connect(address).await.unwrap(), &request).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        assert!(!head.contains("transfer-encoding"), "{answer}");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{answer}"
        );
        assert!(!body.contains(": ") || body.contains("mqtts://"), "{body}");
    }
    serving.end().await;
}

#[tokio::test]
async fn the_socket_knows_its_caller_and_wants_no_token() {
    use std::os::unix::fs::PermissionsExt as _;
    let house = House::start().await;
    let path = house.dir.path().join("control.sock");
    // one that was left over
    drop(server::bind_control_socket(&path).unwrap());
    let listener = server::bind_control_socket(&path).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let (serving, _) = Serving::start(
        Listener::Unix(listener),
        house.router.clone(),
        Limits::default(),
    );
    let request = "POST /tanit/v1/reload HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = talk(UnixStream::connect(&path).await.unwrap(), request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(house.audit().await[0].actor, format!("socket:{uid}"));
    serving.end().await;
}

#[tokio::test]
async fn health_is_answered_before_the_rest_is_there() {
    let house = House::start().await;
    house.node.ready.store(false, Ordering::Relaxed);
    let (listener, address) = tcp().await;
    let (serving, door) = Serving::start(listener, starting(&house.api.node), Limits::default());
    let ask = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        talk(TcpStream::connect(address).await.unwrap(), &request).await
    };
    assert!(ask("/health/live").await.starts_with("HTTP/1.1 200"));
    assert!(ask("/health").await.starts_with("HTTP/1.1 503"));
    let early = ask("/pairing/v1/acme/version").await;
    assert!(
        early.starts_with("HTTP/1.1 503") && early.contains("retry-after: 1"),
        "{early}"
    );
    house.node.ready.store(true, Ordering::Relaxed);
    door.lead_to(house.router.clone());
    assert!(ask("/health").await.starts_with("HTTP/1.1 200"));
    assert!(
        ask("/pairing/v1/acme/version")
            .await
            .starts_with("HTTP/1.1 200")
    );
    serving.end().await;
}

#[tokio::test]
async fn https_serves_the_broker_s_certificate_and_ends_a_handshake_that_stalls() {
    use rustls::pki_types::{CertificateDer, ServerName};
    let house = House::start().await;
    let clock = house.clock.clone();
    let certificates =
        crate::pki::ServerCertificates::open(house.dir.path(), Vec::new(), "gate", clock).unwrap();
    let (Listener::Tcp(listener), address) = tcp().await else {
        panic!("made above")
    };
    let limits = Limits {
        handshake_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let listener = Listener::Tls(listener, certificates.https_config().unwrap());
    let (serving, _) = Serving::start(listener, house.router.clone(), limits);

    let mut roots = rustls::RootCertStore::empty();
    let ca = pem::parse(certificates.ca_pem().unwrap()).unwrap();
    roots.add(CertificateDer::from(ca.into_contents())).unwrap();
    let time = Arc::new(FixedTime(house.clock_wall()));
    let config = rustls::ClientConfig::builder_with_details(crate::pki::crypto_provider(), time)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector
        .connect(name, TcpStream::connect(address).await.unwrap())
        .await
        .unwrap();
    let request = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(talk(stream, request).await.starts_with("HTTP/1.1 200"));

    let mut silent = TcpStream::connect(address).await.unwrap();
    // ends when the server gives up
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    serving.end().await;
}

/// The time of a test, for the TLS client.
#[derive(Debug)]
struct FixedTime(Timestamp);

impl rustls::time_provider::TimeProvider for FixedTime {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        let seconds = u64::try_from(self.0.as_millis() / 1000).ok()?;
        Some(rustls::pki_types::UnixTime::since_unix_epoch(
            Duration::from_secs(seconds),
        ))
    }
}

#[tokio::test]
async fn an_idle_or_slow_connection_is_closed_and_the_end_waits_for_requests() {
    let house = House::start().await;
    let (listener, address) = tcp().await;
    let limits = Limits {
        header_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let (serving, _) = Serving::start(listener, house.router.clone(), limits);
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET / HTT").await.unwrap();
    let mut rest = Vec::new();
    // ends when the server gives up
    slow.read_to_end(&mut rest).await.unwrap();
    serving.end().await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nobody listens any more"
    );
}
