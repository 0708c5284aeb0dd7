//! Who may call what.

use serde_json::Map;

use super::*;

const AGENT: &str = "/pairing/v1/acme/agent/devices";
const ACME: &str = "/housekeeping/v1/realms/acme";

fn signed(house: &House, claims: Value) -> String {
    let Value::Object(claims) = claims else {
        panic!("claims are an object")
    };
    tokens::sign(&house.keys.private_key_pem, &claims).unwrap()
}

async fn register_with(house: &House, token: Option<&str>) -> Answer {
    house
        .post(REMOTE, AGENT, token, json!({ "hw_id": ID }))
        .await
}

#[tokio::test]
async fn without_a_token_or_with_a_bad_one_the_answer_is_401() {
    let house = House::start().await;
    let missing = register_with(&house, None).await.is(401);
    assert_eq!(missing.detail(), "Missing authorization token");
    let now = house.clock_wall().as_millis() / 1000;
    let everything = json!([".*::.*"]);
    let foreign = TokenKeyPair::generate().unwrap();
    let foreign = tokens::sign(
        &foreign.private_key_pem,
        &tokens::claims(&[TokenApi::Pairing], house.clock_wall(), None),
    )
    .unwrap();
    for (why, token) in [
        ("malformed", "a.b.c".to_owned()),
        ("no token at all", "x".to_owned()),
        ("foreign key", foreign),
        (
            "expired",
            signed(&house, json!({ "a_pa": everything, "exp": now })),
        ),
        (
            "not yet",
            signed(&house, json!({ "a_pa": everything, "nbf": now + 1 })),
        ),
        (
            "exp is text",
            signed(&house, json!({ "a_pa": everything, "exp": "tomorrow" })),
        ),
    ] {
        let refused = register_with(&house, Some(&token)).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{why}");
        assert_eq!(refused.detail(), "Invalid JWT token", "{why}");
    }
}

#[tokio::test]
async fn tokens_by_hmac_or_without_a_signature_never_count() {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let house = House::start().await;
    let claims = tokens::claims(&[TokenApi::Pairing], house.clock_wall(), None);
    // the classic confusion: the public key taken for the secret of an HMAC
    let secret = house.keys.public_key_pem.as_bytes();
    let key = jsonwebtoken::EncodingKey::from_secret(secret).unwrap();
    let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    let confused = jsonwebtoken::encode(&header, &claims, &key).unwrap();
    register_with(&house, Some(&confused)).await.is(401);

    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned = format!(
        "{}.{}.",
        part(&json!({ "alg": "none" })),
        part(&Value::Object(claims))
    );
    register_with(&house, Some(&unsigned)).await.is(401);
}

#[tokio::test]
async fn a_token_counts_until_its_end_and_from_its_beginning() {
    let house = House::start().await;
    let now = house.clock_wall().as_millis() / 1000;
    let token = signed(
        &house,
        json!({ "a_pa": [".*::.*"], "nbf": now, "exp": now + 10 }),
    );
    register_with(&house, Some(&token)).await.is(201);
    house.clock.advance(Duration::from_secs(10));
    register_with(&house, Some(&token)).await.is(401);
}

#[tokio::test]
async fn a_claim_allows_whole_methods_and_whole_paths_only() {
    let house = House::start().await;
    for (entries, allowed) in [
        (json!([".*::.*"]), true),
        (json!(["POST::agent/devices"]), true),
        (json!(["POST:any:agent/dev.*"]), true),
        (json!(["GET|POST::agent/devices|groups"]), true),
        (json!(["(broken::.*", "POST::agent/devices"]), true),
        (json!([7, "^POST$::^agent/devices$"]), true),
        (json!([]), false),
        (json!(".*::.*"), false),
        (json!(["POST::agent"]), false),
        (json!(["POST::/agent/devices"]), false),
        (json!(["GET::agent/devices"]), false),
        (json!(["OST::.*"]), false),
        (json!(["POST::gent/devices"]), false),
        (json!(["GET|POST::x|agent"]), false),
        (json!(["POST:agent/devices"]), false),
        (json!(["POST::.*)|(.*"]), false),
        (json!(["POST::v1/acme/agent/devices"]), false),
    ] {
        let token = signed(&house, json!({ "a_pa": entries }));
        let answer = register_with(&house, Some(&token)).await;
        let expected = if allowed {
            StatusCode::CREATED
        } else {
            StatusCode::FORBIDDEN
        };
        assert_eq!(answer.status, expected, "{entries}");
        if !allowed {
            assert_eq!(
                answer.detail(),
                "Unauthorized access to POST /v1/acme/agent/devices. Please verify your \
                 permissions"
            );
        }
    }
}

#[tokio::test]
async fn the_claim_of_another_service_allows_nothing() {
    let house = House::start().await;
    for api in [
        TokenApi::AppEngine,
        TokenApi::RealmManagement,
        TokenApi::Channels,
    ] {
        register_with(&house, Some(&house.token(api))).await.is(403);
    }
    let housekeeping = house.token(TokenApi::Housekeeping);
    // signed by a realm's key, which is not Housekeeping's
    house
        .get(REMOTE, "/housekeeping/v1/realms", Some(&housekeeping))
        .await
        .is(401);
}

#[tokio::test]
async fn an_unknown_realm_is_forbidden() {
    let house = House::start().await;
    let token = house.token(TokenApi::Pairing);
    for realm in ["nowhere", "ACME", "astarte"] {
        let path = format!("/pairing/v1/{realm}/agent/devices");
        house
            .post(REMOTE, &path, Some(&token), json!({ "hw_id": ID }))
            .await
            .is(403);
    }
}

#[tokio::test]
async fn housekeeping_wants_the_instance_s_token_over_tcp_and_none_on_the_socket() {
    let house = House::start().await;
    let path = "/housekeeping/v1/realms";
    house.get(REMOTE, path, None).await.is(401);
    let sign = |claims: &Map<String, Value>| {
        tokens::sign(&house.housekeeping.private_key_pem, claims).unwrap()
    };
    let good = sign(&tokens::claims(
        &[TokenApi::Housekeeping],
        house.clock_wall(),
        None,
    ));
    assert_eq!(
        house.get(REMOTE, path, Some(&good)).await.is(200).data(),
        json!(["acme"])
    );
    house
        .get(REMOTE, "/tanit/v1/status", Some(&good))
        .await
        .is(200);
    house.get(REMOTE, "/tanit/v1/status", None).await.is(401);
    house.get(OPERATOR, path, None).await.is(200);
    house.get(OPERATOR, "/tanit/v1/status", None).await.is(200);
}

#[tokio::test]
async fn housekeeping_without_a_key_is_shut_over_tcp() {
    let house = House::start().await;
    let clock = house.clock.clone();
    let authority = Authority::new(house.api.store.clone(), clock, None).unwrap();
    let headers = HeaderMap::from_iter([(
        header::AUTHORIZATION,
        header::HeaderValue::from_static("Bearer x"),
    )]);
    let asked = crate::api::auth::Asked {
        peer: REMOTE,
        method: &Method::GET,
        path: "realms",
        shown: "/v1/realms",
        headers: &headers,
    };
    let refused = authority.in_housekeeping(&asked).unwrap_err();
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn keys_of_every_supported_kind_verify_their_tokens() {
    let house = House::start().await;
    let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let patch = json!({ "jwt_public_key_pem": p384.public_key_pem() });
    house
        .call(OPERATOR, Method::PATCH, ACME, None, Some(patch))
        .await
        .is(200);
    let claims = tokens::claims(&[TokenApi::Pairing], house.clock_wall(), None);
    let token = tokens::sign(&p384.serialize_pem(), &claims).unwrap();
    register_with(&house, Some(&token)).await.is(201);
    // the key before it counts no more
    register_with(&house, Some(&house.token(TokenApi::Pairing)))
        .await
        .is(401);
}

#[tokio::test]
async fn rsa_keys_verify_rs_and_ps_tokens_of_every_size() {
    use jsonwebtoken::Algorithm::{ES256, PS256, PS384, PS512, RS256, RS384, RS512};
    let house = House::start().await;
    let (private, public) = rsa_pair("2048");
    let patch = json!({ "jwt_public_key_pem": public });
    house
        .call(OPERATOR, Method::PATCH, ACME, None, Some(patch))
        .await
        .is(200);
    let claims = tokens::claims(&[TokenApi::Pairing], house.clock_wall(), None);
    register_with(&house, Some(&tokens::sign(&private, &claims).unwrap()))
        .await
        .is(201);
    let key = jsonwebtoken::EncodingKey::from_rsa_pem(private.as_bytes()).unwrap();
    for algorithm in [RS256, RS384, RS512, PS256, PS384, PS512] {
        let header = jsonwebtoken::Header::new(algorithm);
        let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
        let answer = register_with(&house, Some(&token)).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{algorithm:?}");
    }
    let elliptic = jsonwebtoken::EncodingKey::from_ec_pem(house.keys.private_key_pem.as_bytes());
    let token = jsonwebtoken::encode(
        &jsonwebtoken::Header::new(ES256),
        &claims,
        &elliptic.unwrap(),
    );
    register_with(&house, Some(&token.unwrap())).await.is(401);

    let weak = json!({ "jwt_public_key_pem": rsa_pair("1024").1 });
    house
        .call(OPERATOR, Method::PATCH, ACME, None, Some(weak))
        .await
        .is(422);
}

#[tokio::test]
async fn a_key_on_p_521_is_refused_in_words() {
    let house = House::start().await;
    let public = openssl(&[
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521 -out key.pem",
        "pkey -in key.pem -pubout -out public.pem",
    ])
    .1;
    let patch = json!({ "jwt_public_key_pem": public });
    let refused = house
        .call(OPERATOR, Method::PATCH, ACME, None, Some(patch))
        .await
        .is(422);
    assert!(refused.text.contains("ES512"), "{refused:?}");
}

/// Private and public key of RSA, PEM.
fn rsa_pair(bits: &str) -> (String, String) {
    openssl(&[
        &format!("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:{bits} -out key.pem"),
        "pkey -in key.pem -pubout -out public.pem",
    ])
}

/// Runs the commands and returns what `key.pem` and `public.pem` hold.
fn openssl(commands: &[&str]) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    for command in commands {
        let output = std::process::Command::new("openssl")
            .args(command.split(' '))
            .current_dir(&directory)
            .output()
            .expect("the tests of these keys need the openssl command");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {command}: {said}");
    }
    let read = |file| std::fs::read_to_string(directory.path().join(file)).unwrap();
    (read("key.pem"), read("public.pem"))
}

#[tokio::test]
async fn any_origin_may_ask_what_it_may_do() {
    let house = House::start().await;
    let request = Request::builder()
        .method(Method::OPTIONS)
        .uri("/housekeeping/v1/realms")
        .header(header::ORIGIN, "https://dashboard.example.org")
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "DELETE")
        .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "authorization");
    let answer = house
        .send(REMOTE, request.body(Body::empty()).unwrap())
        .await
        .is(200);
    assert_eq!(answer.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
    assert_eq!(
        answer.headers[header::ACCESS_CONTROL_ALLOW_HEADERS],
        "authorization"
    );
}
