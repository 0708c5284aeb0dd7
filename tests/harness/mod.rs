//! What the behaviour tests stand on.

pub(crate) mod api;
pub(crate) mod broker;
pub(crate) mod device;
pub(crate) mod postgres;
pub(crate) mod product;

/// Makes ring the process's crypto provider, for clients that ask for a default.
pub(crate) fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
