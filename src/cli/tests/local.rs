//! Verbs that need no node.

use std::process::Command;

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};

use super::*;

fn openssl(directory: &Path, words: &str) {
    let done = Command::new("openssl")
        .args(words.split(' '))
        .current_dir(directory)
        .output();
    let done = done.expect("the tests of foreign keys need the openssl command");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[tokio::test]
async fn a_token_is_signed_here_with_any_key_that_astarte_takes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    openssl(path, "ecparam -name prime256v1 -genkey -out sec1.key");
    openssl(
        path,
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out p384.key",
    );
    openssl(path, "genrsa -traditional -out pkcs1.key 2048");
    openssl(
        path,
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa.key",
    );
    for (name, algorithm) in [
        ("sec1", Algorithm::ES256),
        ("p384", Algorithm::ES384),
        ("pkcs1", Algorithm::RS256),
        ("rsa", Algorithm::RS256),
    ] {
        openssl(
            path,
            &format!("pkey -in {name}.key -pubout -out {name}.pub"),
        );
        let key = path.join(format!("{name}.key")).display().to_string();
        let words = [
            "token",
            "acme",
            "--api",
            "appengine,channels",
            "--expiry",
            "1h",
            "--key",
            &key,
        ];
        let ran = run_in(path, &words, None).await;
        assert_eq!(ran.exit, Exit::Done, "{name}: {}", ran.err);

        let public = std::fs::read(path.join(format!("{name}.pub"))).unwrap();
        let public = match algorithm {
            Algorithm::RS256 => DecodingKey::from_rsa_pem(&public),
            _ => DecodingKey::from_ec_pem(&public),
        };
        let mut validation = Validation::new(algorithm);
        validation.validate_exp = false;
        validation.required_spec_claims.clear();
        let token = decode::<Value>(ran.out.trim(), &public.unwrap(), &validation);
        let issued = Timestamp::parse("2026-01-31T10:20:30Z")
            .unwrap()
            .as_millis()
            / 1000;
        let expected = json!({"a_aea": [".*::.*"], "a_ch": ["JOIN::.*", "WATCH::.*"],
            "iat": issued, "exp": issued + 3600});
        assert_eq!(token.unwrap().claims, expected, "{name}");
    }
}

#[tokio::test]
async fn a_housekeeping_token_needs_a_key_and_no_realm() {
    let directory = tempfile::tempdir().unwrap();
    openssl(
        directory.path(),
        "ecparam -name prime256v1 -genkey -noout -out hk.key",
    );
    let key = directory.path().join("hk.key").display().to_string();
    let words = [
        "token",
        "--api",
        "housekeeping",
        "--expiry",
        "never",
        "--key",
        &key,
        "--json",
    ];
    let token = run_in(directory.path(), &words, None).await.json()["token"].clone();
    let claims = token
        .as_str()
        .unwrap()
        .split('.')
        .nth(1)
        .unwrap()
        .to_owned();
    let claims = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims);
    let claims: Value = serde_json::from_slice(&claims.unwrap()).unwrap();
    assert_eq!(claims["a_ha"], json!([".*::.*"]));
    assert!(claims.get("exp").is_none());
}

#[tokio::test]
async fn what_is_no_signing_key_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    openssl(directory.path(), "genpkey -algorithm ed25519 -out ed.key");
    std::fs::write(directory.path().join("rubbish.key"), "rubbish").unwrap();
    for name in ["ed.key", "rubbish.key", "missing.key"] {
        let key = directory.path().join(name).display().to_string();
        let words = ["token", "acme", "--api", "pairing", "--key", &key];
        let ran = run_in(directory.path(), &words, None).await;
        assert_eq!(ran.exit, Exit::Failed, "{name}");
        assert!(ran.err.contains(name), "{}", ran.err);
        assert!(ran.out.is_empty());
    }
}

#[tokio::test]
async fn config_check_finds_what_is_wrong_in_and_around_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tanit.toml");
    let check = async |text: &str| {
        std::fs::write(&file, text).unwrap();
        let words = [
            "config",
            "check",
            "--config",
            file.to_str().unwrap(),
            "--json",
        ];
        let ran = run_in(directory.path(), &words, None).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["ok"], ran.exit == Exit::Done);
        (ran.exit, report)
    };
    let (exit, report) = check("[mqtt]\nlisten = \"127.0.0.1:1234\"\n").await;
    assert_eq!(exit, Exit::Done, "{report}");
    assert_eq!(report, json!({"ok": true, "problems": [], "warnings": []}));

    for (text, named) in [
        ("[mqtt]\nlissten = 1\n", "lissten"),
        ("[http]\nlisten = \"0.0.0.0:80\"\n", "http.insecure"),
        ("[log]\nlevel = \"tanit=loudly\"\n", "log.level"),
        (
            "[tls]\ncertificates = [{ certificate = \"/nope.crt\", key = \"/nope.key\" }]\n",
            "/nope.crt",
        ),
        (
            "[http]\nhousekeeping_public_key = \"/nope.pem\"\n",
            "/nope.pem",
        ),
        ("rubbish", "tanit.toml"),
    ] {
        let (exit, report) = check(text).await;
        assert_eq!(exit, Exit::FoundProblems, "{text}");
        assert!(report["problems"].to_string().contains(named), "{report}");
    }
    let missing = run_in(directory.path(), &["config", "check", "/nope.toml"], None).await;
    assert_eq!(missing.exit, Exit::Failed);
    assert!(missing.err.contains("/nope.toml"), "{}", missing.err);
}

#[tokio::test]
async fn a_node_with_wrong_settings_is_not_started() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tanit.toml");
    std::fs::write(&file, "[nonsense]\n").unwrap();
    let words = ["serve", "--config", file.to_str().unwrap()];
    let ran = run_in(directory.path(), &words, None).await;
    assert_eq!(ran.exit, Exit::BadConfiguration);
    assert!(ran.err.contains("nonsense"), "{}", ran.err);
}

#[tokio::test]
async fn completions_and_manual_pages_know_every_verb() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let ran = run_in(directory.path(), &["completions", shell], None).await;
        assert!(ran.out.contains("credentials"), "{shell}");
    }
    let page = run_in(directory.path(), &["man"], None).await;
    assert!(page.out.contains(".TH tanit 1"), "{}", &page.out[..200]);
    let out = directory.path().join("man1");
    let ran = run_in(
        directory.path(),
        &["man", "--out", out.to_str().unwrap()],
        None,
    )
    .await;
    assert_eq!(ran.exit, Exit::Done);
    for page in ["tanit.1", "tanit-serve.1", "tanit-realm-ca-rotate.1"] {
        assert!(out.join(page).exists(), "{page}");
    }
}
