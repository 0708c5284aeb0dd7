use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers make the mappings in place"
)]
fn datastream(mappings: Json) -> Json {
    json!({
        "interface_name": "org.example.lab.Probe",
        "version_major": 1,
        "version_minor": 2,
        "type": "datastream",
        "ownership": "device",
        "mappings": mappings,
    })
}

fn object(mappings: Json) -> Json {
    let mut document = datastream(mappings);
    document["aggregation"] = json!("object");
    document
}

fn properties(mappings: Json) -> Json {
    let mut document = datastream(mappings);
    document["type"] = json!("properties");
    document
}

/// Double mappings with these endpoints.
fn endpoints(all: &[&str]) -> Json {
    all.iter()
        .map(|endpoint| json!({"endpoint": endpoint, "type": "double"}))
        .collect()
}

fn parse(document: &Json) -> Interface {
    Interface::from_json(document).unwrap_or_else(|error| panic!("{error}"))
}

fn errors(document: &Json) -> Json {
    Interface::from_json(document)
        .expect_err("refused")
        .to_json()
}

fn with(mut document: Json, field: &str, value: Json) -> Json {
    document[field] = value;
    document
}

#[test]
fn the_documents_of_the_specification_are_read_and_shown_again_without_defaults() {
    let document = json!({
        "interface_name": "org.example.lab.ProbeReadings", "version_major": 1, "version_minor": 2,
        "type": "datastream", "ownership": "device", "description": "Independent probe samples",
        "mappings": [
            {"endpoint": "/%{probe}/celsius", "type": "double", "reliability": "guaranteed",
             "retention": "stored", "expiry": 86400, "explicit_timestamp": true,
             "database_retention_policy": "use_ttl", "database_retention_ttl": 2_592_000},
            {"endpoint": "/%{probe}/faults", "type": "stringarray", "explicit_timestamp": true},
            {"endpoint": "/%{probe}/raw", "type": "binaryblob", "explicit_timestamp": true,
             "doc": "Bytes as read.", "description": "raw"},
        ],
    });
    let interface = parse(&document);
    assert_eq!(interface.to_json(), document);
    assert_eq!(
        interface.key().to_string(),
        "org.example.lab.ProbeReadings v1"
    );
    assert_eq!(
        interface.mappings()[0].database_retention_ttl,
        Some(2_592_000)
    );
    let state = json!({
        "interface_name": "org.example.lab.UnitState", "version_major": 1, "version_minor": 0,
        "type": "properties", "ownership": "server",
        "mappings": [
            {"endpoint": "/firmware/version", "type": "string"},
            {"endpoint": "/slots/%{slot}/occupied", "type": "boolean", "allow_unset": true},
        ],
    });
    assert_eq!(parse(&state).to_json(), state);
}

#[test]
fn defaults_that_are_written_out_are_left_out_again() {
    let mut document = datastream(json!([{
        "endpoint": "/a", "type": "double", "reliability": "unreliable", "retention": "discard",
        "expiry": 0, "explicit_timestamp": false, "database_retention_policy": "no_ttl",
        "allow_unset": false, "required": false, "encrypted": false, "unknown": 1,
    }]));
    document["aggregation"] = json!("individual");
    document["unknown"] = json!([]);
    let shown = parse(&document).to_json();
    assert_eq!(shown, datastream(endpoints(&["/a"])));
}

#[test]
fn legacy_fields_are_understood() {
    let mut document = object(json!([{"path": "/p/a", "type": "double"}]));
    document["aggregate"] = json!(true);
    for field in ["ownership", "aggregation"] {
        document.as_object_mut().expect("object").remove(field);
    }
    document["quality"] = json!("consumer");
    let interface = parse(&document);
    assert_eq!(interface.ownership(), Ownership::Server);
    assert_eq!(interface.aggregation(), Aggregation::Object);
    assert_eq!(&*interface.mappings()[0].endpoint, "/p/a");

    let modern = with(
        with(document, "ownership", json!("producer")),
        "aggregation",
        json!("individual"),
    );
    let interface = parse(&modern);
    assert_eq!(interface.ownership(), Ownership::Device);
    assert_eq!(interface.aggregation(), Aggregation::Individual);
}

#[test]
fn names_follow_the_rule_of_each_label() {
    let good = [
        "A",
        "a1",
        "org.example.A",
        "o.1a-b.2.C",
        "a.b-.C",
        "com.my-site.Thing9",
    ];
    let bad = [
        "", "1a", "a.", ".a", "a..b", "a-b.C", "a.b.C-d", "a_b", "a.b_c.D", "a.-b.C", "a.B.1c",
        "ä.B", "a b", "a.B\n", "a/b", "a.B ",
    ];
    for name in good {
        assert!(is_interface_name(name), "{name:?} was refused");
    }
    for name in bad {
        assert!(!is_interface_name(name), "{name:?} was accepted");
    }
}

#[test]
fn each_field_that_breaks_a_rule_is_told_with_astartes_words() {
    let sound = datastream(endpoints(&["/a"]));
    let cases = [
        ("interface_name", json!(null), "can't be blank"),
        ("interface_name", json!(""), "can't be blank"),
        ("interface_name", json!(5), "is invalid"),
        ("interface_name", json!("a_b"), "has invalid format"),
        ("interface_name", json!("control"), "is reserved"),
        (
            "interface_name",
            json!("a".repeat(129)),
            "should be at most 128 character(s)",
        ),
        (
            "version_major",
            json!(-1),
            "must be greater than or equal to 0",
        ),
        ("version_major", json!("1"), "is invalid"),
        ("version_major", json!(1.5), "is invalid"),
        ("version_minor", json!(null), "can't be blank"),
        (
            "version_minor",
            json!(2_147_483_648_u64),
            "must be less than or equal to 2147483647",
        ),
        ("type", json!("stream"), "is invalid"),
        ("ownership", json!(null), "can't be blank"),
        ("ownership", json!("both"), "is invalid"),
        ("aggregation", json!("all"), "is invalid"),
        (
            "description",
            json!("x".repeat(1001)),
            "should be at most 1000 character(s)",
        ),
        (
            "doc",
            json!("x".repeat(100_001)),
            "should be at most 100000 character(s)",
        ),
        ("mappings", json!(null), "can't be blank"),
        ("mappings", json!([]), "should have at least 1 item(s)"),
        ("mappings", json!({}), "is invalid"),
        ("mappings", json!(["/a"]), "is invalid"),
    ];
    for (field, value, message) in cases {
        let document = with(sound.clone(), field, value.clone());
        assert_eq!(
            errors(&document),
            json!({field: [message]}),
            "{field} = {value}"
        );
    }
    let long = with(sound.clone(), "interface_name", json!("a".repeat(128)));
    parse(&long);
    let described = with(sound, "description", json!("ä".repeat(1000)));
    parse(&described);
}

#[test]
fn version_0_0_is_refused() {
    let document = with(datastream(endpoints(&["/a"])), "version_major", json!(0));
    parse(&document);
    let document = with(document, "version_minor", json!(0));
    assert!(errors(&document)["version_minor"][0].as_str().is_some());
}

#[test]
fn errors_of_mappings_stand_at_their_place_in_the_list() {
    let document = datastream(json!([
        {"endpoint": "/a", "type": "double"},
        {"endpoint": "a", "type": "float", "expiry": -1},
        {"type": "double", "retention": "keep", "explicit_timestamp": "yes"},
    ]));
    let error = Interface::from_json(&document).expect_err("refused");
    assert_eq!(
        error.to_json(),
        json!({"mappings": [
            {},
            {
                "endpoint": ["should be at least 2 character(s)", "has invalid format"],
                "type": ["is invalid"],
                "expiry": ["must be greater than or equal to 0"],
            },
            {
                "endpoint": ["can't be blank"],
                "retention": ["is invalid"],
                "explicit_timestamp": ["is invalid"],
            },
        ]})
    );
    let line = error.to_string();
    assert!(
        line.contains("mappings[1].type is invalid; mappings[2].endpoint can't be blank"),
        "{line}"
    );
    assert!(!line.contains('\n'));
}

#[test]
fn options_of_another_kind_of_interface_must_be_blank() {
    let a = |field: &str, value: Json| {
        let mut mapping = json!({"endpoint": "/a/b", "type": "double"});
        mapping[field] = value;
        json!([mapping])
    };
    let refused = |field: &str| json!({"mappings": [{field: ["must be blank"]}]});
    for (field, value) in [
        ("reliability", json!("unique")),
        ("retention", json!("stored")),
        ("expiry", json!(5)),
        ("explicit_timestamp", json!(true)),
        ("database_retention_policy", json!("use_ttl")),
        ("database_retention_ttl", json!(60)),
        ("required", json!(true)),
    ] {
        assert_eq!(errors(&properties(a(field, value))), refused(field));
    }
    assert_eq!(
        errors(&datastream(a("allow_unset", json!(true)))),
        refused("allow_unset")
    );
    assert_eq!(
        errors(&datastream(a("required", json!(true)))),
        refused("required")
    );
    parse(&object(a("required", json!(true))));
    parse(&properties(a("reliability", json!("unreliable"))));
    parse(&properties(a("database_retention_policy", json!("no_ttl"))));
    let both = with(
        properties(a("doc", json!("x"))),
        "aggregation",
        json!("object"),
    );
    assert!(errors(&both)["aggregation"].is_array());
}

#[test]
fn a_database_ttl_belongs_to_its_policy_and_its_range() {
    let mapping = |policy: Json, ttl: Json| {
        datastream(json!([{"endpoint": "/a", "type": "double",
            "database_retention_policy": policy, "database_retention_ttl": ttl}]))
    };
    let message = |policy: &str, ttl: Json| {
        errors(&mapping(json!(policy), ttl))["mappings"][0]["database_retention_ttl"][0].clone()
    };
    assert_eq!(message("use_ttl", json!(null)), "can't be blank");
    assert_eq!(message("no_ttl", json!(60)), "must be blank");
    assert_eq!(
        message("use_ttl", json!(59)),
        "must be greater than or equal to 60"
    );
    assert_eq!(
        message("use_ttl", json!(630_720_000)),
        "must be less than 630720000"
    );
    parse(&mapping(json!("use_ttl"), json!(60)));
    let longest = parse(&mapping(json!("use_ttl"), json!(630_719_999)));
    longest.check_retention(0).expect("no maximum");
    longest
        .check_retention(630_719_999)
        .expect("the maximum itself");
    let refused = longest
        .check_retention(86_400)
        .expect_err("above the realm's maximum");
    assert_eq!(
        refused.to_json(),
        json!({"mappings": [{"database_retention_ttl": ["must be less than or equal to 86400"]}]})
    );
}

#[test]
fn encrypted_mappings_are_refused() {
    let document = datastream(json!([{"endpoint": "/a", "type": "double", "encrypted": true}]));
    assert!(errors(&document)["mappings"][0]["encrypted"].is_array());
}

#[test]
fn endpoints_have_one_to_64_segments_of_names() {
    let deep = "/s".repeat(64);
    let good = ["/a", "/_", "/a1/_b/%{c}", "/%{_c1}", deep.as_str()];
    let deeper = "/s".repeat(65);
    let long = format!("/{}", "s".repeat(256));
    let bad = [
        "a",
        "//",
        "/a/",
        "/a//b",
        "/1a",
        "/a-b",
        "/%{}",
        "/%{1}",
        "/%{a",
        "/a%{b}",
        "/%{a}b",
        "/ä",
        "/a b",
        "/%{a}/%{b-c}",
        "/a\n",
        deeper.as_str(),
        long.as_str(),
    ];
    for endpoint in good {
        parse(&datastream(endpoints(&[endpoint])));
    }
    for endpoint in bad {
        let refused = errors(&datastream(endpoints(&[endpoint])));
        assert!(
            refused["mappings"][0]["endpoint"].is_array(),
            "{endpoint:?} was accepted"
        );
    }
}

#[test]
fn more_than_1024_mappings_are_refused() {
    let many: Vec<String> = (0..1025).map(|n| format!("/e{n}")).collect();
    let all: Vec<&str> = many.iter().map(String::as_str).collect();
    parse(&datastream(endpoints(&all[..1024])));
    let refused = errors(&datastream(endpoints(&all)));
    assert_eq!(
        refused,
        json!({"mappings": ["should have at most 1024 item(s)"]})
    );
}

#[test]
fn fc_122_conflicting_endpoints_are_refused_with_both_names_and_the_rule() {
    let overlaps: [(&[&str], [&str; 2]); 7] = [
        (
            &["/some/%{p}", "/some/thing/here"],
            ["/some/%{p}", "/some/thing/here"],
        ),
        (
            &["/this/a/here", "/this/a/%{id}/x"],
            ["/this/a/here", "/this/a/%{id}/x"],
        ),
        (&["/u", "/t", "/%{t}/e"], ["/u", "/%{t}/e"]),
        (
            &["/%{i}/value", "/myPath/value"],
            ["/%{i}/value", "/myPath/value"],
        ),
        (&["/a", "/a/b"], ["/a", "/a/b"]),
        (
            &["/some/thing", "/some/%{p}/value"],
            ["/some/thing", "/some/%{p}/value"],
        ),
        (
            &["/x/y", "/z/%{a}/b", "/%{c}/q/b"],
            ["/z/%{a}/b", "/%{c}/q/b"],
        ),
    ];
    for (all, named) in overlaps {
        let error = Interface::from_json(&datastream(endpoints(all))).expect_err("refused");
        let line = error.to_string();
        assert!(
            line.starts_with("Overlapping endpoints in interface mappings: "),
            "{line}"
        );
        assert!(
            named.iter().all(|endpoint| line.contains(endpoint)),
            "{line}"
        );
        assert!(line.contains("placeholder stands for any") || line.contains("is a prefix of"));
        assert_eq!(error.to_json(), json!({ "detail": line }));
    }
    for all in [["/%{a}/x", "/%{b}/x"], ["/a", "/A"], ["/a/B", "/a/b"]] {
        let refused = errors(&datastream(endpoints(&all)));
        let message = refused["mappings"][0]
            .as_str()
            .expect("one message")
            .to_owned();
        assert!(
            message.starts_with("contain conflicting endpoints: "),
            "{message}"
        );
        assert!(
            all.iter().all(|endpoint| message.contains(endpoint)),
            "{message}"
        );
    }
    // the placeholder of one never meets the literal of the other
    let sound = parse(&datastream(endpoints(&["/a/%{x}/b", "/%{y}/c/d"])));
    assert_eq!(
        &*sound.resolve("/a/c/d").expect("the second").endpoint,
        "/%{y}/c/d"
    );
    assert_eq!(
        &*sound.resolve("/a/c/b").expect("the first").endpoint,
        "/a/%{x}/b"
    );
}

#[test]
fn fc_122_mappings_of_an_object_agree_in_prefix_and_options() {
    let depth = errors(&object(endpoints(&["/a/b", "/c"])));
    let message = depth["mappings"][0].as_str().expect("message");
    assert!(
        message.starts_with("must have the same prefix in endpoints: /a/b and /c"),
        "{message}"
    );
    let names = errors(&object(endpoints(&["/%{p}/b", "/%{q}/c"])));
    assert!(
        names["mappings"][0]
            .as_str()
            .is_some_and(|text| text.contains("same prefix"))
    );
    for (field, value) in [
        ("reliability", json!("unique")),
        ("retention", json!("stored")),
        ("expiry", json!(1)),
        ("explicit_timestamp", json!(true)),
    ] {
        let mut mappings = endpoints(&["/a/b", "/a/c"]);
        mappings[1][field] = value;
        let refused = errors(&object(mappings));
        let message = refused["mappings"][0].as_str().expect("message").to_owned();
        assert!(
            message.starts_with("contain conflicting attributes: /a/b and /a/c"),
            "{message}"
        );
    }
    let key = errors(&object(endpoints(&["/a/%{key}"])));
    assert!(
        key["mappings"][0]
            .as_str()
            .is_some_and(|text| text.contains("/a/%{key}"))
    );
}

#[test]
#[expect(clippy::disallowed_methods, reason = "measures real time")]
fn fc_122_a_thousand_mappings_of_64_levels_are_judged_in_under_100_ms() {
    // literals and placeholders mixed so that only the last segment tells two endpoints apart
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 60
    };
    let all: Vec<String> = (0..1024)
        .map(|n| {
            let front: String = (0..63)
                .map(|_| if random() < 8 { "/a" } else { "/%{p}" })
                .collect();
            format!("{front}/e{n}")
        })
        .collect();
    let endpoints: Vec<&str> = all.iter().map(String::as_str).collect();
    let begun = Instant::now();
    assert!(conflicts::overlapping(&endpoints).is_empty());
    assert!(conflicts::alike(&endpoints).is_empty());
    let taken = begun.elapsed();
    // unoptimised test builds on a busy machine get some room
    let most = if cfg!(debug_assertions) { 1000 } else { 100 };
    assert!(taken < Duration::from_millis(most), "{taken:?}");
    let lookup = Lookup::new(endpoints.iter().copied());
    let path = format!("{}/e1023", "/a".repeat(63));
    assert_eq!(lookup.find(&path), Ok(1023));
}

#[test]
fn paths_are_resolved_by_segments() {
    let interface = parse(&datastream(endpoints(&[
        "/p/%{probe}/celsius",
        "/p/%{probe}/state/%{part}",
        "/q/version",
    ])));
    let found = |path: &str| interface.resolve(path).map(|mapping| &*mapping.endpoint);
    assert_eq!(found("/p/roof/celsius"), Ok("/p/%{probe}/celsius"));
    assert_eq!(found("/p/celsius/celsius/"), Ok("/p/%{probe}/celsius"));
    assert_eq!(found("/p/a b é-1/state/x"), Ok("/p/%{probe}/state/%{part}"));
    assert_eq!(found("/q/version"), Ok("/q/version"));
    for short in ["/", "/p", "/p/", "/p/roof", "/p/roof/state"] {
        assert_eq!(found(short), Err(PathError::AmbiguousPath), "{short}");
    }
    for unknown in [
        "/x",
        "/Q/version",
        "/q/versions",
        "/q/version/x",
        "/p/a/celsius/x",
        "/p/a/b",
    ] {
        assert_eq!(found(unknown), Err(PathError::MappingNotFound), "{unknown}");
    }
    for invalid in [
        "",
        "p/a/celsius",
        "//",
        "/p//celsius",
        "/q/version//",
        "/p/+/celsius",
        "/p/#",
        "/p/\0/x",
    ] {
        assert_eq!(found(invalid), Err(PathError::InvalidPath), "{invalid:?}");
    }
}

#[test]
fn objects_are_published_on_the_common_prefix() {
    let interface = parse(&object(endpoints(&[
        "/%{station}/frame/temp",
        "/%{station}/frame/hum",
    ])));
    assert_eq!(interface.resolve_object("/roof/frame"), Ok(()));
    assert_eq!(interface.resolve_object("/roof/frame/"), Ok(()));
    for path in [
        "/",
        "/roof",
        "/roof/frame/temp",
        "/roof/frames",
        "/roof/frame/temp/x",
    ] {
        assert_eq!(
            interface.resolve_object(path),
            Err(PathError::MappingNotFound),
            "{path}"
        );
    }
    assert_eq!(
        interface.resolve_object("/roof//frame"),
        Err(PathError::InvalidPath)
    );
    assert_eq!(
        interface.object_mapping("hum").map(Mapping::key),
        Some("hum")
    );
    assert!(interface.object_mapping("frame").is_none());
    assert!(interface.warnings().is_empty());

    let shallow = parse(&object(endpoints(&["/temp", "/hum"])));
    assert_eq!(shallow.resolve_object("/"), Ok(()));
    assert_eq!(
        shallow.resolve_object("/temp"),
        Err(PathError::MappingNotFound)
    );
    assert_eq!(shallow.warnings().len(), 1);
}

#[test]
fn an_update_may_add_and_change_what_the_specification_allows() {
    let old = parse(&datastream(endpoints(&["/a/%{x}"])));
    let newer = parse(&with(
        with(
            datastream(json!([
                {"endpoint": "/b", "type": "integer"},
                {"endpoint": "/a/%{x}", "type": "double", "retention": "stored", "expiry": 5,
                 "explicit_timestamp": true, "description": "x"},
            ])),
            "version_minor",
            json!(3),
        ),
        "doc",
        json!("more"),
    ));
    assert_eq!(check_update(&old, &newer), Ok(()));
}

#[test]
fn an_update_may_change_nothing_else() {
    let old = parse(&datastream(endpoints(&["/a/%{x}", "/b"])));
    let against = |minor: u32, mappings: Json| {
        check_update(
            &old,
            &parse(&with(datastream(mappings), "version_minor", json!(minor))),
        )
    };
    let all = endpoints(&["/a/%{x}", "/b"]);
    assert_eq!(against(2, all.clone()), Err(UpdateRefused::NotIncreased(2)));
    assert_eq!(against(1, all.clone()), Err(UpdateRefused::Downgrade(2)));
    let missing = UpdateRefused::MissingEndpoints(vec!["/a/%{x}".to_owned()]);
    assert_eq!(against(3, endpoints(&["/b"])), Err(missing));
    let incompatible = |endpoint: &str, field| {
        Err(UpdateRefused::IncompatibleEndpoint {
            endpoint: endpoint.to_owned(),
            field,
        })
    };
    assert_eq!(
        against(3, endpoints(&["/a/%{y}", "/b"])),
        incompatible("/a/%{x}", "endpoint")
    );
    for (field, value) in [("type", "integer"), ("reliability", "unique")] {
        let mut mappings = all.clone();
        mappings[1][field] = json!(value);
        assert_eq!(against(3, mappings), incompatible("/b", field));
    }
    let mut mappings = all;
    mappings[1]["database_retention_policy"] = json!("use_ttl");
    mappings[1]["database_retention_ttl"] = json!(60);
    assert_eq!(
        against(3, mappings),
        incompatible("/b", "database_retention_ttl")
    );
    let server = with(old.to_json(), "ownership", json!("server"));
    let changed = check_update(&old, &parse(&server));
    assert_eq!(changed, Err(UpdateRefused::KindChanged("ownership")));
}

#[test]
fn names_that_differ_in_case_or_hyphens_alone_collide() {
    assert!(names_collide("org.my-site.Thing", "org.mysite.thing"));
    assert!(!names_collide("org.mysite.Thing", "org.mysite.Thing"));
    assert!(!names_collide("org.mysite.Thing", "org.mysite.Things"));
}

fn introspection(text: &str) -> Introspection {
    Introspection::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn fc_117_malformed_introspection_is_refused_as_a_whole() {
    let refused: [&[u8]; 16] = [
        b"a.B:1:0;",
        b";a.B:1:0",
        b"a.B:1:0;;c.D:1:0",
        b"a.B:1",
        b"a.B",
        b":1:0",
        b"a.B:1:0:0",
        b"a.B:-1:0",
        b"a.B:x:0",
        b"a.B:1.0:0",
        b" a.B:1:0",
        b"a.B: 1:0",
        b"a_b:1:0",
        b"a.B:1:0\n",
        b"\xff.B:1:0",
        b"a.B::0",
    ];
    for payload in refused {
        let error = Introspection::parse(payload).expect_err("refused");
        assert_eq!(error.name(), "invalid_introspection");
    }
    for huge in [
        "a.B:1:99999999999",
        "a.B:2147483648:0",
        "a.B:1:18446744073709551617",
    ] {
        assert!(
            Introspection::parse(huge.as_bytes()).is_err(),
            "{huge} was taken"
        );
    }
}

#[test]
fn fc_117_lenient_forms_are_taken_as_astarte_takes_them() {
    let version = |major, minor| Some(MajorMinor { major, minor });
    assert!(introspection("").is_empty());
    assert_eq!(
        introspection("a.B:1:0;a.B:1:1").version("a.B"),
        version(1, 1)
    );
    assert_eq!(introspection("a.B:2:0;c.D:0:0;a.B:1:1").len(), 2);
    assert_eq!(introspection("a.B:0:0").version("a.B"), version(0, 0));
    assert_eq!(introspection("a.B:+1:007").version("a.B"), version(1, 7));
    assert_eq!(
        introspection("a.B:2147483647:0").version("a.B"),
        version(i32::MAX as u32, 0)
    );
    let long = "l".repeat(200);
    assert_eq!(
        introspection(&format!("{long}:1:0")).version(&long),
        version(1, 0)
    );
}

#[test]
fn fc_117_the_number_of_entries_has_a_stated_limit() {
    let entries = |count: usize| {
        (0..count)
            .map(|n| format!("org.example.I{n}:1:0"))
            .collect::<Vec<_>>()
            .join(";")
    };
    assert_eq!(introspection(&entries(4096)).len(), 4096);
    let refused = Introspection::parse(entries(10_000).as_bytes());
    assert_eq!(refused, Err(InvalidIntrospection::TooMany));
}

#[test]
fn a_changed_major_is_a_removal_and_an_addition() {
    let old = introspection("a.A:1:0;b.B:1:2;c.C:0:1;d.D:1:1");
    let new = introspection("a.A:2:0;b.B:1:3;d.D:1:1;e.E:0:5");
    let diff = old.diff(&new);
    let names = |all: &[(Arc<str>, MajorMinor)]| {
        all.iter()
            .map(|(name, v)| format!("{name}:{}:{}", v.major, v.minor))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&diff.added), ["a.A:2:0", "e.E:0:5"]);
    assert_eq!(names(&diff.removed), ["a.A:1:0", "c.C:0:1"]);
    let update = MinorUpdate {
        name: Arc::from("b.B"),
        major: 1,
        old_minor: 2,
        new_minor: 3,
    };
    assert_eq!(diff.minor_updated, [update]);
    assert_eq!(old.diff(&old), IntrospectionDiff::default());
}

proptest! {
    #[test]
    fn introspection_prints_as_it_is_read(
        entries in prop::collection::vec(("[a-z][a-z0-9]{0,3}\\.[A-Z]", 0..5_u32, 0..=MajorMinor::NUMBER_MAX), 0..20)
    ) {
        let read: Introspection = entries
            .into_iter()
            .map(|(name, major, minor)| (Arc::from(name), MajorMinor { major, minor }))
            .collect();
        prop_assert_eq!(Introspection::parse(read.to_string().as_bytes()), Ok(read));
    }

    #[test]
    fn hostile_introspection_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Introspection::parse(&bytes);
    }

    #[test]
    fn hostile_documents_never_panic(
        name in ".{0,12}", endpoint in ".{0,12}", path in ".{0,12}", number in any::<i64>()
    ) {
        let document = json!({"interface_name": name, "version_major": number, "version_minor": 1,
            "type": "datastream", "ownership": "device",
            "mappings": [{"endpoint": endpoint, "type": "double", "expiry": number}]});
        let _ = Interface::from_json(&document).map_err(|error| error.to_json());
        let sound = parse(&datastream(endpoints(&["/%{a}/b"])));
        let _ = (sound.resolve(&path), sound.resolve_object(&path));
    }
}
