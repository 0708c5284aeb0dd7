//! The grammar of every packet, in both versions, walked before anything is built.
//!
//! The codec library builds the values but lets through what the standard forbids, and refuses
//! some of what it allows. So this walk decides what is legal, allocating nothing, and notes the
//! bytes that have to be changed for the library to take the packet.

use super::{
    Sender, Violation,
    properties::{self, Place, Properties},
    reader::Reader,
};
use crate::mqtt::{
    packet::{QoS, Version},
    topics::is_valid_topic_name,
};

/// The most topic filters that are read from one packet. The session grants fewer; this bounds
/// what a packet of empty filters takes up in memory.
pub const FILTERS_MAX: usize = 8_192;

/// Packet types (2.2.1).
pub(super) mod kind {
    pub(in super::super) const CONNECT: u8 = 1;
    pub(in super::super) const CONNACK: u8 = 2;
    pub(in super::super) const PUBLISH: u8 = 3;
    pub(in super::super) const PUBACK: u8 = 4;
    pub(in super::super) const PUBREC: u8 = 5;
    pub(in super::super) const PUBREL: u8 = 6;
    pub(in super::super) const PUBCOMP: u8 = 7;
    pub(in super::super) const SUBSCRIBE: u8 = 8;
    pub(in super::super) const SUBACK: u8 = 9;
    pub(in super::super) const UNSUBSCRIBE: u8 = 10;
    pub(in super::super) const UNSUBACK: u8 = 11;
    pub(in super::super) const PINGREQ: u8 = 12;
    pub(in super::super) const PINGRESP: u8 = 13;
    pub(in super::super) const DISCONNECT: u8 = 14;
    pub(in super::super) const AUTH: u8 = 15;
}

/// The password, will and clean flags of CONNECT (3.1.2.3).
mod connect_flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const CLEAN: u8 = 0x02;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USERNAME: u8 = 0x80;
}

/// What the library would refuse although it is legal; offsets are into the whole packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Repairs {
    /// The connect flags of an empty client id without a clean session. 5.0 allows it; in 3.1.1 it
    /// is a chosen exception to [MQTT-3.1.3-8], since identity comes from the certificate.
    pub(super) clean_flag_at: Option<usize>,
    /// The four bytes of a Message Expiry Interval of 0.
    pub(super) expiry_zero_at: Option<usize>,
    /// A filter is empty: the library refuses the whole packet in 3.1.1, the session it alone.
    pub(super) filter_empty: bool,
}

/// Whether the first byte of a packet is in order: type, direction, flags [MQTT-2.2.2-1].
pub(super) const fn check_first_byte(
    first: u8,
    version: Version,
    sender: Sender,
) -> Result<(), Violation> {
    let (kind, flags) = (first >> 4, first & 0x0F);
    let from = match kind {
        kind::CONNECT | kind::SUBSCRIBE | kind::UNSUBSCRIBE | kind::PINGREQ => Some(Sender::Client),
        kind::CONNACK | kind::SUBACK | kind::UNSUBACK | kind::PINGRESP => Some(Sender::Server),
        kind::DISCONNECT if matches!(version, Version::V311) => Some(Sender::Client),
        kind::AUTH if matches!(version, Version::V311) => return Err(Violation::PacketType),
        0 => return Err(Violation::PacketType),
        _ => None,
    };
    match (from, sender) {
        (Some(Sender::Client), Sender::Server) | (Some(Sender::Server), Sender::Client) => {
            return Err(Violation::WrongDirection);
        }
        _ => {}
    }
    match kind {
        kind::PUBLISH => match QoS::from_u8((flags >> 1) & 3) {
            None => Err(Violation::QoS),
            Some(QoS::AtMostOnce) if flags & 8 != 0 => Err(Violation::DupWithoutQoS),
            Some(_) => Ok(()),
        },
        kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE if flags == 2 => Ok(()),
        kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE => Err(Violation::FixedFlags),
        _ if flags == 0 => Ok(()),
        _ => Err(Violation::FixedFlags),
    }
}

/// Walks a whole packet, whose first byte has been checked; `body` is what follows its length.
pub(super) fn check_packet(
    first: u8,
    mut body: Reader<'_>,
    version: Version,
    sender: Sender,
) -> Result<Repairs, Violation> {
    let body = &mut body;
    let mut repairs = Repairs::default();
    match first >> 4 {
        kind::CONNECT => repairs = check_connect(body, version)?,
        kind::CONNACK => check_connack(body, version)?,
        kind::PUBLISH => repairs = check_publish(first, body, version, sender)?,
        kind @ (kind::PUBACK | kind::PUBREC | kind::PUBREL | kind::PUBCOMP) => {
            check_acknowledgement(kind, body, version)?;
        }
        kind::SUBSCRIBE => repairs.filter_empty = check_subscribe(body, version)?,
        kind::UNSUBSCRIBE => repairs.filter_empty = check_unsubscribe(body, version)?,
        kind @ (kind::SUBACK | kind::UNSUBACK) => check_codes(kind, body, version)?,
        kind::DISCONNECT if version == Version::V5 => check_disconnect(body, sender)?,
        kind::DISCONNECT | kind::PINGREQ | kind::PINGRESP => {}
        kind::AUTH => check_auth(body)?,
        _ => return Err(Violation::PacketType),
    }
    body.finish()?;
    Ok(repairs)
}

/// Reads the protocol name and level at the head of a CONNECT's body, of which not all may be
/// there; `None` until it is.
pub(super) fn check_protocol(body: &[u8]) -> Result<Option<Version>, Violation> {
    const NAMES: [&[u8]; 2] = [b"\x00\x04MQTT", b"\x00\x06MQIsdp"];
    let starts = |name: &&[u8]| {
        body.iter()
            .zip(*name)
            .all(|(byte, expected)| byte == expected)
    };
    let name = NAMES
        .into_iter()
        .find(starts)
        .ok_or(Violation::ProtocolName)?;
    match (name.len(), body.get(name.len())) {
        (_, None) => Ok(None),
        (6, Some(4)) => Ok(Some(Version::V311)),
        (6, Some(5)) => Ok(Some(Version::V5)),
        (_, Some(&level)) => Err(Violation::ProtocolVersion { level }),
    }
}

/// CONNECT (3.1), whose protocol name and level have been checked.
fn check_connect(body: &mut Reader<'_>, version: Version) -> Result<Repairs, Violation> {
    use connect_flag as flag;
    body.take(7)?;
    let flags_at = body.position();
    let flags = body.u8()?;
    if flags & flag::RESERVED != 0 {
        return Err(Violation::ReservedBits);
    }
    let will_qos = (flags >> 3) & 3;
    if flags & flag::WILL == 0 && (will_qos != 0 || flags & flag::WILL_RETAIN != 0) {
        return Err(Violation::WillFlags);
    }
    if QoS::from_u8(will_qos).is_none() {
        return Err(Violation::QoS);
    }
    let has_password = flags & flag::PASSWORD != 0;
    if version == Version::V311 && has_password && flags & flag::USERNAME == 0 {
        return Err(Violation::PasswordWithoutUsername);
    }
    body.u16()?; // keep alive
    if version == Version::V5 {
        properties::check(body, Place::Connect)?.check_authentication()?;
    }
    let client_id = body.text()?;
    let must_set_clean = client_id.is_empty() && flags & flag::CLEAN == 0;
    let mut repairs = Repairs {
        clean_flag_at: must_set_clean.then_some(flags_at),
        ..Repairs::default()
    };
    if flags & flag::WILL != 0 {
        repairs.expiry_zero_at = check_will(body, version)?;
    }
    if flags & flag::USERNAME != 0 {
        body.text()?;
    }
    if has_password {
        body.binary()?;
    }
    Ok(repairs)
}

/// Returns where its Message Expiry Interval of 0 stands.
fn check_will(body: &mut Reader<'_>, version: Version) -> Result<Option<usize>, Violation> {
    let mut found = Properties::default();
    if version == Version::V5 {
        found = properties::check(body, Place::Will)?;
    }
    if !is_valid_topic_name(body.text()?) {
        return Err(Violation::TopicName);
    }
    body.binary()?;
    Ok(found.expiry_zero_at)
}

/// CONNACK (3.2).
fn check_connack(body: &mut Reader<'_>, version: Version) -> Result<(), Violation> {
    if body.u8()? > 1 {
        return Err(Violation::ReservedBits);
    }
    check_code(kind::CONNACK, body.u8()?, version)?;
    if version == Version::V5 {
        properties::check(body, Place::ConnAck)?.check_authentication()?;
    }
    Ok(())
}

/// PUBLISH (3.3).
fn check_publish(
    first: u8,
    body: &mut Reader<'_>,
    version: Version,
    sender: Sender,
) -> Result<Repairs, Violation> {
    let topic = body.text()?;
    if first & 0x06 != 0 {
        body.packet_id()?;
    }
    let mut found = Properties::default();
    if version == Version::V5 {
        found = properties::check(body, Place::Publish)?;
        if found.has_subscription_id() && sender == Sender::Client {
            return Err(Violation::PropertyDirection); // [MQTT5-3.3.4-6]
        }
        if topic.is_empty() && !found.has_topic_alias() {
            return Err(Violation::TopicMissing);
        }
    }
    let by_alias = topic.is_empty() && found.has_topic_alias();
    if !by_alias && !is_valid_topic_name(topic) {
        return Err(Violation::TopicName);
    }
    body.take(body.len())?;
    Ok(Repairs {
        expiry_zero_at: found.expiry_zero_at,
        ..Repairs::default()
    })
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7).
fn check_acknowledgement(
    kind: u8,
    body: &mut Reader<'_>,
    version: Version,
) -> Result<(), Violation> {
    body.packet_id()?;
    if version == Version::V5 && !body.is_empty() {
        check_code(kind, body.u8()?, version)?;
        if !body.is_empty() {
            properties::check(body, Place::Acknowledgement)?;
        }
    }
    Ok(())
}

/// SUBSCRIBE (3.8). Returns whether one of the filters is empty.
fn check_subscribe(body: &mut Reader<'_>, version: Version) -> Result<bool, Violation> {
    body.packet_id()?;
    if version == Version::V5 {
        properties::check(body, Place::Subscribe)?;
    }
    check_filters(body, |body, filter| {
        let options = body.u8()?;
        let reserved = if version == Version::V5 { 0xC0 } else { 0xFC };
        if options & reserved != 0 {
            return Err(Violation::ReservedBits);
        }
        if QoS::from_u8(options & 3).is_none() {
            return Err(Violation::QoS);
        }
        if options & 0x30 == 0x30 {
            return Err(Violation::RetainHandling);
        }
        if options & 4 != 0 && filter.starts_with("$share/") {
            return Err(Violation::NoLocalShared);
        }
        Ok(())
    })
}

/// UNSUBSCRIBE (3.10). Returns whether one of the filters is empty.
fn check_unsubscribe(body: &mut Reader<'_>, version: Version) -> Result<bool, Violation> {
    body.packet_id()?;
    if version == Version::V5 {
        properties::check(body, Place::Unsubscribe)?;
    }
    check_filters(body, |_, _| Ok(()))
}

/// The filters up to the end, each with what `after` reads. Beyond being text they are not
/// looked at: a malformed one is refused by the session, alone.
fn check_filters<'p>(
    body: &mut Reader<'p>,
    after: impl Fn(&mut Reader<'p>, &'p str) -> Result<(), Violation>,
) -> Result<bool, Violation> {
    let mut count = 0;
    let mut has_empty = false;
    while !body.is_empty() {
        let filter = body.text()?;
        has_empty |= filter.is_empty();
        count += 1;
        if count > FILTERS_MAX {
            return Err(Violation::FiltersTooMany);
        }
        after(body, filter)?;
    }
    if count == 0 {
        Err(Violation::FiltersMissing)
    } else {
        Ok(has_empty)
    }
}

/// SUBACK (3.9), UNSUBACK (3.11).
fn check_codes(kind: u8, body: &mut Reader<'_>, version: Version) -> Result<(), Violation> {
    body.packet_id()?;
    if version == Version::V5 {
        properties::check(body, Place::Acknowledgement)?;
    } else if kind == kind::UNSUBACK {
        return Ok(());
    }
    for code in body.take(body.len())? {
        check_code(kind, *code, version)?;
    }
    Ok(())
}

/// DISCONNECT of 5.0 (3.14).
fn check_disconnect(body: &mut Reader<'_>, sender: Sender) -> Result<(), Violation> {
    if body.is_empty() {
        return Ok(());
    }
    check_code(kind::DISCONNECT, body.u8()?, Version::V5)?;
    if body.is_empty() {
        return Ok(());
    }
    let found = properties::check(body, Place::Disconnect)?;
    let misplaced = match sender {
        Sender::Client => found.has_server_reference(),
        Sender::Server => found.has_session_expiry(), // [MQTT5-3.14.2-2]
    };
    if misplaced {
        Err(Violation::PropertyDirection)
    } else {
        Ok(())
    }
}

/// AUTH (3.15 of 5.0). Only the whole of it may be left out, not the properties alone; and only
/// a success without any property has no method, which is the long form of an empty AUTH.
fn check_auth(body: &mut Reader<'_>) -> Result<(), Violation> {
    if body.is_empty() {
        return Ok(());
    }
    let code = body.u8()?;
    check_code(kind::AUTH, code, Version::V5)?;
    let found = properties::check(body, Place::Auth)?;
    if found.has_authentication_method() || (code == 0 && found.is_empty()) {
        return Ok(());
    }
    Err(Violation::AuthenticationMethodMissing)
}

fn check_code(kind: u8, code: u8, version: Version) -> Result<(), Violation> {
    if has_code(kind, code, version) {
        Ok(())
    } else {
        Err(Violation::ReasonCode)
    }
}

/// Whether packets of type `kind` may carry `code` (5.0: table 2-6).
pub(super) const fn has_code(kind: u8, code: u8, version: Version) -> bool {
    match (kind, version) {
        (kind::CONNACK, Version::V311) => code <= 5,
        (kind::SUBACK, Version::V311) => matches!(code, 0..=2 | 0x80),
        (_, Version::V311) => code == 0,
        (kind::CONNACK, _) => matches!(
            code,
            0x00 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99..=0x9D | 0x9F
        ),
        (kind::PUBACK | kind::PUBREC, _) => {
            matches!(
                code,
                0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99
            )
        }
        (kind::PUBREL | kind::PUBCOMP, _) => matches!(code, 0x00 | 0x92),
        (kind::SUBACK, _) => {
            matches!(
                code,
                0..=2 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2
            )
        }
        (kind::UNSUBACK, _) => matches!(code, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91),
        (kind::DISCONNECT, _) => matches!(
            code,
            0x00 | 0x04 | 0x80..=0x83 | 0x87 | 0x89 | 0x8B..=0x90 | 0x93..=0xA2
        ),
        (kind::AUTH, _) => matches!(code, 0x00 | 0x18 | 0x19),
        _ => false,
    }
}
