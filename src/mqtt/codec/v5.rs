//! Between our packets and the library's of 5.0.
//!
//! The library has no place for some absent properties and gives their default instead: a Session
//! Expiry Interval of 0 in CONNECT, a Receive Maximum of 65,535 in CONNACK and a Payload Format
//! Indicator of 0 in PUBLISH all come out as absent, which means the same.

use std::num::NonZeroU32;

use bytes::BytesMut;
use rmqtt_codec::{
    types,
    v5::{
        self as lib, AuthReasonCode, ConnectAckReason, DisconnectReasonCode, PublishAck2Reason,
        PublishAckReason, SubscribeAckReason, UnsubscribeAckReason,
    },
};
use tokio_util::codec::{Decoder, Encoder};

use super::{
    EncodeError, Violation,
    v3::{from_qos, to_qos},
};
use crate::mqtt::packet::{
    Acknowledgement, Auth, ConnAck, Connect, Disconnect, Packet, Publish, PublishProperties,
    ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeOptions, UnsubAck, Unsubscribe,
    Version, Will,
};

/// The most that a variable byte integer can say, which is what the library panics beyond.
const VARIABLE_MAX: u32 = 268_435_455;

/// Builds the packet that `frame` holds, header and all, and nothing else.
pub(super) fn decode(mut frame: BytesMut) -> Result<Packet, Violation> {
    match lib::Codec::new(0, 0).decode(&mut frame) {
        Ok(Some((packet, _))) => Ok(from_library(packet)),
        Ok(None) | Err(_) => Err(Violation::Library),
    }
}

fn from_library(packet: lib::Packet) -> Packet {
    match packet {
        lib::Packet::Connect(connect) => Packet::Connect(Box::new(from_connect(*connect))),
        lib::Packet::ConnectAck(ack) => Packet::ConnAck(Box::new(from_connack(*ack))),
        lib::Packet::Publish(publish) => Packet::Publish(from_publish(*publish)),
        lib::Packet::PublishAck(ack) => Packet::PubAck(from_ack(ack)),
        lib::Packet::PublishReceived(ack) => Packet::PubRec(from_ack(ack)),
        lib::Packet::PublishRelease(ack) => Packet::PubRel(from_ack2(ack)),
        lib::Packet::PublishComplete(ack) => Packet::PubComp(from_ack2(ack)),
        lib::Packet::Subscribe(subscribe) => Packet::Subscribe(from_subscribe(subscribe)),
        lib::Packet::SubscribeAck(ack) => Packet::SubAck(SubAck {
            packet_id: ack.packet_id,
            reasons: ack
                .status
                .into_iter()
                .map(|code| ReasonCode(code.into()))
                .collect(),
        }),
        lib::Packet::Unsubscribe(unsubscribe) => Packet::Unsubscribe(Unsubscribe {
            packet_id: unsubscribe.packet_id,
            filters: unsubscribe.topic_filters,
        }),
        lib::Packet::UnsubscribeAck(ack) => Packet::UnsubAck(UnsubAck {
            packet_id: ack.packet_id,
            reasons: ack
                .status
                .into_iter()
                .map(|code| ReasonCode(code.into()))
                .collect(),
        }),
        lib::Packet::PingRequest => Packet::PingReq,
        lib::Packet::PingResponse => Packet::PingResp,
        lib::Packet::Disconnect(disconnect) => Packet::Disconnect(Disconnect {
            reason: ReasonCode(disconnect.reason_code.into()),
            session_expiry: disconnect.session_expiry_interval_secs,
            reason_string: disconnect.reason_string,
        }),
        lib::Packet::Auth(auth) => Packet::Auth(Auth {
            reason: ReasonCode(auth.reason_code.into()),
            method: auth.auth_method,
            data: auth.auth_data,
        }),
    }
}

fn from_connect(connect: lib::Connect) -> Connect {
    Connect {
        version: Version::V5,
        clean_start: connect.clean_start,
        keep_alive: connect.keep_alive,
        client_id: connect.client_id,
        will: connect.last_will.map(from_will),
        username: connect.username,
        password: connect.password,
        session_expiry: (connect.session_expiry_interval_secs != 0)
            .then_some(connect.session_expiry_interval_secs),
        receive_maximum: connect.receive_max,
        maximum_packet_size: connect.max_packet_size.map(NonZeroU32::get),
        topic_alias_maximum: connect.topic_alias_max,
        request_response_information: connect.request_response_info,
        request_problem_information: connect.request_problem_info,
        authentication_method: connect.auth_method,
        authentication_data: connect.auth_data,
        user_properties: connect.user_properties,
    }
}

fn from_will(will: lib::LastWill) -> Will {
    Will {
        topic: will.topic,
        payload: will.message,
        qos: from_qos(will.qos),
        retain: will.retain,
        delay: will.will_delay_interval_sec.unwrap_or(0),
        properties: PublishProperties {
            payload_is_utf8: will.is_utf8_payload.filter(|is_utf8| *is_utf8),
            message_expiry: will.message_expiry_interval.map(NonZeroU32::get),
            response_topic: will.response_topic,
            correlation_data: will.correlation_data,
            content_type: will.content_type,
            user_properties: will.user_properties,
        },
    }
}

fn from_connack(ack: lib::ConnectAck) -> ConnAck {
    ConnAck {
        session_present: ack.session_present,
        reason: ReasonCode(ack.reason_code.into()),
        session_expiry: ack.session_expiry_interval_secs,
        receive_maximum: Some(ack.receive_max).filter(|max| max.get() != u16::MAX),
        maximum_packet_size: ack.max_packet_size,
        assigned_client_id: ack.assigned_client_id,
        topic_alias_maximum: ack.topic_alias_max,
        reason_string: ack.reason_string,
        server_keep_alive: ack.server_keepalive_sec,
        shared_subscription_available: (!ack.shared_subscription_available).then_some(false),
    }
}

fn from_publish(publish: types::Publish) -> Publish {
    let properties = publish.properties.unwrap_or_default();
    Publish {
        dup: publish.dup,
        qos: from_qos(publish.qos),
        retain: publish.retain,
        topic: publish.topic,
        packet_id: publish.packet_id,
        payload: publish.payload,
        topic_alias: properties.topic_alias,
        subscription_ids: properties
            .subscription_ids
            .into_iter()
            .map(NonZeroU32::get)
            .collect(),
        properties: PublishProperties {
            payload_is_utf8: properties.is_utf8_payload.then_some(true),
            message_expiry: properties.message_expiry_interval.map(NonZeroU32::get),
            response_topic: properties.response_topic,
            correlation_data: properties.correlation_data,
            content_type: properties.content_type,
            user_properties: properties.user_properties,
        },
    }
}

fn from_ack(ack: lib::PublishAck) -> Acknowledgement {
    Acknowledgement {
        packet_id: ack.packet_id,
        reason: ReasonCode(ack.reason_code.into()),
        reason_string: ack.reason_string,
    }
}

fn from_ack2(ack: lib::PublishAck2) -> Acknowledgement {
    Acknowledgement {
        packet_id: ack.packet_id,
        reason: ReasonCode(ack.reason_code.into()),
        reason_string: ack.reason_string,
    }
}

fn from_subscribe(subscribe: lib::Subscribe) -> Subscribe {
    let options = |options: lib::SubscriptionOptions| SubscribeOptions {
        qos: from_qos(options.qos),
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        retain_handling: match options.retain_handling {
            lib::RetainHandling::AtSubscribe => RetainHandling::AtSubscribe,
            lib::RetainHandling::AtSubscribeNew => RetainHandling::AtNewSubscribe,
            lib::RetainHandling::NoAtSubscribe => RetainHandling::Never,
        },
    };
    let filters = subscribe.topic_filters.into_iter();
    Subscribe {
        packet_id: subscribe.packet_id,
        subscription_id: subscribe.id.map(NonZeroU32::get),
        filters: filters
            .map(|(filter, asked)| (filter, options(asked)))
            .collect(),
    }
}

/// Writes `packet`, whose reason codes have been checked, behind what `out` holds.
pub(super) fn encode(packet: &Packet, out: &mut BytesMut) -> Result<(), EncodeError> {
    let packet = to_library(packet)?;
    // no maximum: with a small one the library's arithmetic overflows
    lib::Codec::new(0, 0)
        .encode(packet, out)
        .map_err(|error| EncodeError::from_library(&error))
}

fn to_library(packet: &Packet) -> Result<lib::Packet, EncodeError> {
    Ok(match packet {
        Packet::Connect(connect) => lib::Packet::Connect(Box::new(to_connect(connect)?)),
        Packet::ConnAck(ack) => lib::Packet::ConnectAck(Box::new(to_connack(ack)?)),
        Packet::Publish(publish) => lib::Packet::Publish(Box::new(to_publish(publish)?)),
        Packet::PubAck(ack) => lib::Packet::PublishAck(to_ack(ack)?),
        Packet::PubRec(ack) => lib::Packet::PublishReceived(to_ack(ack)?),
        Packet::PubRel(ack) => lib::Packet::PublishRelease(to_ack2(ack)?),
        Packet::PubComp(ack) => lib::Packet::PublishComplete(to_ack2(ack)?),
        Packet::Subscribe(subscribe) => lib::Packet::Subscribe(to_subscribe(subscribe)?),
        Packet::SubAck(ack) => lib::Packet::SubscribeAck(lib::SubscribeAck {
            packet_id: ack.packet_id,
            properties: Vec::new(),
            reason_string: None,
            status: to_codes::<SubscribeAckReason>(&ack.reasons)?,
        }),
        Packet::Unsubscribe(unsubscribe) => lib::Packet::Unsubscribe(lib::Unsubscribe {
            packet_id: unsubscribe.packet_id,
            user_properties: Vec::new(),
            topic_filters: unsubscribe.filters.clone(),
        }),
        Packet::UnsubAck(ack) => lib::Packet::UnsubscribeAck(lib::UnsubscribeAck {
            packet_id: ack.packet_id,
            properties: Vec::new(),
            reason_string: None,
            status: to_codes::<UnsubscribeAckReason>(&ack.reasons)?,
        }),
        Packet::PingReq => lib::Packet::PingRequest,
        Packet::PingResp => lib::Packet::PingResponse,
        Packet::Disconnect(disconnect) => lib::Packet::Disconnect(lib::Disconnect {
            reason_code: to_code::<DisconnectReasonCode>(disconnect.reason)?,
            session_expiry_interval_secs: disconnect.session_expiry,
            server_reference: None,
            reason_string: disconnect.reason_string.clone(),
            user_properties: Vec::new(),
        }),
        Packet::Auth(auth) => lib::Packet::Auth(lib::Auth {
            reason_code: to_code::<AuthReasonCode>(auth.reason)?,
            auth_method: auth.method.clone(),
            auth_data: auth.data.clone(),
            reason_string: None,
            user_properties: Vec::new(),
        }),
    })
}

fn to_code<C: TryFrom<u8>>(reason: ReasonCode) -> Result<C, EncodeError> {
    C::try_from(reason.0).map_err(|_| EncodeError::ReasonCode(reason))
}

fn to_codes<C: TryFrom<u8>>(reasons: &[ReasonCode]) -> Result<Vec<C>, EncodeError> {
    reasons.iter().map(|reason| to_code(*reason)).collect()
}

fn to_connect(connect: &Connect) -> Result<lib::Connect, EncodeError> {
    let size = connect.maximum_packet_size;
    Ok(lib::Connect {
        clean_start: connect.clean_start,
        keep_alive: connect.keep_alive,
        session_expiry_interval_secs: connect.session_expiry.unwrap_or(0),
        auth_method: connect.authentication_method.clone(),
        auth_data: connect.authentication_data.clone(),
        request_problem_info: connect.request_problem_information,
        request_response_info: connect.request_response_information,
        receive_max: connect.receive_maximum,
        topic_alias_max: connect.topic_alias_maximum,
        user_properties: connect.user_properties.clone(),
        max_packet_size: size
            .map(|size| NonZeroU32::new(size).ok_or(EncodeError::OutOfRange))
            .transpose()?,
        last_will: connect.will.as_ref().map(to_will),
        client_id: connect.client_id.clone(),
        username: connect.username.clone(),
        password: connect.password.clone(),
        cert: None,
    })
}

fn to_will(will: &Will) -> lib::LastWill {
    let properties = &will.properties;
    lib::LastWill {
        qos: to_qos(will.qos),
        retain: will.retain,
        topic: will.topic.clone(),
        message: will.payload.clone(),
        will_delay_interval_sec: (will.delay != 0).then_some(will.delay),
        correlation_data: properties.correlation_data.clone(),
        message_expiry_interval: properties.message_expiry.map(to_expiry),
        content_type: properties.content_type.clone(),
        user_properties: properties.user_properties.clone(),
        is_utf8_payload: properties.payload_is_utf8.filter(|is_utf8| *is_utf8),
        response_topic: properties.response_topic.clone(),
    }
}

fn to_connack(ack: &ConnAck) -> Result<lib::ConnectAck, EncodeError> {
    let defaults = lib::ConnectAck::default();
    Ok(lib::ConnectAck {
        // [MQTT5-3.2.2-6]
        session_present: ack.session_present && !ack.reason.is_failure(),
        reason_code: to_code::<ConnectAckReason>(ack.reason)?,
        session_expiry_interval_secs: ack.session_expiry,
        receive_max: ack.receive_maximum.unwrap_or(defaults.receive_max),
        max_packet_size: match ack.maximum_packet_size {
            Some(0) => return Err(EncodeError::OutOfRange),
            size => size,
        },
        assigned_client_id: ack.assigned_client_id.clone(),
        topic_alias_max: ack.topic_alias_maximum,
        shared_subscription_available: ack.shared_subscription_available.unwrap_or(true),
        server_keepalive_sec: ack.server_keep_alive,
        reason_string: ack.reason_string.clone(),
        ..defaults
    })
}

fn to_publish(publish: &Publish) -> Result<types::Publish, EncodeError> {
    let properties = &publish.properties;
    let subscription_ids = publish
        .subscription_ids
        .iter()
        .map(|id| to_subscription_id(*id));
    Ok(types::Publish {
        dup: publish.dup,
        retain: publish.retain,
        qos: to_qos(publish.qos),
        topic: publish.topic.clone(),
        packet_id: publish.packet_id,
        payload: publish.payload.clone(),
        properties: Some(lib::PublishProperties {
            topic_alias: publish.topic_alias,
            correlation_data: properties.correlation_data.clone(),
            message_expiry_interval: properties.message_expiry.map(to_expiry),
            content_type: properties.content_type.clone(),
            user_properties: properties.user_properties.clone(),
            is_utf8_payload: properties.payload_is_utf8.unwrap_or(false),
            response_topic: properties.response_topic.clone(),
            subscription_ids: subscription_ids.collect::<Result<_, _>>()?,
        }),
    })
}

/// Seconds left of a message's life. The library cannot write 0, for which 1 stands.
const fn to_expiry(seconds: u32) -> NonZeroU32 {
    match NonZeroU32::new(seconds) {
        Some(seconds) => seconds,
        None => NonZeroU32::MIN,
    }
}

fn to_subscription_id(id: u32) -> Result<NonZeroU32, EncodeError> {
    NonZeroU32::new(id)
        .filter(|id| id.get() <= VARIABLE_MAX)
        .ok_or(EncodeError::OutOfRange)
}

fn to_ack(ack: &Acknowledgement) -> Result<lib::PublishAck, EncodeError> {
    Ok(lib::PublishAck {
        packet_id: ack.packet_id,
        reason_code: to_code::<PublishAckReason>(ack.reason)?,
        properties: Vec::new(),
        reason_string: ack.reason_string.clone(),
    })
}

fn to_ack2(ack: &Acknowledgement) -> Result<lib::PublishAck2, EncodeError> {
    Ok(lib::PublishAck2 {
        packet_id: ack.packet_id,
        reason_code: to_code::<PublishAck2Reason>(ack.reason)?,
        properties: Vec::new(),
        reason_string: ack.reason_string.clone(),
    })
}

fn to_subscribe(subscribe: &Subscribe) -> Result<lib::Subscribe, EncodeError> {
    let options = |options: SubscribeOptions| lib::SubscriptionOptions {
        qos: to_qos(options.qos),
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        retain_handling: match options.retain_handling {
            RetainHandling::AtSubscribe => lib::RetainHandling::AtSubscribe,
            RetainHandling::AtNewSubscribe => lib::RetainHandling::AtSubscribeNew,
            RetainHandling::Never => lib::RetainHandling::NoAtSubscribe,
        },
    };
    let filters = subscribe.filters.iter();
    Ok(lib::Subscribe {
        packet_id: subscribe.packet_id,
        id: subscribe
            .subscription_id
            .map(to_subscription_id)
            .transpose()?,
        user_properties: Vec::new(),
        topic_filters: filters
            .map(|(filter, asked)| (filter.clone(), options(*asked)))
            .collect(),
    })
}
