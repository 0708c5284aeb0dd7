//! The routes that device SDKs call.

use super::*;

const BASE: &str = "/pairing/v1/acme";

fn device_path(id: &str) -> String {
    format!("{BASE}/devices/{id}")
}

fn verify_path(id: &str) -> String {
    format!("{BASE}/devices/{id}/protocols/astarte_mqtt_v1/credentials/verify")
}

fn credentials_path(id: &str) -> String {
    format!("{BASE}/devices/{id}/protocols/astarte_mqtt_v1/credentials")
}

#[tokio::test]
async fn a_device_registers_asks_for_a_certificate_and_has_it_verified() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    assert_eq!(secret.len(), 44);

    let info = house
        .get(REMOTE, &device_path(ID), Some(&secret))
        .await
        .is(200);
    assert_eq!(
        info.text,
        r#"{"data":{"protocols":{"astarte_mqtt_v1":{"broker_url":"mqtts://broker.example.org:8883/"}},"status":"pending","version":"1.3.0"}}"#
    );
    let certificate = house.certificate(ID, &secret).await;
    assert_eq!(certificate.matches("BEGIN CERTIFICATE").count(), 1);
    let info = house
        .get(REMOTE, &device_path(ID), Some(&secret))
        .await
        .is(200);
    assert_eq!(info.data()["status"], "confirmed");

    let body = json!({ "client_crt": certificate });
    let verdict = house
        .post(REMOTE, &verify_path(ID), Some(&secret), body)
        .await
        .is(200);
    assert_eq!(verdict.data()["valid"], true);
    assert_eq!(verdict.data()["timestamp"], "2026-01-31 10:20:30.123Z");
    assert_eq!(verdict.data()["until"], "2026-05-01 10:20:30.000Z");
}

#[tokio::test]
async fn fc_084_certificate_verification_checks_whose_certificate_it_is() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    let own = house.certificate(ID, &secret).await;
    let other_secret = house.register(OTHER).await;
    let others = house.certificate(OTHER, &other_secret).await;
    let foreign = certificate_of_another_realm(&house).await;

    let verdict = async |certificate: &str| {
        let body = json!({ "client_crt": certificate });
        let answer = house
            .post(REMOTE, &verify_path(ID), Some(&secret), body)
            .await
            .is(200);
        assert!(answer.data()["timestamp"].is_string());
        let data = answer.data();
        if data["valid"] == true {
            return "VALID".to_owned();
        }
        assert!(answer.text.contains(r#""details":null"#), "{}", answer.text);
        assert_eq!(answer.text.matches("null").count(), 1);
        data["cause"].as_str().unwrap().to_owned()
    };
    assert_eq!(verdict(&own).await, "VALID");
    assert!(["INVALID", "REVOKED"].contains(&verdict(&others).await.as_str()));
    assert_ne!(verdict(&foreign).await, "VALID");
    assert_eq!(verdict("rubbish").await, "INVALID");
    assert_eq!(verdict(&format!("{own}{own}")).await, "INVALID");

    let revoke = format!("/tanit/v1/realms/acme/devices/{ID}/revoke");
    house
        .call(OPERATOR, Method::POST, &revoke, None, None)
        .await
        .is(200);
    assert_eq!(verdict(&own).await, "REVOKED");
    let renewed = house.certificate(ID, &secret).await;
    assert_eq!(verdict(&renewed).await, "VALID");

    house.clock.advance(Duration::from_hours(91 * 24));
    assert_eq!(verdict(&renewed).await, "EXPIRED");
}

async fn certificate_of_another_realm(house: &House) -> String {
    house.create_realm("globex").await;
    let path = "/tanit/v1/realms/globex/devices";
    house
        .post(OPERATOR, path, None, json!({ "device_id": ID }))
        .await
        .is(201);
    let path = format!("/pairing/v1/globex/devices/{ID}/protocols/astarte_mqtt_v1/credentials");
    let answer = house
        .post(OPERATOR, &path, None, json!({ "csr": csr() }))
        .await
        .is(201);
    answer.data()["client_crt"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_device_that_never_asked_for_a_certificate_gets_a_new_secret() {
    let house = House::start().await;
    let first = house.register(ID).await;
    let second = house.register(ID).await;
    house
        .get(REMOTE, &device_path(ID), Some(&first))
        .await
        .is(403);
    house
        .get(REMOTE, &device_path(ID), Some(&second))
        .await
        .is(200);

    house.certificate(ID, &second).await;
    let token = house.token(TokenApi::Pairing);
    let again = house
        .post(
            REMOTE,
            &format!("{BASE}/agent/devices"),
            Some(&token),
            json!({ "hw_id": ID }),
        )
        .await
        .is(422);
    assert_eq!(again.detail(), "Device already registered");
}

#[tokio::test]
async fn an_unregistered_device_is_refused_until_it_is_registered_again() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    house.certificate(ID, &secret).await;
    let token = house.token(TokenApi::Pairing);
    let agent = format!("{BASE}/agent/devices/{ID}");
    house.delete(REMOTE, &agent, Some(&token)).await.is(204);
    house
        .get(REMOTE, &device_path(ID), Some(&secret))
        .await
        .is(403);
    let fresh = house.register(ID).await;
    house
        .get(REMOTE, &device_path(ID), Some(&fresh))
        .await
        .is(200);

    let unknown = format!("{BASE}/agent/devices/{OTHER}");
    let refused = house.delete(REMOTE, &unknown, Some(&token)).await.is(404);
    assert_eq!(refused.detail(), "Device not found");
    // an extended id names a device on the device routes only
    let extended = format!("{BASE}/agent/devices/{ID}AAAA");
    house.delete(REMOTE, &extended, Some(&token)).await.is(404);
}

#[tokio::test]
async fn an_extended_id_is_cut_to_its_first_128_bits() {
    let house = House::start().await;
    let extended = format!("{ID}AAAA");
    let secret = house.register(&extended).await;
    house
        .get(REMOTE, &device_path(&extended), Some(&secret))
        .await
        .is(200);
    let certificate = house.certificate(&extended, &secret).await;
    let block = pem::parse(&certificate).unwrap();
    let named = crate::pki::identity_of(block.contents()).unwrap();
    assert_eq!(
        named.device,
        *b"foobarbazqux1234"
            .as_slice()
            .first_chunk()
            .map(|b| crate::identity::DeviceId::from_bytes(*b))
            .as_ref()
            .unwrap()
    );
}

#[tokio::test]
async fn the_secret_is_taken_in_every_form_that_clients_send() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    for value in [
        format!("Bearer {secret}"),
        format!("bearer: {secret}"),
        format!("BEARER {secret}"),
    ] {
        let request = Request::get(device_path(ID)).header(header::AUTHORIZATION, value);
        house
            .send(REMOTE, request.body(Body::empty()).unwrap())
            .await
            .is(200);
    }
    for value in [
        secret.clone(),
        format!("Basic {secret}"),
        "Bearer".to_owned(),
    ] {
        let request = Request::get(device_path(ID)).header(header::AUTHORIZATION, value);
        house
            .send(REMOTE, request.body(Body::empty()).unwrap())
            .await
            .is(401);
    }
    house.get(REMOTE, &device_path(ID), None).await.is(401);
    house
        .get(REMOTE, &device_path(OTHER), Some(&secret))
        .await
        .is(404);
    house
        .get(REMOTE, "/pairing/v1/acme/devices/x", Some(&secret))
        .await
        .is(404);
    house
        .get(
            REMOTE,
            &format!("/pairing/v1/nowhere/devices/{ID}"),
            Some(&secret),
        )
        .await
        .is(403);
}

#[tokio::test]
async fn wrong_secrets_are_held_off_by_device_and_address() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    for _ in 0..11 {
        house
            .get(REMOTE, &device_path(ID), Some("wrong"))
            .await
            .is(403);
    }
    let held = house
        .get(REMOTE, &device_path(ID), Some("wrong"))
        .await
        .is(429);
    let wait: u64 = held.headers[header::RETRY_AFTER]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=6).contains(&wait), "{wait}");
    // even the right one is not looked at, and elsewhere it is
    house
        .get(REMOTE, &device_path(ID), Some(&secret))
        .await
        .is(429);
    let elsewhere = Peer::Tcp("192.0.2.8:1".parse().unwrap());
    house
        .get(elsewhere, &device_path(ID), Some(&secret))
        .await
        .is(200);

    house.clock.advance(Duration::from_secs(wait));
    house
        .get(REMOTE, &device_path(ID), Some(&secret))
        .await
        .is(200);
}

#[tokio::test]
async fn an_inhibited_device_gets_no_certificate() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    let path = format!("/tanit/v1/realms/acme/devices/{ID}");
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
    let info = house
        .get(REMOTE, &device_path(ID), Some(&secret))
        .await
        .is(200);
    assert_eq!(info.data()["status"], "inhibited");
    let body = json!({ "csr": csr() });
    house
        .post(REMOTE, &credentials_path(ID), Some(&secret), body.clone())
        .await
        .is(403);
    house
        .call(OPERATOR, Method::POST, &format!("{path}/allow"), None, None)
        .await
        .is(204);
    house
        .post(REMOTE, &credentials_path(ID), Some(&secret), body)
        .await
        .is(201);
}

#[tokio::test]
async fn what_is_no_csr_is_refused_by_field() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    let refused = house
        .post(
            REMOTE,
            &credentials_path(ID),
            Some(&secret),
            json!({ "csr": "rubbish" }),
        )
        .await
        .is(422);
    assert_eq!(
        refused.json(),
        json!({ "errors": { "csr": ["is not a valid PEM CSR"] } })
    );
    let blank = house
        .post(REMOTE, &credentials_path(ID), Some(&secret), json!({}))
        .await
        .is(422);
    assert_eq!(
        blank.json(),
        json!({ "errors": { "csr": ["can't be blank"] } })
    );
    let unknown = device_path(ID) + "/protocols/other/credentials";
    let missing = house
        .post(REMOTE, &unknown, Some(&secret), json!({}))
        .await
        .is(404);
    assert_eq!(missing.detail(), "Page not found");
}

#[tokio::test]
async fn the_registration_limit_counts_new_devices_only() {
    let house = House::start().await;
    let limit = json!({ "device_registration_limit": 1 });
    house
        .call(
            OPERATOR,
            Method::PATCH,
            "/housekeeping/v1/realms/acme",
            None,
            Some(limit),
        )
        .await
        .is(200);
    house.register(ID).await;
    house.register(ID).await;
    let token = house.token(TokenApi::Pairing);
    let refused = house
        .post(
            REMOTE,
            &format!("{BASE}/agent/devices"),
            Some(&token),
            json!({ "hw_id": OTHER }),
        )
        .await
        .is(422);
    assert_eq!(refused.detail(), "Device registration limit reached");
}

#[tokio::test]
async fn bad_registrations_name_the_field() {
    let house = House::start().await;
    let token = house.token(TokenApi::Pairing);
    let agent = format!("{BASE}/agent/devices");
    for body in [
        json!({}),
        json!({ "hw_id": "short" }),
        json!({ "hw_id": 7 }),
    ] {
        let refused = house.post(REMOTE, &agent, Some(&token), body).await.is(422);
        assert!(refused.json()["errors"]["hw_id"].is_array(), "{refused:?}");
    }
    for introspection in [
        json!(7),
        json!({ "a.B": {} }),
        json!({ "a.B": { "major": -1, "minor": 0 } }),
    ] {
        let body = json!({ "hw_id": ID, "initial_introspection": introspection });
        let refused = house.post(REMOTE, &agent, Some(&token), body).await.is(422);
        assert!(
            refused.json()["errors"]["initial_introspection"].is_array(),
            "{refused:?}"
        );
    }
    let body = json!({
        "hw_id": ID,
        "initial_introspection": { "org.example.Sensor": { "major": 1, "minor": 2 } },
    });
    house.post(REMOTE, &agent, Some(&token), body).await.is(201);
    let shown = house
        .get(
            OPERATOR,
            &format!("/tanit/v1/realms/acme/devices/{ID}"),
            None,
        )
        .await;
    assert_eq!(
        shown.data()["introspection"]["org.example.Sensor"]["minor"],
        2
    );
}

#[tokio::test]
async fn an_imported_bcrypt_hash_is_recognised_and_replaced() {
    use crate::store::{Change, SecretHash};
    let house = House::start().await;
    house.register(ID).await;
    let hash = bcrypt::hash("imported", 4).unwrap();
    let change = Change::ReplaceSecret(identity(ID), SecretHash::Bcrypt(hash));
    let audit = crate::engine::actor::Actor::tanit().did(house.clock_wall(), "import", "acme");
    house.api.store.apply(change, audit).await.unwrap();

    house
        .get(REMOTE, &device_path(ID), Some("wrong"))
        .await
        .is(403);
    house
        .get(REMOTE, &device_path(ID), Some("imported"))
        .await
        .is(200);
    let row = house
        .api
        .store
        .device(&identity(ID))
        .await
        .unwrap()
        .unwrap();
    assert!(
        matches!(row.secret, Some(SecretHash::Hmac(_))),
        "{:?}",
        row.secret
    );
    house
        .get(REMOTE, &device_path(ID), Some("imported"))
        .await
        .is(200);
}

#[tokio::test]
async fn a_new_certificate_ends_the_old_connection_where_only_the_newest_counts() {
    let house = House::with(ApiSettings::default(), true).await;
    let secret = house.register(ID).await;
    house.live.connect(&identity(ID));
    let first = house.certificate(ID, &secret).await;
    assert!(
        house
            .live
            .did()
            .contains(&format!("disconnect acme/{ID} superseded"))
    );
    let verdict = async |certificate: &str| {
        let body = json!({ "client_crt": certificate });
        house
            .post(REMOTE, &verify_path(ID), Some(&secret), body)
            .await
            .is(200)
            .data()
    };
    assert_eq!(verdict(&first).await["valid"], true);
    let second = house.certificate(ID, &secret).await;
    assert_eq!(verdict(&first).await["cause"], "REVOKED");
    assert_eq!(verdict(&second).await["valid"], true);
}

#[tokio::test]
async fn version_and_health_of_pairing_need_no_token() {
    let house = House::start().await;
    let version = house
        .get(REMOTE, "/pairing/v1/acme/version", None)
        .await
        .is(200);
    assert_eq!(version.data(), "1.3.0");
    house
        .get(REMOTE, "/pairing/v1/acme/health", None)
        .await
        .is(200);
    let missing = house
        .get(REMOTE, "/pairing/v1/acme/fdo/x", None)
        .await
        .is(404);
    assert_eq!(missing.detail(), "Page not found");
}
