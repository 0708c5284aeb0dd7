//! Second opinions: rumqttd's codec on well-formed packets, mqtt-proto's on mutated ones.

use bytes::BytesMut;
use proptest::{collection::vec, prelude::*};
use rumqttd::protocol::{Protocol, v4::V4, v5::V5};

use super::{
    frame, open,
    packets::cases,
    properties::{packet, reader_of, version},
};
use crate::mqtt::{
    codec::{Decoder, PacketLimits, Violation, encode},
    packet::{Packet, PublishProperties, ReasonCode, Version},
};

/// Whether rumqttd 0.20 cannot be asked about `packet`, for a defect of its own.
fn rumqttd_is_wrong_about(packet: &Packet, version: Version) -> bool {
    match (packet, version) {
        // binary passwords must be text; an empty login is none; a password needs a user name
        (Packet::Connect(connect), _)
            if connect
                .password
                .as_ref()
                .is_some_and(|it| str::from_utf8(it).is_err())
                || connect.username.as_ref().is_some_and(|it| it.is_empty())
                || connect
                    .password
                    .as_ref()
                    .is_some_and(bytes::Bytes::is_empty)
                || connect.username.is_some() != connect.password.is_some() =>
        {
            true
        }
        // read_mut has no arm for CONNACK and UNSUBACK of 5.0: it panics; AUTH is no packet type;
        // the length of a DISCONNECT is written as one too few
        (
            Packet::ConnAck(_) | Packet::UnsubAck(_) | Packet::Auth(_) | Packet::Disconnect(_),
            Version::V5,
        ) => true,
        _ => false,
    }
}

/// `packet` through our encoder, rumqttd's decoder, rumqttd's encoder and our decoder.
fn through_rumqttd(packet: &Packet, version: Version) -> Result<Packet, String> {
    let mut bytes = BytesMut::new();
    encode(packet, version, None, &mut bytes).map_err(|error| error.to_string())?;
    let mut theirs = BytesMut::new();
    let (read, written) = match version {
        Version::V311 => {
            let read = V4
                .read_mut(&mut bytes, usize::MAX)
                .map_err(|error| error.to_string())?;
            (format!("{read:?}"), V4.write(read, &mut theirs))
        }
        Version::V5 => {
            let read = V5
                .read_mut(&mut bytes, usize::MAX)
                .map_err(|error| error.to_string())?;
            (format!("{read:?}"), V5.write(read, &mut theirs))
        }
    };
    written.map_err(|error| error.to_string())?;
    match reader_of(packet, version).decode(&mut theirs) {
        Ok(Some(packet)) => Ok(packet),
        other => Err(format!("{other:?} from {read}")),
    }
}

/// What mqtt-proto says of `bytes`: `Err` with its reason if it refuses.
fn mqtt_proto(bytes: &[u8], version: Version) -> Result<(), String> {
    let outcome = match version {
        Version::V311 => mqtt_proto::v3::Packet::decode(bytes)
            .map(|packet| packet.is_some())
            .map_err(|error| format!("{error:?}")),
        Version::V5 => mqtt_proto::v5::Packet::decode(bytes)
            .map(|packet| packet.is_some())
            .map_err(|error| format!("{error:?}")),
    };
    match outcome {
        Ok(true) => Ok(()),
        Ok(false) => Err("cut".to_owned()),
        Err(error) => Err(error),
    }
}

/// Why we accept what mqtt-proto refuses, where we do.
fn explained(packet: &Packet, refusal: &str) -> bool {
    match packet {
        // a malformed filter is the session's to refuse, alone and with a code
        Packet::Subscribe(_) | Packet::Unsubscribe(_) => refusal.contains("InvalidTopicFilter"),
        // a PUBLISH for overlapping subscriptions carries all their identifiers (3.3.2.3.8)
        Packet::Publish(publish) if !publish.subscription_ids.is_empty() => {
            refusal.contains("DuplicatedProperty(SubscriptionIdentifier)")
        }
        // table 2-6 gives 0x8C to DISCONNECT, only table 3-13 leaves it out
        Packet::Disconnect(disconnect) => {
            disconnect.reason == ReasonCode::BAD_AUTHENTICATION_METHOD
                && refusal == "InvalidReasonCode(Disconnect, 140)"
        }
        // the standard lets a receiver look at the payload, but it need not; ours is BSON
        Packet::Publish(publish) => {
            refusal.contains("InvalidPayloadFormat") && is_flagged_utf8(&publish.properties)
        }
        Packet::Connect(connect) => {
            refusal.contains("InvalidPayloadFormat")
                && connect
                    .will
                    .as_ref()
                    .is_some_and(|will| is_flagged_utf8(&will.properties))
        }
        _ => false,
    }
}

fn is_flagged_utf8(properties: &PublishProperties) -> bool {
    properties.payload_is_utf8 == Some(true)
}

/// One change to a packet's body.
#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Cut(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0..80_usize;
    let byte = prop_oneof![
        any::<u8>(),
        proptest::sample::select(&[
            0_u8, 1, 2, 3, 0x0B, 0x16, 0x1F, 0x26, 0x23, b'#', b'+', 0x80, 0xFF
        ]),
    ];
    prop_oneof![
        4 => (at.clone(), byte.clone()).prop_map(|(at, byte)| Change::Set(at, byte)),
        2 => (at.clone(), byte).prop_map(|(at, byte)| Change::Insert(at, byte)),
        1 => at.clone().prop_map(Change::Remove),
        1 => at.prop_map(Change::Cut),
    ]
}

fn apply(body: &mut Vec<u8>, change: &Change) {
    match *change {
        Change::Set(at, byte) if !body.is_empty() => {
            let at = at % body.len();
            body[at] = byte;
        }
        Change::Insert(at, byte) => body.insert(at % (body.len() + 1), byte),
        Change::Remove(at) if !body.is_empty() => drop(body.remove(at % body.len())),
        Change::Cut(at) if !body.is_empty() => body.truncate(at % body.len()),
        _ => {}
    }
}

/// Reads one packet wherever it could legally stand.
fn read(bytes: &[u8], version: Version) -> Result<Option<Packet>, Violation> {
    let limits = PacketLimits::default();
    let mut decoder = match bytes[0] >> 4 {
        1 => Decoder::new(limits),
        2 | 9 | 11 | 13 => Decoder::of_server(limits, version),
        _ => open(version),
    };
    decoder.decode(&mut BytesMut::from(bytes))
}

/// Fails where we accept what mqtt-proto refuses, without a reason.
fn check_strictness(bytes: &[u8], version: Version) -> Result<(), String> {
    let ours = read(bytes, version);
    if ours == Err(Violation::Library) {
        return Err("our checks let through what the library refuses".to_owned());
    }
    let Ok(Some(packet)) = ours else {
        return Ok(());
    };
    // a CONNECT names its version itself
    let version = if let Packet::Connect(connect) = &packet {
        connect.version
    } else {
        version
    };
    match mqtt_proto(bytes, version) {
        Err(refusal) if !explained(&packet, &refusal) => Err(format!("{refusal}: {packet:?}")),
        _ => Ok(()),
    }
}

fn body_of(bytes: &[u8]) -> &[u8] {
    let size = bytes[1..]
        .iter()
        .take_while(|byte| **byte & 0x80 != 0)
        .count()
        + 1;
    &bytes[1 + size..]
}

#[test]
fn mqtt_proto_refuses_nothing_good_in_the_table_without_a_reason() {
    for case in cases().into_iter().filter(|case| case.expected.is_ok()) {
        let refused = match mqtt_proto(&case.bytes, case.version) {
            Err(refusal) if !explained(&case.expected.clone().unwrap(), &refusal) => refusal,
            _ => continue,
        };
        panic!("{} in {:?}: {refused}", case.name, case.version);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3_000) })]

    #[test]
    fn rumqttd_reads_and_writes_the_same_packet(
        (version, packet) in version().prop_flat_map(|version| (Just(version), packet(version))),
    ) {
        if !rumqttd_is_wrong_about(&packet, version) {
            prop_assert_eq!(through_rumqttd(&packet, version), Ok(packet));
        }
    }

    #[test]
    fn we_are_as_strict_as_mqtt_proto_about_changed_packets(
        (version, packet) in version().prop_flat_map(|version| (Just(version), packet(version))),
        first in prop_oneof![9 => Just(None), 1 => any::<u8>().prop_map(Some)],
        changes in vec(change(), 1..4),
    ) {
        let mut bytes = BytesMut::new();
        encode(&packet, version, None, &mut bytes).unwrap();
        let mut body = body_of(&bytes).to_vec();
        for change in &changes {
            apply(&mut body, change);
        }
        let bytes = frame(first.unwrap_or(bytes[0]), &body);
        prop_assert_eq!(check_strictness(&bytes, version), Ok(()), "{:02x?}", bytes);
    }

    #[test]
    fn we_are_as_strict_as_mqtt_proto_about_changes_to_the_table(
        index in any::<proptest::sample::Index>(), changes in vec(change(), 0..3),
    ) {
        let mut cases = cases();
        cases.retain(|case| !case.name.starts_with("length_")); // they have no body
        let case = index.get(&cases);
        let mut body = body_of(&case.bytes).to_vec();
        for change in &changes {
            apply(&mut body, change);
        }
        let bytes = frame(case.bytes[0], &body);
        prop_assert_eq!(check_strictness(&bytes, case.version), Ok(()), "{:02x?}", bytes);
    }
}
