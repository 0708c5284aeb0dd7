//! The bytes of both protocol versions, as devices meet them: what is malformed ends its own
//! connection alone, and what MQTT 5.0 promises is kept.

use std::time::Duration;

use serde_json::json;

use crate::harness::{
    device::{
        Properties, RawDevice, bson, connect, connect_v5, frame, puback, publish, publish_v5,
        subscribe, text,
    },
    product::{ALL_INTERFACES, Tanit, TestDevice},
};

const SESSION_EXPIRY: u8 = 0x11;
const ASSIGNED_CLIENT_ID: u8 = 0x12;
const SERVER_KEEP_ALIVE: u8 = 0x13;
const MESSAGE_EXPIRY: u8 = 0x02;
const RECEIVE_MAXIMUM: u8 = 0x21;
const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
const MAXIMUM_PACKET_SIZE: u8 = 0x27;
const SHARED_AVAILABLE: u8 = 0x2a;

async fn with_device(config: &str) -> (Tanit, TestDevice) {
    let tanit = Tanit::start_with(config).await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    (tanit, device)
}

/// An accepted CONNECT of 5.0: session present and the properties of its CONNACK.
async fn accepted_v5(connection: &mut RawDevice, packet: &[u8]) -> (bool, Properties) {
    connection.send(packet).await;
    let answer = connection.next().await.expect("a CONNACK");
    assert_eq!(
        (answer.first, answer.body[1]),
        (0x20, 0),
        "accepted: {answer:02x?}"
    );
    (answer.body[0] == 1, Properties::of(&answer.body[2..]))
}

/// A 5.0 connection with a clean start, that has declared everything.
async fn declared_v5(tanit: &Tanit, device: &TestDevice, properties: &[u8]) -> RawDevice {
    let mut connection = device.open(tanit).await;
    let (present, _) = accepted_v5(&mut connection, &connect_v5("any", true, 60, properties)).await;
    assert!(!present, "a clean start");
    let introspection = publish_v5(&device.base(), &[], ALL_INTERFACES.as_bytes(), 1, 60_000);
    connection.send(&introspection).await;
    assert_eq!(connection.expect(4).await.id(), 60_000, "its PUBACK");
    connection
}

async fn subscribe_v5(connection: &mut RawDevice, device: &TestDevice, below: &str) {
    let mut body = vec![0xea, 0x61, 0];
    text(&format!("{}/{below}", device.base()), &mut body);
    body.push(2);
    connection.send(&frame(0x82, &body)).await;
    assert_eq!(connection.expect(9).await.body, [0xea, 0x61, 0, 2]);
}

/// The connection was ended, in 5.0 after a DISCONNECT with one of these reasons.
async fn expect_ended(connection: &mut RawDevice, is_v5: bool, reasons: &[u8], what: &str) {
    let seen = connection.expect_closed().await;
    if !is_v5 {
        assert!(seen.is_empty(), "{what} was answered: {seen:02x?}");
        return;
    }
    assert_eq!(seen.len(), 1, "{what}: {seen:02x?}");
    assert_eq!(seen[0].first, 0xe0, "{what}: {seen:02x?}");
    assert!(reasons.contains(&seen[0].body[0]), "{what}: {seen:02x?}");
}

async fn connected(tanit: &Tanit, device: &TestDevice, is_v5: bool) -> RawDevice {
    let mut connection = device.open(tanit).await;
    if is_v5 {
        accepted_v5(&mut connection, &connect_v5("", true, 60, &[])).await;
    } else {
        connection.connect("", true, 60).await;
    }
    connection
}

#[tokio::test]
async fn fc_055_a_truncated_subscribe_closes_its_connection_only() {
    let (tanit, device) = with_device("").await;
    let (mut other, _) = tanit.device("acme").await.connect(&tanit).await;
    for is_v5 in [false, true] {
        // packet id, and in 5.0 the length of no properties
        let head: &[u8] = if is_v5 { &[0, 1, 0] } else { &[0, 1] };
        let rests: [&[u8]; 4] = [b"\0\x03a/b", b"\0", b"", b"\0\x09a/b\x01"];
        for first in [0x82, 0xa2] {
            for (number, rest) in rests.iter().enumerate() {
                if first == 0xa2 && number == 0 {
                    // without options it is whole
                    continue;
                }
                let mut connection = connected(&tanit, &device, is_v5).await;
                let packet = frame(first, &[head, rest].concat());
                connection.send(&packet).await;
                let what = format!("{packet:02x?} of {}", if is_v5 { "5.0" } else { "3.1.1" });
                expect_ended(&mut connection, is_v5, &[0x81, 0x82], &what).await;
            }
        }
    }
    other.expect_only_pong().await;
}

#[tokio::test]
async fn fc_057_a_length_of_five_bytes_or_more_than_it_needs_is_refused() {
    let (tanit, device) = with_device("").await;
    for is_v5 in [false, true] {
        let lengths: [(&[u8], &str); 4] = [
            (&[0xc0, 0x80, 0x80, 0x80, 0x80, 0x01], "five bytes"),
            (&[0xc0, 0xff, 0xff, 0xff, 0xff], "no end after four"),
            (&[0xc0, 0x80, 0x00], "overlong"),
            (&[0x30, 0x83, 0x80, 0x00, 0, 1, b'a'], "overlong in four"),
        ];
        for (packet, what) in lengths {
            let mut connection = connected(&tanit, &device, is_v5).await;
            connection.send(packet).await;
            expect_ended(&mut connection, is_v5, &[0x81], what).await;
            let mut connection = device.open(&tanit).await;
            let mut packet = packet.to_vec();
            packet[0] = 0x10;
            connection.send_anyway(&packet).await;
            assert!(connection.expect_closed().await.is_empty(), "first: {what}");
        }
    }
    let properties: [(&[u8], &str); 3] = [
        (&[0x80, 0x80, 0x80, 0x80, 0x01], "five bytes of properties"),
        (&[0xff, 0xff, 0xff, 0xff], "no end of the properties"),
        (&[0x80, 0x00], "overlong properties"),
    ];
    for (length, what) in properties {
        let mut connection = connected(&tanit, &device, true).await;
        let mut body = Vec::new();
        text(&format!("{}/t.Dev/int", device.base()), &mut body);
        body.extend(length);
        connection.send(&frame(0x30, &body)).await;
        expect_ended(&mut connection, true, &[0x81], what).await;
    }
}

/// Texts that are none: each ends a connection wherever it stands.
const BAD_TEXTS: [(&[u8], &str); 5] = [
    (b"a\0b", "NUL"),
    (b"\xff\xfe", "FF FE"),
    (b"\xed\xa0\x80", "lone surrogate"),
    (b"\xc0\xaf", "overlong slash"),
    (b"\xf8\x88\x80\x80\x80", "five bytes"),
];

fn raw_text(bytes: &[u8]) -> Vec<u8> {
    let mut field = u16::try_from(bytes.len())
        .expect("short")
        .to_be_bytes()
        .to_vec();
    field.extend(bytes);
    field
}

/// CONNECTs with `bad` in every text that they have.
fn bad_connects(is_v5: bool, bad: &[u8]) -> Vec<(Vec<u8>, &'static str)> {
    let good = raw_text(b"ok");
    let bad = raw_text(bad);
    let level = if is_v5 { 5 } else { 4 };
    let none: &[u8] = if is_v5 { &[0] } else { &[] };
    let make = |flags: u8, properties: &[u8], fields: &[&[u8]]| {
        let mut body = raw_text(b"MQTT");
        body.extend([level, flags, 0, 60]);
        body.extend(properties);
        body.extend(fields.concat());
        frame(0x10, &body)
    };
    let mut all = vec![
        (make(2, none, &[&bad]), "client id"),
        (make(6, none, &[&good, none, &bad, &good]), "will topic"),
        (make(0x82, none, &[&good, &bad]), "user name"),
    ];
    if is_v5 {
        for (name, value, what) in [
            (&bad, &good, "user property name"),
            (&good, &bad, "user property value"),
        ] {
            let pair = [&[0x26], &name[..], &value[..]].concat();
            let length = [u8::try_from(pair.len()).expect("short")];
            let properties = [&length[..], &pair].concat();
            all.push((make(2, &properties, &[&good]), what));
        }
    }
    all
}

#[tokio::test]
async fn fc_094_bad_utf_8_and_nul_end_the_connection_wherever_they_stand() {
    let (tanit, device) = with_device("").await;
    let own = device.base();
    for is_v5 in [false, true] {
        let none: &[u8] = if is_v5 { &[0] } else { &[] };
        for (bad, kind) in BAD_TEXTS {
            for (packet, place) in bad_connects(is_v5, bad) {
                let mut connection = device.open(&tanit).await;
                connection.send_anyway(&packet).await;
                let seen = connection.expect_closed().await;
                if is_v5 {
                    assert_eq!(seen.len(), 1, "{kind} as {place}: {seen:02x?}");
                    let (first, code) = (seen[0].first, seen[0].body[1]);
                    assert_eq!((first, code), (0x20, 0x81), "{kind} as {place}");
                } else {
                    assert!(seen.is_empty(), "{kind} as {place}: {seen:02x?}");
                }
            }
            let topic = raw_text(&[own.as_bytes(), b"/t.Dev/", bad].concat());
            let mut packets = vec![
                (frame(0x32, &[&topic, &[0, 9][..], none].concat()), "topic"),
                (
                    frame(0x82, &[&[0, 9], none, &topic, &[1]].concat()),
                    "filter",
                ),
                (
                    frame(0xa2, &[&[0, 9], none, &topic].concat()),
                    "filter given up",
                ),
            ];
            if is_v5 {
                let topic = raw_text(format!("{own}/t.Dev/int").as_bytes());
                let pair = [&[0x26][..], &raw_text(b"ok"), &raw_text(bad)].concat();
                let length = [u8::try_from(pair.len()).expect("short")];
                let body = [&topic[..], &[0, 9], &length[..], &pair, &bson(1)].concat();
                packets.push((frame(0x32, &body), "user property"));
            }
            for (packet, place) in packets {
                let mut connection = connected(&tanit, &device, is_v5).await;
                connection.send(&packet).await;
                let what = format!("{kind} as {place}");
                expect_ended(&mut connection, is_v5, &[0x81], &what).await;
            }
        }
    }
    let rows = tanit.data(&device, "t.Dev", "/int").await;
    assert!(rows.is_empty(), "nothing was stored: {rows:?}");
    assert!(
        tanit.errors(&device).await.is_empty(),
        "no message, no error"
    );
}

#[tokio::test]
async fn a_5_0_connack_says_what_was_agreed() {
    let config = "[mqtt]\nsession_expiry = \"1h\"\nkeep_alive_max = \"30s\"\nqos2_ids_max = 7\n\
                  packet_bytes_max = \"100KiB\"\nfirst_packet_bytes_max = \"80KiB\"\n";
    let (tanit, device) = with_device(config).await;
    let mut connection = device.open(&tanit).await;
    let week = 604_800_u32.to_be_bytes();
    let asked = [&[SESSION_EXPIRY][..], &week].concat();
    let (present, told) = accepted_v5(&mut connection, &connect_v5("", false, 600, &asked)).await;
    assert!(!present);
    assert_eq!(told.number(SESSION_EXPIRY), Some(3600), "capped");
    assert_eq!(told.number(SERVER_KEEP_ALIVE), Some(30));
    assert_eq!(told.number(RECEIVE_MAXIMUM), Some(7));
    assert_eq!(told.number(MAXIMUM_PACKET_SIZE), Some(100 << 10));
    assert_eq!(told.number(SHARED_AVAILABLE), Some(0));
    assert_eq!(told.text(ASSIGNED_CLIENT_ID), Some(device.base()));
    connection.disconnect().await;

    // what is within the limits is granted without a word
    let mut connection = device.open(&tanit).await;
    let asked = [SESSION_EXPIRY, 0, 0, 0, 60];
    let (present, told) =
        accepted_v5(&mut connection, &connect_v5("mine", false, 20, &asked)).await;
    assert!(present, "the hour is not over");
    assert_eq!(told.number(SESSION_EXPIRY), None);
    assert_eq!(told.number(SERVER_KEEP_ALIVE), None);
    assert_eq!(told.text(ASSIGNED_CLIENT_ID), None);
    connection.expect_only_pong().await;
}

#[tokio::test]
async fn a_refused_publish_gets_its_5_0_reason_and_then_the_clean_kick() {
    let (tanit, device) = with_device("").await;
    let cases = [
        ("t.Nowhere/x", bson(1), 0x87, "interface_loading_failed"),
        (
            "t.SrvCmd/cmd",
            bson("x"),
            0x87,
            "write_on_server_owned_interface",
        ),
        ("t.Dev/nothing", bson(1), 0x90, "mapping_not_found"),
        ("t.Dev/int", bson("text"), 0x99, "unexpected_value_type"),
        (
            "t.Dev/int",
            b"rubbish".to_vec(),
            0x99,
            "undecodable_bson_payload",
        ),
    ];
    for (qos, answer) in [(1, 4), (2, 5)] {
        for (below, payload, code, error) in &cases {
            let mut connection = declared_v5(&tanit, &device, &[]).await;
            let topic = connection.topic(below);
            let packet = publish_v5(&topic, &[], payload, qos, 9);
            connection.send(&packet).await;
            let seen = connection.expect_closed().await;
            assert_eq!(seen.len(), 2, "{below}: {seen:02x?}");
            assert_eq!(
                (seen[0].kind(), seen[0].id(), seen[0].body[2]),
                (answer, 9, *code),
                "{below}: {seen:02x?}"
            );
            assert_eq!(seen[1].first, 0xe0, "a DISCONNECT: {seen:02x?}");
            assert!(seen[1].body[0] >= 0x80, "with a reason: {seen:02x?}");
            let errors = tanit.errors(&device).await;
            assert_eq!(errors.last().map(String::as_str), Some(*error), "{below}");
        }
    }
    // outside the own tree nothing is acknowledged
    let mut connection = declared_v5(&tanit, &device, &[]).await;
    connection
        .send(&publish_v5("globex/D9/x", &[], b"x", 1, 9))
        .await;
    expect_ended(&mut connection, true, &[0x87], "a foreign topic").await;
}

#[tokio::test]
async fn a_topic_alias_stands_for_its_topic_on_its_connection_alone() {
    let (tanit, device) = with_device("").await;
    let mut connection = device.open(&tanit).await;
    let (_, told) = accepted_v5(&mut connection, &connect_v5("", true, 60, &[])).await;
    let max = told.number(TOPIC_ALIAS_MAXIMUM).expect("aliases are taken");
    let max = u8::try_from(max).expect("few");
    let introspection = publish_v5(&device.base(), &[], ALL_INTERFACES.as_bytes(), 1, 1);
    connection.send(&introspection).await;
    assert_eq!(connection.expect(4).await.body, [0, 1]);
    let topic = connection.topic("t.Dev/int");
    let alias = [0x23, 0, max];
    let moved = connection.topic("t.Dev/long");
    for (id, (topic, value)) in [(topic.as_str(), 1), ("", 2), ("", 3), (&moved, 4), ("", 5)]
        .into_iter()
        .enumerate()
    {
        let id = u16::try_from(id + 2).expect("few");
        connection
            .send(&publish_v5(topic, &alias, &bson(value), 1, id))
            .await;
        assert_eq!(connection.expect(4).await.body, id.to_be_bytes());
    }
    let values = |rows: Vec<serde_json::Value>| -> Vec<i64> {
        let mut values: Vec<i64> = rows
            .iter()
            .map(|row| {
                let value = &row["value"];
                let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
                number.unwrap_or_else(|| panic!("a number: {row}"))
            })
            .collect();
        values.sort_unstable();
        values
    };
    assert_eq!(
        values(tanit.data(&device, "t.Dev", "/int").await),
        [1, 2, 3]
    );
    assert_eq!(values(tanit.data(&device, "t.Dev", "/long").await), [4, 5]);

    for (topic, alias, reasons, what) in [
        (
            "",
            [0x23, 0, 1],
            &[0x82, 0x94],
            "an alias that was never set",
        ),
        (
            &topic,
            [0x23, 0, max + 1],
            &[0x94, 0x94],
            "one beyond the maximum",
        ),
        (&topic, [0x23, 0, 0], &[0x94, 0x94], "alias 0"),
    ] {
        let mut connection = declared_v5(&tanit, &device, &[]).await;
        connection
            .send(&publish_v5(topic, &alias, &bson(9), 1, 9))
            .await;
        expect_ended(&mut connection, true, reasons, what).await;
    }
    assert_eq!(tanit.data(&device, "t.Dev", "/int").await.len(), 3);
}

#[tokio::test]
async fn a_5_0_session_lives_as_long_as_was_agreed_and_no_longer() {
    let (tanit, device) = with_device("").await;
    let hour = [SESSION_EXPIRY, 0, 0, 0x0e, 0x10];
    let second = [SESSION_EXPIRY, 0, 0, 0, 1];
    let again = |expected: bool, properties: [u8; 5], what: &'static str| {
        let (tanit, device) = (&tanit, &device);
        async move {
            let mut connection = device.open(tanit).await;
            let packet = connect_v5("", false, 60, &properties);
            let (present, _) = accepted_v5(&mut connection, &packet).await;
            assert_eq!(present, expected, "{what}");
            connection
        }
    };
    let connection = again(false, hour, "the first").await;
    connection.disconnect().await;
    let mut connection = again(true, hour, "within the hour").await;
    // DISCONNECT with a new interval: none
    connection
        .send(&[0xe0, 7, 0, 5, SESSION_EXPIRY, 0, 0, 0, 0])
        .await;
    connection.expect_closed().await;
    let connection = again(false, second, "given up in DISCONNECT").await;
    connection.cut();
    tanit
        .until_device(&device, "disconnected", |device| {
            device["connected"] == false
        })
        .await;
    // the time itself is what is tested
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut connection = again(false, hour, "after its second").await;
    connection.expect_only_pong().await;
    // absent is none
    connection.disconnect().await;
    let mut connection = device.open(&tanit).await;
    let (present, _) = accepted_v5(&mut connection, &connect_v5("", false, 60, &[])).await;
    assert!(present);
    connection.disconnect().await;
    again(false, hour, "after a connection without an interval").await;
}

async fn command(tanit: &Tanit, device: &TestDevice, text: &str) {
    let (realm, id) = (device.realm.as_str(), device.id.as_str());
    let verb = ["publish", realm, id, "t.SrvCmd", "/cmd", text];
    tanit.cli(&verb).await;
}

/// A PUBLISH of 5.0 with QoS 1: packet id, properties and payload.
async fn received_v5(connection: &mut RawDevice) -> (u16, Properties, Vec<u8>) {
    let packet = connection.expect(3).await;
    assert_eq!(packet.first & 6, 2, "QoS 1: {packet:02x?}");
    let at = 2 + usize::from(u16::from_be_bytes([packet.body[0], packet.body[1]]));
    let id = u16::from_be_bytes([packet.body[at], packet.body[at + 1]]);
    let properties = Properties::of(&packet.body[at + 2..]);
    let payload = packet.body[at + 2 + properties.bytes..].to_vec();
    (id, properties, payload)
}

#[tokio::test]
async fn the_expiry_of_a_queued_value_is_delivered_as_what_is_left_of_it() {
    let tanit = Tanit::start().await;
    tanit.realm("acme").await;
    let document = json!({"interface_name": "t.Brief", "version_major": 1, "version_minor": 0,
        "type": "datastream", "ownership": "server", "mappings": [
            {"endpoint": "/long", "type": "string", "reliability": "guaranteed",
             "retention": "stored", "expiry": 3600},
            {"endpoint": "/short", "type": "string", "reliability": "guaranteed",
             "retention": "stored", "expiry": 1},
            {"endpoint": "/ever", "type": "string", "reliability": "guaranteed",
             "retention": "stored"}]});
    tanit.install("acme", &document).await;
    let device = tanit.device("acme").await;
    let mut connection = device.open(&tanit).await;
    let hour = [SESSION_EXPIRY, 0, 0, 0x0e, 0x10];
    accepted_v5(&mut connection, &connect_v5("", true, 60, &hour)).await;
    connection
        .send(&publish_v5(&device.base(), &[], b"t.Brief:1:0", 1, 1))
        .await;
    assert_eq!(connection.expect(4).await.id(), 1);
    subscribe_v5(&mut connection, &device, "t.Brief/#").await;
    connection.disconnect().await;
    for path in ["/short", "/long", "/ever"] {
        tanit
            .cli(&["publish", "acme", &device.id, "t.Brief", path, path])
            .await;
    }
    // the time itself is what is tested
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let mut connection = device.open(&tanit).await;
    let (present, _) = accepted_v5(&mut connection, &connect_v5("", false, 60, &hour)).await;
    assert!(present);
    let (_, told, payload) = received_v5(&mut connection).await;
    assert_eq!(payload, bson("/long"), "the short one is over");
    let left = told.number(MESSAGE_EXPIRY).expect("an expiry");
    assert!((3500..=3598).contains(&left), "{left} s are left");
    let (_, told, payload) = received_v5(&mut connection).await;
    assert_eq!(payload, bson("/ever"));
    assert_eq!(told.number(MESSAGE_EXPIRY), None);
    connection.expect_only_pong().await;
}

#[tokio::test]
async fn receive_maximum_is_kept_and_demanded() {
    let (tanit, device) = with_device("[mqtt]\nqos2_ids_max = 3\n").await;
    let mut connection = declared_v5(&tanit, &device, &[RECEIVE_MAXIMUM, 0, 2]).await;
    subscribe_v5(&mut connection, &device, "t.SrvCmd/#").await;
    for text in ["1", "2", "3", "4"] {
        command(&tanit, &device, text).await;
    }
    let (first, _, payload) = received_v5(&mut connection).await;
    assert_eq!(payload, bson("1"));
    let (second, _, payload) = received_v5(&mut connection).await;
    assert_eq!(payload, bson("2"));
    connection.expect_only_pong().await;
    connection.send(&puback(second)).await;
    let (third, _, payload) = received_v5(&mut connection).await;
    assert_eq!(payload, bson("3"));
    connection.expect_only_pong().await;
    connection.send(&puback(first)).await;
    let (fourth, _, payload) = received_v5(&mut connection).await;
    assert_eq!(payload, bson("4"));
    connection.send(&puback(third)).await;
    connection.send(&puback(fourth)).await;
    connection.expect_only_pong().await;

    let topic = connection.topic("t.Dev/int");
    for id in 1..=3 {
        let packet = publish_v5(&topic, &[], &bson(i32::from(id)), 2, id);
        connection.send(&packet).await;
        assert_eq!(connection.expect(5).await.body, id.to_be_bytes());
    }
    connection
        .send(&publish_v5(&topic, &[], &bson(4), 2, 4))
        .await;
    expect_ended(&mut connection, true, &[0x93], "a fourth without PUBREL").await;
    assert_eq!(tanit.data(&device, "t.Dev", "/int").await.len(), 3);
}

#[tokio::test]
async fn maximum_packet_size_is_kept_and_demanded() {
    let (tanit, device) =
        with_device("[mqtt]\npacket_bytes_max = \"4KiB\"\nfirst_packet_bytes_max = \"2KiB\"\n")
            .await;
    let mut connection = declared_v5(&tanit, &device, &[MAXIMUM_PACKET_SIZE, 0, 0, 0, 200]).await;
    subscribe_v5(&mut connection, &device, "t.SrvCmd/#").await;
    command(&tanit, &device, &"x".repeat(300)).await;
    command(&tanit, &device, "small").await;
    let (id, _, payload) = received_v5(&mut connection).await;
    assert_eq!(payload, bson("small"), "the large one is left out");
    connection.send(&puback(id)).await;
    connection.expect_only_pong().await;
    let topic = connection.topic("t.Dev/str");
    connection
        .send_anyway(&publish_v5(&topic, &[], &vec![b'x'; 4096], 1, 9))
        .await;
    expect_ended(&mut connection, true, &[0x95], "a packet too large").await;

    let mut connection = device.open(&tanit).await;
    let first = connect_v5(&"x".repeat(2048), true, 60, &[]);
    connection.send_anyway(&first).await;
    let seen = connection.expect_closed().await;
    assert!(
        seen.is_empty() || (seen[0].first, seen[0].body[1]) == (0x20, 0x95),
        "{seen:02x?}"
    );
}

#[tokio::test]
async fn enhanced_authentication_is_refused_in_its_words() {
    let (tanit, device) = with_device("").await;
    let mut connection = device.open(&tanit).await;
    let method = [&[0x15][..], &raw_text(b"SCRAM-SHA-256")].concat();
    let code = connection
        .connect_refused(&connect_v5("", true, 60, &method))
        .await;
    assert_eq!(code, 0x8c, "bad authentication method");
    let mut connection = connected(&tanit, &device, true).await;
    let properties = [&[u8::try_from(method.len()).expect("short")][..], &method].concat();
    connection
        .send(&frame(0xf0, &[&[0x18][..], &properties].concat()))
        .await;
    expect_ended(&mut connection, true, &[0x82], "AUTH").await;
    // 3.1.1 has no such packet
    let mut connection = connected(&tanit, &device, false).await;
    connection.send(&[0xf0, 0]).await;
    expect_ended(&mut connection, false, &[], "AUTH").await;
}

#[tokio::test]
async fn a_5_0_connection_that_is_taken_over_is_told_so() {
    let (tanit, device) = with_device("").await;
    let mut older = connected(&tanit, &device, true).await;
    let mut newer = device.open(&tanit).await;
    newer.send(&connect("", true, 60)).await;
    assert_eq!(newer.expect(2).await.body, [0, 0]);
    expect_ended(&mut older, true, &[0x8e], "the older").await;
    newer.expect_only_pong().await;
    // and across versions the other way
    let mut newest = connected(&tanit, &device, true).await;
    expect_ended(&mut newer, false, &[], "the 3.1.1 one").await;
    newest.expect_only_pong().await;
}

#[tokio::test]
async fn fc_059_very_deep_topics_are_refused_and_cost_little() {
    let (tanit, device) = with_device("").await;
    let own = device.base();
    let deep = format!("{own}/{}", "/".repeat(65_000 - own.len()));
    let (mut other, _) = tanit.device("acme").await.connect(&tanit).await;
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    connection.send(&subscribe(9, &[(&deep, 1)])).await;
    assert_eq!(connection.expect(9).await.body, [0, 9, 0x80]);

    // 10,000 different deep filters, and away with them
    let filters: Vec<String> = (0..10_000)
        .map(|number| format!("{own}/t.Dev/{}{number}", "a/".repeat(100)))
        .collect();
    for chunk in filters.chunks(1000) {
        let asked: Vec<(&str, u8)> = chunk.iter().map(|filter| (filter.as_str(), 1)).collect();
        connection.send(&subscribe(10, &asked)).await;
        let answer = connection.expect(9).await;
        assert!(answer.body[2..].iter().all(|code| *code == 0x80));
        assert_eq!(answer.body.len(), 2 + chunk.len());
        let mut body = vec![0, 11];
        for filter in chunk {
            text(filter, &mut body);
        }
        connection.send(&frame(0xa2, &body)).await;
        assert_eq!(connection.expect(11).await.body, [0, 11]);
    }
    other.expect_only_pong().await;

    connection.send(&publish(&deep, &bson(1), 1, 12)).await;
    let seen = connection.expect_closed().await;
    assert_eq!(
        seen.last().map(|packet| (packet.kind(), packet.id())),
        Some((4, 12)),
        "acknowledged, then kicked: {seen:02x?}"
    );
    assert_eq!(tanit.errors(&device).await, ["invalid_path"]);
    other.expect_only_pong().await;
}
