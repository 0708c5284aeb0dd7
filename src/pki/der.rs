//! The few pieces of DER that are written and taken apart by hand (X.690 section 8.1): tag, length,
//! value.

use x509_parser::prelude::FromDer as _;

/// `SEQUENCE`.
pub(super) const SEQUENCE: u8 = 0x30;
/// `INTEGER`.
pub(super) const INTEGER: u8 = 0x02;
/// `BIT STRING`.
pub(super) const BIT_STRING: u8 = 0x03;
/// `OCTET STRING`.
pub(super) const OCTET_STRING: u8 = 0x04;

/// One element of `tag` whose value is the concatenation of `parts`.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut der = Vec::with_capacity(length + 6);
    der.push(tag);
    if let Ok(short @ 0..0x80) = u8::try_from(length) {
        der.push(short);
    } else {
        let bytes = length.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let digits = &bytes[zeros..];
        der.push(0x80 | u8::try_from(digits.len()).unwrap_or(8)); // a usize has at most 8 bytes
        der.extend_from_slice(digits);
    }
    for part in parts {
        der.extend_from_slice(part);
    }
    der
}

/// The elements of a `SEQUENCE`, each whole.
pub(super) fn fields_of(sequence: &[u8]) -> Option<Vec<&[u8]>> {
    let (_, mut rest) = header_and_value(sequence)?;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (length, _) = header_and_value(rest)?;
        let (field, after) = rest.split_at_checked(length)?;
        fields.push(field);
        rest = after;
    }
    Some(fields)
}

/// The whole length of the first element, and its value.
pub(super) fn header_and_value(der: &[u8]) -> Option<(usize, &[u8])> {
    let (rest, any) = x509_parser::asn1_rs::Any::from_der(der).ok()?;
    Some((der.len() - rest.len(), any.data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_their_shortest_form() {
        assert_eq!(element(OCTET_STRING, &[]), [0x04, 0x00]);
        assert_eq!(element(OCTET_STRING, &[&[7; 127]])[..2], [0x04, 0x7f]);
        assert_eq!(
            element(OCTET_STRING, &[&[7; 100], &[7; 28]])[..3],
            [0x04, 0x81, 0x80]
        );
        assert_eq!(
            element(SEQUENCE, &[&[0; 0x1234]])[..4],
            [0x30, 0x82, 0x12, 0x34]
        );
    }
}
