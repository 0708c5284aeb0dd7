//! Why a realm was not changed.

use crate::{
    engine::{
        live::SessionsFailed,
        tokens::{InvalidTokenKey, SigningFailed},
    },
    store::StoreError,
};

/// Why a realm was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealmError {
    /// No such realm.
    #[error("realm not found")]
    NotFound,
    /// A realm of this name exists.
    #[error("realm already exists")]
    Exists,
    /// The key for tokens cannot be used.
    #[error(transparent)]
    Key(#[from] InvalidTokenKey),
    /// Devices are connected and the deletion was not forced.
    #[error("{0} devices of the realm are connected")]
    DevicesConnected(usize),
    /// No such CA in the realm.
    #[error("CA not found")]
    CaNotFound,
    /// This CA is in the pool already.
    #[error("CA already exists")]
    CaExists,
    /// The certificate or key given cannot be a CA's; the text says why.
    #[error("{0}")]
    CaInvalid(String),
    /// An issuing CA needs its private key.
    #[error("an issuing CA needs its private key")]
    CaKeyMissing,
    /// The issuing CA cannot be removed.
    #[error("the CA issues the realm's certificates; rotate it first")]
    CaIssuing,
    /// The realm's private key is not kept here.
    #[error("the realm's private key is not kept here; sign with it where it is")]
    NoPrivateKey,
    /// A token cannot be made; the text says why.
    #[error("{0}")]
    Token(&'static str),
    /// The key generator or the signer failed.
    #[error(transparent)]
    Signing(#[from] SigningFailed),
    /// What is sealed cannot be opened, or the reverse; damage, or a foreign master key.
    #[error("a key of the realm cannot be sealed or opened: {0}")]
    Sealed(String),
    /// The new pool was refused; the old one stays.
    #[error("the realm's pool was refused: {0}")]
    Pool(String),
    /// The session store failed.
    #[error(transparent)]
    Sessions(#[from] SessionsFailed),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
