//! Who a device is and what its topics mean: parsed once, valid ever after.
//!
//! A [`RealmName`], a [`DeviceId`] and an [`Identity`] can only be made from text that obeys
//! Astarte's rules, so whoever holds one need not check again. The identity is the certificate's
//! CN `<realm>/<device_id>` and becomes the prefix of every topic of that device; anything
//! ambiguous in it would be an access hole, so only the canonical form is accepted. Pure: no I/O.

mod topic;

use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

pub use topic::{ControlTopic, DeviceTopic};

/// A realm's name: `^[a-z][a-z0-9]{0,47}$`, not `astarte` and not `system`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealmName(Arc<str>);

/// Why a text is not a realm name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not a realm name: one lower-case letter, then up to 47 lower-case letters or digits; \
     astarte and system are reserved"
)]
pub struct InvalidRealmName;

impl RealmName {
    /// Longest name, in bytes.
    pub const BYTES_MAX: usize = 48;

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RealmName {
    type Err = InvalidRealmName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text.as_bytes();
        let shaped = (1..=Self::BYTES_MAX).contains(&bytes.len())
            && bytes[0].is_ascii_lowercase()
            && bytes
                .iter()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if shaped && text != "astarte" && text != "system" {
            Ok(Self(Arc::from(text)))
        } else {
            Err(InvalidRealmName)
        }
    }
}

impl fmt::Display for RealmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RealmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for RealmName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RealmName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A device's 128 bits, unique within its realm; as text 22 characters of base64url.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId([u8; 16]);

/// Why a text is not a device id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a device id: 22 characters of base64url without padding, in canonical form")]
pub struct InvalidDeviceId;

impl DeviceId {
    /// Characters of the canonical text.
    pub const TEXT_BYTES: usize = 22;

    /// From the 128 bits.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 128 bits.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A random id (the bits of a version 4 UUID).
    #[must_use]
    pub fn random() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }

    /// The id of `hardware_id` within `namespace` (the bits of a version 5 UUID), the same as
    /// `astartectl utils device-id compute-from-string` prints.
    #[must_use]
    pub fn derive(namespace: Uuid, hardware_id: &[u8]) -> Self {
        Self(*Uuid::new_v5(&namespace, hardware_id).as_bytes())
    }

    /// Like [`FromStr`], but takes an extended id too (more than 128 bits; the first 128 are the
    /// id). Pairing's routes alone accept these.
    ///
    /// # Errors
    /// When the text is not base64url, or has fewer than 128 bits.
    pub fn parse_extended(text: &str) -> Result<Self, InvalidDeviceId> {
        if text.len() > 512 {
            return Err(InvalidDeviceId);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidDeviceId)?;
        let first = bytes.first_chunk::<16>().ok_or(InvalidDeviceId)?;
        Ok(Self(*first))
    }
}

impl FromStr for DeviceId {
    type Err = InvalidDeviceId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != Self::TEXT_BYTES {
            return Err(InvalidDeviceId);
        }
        let mut bytes = [0; 16];
        // refuses padding, foreign characters and non-zero spare bits
        match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
            Ok(16) => Ok(Self(bytes)),
            _ => Err(InvalidDeviceId),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; Self::TEXT_BYTES];
        URL_SAFE_NO_PAD
            .encode_slice(self.0, &mut text)
            .map_err(|_| fmt::Error)?;
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A device of a realm: the certificate's CN, the key of its session, the prefix of its topics.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The realm, whose CA issued the certificate.
    pub realm: RealmName,
    /// The device within the realm.
    pub device: DeviceId,
}

/// Why a text is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdentity {
    /// Not exactly two parts with one slash between.
    #[error("is not of the form <realm>/<device id>")]
    Shape,
    /// The first part.
    #[error("the part before the slash {0}")]
    Realm(#[from] InvalidRealmName),
    /// The second part.
    #[error("the part after the slash {0}")]
    Device(#[from] InvalidDeviceId),
}

impl Identity {
    /// Bytes of the longest identity as text.
    pub const BYTES_MAX: usize = RealmName::BYTES_MAX + 1 + DeviceId::TEXT_BYTES;

    /// A device of a realm.
    #[must_use]
    pub const fn new(realm: RealmName, device: DeviceId) -> Self {
        Self { realm, device }
    }
}

impl FromStr for Identity {
    type Err = InvalidIdentity;

    /// Reads exactly `<realm>/<canonical device id>`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (realm, device) = text.split_once('/').ok_or(InvalidIdentity::Shape)?;
        if device.contains('/') {
            return Err(InvalidIdentity::Shape);
        }
        Ok(Self {
            realm: realm.parse()?,
            device: device.parse()?,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.realm, self.device)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "Zm9vYmFyYmF6cXV4MTIzNA";

    #[test]
    fn an_identity_prints_as_it_was_read() {
        let identity: Identity = format!("acme/{ID}").parse().expect("canonical");
        assert_eq!(identity.to_string(), format!("acme/{ID}"));
        assert_eq!(identity.device.as_bytes(), b"foobarbazqux1234");
    }

    #[test]
    fn fc_074_only_the_exact_form_is_an_identity() {
        let long = "a".repeat(64);
        let refused = [
            "acme".to_owned(),
            "acme/".to_owned(),
            format!("/{ID}"),
            format!("acme/{ID}/x"),
            format!("acme//{ID}"),
            format!(" acme/{ID}"),
            format!("acme/{ID} "),
            format!("ACME/{ID}"),
            format!("acme/{}", &ID[..21]),
            format!("acme/{}B", &ID[..21]),
            format!("acme/{ID}AAAA"),
            format!("acme/{ID}=="),
            format!("acme/{}+", &ID[..21]),
            "acme/+".to_owned(),
            format!("+/{ID}"),
            "#".to_owned(),
            format!("{long}/{ID}"),
            String::new(),
            format!("astarte/{ID}"),
            format!("acme\0/{ID}"),
        ];
        for text in refused {
            assert!(
                text.parse::<Identity>().is_err(),
                "{text:?} was taken for an identity"
            );
        }
    }

    #[test]
    fn extended_ids_are_cut_to_their_first_128_bits() {
        let id = DeviceId::parse_extended(&format!("{ID}AAAA")).expect("extended");
        // 22 characters hold 132 bits: the last four of them belong to the 17th byte
        assert_eq!(&id.as_bytes()[..15], &b"foobarbazqux123"[..]);
        assert!(DeviceId::parse_extended("Zm9v").is_err());
    }

    #[test]
    fn derived_ids_are_those_of_a_version_5_uuid() {
        let namespace = Uuid::NAMESPACE_DNS;
        let id = DeviceId::derive(namespace, b"example.org");
        let uuid = Uuid::from_bytes(*id.as_bytes());
        assert_eq!(uuid.to_string(), "aad03681-8b63-5304-89e0-8ca8f49461b5");
        assert_eq!(uuid.get_version_num(), 5);
    }
}
