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

/// Says that a part of the tests did not run, in the line that CI looks for. Written past the test
/// runner, which hides what a passing test prints.
pub(crate) fn skipped(what: &str) {
    use std::io::Write as _;
    let line = format!("\nSKIPPED: {what}\n");
    let _ = std::io::stdout().write_all(line.as_bytes());
}
