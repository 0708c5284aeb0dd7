//! What a device may send as a value: stored and read back exactly, or refused by name.

use bson::{Bson, Document, doc};
use serde_json::{Value, json};

use crate::harness::{
    api::AppEngine,
    device::{RawDevice, Received, bson, pubcomp, pubrec},
    product::{ALL_INTERFACES, Tanit, TestDevice},
};

/// Kicks of one device in a row; more of them in a minute would hold it off.
const KICKS: usize = 3;

/// A device under test, replaced by a fresh one before it has been kicked too often.
struct Bench {
    tanit: Tanit,
    introspection: String,
    device: TestDevice,
    connection: RawDevice,
    expected: Vec<String>,
}

impl Bench {
    async fn start() -> Self {
        let tanit = Tanit::start().await;
        tanit.fixtures().await;
        Self::on(tanit, ALL_INTERFACES).await
    }

    async fn on(tanit: Tanit, introspection: &str) -> Self {
        let device = tanit.device("acme").await;
        let connection = device.connect_clean(&tanit, introspection).await;
        Self {
            introspection: introspection.to_owned(),
            tanit,
            device,
            connection,
            expected: Vec::new(),
        }
    }

    /// Sends a message that is acknowledged and changes nothing about the connection.
    async fn send(&mut self, below: &str, payload: &[u8]) {
        self.connection.publish(below, payload).await;
    }

    /// Sends a message that is acknowledged, ends the session and becomes this device error.
    async fn refused(&mut self, below: &str, payload: &[u8], error: &str) {
        let id = self.connection.send_publish(below, payload, 1).await;
        let seen = self.connection.expect_closed().await;
        let seen: Vec<_> = seen
            .iter()
            .map(|packet| (packet.kind(), packet.id()))
            .collect();
        assert_eq!(seen, [(4, id)], "{below} {payload:02x?}: its PUBACK");
        self.expected.push(error.to_owned());
        if self.expected.len() == KICKS {
            self.replace().await;
        } else {
            self.connection = self
                .device
                .connect_clean(&self.tanit, &self.introspection)
                .await;
        }
    }

    /// Compares the errors of the device with what was expected, and goes on with a fresh one.
    async fn replace(&mut self) {
        self.check().await;
        self.device = self.tanit.device("acme").await;
        self.connection = self
            .device
            .connect_clean(&self.tanit, &self.introspection)
            .await;
        self.expected.clear();
    }

    async fn check(&self) {
        assert_eq!(self.tanit.errors(&self.device).await, self.expected);
    }

    async fn values(&self, interface: &str, path: &str) -> Vec<Value> {
        let rows = self.tanit.data(&self.device, interface, path).await;
        rows.into_iter().map(|row| row["value"].clone()).collect()
    }

    /// All that is stored for an interface.
    async fn snapshot(&self, interface: &str) -> Value {
        self.tanit
            .cli(&["data", "acme", &self.device.id, interface])
            .await
    }

    fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.tanit.pid()))
            .expect("a status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .expect("its memory");
        let kib: u64 = line
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number");
        kib * 1024
    }
}

fn bytes(document: &Document) -> Vec<u8> {
    document.to_vec().expect("BSON")
}

/// `{v: …}` of one element by hand: its type, and its bytes as they are to stand there.
fn element(tag: u8, value: &[u8]) -> Vec<u8> {
    envelope("v", tag, value)
}

fn envelope(key: &str, tag: u8, value: &[u8]) -> Vec<u8> {
    let mut inside = vec![tag];
    inside.extend(key.as_bytes());
    inside.push(0);
    inside.extend(value);
    document(&inside)
}

fn document(inside: &[u8]) -> Vec<u8> {
    let length = i32::try_from(inside.len() + 5).expect("a short document");
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(inside);
    bytes.push(0);
    bytes
}

fn with_length(payload: &[u8], at: usize, length: i32) -> Vec<u8> {
    let mut changed = payload.to_vec();
    changed[at..at + 4].copy_from_slice(&length.to_le_bytes());
    changed
}

#[tokio::test]
async fn fc_099_wrong_length_prefixes_are_refused_without_memory() {
    const UNDECODABLE: &str = "undecodable_bson_payload";
    let mut bench = Bench::start().await;
    bench.send("t.Dev/int", &bson(5)).await;
    let before = bench.resident_bytes();
    let good = bson(5);
    let real = i32::try_from(good.len()).expect("short");
    for length in [0, 4, -1, i32::MAX, real - 1, real + 1] {
        let bad = with_length(&good, 0, length);
        bench.refused("t.Dev/int", &bad, UNDECODABLE).await;
    }
    // the lengths inside stand behind four bytes, the type and "v\0"
    let (text, blob) = (bson("text"), element(5, b"\x04\0\0\0\0blob"));
    let inner = bytes(&doc! {"v": {"temp": 1.5}});
    let array = bytes(&doc! {"v": [1, 2, 3]});
    let cases = [
        ("t.Dev/str", &text),
        ("t.Dev/blob", &blob),
        ("t.DevObj/", &inner),
        ("t.Dev/ints", &array),
    ];
    for (below, payload) in cases {
        for length in [-1, i32::MAX] {
            bench
                .refused(below, &with_length(payload, 7, length), UNDECODABLE)
                .await;
        }
    }
    let mut longer = good.clone();
    longer.push(0);
    let huge_array = [11, 0, 0, 0, 4, b'v', 0, 0xff, 0xff, 0xff, 0x7f];
    let unfinished = &good[..good.len() - 1];
    for bad in [&longer[..], unfinished, &good[..6], &huge_array, b"junk"] {
        bench.refused("t.Dev/int", bad, UNDECODABLE).await;
    }
    let grown = bench.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes of memory were kept");

    bench.replace().await;
    bench.refused("t.Dev/int", &[0xff; 1000], UNDECODABLE).await;
    let rows = bench
        .tanit
        .cli(&["device", "errors", "acme", &bench.device.id])
        .await;
    let excerpt = rows[0]["base64_payload"].as_str().expect("an excerpt");
    assert!(
        excerpt.starts_with("////") && excerpt.len() < 400,
        "{excerpt}"
    );
    bench.send("t.Dev/int", &bson(6)).await;
    assert_eq!(bench.values("t.Dev", "/int").await, [6]);
}

/// Documents (or arrays) inside each other, by hand: the crate's own types recurse.
fn nested(tag: u8, depth: usize) -> Vec<u8> {
    let mut inner = vec![5, 0, 0, 0, 0];
    let mut heads = Vec::new();
    let mut length: i32 = 5;
    for _ in 0..depth {
        length += 8;
        heads.push(length);
    }
    let mut bytes = Vec::new();
    for length in heads.iter().rev() {
        bytes.extend(length.to_le_bytes());
        bytes.extend([tag, if tag == 4 { b'0' } else { b'a' }, 0]);
    }
    bytes.append(&mut inner);
    bytes.resize(bytes.len() + depth, 0);
    bytes
}

#[tokio::test]
async fn fc_100_deep_nesting_is_refused_wherever_it_stands() {
    let mut bench = Bench::start().await;
    let pid = bench.tanit.pid();
    for depth in [3, 200, 10_000] {
        for (tag, key) in [(3, "v"), (4, "v"), (3, "m"), (4, "other")] {
            let payload = envelope(key, tag, &nested(tag, depth));
            bench
                .refused("t.Dev/int", &payload, "undecodable_bson_payload")
                .await;
        }
    }
    bench.send("t.Dev/int", &bson(1)).await;
    bench.check().await;
    assert_eq!(bench.tanit.pid(), pid, "it lives");
}

/// A number that is a text is left out: for JSON that is the form of a long integer.
#[tokio::test]
async fn fc_101_numbers_are_accepted_when_they_fit_and_the_api_agrees() {
    let mut bench = Bench::start().await;
    let api = AppEngine::of(&bench.tanit, "acme").await;
    let large = 2_147_483_648_i64;
    let cases: [(Bson, Value); 10] = [
        (1_i32.into(), json!(1)),
        (1_i64.into(), json!(1)),
        (i64::from(i32::MAX).into(), json!(i32::MAX)),
        (large.into(), json!(large)),
        ((-large).into(), json!(-large)),
        (i64::MAX.into(), json!(i64::MAX)),
        (1.0.into(), json!(1.0)),
        (1e300.into(), json!(1e300)),
        (true.into(), json!(true)),
        ("x".into(), json!("x")),
    ];
    // integer, longinteger, double
    let fits = [
        [true, true, true],
        [true, true, true],
        [true, true, true],
        [false, true, true],
        [true, true, true],
        [false, true, true],
        [false, false, true],
        [false, false, true],
        [false, false, false],
        [false, false, false],
    ];
    for ((sent, json), fits) in cases.iter().zip(fits) {
        for (path, fits) in ["int", "long", "dbl"].into_iter().zip(fits) {
            let below = format!("t.Dev/{path}");
            if fits {
                bench.send(&below, &bson(sent.clone())).await;
            } else {
                bench
                    .refused(&below, &bson(sent.clone()), "unexpected_value_type")
                    .await;
            }
            let at = format!("t.SrvProp/{path}");
            let (status, answer) = api.put(&bench.tanit, &bench.device, &at, json).await;
            let expected = if fits { 200 } else { 422 };
            assert_eq!(status, expected, "{json} to {path}: {answer}");
        }
    }
    bench.replace().await;
    bench.send("t.Dev/int", &bson(i64::from(i32::MAX))).await;
    bench.send("t.Dev/long", &bson(7)).await;
    bench.send("t.Dev/long", &bson(i64::MAX)).await;
    bench.send("t.Dev/dbl", &bson(3)).await;
    assert_eq!(bench.values("t.Dev", "/int").await, [i32::MAX]);
    assert_eq!(
        bench.values("t.Dev", "/long").await,
        [json!("7"), json!(i64::MAX.to_string())]
    );
    assert_eq!(bench.values("t.Dev", "/dbl").await, [3.0]);
}

#[tokio::test]
async fn fc_103_nan_and_infinities_are_refused_and_odd_doubles_kept_bit_by_bit() {
    let mut bench = Bench::start().await;
    let bits = |bits: u64| element(1, &bits.to_le_bytes());
    for (odd, error) in [
        (0x7ff8_0000_0000_0000, "unexpected_value_type"),
        (f64::INFINITY.to_bits(), "unexpected_value_type"),
        (f64::NEG_INFINITY.to_bits(), "unexpected_value_type"),
        (0xfff8_0000_0000_0000, "undecodable_bson_payload"),
        (0x7ff0_0000_0000_0001, "undecodable_bson_payload"),
        (u64::MAX, "undecodable_bson_payload"),
    ] {
        bench.refused("t.Dev/dbl", &bits(odd), error).await;
    }
    let kept = [-0.0, 5e-324, -5e-324, f64::MAX, f64::MIN, f64::MIN_POSITIVE];
    for number in kept {
        bench.send("t.Dev/dbl", &bits(f64::to_bits(number))).await;
    }
    let read: Vec<u64> = bench
        .values("t.Dev", "/dbl")
        .await
        .iter()
        .map(|value| value.as_f64().expect("a number").to_bits())
        .collect();
    assert_eq!(read, kept.map(f64::to_bits));
}

#[tokio::test]
async fn fc_105_zero_false_and_empty_are_values_and_only_nothing_unsets() {
    let mut bench = Bench::start().await;
    bench.send("t.DevProp/b", &bson(0)).await;
    bench.send("t.DevProp/a", &bson("")).await;
    bench.send("t.Dev/bool", &bson(false)).await;
    for path in ["ints", "strs", "blobs"] {
        let below = format!("t.Dev/{path}");
        bench.send(&below, &bson(Vec::<Bson>::new())).await;
        assert_eq!(
            bench.values("t.Dev", &format!("/{path}")).await,
            [json!([])]
        );
    }
    assert_eq!(bench.values("t.Dev", "/bool").await, [false]);
    assert_eq!(bench.snapshot("t.DevProp").await, json!({"a": "", "b": 0}));
    bench.send("t.DevProp/a", b"").await;
    assert_eq!(bench.snapshot("t.DevProp").await, json!({"b": 0}));
    bench.check().await;
}

#[tokio::test]
async fn fc_107_unset_is_refused_where_the_mapping_does_not_allow_it() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    tanit
        .install(
            "acme",
            &json!({"interface_name": "t.SrvFixed", "version_major": 1, "version_minor": 0,
                "type": "properties", "ownership": "server", "mappings": [
                    {"endpoint": "/fixed", "type": "integer"},
                    {"endpoint": "/free", "type": "integer", "allow_unset": true}]}),
        )
        .await;
    let mut bench = Bench::on(tanit, &format!("{ALL_INTERFACES};t.SrvFixed:1:0")).await;
    bench.send("t.DevProp/a", &bson("x")).await;
    bench.send("t.DevProp/b", &bson(5)).await;
    bench.send("t.DevProp/a", b"").await;
    bench.send("t.DevProp/a", b"").await;
    // on datastreams it is an error, and no kick
    bench.send("t.Dev/int", b"").await;
    bench.send("t.DevObj/", b"").await;
    bench.expected = vec!["unset_on_datastream".to_owned(); 2];
    bench.refused("t.DevProp/b", b"", "unset_not_allowed").await;
    bench
        .refused("t.DevProp/none", b"", "mapping_not_found")
        .await;
    bench.check().await;

    let api = AppEngine::of(&bench.tanit, "acme").await;
    for path in ["fixed", "free"] {
        let at = format!("t.SrvFixed/{path}");
        let (status, _) = api.put(&bench.tanit, &bench.device, &at, &json!(1)).await;
        assert_eq!(status, 200);
    }
    for (path, expected) in [("fixed", 422), ("free", 204), ("none", 400)] {
        let at = format!("t.SrvFixed/{path}");
        let (status, answer) = api.delete(&bench.tanit, &bench.device, &at).await;
        assert_eq!(status, expected, "{path}: {answer}");
    }
    assert_eq!(bench.snapshot("t.SrvFixed").await, json!({"fixed": 1}));
}

#[tokio::test]
async fn fc_107_a_refused_unset_leaves_the_value() {
    let mut bench = Bench::start().await;
    bench.send("t.DevProp/b", &bson(5)).await;
    bench.refused("t.DevProp/b", b"", "unset_not_allowed").await;
    assert_eq!(bench.snapshot("t.DevProp").await, json!({"b": 5}));
}

#[tokio::test]
async fn fc_108_object_messages_match_the_objects_mappings() {
    let mut bench = Bench::start().await;
    let sent = [
        doc! {"v": {"temp": 1.5}},
        doc! {"v": {"temp": 2.5, "hum": 40}},
        doc! {"v": {}},
        doc! {"hum": 3.0},
    ];
    for document in &sent {
        bench.send("t.DevObj/", &bytes(document)).await;
    }
    let refused = [
        (
            doc! {"v": {"temp": 1.0, "hum": 2.0, "x": 1}},
            "unexpected_object_key",
        ),
        (doc! {"v": {"temp": {"v": 1}}}, "unexpected_value_type"),
        (doc! {"v": {"temp": "1"}}, "unexpected_value_type"),
        (doc! {"v": 1.0}, "unexpected_value_type"),
    ];
    let stored = object_rows(&bench).await;
    assert_eq!(
        stored,
        [
            json!({"temp": 1.5, "hum": null}),
            json!({"temp": 2.5, "hum": 40.0}),
            json!({"temp": null, "hum": null}),
            json!({"temp": null, "hum": 3.0}),
        ]
    );
    for (number, (document, error)) in refused.iter().enumerate() {
        bench.refused("t.DevObj/", &bytes(document), error).await;
        if number == 0 {
            let rows = bench
                .tanit
                .cli(&["device", "errors", "acme", &bench.device.id])
                .await;
            let detail = rows[0]["detail"].as_str().expect("a detail");
            assert!(detail.contains("\"x\""), "the key is named: {detail}");
            assert_eq!(object_rows(&bench).await, stored, "nothing of it is stored");
        }
    }
    let good = bytes(&doc! {"v": {"temp": 1.0}});
    bench
        .refused("t.DevObj/extra", &good, "mapping_not_found")
        .await;
    bench
        .refused("t.DevObj/temp", &good, "mapping_not_found")
        .await;
    let inner = bytes(&doc! {"v": {"a": 1}});
    bench
        .refused("t.Dev/int", &inner, "unexpected_value_type")
        .await;
    if !bench.expected.is_empty() {
        bench.check().await;
    }
}

#[tokio::test]
async fn fc_108_the_api_has_the_same_rule_for_objects() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    tanit
        .install(
            "acme",
            &json!({"interface_name": "t.SrvObj", "version_major": 1, "version_minor": 0,
                "type": "datastream", "ownership": "server", "aggregation": "object",
                "mappings": [{"endpoint": "/o/temp", "type": "double"},
                    {"endpoint": "/o/hum", "type": "double"}]}),
        )
        .await;
    let mut bench = Bench::on(tanit, "t.SrvObj:1:0").await;
    bench.connection.subscribe(&[("t.SrvObj/#", 0)]).await;
    let api = AppEngine::of(&bench.tanit, "acme").await;
    let cases = [
        (json!({"temp": 1.5}), 200),
        (json!({"temp": 2.5, "hum": 40}), 200),
        (json!({"temp": 1.0, "hum": 2.0, "x": 1}), 400),
        (json!({"temp": {"v": 1}}), 422),
        (json!({"temp": "1"}), 422),
        (json!(1.0), 422),
    ];
    for (value, expected) in cases {
        let at = "t.SrvObj/o";
        let (status, answer) = api.put(&bench.tanit, &bench.device, at, &value).await;
        assert_eq!(status, expected, "{value}: {answer}");
    }
    for sent in [doc! {"temp": 1.5}, doc! {"temp": 2.5, "hum": 40.0}] {
        let received = bench.connection.receive().await;
        let received = Document::from_reader(&received.payload[..]).expect("BSON");
        let mut inside = received.get_document("v").expect("an object").clone();
        let absent: Vec<String> = inside
            .iter()
            .filter(|(_, member)| **member == Bson::Null)
            .map(|(name, _)| name.clone())
            .collect();
        for name in absent {
            inside.remove(name);
        }
        assert_eq!(inside, sent);
    }
    bench.connection.expect_only_pong().await;
    let rows = bench.tanit.data(&bench.device, "t.SrvObj", "/o").await;
    assert_eq!(rows.len(), 2, "what was refused is not stored: {rows:?}");
}

/// The stored objects, without their timestamps.
async fn object_rows(bench: &Bench) -> Vec<Value> {
    let mut rows = bench.tanit.data(&bench.device, "t.DevObj", "/").await;
    for row in &mut rows {
        row.as_object_mut().expect("an object").remove("timestamp");
    }
    rows
}

/// A type of Astarte by its path in the fixtures: the type's name, and its value number n in BSON
/// and as AppEngine shows it in a series (long integers as text) and in a snapshot.
struct Kind {
    path: &'static str,
    name: &'static str,
    value: fn(i32) -> Bson,
    shown: fn(i32) -> Value,
}

const KINDS: [Kind; 7] = [
    Kind {
        path: "int",
        name: "integer",
        value: |n| Bson::Int32(n - 2),
        shown: |n| json!(n - 2),
    },
    Kind {
        path: "long",
        name: "longinteger",
        value: |n| Bson::Int64(i64::from(n) + (1 << 40)),
        shown: |n| json!((i64::from(n) + (1 << 40)).to_string()),
    },
    Kind {
        path: "dbl",
        name: "double",
        value: |n| Bson::Double(f64::from(n) + 0.1),
        shown: |n| json!(f64::from(n) + 0.1),
    },
    Kind {
        path: "bool",
        name: "boolean",
        value: |n| Bson::Boolean(n % 2 == 0),
        shown: |n| json!(n % 2 == 0),
    },
    Kind {
        path: "str",
        name: "string",
        value: |n| Bson::String(format!("ü{n}")),
        shown: |n| json!(format!("ü{n}")),
    },
    Kind {
        path: "blob",
        name: "binaryblob",
        value: |n| Bson::Binary(blob(n)),
        shown: |n| json!(blob_shown(n)),
    },
    Kind {
        path: "when",
        name: "datetime",
        value: |n| Bson::DateTime(bson::DateTime::from_millis(1_000 * i64::from(n))),
        shown: |n| json!(format!("1970-01-01T00:{:02}:{:02}.000Z", n / 60, n % 60)),
    },
];

fn blob(n: i32) -> bson::Binary {
    bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: n.to_be_bytes()[1..].to_vec(),
    }
}

/// Three bytes are four characters of base64.
fn blob_shown(n: i32) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    [18, 12, 6, 0]
        .map(|shift| char::from(DIGITS[usize::try_from((n >> shift) & 63).expect("small")]))
        .into_iter()
        .collect()
}

fn sent(kind: &Kind, count: i32) -> Bson {
    Bson::Array((0..count).map(kind.value).collect())
}

fn shown(kind: &Kind, count: i32) -> Value {
    Value::Array((0..count).map(kind.shown).collect())
}

/// Interfaces of objects that hold an array of every type.
fn object_of_arrays(name: &str, ownership: &str) -> Value {
    let mappings: Vec<Value> = KINDS
        .iter()
        .map(|kind| {
            json!({"endpoint": format!("/all/{}", kind.path), "type": format!("{}array", kind.name)})
        })
        .collect();
    json!({"interface_name": name, "version_major": 1, "version_minor": 0, "type": "datastream",
        "ownership": ownership, "aggregation": "object", "mappings": mappings})
}

/// Both directions, individual and in an object, with 0, 1, 3 and 1,024 elements.
#[tokio::test]
async fn fc_110_arrays_of_every_type_make_the_round_trip() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    for (name, ownership) in [("t.DevAll", "device"), ("t.SrvAll", "server")] {
        tanit
            .install("acme", &object_of_arrays(name, ownership))
            .await;
    }
    let introspection = format!("{ALL_INTERFACES};t.DevAll:1:0;t.SrvAll:1:0");
    let mut bench = Bench::on(tanit, &introspection).await;
    let api = AppEngine::of(&bench.tanit, "acme").await;
    bench
        .connection
        .subscribe(&[("t.SrvProp/#", 2), ("t.SrvAll/#", 2)])
        .await;
    let counts = [0, 1, 3, 1024];
    for kind in &KINDS {
        let path = format!("{}s", kind.path);
        for count in counts {
            bench
                .send(&format!("t.Dev/{path}"), &bson(sent(kind, count)))
                .await;
            let at = format!("t.SrvProp/{path}");
            let set = shown(kind, count);
            let (status, answer) = api.put(&bench.tanit, &bench.device, &at, &set).await;
            assert_eq!((status, &answer["data"]), (200, &set), "{path}");
            let received = exactly_once(&mut bench.connection).await;
            assert_eq!(
                received.payload,
                bson(sent(kind, count)),
                "{path} of {count}"
            );
        }
        let expected = counts.map(|count| shown(kind, count));
        assert_eq!(
            bench.values("t.Dev", &format!("/{path}")).await,
            expected,
            "{path}"
        );
    }
    for count in counts {
        let mut inside = Document::new();
        for kind in &KINDS {
            inside.insert(kind.path, sent(kind, count));
        }
        bench
            .send("t.DevAll/all", &bytes(&doc! {"v": &inside}))
            .await;
        let rows = bench.tanit.data(&bench.device, "t.DevAll", "/all").await;
        let row = rows.last().expect("a row");
        let mut set = serde_json::Map::new();
        for kind in &KINDS {
            assert_eq!(row[kind.path], shown(kind, count), "{}", kind.name);
            set.insert(kind.path.to_owned(), shown(kind, count));
        }
        let (status, answer) = api
            .put(&bench.tanit, &bench.device, "t.SrvAll/all", &set.into())
            .await;
        assert_eq!(status, 200, "{answer}");
        let received = bench.connection.receive().await;
        let received = Document::from_reader(&received.payload[..]).expect("BSON");
        assert_eq!(received, doc! {"v": inside});
    }
    bench.check().await;
}

/// Takes the next PUBLISH at QoS 2 and completes its flow.
async fn exactly_once(connection: &mut RawDevice) -> Received {
    let received = connection.expect(3).await.publish();
    assert_eq!(received.qos, 2, "a property");
    let id = received.packet_id.expect("an id");
    connection.send(&pubrec(id)).await;
    assert_eq!(connection.expect(6).await.id(), id, "its PUBREL");
    connection.send(&pubcomp(id)).await;
    received
}

#[tokio::test]
async fn fc_112_dates_at_the_edge_are_kept_in_order_or_refused_on_entry() {
    let mut bench = Bench::start().await;
    let at = |millis: i64| Bson::DateTime(bson::DateTime::from_millis(millis));
    let last = 253_402_300_799_999;
    let years: i64 = 4_102_444_800_000; // 2100
    let kept = [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (last, "9999-12-31T23:59:59.999Z"),
        (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
        (years, "2100-01-01T00:00:00.000Z"),
    ];
    for (millis, _) in kept {
        bench.send("t.Dev/when", &bson(at(millis))).await;
        let stamped = bytes(&doc! {"v": 1, "t": at(millis)});
        bench.send("t.Dev/int", &stamped).await;
    }
    let texts: Vec<&str> = kept.iter().map(|(_, text)| *text).collect();
    let mut whens: Vec<String> = texts_of(&bench.values("t.Dev", "/when").await);
    let mut expected: Vec<&str> = texts.clone();
    whens.sort();
    expected.sort_unstable();
    assert_eq!(whens, expected);
    let rows = bench.tanit.data(&bench.device, "t.Dev", "/int").await;
    let stamps: Vec<_> = rows
        .iter()
        .map(|row| row["timestamp"].as_str().expect("a time").to_owned())
        .collect();
    assert_eq!(stamps, expected, "oldest first");
    let rows = bench
        .tanit
        .cli(&[
            "data",
            "acme",
            &bench.device.id,
            "t.Dev",
            "/int",
            "--since",
            "1969-12-31T23:59:59.999Z",
            "--to",
            "2100-01-01T00:00:00.000Z",
        ])
        .await;
    assert_eq!(rows.as_array().expect("a list").len(), 2, "{rows}");

    for value in [10, 20] {
        let stamped = bytes(&doc! {"v": value, "t": at(5_000)});
        bench.send("t.Dev/long", &stamped).await;
    }
    assert_eq!(
        bench.values("t.Dev", "/long").await,
        ["10", "20"],
        "equal times keep both"
    );
    for millis in [last + 1, -62_167_219_200_001, i64::MIN, i64::MAX] {
        bench
            .refused("t.Dev/when", &bson(at(millis)), "unexpected_value_type")
            .await;
        let stamped = bytes(&doc! {"v": 1, "t": at(millis)});
        bench
            .refused("t.Dev/int", &stamped, "unexpected_value_type")
            .await;
    }
    bench.check().await;
}

fn texts_of(values: &[Value]) -> Vec<String> {
    values
        .iter()
        .map(|value| value.as_str().expect("a text").to_owned())
        .collect()
}

/// Online, from the queue after a reconnect, and from the queue after a restart.
#[tokio::test]
async fn fc_114_a_property_has_the_same_bytes_whenever_it_is_sent() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let api = AppEngine::of(&tanit, "acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare(ALL_INTERFACES).await;
    connection.subscribe(&[("t.SrvProp/#", 2)]).await;
    set_all(&tanit, &api, &device).await;
    let online = take_all(&mut connection).await;
    for (path, expected) in KINDS.iter().flat_map(both) {
        let topic = format!("{}/t.SrvProp/{path}", device.base());
        assert!(online.contains(&(topic, bson(expected))), "{path}");
    }
    connection.disconnect().await;
    for restarted in [false, true] {
        set_all(&tanit, &api, &device).await;
        if restarted {
            assert!(tanit.terminate().await.success());
            tanit.launch().await;
        }
        let (mut connection, present) = device.connect(&tanit).await;
        assert!(present);
        assert_eq!(take_all(&mut connection).await, online, "{restarted}");
        connection.disconnect().await;
    }
}

/// A value of a type and an array of it, with their paths.
fn both(kind: &Kind) -> [(String, Bson); 2] {
    [
        (kind.path.to_owned(), (kind.value)(3)),
        (format!("{}s", kind.path), sent(kind, 3)),
    ]
}

async fn set_all(tanit: &Tanit, api: &AppEngine, device: &TestDevice) {
    for kind in &KINDS {
        for (path, value) in [
            (kind.path.to_owned(), (kind.shown)(3)),
            (format!("{}s", kind.path), shown(kind, 3)),
        ] {
            let at = format!("t.SrvProp/{path}");
            let (status, answer) = api.put(tanit, device, &at, &value).await;
            assert_eq!(status, 200, "{path}: {answer}");
        }
    }
}

/// Topic and payload of a property of each of the 14 types.
async fn take_all(connection: &mut RawDevice) -> Vec<(String, Vec<u8>)> {
    let mut values = Vec::new();
    for _ in 0..2 * KINDS.len() {
        let received = exactly_once(connection).await;
        values.push((received.topic, received.payload));
    }
    connection.expect_only_pong().await;
    values
}
