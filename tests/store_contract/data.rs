//! Samples and properties, written and read.

use bytes::Bytes;
use tanit::{
    payload::Value,
    store::{Effect, SampleQuery},
};

use super::{Fixture, all, at, sample, sample_at, sensor, set, settings, shown_properties, unit};

for_every_store! {
    samples_are_found_by_time_and_limit
    equal_value_stamps_keep_both_rows
    a_sample_whose_key_is_taken_is_kept_beside_the_other
    every_type_of_value_is_read_back_as_it_was_stored
    properties_are_set_replaced_and_unset
    the_last_change_of_a_property_in_a_batch_holds
    the_newest_sample_of_each_path_is_found
    a_long_path_is_stored_and_found
}

async fn samples_are_found_by_time_and_limit(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done((1..=9).map(|n| sample(&identity, "/a", n)).collect())
        .await;
    let find = async |query: SampleQuery| -> Vec<u64> {
        let found = fixture
            .store
            .samples(&identity, &sensor(), "/a", &query)
            .await
            .unwrap();
        found
            .iter()
            .map(|sample| sample.value_at.saturating_since(at(0)).as_secs())
            .collect()
    };
    assert_eq!(
        find(SampleQuery {
            since: Some(at(7)),
            ..all()
        })
        .await,
        [7, 8, 9]
    );
    assert_eq!(
        find(SampleQuery {
            since_after: Some(at(7)),
            ..all()
        })
        .await,
        [8, 9]
    );
    assert_eq!(
        find(SampleQuery {
            to: Some(at(3)),
            ..all()
        })
        .await,
        [1, 2]
    );
    assert_eq!(find(SampleQuery { limit: 2, ..all() }).await, [1, 2]);
    assert_eq!(
        find(SampleQuery {
            limit: 2,
            newest_first: true,
            ..all()
        })
        .await,
        [9, 8]
    );
    assert!(find(SampleQuery { limit: 0, ..all() }).await.is_empty());
    assert!(fixture.stored(&identity, "/b").await.is_empty());
    let other = fixture
        .store
        .samples(&identity, &settings(), "/a", &all())
        .await
        .unwrap();
    assert!(other.is_empty());
}

async fn equal_value_stamps_keep_both_rows(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![
            sample_at(&identity, "/a", 1, at(10), at(20)),
            sample_at(&identity, "/a", 2, at(10), at(21)),
        ])
        .await;
    fixture
        .done(vec![sample_at(&identity, "/a", 3, at(10), at(22))])
        .await;
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 2, 3]);
}

async fn a_sample_whose_key_is_taken_is_kept_beside_the_other(fixture: Fixture) {
    let identity = fixture.device().await;
    let same = |value| sample_at(&identity, "/a", value, at(10), at(20));
    fixture.done(vec![same(1), same(2)]).await;
    fixture
        .done(vec![
            sample(&identity, "/b", 7),
            same(3),
            sample(&identity, "/b", 8),
        ])
        .await;
    assert_eq!(fixture.stored(&identity, "/a").await, [1, 2, 3]);
    assert_eq!(fixture.stored(&identity, "/b").await, [7, 8]);
}

async fn every_type_of_value_is_read_back_as_it_was_stored(fixture: Fixture) {
    let identity = fixture.device().await;
    let blob = Bytes::from_static(&[0, 255, 0]);
    let values = [
        Value::Double(-0.0),
        Value::Integer(i32::MIN),
        Value::Boolean(true),
        Value::LongInteger(i64::MIN),
        Value::String("a\0\u{1f600}".to_owned()),
        Value::String(String::new()),
        Value::BinaryBlob(blob.clone()),
        Value::BinaryBlob(Bytes::new()),
        Value::DateTime(at(3)),
        Value::DoubleArray(vec![1.5, f64::MAX]),
        Value::IntegerArray(Vec::new()),
        Value::BooleanArray(vec![true, false]),
        Value::LongIntegerArray(vec![i64::MAX]),
        Value::StringArray(vec!["x".to_owned(), String::new()]),
        Value::BinaryBlobArray(vec![blob, Bytes::new()]),
        Value::DateTimeArray(vec![at(1), at(2)]),
        Value::Object(vec![
            ("hum".to_owned(), None),
            ("t".to_owned(), Some(Value::Double(2.5))),
        ]),
        Value::BinaryBlob(Bytes::from(vec![7; 65_536])),
    ];
    let units = values.iter().zip(0_i64..).map(|(value, n)| {
        let stamp = at(n);
        let sample = Effect::AppendSample {
            interface: sensor(),
            path: "/v".into(),
            value: value.clone(),
            value_at: stamp,
            received_at: stamp,
            expires_at: Some(at(1000)),
        };
        let property = Effect::SetProperty {
            interface: settings(),
            path: format!("/{n:02}").into(),
            value: value.clone(),
            at: stamp,
        };
        unit(&identity, vec![sample, property])
    });
    fixture.done(units.collect()).await;
    let samples = fixture
        .store
        .samples(&identity, &sensor(), "/v", &all())
        .await
        .unwrap();
    let samples: Vec<_> = samples.into_iter().map(|sample| sample.value).collect();
    assert_eq!(samples, values);
    let Value::Double(zero) = samples[0] else {
        panic!("not a double")
    };
    assert!(zero.is_sign_negative());
    let properties = fixture
        .store
        .properties(&identity, &settings())
        .await
        .unwrap();
    let properties: Vec<_> = properties.into_iter().map(|row| row.value).collect();
    assert_eq!(properties, values);
}

fn unset(path: &str) -> Effect {
    Effect::UnsetProperty {
        interface: settings(),
        path: path.into(),
    }
}

async fn properties_are_set_replaced_and_unset(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![unit(
            &identity,
            vec![set("/b", 1), set("/a", 2), set("/Z", 3)],
        )])
        .await;
    fixture
        .done(vec![unit(
            &identity,
            vec![set("/b", 4), unset("/a"), unset("/never")],
        )])
        .await;
    let expected = [
        ("/Z".to_owned(), Value::Integer(3)),
        ("/b".to_owned(), Value::Integer(4)),
    ];
    assert_eq!(shown_properties(&fixture, &identity).await, expected);
}

async fn the_last_change_of_a_property_in_a_batch_holds(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![
            unit(&identity, vec![set("/a", 1)]),
            unit(&identity, vec![unset("/a"), set("/b", 1)]),
            unit(&identity, vec![set("/a", 2), unset("/b")]),
        ])
        .await;
    let expected = [("/a".to_owned(), Value::Integer(2))];
    assert_eq!(shown_properties(&fixture, &identity).await, expected);
}

async fn the_newest_sample_of_each_path_is_found(fixture: Fixture) {
    let identity = fixture.device().await;
    fixture
        .done(vec![
            sample(&identity, "/b", 1),
            sample(&identity, "/b", 3),
            sample(&identity, "/a", 2),
            sample_at(&identity, "/b", 4, at(3), at(9)),
        ])
        .await;
    let newest = fixture
        .store
        .newest_samples(&identity, &sensor())
        .await
        .unwrap();
    let shown: Vec<_> = newest
        .iter()
        .map(|(path, sample)| (path.as_str(), sample.value.clone()))
        .collect();
    assert_eq!(
        shown,
        [("/a", Value::Integer(2)), ("/b", Value::Integer(4))]
    );
    assert!(
        fixture
            .store
            .newest_samples(&identity, &settings())
            .await
            .unwrap()
            .is_empty()
    );
}

async fn a_long_path_is_stored_and_found(fixture: Fixture) {
    let identity = fixture.device().await;
    // too varied to be compressed into what an index of PostgreSQL takes
    let mut state = 1_u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 24) as u8 % 26)
    };
    let path: String = std::iter::once('/')
        .chain((0..60_000).map(|_| letter()))
        .collect();
    let other = format!("{path}x");
    fixture
        .done(vec![
            sample(&identity, &path, 1),
            sample(&identity, &other, 2),
        ])
        .await;
    fixture.done(vec![sample(&identity, &path, 3)]).await;
    assert_eq!(fixture.stored(&identity, &path).await, [1, 3]);
    assert_eq!(fixture.stored(&identity, &other).await, [2]);
}
