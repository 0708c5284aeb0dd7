//! The server certificate that is made here.

use std::os::unix::fs::PermissionsExt as _;

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{ServerName, pem::PemObject as _},
};

use super::*;
use crate::{
    clock::{Clock as _, ManualClock},
    pki::{ServerCertificateError, ServerCertificateFiles, ServerCertificates, crypto_provider},
};

struct Made {
    directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Made {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            clock: ManualClock::new(now()),
        }
    }

    fn open(&self, host_name: &str) -> ServerCertificates {
        let clock = self.clock.clone();
        ServerCertificates::open(self.directory.path(), Vec::new(), host_name, clock).unwrap()
    }

    fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.directory.path().join("server.crt")).unwrap()
    }

    /// Whether a client that trusts `ca_pem` and dials `name` takes the certificate on disk.
    fn is_trusted(&self, ca_pem: &str, name: &str) -> bool {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap())
            .unwrap();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), crypto_provider())
            .build()
            .unwrap();
        let name = ServerName::try_from(name).unwrap();
        let now = crate::pki::pools::unix_time(self.clock.wall());
        verifier
            .verify_server_cert(&self.certificate(), &[], &name, &[], now)
            .is_ok()
    }
}

#[test]
fn it_is_good_for_this_machine_and_kept() {
    let made = Made::new();
    let certificates = made.open("gateway.example");
    let ca = certificates.ca_pem().unwrap();
    for name in ["localhost", "gateway.example", "127.0.0.1", "::1"] {
        assert!(made.is_trusted(&ca, name), "{name}");
    }
    assert!(!made.is_trusted(&ca, "elsewhere.example"));
    for (file, mode) in [
        ("server.key", 0o600),
        ("server-ca.key", 0o600),
        ("server.crt", 0o644),
    ] {
        let metadata = made.directory.path().join(file).metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
    }

    let before = made.certificate();
    assert_eq!(made.open("gateway.example").ca_pem().unwrap(), ca);
    assert_eq!(made.certificate(), before, "it was made anew without need");
    made.open("renamed.example");
    assert!(
        made.is_trusted(&ca, "renamed.example"),
        "a new host name asks for a new certificate"
    );
    // a name that no certificate can carry is left out
    made.open("under_score with space");
    assert!(made.is_trusted(&ca, "localhost"));
}

#[test]
fn it_is_renewed_live_thirty_days_before_its_end() {
    let made = Made::new();
    let certificates = made.open("gateway.example");
    let ca = certificates.ca_pem().unwrap();
    let first = certificates.not_after();
    assert_eq!(first, now().saturating_add(365 * DAY));

    made.clock.advance(334 * DAY);
    assert!(!certificates.renew_if_due().unwrap());
    made.clock.advance(2 * DAY);
    assert!(certificates.renew_if_due().unwrap());
    assert_eq!(
        certificates.not_after(),
        made.clock.wall().saturating_add(365 * DAY)
    );
    assert!(
        made.is_trusted(&ca, "localhost"),
        "clients had to learn another CA"
    );
    assert!(!certificates.renew_if_due().unwrap());

    // started anew after years of rest: also the CA has ended
    made.clock.advance(21 * 365 * DAY);
    let later = made.open("gateway.example").ca_pem().unwrap();
    assert_ne!(later, ca);
    assert!(made.is_trusted(&later, "localhost"));
}

#[test]
fn a_half_written_pair_is_made_anew_and_a_broken_ca_is_named() {
    let made = Made::new();
    let ca = made.open("gateway.example").ca_pem().unwrap();
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .unwrap()
        .serialize_pem();
    std::fs::write(made.directory.path().join("server.key"), &other).unwrap();
    made.open("gateway.example");
    assert!(made.is_trusted(&ca, "localhost"));

    std::fs::write(made.directory.path().join("server-ca.key"), &other).unwrap();
    let clock = made.clock.clone();
    let error =
        ServerCertificates::open(made.directory.path(), Vec::new(), "x", clock).unwrap_err();
    assert!(error.to_string().contains("server-ca.key"), "{error}");
}

#[test]
fn configured_files_are_all_needed_and_never_touched() {
    let made = Made::new();
    let authority = TestCa::root("authority");
    let leaf = authority.leaf("server");
    let files = ServerCertificateFiles {
        certificate: made.directory.path().join("tls.crt"),
        key: made.directory.path().join("tls.key"),
    };
    let open = |files: Vec<ServerCertificateFiles>| {
        ServerCertificates::open(made.directory.path(), files, "x", made.clock.clone())
    };
    let missing = open(vec![files.clone()]).unwrap_err();
    assert!(matches!(
        missing,
        ServerCertificateError::Io { doing: "read", .. }
    ));

    std::fs::write(&files.certificate, leaf.pem() + &authority.pem()).unwrap();
    std::fs::write(&files.key, leaf.key.serialize_pem()).unwrap();
    let certificates = open(vec![files.clone()]).unwrap();
    assert_eq!(certificates.ca_pem().unwrap(), authority.pem());
    made.clock.advance(80 * DAY);
    assert!(!certificates.renew_if_due().unwrap());
    assert_eq!(std::fs::read_dir(made.directory.path()).unwrap().count(), 2);
    assert!(certificates.https_config().is_ok());

    let three = open(vec![files.clone(), files.clone(), files]).unwrap_err();
    assert!(matches!(three, ServerCertificateError::TooMany(3)));
}
