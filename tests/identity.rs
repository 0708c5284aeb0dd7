//! Whose connection it is: certificates, CAs, revocation, expiry, and what TLS may not change.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
    time::{Instant, timeout},
};

use crate::harness::{
    device::{RawDevice, bson, connect, connect_v5},
    postgres::Cluster,
    product::{PATIENCE, Tanit, TestDevice, client_tls_of},
};

/// A CA of the test's own.
struct Ca {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

impl Ca {
    fn root(name: &str) -> Self {
        let (params, key) = Self::parts(name);
        let pem = params.self_signed(&key).expect("a CA").pem();
        Self { params, key, pem }
    }

    fn below(&self, name: &str) -> Self {
        let (params, key) = Self::parts(name);
        let pem = params.signed_by(&key, &self.issuer()).expect("a CA").pem();
        Self { params, key, pem }
    }

    fn parts(name: &str) -> (CertificateParams, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params, KeyPair::generate().expect("a key"))
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }

    /// A client certificate for the device's key.
    fn leaf(&self, name: &str, device: &TestDevice) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params
            .signed_by(&*device.key, &self.issuer())
            .expect("a certificate")
            .pem()
    }

    /// The device with a certificate of this CA.
    fn certify(&self, device: &TestDevice) -> TestDevice {
        let mut device = device.clone();
        device.certificate = self.leaf(&device.base(), &device);
        device
    }

    /// A CRL with the certificates of these devices.
    fn crl(&self, devices: &[&TestDevice]) -> String {
        let now = time::OffsetDateTime::now_utc();
        let revoked = |device: &&TestDevice| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial(&device.certificate)),
            revocation_time: now - time::Duration::HOUR,
            reason_code: None,
            invalidity_date: None,
        };
        CertificateRevocationListParams {
            this_update: now - time::Duration::HOUR,
            next_update: now + time::Duration::DAY,
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: devices.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        }
        .signed_by(&self.issuer())
        .and_then(|crl| crl.pem())
        .expect("a CRL")
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

fn serial(certificate: &str) -> Vec<u8> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).expect("a PEM");
    let parsed = pem.parse_x509().expect("a certificate");
    parsed.raw_serial().to_vec()
}

fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).expect("a file");
    path.display().to_string()
}

/// Imports a CA, with its key and for issuing if `issuing`; its fingerprint.
async fn import(tanit: &Tanit, realm: &str, ca: &Ca, issuing: bool) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let certificate = write(folder.path(), "ca.pem", &ca.pem);
    let key = write(folder.path(), "ca.key", &ca.key.serialize_pem());
    let mut verb = vec!["realm", "ca", "import", realm, &certificate];
    if issuing {
        verb.extend(["--key", &key, "--issuing"]);
    }
    let imported = tanit.cli(&verb).await;
    imported["fingerprint"]
        .as_str()
        .expect("a fingerprint")
        .to_owned()
}

/// Tries to connect; whether it was refused, by TLS or by CONNACK 5.
async fn is_refused(tanit: &Tanit, device: &TestDevice) -> bool {
    let opened = RawDevice::open(tanit.mqtt, device.tls(), device.base()).await;
    let Ok(mut connection) = opened else {
        return true;
    };
    connection.send_anyway(&connect("", false, 60)).await;
    // in TLS 1.3 the client learns of the refusal when it reads
    match connection.next().await {
        None => true,
        Some(answer) => {
            assert_eq!(answer.kind(), 2, "a CONNACK: {answer:02x?}");
            assert!([0, 5].contains(&answer.body[1]), "{answer:02x?}");
            answer.body[1] == 5
        }
    }
}

/// The device's connection is closed within five seconds of `since`.
async fn closed_in_time(connection: &mut RawDevice, since: Instant, what: &str) {
    connection.expect_closed().await;
    let took = since.elapsed();
    assert!(took < Duration::from_secs(5), "{what}: after {took:?}");
}

async fn last_reason(tanit: &Tanit, device: &TestDevice) -> Option<String> {
    tanit
        .history(device)
        .await
        .pop()
        .and_then(|(_, _, reason)| reason)
}

#[tokio::test]
async fn fc_065_a_certificate_of_another_realms_ca_is_nobody_here() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    tanit.realm("globex").await;
    let ca_g = Ca::root("CA-G of the test");
    import(&tanit, "globex", &ca_g, true).await;
    let device = tanit.device("acme").await;
    let (mut real, _) = device.connect(&tanit).await;
    let acme_ca = tanit.cli(&["realm", "ca", "print", "acme"]).await;
    let acme_ca = acme_ca["certificate_pem"].as_str().expect("a PEM");
    let below = ca_g.below("intermediate of the test");
    let leaf = ca_g.leaf(&device.base(), &device);
    let chains = [
        leaf.clone(),
        below.leaf(&device.base(), &device) + &below.pem,
        format!("{leaf}{acme_ca}"),
        format!("{leaf}{}{acme_ca}", ca_g.pem),
    ];
    let before = tanit
        .metric("tanit_connects_total{outcome=\"certificate_refused\"}")
        .await;
    let count = u64::try_from(chains.len()).expect("few");
    for (number, chain) in chains.into_iter().enumerate() {
        let mut forged = device.clone();
        forged.certificate = chain;
        assert!(is_refused(&tanit, &forged).await, "chain {number}");
    }
    real.expect_only_pong().await;
    assert_eq!(
        tanit.history(&device).await.len(),
        1,
        "its own connect alone"
    );
    let counted = tanit
        .metric("tanit_connects_total{outcome=\"certificate_refused\"}")
        .await;
    assert_eq!(counted - before, count, "each refusal is counted");
    let log = tanit.log();
    assert!(
        log.contains("CA-G of the test"),
        "the issuer is named: {log}"
    );
}

#[tokio::test]
async fn fc_066_no_ticket_is_sent_and_nothing_is_resumed() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let versions = [&rustls::version::TLS12, &rustls::version::TLS13];
    for version in versions {
        for way in ["revoke", "delete", "CA"] {
            let device = tanit.device("acme").await;
            let tls = client_tls_of(
                &[version],
                &device.server_ca,
                &device.certificate,
                &device.key,
            );
            let mut tls = Arc::unwrap_or_clone(tls);
            tls.enable_early_data = true;
            let tls = Arc::new(tls);
            for _ in 0..3 {
                let mut connection = RawDevice::open(tanit.mqtt, Arc::clone(&tls), device.base())
                    .await
                    .expect("TLS is accepted");
                connection.connect("", false, 60).await;
                connection.expect_only_pong().await;
                let state = connection.tls();
                assert_eq!(state.handshake_kind(), Some(rustls::HandshakeKind::Full));
                assert_eq!(state.tls13_tickets_received(), 0);
                assert!(!state.is_early_data_accepted());
                connection.disconnect().await;
            }
            match way {
                "revoke" => {
                    tanit
                        .cli(&["device", "revoke", "acme", &device.id, "--yes"])
                        .await;
                }
                "delete" => {
                    tanit
                        .cli(&["device", "delete", "acme", &device.id, "--yes"])
                        .await;
                }
                _ => {
                    let old = tanit.cli(&["realm", "ca", "print", "acme"]).await;
                    let old = old["fingerprint"].as_str().expect("a fingerprint");
                    tanit.cli(&["realm", "ca", "rotate", "acme"]).await;
                    tanit
                        .cli(&["realm", "ca", "remove", "acme", old, "--yes"])
                        .await;
                }
            }
            let opened = RawDevice::open(tanit.mqtt, Arc::clone(&tls), device.base()).await;
            if let Ok(mut connection) = opened {
                connection.send_anyway(&connect("", false, 60)).await;
                let answer = connection.next().await;
                assert!(
                    answer.as_ref().is_none_or(|answer| answer.body[1] == 5),
                    "after {way}: {answer:02x?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn fc_068_what_takes_a_devices_rights_away_cuts_its_connection() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let ca = Ca::root("issuing CA of the test");
    import(&tanit, "acme", &ca, true).await;
    let mut live = Vec::new();
    for _ in 0..5 {
        let device = tanit.device("acme").await;
        let (connection, _) = device.connect(&tanit).await;
        live.push((device, connection));
    }
    let [deleted, revoked, listed, inhibited, other] = &mut live[..] else {
        panic!("five devices");
    };

    let since = Instant::now();
    tanit
        .cli(&["device", "delete", "acme", &deleted.0.id, "--yes"])
        .await;
    closed_in_time(&mut deleted.1, since, "deleted").await;

    let since = Instant::now();
    tanit
        .cli(&["device", "revoke", "acme", &revoked.0.id, "--yes"])
        .await;
    closed_in_time(&mut revoked.1, since, "revoked").await;
    assert_eq!(
        last_reason(&tanit, &revoked.0).await.as_deref(),
        Some("revoked")
    );

    let folder = tanit.data_dir().join("crl");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("acme.pem");
    std::fs::write(&file, ca.crl(&[&listed.0])).expect("a CRL");
    let since = Instant::now();
    tanit.cli(&["reload"]).await;
    closed_in_time(&mut listed.1, since, "on the CRL").await;
    assert_eq!(
        last_reason(&tanit, &listed.0).await.as_deref(),
        Some("revoked")
    );

    let since = Instant::now();
    tanit
        .cli(&["device", "inhibit", "acme", &inhibited.0.id])
        .await;
    closed_in_time(&mut inhibited.1, since, "inhibited").await;
    assert_eq!(
        last_reason(&tanit, &inhibited.0).await.as_deref(),
        Some("inhibited")
    );

    for (device, _) in [&*deleted, revoked, listed, inhibited] {
        assert!(is_refused(&tanit, device).await, "{} came back", device.id);
    }
    other.1.expect_only_pong().await;
    assert_eq!(tanit.history(&other.0).await.len(), 1, "never disturbed");

    let audit = tanit.cli(&["audit"]).await;
    for (action, device) in [
        ("device.delete", &deleted.0),
        ("device.revoke", &revoked.0),
        ("device.inhibit", &inhibited.0),
    ] {
        let row = audit.as_array().expect("a list").iter().find(|row| {
            let object = row["object"].as_str().expect("an object");
            row["action"] == action && object.contains(&device.base())
        });
        let row = row.unwrap_or_else(|| panic!("no {action} of {} in {audit}", device.id));
        let actor = row["actor"].as_str().expect("an actor");
        assert!(!actor.is_empty() && row["at"].is_string(), "{row}");
    }

    // a CRL that cannot be read changes nothing, and is said
    std::fs::write(&file, "rubbish").expect("a file");
    let (_, said) = tanit.cli_refused(&["reload"]).await;
    assert!(said.contains("acme"), "{said}");
    assert!(is_refused(&tanit, &listed.0).await, "the old CRL stays");
    other.1.expect_only_pong().await;
}

#[tokio::test]
async fn fc_069_cas_come_and_go_without_a_restart() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let old_ca = tanit.cli(&["realm", "ca", "print", "acme"]).await;
    let old_ca = old_ca["fingerprint"].as_str().expect("one").to_owned();
    let old = tanit.device("acme").await;
    let (mut of_old, _) = old.connect(&tanit).await;

    tanit.cli(&["realm", "ca", "rotate", "acme"]).await;
    let new = tanit.device("acme").await;
    let (mut of_new, _) = new.connect(&tanit).await;
    of_old.expect_only_pong().await;
    let (again, present) = old.connect(&tanit).await;
    assert!(present, "the old CA still counts");
    of_old.expect_closed().await;
    let mut of_old = again;

    let own = Ca::root("operator's CA");
    let registered = tanit.device("acme").await;
    let imported = own.certify(&registered);
    assert!(is_refused(&tanit, &imported).await, "not imported yet");
    let own_ca = import(&tanit, "acme", &own, false).await;
    let (mut of_own, _) = imported.connect(&tanit).await;

    // what is broken is refused as a whole
    let folder = tempfile::tempdir().expect("a folder");
    let leaf = write(folder.path(), "leaf.pem", &registered.certificate);
    let rubbish = write(folder.path(), "rubbish.pem", "rubbish");
    for file in [&leaf, &rubbish] {
        let (_, said) = tanit
            .cli_refused(&["realm", "ca", "import", "acme", file])
            .await;
        assert!(!said.is_empty());
    }
    let cas = tanit.cli(&["realm", "ca", "list", "acme"]).await;
    assert_eq!(cas.as_array().expect("a list").len(), 3);

    let since = Instant::now();
    tanit
        .cli(&["realm", "ca", "remove", "acme", &old_ca, "--yes"])
        .await;
    closed_in_time(&mut of_old, since, "its CA removed").await;
    assert_eq!(
        last_reason(&tanit, &old).await.as_deref(),
        Some("ca_removed")
    );
    assert!(is_refused(&tanit, &old).await);
    of_new.expect_only_pong().await;
    of_own.expect_only_pong().await;
    tanit
        .cli(&["realm", "ca", "remove", "acme", &own_ca[..16], "--yes"])
        .await;
    of_own.expect_closed().await;
    assert!(is_refused(&tanit, &imported).await);
    of_new.expect_only_pong().await;
    // the one whose CA went renews with its secret, and has its session
    let mut old = old;
    old.renew(&tanit).await;
    assert!(old.connect(&tanit).await.1);
}

/// The broker's own certificate in files: RSA or ECDSA, from a CA of its own.
struct ServerFiles {
    folder: TempDir,
}

impl ServerFiles {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes `<name>.crt` and `<name>.key`, self-signed; `algorithm` as openssl names it.
    async fn make(&self, name: &str, algorithm: &[&str]) {
        let (certificate, key) = (
            self.text(&format!("{name}.crt")),
            self.text(&format!("{name}.key")),
        );
        let mut arguments = vec!["req", "-x509", "-nodes", "-days", "30", "-newkey"];
        arguments.extend(algorithm);
        arguments.extend([
            "-subj",
            "/CN=localhost",
            "-out",
            &certificate,
            "-keyout",
            &key,
        ]);
        arguments.extend(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]);
        arguments.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl(&arguments).await;
    }

    fn config(&self, names: &[&str]) -> String {
        let pair = |name: &&str| {
            let (certificate, key) = (
                self.text(&format!("{name}.crt")),
                self.text(&format!("{name}.key")),
            );
            format!("{{ certificate = \"{certificate}\", key = \"{key}\" }}")
        };
        let pairs: Vec<String> = names.iter().map(pair).collect();
        format!("[tls]\ncertificates = [{}]\n", pairs.join(", "))
    }
}

const RSA: [&str; 1] = ["rsa:2048"];
const ECDSA: [&str; 3] = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

async fn openssl(arguments: &[&str]) {
    let output = timeout(PATIENCE, Command::new("openssl").args(arguments).output())
        .await
        .expect("in time")
        .expect("openssl runs");
    assert!(
        output.status.success(),
        "openssl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The certificate that a handshake shows, DER.
async fn served(tanit: &Tanit, device: &TestDevice) -> Vec<u8> {
    let mut connection = device.open(tanit).await;
    connection.connect("", false, 60).await;
    let certificates = connection.tls().peer_certificates().expect("a certificate");
    certificates[0].to_vec()
}

#[tokio::test]
async fn fc_069_a_server_certificate_is_replaced_without_a_restart() {
    let files = ServerFiles::new();
    files.make("server", &ECDSA).await;
    let tanit = Tanit::start_with(&files.config(&["server"])).await;
    tanit.fixtures().await;
    let mut watching = tanit.device("acme").await;
    watching.server_ca = std::fs::read(files.path("server.crt")).expect("a PEM");
    let (mut connection, _) = watching.connect(&tanit).await;
    let mut device = tanit.device("acme").await;
    device.server_ca.clone_from(&watching.server_ca);
    let first = served(&tanit, &device).await;

    files.make("server", &RSA).await;
    assert_eq!(
        served(&tanit, &device).await,
        first,
        "not asked to reload yet"
    );
    tanit.cli(&["reload"]).await;
    device.server_ca = std::fs::read(files.path("server.crt")).expect("a PEM");
    let second = served(&tanit, &device).await;
    assert_ne!(second, first);
    connection.expect_only_pong().await;

    // a key that is not the certificate's, and files that are nothing
    let good_key = std::fs::read(files.path("server.key")).expect("a key");
    files.make("stranger", &ECDSA).await;
    std::fs::copy(files.path("stranger.key"), files.path("server.key")).expect("copied");
    let (_, said) = tanit.cli_refused(&["reload"]).await;
    assert!(said.contains("server.key"), "{said}");
    assert_eq!(served(&tanit, &device).await, second);
    std::fs::write(files.path("server.key"), good_key).expect("written");
    std::fs::write(files.path("server.crt"), "rubbish").expect("written");
    let (_, said) = tanit.cli_refused(&["reload"]).await;
    assert!(said.contains("server.crt"), "{said}");
    assert_eq!(served(&tanit, &device).await, second);
    connection.expect_only_pong().await;

    // SIGHUP does the same
    std::fs::copy(files.path("stranger.key"), files.path("server.key")).expect("copied");
    std::fs::copy(files.path("stranger.crt"), files.path("server.crt")).expect("copied");
    let mut trusting = device.clone();
    trusting.server_ca = std::fs::read(files.path("server.crt")).expect("a PEM");
    tanit.signal(rustix::process::Signal::HUP);
    let waited = timeout(PATIENCE, async {
        while RawDevice::open(tanit.mqtt, trusting.tls(), trusting.base())
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "SIGHUP changed nothing");
    connection.expect_only_pong().await;
}

/// Five seconds instead of sixty.
#[tokio::test]
async fn fc_072_a_certificate_that_expires_ends_its_connection_and_not_its_session() {
    let tanit = Tanit::start_with("[pairing]\ncertificate_lifetime = \"5s\"\n").await;
    tanit.fixtures().await;
    let mut device = tanit.device("acme").await;
    let issued = Instant::now();
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(!present);
    connection.declare("t.SrvCmd:1:0").await;
    connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
    connection.expect_closed().await;
    let lived = issued.elapsed();
    assert!(
        (Duration::from_secs(3)..Duration::from_secs(15)).contains(&lived),
        "closed after {lived:?}"
    );
    tanit
        .until_device(&device, "disconnected", |device| {
            device["connected"] == false
        })
        .await;
    assert_eq!(
        last_reason(&tanit, &device).await.as_deref(),
        Some("certificate_expired")
    );
    assert!(is_refused(&tanit, &device).await, "it has expired");
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "kept"])
        .await;
    device.renew(&tanit).await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present, "the session is kept");
    assert_eq!(connection.receive().await.payload, bson("kept"));
}

/// What openssl is to use as the device.
struct Client {
    folder: TempDir,
    port: u16,
}

impl Client {
    /// A device with a key that openssl makes, paired.
    async fn new(tanit: &Tanit, algorithm: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let device = tanit.device("acme").await;
        let (key, request) = (path("device.key"), path("device.csr"));
        let mut arguments = vec!["req", "-new", "-nodes", "-newkey"];
        arguments.extend(algorithm);
        arguments.extend(["-subj", "/CN=any", "-keyout", &key, "-out", &request]);
        openssl(&arguments).await;
        let csr = std::fs::read_to_string(&request).expect("a CSR");
        let answer = device
            .pairing(tanit, "/protocols/astarte_mqtt_v1/credentials", &csr)
            .await;
        assert_eq!(answer.status(), 201);
        let body: Value = answer.json().await.expect("JSON");
        let certificate = body["data"]["client_crt"].as_str().expect("a PEM");
        write(folder.path(), "device.crt", certificate);
        let port = tanit.mqtt.port();
        Self { folder, port }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Connects through `openssl s_client`: the return code of the CONNACK, or `None` when TLS
    /// failed.
    async fn connect(&self, arguments: &[&str]) -> Option<u8> {
        let mut child = Command::new("openssl")
            .args(["s_client", "-quiet", "-connect"])
            .arg(format!("127.0.0.1:{}", self.port))
            .args(["-cert", &self.path("device.crt")])
            .args(["-key", &self.path("device.key")])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("openssl runs");
        let mut to = child.stdin.take().expect("piped");
        let mut from = child.stdout.take().expect("piped");
        let _ = to.write_all(&connect("", true, 60)).await;
        let mut answer = [0; 4];
        let read = timeout(PATIENCE, from.read_exact(&mut answer)).await;
        read.expect("an answer, or the end, in time").ok()?;
        assert_eq!(answer[..3], [0x20, 2, 0], "a CONNACK");
        Some(answer[3])
    }

    /// What `openssl s_client -sess_out` keeps of a connection: whether it is anything.
    async fn keeps_a_session(&self, version: &str) -> bool {
        let file = self.path("session.pem");
        assert_eq!(
            self.connect(&[version, "-sess_out", &file]).await,
            Some(0),
            "{version}"
        );
        std::fs::metadata(&file).is_ok_and(|file| file.len() > 0)
    }

    /// Whether gnutls-cli completes a handshake with this priority string; `None` without one.
    async fn gnutls(&self, priority: &str) -> Option<bool> {
        let run = Command::new("gnutls-cli")
            .args(["--insecure", "--priority", priority, "--port"])
            .arg(self.port.to_string())
            .args(["--x509certfile", &self.path("device.crt")])
            .args(["--x509keyfile", &self.path("device.key")])
            .arg("127.0.0.1")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = timeout(PATIENCE, run).await.expect("in time");
        let said = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
        Some(said.contains("Handshake was completed"))
    }
}

#[tokio::test]
async fn fc_066_openssl_is_given_no_session_in_tls_1_3() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let client = Client::new(&tanit, &ECDSA).await;
    assert!(!client.keeps_a_session("-tls1_3").await);
}

/// `OpenSSL` and `GnuTLS`; mbed TLS has no command-line client in Debian.
#[expect(clippy::print_stdout, reason = "CI looks for the line")]
#[tokio::test]
async fn fc_079_clients_of_tls_1_2_alone_connect_with_rsa_and_ecdsa() {
    let files = ServerFiles::new();
    files.make("rsa", &RSA).await;
    files.make("ecdsa", &ECDSA).await;
    for servers in [&["rsa"][..], &["ecdsa"], &["ecdsa", "rsa"]] {
        let tanit = Tanit::start_with(&files.config(servers)).await;
        tanit.fixtures().await;
        for key in [&RSA[..], &ECDSA] {
            let client = Client::new(&tanit, key).await;
            for kind in servers {
                let what = format!("{kind} of {servers:?}, client {}", key[0]);
                for suite in [
                    "AES128-GCM-SHA256",
                    "AES256-GCM-SHA384",
                    "CHACHA20-POLY1305",
                ] {
                    let suite = format!("ECDHE-{}-{suite}", kind.to_uppercase());
                    let connected = client.connect(&["-tls1_2", "-cipher", &suite]).await;
                    assert_eq!(connected, Some(0), "{suite}: {what}");
                }
                let gnutls = format!(
                    "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+ECDHE-{}",
                    kind.to_uppercase()
                );
                match client.gnutls(&gnutls).await {
                    Some(completed) => assert!(completed, "{gnutls}: {what}"),
                    None => println!("SKIPPED: GnuTLS clients need gnutls-cli (gnutls-bin)"),
                }
            }
            assert_eq!(client.connect(&["-tls1_3"]).await, Some(0), "TLS 1.3");
        }
        let client = Client::new(&tanit, &ECDSA).await;
        for suite in ["ECDHE-RSA-AES128-SHA", "AES128-SHA", "AES128-GCM-SHA256"] {
            let connected = client.connect(&["-tls1_2", "-cipher", suite]).await;
            assert_eq!(connected, None, "{suite}");
        }
        let log = tanit.log();
        for offered in [
            "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
            // static RSA, which the TLS library has only numbers for
            "CipherSuite(0x2f)",
            "CipherSuite(0x9c)",
        ] {
            let said = log
                .lines()
                .any(|line| line.contains("nothing in common") && line.contains(offered));
            assert!(said, "{offered} is not in the log: {log}");
        }
    }
}

#[tokio::test]
async fn fc_081_any_server_name_or_none_will_do() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let client = Client::new(&tanit, &ECDSA).await;
    let names: [&[&str]; 6] = [
        &["-noservername"],
        &["-servername", "127.0.0.1"],
        &["-servername", "globex.example.org"],
        &["-servername", "localhost."],
        &["-servername", "LOCALHOST"],
        &["-servername", "localhost"],
    ];
    for name in names {
        for version in ["-tls1_2", "-tls1_3"] {
            let arguments = [name, &[version]].concat();
            assert_eq!(client.connect(&arguments).await, Some(0), "{arguments:?}");
        }
    }
}

async fn client_ids_decide_nothing(count: u32) {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    tanit.realm("globex").await;
    let (device, other) = (tanit.device("acme").await, tanit.device("acme").await);
    let foreign = tanit.device("globex").await;
    // no keep-alive: they are silent for as long as the loop takes
    let mut of_other = other.open(&tanit).await;
    of_other.connect("", false, 0).await;
    let mut of_foreign = foreign.open(&tanit).await;
    of_foreign.connect("", false, 0).await;
    let (mut current, _) = device.connect(&tanit).await;
    current.declare("t.SrvCmd:1:0").await;
    current.subscribe(&[("t.SrvCmd/#", 1)]).await;
    let ids = [
        foreign.base(),
        other.base(),
        other.id.clone(),
        String::new(),
    ];
    let random = (0..count).map(|_| format!("{:032x}", rand::random::<u128>()));
    for (number, id) in ids.into_iter().chain(random).enumerate() {
        let mut next = device.open(&tanit).await;
        let packet = match number % 3 {
            0 => connect(&id, false, 60),
            1 => connect_v5(&id, false, 60, &[0x11, 0xff, 0xff, 0xff, 0xff]),
            _ => with_password(&id, &other.base()),
        };
        next.send(&packet).await;
        let answer = next.next().await.expect("a CONNACK");
        assert_eq!(answer.body[..2], [1, 0], "{id}: the one session");
        current.expect_closed().await;
        current = next;
    }
    of_other.expect_only_pong().await;
    of_foreign.expect_only_pong().await;
    assert_eq!(tanit.metric("tanit_connections").await, 3);
    for undisturbed in [&other, &foreign] {
        assert_eq!(tanit.history(undisturbed).await.len(), 1);
    }
    current.disconnect().await;
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "once"])
        .await;
    let (mut current, present) = device.connect(&tanit).await;
    assert!(present);
    assert_eq!(current.receive().await.payload, bson("once"));
    current.expect_only_pong().await;
}

/// CONNECT of 3.1.1 with user name and password.
fn with_password(client_id: &str, name: &str) -> Vec<u8> {
    let mut packet = connect(client_id, false, 60);
    packet[9] |= 0xc0;
    for text in [name, "secret"] {
        crate::harness::device::text(text, &mut packet);
    }
    packet[1] = u8::try_from(packet.len() - 2).expect("a short packet");
    packet
}

/// 150 client ids instead of 10,000.
#[tokio::test]
async fn fc_082_the_session_belongs_to_the_certificate() {
    client_ids_decide_nothing(150).await;
}

#[tokio::test]
#[ignore = "heavy: 10,000 connections"]
async fn fc_082_the_session_belongs_to_the_certificate_whole() {
    client_ids_decide_nothing(10_000).await;
}

#[tokio::test]
async fn fc_098_while_the_database_is_away_nobody_gets_in_and_the_answer_is_try_later() {
    let Some(cluster) = Cluster::start_own() else {
        return;
    };
    let url = cluster.database().await;
    let tanit = Tanit::start_with(&format!("[database]\nurl = \"{url}\"\n")).await;
    tanit.fixtures().await;
    let (known, live) = (tanit.device("acme").await, tanit.device("acme").await);
    let (connection, _) = known.connect(&tanit).await;
    connection.disconnect().await;
    let (mut connection, _) = live.connect(&tanit).await;
    connection.declare("t.Dev:1:0").await;
    let unknown = tanit.device("acme").await;
    tanit
        .cli(&["device", "delete", "acme", &unknown.id, "--yes"])
        .await;
    cluster.stop();

    for device in [&known, &unknown] {
        let mut refused = device.open(&tanit).await;
        let code = refused.connect_refused(&connect("", false, 60)).await;
        assert_eq!(code, 3, "server unavailable");
        let mut refused = device.open(&tanit).await;
        let code = refused
            .connect_refused(&connect_v5("", false, 60, &[]))
            .await;
        assert_eq!(code, 0x88, "server unavailable");
    }
    let csr = CertificateParams::default()
        .serialize_request(&*known.key)
        .and_then(|request| request.pem())
        .expect("a CSR");
    let answer = known
        .pairing(&tanit, "/protocols/astarte_mqtt_v1/credentials", &csr)
        .await;
    assert_eq!(answer.status(), 503);
    let after = answer.headers().get("retry-after").expect("Retry-After");
    let after: u64 = after.to_str().expect("text").parse().expect("seconds");
    assert!(after >= 1);
    // who is in stays in; what it sends waits
    let id = connection.send_publish("t.Dev/int", &bson(1), 1).await;
    connection.expect_only_pong().await;

    cluster.start();
    assert_eq!(connection.expect(4).await.id(), id, "its PUBACK");
    let mut again = known.open(&tanit).await;
    again.send(&connect("", false, 60)).await;
    assert_eq!(again.next().await.expect("a CONNACK").body, [1, 0]);
    assert!(is_refused(&tanit, &unknown).await);
    assert_eq!(tanit.data(&live, "t.Dev", "/int").await.len(), 1);
}
