//! Real TLS handshakes between a client's configuration and ours, in memory.

use std::sync::Mutex;

use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{ServerName, UnixTime},
};

use super::*;
use crate::{
    clock::{ManualClock, SharedClock},
    pki::{ChainReason, ServerCertificateFiles, ServerCertificates, crypto_provider},
};

/// Takes any server; these tests look at the other end.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = crypto_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = crypto_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        crypto_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A client with this certificate, or without any.
fn client(
    leaf: Option<&TestLeaf>,
    version: &'static SupportedProtocolVersion,
    adapt: impl FnOnce(&mut rustls::crypto::CryptoProvider),
) -> Arc<ClientConfig> {
    let mut provider = rustls::crypto::ring::default_provider();
    adapt(&mut provider);
    let builder = ClientConfig::builder_with_provider(arc(provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(arc(AnyServer));
    let mut config = match leaf {
        Some(leaf) => builder
            .with_client_auth_cert(leaf.chain.clone(), leaf.private_key())
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.enable_early_data = true;
    arc(config)
}

/// Shakes hands until both ends are done; the server's error if it refuses.
fn shake_hands(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    assert!(
        client.early_data().is_none(),
        "early data was offered to the client"
    );
    // some more rounds than a handshake has, so that tickets would arrive
    for _ in 0..10 {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        let mut unread = bytes.as_slice();
        while !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        let mut unread = bytes.as_slice();
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client
                .process_new_packets()
                .expect("the client takes what the server says");
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok((client, server))
}

struct Server {
    realms: TwoRealms,
    clock: Arc<ManualClock>,
    config: Arc<ServerConfig>,
    certificates: ServerCertificates,
    directory: tempfile::TempDir,
}

impl Server {
    fn start(files: impl FnOnce(&tempfile::TempDir) -> Vec<ServerCertificateFiles>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(now());
        let shared: SharedClock = clock.clone();
        let files = files(&directory);
        let certificates =
            ServerCertificates::open(directory.path(), files, "example", shared.clone()).unwrap();
        let realms = TwoRealms::new();
        let config = certificates.mqtt_config(&realms.pools, shared).unwrap();
        Self {
            realms,
            clock,
            config,
            certificates,
            directory,
        }
    }

    fn generated() -> Self {
        Self::start(|_| Vec::new())
    }

    /// What the server makes of a device: its identity, or why it was refused in the handshake.
    fn meets(&self, client: &Arc<ClientConfig>) -> Result<Identity, rustls::Error> {
        let (_, server) = shake_hands(client, &self.config, "localhost")?;
        let chain = server.peer_certificates().unwrap();
        let (identity, _) = self.realms.pools.accept(chain, now()).unwrap();
        Ok(identity)
    }
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

#[test]
fn a_device_is_known_after_the_handshake_in_both_versions() {
    let server = Server::generated();
    let leaf = server.realms.acme.leaf(format!("acme/{D1}"));
    for version in VERSIONS {
        let identity = server.meets(&client(Some(&leaf), version, |_| {})).unwrap();
        assert_eq!(identity, device("acme", D1));
    }
}

#[test]
fn a_client_without_certificate_is_refused() {
    let server = Server::generated();
    for version in VERSIONS {
        let error = server.meets(&client(None, version, |_| {})).unwrap_err();
        assert_eq!(error, rustls::Error::NoCertificatesPresented);
    }
}

#[test]
fn fc_065_a_foreign_realms_certificate_is_refused_and_counted() {
    let server = Server::generated();
    let leaf = server.realms.globex.leaf(format!("acme/{D1}"));
    for version in VERSIONS {
        let error = server
            .meets(&client(Some(&leaf), version, |_| {}))
            .unwrap_err();
        assert_eq!(
            error,
            rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)
        );
    }
    let unknown = server.realms.acme.leaf(format!("initech/{D1}"));
    server
        .meets(&client(Some(&unknown), VERSIONS[1], |_| {}))
        .unwrap_err();

    let counted: Vec<_> = server
        .realms
        .pools
        .refusals()
        .into_iter()
        .map(|refusal| (refusal.realm, refusal.reason, refusal.count))
        .collect();
    assert_eq!(
        counted,
        [
            (None, ChainReason::UnknownRealm, 1),
            (Some(realm("acme")), ChainReason::UnknownIssuer, 2),
        ]
    );
}

#[test]
fn a_stolen_certificate_without_its_key_is_refused() {
    let server = Server::generated();
    let mut leaf = server.realms.acme.leaf(format!("acme/{D1}"));
    leaf.key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    // rustls compares key and certificate on the client; a thief would not
    let key = rustls::crypto::ring::sign::any_supported_type(&leaf.private_key()).unwrap();
    let stolen = rustls::sign::CertifiedKey::new(leaf.chain.clone(), key);
    for version in VERSIONS {
        let config = ClientConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(arc(AnyServer))
            .with_client_cert_resolver(arc(rustls::sign::SingleCertAndKey::from(stolen.clone())));
        let error = server.meets(&arc(config)).unwrap_err();
        assert_eq!(
            error,
            rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature)
        );
    }
}

#[test]
fn fc_066_nothing_is_ever_resumed() {
    for version in VERSIONS {
        let server = Server::generated();
        let leaf = server.realms.acme.leaf(format!("acme/{D1}"));
        // the same configuration, and so the same memory of tickets and sessions
        let returning = client(Some(&leaf), version, |_| {});
        for _ in 0..3 {
            let (client, accepted) = shake_hands(&returning, &server.config, "localhost").unwrap();
            assert_eq!(accepted.handshake_kind(), Some(HandshakeKind::Full));
            assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full));
            assert_eq!(client.tls13_tickets_received(), 0);
        }

        let mut pool = contents(&[&server.realms.acme]);
        pool.revoked = vec![(device("acme", D1).device, leaf.serial())];
        server.realms.pools.replace(&realm("acme"), &pool).unwrap();
        let error = server.meets(&returning).unwrap_err();
        assert_eq!(
            error,
            rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked)
        );

        server
            .realms
            .pools
            .replace(&realm("acme"), &contents(&[]))
            .unwrap();
        let error = server.meets(&returning).unwrap_err();
        assert_eq!(
            error,
            rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)
        );
    }
}

#[test]
fn fc_069_a_new_server_certificate_is_served_and_a_broken_one_is_not() {
    let authority = TestCa::root("server authority");
    let paths = |directory: &tempfile::TempDir| ServerCertificateFiles {
        certificate: directory.path().join("tls.crt"),
        key: directory.path().join("tls.key"),
    };
    let write = |files: &ServerCertificateFiles, leaf: &TestLeaf| {
        std::fs::write(&files.certificate, leaf.pem()).unwrap();
        std::fs::write(&files.key, leaf.key.serialize_pem()).unwrap();
    };
    let [first, second] = ["first", "second"].map(|name| authority.leaf(name));
    let server = Server::start(|directory| {
        write(&paths(directory), &first);
        vec![paths(directory)]
    });
    let files = paths(&server.directory);
    let leaf = server.realms.acme.leaf(format!("acme/{D1}"));
    let config = client(Some(&leaf), VERSIONS[1], |_| {});
    let shown = || {
        let (client, _) = shake_hands(&config, &server.config, "localhost").unwrap();
        client.peer_certificates().unwrap()[0].clone()
    };
    let (mut device_end, mut our_end) = shake_hands(&config, &server.config, "localhost").unwrap();
    assert_eq!(shown(), first.chain[0]);

    write(&files, &second);
    server.certificates.reload().unwrap();
    assert_eq!(shown(), second.chain[0]);

    std::fs::write(&files.key, first.key.serialize_pem()).unwrap();
    let error = server.certificates.reload().unwrap_err().to_string();
    assert!(
        error.contains("tls.key") && error.contains("does not belong"),
        "{error}"
    );
    std::fs::write(&files.certificate, "rubbish").unwrap();
    let error = server.certificates.reload().unwrap_err().to_string();
    assert!(error.contains("tls.crt"), "{error}");
    std::fs::remove_file(&files.certificate).unwrap();
    server.certificates.reload().unwrap_err();
    assert_eq!(
        shown(),
        second.chain[0],
        "a broken reload changed what is served"
    );

    // a connection made before goes on
    std::io::Write::write_all(&mut device_end.writer(), b"PINGREQ").unwrap();
    let mut bytes = Vec::new();
    device_end.write_tls(&mut bytes).unwrap();
    our_end.read_tls(&mut bytes.as_slice()).unwrap();
    assert_eq!(
        our_end
            .process_new_packets()
            .unwrap()
            .plaintext_bytes_to_read(),
        7
    );
}

#[test]
fn fc_072_the_handshake_reads_the_servers_clock() {
    let server = Server::generated();
    let leaf = server.realms.acme.leaf(format!("acme/{D1}"));
    let config = client(Some(&leaf), VERSIONS[1], |_| {});
    server.meets(&config).unwrap();
    server.clock.advance(91 * DAY);
    let error = server.meets(&config).unwrap_err();
    assert_eq!(
        error,
        rustls::Error::InvalidCertificate(rustls::CertificateError::Expired)
    );
}

/// A server with an RSA and an ECDSA certificate, in this order of the two or one alone.
fn with_certificates(kinds: &[&str]) -> Server {
    let made = openssl(&[
        "req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -days 4000 -subj /CN=rsa -out rsa.crt",
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ecdsa.key -days 4000 -subj /CN=ecdsa -out ecdsa.crt",
    ]);
    Server::start(|_| {
        kinds
            .iter()
            .map(|kind| ServerCertificateFiles {
                certificate: made.path().join(format!("{kind}.crt")),
                key: made.path().join(format!("{kind}.key")),
            })
            .collect()
    })
}

fn served_name(connection: &ClientConnection) -> String {
    let leaf = &connection.peer_certificates().unwrap()[0];
    crate::pki::certificate_name::parse(leaf)
        .unwrap()
        .subject()
        .to_string()
}

#[test]
fn fc_079_rsa_and_ecdsa_clients_meet_rsa_and_ecdsa_servers() {
    let rsa_key = openssl(&["genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out key.pem"]);
    let rsa_key = read(&rsa_key, "key.pem");
    for kinds in [&["rsa"][..], &["ecdsa"], &["rsa", "ecdsa"]] {
        let server = with_certificates(kinds);
        let name = |params: &mut CertificateParams| {
            params.distinguished_name = common_name(format!("acme/{D1}"));
        };
        let leaves = [
            server.realms.acme.leaf_with(name),
            server
                .realms
                .acme
                .leaf_for(KeyPair::from_pem(&rsa_key).unwrap(), name),
        ];
        for leaf in &leaves {
            for version in VERSIONS {
                let identity = server.meets(&client(Some(leaf), version, |_| {})).unwrap();
                assert_eq!(identity, device("acme", D1));
            }
            // stacks that have one kind of TLS 1.2 suite alone get the certificate that fits
            for (kind, other) in [("rsa", "ECDSA"), ("ecdsa", "_RSA_")] {
                let limited = client(Some(leaf), VERSIONS[0], |provider| {
                    provider
                        .cipher_suites
                        .retain(|suite| !format!("{:?}", suite.suite()).contains(other));
                });
                let met = shake_hands(&limited, &server.config, "localhost");
                assert_eq!(
                    met.is_ok(),
                    kinds.contains(&kind),
                    "{kind} client, {kinds:?} server"
                );
                if let Ok((client, _)) = met {
                    assert_eq!(served_name(&client), format!("CN={kind}"));
                }
            }
        }
    }
}

#[test]
fn fc_079_a_client_of_old_suites_fails_and_the_log_says_what_it_offered() {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let server = with_certificates(&["rsa", "ecdsa"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut old = std::process::Command::new("openssl")
        .args([
            "s_client",
            "-tls1_2",
            "-cipher",
            "ECDHE-RSA-AES128-SHA:AES128-SHA@SECLEVEL=0",
        ])
        .args(["-connect", &address.to_string()])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let refused = tracing::subscriber::with_default(subscriber, || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut connection = ServerConnection::new(Arc::clone(&server.config)).unwrap();
        connection.complete_io(&mut socket)
    });
    assert!(refused.is_err(), "CBC was accepted");
    old.wait().unwrap();
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"), "{log}");
    assert!(
        log.contains("0x2f"),
        "TLS_RSA_WITH_AES_128_CBC_SHA is not named: {log}"
    );
}

#[test]
fn fc_081_any_server_name_or_none_will_do() {
    let server = Server::generated();
    let leaf = server.realms.acme.leaf(format!("acme/{D1}"));
    for version in VERSIONS {
        let config = client(Some(&leaf), version, |_| {});
        // an IP address sends no SNI (RFC 6066 section 3)
        for name in [
            "127.0.0.1",
            "::1",
            "unknown.example",
            "localhost.",
            "LOCALHOST",
            "globex.example",
        ] {
            let (client, accepted) = shake_hands(&config, &server.config, name).unwrap();
            assert_eq!(served_name(&client), "CN=example");
            let chain = accepted.peer_certificates().unwrap();
            let (identity, _) = server.realms.pools.accept(chain, now()).unwrap();
            assert_eq!(identity, device("acme", D1), "{name}");
        }
        let mut silent = ClientConfig::clone(&config);
        silent.enable_sni = false;
        assert_eq!(server.meets(&arc(silent)).unwrap(), device("acme", D1));
    }
}
