//! Single messages: what is stored, and which error it is otherwise.

use bson::{Bson, doc};

use super::*;
use crate::{mqtt::AfterRefusal, payload::Value, store::Effect};

/// What becomes of one message of a fresh device: the effects that are stored, or the error's name.
async fn outcome(below: &str, payload: &[u8]) -> Result<Vec<Effect>, String> {
    let bench = Bench::start().await;
    bench.send(1, below, payload).await;
    let acks = bench.acks.wait(1).await;
    let errors = bench.store.error_names();
    match acks[0].1 {
        Some(Outcome::Stored) => {
            assert!(errors.is_empty());
            Ok(bench.store.effects(|effect| Some(effect.clone())))
        }
        Some(Outcome::Refused { .. }) => {
            let samples = bench.store.samples();
            assert!(
                samples.is_empty(),
                "a refused message stores nothing: {samples:?}"
            );
            Err(errors
                .into_iter()
                .next()
                .expect("a refusal has its error row"))
        }
        None => panic!("the ack was dropped"),
    }
}

async fn value(path: &str, payload: &[u8]) -> Result<Value, String> {
    match outcome(&format!("/t.Dev{path}"), payload).await?.remove(0) {
        Effect::AppendSample { value, .. } => Ok(value),
        other => panic!("{other:?}"),
    }
}

fn error(name: &str) -> Result<Value, String> {
    Err(name.into())
}

#[tokio::test]
async fn fc_099_wrong_length_prefixes_are_undecodable_and_acknowledged() {
    let good = v(5);
    assert_eq!(value("/int", &good).await, Ok(Value::Integer(5)));
    let real = i32::try_from(good.len()).unwrap();
    for length in [0, 4, -1, i32::MAX, real - 1, real + 1] {
        let mut bad = good.clone();
        bad[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(
            value("/int", &bad).await,
            error("undecodable_bson_payload"),
            "{length}"
        );
    }
    let mut long = good.clone();
    long.push(0);
    let no_zero = &good[..good.len() - 1];
    for bad in [&long[..], no_zero, &good[..6], b"\x05", b"junk"] {
        assert_eq!(
            value("/int", bad).await,
            error("undecodable_bson_payload"),
            "{bad:x?}"
        );
    }
}

#[tokio::test]
async fn fc_099_the_error_row_has_an_excerpt_of_the_payload() {
    let bench = Bench::start().await;
    bench.send(1, "/t.Dev/int", &[0xff; 1000]).await;
    bench.acks.wait(1).await;
    let row = bench.store.with(|state| state.errors[0].clone());
    assert_eq!(row.interface.as_deref(), Some("t.Dev"));
    assert_eq!(row.path.as_deref(), Some("/int"));
    assert_eq!(row.base64_payload.unwrap().len(), 344, "256 bytes");
}

#[tokio::test]
async fn fc_100_deep_nesting_is_refused() {
    for depth in [3, 200, 10_000] {
        // built by hand: the crate's own types recurse
        let mut inner = vec![5, 0, 0, 0, 0];
        for _ in 0..depth {
            let length = i32::try_from(inner.len() + 8).unwrap();
            let mut outer = length.to_le_bytes().to_vec();
            outer.extend_from_slice(b"\x03v\0");
            outer.extend_from_slice(&inner);
            outer.push(0);
            inner = outer;
        }
        let verdict = value("/int", &inner).await;
        assert!(verdict.is_err(), "{depth} levels: {verdict:?}");
    }
}

#[tokio::test]
async fn fc_101_numbers_are_accepted_when_they_fit() {
    let wrong = || error("unexpected_value_type");
    assert_eq!(value("/dbl", &v(3_i32)).await, Ok(Value::Double(3.0)));
    assert_eq!(value("/dbl", &v(3_i64)).await, Ok(Value::Double(3.0)));
    assert_eq!(
        value("/int", &v(2_147_483_647_i64)).await,
        Ok(Value::Integer(i32::MAX))
    );
    assert_eq!(
        value("/int", &v(i32::MIN)).await,
        Ok(Value::Integer(i32::MIN))
    );
    assert_eq!(value("/int", &v(2_147_483_648_i64)).await, wrong());
    assert_eq!(value("/long", &v(7_i32)).await, Ok(Value::LongInteger(7)));
    assert_eq!(
        value("/long", &v(i64::MAX)).await,
        Ok(Value::LongInteger(i64::MAX))
    );
    for path in ["/int", "/long"] {
        for bad in [
            Bson::Double(1.0),
            Bson::Double(1.5),
            true.into(),
            "1".into(),
        ] {
            assert_eq!(value(path, &v(bad.clone())).await, wrong(), "{path} {bad}");
        }
    }
    for bad in [Bson::from(true), "1".into()] {
        assert_eq!(value("/dbl", &v(bad)).await, wrong());
    }
}

#[tokio::test]
async fn fc_103_nan_and_infinities_are_refused_and_odd_doubles_kept_bit_exact() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(
            value("/dbl", &v(bad)).await,
            error("unexpected_value_type"),
            "{bad}"
        );
    }
    let odd_nan = f64::from_bits(0x7ff8_0000_0000_0001);
    assert_eq!(
        value("/dbl", &v(odd_nan)).await,
        error("undecodable_bson_payload")
    );
    for good in [-0.0, f64::from_bits(1), f64::MAX] {
        let Ok(Value::Double(kept)) = value("/dbl", &v(good)).await else {
            panic!("{good}")
        };
        assert_eq!(kept.to_bits(), good.to_bits());
    }
}

#[tokio::test]
async fn fc_105_zero_false_and_empty_are_values() {
    assert_eq!(value("/int", &v(0)).await, Ok(Value::Integer(0)));
    assert_eq!(value("/bool", &v(false)).await, Ok(Value::Boolean(false)));
    assert_eq!(
        value("/str", &v("")).await,
        Ok(Value::String(String::new()))
    );
    assert_eq!(
        value("/dbls", &v(Vec::<f64>::new())).await,
        Ok(Value::DoubleArray(vec![]))
    );
    let bench = Bench::start().await;
    bench.send(1, "/t.DevProp/b", &v(0)).await;
    bench.send(2, "/t.DevProp/a", &v("")).await;
    bench.acks.wait(2).await;
    let properties = bench.store.with(|state| state.properties.clone());
    assert_eq!(properties["/b"], Value::Integer(0));
    assert_eq!(properties["/a"], Value::String(String::new()));
    bench.send(3, "/t.DevProp/a", b"").await;
    assert_eq!(stored(&bench.acks.wait(3).await), [1, 2, 3]);
    assert!(
        !bench
            .store
            .with(|state| state.properties.contains_key("/a"))
    );
}

#[tokio::test]
async fn fc_107_unset_is_refused_where_the_mapping_does_not_allow_it() {
    let unset = |below: &'static str| async move { outcome(below, b"").await.map(|_| ()) };
    assert_eq!(unset("/t.DevProp/a").await, Ok(()));
    assert_eq!(unset("/t.DevProp/b").await, Err("unset_not_allowed".into()));
    assert_eq!(
        unset("/t.DevProp/none").await,
        Err("mapping_not_found".into())
    );
    assert_eq!(unset("/t.Dev/int").await, Err("unset_on_datastream".into()));
    assert_eq!(
        unset("/t.DevObj/1").await,
        Err("unset_on_datastream".into())
    );
    assert_eq!(
        outcome("/t.DevProp/b", &v(Bson::Null)).await,
        Err("unset_not_allowed".into())
    );
}

#[tokio::test]
async fn fc_107_a_refused_unset_keeps_the_value_and_is_not_counted() {
    let bench = Bench::start().await;
    bench.send(1, "/t.DevProp/b", &v(5)).await;
    bench.send(2, "/t.Dev/int", b"").await;
    bench.send(3, "/t.DevProp/b", b"").await;
    let acks = bench.acks.wait(3).await;
    let continues = Outcome::Refused {
        reason: crate::mqtt::packet::ReasonCode::PAYLOAD_FORMAT_INVALID,
        then: AfterRefusal::Continue,
    };
    let Outcome::Refused { reason, .. } = continues else {
        unreachable!()
    };
    let kicks = Outcome::Refused {
        reason,
        then: AfterRefusal::CleanKick,
    };
    assert_eq!(
        acks,
        [
            (1, Some(Outcome::Stored)),
            (2, Some(continues)),
            (3, Some(kicks))
        ]
    );
    bench.store.with(|state| {
        assert_eq!(state.properties["/b"], Value::Integer(5));
        let row = &state.devices[&device(1)];
        assert_eq!(row.total_received_msgs, 1);
        assert_eq!(
            row.total_received_bytes,
            (v(5).len() + "t.DevProp".len() + "/b".len()) as u64
        );
        assert!(row.pending_empty_cache);
    });
}

#[tokio::test]
async fn fc_108_objects_match_their_mappings() {
    let object = |payload: bson::Document| async move {
        let payload = payload.to_vec().unwrap();
        outcome("/t.DevObj/one", &payload).await.map(|_| ())
    };
    assert_eq!(object(doc! {"v": {"temp": 1.0}}).await, Ok(()));
    assert_eq!(object(doc! {"v": {"temp": 1.0, "hum": 2}}).await, Ok(()));
    assert_eq!(object(doc! {"v": {}}).await, Ok(()));
    assert_eq!(object(doc! {"temp": 1.0}).await, Ok(()));
    let err = |name: &str| Err(name.to_owned());
    assert_eq!(
        object(doc! {"v": {"temp": 1.0, "x": 1}}).await,
        err("unexpected_object_key")
    );
    assert_eq!(
        object(doc! {"v": {"temp": {"v": 1}}}).await,
        err("unexpected_value_type")
    );
    assert_eq!(
        object(doc! {"v": {"temp": "1"}}).await,
        err("unexpected_value_type")
    );
    assert_eq!(object(doc! {"v": 1.0}).await, err("unexpected_value_type"));
    let good = doc! {"v": {"temp": 1.0}}.to_vec().unwrap();
    assert_eq!(
        outcome("/t.DevObj/one/temp", &good).await,
        Err("mapping_not_found".into())
    );
    let inner = doc! {"v": {"a": 1}}.to_vec().unwrap();
    assert_eq!(value("/int", &inner).await, error("unexpected_value_type"));
}

#[tokio::test]
async fn fc_112_times_outside_the_years_0_to_9999_are_refused_on_entry() {
    let at = |millis: i64| Bson::DateTime(bson::DateTime::from_millis(millis));
    let last = 253_402_300_799_999;
    for millis in [0, -1, last, -62_167_219_200_000] {
        let expected = Timestamp::from_millis(millis).unwrap();
        assert_eq!(
            value("/when", &v(at(millis))).await,
            Ok(Value::DateTime(expected))
        );
        let own = doc! {"v": 1, "t": at(millis)}.to_vec().unwrap();
        let effects = outcome("/t.Dev/int", &own).await.unwrap();
        let Effect::AppendSample {
            value_at,
            received_at,
            ..
        } = effects[0]
        else {
            panic!()
        };
        assert_eq!((value_at, received_at), (expected, NOW));
    }
    for millis in [last + 1, -62_167_219_200_001, i64::MIN, i64::MAX] {
        assert_eq!(
            value("/when", &v(at(millis))).await,
            error("unexpected_value_type")
        );
        let own = doc! {"v": 1, "t": at(millis)}.to_vec().unwrap();
        assert_eq!(
            value("/int", &own).await,
            error("unexpected_value_type"),
            "{millis}"
        );
    }
}

#[tokio::test]
async fn fc_112_equal_times_keep_both_values_apart_by_their_reception() {
    let bench = Bench::start().await;
    let at = Bson::DateTime(bson::DateTime::from_millis(1000));
    for (label, value) in [(1, 10), (2, 20)] {
        let payload = doc! {"v": value, "t": at.clone()}.to_vec().unwrap();
        bench.send(label, "/t.Dev/int", &payload).await;
    }
    bench.acks.wait(2).await;
    let stamps = bench.store.effects(|effect| match effect {
        Effect::AppendSample {
            received_at,
            value_at,
            ..
        } => Some((*value_at, *received_at)),
        _ => None,
    });
    assert_eq!(stamps[0].0, stamps[1].0);
    assert!(
        stamps[0].1 < stamps[1].1,
        "the clock stands still, the stamps do not"
    );
}

#[tokio::test]
async fn reception_time_is_the_value_time_where_none_is_given() {
    let bench = Bench::start().await;
    let odd = Timestamp::from_micros(NOW.as_micros() + 1_234);
    bench.clock.set_wall(odd);
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.acks.wait(1).await;
    let stamps = bench.store.effects(|effect| match effect {
        Effect::AppendSample {
            received_at,
            value_at,
            ..
        } => Some((*value_at, *received_at)),
        _ => None,
    });
    assert_eq!(
        stamps,
        [(Timestamp::from_micros(NOW.as_micros() + 1_000), odd)]
    );
}

#[tokio::test]
async fn fc_091_slashes_have_one_rule() {
    let path = |below: &'static str| async move {
        match outcome(below, &v(1)).await?.remove(0) {
            Effect::AppendSample { path, .. } => Ok::<_, String>(path.to_string()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(path("/t.Dev/int").await, Ok("/int".into()));
    assert_eq!(path("/t.Dev/int/").await, Ok("/int".into()));
    for below in ["/t.Dev/int//", "/t.Dev//int", "/t.Dev/at//v"] {
        assert_eq!(path(below).await, Err("invalid_path".into()), "{below}");
    }
    assert_eq!(path("/t.Dev").await, Err("ambiguous_path".into()));
    assert_eq!(path("/t.Dev/at/x").await, Err("ambiguous_path".into()));
    assert_eq!(
        path("/t.Dev/nothing").await,
        Err("mapping_not_found".into())
    );
}

#[tokio::test]
async fn undeclared_uninstalled_and_server_owned_interfaces_are_refused_by_name() {
    let name = |below: &'static str| async move { outcome(below, &v(1)).await.unwrap_err() };
    assert_eq!(name("/t.Unknown/x").await, "interface_loading_failed");
    assert_eq!(name("/t.Ghost/x").await, "interface_loading_failed");
    assert_eq!(name("//x").await, "interface_loading_failed");
    assert_eq!(
        name("/t.SrvCmd/cmd").await,
        "write_on_server_owned_interface"
    );
    assert_eq!(name("/t.SrvCmd//cmd").await, "invalid_path");
    let big = "x".repeat(65_537);
    assert_eq!(
        outcome("/t.Dev/str", &v(big)).await,
        Err("value_size_exceeded".into())
    );
}

#[tokio::test]
async fn control_messages_of_a_device() {
    assert_eq!(
        outcome("/control/emptyCache", b"1").await,
        Ok(vec![Effect::PendingEmptyCache(false)])
    );
    assert_eq!(
        outcome("/control/producer/properties", &[0; 4]).await,
        Ok(vec![])
    );
    assert_eq!(outcome("/capabilities", &v(1)).await, Ok(vec![]));
    for below in ["/control", "/control/x", "/control/consumer/properties"] {
        assert_eq!(
            outcome(below, b"1").await,
            Err("unexpected_control_message".into())
        );
    }
}

#[tokio::test]
async fn what_the_acl_refused_is_recorded_by_its_name_in_its_place() {
    let cases = [
        (Denial::InterfaceNotDeclared, "interface_loading_failed"),
        (Denial::ServerOwned, "write_on_server_owned_interface"),
        (Denial::InvalidPath, "invalid_path"),
        (Denial::UnexpectedControl, "unexpected_control_message"),
    ];
    for (denial, name) in cases {
        let bench = Bench::start().await;
        let mut message = bench.message(1, 1, "/t.Dev/int", &v(1));
        message.denied = Some(denial);
        bench.submit(message).await;
        let acks = bench.acks.wait(1).await;
        assert!(matches!(
            acks[0].1,
            Some(Outcome::Refused {
                then: AfterRefusal::CleanKick,
                ..
            })
        ));
        assert_eq!(bench.store.error_names(), [name]);
        assert!(bench.store.samples().is_empty());
    }
}

#[tokio::test]
async fn fc_117_malformed_introspection_changes_nothing() {
    for bad in [
        "a.B:1:0;",
        "a.B:1",
        "a.B:-1:0",
        "a.B:x:0",
        " a.B:1:0",
        "a_b:1:0",
        "a.B:1:0\n",
    ] {
        let bench = Bench::start().await;
        bench.send(1, "", bad.as_bytes()).await;
        let acks = bench.acks.wait(1).await;
        assert!(
            matches!(
                acks[0].1,
                Some(Outcome::Refused {
                    then: AfterRefusal::CleanKick,
                    ..
                })
            ),
            "{bad:?}"
        );
        bench.store.with(|state| {
            let row = &state.devices[&device(1)];
            assert_eq!(
                row.introspection,
                Introspection::parse(DECLARED.as_bytes()).unwrap()
            );
            assert!(row.pending_empty_cache);
            assert_eq!(row.total_received_msgs, 1);
            assert_eq!(state.errors[0].error_name, "invalid_introspection");
        });
    }
    assert_eq!(
        outcome("", &[0xff, 0xfe]).await,
        Err("invalid_introspection".into())
    );
}

#[tokio::test]
async fn fc_117_duplicates_zero_versions_and_the_empty_introspection_are_accepted() {
    for (text, version) in [
        ("a.B:1:0;a.B:1:1", Some((1, 1))),
        ("a.B:0:0", Some((0, 0))),
        ("", None),
    ] {
        let bench = Bench::start().await;
        bench.send(1, "", text.as_bytes()).await;
        assert_eq!(stored(&bench.acks.wait(1).await), [1]);
        let declared = bench
            .store
            .with(|state| state.devices[&device(1)].introspection.clone());
        let found = declared
            .version("a.B")
            .map(|version| (version.major, version.minor));
        assert_eq!(found, version, "{text:?}");
        assert_eq!(declared.is_empty(), text.is_empty());
    }
    assert_eq!(
        outcome("", b"a.B:1:99999999999").await,
        Err("invalid_introspection".into())
    );
}
