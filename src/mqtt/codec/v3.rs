//! Between our packets and the library's of 3.1.1.

use bytes::{Buf, Bytes, BytesMut};
use bytestring::ByteString;
use rmqtt_codec::{
    types::{self, Protocol},
    v3::{self as lib, ConnectAckReason, SubscribeReturnCode},
};
use tokio_util::codec::{Decoder, Encoder};

use super::{EncodeError, Violation, check::kind, encode::return_code};
use crate::mqtt::packet::{
    Acknowledgement, ConnAck, Connect, Disconnect, Packet, PacketId, Publish, PublishProperties,
    QoS, ReasonCode, SubAck, Subscribe, SubscribeOptions, UnsubAck, Unsubscribe, Version, Will,
};

/// Builds the packet that `frame` holds, header and all, and nothing else.
pub(super) fn decode(mut frame: BytesMut) -> Result<Packet, Violation> {
    match lib::Codec::new(0).decode(&mut frame) {
        Ok(Some((packet, _))) => Ok(from_library(packet)),
        Ok(None) | Err(_) => Err(Violation::Library),
    }
}

/// Builds a SUBSCRIBE or UNSUBSCRIBE whose body has passed the checks. The library refuses both
/// when a filter is empty, but the others have a right to their answer.
pub(super) fn decode_filters(kind: u8, mut body: Bytes) -> Result<Packet, Violation> {
    let packet_id = body
        .try_get_u16()
        .ok()
        .and_then(PacketId::new)
        .ok_or(Violation::Library)?;
    let mut filters = Vec::new();
    while let Ok(length) = body.try_get_u16() {
        if usize::from(length) > body.len() {
            return Err(Violation::Library);
        }
        let text = body.split_to(length.into());
        let filter = ByteString::try_from(text).map_err(|_| Violation::Library)?;
        let mut options = SubscribeOptions::default();
        if kind == kind::SUBSCRIBE {
            options.qos = body
                .try_get_u8()
                .ok()
                .and_then(QoS::from_u8)
                .ok_or(Violation::Library)?;
        }
        filters.push((filter, options));
    }
    Ok(match kind {
        kind::SUBSCRIBE => Packet::Subscribe(Subscribe {
            packet_id,
            subscription_id: None,
            filters,
        }),
        _ => Packet::Unsubscribe(Unsubscribe {
            packet_id,
            filters: filters.into_iter().map(|(filter, _)| filter).collect(),
        }),
    })
}

fn from_library(packet: lib::Packet) -> Packet {
    match packet {
        lib::Packet::Connect(connect) => Packet::Connect(Box::new(from_connect(*connect))),
        lib::Packet::ConnectAck(ack) => Packet::ConnAck(Box::new(ConnAck {
            session_present: ack.session_present,
            reason: from_return_code(ack.return_code),
            ..ConnAck::default()
        })),
        lib::Packet::Publish(publish) => Packet::Publish(from_publish(*publish)),
        lib::Packet::PublishAck { packet_id } => {
            Packet::PubAck(Acknowledgement::success(packet_id))
        }
        lib::Packet::PublishReceived { packet_id } => {
            Packet::PubRec(Acknowledgement::success(packet_id))
        }
        lib::Packet::PublishRelease { packet_id } => {
            Packet::PubRel(Acknowledgement::success(packet_id))
        }
        lib::Packet::PublishComplete { packet_id } => {
            Packet::PubComp(Acknowledgement::success(packet_id))
        }
        lib::Packet::Subscribe {
            packet_id,
            topic_filters,
        } => Packet::Subscribe(Subscribe {
            packet_id,
            subscription_id: None,
            filters: topic_filters.into_iter().map(from_subscription).collect(),
        }),
        lib::Packet::SubscribeAck { packet_id, status } => Packet::SubAck(SubAck {
            packet_id,
            reasons: status.into_iter().map(from_subscribe_code).collect(),
        }),
        lib::Packet::Unsubscribe {
            packet_id,
            topic_filters,
        } => Packet::Unsubscribe(Unsubscribe {
            packet_id,
            filters: topic_filters,
        }),
        lib::Packet::UnsubscribeAck { packet_id } => Packet::UnsubAck(UnsubAck {
            packet_id,
            reasons: Vec::new(),
        }),
        lib::Packet::PingRequest => Packet::PingReq,
        lib::Packet::PingResponse => Packet::PingResp,
        lib::Packet::Disconnect => Packet::Disconnect(Disconnect::default()),
    }
}

fn from_connect(connect: lib::Connect) -> Connect {
    Connect {
        version: Version::V311,
        clean_start: connect.clean_session,
        keep_alive: connect.keep_alive,
        client_id: connect.client_id,
        will: connect.last_will.map(|will| Will {
            topic: will.topic,
            payload: will.message,
            qos: from_qos(will.qos),
            retain: will.retain,
            delay: 0,
            properties: PublishProperties::default(),
        }),
        username: connect.username,
        password: connect.password,
        session_expiry: None,
        receive_maximum: None,
        maximum_packet_size: None,
        topic_alias_maximum: 0,
        request_response_information: false,
        request_problem_information: true,
        authentication_method: None,
        authentication_data: None,
        user_properties: Vec::new(),
    }
}

fn from_publish(publish: types::Publish) -> Publish {
    Publish {
        dup: publish.dup,
        qos: from_qos(publish.qos),
        retain: publish.retain,
        topic: publish.topic,
        packet_id: publish.packet_id,
        payload: publish.payload,
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
    }
}

fn from_subscription((filter, qos): (ByteString, types::QoS)) -> (ByteString, SubscribeOptions) {
    (
        filter,
        SubscribeOptions {
            qos: from_qos(qos),
            ..SubscribeOptions::default()
        },
    )
}

/// The 5.0 reason code that says the same as a return code (3.2.2.3).
const fn from_return_code(code: ConnectAckReason) -> ReasonCode {
    match code {
        ConnectAckReason::ConnectionAccepted => ReasonCode::SUCCESS,
        ConnectAckReason::UnacceptableProtocolVersion => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
        ConnectAckReason::IdentifierRejected => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
        ConnectAckReason::ServiceUnavailable => ReasonCode::SERVER_UNAVAILABLE,
        ConnectAckReason::BadUserNameOrPassword => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        ConnectAckReason::NotAuthorized => ReasonCode::NOT_AUTHORIZED,
        ConnectAckReason::Reserved => ReasonCode::UNSPECIFIED_ERROR,
    }
}

const fn from_subscribe_code(code: SubscribeReturnCode) -> ReasonCode {
    match code {
        SubscribeReturnCode::Success(qos) => ReasonCode(qos as u8),
        SubscribeReturnCode::Failure => ReasonCode::UNSPECIFIED_ERROR,
    }
}

pub(super) const fn from_qos(qos: types::QoS) -> QoS {
    match qos {
        types::QoS::AtMostOnce => QoS::AtMostOnce,
        types::QoS::AtLeastOnce => QoS::AtLeastOnce,
        types::QoS::ExactlyOnce => QoS::ExactlyOnce,
    }
}

pub(super) const fn to_qos(qos: QoS) -> types::QoS {
    match qos {
        QoS::AtMostOnce => types::QoS::AtMostOnce,
        QoS::AtLeastOnce => types::QoS::AtLeastOnce,
        QoS::ExactlyOnce => types::QoS::ExactlyOnce,
    }
}

/// Writes `packet`, whose size has been checked, behind what `out` holds.
pub(super) fn encode(packet: &Packet, out: &mut BytesMut) -> Result<(), EncodeError> {
    let packet = to_library(packet)?;
    lib::Codec::new(0)
        .encode(packet, out)
        .map_err(|error| EncodeError::from_library(&error))
}

fn to_library(packet: &Packet) -> Result<lib::Packet, EncodeError> {
    Ok(match packet {
        Packet::Connect(connect) => lib::Packet::Connect(Box::new(to_connect(connect))),
        Packet::ConnAck(ack) => lib::Packet::ConnectAck(lib::ConnectAck {
            return_code: return_code(ack.reason)
                .and_then(|code| ConnectAckReason::try_from(code).ok())
                .ok_or(EncodeError::ReasonCode(ack.reason))?,
            // [MQTT-3.2.2-4]
            session_present: ack.session_present && !ack.reason.is_failure(),
        }),
        Packet::Publish(publish) => lib::Packet::Publish(Box::new(types::Publish {
            dup: publish.dup,
            retain: publish.retain,
            qos: to_qos(publish.qos),
            topic: publish.topic.clone(),
            packet_id: publish.packet_id,
            payload: publish.payload.clone(),
            properties: None,
        })),
        Packet::PubAck(ack) => lib::Packet::PublishAck {
            packet_id: ack.packet_id,
        },
        Packet::PubRec(ack) => lib::Packet::PublishReceived {
            packet_id: ack.packet_id,
        },
        Packet::PubRel(ack) => lib::Packet::PublishRelease {
            packet_id: ack.packet_id,
        },
        Packet::PubComp(ack) => lib::Packet::PublishComplete {
            packet_id: ack.packet_id,
        },
        Packet::Subscribe(subscribe) => lib::Packet::Subscribe {
            packet_id: subscribe.packet_id,
            topic_filters: subscribe
                .filters
                .iter()
                .map(|(filter, options)| (filter.clone(), to_qos(options.qos)))
                .collect(),
        },
        Packet::SubAck(ack) => lib::Packet::SubscribeAck {
            packet_id: ack.packet_id,
            status: ack
                .reasons
                .iter()
                .map(|reason| to_subscribe_code(*reason))
                .collect(),
        },
        Packet::Unsubscribe(unsubscribe) => lib::Packet::Unsubscribe {
            packet_id: unsubscribe.packet_id,
            topic_filters: unsubscribe.filters.clone(),
        },
        Packet::UnsubAck(ack) => lib::Packet::UnsubscribeAck {
            packet_id: ack.packet_id,
        },
        Packet::PingReq => lib::Packet::PingRequest,
        Packet::PingResp => lib::Packet::PingResponse,
        Packet::Disconnect(_) => lib::Packet::Disconnect,
        Packet::Auth(_) => return Err(EncodeError::NotInVersion),
    })
}

fn to_connect(connect: &Connect) -> lib::Connect {
    lib::Connect {
        protocol: Protocol(types::MQTT_LEVEL_311),
        clean_session: connect.clean_start,
        keep_alive: connect.keep_alive,
        last_will: connect.will.as_ref().map(|will| lib::LastWill {
            qos: to_qos(will.qos),
            retain: will.retain,
            topic: will.topic.clone(),
            message: will.payload.clone(),
        }),
        client_id: connect.client_id.clone(),
        username: connect.username.clone(),
        password: connect.password.clone(),
        cert: None,
    }
}

/// Every failure is 0x80 [MQTT-3.9.3-2].
const fn to_subscribe_code(reason: ReasonCode) -> SubscribeReturnCode {
    match QoS::from_u8(reason.0) {
        Some(qos) => SubscribeReturnCode::Success(to_qos(qos)),
        None => SubscribeReturnCode::Failure,
    }
}
