//! Private keys as people have them: PKCS #8, SEC 1 or PKCS #1 in PEM, made into PKCS #8.

use zeroize::Zeroizing;

use super::der::{self, element, fields_of, header_and_value};

/// `AlgorithmIdentifier` of rsaEncryption (RFC 8017 appendix C).
const RSA_ENCRYPTION: &[u8] = &[
    0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0,
];
/// Object identifier id-ecPublicKey (RFC 5480 section 2.1.1).
const EC_PUBLIC_KEY: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];

/// Why a text is no private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not one unencrypted PEM private key; \
     `openssl pkcs8 -topk8 -nocrypt -in KEY -out KEY.pem` makes one of it"
)]
pub struct InvalidPrivateKey;

/// The PKCS #8 DER (RFC 5958) of exactly one unencrypted private key in PEM: `PRIVATE KEY`,
/// `EC PRIVATE KEY` (RFC 5915, with its curve) or `RSA PRIVATE KEY` (RFC 8017).
///
/// # Errors
/// When the text holds none, more than one, or an encrypted key.
pub fn pkcs8(pem_text: &str) -> Result<Zeroizing<Vec<u8>>, InvalidPrivateKey> {
    let blocks = pem::parse_many(pem_text).map_err(|_| InvalidPrivateKey)?;
    // OpenSSL writes the curve's parameters in front of an EC key
    let mut keys = blocks.iter().filter(|block| block.tag() != "EC PARAMETERS");
    let (Some(block), None) = (keys.next(), keys.next()) else {
        return Err(InvalidPrivateKey);
    };
    Ok(Zeroizing::new(match block.tag() {
        "PRIVATE KEY" => block.contents().to_vec(),
        "EC PRIVATE KEY" => wrap(&ec_algorithm(block.contents())?, block.contents()),
        "RSA PRIVATE KEY" => wrap(RSA_ENCRYPTION, block.contents()),
        _ => return Err(InvalidPrivateKey),
    }))
}

fn wrap(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let version = element(der::INTEGER, &[&[0]]);
    element(
        der::SEQUENCE,
        &[&version, algorithm, &element(der::OCTET_STRING, &[key])],
    )
}

/// `AlgorithmIdentifier` of an `ECPrivateKey` (RFC 5915 section 3), whose curve stands in its `[0]`.
fn ec_algorithm(key: &[u8]) -> Result<Vec<u8>, InvalidPrivateKey> {
    let fields = fields_of(key).ok_or(InvalidPrivateKey)?;
    let curve = fields
        .iter()
        .find(|field| field[0] == 0xa0)
        .ok_or(InvalidPrivateKey)?;
    let (_, curve) = header_and_value(curve).ok_or(InvalidPrivateKey)?;
    Ok(element(der::SEQUENCE, &[EC_PUBLIC_KEY, curve]))
}
