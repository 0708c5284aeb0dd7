//! What a realm's CA issues, and for which requests.

use std::time::Duration;

use x509_parser::{
    certification_request::X509CertificationRequest, extensions::ParsedExtension,
    prelude::FromDer as _,
};

use super::*;
use crate::pki::{
    CaError, CsrError, IssuedCertificate, MasterKey, RealmCa, SealError, realm_ca::pem_block,
};

const LIFETIME: Duration = Duration::from_hours(90 * 24);

fn p256_csr() -> String {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::new(vec!["ignored.example".to_owned()]).unwrap();
    params.distinguished_name = common_name("globex/ignored");
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Devices");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn issue(ca: &RealmCa, csr: &str) -> Result<IssuedCertificate, CsrError> {
    ca.issue(csr, &device("acme", D1), LIFETIME, now())
}

fn pools_of(ca: &RealmCa) -> Pools {
    let pools = Pools::new();
    let certificates_pem = vec![ca.certificate_pem().to_owned()];
    let contents = PoolContents {
        certificates_pem,
        ..PoolContents::default()
    };
    pools.replace(ca.realm(), &contents).unwrap();
    pools
}

fn let_in(ca: &RealmCa, issued: &IssuedCertificate) -> bool {
    let der = pem::parse(&issued.pem).unwrap();
    match pools_of(ca).accept(&[der.contents()], now()) {
        Ok((identity, peer)) => {
            assert_eq!(identity, device("acme", D1));
            assert_eq!(peer.serial, issued.serial);
            assert_eq!(peer.not_after, issued.not_after);
            assert_eq!(peer.ca_fingerprint, ca.fingerprint());
            true
        }
        Err(_) => false,
    }
}

#[test]
fn a_device_certificate_has_exactly_the_profile() {
    let ca = RealmCa::generate(&realm("acme"), now()).unwrap();
    let issued = issue(&ca, &p256_csr()).unwrap();
    assert!(let_in(&ca, &issued));
    assert_eq!(issued.pem.matches("-----BEGIN CERTIFICATE-----").count(), 1);
    assert!(!issued.pem.contains('\r'));

    let der = pem::parse(&issued.pem).unwrap();
    let leaf = crate::pki::certificate_name::parse(der.contents()).unwrap();
    let ca_der = pem::parse(ca.certificate_pem()).unwrap();
    let ca_certificate = crate::pki::certificate_name::parse(ca_der.contents()).unwrap();
    assert_eq!(leaf.subject().to_string(), format!("CN=acme/{D1}"));
    assert_eq!(leaf.issuer().as_raw(), ca_certificate.subject().as_raw());
    assert_eq!(issued.serial.len(), 32);
    assert_eq!(
        leaf.validity().not_before.timestamp(),
        now().as_millis() / 1000 - 300
    );
    assert_eq!(issued.not_after.to_string(), "2026-05-01T10:20:30.000Z");
    let constraints = leaf.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && !constraints.value.ca);
    let usage = leaf.key_usage().unwrap().unwrap();
    assert!(usage.critical);
    assert_eq!(usage.value.flags, 1, "digitalSignature alone");
    let extended = leaf.extended_key_usage().unwrap().unwrap();
    assert!(extended.value.client_auth && !extended.value.server_auth && !extended.value.any);
    assert!(
        leaf.subject_alternative_name().unwrap().is_none(),
        "the request's SAN was copied"
    );

    let identifier = |certificate: &x509_parser::certificate::X509Certificate<'_>, authority| {
        certificate
            .extensions()
            .iter()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(id) if authority => {
                    id.key_identifier.as_ref().map(|id| crate::pki::hex(id.0))
                }
                ParsedExtension::SubjectKeyIdentifier(id) if !authority => {
                    Some(crate::pki::hex(id.0))
                }
                _ => None,
            })
    };
    assert_eq!(identifier(&leaf, true).as_ref(), Some(&issued.aki));
    assert_eq!(
        identifier(&ca_certificate, false).as_ref(),
        Some(&issued.aki)
    );
    assert!(identifier(&leaf, false).is_some());
}

#[test]
fn serials_and_ca_names_do_not_repeat() {
    let ca = RealmCa::generate(&realm("acme"), now()).unwrap();
    let csr = p256_csr();
    assert_ne!(
        issue(&ca, &csr).unwrap().serial,
        issue(&ca, &csr).unwrap().serial
    );
    let other = RealmCa::generate(&realm("acme"), now()).unwrap();
    assert_ne!(ca.subject(), other.subject());
}

#[test]
fn a_certificate_ends_with_its_ca_at_the_latest() {
    let ca = RealmCa::generate(&realm("acme"), now()).unwrap();
    let forever = ca
        .issue(&p256_csr(), &device("acme", D1), DAY * 100_000, now())
        .unwrap();
    assert_eq!(forever.not_after, ca.not_after());
    let seconds = Duration::from_secs(2);
    let short = ca
        .issue(&p256_csr(), &device("acme", D1), seconds, now())
        .unwrap();
    assert_eq!(short.not_after, now().saturating_add(seconds));

    let late = ca.not_after().saturating_add(seconds);
    let error = ca
        .issue(&p256_csr(), &device("acme", D1), LIFETIME, late)
        .unwrap_err();
    assert!(matches!(error, CsrError::CaExpired(_)));
    let other = ca
        .issue(&p256_csr(), &device("globex", D1), LIFETIME, now())
        .unwrap_err();
    assert!(matches!(other, CsrError::WrongRealm(_)));
    assert!(!other.is_the_requests_fault());
}

#[test]
fn keys_of_real_devices_are_accepted_and_weak_ones_are_not() {
    let made = openssl(&[
        "req -new -newkey rsa:2048 -nodes -keyout rsa2048.key -subj /CN=x -out rsa2048.csr",
        "req -new -newkey rsa:1024 -nodes -keyout rsa1024.key -subj /CN=x -out rsa1024.csr",
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout 1 -subj /CN=x -out p256.csr",
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -keyout 1 -subj /CN=x -out p384.csr",
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -keyout 1 -subj /CN=x -out p521.csr",
    ]);
    let ca = RealmCa::generate(&realm("acme"), now()).unwrap();
    for file in ["rsa2048.csr", "p256.csr", "p384.csr"] {
        let issued = issue(&ca, &read(&made, file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(let_in(&ca, &issued), "{file}");
    }
    for file in ["rsa1024.csr", "p521.csr"] {
        assert!(
            matches!(issue(&ca, &read(&made, file)), Err(CsrError::Key)),
            "{file}"
        );
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let ca = RealmCa::generate(&realm("acme"), now()).unwrap();
    let good = p256_csr();
    let refused = |csr: &str| {
        let error = issue(&ca, csr).unwrap_err();
        assert!(error.is_the_requests_fault());
        assert!(
            error.to_string().starts_with("is not a valid PEM CSR"),
            "{error}"
        );
        error
    };
    for csr in [
        "",
        "rubbish",
        ca.certificate_pem(),
        &format!("{good}{good}"),
        &"x".repeat(20_000),
    ] {
        assert!(matches!(refused(csr), CsrError::NotPem));
    }
    let der = pem::parse(&good).unwrap().into_contents();
    let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
    let signed = request.certification_request_info.raw;
    let start = signed.as_ptr() as usize - der.as_ptr() as usize;
    for index in 0..der.len() {
        let mut changed = der.clone();
        changed[index] ^= 0x01;
        let changed = pem_block("CERTIFICATE REQUEST", &changed);
        let issued = issue(&ca, &changed);
        let is_signed = (start..start + signed.len()).contains(&index);
        assert!(issued.is_err() || !is_signed, "byte {index} may be changed");
        let cut = pem_block("CERTIFICATE REQUEST", &der[..index]);
        assert!(issue(&ca, &cut).is_err(), "{index} bytes are enough");
    }
}

#[test]
fn a_stored_ca_issues_as_before_and_opens_under_its_master_key_only() {
    let master_key = MasterKey::ephemeral().unwrap();
    let ca = RealmCa::generate(&realm("acme"), now()).unwrap();
    let row = ca.to_row(true, &master_key, now()).unwrap();
    assert!(row.issuing);
    assert_eq!(row.fingerprint, ca.fingerprint());
    let again = RealmCa::from_row(&row, &master_key).unwrap();
    assert!(let_in(&ca, &issue(&again, &p256_csr()).unwrap()));

    let other = RealmCa::from_row(&row, &MasterKey::ephemeral().unwrap()).unwrap_err();
    assert!(matches!(
        other,
        CaError::Sealed {
            source: SealError::WrongKey,
            ..
        }
    ));
    let moved = crate::store::CaRow {
        realm: realm("globex"),
        ..row
    };
    assert!(
        RealmCa::from_row(&moved, &master_key).is_err(),
        "a key was taken to another realm"
    );
}

#[test]
fn an_operators_ca_is_taken_with_any_name_and_key_form() {
    let made = openssl(&[
        "ecparam -name prime256v1 -genkey -out sec1.key",
        "genrsa -traditional -out pkcs1.key 2048",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out pkcs8.key",
        "req -x509 -new -key sec1.key -days 4000 -subj /DC=com/DC=example/O=Acme~Ltd/CN=Root -out sec1.crt",
        "req -x509 -new -key pkcs1.key -days 4000 -subj /CN=Root+OU=Devices -out pkcs1.crt",
        "req -x509 -new -key pkcs8.key -days 4000 -utf8 -subj /C=DE/CN=Würzelchen -out pkcs8.crt",
    ]);
    let now = Timestamp::parse("2031-01-01T00:00:00Z").unwrap();
    for kind in ["sec1", "pkcs1", "pkcs8"] {
        let certificate = read(&made, &format!("{kind}.crt"));
        let key = read(&made, &format!("{kind}.key"));
        let ca = RealmCa::import(&realm("acme"), &certificate, Some(&key), now)
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        let issued = ca
            .issue(&p256_csr(), &device("acme", D1), LIFETIME, now)
            .unwrap();
        let der = pem::parse(&issued.pem).unwrap();
        let accepted = pools_of(&ca).accept(&[der.contents()], now);
        assert!(accepted.is_ok(), "{kind}: {accepted:?}");

        let verifying = RealmCa::import(&realm("acme"), &certificate, None, now).unwrap();
        assert!(!verifying.can_issue());
        let error = verifying
            .issue(&p256_csr(), &device("acme", D1), LIFETIME, now)
            .unwrap_err();
        assert!(matches!(error, CsrError::NoKey(_)));
    }
}

#[test]
fn what_is_no_ca_is_not_taken() {
    let ca = TestCa::root("root");
    let import = |certificate: &str, key: Option<&str>| {
        RealmCa::import(&realm("acme"), certificate, key, now()).unwrap_err()
    };
    let leaf = ca.leaf(format!("acme/{D1}"));
    let no_signing = TestCa::root_with(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]);
    let old = TestCa::root_with(|params| {
        params.not_after = now().saturating_sub(DAY / 2).to_offset_date_time();
    });
    let encrypted = openssl(&[
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes128 -pass pass:x -out key.pem",
    ]);

    assert!(matches!(import(&leaf.pem(), None), CaError::NotACa));
    assert!(matches!(import(&no_signing.pem(), None), CaError::KeyUsage));
    assert!(matches!(import(&old.pem(), None), CaError::Expired(_)));
    assert!(matches!(import("rubbish", None), CaError::CertificatePem));
    assert!(matches!(
        import(&(ca.pem() + &leaf.pem()), None),
        CaError::CertificatePem
    ));
    let foreign = leaf.key.serialize_pem();
    assert!(matches!(
        import(&ca.pem(), Some(&foreign)),
        CaError::KeyMismatch
    ));
    assert!(matches!(
        import(&ca.pem(), Some("rubbish")),
        CaError::PrivateKey
    ));
    let encrypted = read(&encrypted, "key.pem");
    let error = import(&ca.pem(), Some(&encrypted));
    assert!(error.to_string().contains("openssl pkcs8"), "{error}");
}
