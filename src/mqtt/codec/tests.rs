//! The codec against the table of packets, against itself, and against two other codecs.

use bytes::BytesMut;

use self::packets::{Case, From, cases, connect_bytes, frame};
use super::*;
use crate::mqtt::{
    codec,
    packet::{self, Acknowledgement, ConnAck, PacketId, ReasonCode},
};

#[path = "../../../tests/harness/packets.rs"]
mod packets;

mod oracles;
mod properties;

/// A decoder in the state in which the case's packet comes.
fn decoder(case: &Case) -> Decoder {
    match case.from {
        From::Server => Decoder::of_server(PacketLimits::default(), case.version),
        From::Client if case.is_first() && case.expected != Err(Violation::ConnectRepeated) => {
            Decoder::new(PacketLimits::default())
        }
        From::Client => open(case.version),
    }
}

/// A decoder that has read a CONNECT.
fn open(version: Version) -> Decoder {
    let mut decoder = Decoder::new(PacketLimits::default());
    let mut bytes = BytesMut::from(&connect_bytes(version)[..]);
    assert!(matches!(
        decoder.decode(&mut bytes),
        Ok(Some(Packet::Connect(_)))
    ));
    decoder
}

fn decode_all(decoder: &mut Decoder, bytes: &[u8]) -> Result<Option<Packet>, Violation> {
    decoder.decode(&mut BytesMut::from(bytes))
}

#[test]
fn every_packet_of_the_table_means_what_the_table_says() {
    for case in cases() {
        let mut buf = BytesMut::from(&case.bytes[..]);
        buf.extend_from_slice(b"\xc0\0");
        let decoded = decoder(&case).decode(&mut buf);
        let expected = case.expected.clone().map(Some);
        assert_eq!(decoded, expected, "{} in {:?}", case.name, case.version);
        if expected.is_ok() {
            assert_eq!(
                &buf[..],
                b"\xc0\0",
                "{} takes its own bytes alone",
                case.name
            );
        }
    }
}

#[test]
fn a_packet_that_comes_byte_by_byte_is_the_same_packet() {
    for case in cases() {
        let mut decoder = decoder(&case);
        let mut buf = BytesMut::new();
        let mut outcome = Ok(None);
        for byte in &case.bytes {
            buf.extend_from_slice(&[*byte]);
            outcome = decoder.decode(&mut buf);
            if outcome != Ok(None) {
                break;
            }
        }
        // a CONNECT cut inside its name is only known to be cut when it is whole
        assert_eq!(
            outcome,
            case.expected.clone().map(Some),
            "{} {:?}",
            case.name,
            case.version
        );
    }
}

#[test]
fn good_packets_of_the_table_are_written_as_they_were_read() {
    for case in cases() {
        let Ok(expected) = &case.expected else {
            continue;
        };
        let mut out = BytesMut::from(&b"before"[..]);
        encode(expected, case.version, None, &mut out).unwrap();
        assert_eq!(&out[..6], b"before");
        let again = decode_all(&mut decoder(&case), &out[6..]).unwrap().unwrap();
        let mut expected = expected.clone();
        properties::normalise(&mut expected);
        assert_eq!(again, expected, "{} in {:?}", case.name, case.version);
    }
}

#[test]
fn fc_055_truncated_subscriptions_are_refused_in_both_versions() {
    for (version, none) in [(Version::V311, &b""[..]), (Version::V5, b"\0")] {
        let subscribe = [b"\0\x09", none, b"\0\x03a/b\x01"].concat();
        let unsubscribe = [b"\0\x09", none, b"\0\x03a/b"].concat();
        for (first, body) in [(0x82, subscribe), (0xA2, unsubscribe)] {
            for end in 0..body.len() {
                let mut decoder = open(version);
                let refused = decode_all(&mut decoder, &frame(first, &body[..end]));
                let Err(violation) = refused else {
                    panic!("{first:#x} cut at {end}: {refused:?}")
                };
                let reason = violation.reason_code();
                assert!(
                    [ReasonCode::MALFORMED_PACKET, ReasonCode::PROTOCOL_ERROR].contains(&reason)
                );
                assert_eq!(
                    decoder.farewell(violation),
                    match version {
                        Version::V311 => Farewell::Silence,
                        Version::V5 => Farewell::Disconnect { reason },
                    }
                );
            }
        }
    }
}

#[test]
fn fc_054_first_packets_are_refused_before_anything_is_kept() {
    let limits = PacketLimits::default();
    let first = |bytes: &[u8]| {
        let mut buf = BytesMut::from(bytes);
        let capacity = buf.capacity();
        let outcome = Decoder::new(limits).decode(&mut buf);
        assert!(buf.capacity() <= capacity, "no room was reserved");
        outcome
    };
    assert_eq!(
        first(b"\x30\xff\xff\xff\x7f"),
        Err(Violation::ConnectExpected)
    );
    let too_large = Violation::PacketTooLarge {
        bytes: 268_435_460,
        max: limits.first_packet,
    };
    assert_eq!(first(b"\x10\xff\xff\xff\x7f"), Err(too_large));
    // PUBACK, PUBREC, PUBREL, SUBSCRIBE, PINGREQ, a TLS hello, "GET /": the first byte is enough
    for byte in [0x40, 0x50, 0x62, 0x82, 0xC0, 0xE0, 0xF0, 0x16, b'G'] {
        let expected = match byte {
            0x16 => Violation::FixedFlags,
            _ => Violation::ConnectExpected,
        };
        assert_eq!(first(&[byte]), Err(expected), "{byte:#x}");
    }
    // of a large CONNECT nothing is needed but its head to know that it is none
    assert_eq!(
        first(b"\x10\xff\xff\x03\0\x04HTTP"),
        Err(Violation::ProtocolName)
    );
    assert_eq!(first(b"\x10\xff\xff\x03\0\x04MQTT\x04"), Ok(None));
}

#[test]
fn limits_count_the_whole_packet() {
    let limits = PacketLimits {
        first_packet: 40,
        packet: 20,
    };
    let mut decoder = Decoder::new(limits);
    let long = frame(0x10, b"\0\x04MQTT\x04\x02\0\x3c\0\x09abcdefghi");
    assert_eq!(
        decode_all(&mut decoder, &long),
        Err(Violation::PacketTooLarge { bytes: 23, max: 20 }),
        "the smaller limit holds for the first packet"
    );
    let mut decoder = Decoder::new(PacketLimits {
        first_packet: 14,
        packet: 20,
    });
    assert!(decode_all(&mut decoder, &connect_bytes(Version::V311)).is_ok());
    let publish = |count: usize| frame(0x30, &[b"\0\x01a", &vec![0; count][..]].concat());
    assert!(matches!(
        decode_all(&mut decoder, &publish(15)),
        Ok(Some(_))
    ));
    let over = publish(16);
    let expected = Err(Violation::PacketTooLarge { bytes: 21, max: 20 });
    assert_eq!(
        decode_all(&mut decoder, &over[..2]),
        expected,
        "as soon as the header is in"
    );
}

#[test]
fn a_violation_ends_the_decoder() {
    let mut decoder = open(Version::V311);
    assert_eq!(
        decode_all(&mut decoder, b"\xc1\0"),
        Err(Violation::FixedFlags)
    );
    assert_eq!(
        decode_all(&mut decoder, b"\xc0\0"),
        Err(Violation::FixedFlags)
    );
}

#[test]
fn refused_connects_are_answered_in_a_form_that_their_client_reads() {
    let farewell = |bytes: &[u8]| {
        let mut decoder = Decoder::new(PacketLimits::default());
        let violation = decode_all(&mut decoder, bytes).unwrap_err();
        decoder.farewell(violation)
    };
    let connack = |version, reason| Farewell::ConnAck { version, reason };
    let unsupported = ReasonCode::UNSUPPORTED_PROTOCOL_VERSION;
    let (v3, v5) = (Version::V311, Version::V5);
    for (body, expected) in [
        (
            &b"\0\x06MQIsdp\x03\x02\0\x3c\0\x02D1"[..],
            connack(v3, unsupported),
        ),
        (
            b"\0\x04MQTT\x03\x02\0\x3c\0\x02D1",
            connack(v3, unsupported),
        ),
        (
            b"\0\x04MQTT\x84\x02\0\x3c\0\x02D1",
            connack(v3, unsupported),
        ),
        (b"\0\x04MQTT\x06\x02\0\x3c\0\0\0", connack(v5, unsupported)),
        (b"\0\x04HTTP\x04\x02\0\x3c\0\0", Farewell::Silence),
        (b"\0\x04MQTT\x04\x03\0\x3c\0\0", Farewell::Silence),
        (
            b"\0\x04MQTT\x05\x03\0\x3c\0\0\0",
            connack(v5, ReasonCode::MALFORMED_PACKET),
        ),
        (
            b"\0\x04MQTT\x05\x02\0\x3c\x03\x21\0\0\0\0",
            connack(v5, ReasonCode::PROTOCOL_ERROR),
        ),
        // fc_090: a will on a malformed topic
        (
            b"\0\x04MQTT\x04\x06\0\x3c\0\0\0\x01#\0\0",
            connack(v3, ReasonCode::NOT_AUTHORIZED),
        ),
        (
            b"\0\x04MQTT\x05\x06\0\x3c\0\0\0\0\0\x01#\0\0",
            connack(v5, ReasonCode::TOPIC_NAME_INVALID),
        ),
    ] {
        assert_eq!(farewell(&frame(0x10, body)), expected, "{body:?}");
    }
    let mut out = BytesMut::new();
    let refusal = ConnAck {
        reason: unsupported,
        ..ConnAck::default()
    };
    let refusal = Packet::ConnAck(Box::new(refusal));
    encode(&refusal, v3, None, &mut out).unwrap();
    assert_eq!(&out[..], b"\x20\x02\0\x01");
    out.clear();
    encode(&refusal, v5, None, &mut out).unwrap();
    assert_eq!(&out[..], b"\x20\x03\0\x84\0");
}

#[test]
fn every_farewell_can_be_written() {
    for case in cases() {
        let Err(violation) = case.expected else {
            continue;
        };
        let mut decoder = decoder(&case);
        let _ = decode_all(&mut decoder, &case.bytes);
        let packet = match decoder.farewell(violation) {
            Farewell::Silence => continue,
            Farewell::ConnAck { version, reason } => (
                Packet::ConnAck(Box::new(ConnAck {
                    reason,
                    ..ConnAck::default()
                })),
                version,
            ),
            Farewell::Disconnect { reason } => {
                let disconnect = packet::Disconnect {
                    reason,
                    ..packet::Disconnect::default()
                };
                (Packet::Disconnect(disconnect), Version::V5)
            }
        };
        encode(&packet.0, packet.1, None, &mut BytesMut::new()).unwrap();
    }
}

#[test]
fn fc_094_bad_text_is_malformed_wherever_it_stands() {
    let bad: Vec<_> = cases()
        .into_iter()
        .filter(|case| case.name.starts_with("text_"))
        .collect();
    assert_eq!(bad.len(), 5 * (6 * 2 + 3));
    for case in bad {
        let violation = decode_all(&mut decoder(&case), &case.bytes).unwrap_err();
        assert_eq!(
            violation.reason_code(),
            ReasonCode::MALFORMED_PACKET,
            "{}",
            case.name
        );
    }
}

#[test]
fn codes_of_3_1_1_are_those_of_3_1_1() {
    let connack = |reason| {
        let ack = ConnAck {
            session_present: true,
            reason,
            ..ConnAck::default()
        };
        let mut out = BytesMut::new();
        encode(
            &Packet::ConnAck(Box::new(ack)),
            Version::V311,
            None,
            &mut out,
        )
        .map(|()| out)
    };
    for (reason, bytes) in [
        (ReasonCode::SUCCESS, b"\x20\x02\x01\x00"),
        (ReasonCode::UNSUPPORTED_PROTOCOL_VERSION, b"\x20\x02\0\x01"),
        (ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, b"\x20\x02\0\x02"),
        (ReasonCode::SERVER_UNAVAILABLE, b"\x20\x02\0\x03"),
        (ReasonCode::QUOTA_EXCEEDED, b"\x20\x02\0\x03"),
        (ReasonCode::BAD_USER_NAME_OR_PASSWORD, b"\x20\x02\0\x04"),
        (ReasonCode::NOT_AUTHORIZED, b"\x20\x02\0\x05"),
    ] {
        assert_eq!(connack(reason).unwrap()[..], bytes[..], "{reason:?}");
    }
    let malformed = ReasonCode::MALFORMED_PACKET;
    assert_eq!(connack(malformed), Err(EncodeError::ReasonCode(malformed)));

    let reasons = [0x00, 0x01, 0x02, 0x80, 0x87, 0x97, 0x8F]
        .map(ReasonCode)
        .to_vec();
    let suback = packet::SubAck {
        packet_id: packets::id(9),
        reasons,
    };
    let mut out = BytesMut::new();
    encode(&Packet::SubAck(suback), Version::V311, None, &mut out).unwrap();
    assert_eq!(&out[..], b"\x90\x09\0\x09\0\x01\x02\x80\x80\x80\x80");

    let refused = Acknowledgement {
        reason: ReasonCode::NOT_AUTHORIZED,
        reason_string: Some("no".into()),
        ..Acknowledgement::success(packets::id(7))
    };
    let mut out = BytesMut::new();
    encode(&Packet::PubAck(refused), Version::V311, None, &mut out).unwrap();
    assert_eq!(&out[..], b"\x40\x02\0\x07");
}

#[test]
fn reason_strings_go_before_a_packet_is_too_large() {
    let packet = Packet::PubAck(Acknowledgement {
        reason: ReasonCode::NOT_AUTHORIZED,
        reason_string: Some("not yours".into()),
        ..Acknowledgement::success(packets::id(7))
    });
    let encoded = |max| {
        let mut out = BytesMut::from(&b"before"[..]);
        let outcome = encode(&packet, Version::V5, Some(max), &mut out);
        assert!(out.starts_with(b"before"));
        outcome.map(|()| out.split_off(6))
    };
    let with = b"\x40\x10\0\x07\x87\x0c\x1f\0\x09not yours";
    assert_eq!(encoded(18).unwrap()[..], with[..]);
    assert_eq!(encoded(17).unwrap()[..], b"\x40\x04\0\x07\x87\0"[..]);
    assert_eq!(encoded(6).unwrap()[..], b"\x40\x04\0\x07\x87\0"[..]);
    assert_eq!(encoded(5), Err(EncodeError::TooLarge { bytes: 6, max: 5 }));
}

#[test]
fn a_publish_over_the_peers_limit_is_refused_and_leaves_no_bytes() {
    let publish = Packet::Publish(packets::publish("a", &[0; 1000]));
    for version in [Version::V311, Version::V5] {
        for max in [0, 1, 4, 1004, 1005] {
            let mut out = BytesMut::from(&b"before"[..]);
            let refused = encode(&publish, version, Some(max), &mut out);
            assert!(
                matches!(refused, Err(EncodeError::TooLarge { .. })),
                "{max}"
            );
            assert_eq!(&out[..], b"before");
        }
        let mut out = BytesMut::new();
        encode(&publish, version, Some(1007), &mut out).unwrap();
    }
}

#[test]
fn what_cannot_be_written_is_an_error_and_leaves_no_bytes() {
    let publish = || packets::publish("a", b"x");
    let id = PacketId::new(7);
    let long = "a".repeat(65_536);
    let packets = [
        Packet::Publish(packet::Publish {
            packet_id: id,
            ..publish()
        }),
        Packet::Publish(packet::Publish {
            qos: packet::QoS::AtLeastOnce,
            ..publish()
        }),
        Packet::Publish(packet::Publish {
            topic: long.clone().into(),
            ..publish()
        }),
        Packet::Publish(packet::Publish {
            subscription_ids: vec![0],
            ..publish()
        }),
        Packet::Publish(packet::Publish {
            subscription_ids: vec![1, 268_435_456],
            ..publish()
        }),
        Packet::PubComp(Acknowledgement {
            reason: ReasonCode::NOT_AUTHORIZED,
            ..Acknowledgement::success(packets::id(7))
        }),
        Packet::Disconnect(packet::Disconnect {
            reason_string: Some(long.into()),
            ..packet::Disconnect::default()
        }),
        Packet::ConnAck(Box::new(ConnAck {
            maximum_packet_size: Some(0),
            ..ConnAck::default()
        })),
    ];
    for packet in packets {
        let mut out = BytesMut::from(&b"before"[..]);
        assert!(
            encode(&packet, Version::V5, None, &mut out).is_err(),
            "{packet:?}"
        );
        assert_eq!(&out[..], b"before");
    }
    let auth = Packet::Auth(packet::Auth::default());
    let refused = encode(&auth, Version::V311, None, &mut BytesMut::new());
    assert_eq!(refused, Err(EncodeError::NotInVersion));
}

#[test]
fn payload_and_text_are_slices_of_one_allocation_that_is_not_the_read_buffer() {
    let bytes = frame(0x30, &[b"\0\x03a/b", &[7; 1000][..]].concat());
    let mut buf = BytesMut::with_capacity(64 * 1024);
    buf.extend_from_slice(&bytes);
    let read_buffer = buf.as_ptr_range();
    let Ok(Some(Packet::Publish(publish))) = open(Version::V311).decode(&mut buf) else {
        panic!("a publish")
    };
    let topic = publish.topic.as_bytes().as_ptr_range();
    assert_eq!(
        topic.end,
        publish.payload.as_ptr(),
        "the topic lies before the payload"
    );
    assert!(!read_buffer.contains(&topic.start));
}

#[test]
fn filters_are_bounded() {
    for (version, none) in [(Version::V311, &b""[..]), (Version::V5, b"\0")] {
        let subscribe = |count| {
            let filters = b"\0\0\x01".repeat(count);
            frame(0x82, &[b"\0\x09", none, &filters].concat())
        };
        let most = decode_all(&mut open(version), &subscribe(FILTERS_MAX));
        let Ok(Some(Packet::Subscribe(most))) = most else {
            panic!("{most:?}")
        };
        assert_eq!(most.filters.len(), FILTERS_MAX);
        let over = decode_all(&mut open(version), &subscribe(FILTERS_MAX + 1));
        assert_eq!(over, Err(Violation::FiltersTooMany));
    }
}

/// Not a test: `cargo test --lib -- --ignored seeds_of_the_fuzzer` writes the table's good packets
/// as the seeds of `fuzz/fuzz_targets/codec.rs`, whose first two bytes it puts before each.
#[test]
#[ignore = "writes fuzz/corpus/codec"]
fn seeds_of_the_fuzzer() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/codec");
    std::fs::create_dir_all(&folder).unwrap();
    for case in cases().into_iter().filter(|case| case.expected.is_ok()) {
        let sender = match case.from {
            From::Server => 1,
            From::Client if case.is_first() => 0,
            From::Client => 2,
        };
        let version = u8::from(case.version == Version::V5);
        let bytes = [&[sender << 1 | version, 3], &case.bytes[..]].concat();
        let name = format!("{}_v{}", case.name, if version == 0 { 3 } else { 5 });
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}
