//! The names of device errors, and what follows from each.
//!
//! The names, the clean kick and the statistics are those of Astarte MQTT v1 (Error handling,
//! table of errors); where Tanit differs the variant says so. `invalid_interface` cannot happen
//! here: it is for names that are not UTF-8, and MQTT refuses a topic that holds one.

use crate::{
    mqtt::{AfterRefusal, Denial, packet::ReasonCode},
    store::DeviceErrorRow,
};

/// Why a message of a device was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceError {
    /// The path contains `//`.
    InvalidPath,
    /// The interface is not in the introspection, or not installed in the realm.
    InterfaceLoadingFailed,
    /// The interface belongs to the server.
    WriteOnServerOwnedInterface,
    /// No endpoint matches the path.
    MappingNotFound,
    /// The path ends before any endpoint does.
    AmbiguousPath,
    /// The payload is not the BSON that the protocol allows.
    UndecodableBsonPayload,
    /// The value is not of the mapping's type, or its time cannot be represented.
    UnexpectedValueType,
    /// A string, blob or array is larger than the protocol allows.
    ValueSizeExceeded,
    /// An object has a key that no mapping has.
    UnexpectedObjectKey,
    /// An object lacks a required key.
    MissingRequiredMapping,
    /// An empty payload on a datastream. No clean kick.
    UnsetOnDatastream,
    /// The mapping does not allow unset.
    UnsetNotAllowed,
    /// The introspection breaks its grammar.
    InvalidIntrospection,
    /// Nothing that a device may send under `control/`.
    UnexpectedControlMessage,
    /// We failed on this message alone: a bug here, logged as an error. Not one of Astarte's
    /// names; no clean kick, because the device did nothing wrong.
    InternalError,
}

impl DeviceError {
    /// Every error, for metrics and tables.
    pub const ALL: [Self; 15] = [
        Self::InvalidPath,
        Self::InterfaceLoadingFailed,
        Self::WriteOnServerOwnedInterface,
        Self::MappingNotFound,
        Self::AmbiguousPath,
        Self::UndecodableBsonPayload,
        Self::UnexpectedValueType,
        Self::ValueSizeExceeded,
        Self::UnexpectedObjectKey,
        Self::MissingRequiredMapping,
        Self::UnsetOnDatastream,
        Self::UnsetNotAllowed,
        Self::InvalidIntrospection,
        Self::UnexpectedControlMessage,
        Self::InternalError,
    ];

    /// Astarte's name of the error.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidPath => "invalid_path",
            Self::InterfaceLoadingFailed => "interface_loading_failed",
            Self::WriteOnServerOwnedInterface => "write_on_server_owned_interface",
            Self::MappingNotFound => "mapping_not_found",
            Self::AmbiguousPath => "ambiguous_path",
            Self::UndecodableBsonPayload => "undecodable_bson_payload",
            Self::UnexpectedValueType => "unexpected_value_type",
            Self::ValueSizeExceeded => "value_size_exceeded",
            Self::UnexpectedObjectKey => "unexpected_object_key",
            Self::MissingRequiredMapping => "missing_required_mapping",
            Self::UnsetOnDatastream => "unset_on_datastream",
            Self::UnsetNotAllowed => "unset_not_allowed",
            Self::InvalidIntrospection => "invalid_introspection",
            Self::UnexpectedControlMessage => "unexpected_control_message",
            Self::InternalError => "internal_error",
        }
    }

    /// Whether the session is erased and the connection closed after the acknowledgement.
    #[must_use]
    pub const fn then(self) -> AfterRefusal {
        match self {
            Self::UnsetOnDatastream | Self::InternalError => AfterRefusal::Continue,
            _ => AfterRefusal::CleanKick,
        }
    }

    /// Whether the refused message counts in the device's statistics.
    #[must_use]
    pub const fn counts(self) -> bool {
        !matches!(
            self,
            Self::UnsetOnDatastream | Self::UnsetNotAllowed | Self::InternalError
        )
    }

    /// What a 5.0 device reads in its PUBACK or PUBREC.
    #[must_use]
    pub const fn reason(self) -> ReasonCode {
        match self {
            Self::InterfaceLoadingFailed | Self::WriteOnServerOwnedInterface => {
                ReasonCode::NOT_AUTHORIZED
            }
            Self::InvalidPath
            | Self::MappingNotFound
            | Self::AmbiguousPath
            | Self::UnexpectedControlMessage => ReasonCode::TOPIC_NAME_INVALID,
            _ => ReasonCode::PAYLOAD_FORMAT_INVALID,
        }
    }
}

impl From<Denial> for DeviceError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::InterfaceNotDeclared => Self::InterfaceLoadingFailed,
            Denial::ServerOwned => Self::WriteOnServerOwnedInterface,
            Denial::InvalidPath => Self::InvalidPath,
            Denial::UnexpectedControl => Self::UnexpectedControlMessage,
        }
    }
}

/// Bytes of a refused payload that are kept with its device error. Enough for the value of a
/// typical message, while 100 errors of a device stay below 50 KB.
pub(super) const EXCERPT_BYTES: usize = 256;

/// Longest text of a refused message (interface, path, detail) that is kept, in bytes: a topic may
/// be as long as a packet, and an error row is kept for weeks.
pub(super) const TEXT_BYTES: usize = 512;

/// A refused message: what its device error row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Which error.
    pub(super) error: DeviceError,
    /// More, for people.
    pub(super) detail: Option<String>,
}

impl Refusal {
    /// A refusal that its name explains.
    pub(super) const fn new(error: DeviceError) -> Self {
        Self {
            error,
            detail: None,
        }
    }

    /// A refusal with an explanation for people.
    pub(super) fn because(error: DeviceError, detail: impl std::fmt::Display) -> Self {
        Self {
            error,
            detail: Some(detail.to_string()),
        }
    }

    /// The row of this refusal. Long texts are cut, the payload to its first
    /// [`EXCERPT_BYTES`] bytes.
    pub(super) fn into_row(
        self,
        at: crate::clock::Timestamp,
        interface: Option<&str>,
        path: Option<&str>,
        payload: &[u8],
    ) -> DeviceErrorRow {
        use base64::Engine as _;
        let excerpt = &payload[..payload.len().min(EXCERPT_BYTES)];
        DeviceErrorRow {
            at,
            error_name: self.error.as_str().to_owned(),
            interface: interface.map(cut),
            path: path.map(cut),
            base64_payload: (!payload.is_empty())
                .then(|| base64::engine::general_purpose::STANDARD.encode(excerpt)),
            detail: self.detail.as_deref().map(cut),
        }
    }
}

/// The text, or its beginning when it is long.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn all_lists_each_error_at_its_own_place() {
        for (index, error) in DeviceError::ALL.into_iter().enumerate() {
            assert_eq!(error as usize, index, "{}", error.as_str());
        }
    }

    #[test]
    fn only_a_refused_unset_on_a_datastream_is_forgiven() {
        let forgiven: Vec<_> = DeviceError::ALL
            .into_iter()
            .filter(|error| error.then() == AfterRefusal::Continue)
            .collect();
        assert_eq!(
            forgiven,
            [DeviceError::UnsetOnDatastream, DeviceError::InternalError]
        );
    }

    #[test]
    fn a_row_keeps_the_beginning_of_long_texts_and_payloads() {
        let long = "é".repeat(TEXT_BYTES);
        let row = Refusal::because(DeviceError::MappingNotFound, &long).into_row(
            Timestamp::from_micros(1),
            Some(&long),
            Some("/x"),
            &[0xff; 1000],
        );
        assert_eq!(row.interface.map(|text| text.len()), Some(TEXT_BYTES));
        assert_eq!(row.detail.map(|text| text.len()), Some(TEXT_BYTES));
        assert_eq!(row.path.as_deref(), Some("/x"));
        assert_eq!(row.base64_payload.map(|text| text.len()), Some(344));
    }

    #[test]
    fn an_empty_payload_has_no_excerpt() {
        let row = Refusal::new(DeviceError::UnsetNotAllowed).into_row(
            Timestamp::from_micros(1),
            None,
            None,
            b"",
        );
        assert_eq!(row.base64_payload, None);
    }
}
