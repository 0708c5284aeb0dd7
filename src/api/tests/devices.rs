//! Devices as an operator manages them.

use super::*;

const OURS: &str = "/tanit/v1/realms";

#[tokio::test]
async fn devices_are_registered_by_id_by_name_or_at_random() {
    let house = House::start().await;
    let path = format!("{OURS}/acme/devices");
    let given = house
        .post(OPERATOR, &path, None, json!({ "device_id": ID }))
        .await
        .is(201);
    assert_eq!(given.data()["device_id"], ID);
    let name = json!({ "namespace": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "hardware_id": "example.org" });
    let derived = house.post(OPERATOR, &path, None, name).await.is(201);
    assert_eq!(derived.data()["device_id"], "qtA2gYtjUwSJ4Iyo9JRhtQ");
    let random = house.post(OPERATOR, &path, None, json!({})).await.is(201);
    assert_eq!(random.data()["device_id"].as_str().unwrap().len(), 22);
    for body in [
        json!({ "namespace": "x", "hardware_id": "y" }),
        json!({ "hardware_id": "y" }),
        json!({ "namespace": "6ba7b810-9dad-11d1-80b4-00c04fd430c8" }),
        json!({ "device_id": "x" }),
        json!({ "device_id": ID, "hardware_id": "y" }),
    ] {
        house.post(OPERATOR, &path, None, body).await.is(422);
    }
    house
        .post(
            OPERATOR,
            "/tanit/v1/realms/nowhere/devices",
            None,
            json!({}),
        )
        .await
        .is(404);
}

#[tokio::test]
async fn devices_are_listed_by_what_they_are() {
    let house = House::start().await;
    house.register(ID).await;
    house.register(OTHER).await;
    let path = format!("{OURS}/acme/devices");
    house
        .call(
            OPERATOR,
            Method::POST,
            &format!("{path}/{ID}/inhibit"),
            None,
            None,
        )
        .await
        .is(204);
    let listed = async |query: &str| {
        let data = house
            .get(OPERATOR, &format!("{path}{query}"), None)
            .await
            .is(200)
            .data();
        let ids = data
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(listed("").await, [OTHER, ID]);
    assert_eq!(listed("?limit=1").await, [OTHER]);
    assert_eq!(listed(&format!("?after={OTHER}")).await, [ID]);
    assert_eq!(listed("?inhibited=true").await, [ID]);
    assert_eq!(listed("?connected=true").await, Vec::<String>::new());
    assert_eq!(listed("?interface=a.B").await, Vec::<String>::new());
    house
        .get(OPERATOR, &format!("{path}?limit=many"), None)
        .await
        .is(422);
}

#[tokio::test]
async fn fc_068_taking_rights_away_cuts_the_connection_and_is_on_record() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    house.certificate(ID, &secret).await;
    let path = format!("{OURS}/acme/devices/{ID}");
    house.live.connect(&identity(ID));
    house.live.did();

    house
        .call(
            OPERATOR,
            Method::POST,
            &format!("{path}/inhibit"),
            None,
            None,
        )
        .await
        .is(204);
    assert_eq!(
        house.live.did(),
        [format!("disconnect acme/{ID} inhibited")]
    );
    let revoked = house
        .call(
            OPERATOR,
            Method::POST,
            &format!("{path}/revoke"),
            None,
            None,
        )
        .await
        .is(200);
    let serial = revoked.data()["serial"].as_str().unwrap().to_owned();
    assert_eq!(house.live.did(), ["reverify"]);
    house
        .post(
            OPERATOR,
            &format!("{path}/revoke"),
            None,
            json!({ "serial": "AB:CD" }),
        )
        .await
        .is(200);
    house
        .post(
            OPERATOR,
            &format!("{path}/revoke"),
            None,
            json!({ "serial": "x" }),
        )
        .await
        .is(422);
    house.live.did();

    let kicked = house
        .call(
            OPERATOR,
            Method::POST,
            &format!("{path}/disconnect"),
            None,
            None,
        )
        .await
        .is(200);
    assert_eq!(kicked.data()["disconnected"], false);
    house.delete(OPERATOR, &path, None).await.is(204);
    let did = house.live.did();
    assert_eq!(
        did[1..],
        [
            format!("disconnect acme/{ID} deleted"),
            format!("erase acme/{ID}")
        ]
    );
    house.get(OPERATOR, &path, None).await.is(404);
    house.delete(OPERATOR, &path, None).await.is(404);
    let fresh = house.register(ID).await;
    assert_ne!(fresh, secret);

    let audited = house.audited().await;
    let device = format!("acme/{ID}");
    for (action, object) in [
        ("device.inhibit", device.clone()),
        ("device.revoke", format!("{device}/{serial}")),
        ("device.revoke", format!("{device}/abcd")),
        ("device.disconnect", device.clone()),
        ("device.delete", device.clone()),
    ] {
        let row = ("socket:1000".to_owned(), action.to_owned(), object);
        assert!(audited.contains(&row), "{row:?} is missing in {audited:?}");
    }
    let by_token = (
        "token:acme@192.0.2.7".to_owned(),
        "device.register".to_owned(),
        device.clone(),
    );
    assert!(audited.contains(&by_token), "{audited:?}");
    let by_device = (
        format!("device:{device}@192.0.2.7"),
        "certificate.issue".to_owned(),
        device,
    );
    assert!(audited.contains(&by_device), "{audited:?}");
}

#[tokio::test]
async fn an_interrupted_deletion_is_finished_at_the_next_start() {
    use crate::store::Change;
    let house = House::start().await;
    house.register(ID).await;
    house.register(OTHER).await;
    let audit = crate::engine::actor::Actor::tanit().did(house.clock_wall(), "test", "acme");
    house
        .api
        .store
        .apply(Change::BeginDeviceDeletion(identity(ID)), audit)
        .await
        .unwrap();
    assert_eq!(house.api.devices.resume_deletions().await.unwrap(), 1);
    assert_eq!(house.api.devices.resume_deletions().await.unwrap(), 0);
    house
        .get(OPERATOR, &format!("{OURS}/acme/devices/{ID}"), None)
        .await
        .is(404);
    house
        .get(OPERATOR, &format!("{OURS}/acme/devices/{OTHER}"), None)
        .await
        .is(200);
}

#[tokio::test]
async fn fc_128_errors_and_reconnects_are_there_after_the_fact() {
    use crate::store::{DeviceErrorRow, Effect, Unit};
    let house = House::start().await;
    house.register(ID).await;
    let at = house.clock_wall();
    let error = |name: &str| {
        Effect::RecordError(DeviceErrorRow {
            at,
            error_name: name.to_owned(),
            interface: Some("t.Dev".to_owned()),
            path: Some("/int".to_owned()),
            base64_payload: Some("AAAA".to_owned()),
            detail: None,
        })
    };
    let mut effects = vec![Effect::Connected { at, ip: None }];
    effects.extend(
        [
            "unexpected_value_type",
            "mapping_not_found",
            "unexpected_value_type",
        ]
        .map(error),
    );
    effects.push(Effect::Disconnected {
        at,
        reason: "clean_kick".to_owned(),
    });
    let unit = Unit {
        identity: identity(ID),
        receipt: None,
        effects,
        counted: None,
    };
    house.api.store.commit(vec![unit]).await.unwrap();

    let path = format!("{OURS}/acme/devices/{ID}");
    let errors = house
        .get(OPERATOR, &format!("{path}/errors"), None)
        .await
        .is(200)
        .data();
    assert_eq!(errors.as_array().unwrap().len(), 3);
    assert_eq!(errors[0]["interface"], "t.Dev");
    assert_eq!(errors[0]["base64_payload"], "AAAA");
    let history = house
        .get(OPERATOR, &format!("{path}/history"), None)
        .await
        .is(200)
        .data();
    assert_eq!(history[0]["reason"], "clean_kick");
    let top = house
        .get(OPERATOR, &format!("{OURS}/acme/errors"), None)
        .await
        .is(200)
        .data();
    assert_eq!(
        top[0],
        json!({ "device_id": ID, "error_name": "unexpected_value_type", "count": 2 })
    );
    let top = house
        .get(OPERATOR, &format!("{OURS}/acme/reconnects"), None)
        .await
        .is(200)
        .data();
    assert_eq!(top, json!([{ "device_id": ID, "count": 1 }]));
    house
        .get(
            OPERATOR,
            &format!("{OURS}/acme/errors?since=yesterday"),
            None,
        )
        .await
        .is(422);
    house
        .get(
            OPERATOR,
            &format!("{OURS}/acme/devices/{OTHER}/errors"),
            None,
        )
        .await
        .is(404);
    house
        .get(OPERATOR, &format!("{OURS}/acme/devices/x/errors"), None)
        .await
        .is(400);
}
