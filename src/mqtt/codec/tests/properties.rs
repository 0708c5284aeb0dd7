//! Round trips of every packet that can be written, and bytes of any kind.

use std::num::NonZeroU16;

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use proptest::{collection::vec, option, prelude::*};

use super::{decode_all, open};
use crate::mqtt::{
    codec::{Decoder, EncodeError, PacketLimits, encode},
    packet::*,
};

/// A decoder in whose place `packet` may come.
pub(super) fn reader_of(packet: &Packet, version: Version) -> Decoder {
    match packet {
        Packet::Connect(_) => Decoder::new(PacketLimits::default()),
        Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
            Decoder::of_server(PacketLimits::default(), version)
        }
        Packet::Publish(publish) if !publish.subscription_ids.is_empty() => {
            Decoder::of_server(PacketLimits::default(), version)
        }
        _ => open(version),
    }
}

/// What encoding is documented to change: see [`encode`].
pub(super) fn normalise(packet: &mut Packet) {
    let expiry = |properties: &mut PublishProperties| {
        if properties.message_expiry == Some(0) {
            properties.message_expiry = Some(1);
        }
    };
    match packet {
        Packet::Publish(publish) => expiry(&mut publish.properties),
        Packet::Connect(connect) => {
            if let Some(will) = &mut connect.will {
                expiry(&mut will.properties);
            }
        }
        _ => {}
    }
}

fn text() -> impl Strategy<Value = ByteString> {
    "[^\0]{0,12}".prop_map(ByteString::from)
}

fn topic() -> impl Strategy<Value = ByteString> {
    "[^\0+#]{1,12}".prop_map(ByteString::from)
}

fn filter() -> impl Strategy<Value = ByteString> {
    "([a-zé]{0,3}|\\+)(/([a-z]{1,3}|\\+)){0,3}(/#)?".prop_filter_map("not empty", |filter| {
        (!filter.is_empty()).then(|| ByteString::from(filter))
    })
}

fn binary(longest: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..longest).prop_map(Bytes::from)
}

fn packet_id() -> impl Strategy<Value = PacketId> {
    any::<NonZeroU16>()
}

fn qos() -> impl Strategy<Value = QoS> {
    (0..3_u8).prop_map(|number| QoS::from_u8(number).unwrap())
}

fn pairs() -> impl Strategy<Value = UserProperties> {
    vec((text(), text()), 0..3)
}

fn code(codes: &'static [u8]) -> impl Strategy<Value = ReasonCode> {
    proptest::sample::select(codes).prop_map(ReasonCode)
}

fn properties(version: Version) -> BoxedStrategy<PublishProperties> {
    if version == Version::V311 {
        return Just(PublishProperties::default()).boxed();
    }
    (
        option::of(Just(true)),
        option::of(1..=u32::MAX),
        option::of(topic()),
        option::of(binary(8)),
        option::of(text()),
        pairs(),
    )
        .prop_map(
            |(utf8, expiry, response, correlation, content, user)| PublishProperties {
                payload_is_utf8: utf8,
                message_expiry: expiry,
                response_topic: response,
                correlation_data: correlation,
                content_type: content,
                user_properties: user,
            },
        )
        .boxed()
}

fn will(version: Version) -> impl Strategy<Value = Will> {
    let delay = if version == Version::V5 {
        any::<u32>().boxed()
    } else {
        Just(0).boxed()
    };
    (
        topic(),
        binary(40),
        qos(),
        any::<bool>(),
        delay,
        properties(version),
    )
        .prop_map(|(topic, payload, qos, retain, delay, properties)| Will {
            topic,
            payload,
            qos,
            retain,
            delay,
            properties,
        })
}

fn connect(version: Version) -> impl Strategy<Value = Packet> {
    let login = (option::of(text()), option::of(binary(8)));
    let base = (
        any::<bool>(),
        any::<u16>(),
        text(),
        option::of(will(version)),
        login,
    );
    let numbers = (
        option::of(1..=u32::MAX),
        option::of(any::<NonZeroU16>()),
        option::of(1..=u32::MAX),
        any::<u16>(),
        any::<bool>(),
        any::<bool>(),
    );
    let authentication = option::of((text(), option::of(binary(8))));
    (base, numbers, authentication, pairs()).prop_map(
        move |((clean_start, keep_alive, client_id, will, login), numbers, auth, user)| {
            let password = if login.0.is_some() || version == Version::V5 {
                login.1
            } else {
                None
            };
            let mut connect = Connect {
                version,
                clean_start,
                keep_alive,
                client_id,
                will,
                username: login.0,
                password,
                session_expiry: None,
                receive_maximum: None,
                maximum_packet_size: None,
                topic_alias_maximum: 0,
                request_response_information: false,
                request_problem_information: true,
                authentication_method: None,
                authentication_data: None,
                user_properties: Vec::new(),
            };
            if version == Version::V5 {
                connect.session_expiry = numbers.0;
                connect.receive_maximum = numbers.1;
                connect.maximum_packet_size = numbers.2;
                connect.topic_alias_maximum = numbers.3;
                connect.request_response_information = numbers.4;
                connect.request_problem_information = numbers.5;
                (connect.authentication_method, connect.authentication_data) =
                    auth.map_or((None, None), |(method, data)| (Some(method), data));
                connect.user_properties = user;
            }
            Packet::Connect(Box::new(connect))
        },
    )
}

fn connack(version: Version) -> BoxedStrategy<Packet> {
    let reason = match version {
        Version::V311 => code(&[0x00, 0x84, 0x85, 0x86, 0x87, 0x88]),
        Version::V5 => code(&[
            0x00, 0x80, 0x81, 0x84, 0x85, 0x87, 0x88, 0x8C, 0x90, 0x95, 0x97,
        ]),
    };
    let base = (any::<bool>(), reason).prop_map(|(present, reason)| ConnAck {
        session_present: present && !reason.is_failure(),
        reason,
        ..ConnAck::default()
    });
    let acks = match version {
        Version::V311 => base.boxed(),
        Version::V5 => (
            base,
            option::of(any::<u32>()),
            option::of((1..u16::MAX).prop_map(|max| NonZeroU16::new(max).unwrap())),
            option::of(1..=u32::MAX),
            (option::of(text()), option::of(text())),
            any::<u16>(),
            option::of(any::<u16>()),
            option::of(Just(false)),
        )
            .prop_map(
                |(ack, expiry, receive, size, (id, reason), alias, keep, shared)| ConnAck {
                    session_expiry: expiry,
                    receive_maximum: receive,
                    maximum_packet_size: size,
                    assigned_client_id: id,
                    topic_alias_maximum: alias,
                    reason_string: reason,
                    server_keep_alive: keep,
                    shared_subscription_available: shared,
                    ..ack
                },
            )
            .boxed(),
    };
    acks.prop_map(|ack| Packet::ConnAck(Box::new(ack))).boxed()
}

fn publish(version: Version) -> impl Strategy<Value = Packet> {
    let flags = (any::<bool>(), qos(), any::<bool>());
    let extra = if version == Version::V5 {
        (
            option::of(any::<NonZeroU16>()),
            vec(1..=268_435_455_u32, 0..3),
        )
            .boxed()
    } else {
        Just((None, Vec::new())).boxed()
    };
    (
        flags,
        topic(),
        packet_id(),
        binary(200),
        extra,
        properties(version),
        any::<bool>(),
    )
        .prop_map(
            |((dup, qos, retain), topic, id, payload, (alias, ids), properties, by_alias)| {
                let has_id = qos != QoS::AtMostOnce;
                Packet::Publish(Publish {
                    dup: dup && has_id,
                    qos,
                    retain,
                    topic: if by_alias && alias.is_some() {
                        ByteString::new()
                    } else {
                        topic
                    },
                    packet_id: has_id.then_some(id),
                    payload,
                    topic_alias: alias,
                    subscription_ids: ids,
                    properties,
                })
            },
        )
}

fn acknowledgement(version: Version) -> impl Strategy<Value = Packet> {
    let parts = (
        packet_id(),
        code(&[0x00, 0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
        code(&[0x00, 0x92]),
        option::of(text()),
    );
    (parts, 0..4).prop_map(move |((packet_id, first, second, reason_string), kind)| {
        let ack = |reason| match version {
            Version::V311 => Acknowledgement::success(packet_id),
            Version::V5 => Acknowledgement {
                packet_id,
                reason,
                reason_string,
            },
        };
        match kind {
            0 => Packet::PubAck(ack(first)),
            1 => Packet::PubRec(ack(first)),
            2 => Packet::PubRel(ack(second)),
            _ => Packet::PubComp(ack(second)),
        }
    })
}

fn subscribe(version: Version) -> impl Strategy<Value = Packet> {
    let handling = proptest::sample::select(&[
        RetainHandling::AtSubscribe,
        RetainHandling::AtNewSubscribe,
        RetainHandling::Never,
    ]);
    let options = (qos(), any::<bool>(), any::<bool>(), handling).prop_map(
        move |(qos, no_local, retain_as_published, retain_handling)| match version {
            Version::V311 => SubscribeOptions {
                qos,
                ..SubscribeOptions::default()
            },
            Version::V5 => SubscribeOptions {
                qos,
                no_local,
                retain_as_published,
                retain_handling,
            },
        },
    );
    (
        packet_id(),
        option::of(1..=268_435_455_u32),
        vec((filter(), options), 1..4),
    )
        .prop_map(move |(packet_id, id, filters)| {
            let subscription_id = id.filter(|_| version == Version::V5);
            Packet::Subscribe(Subscribe {
                packet_id,
                subscription_id,
                filters,
            })
        })
}

fn others(version: Version) -> BoxedStrategy<Packet> {
    let subscribed = match version {
        Version::V311 => code(&[0, 1, 2, 0x80]),
        Version::V5 => code(&[
            0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2,
        ]),
    };
    let suback = (packet_id(), vec(subscribed, 1..5))
        .prop_map(|(packet_id, reasons)| Packet::SubAck(SubAck { packet_id, reasons }));
    let unsubscribed = vec(code(&[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]), 1..5);
    let unsuback = (packet_id(), unsubscribed).prop_map(move |(packet_id, reasons)| {
        let reasons = if version == Version::V5 {
            reasons
        } else {
            Vec::new()
        };
        Packet::UnsubAck(UnsubAck { packet_id, reasons })
    });
    let unsubscribe = (packet_id(), vec(filter(), 1..4))
        .prop_map(|(packet_id, filters)| Packet::Unsubscribe(Unsubscribe { packet_id, filters }));
    let both = prop_oneof![
        suback,
        unsuback,
        unsubscribe,
        Just(Packet::PingReq),
        Just(Packet::PingResp),
        Just(Packet::Disconnect(Disconnect::default())),
    ];
    if version == Version::V311 {
        return both.boxed();
    }
    let disconnect = (
        code(&[0x00, 0x04, 0x80, 0x8B, 0x8E, 0x95]),
        option::of(any::<u32>()),
        option::of(text()),
    )
        .prop_map(|(reason, session_expiry, reason_string)| {
            Packet::Disconnect(Disconnect {
                reason,
                session_expiry,
                reason_string,
            })
        });
    let auth = (code(&[0x00, 0x18, 0x19]), text(), option::of(binary(8))).prop_map(
        |(reason, method, data)| {
            Packet::Auth(Auth {
                reason,
                method: Some(method),
                data,
            })
        },
    );
    prop_oneof![both, disconnect, auth].boxed()
}

/// Any packet that is what the standard wants, as decoding gives it.
pub(super) fn packet(version: Version) -> impl Strategy<Value = Packet> {
    prop_oneof![
        connect(version),
        connack(version),
        publish(version),
        acknowledgement(version),
        subscribe(version),
        others(version),
    ]
}

pub(super) fn version() -> impl Strategy<Value = Version> {
    proptest::sample::select(&[Version::V311, Version::V5])
}

fn versioned() -> impl Strategy<Value = (Version, Packet)> {
    version().prop_flat_map(|version| (Just(version), packet(version)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn what_was_written_is_read_back((version, packet) in versioned()) {
        let mut bytes = BytesMut::new();
        encode(&packet, version, None, &mut bytes).unwrap();
        let read = reader_of(&packet, version).decode(&mut bytes);
        prop_assert_eq!(read, Ok(Some(packet)));
        prop_assert!(bytes.is_empty());
    }

    #[test]
    fn a_limit_of_the_peer_is_kept_or_the_output_is_as_before(
        (version, packet) in versioned(), max in 0..300_u32,
    ) {
        let mut whole = BytesMut::new();
        encode(&packet, version, None, &mut whole).unwrap();
        let mut out = BytesMut::from(&b"before"[..]);
        match encode(&packet, version, Some(max), &mut out) {
            Ok(()) => prop_assert!(out.len() - 6 <= max as usize),
            Err(EncodeError::TooLarge { bytes, .. }) => {
                prop_assert!(bytes > max as usize && whole.len() > max as usize);
                prop_assert_eq!(&out[..], b"before");
            }
            Err(error) => prop_assert!(false, "{error:?}"),
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        version in version(), bytes in vec(any::<u8>(), 0..64), first in any::<u8>(),
    ) {
        let framed = super::frame(first, &bytes);
        for bytes in [&bytes, &framed] {
            let _ = decode_all(&mut Decoder::new(PacketLimits::default()), bytes);
            let _ = decode_all(&mut open(version), bytes);
            let server = Decoder::of_server(PacketLimits::default(), version);
            let _ = decode_all(&mut server.clone(), bytes);
        }
    }
}
