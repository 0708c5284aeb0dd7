//! The table of packets: what bytes mean, or which rule they break, in each version.
//!
//! Decoder tests, encoder tests, behaviour tests and the seeds of the fuzzer draw on it. The
//! module that includes this file has `codec` and `packet` (of `tanit::mqtt`) in scope.

#![expect(clippy::too_many_lines, reason = "tables")]

use std::num::NonZeroU16;

use super::{
    codec::Violation,
    packet::{
        Acknowledgement, Auth, ConnAck, Connect, Disconnect, Packet, PacketId, Publish,
        PublishProperties, QoS, ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeOptions,
        UnsubAck, Unsubscribe, Version, Will,
    },
};

/// Who sends a packet of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The client; a CONNECT stands first, everything else after one.
    Client,
    /// The server.
    Server,
}

/// One packet on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// What it is about, as a file name.
    pub(crate) name: &'static str,
    /// The version of the connection.
    pub(crate) version: Version,
    /// Who sends it.
    pub(crate) from: From,
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// What they mean.
    pub(crate) expected: Result<Packet, Violation>,
}

impl Case {
    /// Whether it is a CONNECT, or stands in the place of one.
    pub(crate) fn is_first(&self) -> bool {
        self.from == From::Client && self.bytes.first().is_some_and(|first| first >> 4 == 1)
    }
}

/// A CONNECT that is accepted, to put before the cases that are none.
pub(crate) fn connect_bytes(version: Version) -> Vec<u8> {
    match version {
        Version::V311 => frame(0x10, b"\0\x04MQTT\x04\x02\0\x3c\0\0"),
        Version::V5 => frame(0x10, b"\0\x04MQTT\x05\x02\0\x3c\0\0\0"),
    }
}

/// A packet of this first byte and body.
pub(crate) fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut length = body.len();
    loop {
        let low = u8::try_from(length & 0x7F).expect("seven bits");
        length >>= 7;
        bytes.push(if length == 0 { low } else { low | 0x80 });
        if length == 0 {
            break;
        }
    }
    bytes.extend_from_slice(body);
    bytes
}

/// The whole table.
pub(crate) fn cases() -> Vec<Case> {
    [
        good_v311(),
        good_v5(),
        from_server(),
        bad_framing(),
        bad_connect(),
        bad_v311(),
        bad_v5(),
    ]
    .into_iter()
    .chain([bad_text()])
    .flatten()
    .collect()
}

fn case(
    name: &'static str,
    version: Version,
    bytes: Vec<u8>,
    expected: Result<Packet, Violation>,
) -> Case {
    Case {
        name,
        version,
        from: From::Client,
        bytes,
        expected,
    }
}

pub(crate) fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("not 0")
}

/// A CONNECT as most clients send it.
pub(crate) fn connect(version: Version) -> Connect {
    Connect {
        version,
        clean_start: true,
        keep_alive: 60,
        client_id: "".into(),
        will: None,
        username: None,
        password: None,
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

/// A QoS 0 PUBLISH without properties.
pub(crate) fn publish(topic: &'static str, payload: &'static [u8]) -> Publish {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: topic.into(),
        packet_id: None,
        payload: payload.into(),
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
    }
}

fn will(topic: &'static str, payload: &'static [u8]) -> Will {
    Will {
        topic: topic.into(),
        payload: payload.into(),
        qos: QoS::AtMostOnce,
        retain: false,
        delay: 0,
        properties: PublishProperties::default(),
    }
}

fn connect_is(connect: Connect) -> Packet {
    Packet::Connect(Box::new(connect))
}

fn with_qos(qos: QoS) -> SubscribeOptions {
    SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    }
}

fn good_v311() -> Vec<Case> {
    let new = |name, first, body: &[u8], packet| {
        case(name, Version::V311, frame(first, body), Ok(packet))
    };
    let connect_case = |name, body: &[u8], change: &dyn Fn(&mut Connect)| {
        let mut expected = connect(Version::V311);
        change(&mut expected);
        case(
            name,
            Version::V311,
            frame(0x10, body),
            Ok(connect_is(expected)),
        )
    };
    vec![
        connect_case("connect", b"\0\x04MQTT\x04\x02\0\x3c\0\x02D1", &|it| {
            it.client_id = "D1".into();
        }),
        connect_case(
            "connect_empty_client_id",
            b"\0\x04MQTT\x04\x02\0\x3c\0\0",
            &|_| {},
        ),
        connect_case(
            "connect_empty_client_id_resuming",
            b"\0\x04MQTT\x04\0\0\x3c\0\0",
            &|it| {
                it.clean_start = false;
            },
        ),
        connect_case(
            "connect_everything",
            b"\0\x04MQTT\x04\xf6\0\0\0\x02D1\0\x01w\0\x03bye\0\x01u\0\x02\xff\0",
            &|it| {
                it.keep_alive = 0;
                it.client_id = "D1".into();
                it.will = Some(Will {
                    qos: QoS::ExactlyOnce,
                    retain: true,
                    ..will("w", b"bye")
                });
                it.username = Some("u".into());
                it.password = Some(b"\xff\0"[..].into());
            },
        ),
        connect_case(
            "connect_empty_user",
            b"\0\x04MQTT\x04\xc2\0\x3c\0\0\0\0\0\0",
            &|it| {
                it.username = Some("".into());
                it.password = Some(b""[..].into());
            },
        ),
        new(
            "publish_qos0",
            0x30,
            b"\0\x03a/bhello",
            Packet::Publish(publish("a/b", b"hello")),
        ),
        new(
            "publish_empty_payload",
            0x30,
            b"\0\x01a",
            Packet::Publish(publish("a", b"")),
        ),
        new(
            "publish_qos1_dup_retain",
            0x3B,
            b"\0\x01a\0\x07x",
            Packet::Publish(Publish {
                dup: true,
                qos: QoS::AtLeastOnce,
                retain: true,
                packet_id: Some(id(7)),
                ..publish("a", b"x")
            }),
        ),
        new(
            "publish_qos2",
            0x34,
            b"\0\x05\xc3\xa9\xef\xbb\xbf\xff\xff",
            Packet::Publish(Publish {
                qos: QoS::ExactlyOnce,
                packet_id: Some(id(0xFFFF)),
                ..publish("é\u{feff}", b"")
            }),
        ),
        new(
            "puback",
            0x40,
            b"\0\x07",
            Packet::PubAck(Acknowledgement::success(id(7))),
        ),
        new(
            "pubrec",
            0x50,
            b"\0\x07",
            Packet::PubRec(Acknowledgement::success(id(7))),
        ),
        new(
            "pubrel",
            0x62,
            b"\0\x07",
            Packet::PubRel(Acknowledgement::success(id(7))),
        ),
        new(
            "pubcomp",
            0x70,
            b"\0\x07",
            Packet::PubComp(Acknowledgement::success(id(7))),
        ),
        new(
            "subscribe",
            0x82,
            b"\0\x09\0\x01a\x01\0\x03a/#\x02\0\x01+\0",
            Packet::Subscribe(Subscribe {
                packet_id: id(9),
                subscription_id: None,
                filters: vec![
                    ("a".into(), with_qos(QoS::AtLeastOnce)),
                    ("a/#".into(), with_qos(QoS::ExactlyOnce)),
                    ("+".into(), with_qos(QoS::AtMostOnce)),
                ],
            }),
        ),
        new(
            "subscribe_malformed_filters",
            0x82,
            b"\0\x09\0\x03a#b\x01\0\0\x02\0\x02a+\0",
            Packet::Subscribe(Subscribe {
                packet_id: id(9),
                subscription_id: None,
                filters: vec![
                    ("a#b".into(), with_qos(QoS::AtLeastOnce)),
                    ("".into(), with_qos(QoS::ExactlyOnce)),
                    ("a+".into(), with_qos(QoS::AtMostOnce)),
                ],
            }),
        ),
        new(
            "unsubscribe",
            0xA2,
            b"\0\x0a\0\x01a\0\x02a#",
            Packet::Unsubscribe(Unsubscribe {
                packet_id: id(10),
                filters: vec!["a".into(), "a#".into()],
            }),
        ),
        new(
            "unsubscribe_empty_filter",
            0xA2,
            b"\0\x0a\0\0",
            Packet::Unsubscribe(Unsubscribe {
                packet_id: id(10),
                filters: vec!["".into()],
            }),
        ),
        new("pingreq", 0xC0, b"", Packet::PingReq),
        new(
            "disconnect",
            0xE0,
            b"",
            Packet::Disconnect(Disconnect::default()),
        ),
    ]
}

fn good_v5() -> Vec<Case> {
    let mut cases = good_v5_connect();
    cases.extend(good_v5_publish());
    cases.extend(good_v5_others());
    cases
}

fn good_v5_connect() -> Vec<Case> {
    let new = |name, body: &[u8], change: &dyn Fn(&mut Connect)| {
        let mut expected = connect(Version::V5);
        change(&mut expected);
        case(
            name,
            Version::V5,
            frame(0x10, body),
            Ok(connect_is(expected)),
        )
    };
    vec![
        new("connect", b"\0\x04MQTT\x05\x02\0\x3c\0\0\x02D1", &|it| {
            it.client_id = "D1".into();
        }),
        new(
            "connect_empty_client_id_resuming",
            b"\0\x04MQTT\x05\0\0\x3c\0\0\0",
            &|it| {
                it.clean_start = false;
            },
        ),
        new(
            "connect_password_alone",
            b"\0\x04MQTT\x05\x42\0\x3c\0\0\0\0\x01p",
            &|it| {
                it.password = Some(b"p"[..].into());
            },
        ),
        new(
            "connect_every_property",
            b"\0\x04MQTT\x05\x02\0\x3c\x29\
            \x11\0\0\x0e\x10\x15\0\x01m\x16\0\x01d\x17\0\x19\x01\x21\0\x64\x22\0\x05\
            \x26\0\x01k\0\x01v\x26\0\x01k\0\0\x27\0\x01\0\0\0\x02D1",
            &|it| {
                it.session_expiry = Some(3600);
                it.authentication_method = Some("m".into());
                it.authentication_data = Some(b"d"[..].into());
                it.request_problem_information = false;
                it.request_response_information = true;
                it.receive_maximum = NonZeroU16::new(100);
                it.topic_alias_maximum = 5;
                it.user_properties = vec![("k".into(), "v".into()), ("k".into(), "".into())];
                it.maximum_packet_size = Some(65_536);
                it.client_id = "D1".into();
            },
        ),
        new(
            "connect_will_every_property",
            b"\0\x04MQTT\x05\x2e\0\x3c\0\0\0\
            \x1f\x01\x01\x02\0\0\0\x3c\x03\0\x01t\x08\0\x01r\x09\0\x01c\x18\0\0\0\x0a\
            \x26\0\x01k\0\x01v\0\x01w\0\x03bye",
            &|it| {
                it.will = Some(Will {
                    qos: QoS::AtLeastOnce,
                    retain: true,
                    delay: 10,
                    properties: PublishProperties {
                        payload_is_utf8: Some(true),
                        message_expiry: Some(60),
                        content_type: Some("t".into()),
                        response_topic: Some("r".into()),
                        correlation_data: Some(b"c"[..].into()),
                        user_properties: vec![("k".into(), "v".into())],
                    },
                    ..will("w", b"bye")
                });
            },
        ),
        new(
            "connect_will_expiry_zero_resuming",
            b"\0\x04MQTT\x05\x04\0\x3c\0\0\0\x05\x02\0\0\0\0\0\x01w\0\0",
            &|it| {
                it.clean_start = false;
                let mut will = will("w", b"");
                will.properties.message_expiry = Some(0);
                it.will = Some(will);
            },
        ),
    ]
}

fn good_v5_publish() -> Vec<Case> {
    let new = |name, first, body: &[u8], publish| {
        case(
            name,
            Version::V5,
            frame(first, body),
            Ok(Packet::Publish(publish)),
        )
    };
    vec![
        new(
            "publish_qos0",
            0x30,
            b"\0\x03a/b\0hello",
            publish("a/b", b"hello"),
        ),
        new(
            "publish_every_property",
            0x32,
            b"\0\x01a\0\x07\x22\x01\x01\x02\0\0\0\x3c\x03\0\x01t\x08\0\x01r\x09\0\x01c\x23\0\x05\
            \x26\0\x01k\0\x01v\x26\0\0\0\0x",
            Publish {
                qos: QoS::AtLeastOnce,
                packet_id: Some(id(7)),
                topic_alias: NonZeroU16::new(5),
                properties: PublishProperties {
                    payload_is_utf8: Some(true),
                    message_expiry: Some(60),
                    content_type: Some("t".into()),
                    response_topic: Some("r".into()),
                    correlation_data: Some(b"c"[..].into()),
                    user_properties: vec![("k".into(), "v".into()), ("".into(), "".into())],
                },
                ..publish("a", b"x")
            },
        ),
        new(
            "publish_alias_only",
            0x30,
            b"\0\0\x03\x23\0\x05x",
            Publish {
                topic_alias: NonZeroU16::new(5),
                ..publish("", b"x")
            },
        ),
        new(
            "publish_expiry_zero",
            0x30,
            b"\0\x01a\x07\x01\0\x02\0\0\0\0x",
            Publish {
                properties: PublishProperties {
                    message_expiry: Some(0),
                    ..PublishProperties::default()
                },
                ..publish("a", b"x")
            },
        ),
    ]
}

fn good_v5_others() -> Vec<Case> {
    let new =
        |name, first, body: &[u8], packet| case(name, Version::V5, frame(first, body), Ok(packet));
    let failed = |code, reason: Option<&'static str>| Acknowledgement {
        packet_id: id(7),
        reason: ReasonCode(code),
        reason_string: reason.map(Into::into),
    };
    vec![
        new(
            "puback",
            0x40,
            b"\0\x07",
            Packet::PubAck(Acknowledgement::success(id(7))),
        ),
        new(
            "puback_code",
            0x40,
            b"\0\x07\x10",
            Packet::PubAck(failed(0x10, None)),
        ),
        new(
            "puback_code_no_properties",
            0x40,
            b"\0\x07\x99\0",
            Packet::PubAck(failed(0x99, None)),
        ),
        new(
            "pubrec_reason_string",
            0x50,
            b"\0\x07\x97\x0c\x1f\0\x02no\x26\0\x01k\0\x01v",
            Packet::PubRec(failed(0x97, Some("no"))),
        ),
        new(
            "pubrel_not_found",
            0x62,
            b"\0\x07\x92",
            Packet::PubRel(failed(0x92, None)),
        ),
        new(
            "pubcomp",
            0x70,
            b"\0\x07\0\0",
            Packet::PubComp(failed(0, None)),
        ),
        new(
            "subscribe",
            0x82,
            b"\0\x09\x09\x0b\x07\x26\0\x01k\0\x01v\0\x01a\x2d\0\x0b$share/g/a/\x19\0\0\x02",
            Packet::Subscribe(Subscribe {
                packet_id: id(9),
                subscription_id: Some(7),
                filters: vec![
                    (
                        "a".into(),
                        SubscribeOptions {
                            qos: QoS::AtLeastOnce,
                            no_local: true,
                            retain_as_published: true,
                            retain_handling: RetainHandling::Never,
                        },
                    ),
                    (
                        "$share/g/a/".into(),
                        SubscribeOptions {
                            qos: QoS::AtLeastOnce,
                            no_local: false,
                            retain_as_published: true,
                            retain_handling: RetainHandling::AtNewSubscribe,
                        },
                    ),
                    ("".into(), with_qos(QoS::ExactlyOnce)),
                ],
            }),
        ),
        new(
            "unsubscribe",
            0xA2,
            b"\0\x0a\x07\x26\0\x01k\0\x01v\0\x01a\0\0",
            Packet::Unsubscribe(Unsubscribe {
                packet_id: id(10),
                filters: vec!["a".into(), "".into()],
            }),
        ),
        new("pingreq", 0xC0, b"", Packet::PingReq),
        new(
            "disconnect",
            0xE0,
            b"",
            Packet::Disconnect(Disconnect::default()),
        ),
        new(
            "disconnect_with_will",
            0xE0,
            b"\x04",
            Packet::Disconnect(Disconnect {
                reason: ReasonCode::DISCONNECT_WITH_WILL,
                ..Disconnect::default()
            }),
        ),
        new(
            "disconnect_expiry",
            0xE0,
            b"\0\x0a\x11\0\0\0\x05\x1f\0\x02ok",
            Packet::Disconnect(Disconnect {
                reason: ReasonCode::SUCCESS,
                session_expiry: Some(5),
                reason_string: Some("ok".into()),
            }),
        ),
        new("auth_empty", 0xF0, b"", Packet::Auth(Auth::default())),
        new(
            "auth",
            0xF0,
            b"\x18\x08\x15\0\x01m\x16\0\x01d",
            Packet::Auth(Auth {
                reason: ReasonCode(0x18),
                method: Some("m".into()),
                data: Some(b"d"[..].into()),
            }),
        ),
    ]
}

fn from_server() -> Vec<Case> {
    let new = |name, version, first, body: &[u8], expected| Case {
        from: From::Server,
        ..case(name, version, frame(first, body), expected)
    };
    let (v3, v5) = (Version::V311, Version::V5);
    let connack = |ack| Ok(Packet::ConnAck(Box::new(ack)));
    let suback = |codes: &[u8]| {
        let reasons = codes.iter().copied().map(ReasonCode).collect();
        Ok(Packet::SubAck(SubAck {
            packet_id: id(9),
            reasons,
        }))
    };
    let unsuback = |codes: &[u8]| {
        let reasons = codes.iter().copied().map(ReasonCode).collect();
        Ok(Packet::UnsubAck(UnsubAck {
            packet_id: id(10),
            reasons,
        }))
    };
    let present = ConnAck {
        session_present: true,
        ..ConnAck::default()
    };
    let refused = |reason| ConnAck {
        reason,
        ..ConnAck::default()
    };
    vec![
        new(
            "connack_present",
            v3,
            0x20,
            b"\x01\0",
            connack(present.clone()),
        ),
        new(
            "connack_refused",
            v3,
            0x20,
            b"\0\x05",
            connack(refused(ReasonCode::NOT_AUTHORIZED)),
        ),
        new(
            "connack_reserved_flags",
            v3,
            0x20,
            b"\x02\0",
            Err(Violation::ReservedBits),
        ),
        new(
            "connack_reserved_code",
            v3,
            0x20,
            b"\0\x06",
            Err(Violation::ReasonCode),
        ),
        new("connack_present", v5, 0x20, b"\x01\0\0", connack(present)),
        new(
            "connack_refused",
            v5,
            0x20,
            b"\0\x97\0",
            connack(refused(ReasonCode::QUOTA_EXCEEDED)),
        ),
        new(
            "connack_unknown_code",
            v5,
            0x20,
            b"\0\x8d\0",
            Err(Violation::ReasonCode),
        ),
        new(
            "connack_properties",
            v5,
            0x20,
            b"\0\0\x1f\x11\0\0\0\x05\x12\0\x02D1\x13\0\x1e\x1f\0\x02ok\x21\0\x64\x22\0\x0a\
            \x27\0\x04\xb0\0\x2a\0",
            connack(ConnAck {
                session_expiry: Some(5),
                receive_maximum: NonZeroU16::new(100),
                maximum_packet_size: Some(307_200),
                assigned_client_id: Some("D1".into()),
                topic_alias_maximum: 10,
                reason_string: Some("ok".into()),
                server_keep_alive: Some(30),
                shared_subscription_available: Some(false),
                ..ConnAck::default()
            }),
        ),
        new(
            "suback",
            v3,
            0x90,
            b"\0\x09\0\x01\x02\x80",
            suback(&[0, 1, 2, 0x80]),
        ),
        new(
            "suback_v5_code",
            v3,
            0x90,
            b"\0\x09\x87",
            Err(Violation::ReasonCode),
        ),
        new(
            "suback",
            v5,
            0x90,
            b"\0\x09\0\0\x01\x02\x8f\x9e",
            suback(&[0, 1, 2, 0x8F, 0x9E]),
        ),
        new("unsuback", v3, 0xB0, b"\0\x0a", unsuback(&[])),
        new(
            "unsuback",
            v5,
            0xB0,
            b"\0\x0a\0\0\x11",
            unsuback(&[0, 0x11]),
        ),
        new("pingresp", v3, 0xD0, b"", Ok(Packet::PingResp)),
        new("pingresp", v5, 0xD0, b"", Ok(Packet::PingResp)),
        new(
            "publish_subscription_ids",
            v5,
            0x30,
            b"\0\x01a\x06\x0b\x01\x0b\xff\xff\x03x",
            Ok(Packet::Publish(Publish {
                subscription_ids: vec![1, 65_535],
                ..publish("a", b"x")
            })),
        ),
        new(
            "disconnect_code",
            v5,
            0xE0,
            b"\x8d",
            Ok(Packet::Disconnect(Disconnect {
                reason: ReasonCode::KEEP_ALIVE_TIMEOUT,
                ..Disconnect::default()
            })),
        ),
        new("disconnect", v3, 0xE0, b"", Err(Violation::WrongDirection)),
        new(
            "disconnect_expiry",
            v5,
            0xE0,
            b"\0\x05\x11\0\0\0\x05",
            Err(Violation::PropertyDirection),
        ),
        new(
            "subscribe",
            v5,
            0x82,
            b"\0\x09\0\0\x01a\0",
            Err(Violation::WrongDirection),
        ),
    ]
}

/// Framing, in both versions.
fn bad_framing() -> Vec<Case> {
    let mut cases = Vec::new();
    for version in [Version::V311, Version::V5] {
        for (name, bytes, violation) in [
            (
                "length_five_bytes",
                &b"\x30\x80\x80\x80\x80\x01"[..],
                Violation::LengthMalformed,
            ),
            (
                "length_never_ends",
                b"\x30\xff\xff\xff\xff",
                Violation::LengthMalformed,
            ),
            ("length_overlong", b"\xc0\x80\0", Violation::LengthOverlong),
            (
                "length_over_the_limit",
                b"\x30\xff\xff\xff\x7f",
                Violation::PacketTooLarge {
                    bytes: 268_435_460,
                    max: 307_200,
                },
            ),
            ("type_0", b"\0\0", Violation::PacketType),
            (
                "connect_again",
                b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0",
                Violation::ConnectRepeated,
            ),
            (
                "connack_from_client",
                b"\x20\x02\0\0",
                Violation::WrongDirection,
            ),
            (
                "suback_from_client",
                b"\x90\x03\0\x01\0",
                Violation::WrongDirection,
            ),
            (
                "unsuback_from_client",
                b"\xb0\x02\0\x01",
                Violation::WrongDirection,
            ),
            ("pingresp_from_client", b"\xd0\0", Violation::WrongDirection),
            ("puback_flags", b"\x41\x02\0\x07", Violation::FixedFlags),
            ("pubrec_flags", b"\x52\x02\0\x07", Violation::FixedFlags),
            ("pubrel_flags", b"\x60\x02\0\x07", Violation::FixedFlags),
            ("pubcomp_flags", b"\x72\x02\0\x07", Violation::FixedFlags),
            (
                "subscribe_flags",
                b"\x80\x06\0\x09\0\x01a\x01",
                Violation::FixedFlags,
            ),
            (
                "unsubscribe_flags",
                b"\xa0\x05\0\x0a\0\x01a",
                Violation::FixedFlags,
            ),
            ("pingreq_flags", b"\xc1\0", Violation::FixedFlags),
            ("disconnect_flags", b"\xe1\0", Violation::FixedFlags),
            ("publish_qos3", b"\x36\x06\0\x01a\0\x07x", Violation::QoS),
            (
                "publish_dup_qos0",
                b"\x38\x03\0\x01a",
                Violation::DupWithoutQoS,
            ),
            ("pingreq_body", b"\xc0\x01x", Violation::TrailingBytes),
            ("puback_empty", b"\x40\0", Violation::Truncated),
            ("puback_id_0", b"\x40\x02\0\0", Violation::PacketIdZero),
            ("pubrel_id_0", b"\x62\x02\0\0", Violation::PacketIdZero),
            (
                "publish_id_0",
                b"\x32\x05\0\x01a\0\0",
                Violation::PacketIdZero,
            ),
            (
                "subscribe_id_0",
                b"\x82\x06\0\0\0\x01a\x01",
                Violation::PacketIdZero,
            ),
            (
                "unsubscribe_id_0",
                b"\xa2\x05\0\0\0\x01a",
                Violation::PacketIdZero,
            ),
            (
                "publish_inside_topic",
                b"\x30\x03\0\x05a",
                Violation::Truncated,
            ),
            ("publish_empty", b"\x30\0", Violation::Truncated),
        ] {
            cases.push(case(name, version, bytes.to_vec(), Err(violation)));
        }
    }
    cases
}

fn bad_connect() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name, version, first, body: &[u8], violation| {
        cases.push(case(name, version, frame(first, body), Err(violation)));
    };
    let (v3, v5) = (Version::V311, Version::V5);
    let level = |level| Violation::ProtocolVersion { level };
    add(
        "connect_mqtt_3_1",
        v3,
        0x10,
        b"\0\x06MQIsdp\x03\x02\0\x3c\0\x02D1",
        level(3),
    );
    add(
        "connect_level_3",
        v3,
        0x10,
        b"\0\x04MQTT\x03\x02\0\x3c\0\x02D1",
        level(3),
    );
    add(
        "connect_level_6",
        v5,
        0x10,
        b"\0\x04MQTT\x06\x02\0\x3c\0\0\0",
        level(6),
    );
    add(
        "connect_bridge",
        v3,
        0x10,
        b"\0\x04MQTT\x84\x02\0\x3c\0\x02D1",
        level(0x84),
    );
    add(
        "connect_name",
        v3,
        0x10,
        b"\0\x04mqtt\x04\x02\0\x3c\0\0",
        Violation::ProtocolName,
    );
    add(
        "connect_name_length",
        v3,
        0x10,
        b"\0\x05MQTT\x04\x02\0\x3c\0\0",
        Violation::ProtocolName,
    );
    add("connect_empty", v3, 0x10, b"", Violation::Truncated);
    add(
        "connect_name_only",
        v3,
        0x10,
        b"\0\x04MQ",
        Violation::Truncated,
    );
    add(
        "connect_fixed_flags",
        v3,
        0x11,
        b"\0\x04MQTT\x04\x02\0\x3c\0\0",
        Violation::FixedFlags,
    );
    for (version, head, properties) in [
        (v3, &b"\0\x04MQTT\x04"[..], &b""[..]),
        (v5, b"\0\x04MQTT\x05", b"\0"),
    ] {
        let body =
            |flags: u8, after: &[u8]| [head, &[flags], b"\0\x3c", properties, after].concat();
        let will = |after: &[u8]| [b"\0\0", properties, after].concat();
        add(
            "connect_reserved_bit",
            version,
            0x10,
            &body(0x03, b"\0\0"),
            Violation::ReservedBits,
        );
        add(
            "connect_will_qos_alone",
            version,
            0x10,
            &body(0x0A, b"\0\0"),
            Violation::WillFlags,
        );
        add(
            "connect_will_retain_alone",
            version,
            0x10,
            &body(0x22, b"\0\0"),
            Violation::WillFlags,
        );
        add(
            "connect_will_qos_3",
            version,
            0x10,
            &body(0x1E, &will(b"\0\x01w\0\0")),
            Violation::QoS,
        );
        add(
            "connect_will_wildcard",
            version,
            0x10,
            &body(0x06, &will(b"\0\x01#\0\0")),
            Violation::TopicName,
        );
        add(
            "connect_will_plus",
            version,
            0x10,
            &body(0x06, &will(b"\0\x03a/+\0\0")),
            Violation::TopicName,
        );
        add(
            "connect_will_empty_topic",
            version,
            0x10,
            &body(0x06, &will(b"\0\0\0\0")),
            Violation::TopicName,
        );
        add(
            "connect_will_missing",
            version,
            0x10,
            &body(0x06, b"\0\0"),
            Violation::Truncated,
        );
        add(
            "connect_user_missing",
            version,
            0x10,
            &body(0x82, b"\0\0"),
            Violation::Truncated,
        );
        add(
            "connect_id_cut",
            version,
            0x10,
            &body(0x02, b"\0\x05D1"),
            Violation::Truncated,
        );
        add(
            "connect_no_id",
            version,
            0x10,
            &body(0x02, b""),
            Violation::Truncated,
        );
        add(
            "connect_trailing",
            version,
            0x10,
            &body(0x02, b"\0\0x"),
            Violation::TrailingBytes,
        );
    }
    add(
        "connect_password_alone",
        v3,
        0x10,
        b"\0\x04MQTT\x04\x42\0\x3c\0\0\0\x01p",
        Violation::PasswordWithoutUsername,
    );
    for (name, properties, violation) in [
        (
            "connect_receive_maximum_0",
            &b"\x03\x21\0\0"[..],
            Violation::PropertyValue,
        ),
        (
            "connect_packet_size_0",
            b"\x05\x27\0\0\0\0",
            Violation::PropertyValue,
        ),
        (
            "connect_boolean_2",
            b"\x02\x17\x02",
            Violation::PropertyValue,
        ),
        (
            "connect_repeated",
            b"\x0a\x11\0\0\0\x05\x11\0\0\0\x05",
            Violation::PropertyRepeated,
        ),
        (
            "connect_data_without_method",
            b"\x04\x16\0\x01d",
            Violation::AuthenticationMethodMissing,
        ),
        (
            "connect_unknown_property",
            b"\x02\x7f\0",
            Violation::Property,
        ),
        (
            "connect_property_of_publish",
            b"\x03\x23\0\x01",
            Violation::Property,
        ),
        (
            "connect_property_cut",
            b"\x03\x11\0\0",
            Violation::Truncated,
        ),
        (
            "connect_properties_overlong",
            b"\x80\0",
            Violation::LengthOverlong,
        ),
        (
            "connect_properties_five_bytes",
            b"\x80\x80\x80\x80\x01",
            Violation::LengthMalformed,
        ),
        (
            "connect_properties_never_end",
            b"\xff\xff\xff\xff",
            Violation::LengthMalformed,
        ),
        (
            "connect_properties_too_long",
            b"\x7f\x17\x01",
            Violation::Truncated,
        ),
    ] {
        let body = [b"\0\x04MQTT\x05\x02\0\x3c", properties, b"\0\0"].concat();
        add(name, v5, 0x10, &body, violation);
    }
    cases
}

fn bad_v311() -> Vec<Case> {
    [
        ("auth", 0xF0, &b""[..], Violation::PacketType),
        (
            "publish_wildcard",
            0x30,
            b"\0\x03a/#x",
            Violation::TopicName,
        ),
        ("publish_plus", 0x30, b"\0\x01+x", Violation::TopicName),
        ("publish_empty_topic", 0x30, b"\0\0x", Violation::TopicName),
        ("publish_no_id", 0x32, b"\0\x01a", Violation::Truncated),
        (
            "puback_trailing",
            0x40,
            b"\0\x07\0",
            Violation::TrailingBytes,
        ),
        (
            "pubrel_trailing",
            0x62,
            b"\0\x07\0",
            Violation::TrailingBytes,
        ),
        (
            "subscribe_no_filter",
            0x82,
            b"\0\x09",
            Violation::FiltersMissing,
        ),
        (
            "subscribe_no_options",
            0x82,
            b"\0\x09\0\x01a",
            Violation::Truncated,
        ),
        (
            "subscribe_filter_cut",
            0x82,
            b"\0\x09\0\x05a",
            Violation::Truncated,
        ),
        (
            "subscribe_length_cut",
            0x82,
            b"\0\x09\0",
            Violation::Truncated,
        ),
        (
            "subscribe_second_cut",
            0x82,
            b"\0\x09\0\x01a\x01\0\x05a",
            Violation::Truncated,
        ),
        (
            "subscribe_qos_3",
            0x82,
            b"\0\x09\0\x01a\x03",
            Violation::QoS,
        ),
        (
            "subscribe_reserved_bits",
            0x82,
            b"\0\x09\0\x01a\xfd",
            Violation::ReservedBits,
        ),
        (
            "subscribe_no_local",
            0x82,
            b"\0\x09\0\x01a\x04",
            Violation::ReservedBits,
        ),
        (
            "unsubscribe_no_filter",
            0xA2,
            b"\0\x0a",
            Violation::FiltersMissing,
        ),
        (
            "unsubscribe_filter_cut",
            0xA2,
            b"\0\x0a\0\x05a",
            Violation::Truncated,
        ),
        (
            "unsubscribe_length_cut",
            0xA2,
            b"\0\x0a\0\x01a\0",
            Violation::Truncated,
        ),
        ("disconnect_body", 0xE0, b"\0", Violation::TrailingBytes),
    ]
    .into_iter()
    .map(|(name, first, body, violation)| {
        case(name, Version::V311, frame(first, body), Err(violation))
    })
    .collect()
}

fn bad_v5() -> Vec<Case> {
    [
        (
            "publish_wildcard",
            0x30,
            &b"\0\x03a/#\0x"[..],
            Violation::TopicName,
        ),
        (
            "publish_empty_topic",
            0x30,
            b"\0\0\0x",
            Violation::TopicMissing,
        ),
        (
            "publish_alias_0",
            0x30,
            b"\0\x01a\x03\x23\0\0x",
            Violation::TopicAliasZero,
        ),
        (
            "publish_alias_twice",
            0x30,
            b"\0\x01a\x06\x23\0\x01\x23\0\x01",
            Violation::PropertyRepeated,
        ),
        (
            "publish_no_properties",
            0x30,
            b"\0\x01a",
            Violation::Truncated,
        ),
        (
            "publish_format_2",
            0x30,
            b"\0\x01a\x02\x01\x02x",
            Violation::PropertyValue,
        ),
        (
            "publish_subscription_id",
            0x30,
            b"\0\x01a\x02\x0b\x01x",
            Violation::PropertyDirection,
        ),
        (
            "publish_subscription_id_0",
            0x30,
            b"\0\x01a\x02\x0b\0x",
            Violation::PropertyValue,
        ),
        (
            "publish_response_wildcard",
            0x30,
            b"\0\x01a\x04\x08\0\x01#x",
            Violation::TopicName,
        ),
        (
            "publish_response_empty",
            0x30,
            b"\0\x01a\x03\x08\0\0x",
            Violation::TopicName,
        ),
        (
            "publish_property_over_its_end",
            0x30,
            b"\0\x01a\x03\x01\x01\x02\0\0\0\x09",
            Violation::Truncated,
        ),
        (
            "publish_properties_over_the_end",
            0x30,
            b"\0\x01a\x7fx",
            Violation::Truncated,
        ),
        (
            "publish_properties_overlong",
            0x30,
            b"\0\x01a\x80\0x",
            Violation::LengthOverlong,
        ),
        (
            "publish_property_of_connect",
            0x30,
            b"\0\x01a\x03\x21\0\x01x",
            Violation::Property,
        ),
        (
            "puback_unknown_code",
            0x40,
            b"\0\x07\x01",
            Violation::ReasonCode,
        ),
        (
            "puback_trailing",
            0x40,
            b"\0\x07\0\0x",
            Violation::TrailingBytes,
        ),
        (
            "puback_foreign_property",
            0x40,
            b"\0\x07\0\x03\x23\0\x01",
            Violation::Property,
        ),
        (
            "pubrel_unknown_code",
            0x62,
            b"\0\x07\x80",
            Violation::ReasonCode,
        ),
        (
            "subscribe_no_properties",
            0x82,
            b"\0\x09",
            Violation::Truncated,
        ),
        (
            "subscribe_no_filter",
            0x82,
            b"\0\x09\0",
            Violation::FiltersMissing,
        ),
        (
            "subscribe_no_options",
            0x82,
            b"\0\x09\0\0\x01a",
            Violation::Truncated,
        ),
        (
            "subscribe_length_cut",
            0x82,
            b"\0\x09\0\0",
            Violation::Truncated,
        ),
        (
            "subscribe_qos_3",
            0x82,
            b"\0\x09\0\0\x01a\x03",
            Violation::QoS,
        ),
        (
            "subscribe_reserved_bits",
            0x82,
            b"\0\x09\0\0\x01a\x41",
            Violation::ReservedBits,
        ),
        (
            "subscribe_retain_handling_3",
            0x82,
            b"\0\x09\0\0\x01a\x31",
            Violation::RetainHandling,
        ),
        (
            "subscribe_no_local_shared",
            0x82,
            b"\0\x09\0\0\x0a$share/g/a\x05",
            Violation::NoLocalShared,
        ),
        (
            "subscribe_id_0",
            0x82,
            b"\0\x09\x02\x0b\0\0\x01a\x01",
            Violation::PropertyValue,
        ),
        (
            "subscribe_id_twice",
            0x82,
            b"\0\x09\x04\x0b\x01\x0b\x01\0\x01a\x01",
            Violation::PropertyRepeated,
        ),
        (
            "subscribe_id_overlong",
            0x82,
            b"\0\x09\x03\x0b\x81\0\0\x01a\x01",
            Violation::LengthOverlong,
        ),
        (
            "unsubscribe_no_filter",
            0xA2,
            b"\0\x0a\0",
            Violation::FiltersMissing,
        ),
        (
            "unsubscribe_length_cut",
            0xA2,
            b"\0\x0a\0\0",
            Violation::Truncated,
        ),
        (
            "disconnect_unknown_code",
            0xE0,
            b"\x01",
            Violation::ReasonCode,
        ),
        (
            "disconnect_trailing",
            0xE0,
            b"\0\0x",
            Violation::TrailingBytes,
        ),
        (
            "disconnect_server_reference",
            0xE0,
            b"\0\x04\x1c\0\x01s",
            Violation::PropertyDirection,
        ),
        (
            "auth_no_method",
            0xF0,
            b"\x18\0",
            Violation::AuthenticationMethodMissing,
        ),
        ("auth_no_properties", 0xF0, b"\x18", Violation::Truncated),
        (
            "auth_unknown_code",
            0xF0,
            b"\x01\x04\x15\0\x01m",
            Violation::ReasonCode,
        ),
    ]
    .into_iter()
    .map(|(name, first, body, violation)| {
        case(name, Version::V5, frame(first, body), Err(violation))
    })
    .chain([case(
        "publish_many_user_properties",
        Version::V5,
        frame(
            0x30,
            &[b"\0\x01a\x85\x0a", b"\x26\0\0\0\0".repeat(257).as_slice()].concat(),
        ),
        Err(Violation::UserPropertiesTooMany),
    )])
    .collect()
}

/// Text that is none, wherever text stands, in both versions.
fn bad_text() -> Vec<Case> {
    let mut cases = Vec::new();
    for (text, violation) in [
        (&b"a\0b"[..], Violation::NullCharacter),
        (b"\xff\xfe", Violation::Utf8),
        (b"\xed\xa0\x80", Violation::Utf8),
        (b"\xc0\xaf", Violation::Utf8),
        (b"\xf8\x88\x80\x80\x80", Violation::Utf8),
    ] {
        let text = [&[0, u8::try_from(text.len()).expect("short")], text].concat();
        for (version, level, none) in [(Version::V311, 4, &b""[..]), (Version::V5, 5, b"\0")] {
            let connect = |flags, parts: &[&[u8]]| {
                let head = [b"\0\x04MQTT", &[level, flags][..], b"\0\x3c", none].concat();
                frame(0x10, &[head, parts.concat()].concat())
            };
            for (name, bytes) in [
                ("text_client_id", connect(2, &[&text])),
                (
                    "text_will_topic",
                    connect(6, &[b"\0\0", none, &text, b"\0\0"]),
                ),
                ("text_user_name", connect(0x82, &[b"\0\0", &text])),
                ("text_topic", frame(0x30, &[&text, none, b"x"].concat())),
                (
                    "text_filter",
                    frame(0x82, &[b"\0\x09", none, &text, b"\x01"].concat()),
                ),
                (
                    "text_unsubscribed",
                    frame(0xA2, &[b"\0\x09", none, &text].concat()),
                ),
            ] {
                cases.push(case(name, version, bytes, Err(violation)));
            }
        }
        let user = |key: &[u8], value: &[u8]| {
            let pair = [b"\x26", key, value].concat();
            [&[u8::try_from(pair.len()).expect("short")], &pair[..]].concat()
        };
        for (name, bytes) in [
            (
                "text_user_key",
                frame(0x30, &[b"\0\x01a", &user(&text, b"\0\0")[..]].concat()),
            ),
            (
                "text_user_value",
                frame(0x30, &[b"\0\x01a", &user(b"\0\0", &text)[..]].concat()),
            ),
            (
                "text_user_of_connect",
                frame(
                    0x10,
                    &[
                        b"\0\x04MQTT\x05\x02\0\x3c",
                        &user(&text, b"\0\0")[..],
                        b"\0\0",
                    ]
                    .concat(),
                ),
            ),
        ] {
            cases.push(case(name, Version::V5, bytes, Err(violation)));
        }
    }
    cases
}
