//! The certificate that the server shows: configured files, or one made under the data directory.
//!
//! One or two pairs are configured (RSA, ECDSA), and each handshake gets the one that the client can
//! use; SNI plays no part, and nothing about the realm is taken from it. What is served lies behind an
//! atomic pointer: [`ServerCertificates::reload`] reads everything anew and swaps it as a whole, or
//! fails and leaves what was. A certificate made here is renewed by itself, live, thirty days before
//! its end ([`ServerCertificates::renew_if_due`]).

mod generated;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig, SupportedCipherSuite,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
    time_provider::TimeProvider,
};

use super::{DeviceVerifier, Pools, certificate_name, crypto_provider, pools::unix_time, realm_ca};
use crate::clock::{SharedClock, Timestamp};
use generated::Generated;

/// Cipher suites and signature schemes of a `ClientHello` that a log line shows.
const OFFERS_LOGGED: usize = 32;

/// A configured certificate with its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCertificateFiles {
    /// The certificate, followed by the intermediates that clients do not have.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why a server certificate cannot be used. The operator's to mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerCertificateError {
    /// A file cannot be read or written.
    #[error("{path} cannot be {doing}")]
    Io {
        /// Which.
        path: PathBuf,
        /// `read` or `written`.
        doing: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} {what}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The key is not the certificate's.
    #[error("the key {key} does not belong to the certificate {certificate}")]
    Mismatch {
        /// Certificate file.
        certificate: PathBuf,
        /// Key file.
        key: PathBuf,
    },
    /// More pairs than two.
    #[error("{0} server certificates are configured; one or two (RSA and ECDSA) can be")]
    TooMany(usize),
    /// Making one failed.
    #[error("the server certificate could not be made: {0}")]
    Making(String),
    /// The TLS library refuses the configuration.
    #[error("the TLS configuration is refused")]
    Tls(#[source] rustls::Error),
}

/// The server certificates; a handle, cheap to clone.
#[derive(Clone)]
pub struct ServerCertificates(Arc<Shared>);

struct Shared {
    source: Source,
    served: Arc<Served>,
    clock: SharedClock,
}

enum Source {
    Files(Vec<ServerCertificateFiles>),
    Generated(Generated),
}

/// What is served now.
#[derive(Debug)]
struct Served(ArcSwap<Current>);

#[derive(Debug)]
struct Current {
    pairs: Vec<Pair>,
    ca_pem: Option<String>,
}

#[derive(Debug, Clone)]
struct Pair {
    key: Arc<CertifiedKey>,
    not_after: Timestamp,
}

impl fmt::Debug for ServerCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificates")
            .field("not_after", &self.not_after())
            .finish()
    }
}

impl ServerCertificates {
    /// Reads the configured files; without any, opens or makes the certificate in `data_directory`
    /// (`server-ca.crt`, `server-ca.key`, `server.crt`, `server.key`) for localhost and `host_name`.
    ///
    /// # Errors
    /// When a file cannot be read or used; the message names it.
    pub fn open(
        data_directory: &Path,
        files: Vec<ServerCertificateFiles>,
        host_name: &str,
        clock: SharedClock,
    ) -> Result<Self, ServerCertificateError> {
        let source = match files.len() {
            0 => Source::Generated(Generated::new(data_directory, host_name)),
            1 | 2 => Source::Files(files),
            count => return Err(ServerCertificateError::TooMany(count)),
        };
        let current = source.read(clock.wall())?;
        let served = Arc::new(Served(ArcSwap::from_pointee(current)));
        Ok(Self(Arc::new(Shared {
            source,
            served,
            clock,
        })))
    }

    /// Reads everything anew; live for the next handshake.
    ///
    /// # Errors
    /// When anything cannot be used; then what was served is served further.
    pub fn reload(&self) -> Result<(), ServerCertificateError> {
        let current = self.0.source.read(self.0.clock.wall())?;
        self.0.served.0.store(Arc::new(current));
        Ok(())
    }

    /// Renews a certificate made here that ends within thirty days; whether it did. Configured files
    /// are never touched. Ask once an hour or so.
    ///
    /// # Errors
    /// When the new one cannot be written; then the old one is served further.
    pub fn renew_if_due(&self) -> Result<bool, ServerCertificateError> {
        let is_generated = matches!(self.0.source, Source::Generated(_));
        if !is_generated || !generated::is_due(self.not_after(), self.0.clock.wall()) {
            return Ok(false);
        }
        self.reload()?;
        Ok(true)
    }

    /// The CA that clients need to trust the server, PEM: the one made here, or a CA certificate that
    /// ends the configured chain.
    #[must_use]
    pub fn ca_pem(&self) -> Option<String> {
        self.0.served.0.load().ca_pem.clone()
    }

    /// End of validity of what is served; the earlier one of two.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        let current = self.0.served.0.load();
        current
            .pairs
            .iter()
            .map(|pair| pair.not_after)
            .min()
            .unwrap_or(Timestamp::MIN)
    }

    /// For devices: TLS 1.2 and 1.3, a client certificate is mandatory and asked of `pools`, no
    /// resumption of any kind (it would skip the question).
    ///
    /// # Errors
    /// When the TLS library refuses the configuration.
    pub fn mqtt_config(
        &self,
        pools: &Pools,
        clock: SharedClock,
    ) -> Result<Arc<ServerConfig>, ServerCertificateError> {
        let mut config =
            ServerConfig::builder_with_details(crypto_provider(), Arc::new(WallTime(clock)))
                .with_safe_default_protocol_versions()
                .map_err(ServerCertificateError::Tls)?
                .with_client_cert_verifier(Arc::new(DeviceVerifier::new(pools.clone())))
                .with_cert_resolver(Arc::clone(&self.0.served) as Arc<dyn ResolvesServerCert>);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }

    /// For HTTPS: the same certificate, no client certificate.
    ///
    /// # Errors
    /// When the TLS library refuses the configuration.
    pub fn https_config(&self) -> Result<Arc<ServerConfig>, ServerCertificateError> {
        let time = Arc::new(WallTime(Arc::clone(&self.0.clock)));
        let mut config = ServerConfig::builder_with_details(crypto_provider(), time)
            .with_safe_default_protocol_versions()
            .map_err(ServerCertificateError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.0.served) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Source {
    fn read(&self, now: Timestamp) -> Result<Current, ServerCertificateError> {
        match self {
            Self::Generated(generated) => {
                let made = generated.open_or_make(now)?;
                let pair = read_pair(&made.files, now)?;
                Ok(Current {
                    pairs: vec![pair],
                    ca_pem: Some(made.ca_pem),
                })
            }
            Self::Files(files) => {
                let pairs = files
                    .iter()
                    .map(|files| read_pair(files, now))
                    .collect::<Result<Vec<_>, _>>()?;
                let ca_pem = pairs.first().and_then(|pair| {
                    let last = pair.key.cert.last()?;
                    let is_ca = certificate_name::parse(last).is_ok_and(|last| last.is_ca());
                    is_ca.then(|| realm_ca::pem_block("CERTIFICATE", last))
                });
                Ok(Current { pairs, ca_pem })
            }
        }
    }
}

fn read_pair(
    files: &ServerCertificateFiles,
    now: Timestamp,
) -> Result<Pair, ServerCertificateError> {
    let content = |path: &Path, what: String| ServerCertificateError::Content {
        path: path.to_owned(),
        what,
    };
    let chain = CertificateDer::pem_slice_iter(&read(&files.certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| content(&files.certificate, format!("is not PEM: {error}")))?;
    let Some(leaf) = chain.first() else {
        return Err(content(
            &files.certificate,
            "holds no PEM block CERTIFICATE".to_owned(),
        ));
    };
    let parsed = certificate_name::parse(leaf)
        .map_err(|error| content(&files.certificate, error.to_string()))?;
    let not_after = certificate_name::timestamp(parsed.validity().not_after);
    let key_pem = zeroize::Zeroizing::new(read(&files.key)?);
    let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| {
        content(
            &files.key,
            format!("holds no unencrypted private key: {error}"),
        )
    })?;
    if not_after < now {
        let what = format!("has expired on {not_after}, clients would refuse it; renew it");
        return Err(content(&files.certificate, what));
    }
    let key = crypto_provider()
        .key_provider
        .load_private_key(key)
        .map_err(|error| {
            content(
                &files.key,
                format!("holds a key that is not supported: {error}"),
            )
        })?;
    let key = CertifiedKey::new(chain, key);
    key.keys_match()
        .map_err(|_| ServerCertificateError::Mismatch {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
        })?;
    Ok(Pair {
        key: Arc::new(key),
        not_after,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, ServerCertificateError> {
    fs::read(path).map_err(|source| ServerCertificateError::Io {
        path: path.to_owned(),
        doing: "read",
        source,
    })
}

impl ResolvesServerCert for Served {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.0.load();
        // which version it will be is not told here, so a pair that goes with both comes first
        let best = current
            .pairs
            .iter()
            .rev()
            .max_by_key(|pair| fit(&hello, pair))?;
        if fit(&hello, best) == Fit::None {
            tracing::info!(
                cipher_suites = ?first_few(hello.cipher_suites()),
                signature_schemes = ?first_few(hello.signature_schemes()),
                "the client offers nothing that goes with the server certificate: it needs an \
                 ECDHE suite with AES-GCM or ChaCha20-Poly1305"
            );
        }
        Some(Arc::clone(&best.key))
    }
}

/// How well a certificate goes with what a client offers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    None,
    Tls13Only,
    Tls12,
}

fn fit(hello: &ClientHello<'_>, pair: &Pair) -> Fit {
    let key = &*pair.key.key;
    if key.choose_scheme(hello.signature_schemes()).is_none() {
        return Fit::None;
    }
    let offered = hello.cipher_suites();
    let ours = rustls::crypto::ring::ALL_CIPHER_SUITES;
    let of_suite = |suite: &SupportedCipherSuite| match suite {
        SupportedCipherSuite::Tls12(suite) if key.choose_scheme(suite.sign).is_some() => Fit::Tls12,
        SupportedCipherSuite::Tls12(_) => Fit::None,
        SupportedCipherSuite::Tls13(_) => Fit::Tls13Only,
    };
    ours.iter()
        .filter(|suite| offered.contains(&suite.suite()))
        .map(of_suite)
        .max()
        .unwrap_or(Fit::None)
}

fn first_few<T>(offered: &[T]) -> &[T] {
    &offered[..offered.len().min(OFFERS_LOGGED)]
}

/// The wall clock for rustls.
#[derive(Debug)]
struct WallTime(SharedClock);

impl TimeProvider for WallTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.wall()))
    }
}
