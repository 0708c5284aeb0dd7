//! A realm's CRL file.

use rustls::pki_types::{CertificateRevocationListDer, pem::PemObject as _};
use x509_parser::{prelude::FromDer as _, revocation_list::CertificateRevocationList};

use crate::pki::certificate_name;

#[derive(Clone)]
pub(super) struct Crl {
    pub(super) der: CertificateRevocationListDer<'static>,
    pub(super) issuer: Vec<u8>,
    /// Issued by a CA of the pool, not by an intermediate below it.
    pub(super) of_pool: bool,
}

/// Reads a CRL file. The signature of a CRL whose issuer is in the pool is checked here, so that a
/// broken file is noticed when it is read and not when a device connects; one of an intermediate is
/// checked when a chain shows that intermediate.
pub(super) fn read(text: &str, cas: &[Vec<u8>]) -> Result<Vec<Crl>, String> {
    let ders = CertificateRevocationListDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("not PEM: {error}"))?;
    if ders.is_empty() {
        return Err("there is no PEM block X509 CRL in it".to_owned());
    }
    let cas = cas
        .iter()
        .map(|der| certificate_name::parse(der))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    let mut crls = Vec::with_capacity(ders.len());
    for der in ders {
        let Ok(([], crl)) = CertificateRevocationList::from_der(&der) else {
            return Err("it holds a block that is no CRL".to_owned());
        };
        let issuer = crl.issuer().as_raw().to_vec();
        let mut issuers = cas
            .iter()
            .filter(|ca| ca.subject().as_raw() == issuer)
            .peekable();
        let of_pool = issuers.peek().is_some();
        if of_pool && !issuers.any(|ca| crl.verify_signature(ca.public_key()).is_ok()) {
            return Err(format!(
                "its signature is not by the CA {} that it names",
                crl.issuer()
            ));
        }
        crls.push(Crl {
            der,
            issuer,
            of_pool,
        });
    }
    Ok(crls)
}
