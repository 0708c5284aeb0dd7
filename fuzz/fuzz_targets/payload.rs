//! Payloads of data messages, read as every type and as an object.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tanit::payload::{
    BigIntegers, Content, ObjectTypes, Style, Value, ValueError, ValueType, decode, encode,
};

const TYPES: [ValueType; 14] = [
    ValueType::Double,
    ValueType::Integer,
    ValueType::Boolean,
    ValueType::LongInteger,
    ValueType::String,
    ValueType::BinaryBlob,
    ValueType::DateTime,
    ValueType::DoubleArray,
    ValueType::IntegerArray,
    ValueType::BooleanArray,
    ValueType::LongIntegerArray,
    ValueType::StringArray,
    ValueType::BinaryBlobArray,
    ValueType::DateTimeArray,
];

/// An object with a member of every type: `a` to `n`, of which `a` is required.
struct Members;

impl ObjectTypes for Members {
    fn member(&self, key: &str) -> Option<ValueType> {
        let [letter] = key.as_bytes() else {
            return None;
        };
        TYPES.get(usize::from(letter.checked_sub(b'a')?)).copied()
    }

    fn required(&self) -> impl Iterator<Item = &str> {
        ["a"].into_iter()
    }
}

fuzz_target!(|payload: &[u8]| {
    let _ = Value::from_storage(payload);
    let Ok(envelope) = decode(payload) else {
        return;
    };
    let at = envelope.timestamp().ok().flatten();
    for value_type in TYPES {
        let Ok(Content::Value(value)) = envelope.individual(value_type) else {
            continue;
        };
        let written = encode(&value, at);
        let read = decode(&written).expect("what was written can be read");
        assert_eq!(read.timestamp().ok().flatten(), at);
        assert_eq!(
            read.individual(value_type),
            Ok(Content::Value(value.clone()))
        );
        stored(&value);
        let style = Style {
            big_integers: BigIntegers::Strings,
            milliseconds: false,
        };
        assert_eq!(
            Value::from_json(value_type, &value.to_json(style)),
            Ok(value)
        );
    }
    if let Ok(Content::Value(value)) = envelope.object(&Members) {
        let written = encode(&value, at);
        let read = decode(&written)
            .expect("what was written can be read")
            .object(&Members);
        match without_nulls(&value) {
            Value::Object(members) if members.iter().all(|(key, _)| key != "a") => {
                // null stands for a required member when it comes in, but is not sent
                assert_eq!(
                    read,
                    Err(ValueError::MissingKey {
                        key: "a".to_owned()
                    })
                );
            }
            value => assert_eq!(read, Ok(Content::Value(value))),
        }
        stored(&value);
        let _ = value.to_json(Style::default());
    }
});

fn stored(value: &Value) {
    assert_eq!(
        Value::from_storage(&value.to_storage()).expect("just written"),
        *value
    );
}

/// Null members are left out where a value is written for a device.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .filter(|(_, member)| member.is_some())
                .cloned()
                .collect(),
        ),
        other => other.clone(),
    }
}
