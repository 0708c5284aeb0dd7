//! Packets to bytes.

use bytes::{BufMut, BytesMut};
use bytestring::ByteString;
use rmqtt_codec::error::EncodeError as LibraryError;

use super::{check::has_code, check::kind, v3, v5};
use crate::mqtt::packet::{Acknowledgement, Packet, ReasonCode, Version};

/// The most that the length of a packet without its fixed header can say (2.2.3).
const LENGTH_MAX: usize = 268_435_455;

/// Why a packet cannot be sent. Except for `TooLarge` always our fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Over the peer's Maximum Packet Size, or over what MQTT can carry. A PUBLISH is then treated
    /// as if it had been sent [MQTT5-3.1.2-25].
    #[error("packet of at least {bytes} bytes, the peer accepts {max}")]
    TooLarge {
        /// A lower bound of its size.
        bytes: usize,
        /// What is allowed.
        max: usize,
    },
    /// This version of the packet has no such code.
    #[error("reason code {:#04x} does not belong to this packet", .0.0)]
    ReasonCode(ReasonCode),
    /// The version does not have this packet.
    #[error("packet does not exist in this version")]
    NotInVersion,
    /// A packet identifier with QoS 0, or none with QoS 1 or 2.
    #[error("packet identifier does not go with the QoS")]
    PacketId,
    /// A subscription identifier outside 1 to 268,435,455, or a Maximum Packet Size of 0.
    #[error("number is out of its range")]
    OutOfRange,
    /// Text or binary data of more than 65,535 bytes.
    #[error("text or binary data is longer than 65,535 bytes")]
    FieldTooLong,
}

impl EncodeError {
    pub(super) const fn from_library(error: &LibraryError) -> Self {
        match error {
            LibraryError::OverMaxPacketSize { .. } => Self::TooLarge {
                bytes: LENGTH_MAX,
                max: LENGTH_MAX,
            },
            LibraryError::PacketIdRequired | LibraryError::MalformedPacket => Self::PacketId,
            LibraryError::UnsupportedVersion => Self::NotInVersion,
            LibraryError::InvalidLength | LibraryError::Io(_) => Self::FieldTooLong,
        }
    }
}

/// Writes `packet` behind what `out` holds, as `version` has it; on an error `out` is as before.
///
/// For 3.1.1, CONNACK gets the return code that corresponds and SUBACK 0x80 for every failure; what
/// the version does not have is left out. Where the packet would be larger than
/// `peer_maximum_packet_size`, its reason string is left out [MQTT5-3.2.2-19], [MQTT5-3.4.2-2]. Two
/// values are written as what means the same or nearly so, since the library cannot write them:
/// `payload_is_utf8: Some(false)` is left out, and a Message Expiry Interval of 0 becomes 1.
///
/// # Errors
/// [`EncodeError`].
pub fn encode(
    packet: &Packet,
    version: Version,
    peer_maximum_packet_size: Option<u32>,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let max =
        peer_maximum_packet_size.map_or(usize::MAX, |max| max.try_into().unwrap_or(usize::MAX));
    match write(packet, version, max, out) {
        Err(EncodeError::TooLarge { .. }) if has_reason_string(packet) => {
            write(&without_reason_string(packet), version, max, out)
        }
        outcome => outcome,
    }
}

/// The same without a second attempt.
fn write(
    packet: &Packet,
    version: Version,
    max: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let least = least_size(packet);
    if least > max.min(LENGTH_MAX) {
        return Err(EncodeError::TooLarge {
            bytes: least,
            max: max.min(LENGTH_MAX),
        });
    }
    check_codes(packet, version)?;
    let start = out.len();
    let written = match (small(packet), version) {
        (Some((bytes, count)), _) => {
            out.put_slice(&bytes[..count]);
            Ok(())
        }
        (None, Version::V311) => v3::encode(packet, out),
        (None, Version::V5) => v5::encode(packet, out),
    };
    let bytes = out.len() - start;
    let outcome = match written {
        Ok(()) if bytes > max => Err(EncodeError::TooLarge { bytes, max }),
        outcome => outcome,
    };
    outcome.inspect_err(|_| out.truncate(start))
}

/// The packets that are two or four bytes in both versions, and sent the most.
fn small(packet: &Packet) -> Option<([u8; 4], usize)> {
    let ack = |kind: u8, flags, ack: &Acknowledgement| {
        let [high, low] = ack.packet_id.get().to_be_bytes();
        let is_plain = ack.reason == ReasonCode::SUCCESS && ack.reason_string.is_none();
        is_plain.then_some(([kind << 4 | flags, 2, high, low], 4))
    };
    match packet {
        Packet::PubAck(it) => ack(kind::PUBACK, 0, it),
        Packet::PubRec(it) => ack(kind::PUBREC, 0, it),
        Packet::PubRel(it) => ack(kind::PUBREL, 2, it),
        Packet::PubComp(it) => ack(kind::PUBCOMP, 0, it),
        Packet::PingReq => Some(([kind::PINGREQ << 4, 0, 0, 0], 2)),
        Packet::PingResp => Some(([kind::PINGRESP << 4, 0, 0, 0], 2)),
        _ => None,
    }
}

/// A lower bound of the packet's size, so that one much too large is not copied first, and that
/// the library never meets a length that it cannot write.
fn least_size(packet: &Packet) -> usize {
    match packet {
        Packet::Publish(publish) => 4 + publish.topic.len() + publish.payload.len(),
        Packet::Subscribe(it) => 4 + it.filters.iter().map(|(it, _)| it.len() + 3).sum::<usize>(),
        Packet::Unsubscribe(it) => 4 + it.filters.iter().map(|it| it.len() + 2).sum::<usize>(),
        Packet::SubAck(ack) => 4 + ack.reasons.len(),
        Packet::UnsubAck(ack) => 4 + ack.reasons.len(),
        _ => 2,
    }
}

/// 5.0 codes must be those of the packet; those of 3.1.1 are mapped where they are written.
fn check_codes(packet: &Packet, version: Version) -> Result<(), EncodeError> {
    let check = |kind, reason: ReasonCode| {
        if version == Version::V311 || has_code(kind, reason.0, version) {
            return Ok(());
        }
        Err(EncodeError::ReasonCode(reason))
    };
    match packet {
        Packet::ConnAck(ack) => check(kind::CONNACK, ack.reason),
        Packet::PubAck(ack) => check(kind::PUBACK, ack.reason),
        Packet::PubRec(ack) => check(kind::PUBREC, ack.reason),
        Packet::PubRel(ack) => check(kind::PUBREL, ack.reason),
        Packet::PubComp(ack) => check(kind::PUBCOMP, ack.reason),
        Packet::SubAck(ack) => ack
            .reasons
            .iter()
            .try_for_each(|reason| check(kind::SUBACK, *reason)),
        Packet::UnsubAck(ack) => ack
            .reasons
            .iter()
            .try_for_each(|reason| check(kind::UNSUBACK, *reason)),
        Packet::Disconnect(disconnect) => check(kind::DISCONNECT, disconnect.reason),
        Packet::Auth(auth) => check(kind::AUTH, auth.reason),
        _ => Ok(()),
    }
}

/// The 3.1.1 return code of a CONNACK (3.2.2.3) that says what `reason` says. `None` where there
/// is none: then the connection is closed without a CONNACK.
#[must_use]
pub(super) const fn return_code(reason: ReasonCode) -> Option<u8> {
    match reason {
        ReasonCode::SUCCESS => Some(0),
        ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => Some(1),
        ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => Some(2),
        ReasonCode::UNSPECIFIED_ERROR
        | ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR
        | ReasonCode::SERVER_UNAVAILABLE
        | ReasonCode::SERVER_BUSY
        | ReasonCode::QUOTA_EXCEEDED
        | ReasonCode::CONNECTION_RATE_EXCEEDED => Some(3),
        ReasonCode::BAD_USER_NAME_OR_PASSWORD => Some(4),
        ReasonCode::NOT_AUTHORIZED
        | ReasonCode::BANNED
        | ReasonCode::BAD_AUTHENTICATION_METHOD
        | ReasonCode::TOPIC_NAME_INVALID => Some(5),
        _ => None,
    }
}

fn has_reason_string(packet: &Packet) -> bool {
    reason_string(&mut packet.clone()).is_some_and(|reason| reason.is_some())
}

fn without_reason_string(packet: &Packet) -> Packet {
    let mut packet = packet.clone();
    if let Some(reason) = reason_string(&mut packet) {
        *reason = None;
    }
    packet
}

/// The place of the reason string in packets that may have one.
fn reason_string(packet: &mut Packet) -> Option<&mut Option<ByteString>> {
    match packet {
        Packet::ConnAck(ack) => Some(&mut ack.reason_string),
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            Some(&mut ack.reason_string)
        }
        Packet::Disconnect(disconnect) => Some(&mut disconnect.reason_string),
        _ => None,
    }
}
