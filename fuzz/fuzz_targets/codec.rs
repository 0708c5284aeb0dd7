//! Bytes of a client or a server, in one piece and in two.
//!
//! The first byte says who sends and in which version, the second where the pieces meet and how
//! large packets to the peer may be.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tanit::mqtt::{
    codec::{Decoder, EncodeError, PacketLimits, Violation, encode},
    packet::{Packet, PublishProperties, Version},
};

const CONNECTS: [&[u8]; 2] = [
    b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0",
    b"\x10\x0d\0\x04MQTT\x05\x02\0\x3c\0\0\0",
];

fuzz_target!(|data: &[u8]| {
    let [mode, cut, stream @ ..] = data else {
        return;
    };
    let whole = read(decoder(*mode), &[stream]);
    let (head, tail) = stream.split_at(usize::from(*cut).min(stream.len()));
    assert_eq!(whole, read(decoder(*mode), &[head, tail]), "pieces matter");
    assert_ne!(whole.1, Some(Violation::Library));
    for (packet, version) in whole.0 {
        round_trip(*mode, packet, version, u32::from(*cut));
    }
});

fn decoder(mode: u8) -> Decoder {
    let limits = PacketLimits::default();
    let version = if mode & 1 == 0 {
        Version::V311
    } else {
        Version::V5
    };
    match mode >> 1 & 3 {
        0 => Decoder::new(limits),
        1 => Decoder::of_server(limits, version),
        _ => {
            let mut decoder = Decoder::new(limits);
            let connect = CONNECTS[usize::from(mode & 1)];
            assert!(matches!(
                decoder.decode(&mut BytesMut::from(connect)),
                Ok(Some(_))
            ));
            decoder
        }
    }
}

/// All packets of a stream that comes in `pieces`, and what ended it.
fn read(mut decoder: Decoder, pieces: &[&[u8]]) -> (Vec<(Packet, Version)>, Option<Violation>) {
    let mut packets = Vec::new();
    let mut buf = BytesMut::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buf) {
                Ok(None) => break,
                Ok(Some(packet)) => {
                    packets.push((packet, decoder.version().expect("known after a packet")));
                }
                Err(violation) => {
                    let _ = decoder.farewell(violation);
                    return (packets, Some(violation));
                }
            }
        }
    }
    (packets, None)
}

fn round_trip(mode: u8, mut packet: Packet, version: Version, max: u32) {
    let mut bytes = BytesMut::new();
    encode(&packet, version, None, &mut bytes).expect("what was read can be written");
    let whole = bytes.len();
    let mut again = match &packet {
        Packet::Connect(_) => Decoder::new(PacketLimits::default()),
        _ => decoder(if mode >> 1 & 3 == 1 { 2 } else { 4 } | u8::from(version == Version::V5)),
    };
    normalise(&mut packet);
    assert_eq!(again.decode(&mut bytes), Ok(Some(packet.clone())));
    assert!(bytes.is_empty());

    let mut out = BytesMut::from(&b"before"[..]);
    match encode(&packet, version, Some(max), &mut out) {
        Ok(()) => assert!(out.len() - 6 <= max as usize),
        Err(EncodeError::TooLarge { .. }) => assert!(whole > max as usize && &out[..] == b"before"),
        Err(error) => panic!("{error:?}"),
    }
}

/// What writing is documented to change.
fn normalise(packet: &mut Packet) {
    let expiry = |properties: &mut PublishProperties| {
        properties.message_expiry = properties.message_expiry.map(|seconds| seconds.max(1));
    };
    match packet {
        Packet::Publish(publish) => expiry(&mut publish.properties),
        Packet::Connect(connect) => {
            if let Some(will) = &mut connect.will {
                expiry(&mut will.properties);
            }
        }
        Packet::ConnAck(ack) => ack.session_present &= !ack.reason.is_failure(),
        _ => {}
    }
}
