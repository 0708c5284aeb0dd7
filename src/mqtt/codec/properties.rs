//! The properties of 5.0 (2.2.2): which may stand where, how often, and with which values.

use super::{Violation, reader::Reader};
use crate::mqtt::topics::is_valid_topic_name;

/// The most user properties that one packet may have; the standard has no such limit, and a packet
/// of empty ones would take up sixteen times its size in memory.
pub const USER_PROPERTIES_MAX: usize = 256;

/// Property identifiers (2.2.2.2).
mod id {
    pub(super) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(super) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(super) const CONTENT_TYPE: u8 = 0x03;
    pub(super) const RESPONSE_TOPIC: u8 = 0x08;
    pub(super) const CORRELATION_DATA: u8 = 0x09;
    pub(super) const SUBSCRIPTION_ID: u8 = 0x0B;
    pub(super) const SESSION_EXPIRY: u8 = 0x11;
    pub(super) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(super) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(super) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(super) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(super) const REQUEST_PROBLEM: u8 = 0x17;
    pub(super) const WILL_DELAY: u8 = 0x18;
    pub(super) const REQUEST_RESPONSE: u8 = 0x19;
    pub(super) const RESPONSE_INFORMATION: u8 = 0x1A;
    pub(super) const SERVER_REFERENCE: u8 = 0x1C;
    pub(super) const REASON_STRING: u8 = 0x1F;
    pub(super) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(super) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(super) const TOPIC_ALIAS: u8 = 0x23;
    pub(super) const MAXIMUM_QOS: u8 = 0x24;
    pub(super) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(super) const USER: u8 = 0x26;
    pub(super) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(super) const WILDCARD_AVAILABLE: u8 = 0x28;
    pub(super) const SUBSCRIPTION_ID_AVAILABLE: u8 = 0x29;
    pub(super) const SHARED_AVAILABLE: u8 = 0x2A;
}

/// Where properties stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Connect,
    Will,
    ConnAck,
    Publish,
    /// PUBACK to PUBCOMP, SUBACK, UNSUBACK.
    Acknowledgement,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Auth,
}

impl Place {
    /// Table 2-4, turned round.
    const fn properties(self) -> &'static [u8] {
        match self {
            Self::Connect => &[
                id::SESSION_EXPIRY,
                id::AUTHENTICATION_METHOD,
                id::AUTHENTICATION_DATA,
                id::REQUEST_PROBLEM,
                id::REQUEST_RESPONSE,
                id::RECEIVE_MAXIMUM,
                id::TOPIC_ALIAS_MAXIMUM,
                id::USER,
                id::MAXIMUM_PACKET_SIZE,
            ],
            Self::Will => &[
                id::PAYLOAD_FORMAT,
                id::MESSAGE_EXPIRY,
                id::CONTENT_TYPE,
                id::RESPONSE_TOPIC,
                id::CORRELATION_DATA,
                id::WILL_DELAY,
                id::USER,
            ],
            Self::ConnAck => &[
                id::SESSION_EXPIRY,
                id::ASSIGNED_CLIENT_ID,
                id::SERVER_KEEP_ALIVE,
                id::AUTHENTICATION_METHOD,
                id::AUTHENTICATION_DATA,
                id::RESPONSE_INFORMATION,
                id::SERVER_REFERENCE,
                id::REASON_STRING,
                id::RECEIVE_MAXIMUM,
                id::TOPIC_ALIAS_MAXIMUM,
                id::MAXIMUM_QOS,
                id::RETAIN_AVAILABLE,
                id::USER,
                id::MAXIMUM_PACKET_SIZE,
                id::WILDCARD_AVAILABLE,
                id::SUBSCRIPTION_ID_AVAILABLE,
                id::SHARED_AVAILABLE,
            ],
            Self::Publish => &[
                id::PAYLOAD_FORMAT,
                id::MESSAGE_EXPIRY,
                id::CONTENT_TYPE,
                id::RESPONSE_TOPIC,
                id::CORRELATION_DATA,
                id::SUBSCRIPTION_ID,
                id::TOPIC_ALIAS,
                id::USER,
            ],
            Self::Acknowledgement => &[id::REASON_STRING, id::USER],
            Self::Subscribe => &[id::SUBSCRIPTION_ID, id::USER],
            Self::Unsubscribe => &[id::USER],
            Self::Disconnect => &[
                id::SESSION_EXPIRY,
                id::SERVER_REFERENCE,
                id::REASON_STRING,
                id::USER,
            ],
            Self::Auth => &[
                id::AUTHENTICATION_METHOD,
                id::AUTHENTICATION_DATA,
                id::REASON_STRING,
                id::USER,
            ],
        }
    }
}

/// What the properties of one packet or will have been found to hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Properties {
    /// A bit for each identifier that was there.
    seen: u64,
    /// Where a Message Expiry Interval of 0 stands in the packet: the codec library refuses that.
    pub(super) expiry_zero_at: Option<usize>,
}

impl Properties {
    const fn has(self, id: u8) -> bool {
        self.seen & (1 << id) != 0
    }

    /// Whether there was no property at all.
    pub(super) const fn is_empty(self) -> bool {
        self.seen == 0
    }

    pub(super) const fn has_topic_alias(self) -> bool {
        self.has(id::TOPIC_ALIAS)
    }

    pub(super) const fn has_subscription_id(self) -> bool {
        self.has(id::SUBSCRIPTION_ID)
    }

    pub(super) const fn has_session_expiry(self) -> bool {
        self.has(id::SESSION_EXPIRY)
    }

    pub(super) const fn has_server_reference(self) -> bool {
        self.has(id::SERVER_REFERENCE)
    }

    pub(super) const fn has_authentication_method(self) -> bool {
        self.has(id::AUTHENTICATION_METHOD)
    }

    /// Authentication data makes no sense without a method (3.1.2.11.10).
    pub(super) const fn check_authentication(self) -> Result<(), Violation> {
        if self.has(id::AUTHENTICATION_DATA) && !self.has(id::AUTHENTICATION_METHOD) {
            return Err(Violation::AuthenticationMethodMissing);
        }
        Ok(())
    }
}

/// Reads the properties that begin here, with their length. Allocates nothing.
pub(super) fn check(packet: &mut Reader<'_>, place: Place) -> Result<Properties, Violation> {
    let length = packet.variable()?;
    let mut rest = packet.part(usize::try_from(length).map_err(|_| Violation::Truncated)?)?;
    let mut found = Properties::default();
    let mut users = 0;
    while !rest.is_empty() {
        // a variable byte integer by the standard, but all that exist have one byte
        let id = rest.u8()?;
        if !place.properties().contains(&id) {
            return Err(Violation::Property);
        }
        let repeats = id == id::USER || (id == id::SUBSCRIPTION_ID && place == Place::Publish);
        if found.has(id) && !repeats {
            return Err(Violation::PropertyRepeated);
        }
        found.seen |= 1 << id;
        if id == id::USER {
            users += 1;
            if users > USER_PROPERTIES_MAX {
                return Err(Violation::UserPropertiesTooMany);
            }
        }
        let at = rest.position();
        if id == id::MESSAGE_EXPIRY && rest.clone().u32() == Ok(0) {
            found.expiry_zero_at = Some(at);
        }
        check_value(&mut rest, id)?;
    }
    Ok(found)
}

/// Reads the value of the property `id`.
fn check_value(rest: &mut Reader<'_>, id: u8) -> Result<(), Violation> {
    let violation = match id {
        id::PAYLOAD_FORMAT
        | id::REQUEST_PROBLEM
        | id::REQUEST_RESPONSE
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_AVAILABLE
        | id::SUBSCRIPTION_ID_AVAILABLE
        | id::SHARED_AVAILABLE => (rest.u8()? > 1).then_some(Violation::PropertyValue),
        id::SERVER_KEEP_ALIVE | id::TOPIC_ALIAS_MAXIMUM => rest.u16().map(|_| None)?,
        id::RECEIVE_MAXIMUM => (rest.u16()? == 0).then_some(Violation::PropertyValue),
        id::TOPIC_ALIAS => (rest.u16()? == 0).then_some(Violation::TopicAliasZero),
        id::MESSAGE_EXPIRY | id::SESSION_EXPIRY | id::WILL_DELAY => rest.u32().map(|_| None)?,
        id::MAXIMUM_PACKET_SIZE => (rest.u32()? == 0).then_some(Violation::PropertyValue),
        id::SUBSCRIPTION_ID => (rest.variable()? == 0).then_some(Violation::PropertyValue),
        id::CORRELATION_DATA | id::AUTHENTICATION_DATA => rest.binary().map(|_| None)?,
        // [MQTT5-3.3.2-14]
        id::RESPONSE_TOPIC => (!is_valid_topic_name(rest.text()?)).then_some(Violation::TopicName),
        id::USER => {
            rest.text()?;
            rest.text().map(|_| None)?
        }
        id::CONTENT_TYPE
        | id::ASSIGNED_CLIENT_ID
        | id::AUTHENTICATION_METHOD
        | id::RESPONSE_INFORMATION
        | id::SERVER_REFERENCE
        | id::REASON_STRING => rest.text().map(|_| None)?,
        _ => Some(Violation::Property),
    };
    violation.map_or(Ok(()), Err)
}
