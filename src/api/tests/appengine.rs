//! AppEngine: devices, what is read of them and what is written for them.

use std::{ops::Deref, sync::Arc};

use async_trait::async_trait;

use super::*;
use crate::{
    engine::writes::{Delivered, Downlink, Reach, Writes, WritesParts},
    interface::{InterfaceKey, Introspection},
    payload::{self, Value as Stored},
    store::{Effect, OutboxRow, Unit},
};

const DEVICES: &str = "/appengine/v1/acme/devices";
const DECLARED: &str =
    "t.Dev:1:0;t.DevObj:1:0;t.DevProp:1:0;t.SrvProp:1:0;t.SrvCmd:1:0;t.Ghost:1:0";

fn documents() -> Vec<Value> {
    let document = |name: &str, kind: &str, ownership: &str, mappings: Value| {
        json!({ "interface_name": name, "version_major": 1, "version_minor": 0, "type": kind,
            "ownership": ownership, "mappings": mappings })
    };
    let mut object = document(
        "t.DevObj",
        "datastream",
        "device",
        json!([
            { "endpoint": "/%{room}/temp", "type": "double", "explicit_timestamp": true },
            { "endpoint": "/%{room}/count", "type": "longinteger", "explicit_timestamp": true },
        ]),
    );
    object["aggregation"] = json!("object");
    vec![
        object,
        document(
            "t.Dev",
            "datastream",
            "device",
            json!([
                { "endpoint": "/int", "type": "integer" },
                { "endpoint": "/p/%{id}/long", "type": "longinteger" },
            ]),
        ),
        document(
            "t.DevProp",
            "properties",
            "device",
            json!([
                { "endpoint": "/a/%{x}/text", "type": "string", "allow_unset": true },
                { "endpoint": "/b", "type": "longinteger" },
            ]),
        ),
        document(
            "t.SrvProp",
            "properties",
            "server",
            json!([
                { "endpoint": "/long", "type": "longinteger", "allow_unset": true },
                { "endpoint": "/kept/text", "type": "string" },
            ]),
        ),
        document(
            "t.SrvCmd",
            "datastream",
            "server",
            json!([
                { "endpoint": "/cmd", "type": "integer", "reliability": "guaranteed",
                  "retention": "stored", "expiry": 30 },
                { "endpoint": "/fast", "type": "boolean" },
            ]),
        ),
    ]
}

/// What would hold the devices' sessions: notes what is delivered, and answers as it is told.
#[derive(Debug)]
struct Outbound {
    reach: Mutex<Reach>,
    answer: Mutex<Delivered>,
    delivered: Mutex<Vec<OutboxRow>>,
}

impl Outbound {
    /// From now on devices are reached so, and messages end so.
    fn answer(&self, reach: Reach, answer: Delivered) {
        *self.reach.lock().unwrap() = reach;
        *self.answer.lock().unwrap() = answer;
    }

    fn queue(&self) {
        self.answer(Reach::Subscribed, Delivered::Queued { until: None });
    }

    /// What was delivered since the last call.
    fn delivered(&self) -> Vec<OutboxRow> {
        std::mem::take(&mut self.delivered.lock().unwrap())
    }
}

#[async_trait]
impl Downlink for Outbound {
    async fn reach(&self, _: &OutboxRow) -> Reach {
        *self.reach.lock().unwrap()
    }

    async fn deliver(&self, message: &OutboxRow) -> Delivered {
        self.delivered.lock().unwrap().push(message.clone());
        self.answer.lock().unwrap().clone()
    }
}

/// A house with the interfaces installed, one device that declares them, and our own sessions.
struct Furnished {
    house: House,
    outbound: Arc<Outbound>,
}

impl Deref for Furnished {
    type Target = House;

    fn deref(&self) -> &House {
        &self.house
    }
}

async fn furnished() -> Furnished {
    let mut house = House::start().await;
    for document in documents() {
        house
            .post(
                OPERATOR,
                "/realmmanagement/v1/acme/interfaces",
                None,
                document,
            )
            .await
            .is(201);
    }
    house.register(ID).await;
    let introspection = Introspection::parse(DECLARED.as_bytes()).unwrap();
    commit(&house, vec![Effect::SetIntrospection(introspection)]).await;
    let outbound = Arc::new(Outbound {
        reach: Mutex::new(Reach::NoSession),
        answer: Mutex::new(Delivered::NoSession),
        delivered: Mutex::default(),
    });
    house.api = api_over(&house, outbound.clone()).await;
    house.router = router(&house.api);
    Furnished { house, outbound }
}

/// The house's API with writes that go to `outbound`.
async fn api_over(house: &House, outbound: Arc<Outbound>) -> Arc<Api> {
    let api = &house.api;
    let settings = EngineSettings::default();
    let engine = Engine::start(
        api.store.clone(),
        settings,
        house.clock.clone(),
        &api.tracker,
    )
    .await;
    let writes = WritesParts {
        store: api.store.clone(),
        engine: engine.unwrap(),
        downlink: outbound,
        clock: house.clock.clone(),
        tracker: api.tracker.clone(),
    };
    Arc::new(Api {
        authority: api.authority.clone(),
        realms: api.realms.clone(),
        devices: api.devices.clone(),
        pairing: api.pairing.clone(),
        interfaces: api.interfaces.clone(),
        reads: api.reads.clone(),
        writes: Writes::new(writes),
        backups: api.backups.clone(),
        store: api.store.clone(),
        live: api.live.clone(),
        node: api.node.clone(),
        metrics: api.metrics.clone(),
        clock: api.clock.clone(),
        tracker: api.tracker.clone(),
        settings: api.settings,
    })
}

async fn commit(house: &House, effects: Vec<Effect>) {
    let unit = Unit {
        identity: identity(ID),
        receipt: None,
        effects,
        counted: None,
    };
    house.api.store.commit(vec![unit]).await.unwrap();
}

fn key(name: &str) -> InterfaceKey {
    InterfaceKey {
        name: Arc::from(name),
        major: 1,
    }
}

/// A sample that came so many seconds after 2026-01-01.
fn sample(name: &str, path: &str, seconds: u64, value: Stored) -> Effect {
    let at = Timestamp::parse("2026-01-01T00:00:00Z").unwrap();
    let at = at.saturating_add(Duration::from_secs(seconds));
    Effect::AppendSample {
        interface: key(name),
        path: Arc::from(path),
        value,
        value_at: at,
        received_at: at.saturating_add(Duration::from_millis(5)),
        expires_at: None,
    }
}

fn property(name: &str, path: &str, value: Stored) -> Effect {
    let at = Timestamp::from_micros(0);
    Effect::SetProperty {
        interface: key(name),
        path: Arc::from(path),
        value,
        at,
    }
}

fn at(below: &str) -> String {
    format!("{DEVICES}/{ID}/interfaces/{below}")
}

async fn get(house: &House, below: &str) -> Answer {
    let token = house.token(TokenApi::AppEngine);
    house.get(REMOTE, &at(below), Some(&token)).await
}

async fn put(house: &House, below: &str, value: Value) -> Answer {
    let token = house.token(TokenApi::AppEngine);
    house
        .call(REMOTE, Method::PUT, &at(below), Some(&token), Some(value))
        .await
}

async fn patch(house: &House, body: Value) -> Answer {
    let token = house.token(TokenApi::AppEngine);
    let request = Request::patch(format!("{DEVICES}/{ID}"))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(Body::from(json!({ "data": body }).to_string()));
    house.send(REMOTE, request.unwrap()).await
}

#[tokio::test]
async fn devices_are_listed_in_pages() {
    let house = House::start().await;
    for id in [ID, OTHER] {
        house.register(id).await;
    }
    let get = async |path: String| house.get(OPERATOR, &path, None).await;
    let whole = get(DEVICES.to_owned()).await.is(200).json();
    assert_eq!(whole["data"], json!([OTHER, ID]));
    assert_eq!(
        whole["links"],
        json!({ "self": "/v1/acme/devices?limit=1000" })
    );

    let first = get(format!("{DEVICES}?details=true&limit=1"))
        .await
        .is(200)
        .json();
    assert_eq!(first["data"][0]["id"], OTHER);
    assert_eq!(first["data"].as_array().map(Vec::len), Some(1));
    let next = first["links"]["next"].as_str().unwrap().to_owned();
    assert_eq!(
        next,
        format!("/v1/acme/devices?details=true&from_token={OTHER}&limit=1")
    );
    let second = get(format!("/appengine{next}")).await.is(200).json();
    assert_eq!(second["data"][0]["id"], ID);
    let last = get(format!(
        "/appengine{}",
        second["links"]["next"].as_str().unwrap()
    ))
    .await
    .json();
    assert_eq!(
        (&last["data"], &last["links"]["next"]),
        (&json!([]), &Value::Null)
    );

    for query in [
        "limit=0",
        "limit=-1",
        "limit=x",
        "from_token=x",
        "details=maybe",
    ] {
        get(format!("{DEVICES}?{query}")).await.is(422);
    }
    let stats = get("/appengine/v1/acme/stats/devices".to_owned())
        .await
        .is(200);
    assert_eq!(
        stats.data(),
        json!({ "total_devices": 2, "connected_devices": 0 })
    );
}

#[tokio::test]
async fn a_device_is_shown_by_id_and_by_alias() {
    let house = furnished().await;
    let token = house.token(TokenApi::AppEngine);
    let token = Some(token.as_str());
    patch(&house, json!({ "aliases": { "name": "roof probe/1" } }))
        .await
        .is(200);
    let by_id = house
        .get(REMOTE, &format!("{DEVICES}/{ID}"), token)
        .await
        .is(200)
        .data();
    let by_alias = "/appengine/v1/acme/devices-by-alias/roof%20probe%2F1";
    assert_eq!(
        house.get(REMOTE, by_alias, token).await.is(200).data(),
        by_id
    );
    assert_eq!(by_id["introspection"]["t.Dev"]["major"], 1);
    assert_eq!(by_id["last_connection"], Value::Null);
    assert_eq!(by_id["first_registration"], "2026-01-31T10:20:30.123Z");
    let names = house
        .get(REMOTE, &format!("{by_alias}/interfaces"), token)
        .await
        .is(200);
    assert_eq!(
        names.data(),
        json!([
            "t.Dev",
            "t.DevObj",
            "t.DevProp",
            "t.Ghost",
            "t.SrvCmd",
            "t.SrvProp"
        ])
    );
    let unknown = house
        .get(REMOTE, &format!("{DEVICES}/{OTHER}"), token)
        .await
        .is(404);
    assert_eq!(unknown.detail(), "Device not found");
    house
        .get(REMOTE, &format!("{DEVICES}/short"), token)
        .await
        .is(400);
    house
        .get(REMOTE, &format!("{DEVICES}/{ID}AAAA"), token)
        .await
        .is(400);
    house
        .get(REMOTE, "/appengine/v1/acme/devices-by-alias/none", token)
        .await
        .is(404);
}

#[tokio::test]
async fn aliases_attributes_and_inhibition_are_patched() {
    let house = furnished().await;
    house.register(OTHER).await;
    let wish =
        json!({ "aliases": { "name": "probe" }, "attributes": { "room": "roof", "n": "1" } });
    let shown = patch(&house, wish).await.is(200).data();
    assert_eq!(shown["aliases"], json!({ "name": "probe" }));
    let shown = patch(
        &house,
        json!({ "attributes": { "room": null }, "aliases": { "name": null } }),
    );
    let shown = shown.await.is(200).data();
    assert_eq!(
        (&shown["attributes"], &shown["aliases"]),
        (&json!({ "n": "1" }), &json!({}))
    );
    let shown = patch(&house, json!({ "credentials_inhibited": true }))
        .await
        .is(200)
        .data();
    assert_eq!(shown["credentials_inhibited"], true);
    assert!(
        house
            .live
            .did()
            .contains(&format!("disconnect {} inhibited", identity(ID)))
    );

    for (body, status) in [
        (json!({ "aliases": { "": "x" } }), 400),
        (json!({ "aliases": { "x": "" } }), 400),
        (json!({ "aliases": { "never": null } }), 400),
        (json!({ "attributes": { "": "x" } }), 400),
        (json!({ "attributes": { "never": null } }), 422),
        (json!({ "attributes": { "x": 5 } }), 422),
        (json!({ "aliases": ["x"] }), 422),
        (json!({ "credentials_inhibited": "yes" }), 422),
        (json!("x"), 400),
    ] {
        patch(&house, body).await.is(status);
    }
    patch(&house, json!({ "aliases": { "name": "probe" } }))
        .await
        .is(200);
    let taken = Request::patch(format!("{DEVICES}/{OTHER}"))
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(Body::from(r#"{"data":{"aliases":{"name":"probe"}}}"#));
    house.send(OPERATOR, taken.unwrap()).await.is(409);
    let path = format!("{DEVICES}/{ID}");
    let plain = house.call(OPERATOR, Method::PATCH, &path, None, Some(json!({})));
    plain.await.is(415);
}

#[tokio::test]
async fn properties_are_read_whole_below_a_path_and_alone() {
    let house = furnished().await;
    assert_eq!(get(&house, "t.DevProp").await.is(200).data(), json!({}));
    commit(
        &house,
        vec![
            property("t.DevProp", "/a/x/text", Stored::String("one".into())),
            property("t.DevProp", "/a/y/text", Stored::String(String::new())),
            property("t.DevProp", "/b", Stored::LongInteger(1 << 60)),
        ],
    )
    .await;
    let all = json!({ "a": { "x": { "text": "one" }, "y": { "text": "" } }, "b": 1_u64 << 60 });
    assert_eq!(get(&house, "t.DevProp").await.is(200).data(), all);
    assert_eq!(get(&house, "t.DevProp/a").await.is(200).data(), all["a"]);
    assert_eq!(
        get(&house, "t.DevProp/a/x").await.is(200).data(),
        all["a"]["x"]
    );
    assert_eq!(
        get(&house, "t.DevProp/a/x/text").await.is(200).data(),
        json!("one")
    );
    assert_eq!(
        get(&house, "t.DevProp/a/x/text/").await.is(200).data(),
        json!("one")
    );
    assert_eq!(
        get(&house, "t.DevProp/a/z/text").await.is(200).data(),
        json!({})
    );
    assert_eq!(
        get(&house, "t.DevProp/c").await.is(400).detail(),
        "Endpoint not found"
    );
    let safe = get(&house, "t.DevProp/b?allow_safe_bigintegers=true")
        .await
        .is(200);
    assert_eq!(safe.data(), json!((1_u64 << 60).to_string()));
}

#[tokio::test]
async fn individual_samples_are_read_by_time_and_in_every_format() {
    let house = furnished().await;
    assert_eq!(get(&house, "t.Dev").await.is(200).data(), json!({}));
    assert_eq!(
        get(&house, "t.Dev/int").await.is(404).detail(),
        "Path not found"
    );
    let mut effects: Vec<Effect> = (0..5)
        .map(|n| {
            sample(
                "t.Dev",
                "/int",
                n,
                Stored::Integer(i32::try_from(n).unwrap()),
            )
        })
        .collect();
    effects.push(sample("t.Dev", "/p/roof/long", 9, Stored::LongInteger(7)));
    commit(&house, effects).await;

    let snapshot = get(&house, "t.Dev").await.is(200).data();
    let newest = json!({ "value": 4, "timestamp": "2026-01-01T00:00:04.000Z",
        "reception_timestamp": "2026-01-01T00:00:04.005Z" });
    assert_eq!(snapshot["int"], newest);
    assert_eq!(snapshot["p"]["roof"]["long"]["value"], 7);

    let values = async |query: &str| {
        let data = get(&house, &format!("t.Dev/int?{query}"))
            .await
            .is(200)
            .data();
        let all: Vec<i64> = data
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["value"].as_i64().unwrap())
            .collect();
        all
    };
    assert_eq!(values("").await, [0, 1, 2, 3, 4]);
    assert_eq!(values("limit=2").await, [4, 3]);
    assert_eq!(values("limit=0").await, [0_i64; 0]);
    assert_eq!(values("since=2026-01-01T00:00:02Z").await, [2, 3, 4]);
    assert_eq!(values("since=2026-01-01T00:00:02Z&limit=2").await, [2, 3]);
    assert_eq!(
        values("since_after=2026-01-01T00:00:02Z&limit=1").await,
        [3]
    );
    assert_eq!(values("to=2026-01-01T00:00:02Z").await, [0, 1]);
    assert_eq!(values("to=2026-01-01T00:00:02Z&limit=1").await, [1]);
    assert_eq!(values("downsample_to=3").await.len(), 3);
    get(&house, "t.Dev/int?to=2025-01-01T00:00:00Z")
        .await
        .is(404);
    for wrong in [
        "since=yesterday",
        "limit=-1",
        "limit=x",
        "format=pie",
        "downsample_to=2",
        "since=2026-01-01T00:00:00Z&since_after=2026-01-01T00:00:00Z",
    ] {
        get(&house, &format!("t.Dev/int?{wrong}")).await.is(422);
    }

    let long = get(&house, "t.Dev/p/roof/long?keep_milliseconds=true")
        .await
        .is(200)
        .data();
    assert_eq!(
        long,
        json!([{ "timestamp": 1_767_225_609_000_i64, "value": "7" }])
    );
    let number = get(&house, "t.Dev/p/roof/long?allow_bigintegers=true")
        .await
        .is(200)
        .data();
    assert_eq!(number[0]["value"], 7);
    let table = get(&house, "t.Dev/int?limit=1&format=table")
        .await
        .is(200)
        .json();
    assert_eq!(
        table,
        json!({
            "data": [["2026-01-01T00:00:04.000Z", 4]],
            "metadata": { "columns": { "timestamp": 0, "int": 1 }, "table_header": ["timestamp", "int"] },
        })
    );
    let pairs = get(&house, "t.Dev/int?limit=1&format=disjoint_tables")
        .await
        .is(200)
        .data();
    assert_eq!(pairs, json!({ "value": [[4, "2026-01-01T00:00:04.000Z"]] }));
    get(&house, "t.Dev/p/roof").await.is(404);
    get(&house, "t.Dev/nothing/at/all").await.is(400);
    let ghost = get(&house, "t.Ghost").await.is(404);
    assert_eq!(ghost.detail(), "Interface not found");
    let undeclared = get(&house, "t.Other").await.is(404);
    assert_eq!(
        undeclared.detail(),
        "Interface not found in device introspection"
    );
}

#[tokio::test]
async fn objects_are_read_as_lists_and_tables() {
    let house = furnished().await;
    assert_eq!(get(&house, "t.DevObj").await.is(200).data(), json!({}));
    let object = |temp: f64, count: Option<i64>| {
        Stored::Object(vec![
            ("count".into(), count.map(Stored::LongInteger)),
            ("temp".into(), Some(Stored::Double(temp))),
        ])
    };
    commit(
        &house,
        vec![
            sample("t.DevObj", "/roof", 1, object(1.5, Some(5))),
            sample("t.DevObj", "/roof", 2, object(2.5, None)),
        ],
    )
    .await;
    let first = json!({ "temp": 1.5, "count": "5", "timestamp": "2026-01-01T00:00:01.000Z" });
    let second = json!({ "temp": 2.5, "count": null, "timestamp": "2026-01-01T00:00:02.000Z" });
    assert_eq!(
        get(&house, "t.DevObj/roof").await.is(200).data(),
        json!([first, second])
    );
    assert_eq!(
        get(&house, "t.DevObj").await.is(200).data(),
        json!({ "roof": [first, second] })
    );
    let newest = get(&house, "t.DevObj?limit=1").await.is(200).data();
    assert_eq!(newest, json!({ "roof": [second] }));
    let table = get(&house, "t.DevObj/roof?limit=1&format=table")
        .await
        .is(200)
        .json();
    assert_eq!(
        table["metadata"],
        json!({ "columns": { "count": 0, "temp": 1, "timestamp": 2 },
            "table_header": ["count", "temp", "timestamp"] })
    );
    assert_eq!(
        table["data"],
        json!([[null, 2.5, "2026-01-01T00:00:02.000Z"]])
    );
    let pairs = get(&house, "t.DevObj/roof?limit=1&format=disjoint_tables")
        .await
        .is(200)
        .data();
    let at = "2026-01-01T00:00:02.000Z";
    assert_eq!(pairs, json!({ "count": [[null, at]], "temp": [[2.5, at]] }));
    assert_eq!(
        get(&house, "t.DevObj/cellar").await.is(404).detail(),
        "Path not found"
    );
    get(&house, "t.DevObj/roof/temp").await.is(404);
    commit(
        &house,
        vec![sample("t.DevObj", "/cellar", 3, object(3.5, None))],
    )
    .await;
    let several = get(&house, "t.DevObj").await.is(200).data();
    assert_eq!(
        (&several["roof"], &several["cellar"]["temp"]),
        (&second, &json!(3.5))
    );
}

#[tokio::test]
async fn a_server_property_is_stored_whether_or_not_the_device_is_there() {
    let house = furnished().await;
    let set = put(&house, "t.SrvProp/long", json!("5")).await.is(200);
    assert_eq!(set.json(), json!({ "data": "5" }));
    assert_eq!(get(&house, "t.SrvProp").await.data(), json!({ "long": 5 }));
    let delivered = house.outbound.delivered();
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].topic, "/t.SrvProp/long");
    assert_eq!(delivered[0].identity, identity(ID));
    assert_eq!((delivered[0].qos, delivered[0].property), (2, true));
    assert_eq!(
        delivered[0].payload,
        payload::encode(&Stored::LongInteger(5), None)
    );
    assert!(house.api.store.outbox().await.unwrap().is_empty());

    let token = house.token(TokenApi::AppEngine);
    house
        .delete(REMOTE, &at("t.SrvProp/long"), Some(&token))
        .await
        .is(204);
    assert_eq!(get(&house, "t.SrvProp").await.data(), json!({}));
    let delivered = house.outbound.delivered();
    assert_eq!((delivered.len(), delivered[0].payload.len()), (1, 0));
}

#[tokio::test]
async fn fc_107_unset_is_refused_where_the_mapping_does_not_allow_it() {
    let house = furnished().await;
    put(&house, "t.SrvProp/kept/text", json!("x")).await.is(200);
    house.outbound.delivered();
    let delete = async |below: &str| house.delete(OPERATOR, &at(below), None).await;
    assert_eq!(
        delete("t.SrvProp/kept/text").await.is(422).detail(),
        "Unset not allowed"
    );
    assert_eq!(get(&house, "t.SrvProp/kept/text").await.data(), json!("x"));
    delete("t.SrvProp/kept").await.is(405);
    delete("t.SrvProp/other").await.is(400);
    delete("t.DevProp/b").await.is(405);
    delete("t.SrvCmd/cmd").await.is(204);
    assert!(house.outbound.delivered().is_empty());
}

#[tokio::test]
async fn a_guaranteed_value_is_refused_and_not_stored_when_the_device_cannot_be_reached() {
    let house = furnished().await;
    for absent in [
        Reach::NoSession,
        Reach::NoSubscription,
        Reach::QueueFull,
        Reach::Unavailable,
    ] {
        house.outbound.answer(absent, Delivered::NoSession);
        let refused = put(&house, "t.SrvCmd/cmd", json!(7)).await.is(503);
        assert!(
            refused.detail().starts_with("Cannot push to device: "),
            "{refused:?}"
        );
    }
    assert!(house.outbound.delivered().is_empty());
    get(&house, "t.SrvCmd/cmd").await.is(404);
    // unreliable ones are stored all the same
    house
        .outbound
        .answer(Reach::NoSession, Delivered::NoSession);
    put(&house, "t.SrvCmd/fast", json!(true)).await.is(200);
    assert_eq!(
        get(&house, "t.SrvCmd/fast").await.is(200).data()[0]["value"],
        json!(true)
    );
}

#[tokio::test]
async fn a_guaranteed_value_is_stored_queued_and_expires_with_its_mapping() {
    let house = furnished().await;
    house.outbound.queue();
    let set = house
        .post(OPERATOR, &at("t.SrvCmd/cmd"), None, json!(7))
        .await
        .is(200);
    assert_eq!(set.data(), json!(7));
    let delivered = house.outbound.delivered();
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].qos, 1);
    let end = house.clock_wall().saturating_add(Duration::from_secs(30));
    assert_eq!(delivered[0].expires_at, Some(end));
    let stored = get(&house, "t.SrvCmd/cmd").await.is(200).data();
    assert_eq!(
        stored,
        json!([{ "timestamp": "2026-01-31T10:20:30.123Z", "value": 7 }])
    );
    assert!(house.api.store.outbox().await.unwrap().is_empty());

    let route = format!("/tanit/v1/realms/acme/devices/{ID}/publish");
    let body = json!({ "interface": "t.SrvCmd", "path": "/cmd", "value": 8 });
    let told = house
        .post(OPERATOR, &route, None, body.clone())
        .await
        .is(200);
    assert_eq!(told.data(), json!({ "outcome": "queued" }));
    house
        .outbound
        .answer(Reach::Subscribed, Delivered::Queued { until: Some(end) });
    let told = house.post(OPERATOR, &route, None, body).await.is(200);
    assert_eq!(
        told.data(),
        json!({ "outcome": "queued", "until": "2026-01-31T10:21:00.123Z" })
    );
}

#[tokio::test]
async fn fc_101_values_that_do_not_fit_are_refused_with_the_type_that_would() {
    let house = furnished().await;
    house
        .outbound
        .answer(Reach::Subscribed, Delivered::Delivering);
    for wrong in [
        json!("7"),
        json!(7.0),
        json!(2_147_483_648_i64),
        json!(null),
        json!([7]),
    ] {
        let refused = put(&house, "t.SrvCmd/cmd", wrong).await.is(422).json();
        assert_eq!(refused["errors"]["expected_type"], "integer");
    }
    let large = json!("x".repeat(65_537));
    put(&house, "t.SrvProp/kept/text", large).await.is(422);
    put(&house, "t.Dev/int", json!(1)).await.is(405);
    put(&house, "t.SrvCmd/none", json!(1)).await.is(400);
    put(&house, "t.SrvProp/kept", json!(1)).await.is(405);
    let no_data = Request::put(at("t.SrvCmd/cmd"))
        .body(Body::from("{}"))
        .unwrap();
    house.send(OPERATOR, no_data).await.is(400);
    assert!(house.outbound.delivered().is_empty());
}

#[tokio::test]
async fn fc_096_an_interface_that_is_not_declared_is_not_written_to() {
    let house = furnished().await;
    house
        .outbound
        .answer(Reach::Subscribed, Delivered::Delivering);
    let introspection = Introspection::parse(b"t.Dev:1:0").unwrap();
    commit(&house, vec![Effect::SetIntrospection(introspection)]).await;
    put(&house, "t.SrvCmd/cmd", json!(1)).await.is(404);
    assert!(house.outbound.delivered().is_empty());
}

#[tokio::test]
async fn what_the_session_store_could_not_take_is_queued_again_at_the_start() {
    let house = furnished().await;
    house
        .outbound
        .answer(Reach::Unavailable, Delivered::Unavailable);
    let late = put(&house, "t.SrvProp/long", json!(1)).await.is(503);
    assert!(late.detail().contains("stored"), "{late:?}");
    assert_eq!(house.api.store.outbox().await.unwrap().len(), 1);
    // a later write gets through, and the older row must not undo it
    house.outbound.queue();
    put(&house, "t.SrvProp/long", json!(2)).await.is(200);
    house.outbound.delivered();
    assert_eq!(house.api.writes.requeue().await.unwrap(), 1);
    let delivered = house.outbound.delivered();
    assert_eq!(delivered.len(), 1);
    assert_eq!(
        delivered[0].payload,
        payload::encode(&Stored::LongInteger(2), None)
    );
    assert!(house.api.store.outbox().await.unwrap().is_empty());
}

#[tokio::test]
async fn writes_of_a_device_reach_its_queue_in_the_order_of_the_store() {
    let house = furnished().await;
    house.outbound.queue();
    let writes = (0..20).map(|n| put(&house, "t.SrvProp/long", json!(n)));
    for answer in futures_util::future::join_all(writes).await {
        answer.is(200);
    }
    let delivered = house.outbound.delivered();
    assert_eq!(delivered.len(), 20);
    let stored = get(&house, "t.SrvProp/long").await.data().as_i64().unwrap();
    assert_eq!(
        delivered[19].payload,
        payload::encode(&Stored::LongInteger(stored), None)
    );
}
