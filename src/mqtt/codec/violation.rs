//! What a peer did wrong on the wire, sorted by cause, and what it is told.

use crate::mqtt::packet::{ReasonCode, Version};

/// A packet that the standard forbids, or that is over our limits. Always the peer's fault; the
/// connection ends with it [MQTT-4.8.0-1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    // --- framing and size ---
    /// A length of more than four bytes (2.2.3).
    #[error("variable length has more than four bytes")]
    LengthMalformed,
    /// A length in more bytes than it needs. [MQTT5-1.5.5-1] forbids it; 3.1.1 is silent, and we
    /// refuse it in both.
    #[error("variable length has more bytes than it needs")]
    LengthOverlong,
    /// The declared size of the packet, header and all, is over the limit.
    #[error("packet of {bytes} bytes, at most {max} are accepted")]
    PacketTooLarge {
        /// What the fixed header declares.
        bytes: usize,
        /// What is accepted at this moment.
        max: usize,
    },
    /// More user properties than are accepted in one packet.
    #[error("too many user properties")]
    UserPropertiesTooMany,
    /// More topic filters than are accepted in one packet.
    #[error("too many topic filters")]
    FiltersTooMany,

    // --- the wrong packet ---
    /// The first packet is no CONNECT [MQTT-3.1.0-1].
    #[error("first packet is no CONNECT")]
    ConnectExpected,
    /// A second CONNECT [MQTT-3.1.0-2].
    #[error("second CONNECT")]
    ConnectRepeated,
    /// A packet that only the other side sends.
    #[error("packet goes the other way")]
    WrongDirection,
    /// A packet type that the version does not have.
    #[error("unknown packet type")]
    PacketType,

    // --- the version ---
    /// The protocol name is neither `MQTT` nor `MQIsdp` [MQTT-3.1.2-1].
    #[error("unknown protocol name")]
    ProtocolName,
    /// A protocol level that we do not speak [MQTT-3.1.2-2]; 3 and `MQIsdp` are MQTT 3.1.
    #[error("protocol level {level} is not supported")]
    ProtocolVersion {
        /// The level asked for.
        level: u8,
    },

    // --- malformed ---
    /// Reserved flags in the fixed header [MQTT-2.2.2-2].
    #[error("reserved flags of the fixed header")]
    FixedFlags,
    /// The packet ends inside a field [MQTT-3.8.3-3].
    #[error("packet ends inside a field")]
    Truncated,
    /// Bytes are left after the last field.
    #[error("bytes after the last field")]
    TrailingBytes,
    /// A bit is set that the standard reserves [MQTT-3.1.2-3], [MQTT-3-8.3-4].
    #[error("reserved bit is set")]
    ReservedBits,
    /// Will QoS or will retain without a will [MQTT-3.1.2-13], [MQTT-3.1.2-15].
    #[error("will flags without a will")]
    WillFlags,
    /// QoS 3 [MQTT-3.3.1-4].
    #[error("QoS 3")]
    QoS,
    /// Text is not UTF-8 [MQTT-1.5.3-1].
    #[error("text is not UTF-8")]
    Utf8,
    /// Text has a null character [MQTT-1.5.3-2].
    #[error("text has a null character")]
    NullCharacter,
    /// A property that does not exist, or not in this packet (2.2.2.2).
    #[error("property does not belong here")]
    Property,
    /// A reason code or return code that this packet cannot have.
    #[error("reason code does not belong here")]
    ReasonCode,
    /// Our checks let it through and the codec library did not: a gap in the former.
    #[error("refused by the codec library")]
    Library,

    // --- protocol errors ---
    /// DUP on QoS 0 [MQTT-3.3.1-2].
    #[error("DUP on QoS 0")]
    DupWithoutQoS,
    /// Packet identifier 0 [MQTT-2.3.1-1].
    #[error("packet identifier 0")]
    PacketIdZero,
    /// A password without a user name [MQTT-3.1.2-22]; 5.0 allows it.
    #[error("password without user name")]
    PasswordWithoutUsername,
    /// SUBSCRIBE or UNSUBSCRIBE without a filter [MQTT-3.8.3-3], [MQTT-3.10.3-2].
    #[error("no topic filter")]
    FiltersMissing,
    /// A property that may come once came twice.
    #[error("property comes twice")]
    PropertyRepeated,
    /// A property has a value that is forbidden, such as a Receive Maximum of 0.
    #[error("property has a forbidden value")]
    PropertyValue,
    /// A property that only the other side may send.
    #[error("property goes the other way")]
    PropertyDirection,
    /// Authentication data without a method.
    #[error("authentication data without a method")]
    AuthenticationMethodMissing,
    /// Retain handling 3 (3.8.3.1 of 5.0).
    #[error("retain handling 3")]
    RetainHandling,
    /// No Local on a shared subscription [MQTT5-3.8.3-4].
    #[error("No Local on a shared subscription")]
    NoLocalShared,
    /// An empty topic name without a topic alias (3.3.2.1 of 5.0).
    #[error("empty topic without an alias")]
    TopicMissing,

    // --- topics ---
    /// An empty topic name, or one with a wildcard; in a PUBLISH, will or response topic
    /// [MQTT-3.3.2-2], [MQTT-4.7.3-1].
    #[error("topic name is empty or has a wildcard")]
    TopicName,
    /// Topic alias 0 [MQTT5-3.3.2-8].
    #[error("topic alias 0")]
    TopicAliasZero,
}

impl Violation {
    /// The name under which it is counted and logged.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LengthMalformed => "length_malformed",
            Self::LengthOverlong => "length_overlong",
            Self::PacketTooLarge { .. } => "packet_too_large",
            Self::UserPropertiesTooMany => "user_properties_too_many",
            Self::FiltersTooMany => "filters_too_many",
            Self::ConnectExpected => "connect_expected",
            Self::ConnectRepeated => "connect_repeated",
            Self::WrongDirection => "wrong_direction",
            Self::PacketType => "packet_type",
            Self::ProtocolName => "protocol_name",
            Self::ProtocolVersion { .. } => "protocol_version",
            Self::FixedFlags => "fixed_flags",
            Self::Truncated => "truncated",
            Self::TrailingBytes => "trailing_bytes",
            Self::ReservedBits => "reserved_bits",
            Self::WillFlags => "will_flags",
            Self::QoS => "qos",
            Self::Utf8 => "utf8",
            Self::NullCharacter => "null_character",
            Self::Property => "property",
            Self::ReasonCode => "reason_code",
            Self::Library => "library",
            Self::DupWithoutQoS => "dup_without_qos",
            Self::PacketIdZero => "packet_id_zero",
            Self::PasswordWithoutUsername => "password_without_username",
            Self::FiltersMissing => "filters_missing",
            Self::PropertyRepeated => "property_repeated",
            Self::PropertyValue => "property_value",
            Self::PropertyDirection => "property_direction",
            Self::AuthenticationMethodMissing => "authentication_method_missing",
            Self::RetainHandling => "retain_handling",
            Self::NoLocalShared => "no_local_shared",
            Self::TopicMissing => "topic_missing",
            Self::TopicName => "topic_name",
            Self::TopicAliasZero => "topic_alias_zero",
        }
    }

    /// The reason code that 5.0 has for it, for DISCONNECT and for CONNACK.
    #[must_use]
    pub const fn reason_code(self) -> ReasonCode {
        match self {
            Self::PacketTooLarge { .. } => ReasonCode::PACKET_TOO_LARGE,
            Self::UserPropertiesTooMany | Self::FiltersTooMany => ReasonCode::QUOTA_EXCEEDED,
            Self::ProtocolName | Self::ProtocolVersion { .. } => {
                ReasonCode::UNSUPPORTED_PROTOCOL_VERSION
            }
            Self::ConnectExpected
            | Self::ConnectRepeated
            | Self::WrongDirection
            | Self::DupWithoutQoS
            | Self::PacketIdZero
            | Self::PasswordWithoutUsername
            | Self::FiltersMissing
            | Self::PropertyRepeated
            | Self::PropertyValue
            | Self::PropertyDirection
            | Self::AuthenticationMethodMissing
            | Self::RetainHandling
            | Self::NoLocalShared
            | Self::TopicMissing => ReasonCode::PROTOCOL_ERROR,
            Self::TopicName => ReasonCode::TOPIC_NAME_INVALID,
            Self::TopicAliasZero => ReasonCode::TOPIC_ALIAS_INVALID,
            Self::LengthMalformed
            | Self::LengthOverlong
            | Self::PacketType
            | Self::FixedFlags
            | Self::Truncated
            | Self::TrailingBytes
            | Self::ReservedBits
            | Self::WillFlags
            | Self::QoS
            | Self::Utf8
            | Self::NullCharacter
            | Self::Property
            | Self::ReasonCode
            | Self::Library => ReasonCode::MALFORMED_PACKET,
        }
    }
}

/// What a client is told before its connection is closed for a [`Violation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// Nothing: 3.1.1 has no word for it, or the peer does not speak MQTT.
    Silence,
    /// A CONNACK that refuses, in the form of `version`.
    ConnAck {
        /// The form; for an unknown level the one that its client most likely reads.
        version: Version,
        /// Why; for 3.1.1 a code that has a return code.
        reason: ReasonCode,
    },
    /// A 5.0 DISCONNECT. Sent only when the CONNACK is out.
    Disconnect {
        /// Why.
        reason: ReasonCode,
    },
}

impl Farewell {
    /// For a CONNECT that was refused; `version` as far as it could be read.
    pub(super) fn to_connect(violation: Violation, version: Option<Version>) -> Self {
        match (violation, version) {
            // mosquitto's bridges set the highest bit of the level
            (Violation::ProtocolVersion { level }, _) => Self::ConnAck {
                version: if level & 0x7F >= 5 {
                    Version::V5
                } else {
                    Version::V311
                },
                reason: ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
            },
            (violation, Some(Version::V5)) => Self::ConnAck {
                version: Version::V5,
                reason: violation.reason_code(),
            },
            // a will on a topic that cannot be: the one malformed thing 3.1.1 has a code for
            (Violation::TopicName, Some(Version::V311)) => Self::ConnAck {
                version: Version::V311,
                reason: ReasonCode::NOT_AUTHORIZED,
            },
            _ => Self::Silence,
        }
    }

    /// For a packet after CONNECT.
    pub(super) fn to_packet(violation: Violation, version: Version) -> Self {
        match version {
            Version::V311 => Self::Silence,
            Version::V5 => Self::Disconnect {
                reason: violation.reason_code(),
            },
        }
    }
}
