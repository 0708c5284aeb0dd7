//! MQTT control packets as values, the same for 3.1.1 and 5.0.
//!
//! What a version does not have stays at its default. The bytes are `codec.rs`'s business; the
//! names are the standard's. Text and payloads are slices of the frame they came in.

use std::num::NonZeroU16;

use bytes::Bytes;
use bytestring::ByteString;

/// Identifies a QoS 1 or 2 flow, SUBSCRIBE or UNSUBSCRIBE [MQTT-2.3.1-1].
pub type PacketId = NonZeroU16;

/// The protocol version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1.1, protocol level 4.
    V311,
    /// MQTT 5.0, protocol level 5.
    V5,
}

/// Quality of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// QoS 0.
    #[default]
    AtMostOnce = 0,
    /// QoS 1.
    AtLeastOnce = 1,
    /// QoS 2.
    ExactlyOnce = 2,
}

impl QoS {
    /// From the number on the wire; `None` for 3 and above.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

/// One control packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is the packet of that name")]
pub enum Packet {
    Connect(Box<Connect>),
    ConnAck(Box<ConnAck>),
    Publish(Publish),
    PubAck(Acknowledgement),
    PubRec(Acknowledgement),
    PubRel(Acknowledgement),
    PubComp(Acknowledgement),
    Subscribe(Subscribe),
    SubAck(SubAck),
    Unsubscribe(Unsubscribe),
    UnsubAck(UnsubAck),
    PingReq,
    PingResp,
    Disconnect(Disconnect),
    Auth(Auth),
}

/// Name and value pairs of MQTT 5.0, in order [MQTT5-3.1.3-10].
pub type UserProperties = Vec<(ByteString, ByteString)>;

/// CONNECT (3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Protocol version asked for.
    pub version: Version,
    /// Clean Session (3.1.1) or Clean Start (5.0).
    pub clean_start: bool,
    /// Seconds; 0 is none.
    pub keep_alive: u16,
    /// As sent; may be empty.
    pub client_id: ByteString,
    /// The will, if the will flag is set.
    pub will: Option<Will>,
    /// User name. Never decides anything for devices.
    pub username: Option<ByteString>,
    /// Password. Never decides anything for devices.
    pub password: Option<Bytes>,
    /// 5.0: Session Expiry Interval in seconds; absent is 0.
    pub session_expiry: Option<u32>,
    /// 5.0: Receive Maximum; absent is 65,535.
    pub receive_maximum: Option<NonZeroU16>,
    /// 5.0: Maximum Packet Size in bytes; absent is no limit.
    pub maximum_packet_size: Option<u32>,
    /// 5.0: Topic Alias Maximum; absent is 0.
    pub topic_alias_maximum: u16,
    /// 5.0: Request Response Information.
    pub request_response_information: bool,
    /// 5.0: Request Problem Information; absent is true.
    pub request_problem_information: bool,
    /// 5.0: Authentication Method.
    pub authentication_method: Option<ByteString>,
    /// 5.0: Authentication Data.
    pub authentication_data: Option<Bytes>,
    /// 5.0: User Properties.
    pub user_properties: UserProperties,
}

/// The message that the server publishes for a client that went away (3.1.2.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Topic name.
    pub topic: ByteString,
    /// Payload, at most 65,535 bytes.
    pub payload: Bytes,
    /// QoS.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// 5.0: Will Delay Interval in seconds; absent is 0.
    pub delay: u32,
    /// 5.0: the properties that the message will have.
    pub properties: PublishProperties,
}

/// CONNACK (3.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnAck {
    /// Session Present.
    pub session_present: bool,
    /// Outcome; for 3.1.1 the codec writes the return code that corresponds.
    pub reason: ReasonCode,
    /// 5.0: Session Expiry Interval in seconds, when it differs from what was asked.
    pub session_expiry: Option<u32>,
    /// 5.0: Receive Maximum.
    pub receive_maximum: Option<NonZeroU16>,
    /// 5.0: Maximum Packet Size in bytes.
    pub maximum_packet_size: Option<u32>,
    /// 5.0: Assigned Client Identifier.
    pub assigned_client_id: Option<ByteString>,
    /// 5.0: Topic Alias Maximum.
    pub topic_alias_maximum: u16,
    /// 5.0: Reason String.
    pub reason_string: Option<ByteString>,
    /// 5.0: Server Keep Alive in seconds.
    pub server_keep_alive: Option<u16>,
    /// 5.0: Shared Subscription Available; `Some(false)` says that it is not.
    pub shared_subscription_available: Option<bool>,
}

/// PUBLISH (3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Re-delivery flag.
    pub dup: bool,
    /// QoS.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// Topic name; in 5.0 empty where a topic alias stands for it.
    pub topic: ByteString,
    /// Present exactly for QoS 1 and 2.
    pub packet_id: Option<PacketId>,
    /// Payload.
    pub payload: Bytes,
    /// 5.0: Topic Alias.
    pub topic_alias: Option<NonZeroU16>,
    /// 5.0: Subscription Identifiers, server to client alone.
    pub subscription_ids: Vec<u32>,
    /// 5.0: the other properties.
    pub properties: PublishProperties,
}

/// The properties of a 5.0 application message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishProperties {
    /// Payload Format Indicator: `Some(true)` is UTF-8.
    pub payload_is_utf8: Option<bool>,
    /// Message Expiry Interval in seconds.
    pub message_expiry: Option<u32>,
    /// Response Topic.
    pub response_topic: Option<ByteString>,
    /// Correlation Data.
    pub correlation_data: Option<Bytes>,
    /// Content Type.
    pub content_type: Option<ByteString>,
    /// User Properties.
    pub user_properties: UserProperties,
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The flow it belongs to.
    pub packet_id: PacketId,
    /// 5.0: outcome; 3.1.1 has none, and is success.
    pub reason: ReasonCode,
    /// 5.0: Reason String.
    pub reason_string: Option<ByteString>,
}

impl Acknowledgement {
    /// Success.
    #[must_use]
    pub const fn success(packet_id: PacketId) -> Self {
        Self {
            packet_id,
            reason: ReasonCode::SUCCESS,
            reason_string: None,
        }
    }
}

/// SUBSCRIBE (3.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Answered by the SUBACK of the same id.
    pub packet_id: PacketId,
    /// 5.0: Subscription Identifier, 1 to 268,435,455.
    pub subscription_id: Option<u32>,
    /// At least one filter as sent (well-formed UTF-8, otherwise unchecked), each with its options.
    pub filters: Vec<(ByteString, SubscribeOptions)>,
}

/// What a subscription asks for (3.8.3.1 of 5.0; 3.1.1 has the QoS alone).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Maximum QoS.
    pub qos: QoS,
    /// No Local.
    pub no_local: bool,
    /// Retain As Published.
    pub retain_as_published: bool,
    /// Retain Handling.
    pub retain_handling: RetainHandling,
}

/// When retained messages are sent for a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainHandling {
    /// At every subscribe.
    #[default]
    AtSubscribe,
    /// Only if the subscription is new.
    AtNewSubscribe,
    /// Never.
    Never,
}

/// SUBACK (3.9): a code for each filter, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck {
    /// Of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// `GRANTED_QOS_0` to `GRANTED_QOS_2`, or a failure (3.1.1: written as 0x80).
    pub reasons: Vec<ReasonCode>,
}

/// UNSUBSCRIBE (3.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Answered by the UNSUBACK of the same id.
    pub packet_id: PacketId,
    /// At least one filter, as sent.
    pub filters: Vec<ByteString>,
}

/// UNSUBACK (3.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubAck {
    /// Of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// 5.0: a code for each filter; not written in 3.1.1.
    pub reasons: Vec<ReasonCode>,
}

/// DISCONNECT (3.14).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disconnect {
    /// 5.0: why; 3.1.1 has none, and is a normal disconnection.
    pub reason: ReasonCode,
    /// 5.0, from the client: a new Session Expiry Interval in seconds.
    pub session_expiry: Option<u32>,
    /// 5.0: Reason String.
    pub reason_string: Option<ByteString>,
}

/// AUTH (3.15 of 5.0).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// Why.
    pub reason: ReasonCode,
    /// Authentication Method.
    pub method: Option<ByteString>,
    /// Authentication Data.
    pub data: Option<Bytes>,
}

/// A reason code of MQTT 5.0 (2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReasonCode(pub u8);

#[expect(missing_docs, reason = "the names are the standard's")]
impl ReasonCode {
    pub const SUCCESS: Self = Self(0x00);
    pub const GRANTED_QOS_0: Self = Self(0x00);
    pub const GRANTED_QOS_1: Self = Self(0x01);
    pub const GRANTED_QOS_2: Self = Self(0x02);
    pub const DISCONNECT_WITH_WILL: Self = Self(0x04);
    pub const NO_MATCHING_SUBSCRIBERS: Self = Self(0x10);
    pub const NO_SUBSCRIPTION_EXISTED: Self = Self(0x11);
    pub const UNSPECIFIED_ERROR: Self = Self(0x80);
    pub const MALFORMED_PACKET: Self = Self(0x81);
    pub const PROTOCOL_ERROR: Self = Self(0x82);
    pub const IMPLEMENTATION_SPECIFIC_ERROR: Self = Self(0x83);
    pub const UNSUPPORTED_PROTOCOL_VERSION: Self = Self(0x84);
    pub const CLIENT_IDENTIFIER_NOT_VALID: Self = Self(0x85);
    pub const BAD_USER_NAME_OR_PASSWORD: Self = Self(0x86);
    pub const NOT_AUTHORIZED: Self = Self(0x87);
    pub const SERVER_UNAVAILABLE: Self = Self(0x88);
    pub const SERVER_BUSY: Self = Self(0x89);
    pub const BANNED: Self = Self(0x8A);
    pub const SERVER_SHUTTING_DOWN: Self = Self(0x8B);
    pub const BAD_AUTHENTICATION_METHOD: Self = Self(0x8C);
    pub const KEEP_ALIVE_TIMEOUT: Self = Self(0x8D);
    pub const SESSION_TAKEN_OVER: Self = Self(0x8E);
    pub const TOPIC_FILTER_INVALID: Self = Self(0x8F);
    pub const TOPIC_NAME_INVALID: Self = Self(0x90);
    pub const PACKET_IDENTIFIER_IN_USE: Self = Self(0x91);
    pub const PACKET_IDENTIFIER_NOT_FOUND: Self = Self(0x92);
    pub const RECEIVE_MAXIMUM_EXCEEDED: Self = Self(0x93);
    pub const TOPIC_ALIAS_INVALID: Self = Self(0x94);
    pub const PACKET_TOO_LARGE: Self = Self(0x95);
    pub const MESSAGE_RATE_TOO_HIGH: Self = Self(0x96);
    pub const QUOTA_EXCEEDED: Self = Self(0x97);
    pub const ADMINISTRATIVE_ACTION: Self = Self(0x98);
    pub const PAYLOAD_FORMAT_INVALID: Self = Self(0x99);
    pub const SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Self = Self(0x9E);
    pub const CONNECTION_RATE_EXCEEDED: Self = Self(0x9F);
    pub const WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Self = Self(0xA2);

    /// Codes from 0x80 on are failures.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        self.0 >= 0x80
    }
}
