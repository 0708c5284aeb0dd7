//! The bytes of a message.

use bytes::Bytes;
use bytestring::ByteString;

use super::{Input, put_time};
use crate::{
    clock::Timestamp,
    mqtt::{
        packet::{PublishProperties, QoS},
        sessions::Message,
    },
};

const RETAIN: u8 = 1;
const PROPERTY: u8 = 2;
const HAS_ID: u8 = 4;
const HAS_FORMAT: u8 = 8;
const IS_UTF8: u8 = 16;
const HAS_MAJOR: u8 = 32;

/// What of a stored message is needed to remove it.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::mqtt::sessions) struct Head<'b> {
    pub(in crate::mqtt::sessions) topic: &'b str,
    pub(in crate::mqtt::sessions) expires_at: Option<Timestamp>,
    pub(in crate::mqtt::sessions) property: bool,
    pub(in crate::mqtt::sessions) id: Option<u128>,
    /// What it counts against the queue's bound, in bytes.
    pub(in crate::mqtt::sessions) cost: u64,
}

/// What a message counts against the queue's bound: topic and payload, in bytes.
pub(in crate::mqtt::sessions) fn cost(message: &Message) -> u64 {
    (message.topic.len() + message.payload.len()) as u64
}

/// A message: QoS u8, flags u8 (1 retain, 2 property, 4 id, 8 payload format, 16 it is UTF-8, 32
/// major), expires i64, id u128, major u32 if its flag is set, payload's length u32, topic (length
/// u16); then subscription ids (count u16, u32 each), response topic, correlation data, content type
/// (a u8 that tells whether, length u32), user properties (count u16; name and value, each with its
/// length u32), and the payload.
pub(in crate::mqtt::sessions) fn encode_message(message: &Message) -> Vec<u8> {
    let properties = &message.properties;
    let mut out = Vec::with_capacity(64 + message.topic.len() + message.payload.len());
    out.push(message.qos as u8);
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    out.push(
        flag(message.retain, RETAIN)
            | flag(message.property, PROPERTY)
            | flag(message.id.is_some(), HAS_ID)
            | flag(properties.payload_is_utf8.is_some(), HAS_FORMAT)
            | flag(properties.payload_is_utf8 == Some(true), IS_UTF8)
            | flag(message.major.is_some(), HAS_MAJOR),
    );
    put_time(&mut out, message.expires_at);
    out.extend_from_slice(&message.id.unwrap_or(0).to_le_bytes());
    if let Some(major) = message.major {
        out.extend_from_slice(&major.to_le_bytes());
    }
    put_length(&mut out, message.payload.len());
    // topics are at most 65,535 bytes long; the publisher checked that
    out.extend_from_slice(&short(message.topic.len()).to_le_bytes());
    out.extend_from_slice(&message.topic.as_bytes()[..usize::from(short(message.topic.len()))]);
    let ids = &message.subscription_ids;
    out.extend_from_slice(&short(ids.len()).to_le_bytes());
    for id in &ids[..usize::from(short(ids.len()))] {
        out.extend_from_slice(&id.to_le_bytes());
    }
    put_optional(
        &mut out,
        properties.response_topic.as_deref().map(str::as_bytes),
    );
    put_optional(&mut out, properties.correlation_data.as_deref());
    put_optional(
        &mut out,
        properties.content_type.as_deref().map(str::as_bytes),
    );
    let user = &properties.user_properties;
    out.extend_from_slice(&short(user.len()).to_le_bytes());
    for (name, value) in &user[..usize::from(short(user.len()))] {
        put_bytes(&mut out, name.as_bytes());
        put_bytes(&mut out, value.as_bytes());
    }
    out.extend_from_slice(&message.payload);
    out
}

/// The beginning of a stored message, without copying any of it.
pub(in crate::mqtt::sessions) fn decode_head(bytes: &[u8]) -> Option<Head<'_>> {
    let mut input = Input(bytes);
    let (_qos, flags) = (input.u8()?, input.u8()?);
    let expires_at = input.time()?;
    let id = input.u128()?;
    let _major = major(&mut input, flags)?;
    let payload_bytes = input.u32()?;
    let topic_bytes = input.u16()?;
    let topic = std::str::from_utf8(input.take(usize::from(topic_bytes))?).ok()?;
    Some(Head {
        topic,
        expires_at,
        property: flags & PROPERTY != 0,
        id: (flags & HAS_ID != 0).then_some(id),
        cost: u64::from(payload_bytes) + u64::from(topic_bytes),
    })
}

/// A stored message; `None` when the row is damaged.
pub(in crate::mqtt::sessions) fn decode_message(bytes: &[u8]) -> Option<Message> {
    let mut input = Input(bytes);
    let (qos, flags) = (QoS::from_u8(input.u8()?)?, input.u8()?);
    let expires_at = input.time()?;
    let id = input.u128()?;
    let major = major(&mut input, flags)?;
    let payload_bytes = usize::try_from(input.u32()?).ok()?;
    let topic_bytes = input.u16()?;
    let topic = text(input.take(usize::from(topic_bytes))?)?;
    let subscription_ids = (0..input.u16()?)
        .map(|_| input.u32())
        .collect::<Option<_>>()?;
    let response_topic = optional_text(input.optional()?)?;
    let correlation_data = input.optional()?.map(Bytes::copy_from_slice);
    let content_type = optional_text(input.optional()?)?;
    let user_properties = (0..input.u16()?)
        .map(|_| Some((text(input.bytes()?)?, text(input.bytes()?)?)))
        .collect::<Option<_>>()?;
    let payload = Bytes::copy_from_slice(input.take(payload_bytes)?);
    if !input.0.is_empty() {
        return None;
    }
    Some(Message {
        topic,
        payload,
        qos,
        retain: flags & RETAIN != 0,
        expires_at,
        subscription_ids,
        properties: PublishProperties {
            payload_is_utf8: (flags & HAS_FORMAT != 0).then_some(flags & IS_UTF8 != 0),
            message_expiry: None,
            response_topic,
            correlation_data,
            content_type,
            user_properties,
        },
        property: flags & PROPERTY != 0,
        major,
        id: (flags & HAS_ID != 0).then_some(id),
    })
}

#[expect(clippy::option_option, reason = "damaged, absent, present")]
fn major(input: &mut Input<'_>, flags: u8) -> Option<Option<u32>> {
    if flags & HAS_MAJOR == 0 {
        return Some(None);
    }
    input.u32().map(Some)
}

fn text(bytes: &[u8]) -> Option<ByteString> {
    Some(ByteString::from(std::str::from_utf8(bytes).ok()?))
}

#[expect(clippy::option_option, reason = "damaged, absent, present")]
fn optional_text(bytes: Option<&[u8]>) -> Option<Option<ByteString>> {
    bytes.map_or(Some(None), |bytes| text(bytes).map(Some))
}

fn short(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

fn put_length(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_optional(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(out, bytes);
    }
}
