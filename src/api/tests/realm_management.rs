//! Realm Management: interfaces, the realm's settings, deletion of devices.

use super::*;

fn interface(name: &str, major: u32, minor: u32, endpoints: &[&str]) -> Value {
    let mappings: Vec<Value> = endpoints
        .iter()
        .map(|endpoint| json!({ "endpoint": endpoint, "type": "double" }))
        .collect();
    json!({
        "interface_name": name, "version_major": major, "version_minor": minor,
        "type": "datastream", "ownership": "device", "mappings": mappings,
    })
}

const INTERFACES: &str = "/realmmanagement/v1/acme/interfaces";

async fn install(house: &House, document: Value) -> Answer {
    let token = house.token(TokenApi::RealmManagement);
    house.post(REMOTE, INTERFACES, Some(&token), document).await
}

#[tokio::test]
async fn an_interface_is_installed_shown_updated_and_deleted() {
    let house = House::start().await;
    let token = house.token(TokenApi::RealmManagement);
    let token = Some(token.as_str());
    let draft = interface("org.example.Probe", 0, 1, &["/a"]);
    let made = install(&house, draft.clone()).await.is(201);
    assert_eq!(made.text, "");
    assert_eq!(
        made.headers["location"],
        "/v1/acme/interfaces/org.example.Probe/0"
    );
    install(&house, interface("org.example.Probe", 1, 0, &["/b"]))
        .await
        .is(201);

    let names = house.get(REMOTE, INTERFACES, token).await.is(200);
    assert_eq!(names.data(), json!(["org.example.Probe"]));
    let all = house
        .get(REMOTE, &format!("{INTERFACES}?detailed=true"), token)
        .await
        .is(200);
    assert_eq!(all.data()[0], draft);
    assert_eq!(all.data().as_array().map(Vec::len), Some(2));
    let one = format!("{INTERFACES}/org.example.Probe");
    assert_eq!(
        house.get(REMOTE, &one, token).await.is(200).data(),
        json!([0, 1])
    );
    let zero = format!("{one}/0");
    assert_eq!(house.get(REMOTE, &zero, token).await.is(200).data(), draft);

    let newer = interface("org.example.Probe", 0, 2, &["/c", "/a"]);
    let put = |document| house.call(REMOTE, Method::PUT, &zero, token, Some(document));
    assert_eq!(put(newer.clone()).await.is(204).text, "");
    assert_eq!(house.get(REMOTE, &zero, token).await.data(), newer);
    assert_eq!(
        put(newer.clone()).await.is(409).detail(),
        "Interface minor version was not increased: 2 is installed"
    );
    put(interface("org.example.Probe", 0, 3, &["/c"]))
        .await
        .is(409);
    put(interface("org.example.Other", 0, 3, &["/c", "/a"]))
        .await
        .is(409);
    put(interface("org.example.Probe", 1, 3, &["/c", "/a"]))
        .await
        .is(409);

    house
        .delete(REMOTE, &format!("{one}/1"), token)
        .await
        .is(403);
    house.delete(REMOTE, &zero, token).await.is(204);
    house.delete(REMOTE, &zero, token).await.is(404);
    let gone = house.get(REMOTE, &zero, token).await.is(404);
    assert_eq!(gone.detail(), "Interface not found");
    house
        .get(REMOTE, &format!("{INTERFACES}/org.example.None"), token)
        .await
        .is(404);
    house.get(REMOTE, &format!("{one}/x"), token).await.is(404);

    let actor = format!("token:acme@{}", "192.0.2.7");
    let audited = house.audited().await;
    for (action, object) in [
        ("interface.install", "acme/org.example.Probe v0.1"),
        ("interface.update", "acme/org.example.Probe v0.2"),
        ("interface.delete", "acme/org.example.Probe v0"),
    ] {
        let row = (actor.clone(), action.to_owned(), object.to_owned());
        assert!(audited.contains(&row), "{row:?} is missing in {audited:?}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_interface_is_told_by_field() {
    let house = House::start().await;
    let mut document = interface("org.example.Probe", 1, 0, &["/a", "b"]);
    document["ownership"] = json!("nobody");
    let refused = install(&house, document).await.is(422);
    assert_eq!(
        refused.json(),
        json!({ "errors": {
            "ownership": ["is invalid"],
            "mappings": [{}, { "endpoint": ["should be at least 2 character(s)", "has invalid format"] }],
        } })
    );
    let overlap = install(
        &house,
        interface("org.example.Probe", 1, 0, &["/a", "/a/b"]),
    )
    .await;
    assert!(
        overlap
            .is(422)
            .detail()
            .starts_with("Overlapping endpoints in interface mappings")
    );
    install(&house, json!("text")).await.is(422);

    install(&house, interface("org.example.my-lab.Probe", 1, 0, &["/a"]))
        .await
        .is(201);
    install(&house, interface("org.example.my-lab.Probe", 1, 5, &["/a"]))
        .await
        .is(409);
    let collision = install(&house, interface("org.example.mylab.Probe", 1, 0, &["/a"])).await;
    assert!(
        collision
            .is(409)
            .detail()
            .contains("org.example.my-lab.Probe")
    );
}

#[tokio::test]
async fn an_interface_that_a_device_declares_is_not_deleted() {
    let house = House::start().await;
    install(&house, interface("org.example.Probe", 0, 1, &["/a"]))
        .await
        .is(201);
    let body = json!({
        "hw_id": ID,
        "initial_introspection": { "org.example.Probe": { "major": 0, "minor": 1 } },
    });
    let token = house.token(TokenApi::Pairing);
    house
        .post(REMOTE, "/pairing/v1/acme/agent/devices", Some(&token), body)
        .await
        .is(201);
    let path = format!("{INTERFACES}/org.example.Probe/0");
    house.delete(OPERATOR, &path, None).await.is(403);
    house.get(OPERATOR, &path, None).await.is(200);
}

#[tokio::test]
async fn settings_of_the_realm_are_shown_and_its_key_is_changed() {
    let house = House::start().await;
    let config = |name: &str| format!("/realmmanagement/v1/acme/config/{name}");
    let token = house.token(TokenApi::RealmManagement);
    let get = async |name: &str| {
        house
            .get(REMOTE, &config(name), Some(&token))
            .await
            .is(200)
            .data()
    };
    assert_eq!(
        get("auth").await,
        json!({ "jwt_public_key_pem": house.keys.public_key_pem })
    );
    assert_eq!(get("device_registration_limit").await, Value::Null);
    assert_eq!(get("datastream_maximum_storage_retention").await, json!(0));

    let put = |body| {
        house.call(
            REMOTE,
            Method::PUT,
            "/realmmanagement/v1/acme/config/auth",
            Some(&token),
            Some(body),
        )
    };
    put(json!({ "jwt_public_key_pem": "no key" })).await.is(422);
    put(json!({})).await.is(422);
    let next = TokenKeyPair::generate().unwrap();
    put(json!({ "jwt_public_key_pem": next.public_key_pem }))
        .await
        .is(204);
    house
        .get(REMOTE, &config("auth"), Some(&token))
        .await
        .is(401);
}

#[tokio::test]
async fn fc_125_a_device_is_deleted_once() {
    let house = House::start().await;
    house.register(ID).await;
    let path = format!("/realmmanagement/v1/acme/devices/{ID}");
    let token = house.token(TokenApi::RealmManagement);
    house.delete(REMOTE, &path, Some(&token)).await.is(204);
    assert_eq!(
        house
            .delete(REMOTE, &path, Some(&token))
            .await
            .is(404)
            .detail(),
        "Device not found"
    );
    house
        .delete(REMOTE, "/realmmanagement/v1/acme/devices/x", Some(&token))
        .await
        .is(400);
}

#[tokio::test]
async fn another_services_token_and_unknown_routes_are_refused() {
    let house = House::start().await;
    let other = house.token(TokenApi::AppEngine);
    house.get(REMOTE, INTERFACES, Some(&other)).await.is(403);
    house.get(REMOTE, INTERFACES, None).await.is(401);
    house
        .get(OPERATOR, "/realmmanagement/v1/ghost/interfaces", None)
        .await
        .is(403);
    let unknown = house
        .get(OPERATOR, "/realmmanagement/v1/acme/nothing", None)
        .await
        .is(404);
    assert_eq!(unknown.detail(), "Not found");
}
