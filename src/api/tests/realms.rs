//! Housekeeping, and what we add to it: keys, CAs, CRLs.

use super::*;

const OURS: &str = "/tanit/v1/realms";

#[tokio::test]
async fn a_realm_is_made_shown_changed_and_removed() {
    let house = House::start().await;
    let path = "/housekeeping/v1/realms";
    let key = house.keys.public_key_pem.clone();
    let body = json!({
        "realm_name": "globex", "jwt_public_key_pem": key, "replication_factor": 3,
        "device_registration_limit": 5,
    });
    let made = house.post(OPERATOR, path, None, body.clone()).await.is(201);
    assert_eq!(made.headers[header::LOCATION], "/v1/realms/globex");
    assert_eq!(
        made.data(),
        json!({
            "realm_name": "globex",
            "jwt_public_key_pem": key,
            "replication_class": "SimpleStrategy",
            "replication_factor": 1,
            "device_registration_limit": 5,
            "datastream_maximum_storage_retention": null,
        })
    );
    let again = house.post(OPERATOR, path, None, body).await.is(409);
    assert_eq!(again.detail(), "Realm already exists");

    let globex = format!("{path}/globex");
    let unlimited = json!({ "device_registration_limit": null });
    let changed = house
        .call(OPERATOR, Method::PATCH, &globex, None, Some(unlimited))
        .await
        .is(200);
    assert_eq!(changed.data()["device_registration_limit"], Value::Null);
    house.delete(OPERATOR, &globex, None).await.is(204);
    assert_eq!(
        house.get(OPERATOR, &globex, None).await.is(404).detail(),
        "realm not found"
    );
}

#[tokio::test]
async fn realms_of_bad_names_or_keys_are_refused_by_field() {
    let house = House::start().await;
    let key = house.keys.public_key_pem.clone();
    for (body, field) in [
        (json!({ "jwt_public_key_pem": key }), "realm_name"),
        (
            json!({ "realm_name": "Bad", "jwt_public_key_pem": key }),
            "realm_name",
        ),
        (
            json!({ "realm_name": "astarte", "jwt_public_key_pem": key }),
            "realm_name",
        ),
        (json!({ "realm_name": "fine" }), "jwt_public_key_pem"),
        (
            json!({ "realm_name": "fine", "jwt_public_key_pem": "rubbish" }),
            "jwt_public_key_pem",
        ),
        (
            json!({ "realm_name": "fine", "jwt_public_key_pem": key,
                    "device_registration_limit": -1 }),
            "device_registration_limit",
        ),
    ] {
        let refused = house
            .post(OPERATOR, "/housekeeping/v1/realms", None, body)
            .await
            .is(422);
        assert!(
            refused.json()["errors"][field].is_array(),
            "{field}: {refused:?}"
        );
    }
    let request = Request::post("/housekeeping/v1/realms")
        .body(Body::from("{"))
        .unwrap();
    assert_eq!(
        house.send(OPERATOR, request).await.is(400).detail(),
        "Bad request"
    );
    let request = Request::post("/housekeeping/v1/realms")
        .body(Body::from("{}"))
        .unwrap();
    assert_eq!(
        house.send(OPERATOR, request).await.is(400).detail(),
        "Bad request"
    );
}

#[tokio::test]
async fn a_realm_with_connected_devices_is_removed_only_by_force() {
    let house = House::start().await;
    house.register(ID).await;
    house.live.connect(&identity(ID));
    let path = format!("{OURS}/acme");
    house.delete(OPERATOR, &path, None).await.is(422);
    house.live.did();
    house
        .delete(OPERATOR, &format!("{path}?force=true"), None)
        .await
        .is(204);
    let did = house.live.did();
    assert_eq!(
        did[..2],
        ["disconnect_realm acme deleted", "erase_realm acme"]
    );
    house.get(OPERATOR, &path, None).await.is(404);
    assert!(house.live.sessions.lock().unwrap().is_empty());
    house.delete(OPERATOR, &path, None).await.is(404);
}

#[tokio::test]
async fn housekeeping_over_tcp_removes_realms_only_where_that_is_set() {
    let house = House::start().await;
    let claims = tokens::claims(&[TokenApi::Housekeeping], house.clock_wall(), None);
    let token = tokens::sign(&house.housekeeping.private_key_pem, &claims).unwrap();
    house
        .delete(REMOTE, "/housekeeping/v1/realms/acme", Some(&token))
        .await
        .is(405);
    house
        .delete(REMOTE, "/tanit/v1/realms/acme", Some(&token))
        .await
        .is(204);
}

#[tokio::test]
async fn a_made_key_is_kept_for_signing_or_handed_out_once() {
    let house = House::start().await;
    let kept = house
        .post(OPERATOR, OURS, None, json!({ "realm_name": "kept" }))
        .await
        .is(201);
    assert_eq!(kept.data()["private_key_kept"], true);
    assert!(kept.data().get("jwt_private_key_pem").is_none());
    let body = json!({ "apis": ["pairing", "appengine"], "expiry_seconds": 60 });
    let path = format!("{OURS}/kept/tokens");
    let token = house
        .post(OPERATOR, &path, None, body.clone())
        .await
        .is(201);
    let token = token.data()["token"].as_str().unwrap().to_owned();
    let agent = "/pairing/v1/kept/agent/devices";
    house
        .post(REMOTE, agent, Some(&token), json!({ "hw_id": ID }))
        .await
        .is(201);
    house.clock.advance(Duration::from_mins(1));
    house
        .post(REMOTE, agent, Some(&token), json!({ "hw_id": ID }))
        .await
        .is(401);

    let given = json!({ "realm_name": "given", "private_key": "return" });
    let given = house.post(OPERATOR, OURS, None, given).await.is(201);
    let pem = given.data()["jwt_private_key_pem"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(pem.contains("PRIVATE KEY"));
    let shown = house
        .get(OPERATOR, &format!("{OURS}/given"), None)
        .await
        .is(200);
    assert!(!shown.text.contains("PRIVATE KEY"));
    house
        .post(OPERATOR, &format!("{OURS}/given/tokens"), None, body)
        .await
        .is(422);
    for apis in [
        json!([]),
        json!(["bakery"]),
        json!(["housekeeping"]),
        Value::Null,
    ] {
        house
            .post(OPERATOR, &path, None, json!({ "apis": apis }))
            .await
            .is(422);
    }
}

#[tokio::test]
async fn a_rotated_ca_leaves_the_old_one_in_the_pool_until_it_is_removed() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    let old_certificate = house.certificate(ID, &secret).await;
    let verify =
        format!("/pairing/v1/acme/devices/{ID}/protocols/astarte_mqtt_v1/credentials/verify");
    let valid = async |certificate: &str| {
        let body = json!({ "client_crt": certificate });
        house
            .post(REMOTE, &verify, Some(&secret), body)
            .await
            .is(200)
            .data()["valid"]
            == true
    };
    let cas = format!("{OURS}/acme/cas");
    let old = house.get(OPERATOR, &cas, None).await.is(200).data()[0].clone();
    assert_eq!(old["issuing"], true);
    let old = old["fingerprint"].as_str().unwrap().to_owned();
    let issuing = house
        .delete(OPERATOR, &format!("{cas}/{old}"), None)
        .await
        .is(422);
    assert!(issuing.detail().contains("rotate"), "{issuing:?}");

    house
        .call(OPERATOR, Method::POST, &format!("{cas}/rotate"), None, None)
        .await
        .is(201);
    let new_certificate = house.certificate(ID, &secret).await;
    assert!(valid(&old_certificate).await);
    assert!(valid(&new_certificate).await);

    house.live.did();
    house
        .delete(OPERATOR, &format!("{cas}/{old}"), None)
        .await
        .is(204);
    assert_eq!(house.live.did(), ["reverify"]);
    assert!(!valid(&old_certificate).await);
    assert!(valid(&new_certificate).await);
    house
        .delete(OPERATOR, &format!("{cas}/{old}"), None)
        .await
        .is(404);
}

#[tokio::test]
async fn an_operator_s_own_ca_is_imported_and_a_bad_one_is_not() {
    let house = House::start().await;
    let (certificate, key) = own_ca();
    let cas = format!("{OURS}/acme/cas");
    let verifying = json!({ "certificate_pem": certificate });
    house
        .post(
            OPERATOR,
            &cas,
            None,
            json!({ "certificate_pem": certificate, "issuing": true }),
        )
        .await
        .is(422);
    house
        .post(
            OPERATOR,
            &cas,
            None,
            json!({ "certificate_pem": "rubbish" }),
        )
        .await
        .is(422);
    let added = house
        .post(OPERATOR, &cas, None, verifying.clone())
        .await
        .is(201);
    assert_eq!(added.data()["issuing"], false);
    house.post(OPERATOR, &cas, None, verifying).await.is(409);

    let (certificate, key_pem) = (own_ca().0, key);
    // a key of another CA
    let body =
        json!({ "certificate_pem": certificate, "private_key_pem": key_pem, "issuing": true });
    house.post(OPERATOR, &cas, None, body).await.is(422);
    let (certificate, key) = own_ca();
    let body = json!({ "certificate_pem": certificate, "private_key_pem": key, "issuing": true });
    house.post(OPERATOR, &cas, None, body).await.is(201);
    let issuing: Vec<bool> = house
        .get(OPERATOR, &cas, None)
        .await
        .data()
        .as_array()
        .unwrap()
        .iter()
        .map(|ca| ca["issuing"].as_bool().unwrap())
        .collect();
    assert_eq!(issuing.iter().filter(|issuing| **issuing).count(), 1);
    let secret = house.register(ID).await;
    house.certificate(ID, &secret).await;
}

fn own_ca() -> (String, String) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Own CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = rcgen::date_time_ymd(2025, 1, 1);
    params.not_after = rcgen::date_time_ymd(2035, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[tokio::test]
async fn a_crl_file_revokes_after_a_reload_and_a_broken_one_changes_nothing() {
    let house = House::start().await;
    let (ca, key) = own_ca();
    let body = json!({ "certificate_pem": ca, "private_key_pem": key, "issuing": true });
    house
        .post(OPERATOR, &format!("{OURS}/acme/cas"), None, body)
        .await
        .is(201);
    let secret = house.register(ID).await;
    let certificate = house.certificate(ID, &secret).await;
    let verify =
        format!("/pairing/v1/acme/devices/{ID}/protocols/astarte_mqtt_v1/credentials/verify");
    let valid = async || {
        let body = json!({ "client_crt": certificate });
        house
            .post(REMOTE, &verify, Some(&secret), body)
            .await
            .is(200)
            .data()["valid"]
            == true
    };
    let crls = house.dir.path().join("crl");
    std::fs::create_dir(&crls).unwrap();
    std::fs::write(crls.join("acme.pem"), "rubbish").unwrap();
    let refused = house.api.realms.load().await.unwrap();
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].1.to_string().contains("refused"),
        "{}",
        refused[0].1
    );
    assert!(valid().await);
    std::fs::write(crls.join("acme.pem"), crl(&ca, &key, &certificate)).unwrap();
    assert!(house.api.realms.load().await.unwrap().is_empty());
    assert!(!valid().await);
    // broken again: what was revoked stays revoked
    std::fs::write(crls.join("acme.pem"), "rubbish").unwrap();
    assert_eq!(house.api.realms.load().await.unwrap().len(), 1);
    assert!(!valid().await);
    std::fs::remove_file(crls.join("acme.pem")).unwrap();
    assert!(house.api.realms.load().await.unwrap().is_empty());
    assert!(valid().await);
}

/// A CRL of this CA that revokes this certificate.
fn crl(ca: &str, key: &str, certificate: &str) -> String {
    use rcgen::{
        CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams,
        SerialNumber,
    };
    let block = pem::parse(certificate).unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(block.contents()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(ca, KeyPair::from_pem(key).unwrap()).unwrap();
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from_slice(leaf.raw_serial()),
        revocation_time: rcgen::date_time_ymd(2026, 1, 31),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2026, 1, 30),
        next_update: rcgen::date_time_ymd(2026, 12, 31),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer).unwrap().pem().unwrap()
}
