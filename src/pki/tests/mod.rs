//! The PKI as a whole: chains made on the spot, real handshakes in memory.

mod chains;
mod handshakes;
mod issuing;
mod served;

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{PoolContents, Pools};
use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
};

const D1: &str = "Zm9vYmFyYmF6cXV4MTIzNA";
const D2: &str = "MDEyMzQ1Njc4OWFiY2RlZg";
const DAY: std::time::Duration = std::time::Duration::from_hours(24);

fn now() -> Timestamp {
    Timestamp::parse("2026-01-31T10:20:30Z").unwrap()
}

fn realm(name: &str) -> RealmName {
    name.parse().unwrap()
}

fn device(realm: &str, id: &str) -> Identity {
    format!("{realm}/{id}").parse().unwrap()
}

fn common_name(name: impl Into<DnValue>) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

/// A CA of a test: a root or an intermediate.
struct TestCa {
    params: CertificateParams,
    key: KeyPair,
    der: CertificateDer<'static>,
}

impl TestCa {
    fn root(name: &str) -> Self {
        Self::root_with(|params| params.distinguished_name = common_name(name))
    }

    fn root_with(adapt: impl FnOnce(&mut CertificateParams)) -> Self {
        let params = Self::params(adapt);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { params, key, der }
    }

    fn below(&self, name: &str) -> Self {
        self.below_with(|params| params.distinguished_name = common_name(name))
    }

    fn below_with(&self, adapt: impl FnOnce(&mut CertificateParams)) -> Self {
        let params = Self::params(adapt);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let der = params
            .signed_by(&key, &self.issuer())
            .unwrap()
            .der()
            .clone();
        Self { params, key, der }
    }

    fn params(adapt: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.not_before = now().saturating_sub(DAY).to_offset_date_time();
        params.not_after = now().saturating_add(1000 * DAY).to_offset_date_time();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        adapt(&mut params);
        params
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }

    fn pem(&self) -> String {
        super::realm_ca::pem_block("CERTIFICATE", &self.der)
    }

    fn leaf(&self, name: impl Into<DnValue>) -> TestLeaf {
        self.leaf_with(|params| params.distinguished_name = common_name(name))
    }

    fn leaf_with(&self, adapt: impl FnOnce(&mut CertificateParams)) -> TestLeaf {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        self.leaf_for(key, adapt)
    }

    fn leaf_for(&self, key: KeyPair, adapt: impl FnOnce(&mut CertificateParams)) -> TestLeaf {
        let mut params = CertificateParams::default();
        params.not_before = now().saturating_sub(DAY).to_offset_date_time();
        params.not_after = now().saturating_add(90 * DAY).to_offset_date_time();
        params.serial_number = Some(SerialNumber::from_slice(&rand::random::<[u8; 8]>()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        adapt(&mut params);
        let der = params
            .signed_by(&key, &self.issuer())
            .unwrap()
            .der()
            .clone();
        TestLeaf {
            chain: vec![der],
            params,
            key,
        }
    }
}

/// A device's certificate of a test, with what it sends along.
struct TestLeaf {
    chain: Vec<CertificateDer<'static>>,
    params: CertificateParams,
    key: KeyPair,
}

impl TestLeaf {
    fn with(mut self, others: &[&CertificateDer<'static>]) -> Self {
        self.chain
            .extend(others.iter().map(|other| (*other).clone()));
        self
    }

    fn pem(&self) -> String {
        super::realm_ca::pem_block("CERTIFICATE", &self.chain[0])
    }

    fn serial(&self) -> String {
        super::serial_text(self.params.serial_number.as_ref().unwrap().as_ref())
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.serialize_der()).into()
    }
}

/// Pools of acme and globex, each with one root.
struct TwoRealms {
    acme: TestCa,
    globex: TestCa,
    pools: Pools,
}

impl TwoRealms {
    fn new() -> Self {
        let (acme, globex) = (TestCa::root("CA-A"), TestCa::root("CA-G"));
        let pools = Pools::new();
        pools.replace(&realm("acme"), &contents(&[&acme])).unwrap();
        pools
            .replace(&realm("globex"), &contents(&[&globex]))
            .unwrap();
        Self {
            acme,
            globex,
            pools,
        }
    }
}

fn contents(cas: &[&TestCa]) -> PoolContents {
    PoolContents {
        certificates_pem: cas.iter().map(|ca| ca.pem()).collect(),
        ..PoolContents::default()
    }
}

/// Runs the openssl command line in a fresh directory; gives the directory.
fn openssl(commands: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for command in commands {
        let output = std::process::Command::new("openssl")
            .args(command.split(' ').map(|word| word.replace('~', " ")))
            .current_dir(&directory)
            .output()
            .expect("the tests of RSA keys need the openssl command");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {command}: {said}");
    }
    directory
}

fn read(directory: &tempfile::TempDir, file: &str) -> String {
    std::fs::read_to_string(directory.path().join(file)).unwrap()
}

fn arc<T>(value: T) -> Arc<T> {
    Arc::new(value)
}
