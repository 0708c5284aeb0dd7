//! `tanit device credentials`.

use super::*;

struct Pairing {
    ca: crate::pki::RealmCa,
    directory: tempfile::TempDir,
}

impl Pairing {
    fn new() -> Self {
        let now = Timestamp::parse("2026-01-31T10:20:30Z").unwrap();
        let ca = crate::pki::RealmCa::generate(&"acme".parse().unwrap(), now).unwrap();
        Self {
            ca,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn out(&self) -> std::path::PathBuf {
        self.directory.path().join("device")
    }

    async fn run(&self, answers: Vec<(u16, Value)>) -> Ran {
        let out = self.out();
        let words = [
            "device",
            "credentials",
            "acme",
            ID,
            "--secret",
            "c2VjcmV0",
            "--out",
            out.to_str().unwrap(),
            "--json",
        ];
        run(answers, &words).await
    }
}

fn info(ca_crt: Option<&str>) -> (u16, Value) {
    ok(
        json!({"version": "1.2.0", "status": "pending", "protocols": {"astarte_mqtt_v1": {
        "broker_url": "mqtts://localhost:8883/", "ca_crt": ca_crt}}}),
    )
}

#[tokio::test]
async fn the_key_stays_here_and_three_files_are_written() {
    let pairing = Pairing::new();
    let issued = (201, json!({"data": {"client_crt": "CERTIFICATE"}}));
    let ran = pairing.run(vec![info(Some("CA")), issued]).await;
    let out = pairing.out();
    let expected = json!({
        "device_key": out.join("device.key"),
        "device_crt": out.join("device.crt"),
        "server_ca_crt": out.join("server-ca.crt"),
        "broker_url": "mqtts://localhost:8883/",
    });
    assert_eq!(ran.json(), expected);
    assert_eq!(
        ran.requests(),
        [
            format!("GET /pairing/v1/acme/devices/{ID}"),
            format!("POST /pairing/v1/acme/devices/{ID}/protocols/astarte_mqtt_v1/credentials"),
        ]
    );
    for seen in &ran.seen {
        assert_eq!(seen.authorization.as_deref(), Some("Bearer c2VjcmV0"));
    }
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(
        (read("device.crt"), read("server-ca.crt")),
        ("CERTIFICATE".into(), "CA".into())
    );
    assert_eq!(mode(&out.join("device.key")), 0o600);
    let key = read("device.key");
    assert!(!String::from_utf8_lossy(&ran.seen[1].body).contains(key.lines().nth(1).unwrap()));

    // the request is one that a realm's CA takes, and for this very key
    let csr = ran.seen[1].data()["csr"].as_str().unwrap().to_owned();
    let identity = format!("acme/{ID}").parse().unwrap();
    let now = Timestamp::parse("2026-01-31T10:20:30Z").unwrap();
    let lifetime = std::time::Duration::from_hours(1);
    let certificate = pairing.ca.issue(&csr, &identity, lifetime, now).unwrap();
    let der = pem::parse(certificate.pem).unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(der.contents()).unwrap();
    let key = rcgen::KeyPair::from_pem(&key).unwrap();
    assert_eq!(
        leaf.public_key().subject_public_key.data.as_ref(),
        key.public_key_raw()
    );
}

#[tokio::test]
async fn a_refusal_leaves_what_was_there() {
    let pairing = Pairing::new();
    std::fs::create_dir(pairing.out()).unwrap();
    std::fs::write(pairing.out().join("device.key"), "old").unwrap();
    let ran = pairing.run(vec![refused(403, "Forbidden")]).await;
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains(&format!("acme/{ID}")), "{}", ran.err);
    assert_eq!(
        std::fs::read_to_string(pairing.out().join("device.key")).unwrap(),
        "old"
    );
    assert_eq!(
        std::fs::read_dir(pairing.out()).unwrap().count(),
        1,
        "something was left behind"
    );
}

#[tokio::test]
async fn an_unknown_server_ca_is_said_and_not_invented() {
    let pairing = Pairing::new();
    let issued = (201, json!({"data": {"client_crt": "CERTIFICATE"}}));
    let ran = pairing.run(vec![info(None), issued, ok(json!({}))]).await;
    assert_eq!(ran.json()["server_ca_crt"], Value::Null);
    assert!(
        ran.err.contains("server-ca.crt was not written"),
        "{}",
        ran.err
    );
    assert!(!pairing.out().join("server-ca.crt").exists());

    let told = ok(json!({"server_ca_pem": "CA"}));
    let issued = (201, json!({"data": {"client_crt": "CERTIFICATE"}}));
    let ran = pairing.run(vec![info(None), issued, told]).await;
    assert_eq!(ran.exit, Exit::Done);
    assert_eq!(
        std::fs::read_to_string(pairing.out().join("server-ca.crt")).unwrap(),
        "CA"
    );
}
