use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::clock::Timestamp;

/// A BSON document of these elements, each `(tag, key, body)`.
fn document(elements: &[(u8, &str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (tag, key, value) in elements {
        body.push(*tag);
        body.extend_from_slice(key.as_bytes());
        body.push(0);
        body.extend_from_slice(value);
    }
    let length = i32::try_from(body.len() + 5).expect("small");
    [&length.to_le_bytes()[..], &body, &[0]].concat()
}

fn v(tag: u8, body: &[u8]) -> Vec<u8> {
    document(&[(tag, "v", body)])
}

fn text(text: &str) -> Vec<u8> {
    let length = i32::try_from(text.len() + 1).expect("small");
    [&length.to_le_bytes()[..], text.as_bytes(), &[0]].concat()
}

fn binary(subtype: u8, bytes: &[u8]) -> Vec<u8> {
    let length = i32::try_from(bytes.len()).expect("small");
    [&length.to_le_bytes()[..], &[subtype], bytes].concat()
}

fn array(tag: u8, elements: &[Vec<u8>]) -> Vec<u8> {
    let keys: Vec<String> = (0..elements.len()).map(|index| index.to_string()).collect();
    let elements: Vec<(u8, &str, &[u8])> = elements
        .iter()
        .zip(&keys)
        .map(|(body, key)| (tag, key.as_str(), &body[..]))
        .collect();
    document(&elements)
}

fn hex(digits: &str) -> Vec<u8> {
    digits
        .split(' ')
        .map(|byte| u8::from_str_radix(byte, 16).expect("hex"))
        .collect()
}

fn read(payload: &[u8], value_type: ValueType) -> Result<Content, &'static str> {
    let envelope = decode(payload).map_err(|error| error.name())?;
    envelope
        .individual(value_type)
        .map_err(|error| error.name())
}

fn value(payload: &[u8], value_type: ValueType) -> Value {
    match read(payload, value_type) {
        Ok(Content::Value(value)) => value,
        other => panic!("{payload:02x?} as {value_type} gave {other:?}"),
    }
}

const UNDECODABLE: Result<Content, &str> = Err("undecodable_bson_payload");
const WRONG_TYPE: Result<Content, &str> = Err("unexpected_value_type");
const TOO_LARGE: Result<Content, &str> = Err("value_size_exceeded");

/// The members of an object, for tests.
struct Members(
    &'static [(&'static str, ValueType)],
    &'static [&'static str],
);

impl ObjectTypes for Members {
    fn member(&self, key: &str) -> Option<ValueType> {
        self.0
            .iter()
            .find(|(known, _)| *known == key)
            .map(|(_, value_type)| *value_type)
    }

    fn required(&self) -> impl Iterator<Item = &str> {
        self.1.iter().copied()
    }
}

const WEATHER: Members = Members(
    &[("temp", ValueType::Double), ("hum", ValueType::Double)],
    &[],
);
/// The same, `hum` required.
const STRICT: Members = Members(
    &[("temp", ValueType::Double), ("hum", ValueType::Double)],
    &["hum"],
);

#[test]
fn the_examples_of_the_protocol_are_read_and_written() {
    let examples = [
        (
            "10 00 00 00 01 76 00 00 00 00 00 00 80 35 40 00",
            Value::Double(21.5),
        ),
        ("0c 00 00 00 10 76 00 fc ff ff ff 00", Value::Integer(-4)),
        (
            "10 00 00 00 12 76 00 ee 52 9b 9a 0a 00 00 00 00",
            Value::LongInteger(45_543_543_534),
        ),
        (
            "1b 00 00 00 04 76 00 13 00 00 00 10 30 00 01 00 00 00 10 31 00 02 00 00 00 00 00",
            Value::IntegerArray(vec![1, 2]),
        ),
        (
            "0f 00 00 00 02 76 00 03 00 00 00 6f 6b 00 00",
            Value::String("ok".into()),
        ),
        (
            "10 00 00 00 05 76 00 03 00 00 00 00 de ad be 00",
            Value::BinaryBlob(Bytes::from_static(&[0xde, 0xad, 0xbe])),
        ),
    ];
    for (digits, expected) in examples {
        let payload = hex(digits);
        let value_type = expected.value_type().expect("individual");
        assert_eq!(value(&payload, value_type), expected);
        assert_eq!(encode(&expected, None), payload);
    }
}

#[test]
fn an_object_with_its_time_is_read() {
    let payload = hex(
        "2f 00 00 00 03 76 00 1c 00 00 00 01 74 65 6d 70 00 00 00 00 00 00 80 35 40 10 68 75 6d \
         00 28 00 00 00 00 09 74 00 7b 68 e5 cf 8b 01 00 00 00",
    );
    let envelope = decode(&payload).expect("sound");
    let at = Timestamp::from_millis(1_700_000_000_123);
    assert_eq!(envelope.timestamp(), Ok(at));
    let expected = Value::Object(vec![
        ("hum".into(), Some(Value::Double(40.0))),
        ("temp".into(), Some(Value::Double(21.5))),
    ]);
    assert_eq!(
        envelope.object(&WEATHER),
        Ok(Content::Value(expected.clone()))
    );
    let written = encode(&expected, at);
    assert_eq!(
        decode(&written).expect("sound").object(&WEATHER),
        Ok(Content::Value(expected))
    );
}

#[test]
fn fc_099_wrong_lengths_are_undecodable() {
    let sound = v(0x10, &5_i32.to_le_bytes());
    let real = i32::try_from(sound.len()).expect("small");
    for length in [0, 4, -1, i32::MAX, i32::MIN, real - 1, real + 1] {
        let mut payload = sound.clone();
        payload[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(read(&payload, ValueType::Integer), UNDECODABLE, "{length}");
    }
    let mut unterminated = sound.clone();
    *unterminated.last_mut().expect("bytes") = 1;
    assert_eq!(read(&unterminated, ValueType::Integer), UNDECODABLE);
    assert_eq!(
        read(&[&sound[..], &[0]].concat(), ValueType::Integer),
        UNDECODABLE
    );
    for cut in 1..sound.len() {
        assert_eq!(read(&sound[..cut], ValueType::Integer), UNDECODABLE);
    }
    for lie in [0, 1, 2, 4, -1, 3, 5, 100, 0x7fff_ffff_i32] {
        for (tag, mut body) in [
            (0x02, text("abc")),
            (0x05, binary(0, b"abc")),
            (0x04, array(0x10, &[vec![1, 0, 0, 0]])),
            (0x03, document(&[(0x08, "a", &[1])])),
        ] {
            let truth = i32::from_le_bytes([body[0], body[1], body[2], body[3]]);
            if lie != truth {
                body[..4].copy_from_slice(&lie.to_le_bytes());
                assert_eq!(
                    read(&v(tag, &body), ValueType::String),
                    UNDECODABLE,
                    "{tag} {lie}"
                );
            }
        }
    }
    // short documents that declare a huge inside
    for tag in [0x02, 0x03, 0x04, 0x05] {
        for cut in 0..5 {
            let body = &[0xff, 0xff, 0xff, 0x7f, 0][..cut];
            assert_eq!(read(&v(tag, body), ValueType::String), UNDECODABLE);
        }
    }
}

/// `levels` documents or arrays inside each other.
fn nested(tag: u8, levels: usize) -> Vec<u8> {
    let key = if tag == 0x04 { "0" } else { "a" };
    let head = 4 + 1 + key.len() + 1;
    let mut bytes = Vec::new();
    for level in (1..=levels).rev() {
        let length = i32::try_from(5 + level.saturating_sub(1) * (head + 1)).expect("fits");
        bytes.extend_from_slice(&length.to_le_bytes());
        if level > 1 {
            bytes.push(tag);
            bytes.extend_from_slice(key.as_bytes());
            bytes.push(0);
        }
    }
    bytes.resize(bytes.len() + levels, 0);
    bytes
}

#[test]
fn fc_100_deep_nesting_is_refused_whatever_key_it_stands_under() {
    for levels in [3, 200, 10_000] {
        for tag in [0x03, 0x04] {
            let deep = nested(tag, levels);
            for key in ["v", "m", "other"] {
                let payload = document(&[(0x08, "x", &[1]), (tag, key, &deep)]);
                assert_eq!(
                    decode(&payload).map(|_| ()),
                    Err(Undecodable::TooDeep),
                    "{levels}"
                );
            }
        }
    }
    // as deep as an array in an object is sound, and of the wrong type here
    assert_eq!(
        read(&v(0x03, &nested(0x03, 2)), ValueType::Integer),
        WRONG_TYPE
    );
    assert_eq!(
        read(&v(0x04, &nested(0x04, 2)), ValueType::IntegerArray),
        WRONG_TYPE
    );
}

#[test]
fn fc_101_numbers_are_accepted_when_they_fit_the_declared_type() {
    let int32 = |number: i32| v(0x10, &number.to_le_bytes());
    let int64 = |number: i64| v(0x12, &number.to_le_bytes());
    let double = |number: f64| v(0x01, &number.to_le_bytes());
    let (integer, long, float) = (
        ValueType::Integer,
        ValueType::LongInteger,
        ValueType::Double,
    );
    let max = i64::from(i32::MAX);
    assert_eq!(value(&int32(i32::MAX), integer), Value::Integer(i32::MAX));
    assert_eq!(value(&int32(i32::MIN), integer), Value::Integer(i32::MIN));
    assert_eq!(value(&int64(max), integer), Value::Integer(i32::MAX));
    assert_eq!(read(&int64(max + 1), integer), WRONG_TYPE);
    assert_eq!(value(&int32(-7), long), Value::LongInteger(-7));
    assert_eq!(value(&int64(i64::MAX), long), Value::LongInteger(i64::MAX));
    assert_eq!(value(&int64(i64::MIN), long), Value::LongInteger(i64::MIN));
    assert_eq!(value(&int32(3), float), Value::Double(3.0));
    assert_eq!(value(&int64(3), float), Value::Double(3.0));
    for number in [1.0, 1.5, 1e300] {
        assert_eq!(value(&double(number), float), Value::Double(number));
        assert_eq!(read(&double(number), integer), WRONG_TYPE);
        assert_eq!(read(&double(number), long), WRONG_TYPE);
    }
    for value_type in [integer, long, float] {
        assert_eq!(read(&v(0x08, &[1]), value_type), WRONG_TYPE);
        assert_eq!(read(&v(0x02, &text("1")), value_type), WRONG_TYPE);
    }
}

#[test]
fn fc_101_the_api_gives_the_verdict_of_mqtt() {
    let cases: [(Json, Vec<u8>); 9] = [
        (json!(1), v(0x10, &1_i32.to_le_bytes())),
        (
            json!(2_147_483_647),
            v(0x12, &2_147_483_647_i64.to_le_bytes()),
        ),
        (
            json!(2_147_483_648_i64),
            v(0x12, &2_147_483_648_i64.to_le_bytes()),
        ),
        (json!(i64::MAX), v(0x12, &i64::MAX.to_le_bytes())),
        (json!(1.0), v(0x01, &1.0_f64.to_le_bytes())),
        (json!(1e300), v(0x01, &1e300_f64.to_le_bytes())),
        (json!(true), v(0x08, &[1])),
        (json!("x"), v(0x02, &text("x"))),
        (
            json!([1, 2]),
            v(0x04, &array(0x10, &[vec![1, 0, 0, 0], vec![2, 0, 0, 0]])),
        ),
    ];
    for (json, payload) in cases {
        for value_type in ValueType::ALL {
            let api = Value::from_json(value_type, &json).map_err(|error| error.name());
            let mqtt = read(&payload, value_type);
            assert_eq!(api.map(Content::Value), mqtt, "{json} as {value_type}");
        }
    }
}

#[test]
fn fc_103_nan_and_infinities_are_refused_and_other_doubles_kept_bit_by_bit() {
    let bits = |bits: u64| v(0x01, &bits.to_le_bytes());
    assert_eq!(
        read(&bits(0x7ff8_0000_0000_0000), ValueType::Double),
        WRONG_TYPE
    );
    assert_eq!(
        read(&bits(f64::INFINITY.to_bits()), ValueType::Double),
        WRONG_TYPE
    );
    assert_eq!(
        read(&bits(f64::NEG_INFINITY.to_bits()), ValueType::Double),
        WRONG_TYPE
    );
    for odd in [0xfff8_0000_0000_0000, 0x7ff0_0000_0000_0001, u64::MAX] {
        assert_eq!(read(&bits(odd), ValueType::Double), UNDECODABLE);
    }
    for kept in [
        -0.0,
        0.0,
        5e-324,
        -5e-324,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
    ] {
        let Value::Double(read) = value(&bits(kept.to_bits()), ValueType::Double) else {
            panic!("no double");
        };
        assert_eq!(read.to_bits(), kept.to_bits());
        let stored = Value::from_storage(&Value::Double(read).to_storage()).expect("stored");
        let Value::Double(stored) = stored else {
            panic!("no double")
        };
        assert_eq!(stored.to_bits(), kept.to_bits());
        let shown = Value::Double(stored).to_json(Style::default()).to_string();
        let parsed: Json = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(
            parsed.as_f64().map(f64::to_bits),
            Some(kept.to_bits()),
            "{shown}"
        );
    }
}

#[test]
fn fc_105_zero_false_and_empty_are_values() {
    let zero = v(0x10, &[0; 4]);
    assert_eq!(value(&zero, ValueType::Integer), Value::Integer(0));
    assert_eq!(
        value(&v(0x02, &text("")), ValueType::String),
        Value::String(String::new())
    );
    assert_eq!(
        value(&v(0x08, &[0]), ValueType::Boolean),
        Value::Boolean(false)
    );
    let empty = v(0x04, &document(&[]));
    assert_eq!(
        value(&empty, ValueType::StringArray),
        Value::StringArray(Vec::new())
    );
    let blob = v(0x05, &binary(0, b""));
    assert_eq!(
        value(&blob, ValueType::BinaryBlob),
        Value::BinaryBlob(Bytes::new())
    );
    for value_type in ValueType::ALL {
        assert_eq!(read(b"", value_type), Ok(Content::Unset));
        assert_eq!(read(&v(0x0a, b""), value_type), Ok(Content::Unset));
    }
}

#[test]
fn an_empty_blob_is_an_unset_where_no_blob_is_declared_and_nothing_comes_with_it() {
    let blob = binary(0, b"");
    assert_eq!(read(&v(0x05, &blob), ValueType::String), Ok(Content::Unset));
    let timed = document(&[(0x05, "v", &blob), (0x09, "t", &[0; 8])]);
    assert_eq!(read(&timed, ValueType::String), WRONG_TYPE);
    let described = document(&[(0x05, "v", &blob), (0x03, "m", &document(&[]))]);
    assert_eq!(read(&described, ValueType::String), WRONG_TYPE);
}

#[test]
fn fc_110_arrays_of_every_type_make_the_round_trip() {
    for count in [0, 1, 3, 1024] {
        let all = arrays(count);
        assert_eq!(all.len(), 7);
        for original in all {
            let value_type = original.value_type().expect("individual");
            assert_eq!(value(&encode(&original, None), value_type), original);
            let json = original.to_json(Style::default());
            assert_eq!(Value::from_json(value_type, &json), Ok(original.clone()));
            assert_eq!(Value::from_storage(&original.to_storage()), Ok(original));
        }
    }
    for original in arrays(1025) {
        let value_type = original.value_type().expect("individual");
        assert_eq!(read(&encode(&original, None), value_type), TOO_LARGE);
        let json = original.to_json(Style::default());
        let refused = Value::from_json(value_type, &json).map_err(|error| error.name());
        assert_eq!(refused, Err("value_size_exceeded"));
    }
}

/// An array of each type with that many elements.
fn arrays(count: i32) -> Vec<Value> {
    let time = |n: i32| Timestamp::from_millis(i64::from(n) * 1_000_000_007).expect("in range");
    vec![
        Value::DoubleArray((0..count).map(|n| f64::from(n) / 3.0).collect()),
        Value::IntegerArray((0..count).map(|n| n * -1_000_003).collect()),
        Value::BooleanArray((0..count).map(|n| n % 3 == 0).collect()),
        Value::LongIntegerArray(
            (0..count)
                .map(|n| i64::from(n) * i64::from(i32::MAX))
                .collect(),
        ),
        Value::StringArray((0..count).map(|n| format!("é{n}\0")).collect()),
        Value::BinaryBlobArray(
            (0..count)
                .map(|n| Bytes::from(n.to_le_bytes().to_vec()))
                .collect(),
        ),
        Value::DateTimeArray((0..count).map(time).collect()),
    ]
}

#[test]
fn fc_112_times_at_the_edge_are_kept_or_refused_on_entry() {
    let at = |millis: i64| v(0x09, &millis.to_le_bytes());
    let timed = |millis: i64| document(&[(0x10, "v", &[0; 4]), (0x09, "t", &millis.to_le_bytes())]);
    for millis in [0, -1, -86_400_000, 2_700_000_000_000, 253_402_300_799_999] {
        let stamp = Timestamp::from_millis(millis).expect("in range");
        assert_eq!(
            value(&at(millis), ValueType::DateTime),
            Value::DateTime(stamp)
        );
        let payload = timed(millis);
        assert_eq!(
            decode(&payload).expect("sound").timestamp(),
            Ok(Some(stamp))
        );
        let json = Value::DateTime(stamp).to_json(Style::default());
        assert_eq!(
            Value::from_json(ValueType::DateTime, &json),
            Ok(Value::DateTime(stamp))
        );
    }
    for millis in [253_402_300_800_000, i64::MIN, i64::MAX] {
        assert_eq!(read(&at(millis), ValueType::DateTime), WRONG_TYPE);
        let payload = timed(millis);
        let refused = decode(&payload)
            .expect("sound")
            .timestamp()
            .expect_err("out of range");
        assert_eq!(refused.name(), "unexpected_value_type");
        assert!(Value::from_json(ValueType::DateTime, &json!(millis)).is_err());
    }
}

#[test]
fn times_may_be_integers_and_a_t_of_another_type_means_nothing() {
    let second = Value::DateTime(Timestamp::from_millis(1000).expect("in range"));
    assert_eq!(
        value(&v(0x10, &1000_i32.to_le_bytes()), ValueType::DateTime),
        second
    );
    assert_eq!(
        value(&v(0x12, &1000_i64.to_le_bytes()), ValueType::DateTime),
        second
    );
    let mixed = document(&[
        (0x10, "0", &1000_i32.to_le_bytes()),
        (0x09, "1", &1000_i64.to_le_bytes()),
    ]);
    let Value::DateTimeArray(all) = value(&v(0x04, &mixed), ValueType::DateTimeArray) else {
        panic!("no array");
    };
    assert_eq!(all[0], all[1]);
    let odd = document(&[(0x10, "v", &[0; 4]), (0x02, "t", &text("now"))]);
    assert_eq!(decode(&odd).expect("sound").timestamp(), Ok(None));
}

#[test]
fn foreign_types_subtypes_and_keys_are_undecodable() {
    for (tag, body) in [
        (0x06, vec![]),
        (0x07, vec![0; 12]),
        (0x0b, b"a\0i\0".to_vec()),
        (0x0d, text("x")),
        (0x0e, text("x")),
        (0x11, vec![0; 8]),
        (0x13, vec![0; 16]),
        (0x7f, vec![]),
        (0xff, vec![]),
        (0x20, vec![]),
        (0x08, vec![2]),
        (0x02, [&text("")[..4], &[0xff]].concat()),
    ] {
        assert_eq!(
            read(&v(tag, &body), ValueType::Integer),
            UNDECODABLE,
            "{tag:#04x}"
        );
        let elsewhere = document(&[(0x10, "v", &[0; 4]), (tag, "other", &body)]);
        assert_eq!(
            read(&elsewhere, ValueType::Integer),
            UNDECODABLE,
            "{tag:#04x}"
        );
    }
    for subtype in [0, 1, 3, 4, 5, 6, 0x80, 0xff] {
        let blob = Value::BinaryBlob(Bytes::from_static(b"x"));
        assert_eq!(
            value(&v(0x05, &binary(subtype, b"x")), ValueType::BinaryBlob),
            blob
        );
    }
    for subtype in [7, 8, 9, 0x7f] {
        assert_eq!(
            read(&v(0x05, &binary(subtype, b"x")), ValueType::BinaryBlob),
            UNDECODABLE
        );
    }
    let twice = document(&[(0x10, "v", &[0; 4]), (0x10, "v", &[1, 0, 0, 0])]);
    assert_eq!(decode(&twice).map(|_| ()), Err(Undecodable::DuplicateKey));
    for keys in [
        ["1", "2"],
        ["0", "2"],
        ["0", "0"],
        ["0", "01"],
        ["0", "+1"],
        ["a", "b"],
    ] {
        let odd = document(&[(0x10, keys[0], &[0; 4]), (0x10, keys[1], &[0; 4])]);
        assert_eq!(
            decode(&v(0x04, &odd)).map(|_| ()),
            Err(Undecodable::ArrayKeys),
            "{keys:?}"
        );
    }
}

#[test]
fn sizes_end_where_astartes_do() {
    let string = |bytes: usize| v(0x02, &text(&"a".repeat(bytes)));
    let blob = |bytes: usize| v(0x05, &binary(0, &vec![0; bytes]));
    value(&string(65_536), ValueType::String);
    value(&blob(65_536), ValueType::BinaryBlob);
    assert_eq!(read(&string(65_537), ValueType::String), TOO_LARGE);
    assert_eq!(read(&blob(65_537), ValueType::BinaryBlob), TOO_LARGE);
    // inside an array it is an element of the wrong type
    let long = array(0x02, &[text(&"a".repeat(65_537))]);
    assert_eq!(read(&v(0x04, &long), ValueType::StringArray), WRONG_TYPE);
    assert_eq!(read(&string(1), ValueType::BinaryBlob), WRONG_TYPE);
    assert_eq!(read(&blob(1), ValueType::String), WRONG_TYPE);
}

#[test]
fn a_document_without_v_is_an_object_and_nothing_else() {
    let bare = document(&[(0x01, "temp", &21.5_f64.to_le_bytes())]);
    assert_eq!(read(&bare, ValueType::Double), WRONG_TYPE);
    let object = decode(&bare).expect("sound").object(&WEATHER);
    let expected = Value::Object(vec![("temp".into(), Some(Value::Double(21.5)))]);
    assert_eq!(object, Ok(Content::Value(expected)));
    let foreign = document(&[(0x01, "x", &21.5_f64.to_le_bytes())]);
    let refused = decode(&foreign)
        .expect("sound")
        .object(&WEATHER)
        .expect_err("unknown key");
    assert_eq!(refused.name(), "unexpected_object_key");
}

#[test]
fn fc_108_objects_must_match_the_mappings() {
    let one = 1.0_f64.to_le_bytes();
    let object = |members: &[(u8, &str, &[u8])]| v(0x03, &document(members));
    let verdict = |payload: &[u8], types: &Members| {
        decode(payload)
            .expect("sound")
            .object(types)
            .map_err(|error| (error.name(), error.to_string()))
    };
    for sound in [
        object(&[]),
        object(&[(0x01, "temp", &one)]),
        object(&[(0x0a, "hum", b"")]),
    ] {
        assert!(verdict(&sound, &WEATHER).is_ok());
    }
    let null = verdict(&object(&[(0x0a, "hum", b"")]), &WEATHER);
    assert_eq!(
        null,
        Ok(Content::Value(Value::Object(vec![("hum".into(), None)])))
    );
    let inner = document(&[(0x10, "v", &[0; 4])]);
    for (payload, name) in [
        (
            object(&[(0x01, "temp", &one), (0x01, "x", &one)]),
            "unexpected_object_key",
        ),
        (object(&[(0x03, "temp", &inner)]), "unexpected_value_type"),
        (
            object(&[(0x02, "temp", &text("1"))]),
            "unexpected_value_type",
        ),
    ] {
        let (told, detail) = verdict(&payload, &WEATHER).expect_err("refused");
        assert_eq!(told, name);
        assert!(
            detail.contains("\"temp\"") || detail.contains("\"x\""),
            "{detail}"
        );
    }
    let (told, _) = verdict(&v(0x10, &[0; 4]), &WEATHER).expect_err("a plain number");
    assert_eq!(told, "unexpected_value_type");
    assert_eq!(
        read(&object(&[(0x10, "a", &[0; 4])]), ValueType::Integer),
        WRONG_TYPE
    );

    let (told, detail) = verdict(&object(&[(0x01, "temp", &one)]), &STRICT).expect_err("required");
    assert_eq!(told, "missing_required_mapping");
    assert!(detail.contains("\"hum\""));
    let api = Value::object_from_json(&STRICT, &json!({"temp": 1})).map_err(|error| error.name());
    assert_eq!(api, Err("missing_required_mapping"));
}

#[test]
fn json_is_taken_and_shown_as_appengine_does() {
    let time = Timestamp::from_millis(1_700_000_000_123).expect("in range");
    let cases = [
        (ValueType::Double, json!(5), Value::Double(5.0), json!(5.0)),
        (
            ValueType::LongInteger,
            json!("-12"),
            Value::LongInteger(-12),
            json!(-12),
        ),
        (
            ValueType::BinaryBlob,
            json!("3q2+"),
            Value::BinaryBlob(Bytes::from_static(&[0xde, 0xad, 0xbe])),
            json!("3q2+"),
        ),
        (
            ValueType::DateTime,
            json!(1_700_000_000_123_i64),
            Value::DateTime(time),
            json!("2023-11-14T22:13:20.123Z"),
        ),
        (
            ValueType::DateTime,
            json!("2023-11-14T23:13:20.123999+01:00"),
            Value::DateTime(time),
            json!("2023-11-14T22:13:20.123Z"),
        ),
    ];
    for (value_type, json, expected, shown) in cases {
        assert_eq!(
            Value::from_json(value_type, &json),
            Ok(expected.clone()),
            "{json}"
        );
        assert_eq!(expected.to_json(Style::default()), shown);
    }
    for (value_type, json) in [
        (ValueType::Integer, json!("12")),
        (ValueType::LongInteger, json!("12x")),
        (ValueType::LongInteger, json!("+1")),
        (ValueType::LongInteger, json!("9223372036854775808")),
        (ValueType::BinaryBlob, json!("3q2")),
        (ValueType::BinaryBlob, json!([1])),
        (ValueType::DateTime, json!("yesterday")),
        (ValueType::DateTime, json!(1.5)),
        (ValueType::String, json!(null)),
        (ValueType::StringArray, json!(["a", null])),
        (ValueType::StringArray, json!("a")),
    ] {
        let refused = Value::from_json(value_type, &json).map_err(|error| error.name());
        assert_eq!(
            refused,
            Err("unexpected_value_type"),
            "{json} as {value_type}"
        );
    }
    let style = |big_integers| Style {
        big_integers,
        milliseconds: true,
    };
    let big = Value::LongInteger(1 << 52);
    assert_eq!(
        big.to_json(style(BigIntegers::SafeNumbers)),
        json!("4503599627370496")
    );
    assert_eq!(
        big.to_json(style(BigIntegers::Strings)),
        json!("4503599627370496")
    );
    assert_eq!(
        big.to_json(style(BigIntegers::Numbers)),
        json!(4_503_599_627_370_496_i64)
    );
    let small = Value::LongIntegerArray(vec![(1 << 52) - 1]);
    assert_eq!(
        small.to_json(style(BigIntegers::SafeNumbers)),
        json!([4_503_599_627_370_495_i64])
    );
    assert_eq!(
        Value::DateTime(time).to_json(style(BigIntegers::Numbers)),
        json!(1_700_000_000_123_i64)
    );
}

#[test]
fn fc_114_a_value_has_the_same_bytes_whenever_it_is_written() {
    let tags = [0x01, 0x10, 0x08, 0x12, 0x02, 0x05, 0x09];
    let singles = [
        Value::Double(1.0),
        Value::Integer(1),
        Value::Boolean(true),
        Value::LongInteger(1),
        Value::String("1".into()),
        Value::BinaryBlob(Bytes::from_static(b"1")),
        Value::DateTime(Timestamp::from_millis(1).expect("in range")),
    ];
    for (tag, one) in tags.into_iter().zip(singles) {
        let bytes = encode(&one, None);
        assert_eq!(bytes[4], tag);
        let stored = Value::from_storage(&one.to_storage()).expect("stored");
        assert_eq!(encode(&stored, None), bytes);
    }
    for (tag, one) in tags.into_iter().zip(arrays(2)) {
        let bytes = encode(&one, None);
        assert_eq!((bytes[4], bytes[11]), (0x04, tag));
        let stored = Value::from_storage(&one.to_storage()).expect("stored");
        assert_eq!(encode(&stored, None), bytes);
    }
}

#[test]
fn damaged_and_later_storage_is_refused() {
    let sound = Value::String("abc".into()).to_storage();
    assert_eq!(sound, b"\x15\x03abc");
    assert_eq!(Value::from_storage(b""), Err(InvalidStorage::Damaged));
    assert_eq!(
        Value::from_storage(b"\x15\x04abc"),
        Err(InvalidStorage::Damaged)
    );
    assert_eq!(
        Value::from_storage(b"\x15\x03abcd"),
        Err(InvalidStorage::Damaged)
    );
    assert_eq!(
        Value::from_storage(b"\x25\x03abc"),
        Err(InvalidStorage::UnknownVersion(2))
    );
    assert_eq!(
        Value::from_storage(b"\x10"),
        Err(InvalidStorage::UnknownTag(0))
    );
    // an object in an object, and a count that no memory would hold
    assert_eq!(
        Value::from_storage(b"\x1f\x01\x01a\x1f\x00"),
        Err(InvalidStorage::UnknownTag(15))
    );
    assert_eq!(
        Value::from_storage(b"\x18\xff\xff\xff\xff\x0f"),
        Err(InvalidStorage::Damaged)
    );
}

fn stamp() -> impl Strategy<Value = Timestamp> {
    (Timestamp::MIN.as_millis()..=Timestamp::MAX.as_millis())
        .prop_map(|millis| Timestamp::from_millis(millis).expect("in range"))
}

fn finite() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("finite", |number| number.is_finite())
}

fn blob() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn any_individual() -> impl Strategy<Value = Value> {
    const MANY: std::ops::Range<usize> = 0..8;
    prop_oneof![
        finite().prop_map(Value::Double),
        any::<i32>().prop_map(Value::Integer),
        any::<bool>().prop_map(Value::Boolean),
        any::<i64>().prop_map(Value::LongInteger),
        any::<String>().prop_map(Value::String),
        blob().prop_map(Value::BinaryBlob),
        stamp().prop_map(Value::DateTime),
        prop::collection::vec(finite(), MANY).prop_map(Value::DoubleArray),
        prop::collection::vec(any::<i32>(), MANY).prop_map(Value::IntegerArray),
        prop::collection::vec(any::<bool>(), MANY).prop_map(Value::BooleanArray),
        prop::collection::vec(any::<i64>(), MANY).prop_map(Value::LongIntegerArray),
        prop::collection::vec(any::<String>(), MANY).prop_map(Value::StringArray),
        prop::collection::vec(blob(), MANY).prop_map(Value::BinaryBlobArray),
        prop::collection::vec(stamp(), MANY).prop_map(Value::DateTimeArray),
    ]
}

proptest! {
    #[test]
    fn every_value_survives_bson_json_and_storage(original in any_individual(), at in stamp()) {
        let value_type = original.value_type().expect("individual");
        let payload = encode(&original, Some(at));
        let envelope = decode(&payload).expect("sound");
        prop_assert_eq!(envelope.timestamp(), Ok(Some(at)));
        prop_assert_eq!(envelope.individual(value_type), Ok(Content::Value(original.clone())));
        for big_integers in [BigIntegers::Numbers, BigIntegers::Strings, BigIntegers::SafeNumbers] {
            for milliseconds in [false, true] {
                let shown = original.to_json(Style { big_integers, milliseconds }).to_string();
                let json: Json = serde_json::from_str(&shown).expect("JSON");
                prop_assert_eq!(Value::from_json(value_type, &json), Ok(original.clone()));
            }
        }
        prop_assert_eq!(Value::from_storage(&original.to_storage()), Ok(original));
    }

    #[test]
    fn every_object_survives_storage(
        members in prop::collection::btree_map("[a-z]{1,5}", prop::option::of(any_individual()), 0..6)
    ) {
        let original = Value::Object(members.into_iter().collect());
        prop_assert_eq!(Value::from_storage(&original.to_storage()), Ok(original.clone()));
        prop_assert!(decode(&encode(&original, None)).is_ok());
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Value::from_storage(&bytes);
        probe(&bytes);
        // the same with a true length and end, so that more of it is looked at
        probe(&document(&[(bytes.first().copied().unwrap_or(1), "v", &bytes)]));
    }

    #[test]
    fn hostile_changes_of_sound_bytes_never_panic(
        original in any_individual(), place in any::<prop::sample::Index>(), byte in any::<u8>()
    ) {
        let mut payload = encode(&original, Some(Timestamp::MIN));
        let index = place.index(payload.len());
        payload[index] = byte;
        probe(&payload);
        let mut stored = original.to_storage();
        let index = place.index(stored.len());
        stored[index] = byte;
        let _ = Value::from_storage(&stored);
    }
}

/// Reads `payload` in every way.
fn probe(payload: &[u8]) {
    if let Ok(envelope) = decode(payload) {
        let _ = (envelope.timestamp(), envelope.object(&WEATHER));
        for value_type in ValueType::ALL {
            let _ = envelope.individual(value_type);
        }
    }
}
