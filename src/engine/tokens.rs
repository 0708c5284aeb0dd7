//! Keys and tokens: which public key verifies a realm's JWTs, and how one is signed.
//!
//! ES256, ES384 and RS/PS 256, 384 and 512 are verified; HMAC and `none` never are, whatever a
//! token's header says, because the algorithms follow from the key. ES512 (P-521) is refused when
//! the key is given: the JWT library cannot verify it, and a realm with such a key would be shut.

use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey, Header, Validation};
use serde_json::{Map, Value};
use x509_parser::{prelude::FromDer, public_key::PublicKey, x509::SubjectPublicKeyInfo};

use crate::clock::Timestamp;

/// Longest key text that is looked at, in bytes; a PEM of RSA 8192 has about 1,500.
const PEM_BYTES_MAX: usize = 16 * 1024;

/// Object identifiers of the curves (RFC 5480 section 2.1.1.1).
const P256: &str = "1.2.840.10045.3.1.7";
const P384: &str = "1.3.132.0.34";

/// A public key that verifies tokens.
pub struct TokenKey {
    key: DecodingKey,
    validation: Validation,
}

/// Why a text is not a key for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTokenKey {
    /// Not exactly one PEM block `PUBLIC KEY` that holds a readable key.
    #[error("is not a valid PEM public key")]
    NotPem,
    /// An RSA key outside 2048 to 8192 bits.
    #[error("is not a valid PEM public key: RSA keys must have 2048 to 8192 bits")]
    RsaSize,
    /// Neither RSA nor on the curves P-256 and P-384.
    #[error(
        "is not a valid PEM public key: only RSA, P-256 and P-384 are supported (ES512 is not)"
    )]
    Unsupported,
}

/// Why a token does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    /// Not three parts of base64url JSON, or a claim of a wrong type.
    #[error("the token is malformed")]
    Malformed,
    /// Another algorithm than the key's, or a signature that does not fit.
    #[error("the token is not signed by this realm's key")]
    Signature,
    /// `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// `nbf` is yet to come.
    #[error("the token is not valid yet")]
    NotYet,
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKey")
            .field("algorithms", &self.validation.algorithms)
            .finish_non_exhaustive()
    }
}

impl TokenKey {
    /// Reads exactly one PEM block `PUBLIC KEY` (SubjectPublicKeyInfo): RSA, P-256 or P-384.
    ///
    /// # Errors
    /// When the text is anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidTokenKey> {
        if text.len() > PEM_BYTES_MAX {
            return Err(InvalidTokenKey::NotPem);
        }
        let blocks = pem::parse_many(text).map_err(|_| InvalidTokenKey::NotPem)?;
        let [block] = blocks.as_slice() else {
            return Err(InvalidTokenKey::NotPem);
        };
        if block.tag() != "PUBLIC KEY" {
            return Err(InvalidTokenKey::NotPem);
        }
        let (rest, info) = SubjectPublicKeyInfo::from_der(block.contents())
            .map_err(|_| InvalidTokenKey::NotPem)?;
        let public = info.parsed().map_err(|_| InvalidTokenKey::NotPem)?;
        let algorithms = match (rest, &public) {
            ([], PublicKey::RSA(rsa)) => {
                if !(2048..=8192).contains(&rsa.key_size()) {
                    return Err(InvalidTokenKey::RsaSize);
                }
                AlgorithmFamily::Rsa.algorithms().to_vec()
            }
            ([], PublicKey::EC(_)) => match curve(&info).as_deref() {
                Some(P256) => vec![Algorithm::ES256],
                Some(P384) => vec![Algorithm::ES384],
                _ => return Err(InvalidTokenKey::Unsupported),
            },
            ([], _) => return Err(InvalidTokenKey::Unsupported),
            _ => return Err(InvalidTokenKey::NotPem),
        };
        let key = match public {
            PublicKey::RSA(_) => DecodingKey::from_rsa_pem(text.as_bytes()),
            _ => DecodingKey::from_ec_pem(text.as_bytes()),
        }
        .map_err(|_| InvalidTokenKey::NotPem)?;
        Ok(Self {
            key,
            validation: signature_only(algorithms),
        })
    }

    /// The claims of a token that this key signed and whose time it is; `exp` and `nbf` count
    /// where they are given.
    ///
    /// # Errors
    /// When the token does not count; which of the reasons is for the log, not for the caller.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Map<String, Value>, InvalidToken> {
        use jsonwebtoken::errors::ErrorKind;
        let claims = jsonwebtoken::decode::<Map<String, Value>>(token, &self.key, &self.validation)
            .map_err(|error| match error.kind() {
                ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => {
                    InvalidToken::Signature
                }
                _ => InvalidToken::Malformed,
            })?
            .claims;
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds of this era are exact in f64"
        )]
        let now_seconds = now.as_millis() as f64 / 1000.0;
        if numeric_date(&claims, "exp")?.is_some_and(|at| at <= now_seconds) {
            return Err(InvalidToken::Expired);
        }
        if numeric_date(&claims, "nbf")?.is_some_and(|at| at > now_seconds) {
            return Err(InvalidToken::NotYet);
        }
        Ok(claims)
    }
}

/// The named curve of an EC key.
fn curve(info: &SubjectPublicKeyInfo<'_>) -> Option<String> {
    let parameters = info.algorithm.parameters.as_ref()?;
    parameters.as_oid().ok().map(|oid| oid.to_id_string())
}

/// Signature alone: the library would read the ambient clock, so the times are checked here.
fn signature_only(algorithms: Vec<Algorithm>) -> Validation {
    let mut validation = Validation::new(Algorithm::ES256);
    validation.algorithms = algorithms;
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

/// A `NumericDate` claim in seconds since the epoch (RFC 7519 section 2).
fn numeric_date(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, InvalidToken> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(InvalidToken::Malformed),
    }
}

/// A pair of keys for tokens.
#[derive(Debug)]
pub struct TokenKeyPair {
    /// PEM `PUBLIC KEY`.
    pub public_key_pem: String,
    /// PEM `PRIVATE KEY` (PKCS #8).
    pub private_key_pem: zeroize::Zeroizing<String>,
}

/// The key generator or the signer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the private key cannot be used to sign tokens")]
pub struct SigningFailed;

impl TokenKeyPair {
    /// A new pair on P-256.
    ///
    /// # Errors
    /// When the machine has no randomness.
    pub fn generate() -> Result<Self, SigningFailed> {
        let pair = rcgen::KeyPair::generate().map_err(|_| SigningFailed)?;
        Ok(Self {
            public_key_pem: pair.public_key_pem(),
            private_key_pem: zeroize::Zeroizing::new(pair.serialize_pem()),
        })
    }
}

/// Signs a token with a PKCS #8 key: ES256 or ES384 by its curve, RS256 for RSA.
///
/// # Errors
/// When the key is none of these.
pub fn sign(private_key_pem: &str, claims: &Map<String, Value>) -> Result<String, SigningFailed> {
    let pem = private_key_pem.as_bytes();
    if let Ok(key) = EncodingKey::from_ec_pem(pem) {
        return [Algorithm::ES256, Algorithm::ES384]
            .into_iter()
            .find_map(|algorithm| jsonwebtoken::encode(&Header::new(algorithm), claims, &key).ok())
            .ok_or(SigningFailed);
    }
    let key = EncodingKey::from_rsa_pem(pem).map_err(|_| SigningFailed)?;
    jsonwebtoken::encode(&Header::new(Algorithm::RS256), claims, &key).map_err(|_| SigningFailed)
}

/// A service that a token may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenApi {
    /// Astarte's AppEngine, `a_aea`.
    AppEngine,
    /// Astarte's Realm Management, `a_rma`.
    RealmManagement,
    /// Astarte's Pairing (agent routes), `a_pa`.
    Pairing,
    /// Astarte's Channels, `a_ch`.
    Channels,
    /// Astarte's Housekeeping, `a_ha`; its key is the instance's, not a realm's.
    Housekeeping,
}

impl TokenApi {
    /// Name of the claim that lists what is allowed.
    #[must_use]
    pub const fn claim(self) -> &'static str {
        match self {
            Self::AppEngine => "a_aea",
            Self::RealmManagement => "a_rma",
            Self::Pairing => "a_pa",
            Self::Channels => "a_ch",
            Self::Housekeeping => "a_ha",
        }
    }

    /// The entries that allow everything in it.
    #[must_use]
    pub const fn everything(self) -> &'static [&'static str] {
        match self {
            // a room's verb has to stand there literally
            Self::Channels => &["JOIN::.*", "WATCH::.*"],
            _ => &[".*::.*"],
        }
    }
}

impl std::str::FromStr for TokenApi {
    type Err = UnknownApi;

    fn from_str(name: &str) -> Result<Self, UnknownApi> {
        match name {
            "appengine" => Ok(Self::AppEngine),
            "realm-management" | "realmmanagement" | "realm_management" => {
                Ok(Self::RealmManagement)
            }
            "pairing" => Ok(Self::Pairing),
            "channels" => Ok(Self::Channels),
            "housekeeping" => Ok(Self::Housekeeping),
            _ => Err(UnknownApi),
        }
    }
}

/// Not the name of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not one of appengine, realm-management, pairing, channels, housekeeping")]
pub struct UnknownApi;

/// Claims that allow everything in `apis`, issued now and ending after `expiry`.
#[must_use]
pub fn claims(
    apis: &[TokenApi],
    now: Timestamp,
    expiry: Option<std::time::Duration>,
) -> Map<String, Value> {
    let seconds = |at: Timestamp| Value::from(at.as_millis().div_euclid(1000));
    let mut claims = Map::new();
    for api in apis {
        claims.insert(
            api.claim().to_owned(),
            Value::from(api.everything().to_vec()),
        );
    }
    claims.insert("iat".to_owned(), seconds(now));
    if let Some(expiry) = expiry {
        claims.insert("exp".to_owned(), seconds(now.saturating_add(expiry)));
    }
    claims
}
