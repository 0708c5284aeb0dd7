//! A test for each verb that talks to a node: its request, and the shape that it prints.

use super::*;

#[tokio::test]
async fn status_waits_until_the_node_is_ready() {
    let status = |ready: bool| {
        ok(
            json!({"version": "0.1.0", "ready": ready, "mqtt": "127.0.0.1:40123",
            "http": "127.0.0.1:40124", "realms": 0, "connected_devices": 0}),
        )
    };
    let starting = vec![refused(503, "starting"), status(false), status(true)];
    let (shown, seen) = json_of(starting, &["status"]).await;
    assert_eq!(shown["mqtt"], "127.0.0.1:40123");
    assert_eq!(shown["http"], "127.0.0.1:40124");
    assert_eq!(shown["ready"], true);
    assert_eq!(seen.len(), 3);

    let health = ok(json!({"ready": false, "reasons": ["the database does not answer"]}));
    let late = run(vec![status(false), health], &["status", "--wait", "0s"]).await;
    assert_eq!(late.exit, Exit::TryLater);
    assert!(late.out.contains("127.0.0.1:40123"), "{}", late.out);
    assert!(
        late.err.contains("the database does not answer"),
        "{}",
        late.err
    );

    let forbidden = run(vec![refused(403, "Forbidden")], &["status"]).await;
    assert_eq!(forbidden.exit, Exit::Failed, "no waiting changes a refusal");
}

#[tokio::test]
async fn reload_says_what_was_refused() {
    let done = ok(json!({"reloaded": ["certificates", "log level"], "errors": []}));
    let ran = run(vec![done], &["reload"]).await;
    assert_eq!(ran.requests(), ["POST /tanit/v1/reload"]);
    assert_eq!(ran.out, "read again: certificates, log level\n");

    let broken = ok(json!({"reloaded": ["log level"], "errors": ["tls.crt is not PEM"]}));
    let ran = run(vec![broken], &["reload", "--json"]).await;
    assert_eq!(ran.exit, Exit::FoundProblems);
    assert!(ran.err.contains("tls.crt is not PEM"));
    let shape: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shape["errors"], json!(["tls.crt is not PEM"]));
}

#[tokio::test]
async fn config_show_is_a_line_for_each_key() {
    let settings = json!({"mqtt": {"listen": "0.0.0.0:8883", "keep_alive_max": null},
        "tls": {"certificates": []}});
    let ran = run(vec![ok(settings.clone())], &["config", "show"]).await;
    assert_eq!(
        ran.out,
        "mqtt.listen = \"0.0.0.0:8883\"\ntls.certificates = []\n"
    );
    let (shown, _) = json_of(vec![ok(settings.clone())], &["config", "show"]).await;
    assert_eq!(shown, settings);
}

#[tokio::test]
async fn a_realm_is_made_with_a_kept_a_given_or_a_returned_key() {
    let realm = json!({"realm_name": "acme", "jwt_public_key_pem": "PEM",
        "device_registration_limit": null});
    let made = || vec![(201, json!({"data": realm}))];

    let (shown, seen) = json_of(made(), &["realm", "create", "acme"]).await;
    assert_eq!(shown, realm);
    assert_eq!(seen[0].line, "POST /tanit/v1/realms");
    assert_eq!(
        seen[0].data(),
        json!({"realm_name": "acme", "private_key": "keep"})
    );

    let directory = tempfile::tempdir().unwrap();
    let public = directory.path().join("acme.pub");
    std::fs::write(&public, "PUBLIC").unwrap();
    let words = [
        "realm",
        "create",
        "acme",
        "--public-key",
        public.to_str().unwrap(),
    ];
    let (_, seen) = json_of(made(), &words).await;
    assert_eq!(
        seen[0].data(),
        json!({"realm_name": "acme", "jwt_public_key_pem": "PUBLIC"})
    );

    let private = directory.path().join("acme.key");
    let mut with_key = realm.clone();
    with_key["jwt_private_key_pem"] = json!("PRIVATE");
    let words = [
        "realm",
        "create",
        "acme",
        "--private-key-out",
        private.to_str().unwrap(),
    ];
    let returned = || vec![(201, json!({"data": with_key}))];
    let (shown, seen) = json_of(returned(), &words).await;
    assert_eq!(shown, realm, "the private key was printed");
    assert_eq!(
        seen[0].data(),
        json!({"realm_name": "acme", "private_key": "return"})
    );
    assert_eq!(std::fs::read_to_string(&private).unwrap(), "PRIVATE");
    assert_eq!(mode(&private), 0o600);

    let again = run(returned(), &words).await;
    assert_eq!(again.exit, Exit::Failed);
    assert!(
        again.seen.is_empty(),
        "a realm was made whose key could not be written"
    );

    std::fs::remove_file(&private).unwrap();
    let taken = run(vec![refused(409, "Realm already exists")], &words).await;
    assert_eq!(taken.exit, Exit::Failed);
    assert!(!private.exists(), "an empty key file was left behind");
}

#[tokio::test]
async fn realms_are_listed_shown_and_deleted() {
    let realm = json!({"realm_name": "acme", "total_devices": 3, "connected_devices": 1,
        "device_registration_limit": null});
    let (list, seen) = json_of(vec![ok(json!([realm]))], &["realm", "list"]).await;
    assert_eq!(list, json!([realm]));
    assert_eq!(seen[0].line, "GET /tanit/v1/realms");
    let table = run(vec![ok(json!([realm]))], &["realm", "list"]).await.out;
    assert_eq!(
        table,
        "REALM  DEVICES  CONNECTED  LIMIT\nacme   3        1          -\n"
    );

    let (shown, seen) = json_of(vec![ok(realm.clone())], &["realm", "show", "acme"]).await;
    assert_eq!(
        (shown, seen[0].line.as_str()),
        (realm, "GET /tanit/v1/realms/acme")
    );

    let words = ["realm", "delete", "acme", "--force", "--yes"];
    let (shown, seen) = json_of(vec![NO_CONTENT], &words).await;
    assert_eq!(shown, json!({"realm_name": "acme", "deleted": true}));
    assert_eq!(seen[0].line, "DELETE /tanit/v1/realms/acme?force=true");
}

#[tokio::test]
async fn the_worst_devices_of_the_last_hour_are_listed() {
    let rows = json!([{"device_id": ID, "error_name": "mapping_not_found", "count": 7}]);
    let (list, seen) = json_of(vec![ok(rows.clone())], &["realm", "errors", "acme"]).await;
    assert_eq!(list, rows);
    let expected = "GET /tanit/v1/realms/acme/errors?since=2026-01-31T09%3A20%3A30.000Z";
    assert_eq!(seen[0].line, expected);
    let words = [
        "realm",
        "reconnects",
        "acme",
        "--since",
        "2026-01-01T00:00:00Z",
    ];
    let (_, seen) = json_of(vec![ok(json!([]))], &words).await;
    let expected = "GET /tanit/v1/realms/acme/reconnects?since=2026-01-01T00%3A00%3A00.000Z";
    assert_eq!(seen[0].line, expected);
}

#[tokio::test]
async fn cas_are_printed_listed_rotated_imported_and_removed() {
    let ca = |fingerprint: &str, issuing: bool| {
        json!({"fingerprint": fingerprint, "subject": "CN=acme", "issuing": issuing,
            "not_after": "2036-01-01T00:00:00.000Z", "added_at": "2026-01-01T00:00:00.000Z",
            "certificate_pem": format!("PEM of {fingerprint}\n")})
    };
    let pool = json!([ca("aa11", true), ca("aa22", false), ca("bb33", false)]);
    let answers = || vec![ok(pool.clone())];

    let printed = run(answers(), &["realm", "ca", "print", "acme"]).await;
    assert_eq!(printed.out, "PEM of aa11\n");
    let printed = run(answers(), &["realm", "ca", "print", "acme", "BB"]).await;
    assert_eq!(printed.out, "PEM of bb33\n");
    let ambiguous = run(answers(), &["realm", "ca", "print", "acme", "aa"]).await;
    assert_eq!(ambiguous.exit, Exit::Failed);
    assert!(ambiguous.err.contains("more than one"), "{}", ambiguous.err);

    let (list, seen) = json_of(answers(), &["realm", "ca", "list", "acme"]).await;
    assert_eq!(
        (list, seen[0].line.as_str()),
        (pool.clone(), "GET /tanit/v1/realms/acme/cas")
    );

    let rotated = vec![(201, json!({"data": ca("cc44", true)}))];
    let (shown, seen) = json_of(rotated, &["realm", "ca", "rotate", "acme"]).await;
    assert_eq!(shown["fingerprint"], "cc44");
    assert_eq!(seen[0].line, "POST /tanit/v1/realms/acme/cas/rotate");

    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["ca.pem", "ca.key"].map(|name| {
        let path = directory.path().join(name);
        std::fs::write(&path, name).unwrap();
        path.display().to_string()
    });
    let words = [
        "realm",
        "ca",
        "import",
        "acme",
        &certificate,
        "--key",
        &key,
        "--issuing",
    ];
    let (_, seen) = json_of(vec![(201, json!({"data": ca("dd55", true)}))], &words).await;
    let expected =
        json!({"certificate_pem": "ca.pem", "private_key_pem": "ca.key", "issuing": true});
    assert_eq!(seen[0].data(), expected);

    let words = ["realm", "ca", "remove", "acme", "bb", "--yes"];
    let (shown, seen) = json_of(vec![ok(pool.clone()), NO_CONTENT], &words).await;
    assert_eq!(shown, json!({"fingerprint": "bb33", "removed": true}));
    assert_eq!(seen[1].line, "DELETE /tanit/v1/realms/acme/cas/bb33");
    let silent = run(vec![ok(pool), NO_CONTENT], &words[..5]).await;
    assert_eq!((silent.exit, silent.seen.len()), (Exit::Usage, 1));
}

#[tokio::test]
async fn a_device_is_registered_in_three_ways_and_printed_in_one() {
    let answer = json!({"device_id": ID, "credentials_secret": "c2VjcmV0", "more": true});
    let registered = || vec![(201, json!({"data": answer}))];
    let expected = json!({"device_id": ID, "credentials_secret": "c2VjcmV0"});

    let (shown, seen) = json_of(registered(), &["device", "register", "acme"]).await;
    assert_eq!(shown, expected);
    assert_eq!(seen[0].line, "POST /tanit/v1/realms/acme/devices");
    assert_eq!(seen[0].data(), json!({}));

    let (shown, seen) = json_of(registered(), &["device", "register", "acme", ID]).await;
    assert_eq!(
        (shown, seen[0].data()),
        (expected.clone(), json!({"device_id": ID}))
    );

    let namespace = "f79ad91f-c638-4889-ae74-9d001a3b4cf8";
    let words = [
        "device",
        "register",
        "acme",
        "--namespace",
        namespace,
        "--hardware-id",
        "0004a3",
    ];
    let (_, seen) = json_of(registered(), &words).await;
    assert_eq!(
        seen[0].data(),
        json!({"namespace": namespace, "hardware_id": "0004a3"})
    );

    let text = run(registered(), &["device", "register", "acme"]).await.out;
    assert!(
        text.contains("device_id") && text.contains("c2VjcmV0"),
        "{text}"
    );
}

#[tokio::test]
async fn device_list_goes_on_over_the_pages() {
    let page = |from: usize, to: usize| {
        ok((from..to)
            .map(|n| json!({"id": format!("device{n}")}))
            .collect())
    };
    let pages = vec![page(0, 1000), page(1000, 1300)];
    let words = [
        "device",
        "list",
        "acme",
        "--connected",
        "--inhibited=false",
        "--interface",
        "a.B",
    ];
    let (list, seen) = json_of(pages, &words).await;
    assert_eq!(list.as_array().unwrap().len(), 1300);
    assert_eq!(list[1299], json!({"id": "device1299"}));
    let filter = "connected=true&inhibited=false&interface=a.B";
    assert_eq!(
        seen.iter()
            .map(|seen| seen.line.clone())
            .collect::<Vec<_>>(),
        [
            format!("GET /tanit/v1/realms/acme/devices?{filter}&limit=1000"),
            format!("GET /tanit/v1/realms/acme/devices?{filter}&after=device999&limit=1000"),
        ]
    );
    let (list, seen) = json_of(
        vec![page(0, 5)],
        &["device", "list", "acme", "--limit", "5"],
    )
    .await;
    assert_eq!((list.as_array().unwrap().len(), seen.len()), (5, 1));
}

#[tokio::test]
async fn devices_are_shown_and_changed() {
    let device = json!({"id": ID, "connected": true, "session": null, "certificate": null});
    let path = format!("/tanit/v1/realms/acme/devices/{ID}");
    let (shown, seen) = json_of(vec![ok(device.clone())], &["device", "show", "acme", ID]).await;
    assert_eq!(
        (shown, seen[0].line.clone()),
        (device, format!("GET {path}"))
    );

    let cases = [
        (
            vec!["inhibit"],
            NO_CONTENT,
            "POST",
            "/inhibit",
            json!({"credentials_inhibited": true}),
        ),
        (
            vec!["allow"],
            NO_CONTENT,
            "POST",
            "/allow",
            json!({"credentials_inhibited": false}),
        ),
        (
            vec!["disconnect"],
            ok(json!({"disconnected": false})),
            "POST",
            "/disconnect",
            json!({"disconnected": false}),
        ),
        (
            vec!["unregister", "--yes"],
            NO_CONTENT,
            "DELETE",
            "/registration",
            json!({"unregistered": true}),
        ),
        (
            vec!["delete", "--yes"],
            NO_CONTENT,
            "DELETE",
            "",
            json!({"deleted": true}),
        ),
        (
            vec!["revoke", "--yes"],
            ok(json!({"serial": "4f"})),
            "POST",
            "/revoke",
            json!({"serial": "4f", "revoked": true}),
        ),
    ];
    for (verb, answer, method, rest, expected) in cases {
        let words = [&["device", verb[0], "acme", ID], &verb[1..]].concat();
        let (shown, seen) = json_of(vec![answer], &words).await;
        assert_eq!(seen[0].line, format!("{method} {path}{rest}"));
        assert_eq!(shown["device_id"], ID);
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&shown[name], value, "{words:?}");
        }
    }
    let words = ["device", "revoke", "acme", ID, "--serial", "4f", "--yes"];
    let (_, seen) = json_of(vec![ok(json!({"serial": "4f"}))], &words).await;
    assert_eq!(seen[0].data(), json!({"serial": "4f"}));
}

#[tokio::test]
async fn ids_may_begin_with_a_hyphen() {
    let id = "-m9vYmFyYmF6cXV4MTIzNA";
    let (_, seen) = json_of(vec![ok(json!({}))], &["device", "show", "acme", id]).await;
    assert_eq!(
        seen[0].line,
        format!("GET /tanit/v1/realms/acme/devices/{id}")
    );
}

#[tokio::test]
async fn errors_history_and_audit_are_arrays_of_the_apis_objects() {
    let error = json!({"at": "2026-01-31T10:20:30.123Z", "error_name": "mapping_not_found",
        "interface": "a.B", "path": "/x", "base64_payload": null, "detail": "\u{1b}[31m"});
    let (list, _) = json_of(vec![ok(json!([error]))], &["device", "errors", "acme", ID]).await;
    assert_eq!(list, json!([error]));
    let table = run(vec![ok(json!([error]))], &["device", "errors", "acme", ID])
        .await
        .out;
    assert!(!table.contains('\u{1b}'), "a device wrote to the terminal");

    let event = json!({"sequence": 2, "at": "2026-01-31T10:20:30.123Z", "event": "disconnected",
        "ip": null, "reason": "keep_alive_timeout"});
    let (list, seen) = json_of(vec![ok(json!([event]))], &["device", "history", "acme", ID]).await;
    assert_eq!(list, json!([event]));
    assert!(seen[0].line.ends_with("/history"));

    let entry = json!({"at": "2026-01-31T10:20:30.123Z", "actor": "socket:0",
        "action": "device.inhibit", "object": format!("acme/{ID}")});
    let (list, seen) = json_of(vec![ok(json!([entry]))], &["audit", "--limit", "5"]).await;
    assert_eq!(
        (list, seen[0].line.as_str()),
        (json!([entry]), "GET /tanit/v1/audit?limit=5")
    );
}

#[tokio::test]
async fn data_is_what_appengine_answers() {
    let samples = json!([{"timestamp": "2026-01-31T10:20:30.123Z", "value": 21.5}]);
    let words = [
        "data",
        "acme",
        ID,
        "org.example.Sensor",
        "/kitchen 1/celsius",
        "--since",
        "1h",
        "--limit",
        "9",
    ];
    let (shown, seen) = json_of(vec![ok(samples.clone())], &words).await;
    assert_eq!(shown, samples);
    let expected = format!(
        "GET /appengine/v1/acme/devices/{ID}/interfaces/org.example.Sensor/kitchen%201/celsius\
         ?since=2026-01-31T09%3A20%3A30.000Z&limit=9"
    );
    assert_eq!(seen[0].line, expected);
    let table = run(vec![ok(samples)], &words).await.out;
    assert_eq!(
        table,
        "timestamp                 value\n2026-01-31T10:20:30.123Z  21.5\n"
    );

    let tree = json!({"firmware": {"version": "1.2.3"}});
    let words = ["data", "acme", "cellar/door", "a.B"];
    let (shown, seen) = json_of(vec![ok(tree.clone())], &words).await;
    assert_eq!(shown, tree);
    let expected = "GET /appengine/v1/acme/devices-by-alias/cellar%2Fdoor/interfaces/a.B";
    assert_eq!(seen[0].line, expected);
}

#[tokio::test]
async fn publish_reads_a_value_as_json_where_that_is_taken_and_as_text_otherwise() {
    let delivered = || ok(json!({"outcome": "delivered"}));
    let words = |value| ["publish", "acme", ID, "t.SrvCmd", "/cmd", value];
    let sent = |seen: &[Seen]| -> Vec<Value> {
        seen.iter()
            .map(|seen| seen.data()["value"].clone())
            .collect()
    };
    for (value, expected) in [
        ("on", json!("on")),
        ("-21.5", json!(-21.5)),
        ("true", json!(true)),
        ("\"42\"", json!("42")),
        ("[1, 2]", json!([1, 2])),
        ("2026-01-31T10:20:30Z", json!("2026-01-31T10:20:30Z")),
    ] {
        let (shown, seen) = json_of(vec![delivered()], &words(value)).await;
        assert_eq!(shown, json!({"outcome": "delivered"}));
        assert_eq!(sent(&seen), [expected]);
        assert_eq!(
            seen[0].line,
            format!("POST /tanit/v1/realms/acme/devices/{ID}/publish")
        );
        assert_eq!(seen[0].data()["path"], "/cmd");
    }
    let wrong_type = || refused(422, "Unexpected value type");
    let (_, seen) = json_of(vec![wrong_type(), delivered()], &words("42")).await;
    assert_eq!(sent(&seen), [json!(42), json!("42")]);

    let neither = run(vec![wrong_type(), refused(422, "second")], &words("42")).await;
    assert_eq!(neither.exit, Exit::Failed);
    assert!(
        neither.err.contains("Unexpected value type"),
        "{}",
        neither.err
    );
    let away = vec![wrong_type(), refused(503, "no session")];
    let away = run(away, &words("42")).await;
    assert_eq!(away.exit, Exit::TryLater);
    assert!(away.err.contains("no session"), "{}", away.err);
    let missing = run(vec![refused(404, "Interface not found")], &words("42")).await;
    assert_eq!(missing.seen.len(), 1);
}

#[tokio::test]
async fn publish_tells_what_became_of_the_value() {
    let words = ["publish", "acme", ID, "t.SrvCmd", "/cmd", "on"];
    let until = ok(json!({"outcome": "queued", "until": "2026-02-01T00:00:00.000Z"}));
    let queued = run(vec![until], &words).await;
    assert_eq!(
        queued.out,
        "queued for the device until 2026-02-01T00:00:00.000Z\n"
    );
    let full = run(vec![ok(json!({"outcome": "queue_full"}))], &words).await;
    assert_eq!(full.exit, Exit::TryLater);
    assert!(full.err.contains("queue full"), "{}", full.err);
    let nobody = run(vec![refused(503, "the device has no session")], &words).await;
    assert_eq!(nobody.exit, Exit::TryLater);
    assert!(nobody.err.contains("no session"), "{}", nobody.err);
}

#[tokio::test]
async fn interfaces_are_installed_updated_listed_shown_and_deleted() {
    let document = json!({"interface_name": "org.example.Sensor", "version_major": 1,
        "version_minor": 2, "type": "datastream", "ownership": "device",
        "mappings": [{"endpoint": "/%{id}/celsius", "type": "double"}]});
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sensor.json");
    std::fs::write(&file, document.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let row = json!({"interface_name": "org.example.Sensor", "version_major": 1,
        "version_minor": 2, "version": "1.2", "file": file});

    let (shown, seen) = json_of(
        vec![(201, Value::Null)],
        &["interface", "install", "acme", file],
    )
    .await;
    assert_eq!(shown, json!([row]));
    assert_eq!(seen[0].line, "POST /realmmanagement/v1/acme/interfaces");
    assert_eq!(seen[0].data(), document);

    let (_, seen) = json_of(vec![NO_CONTENT], &["interface", "update", "acme", file]).await;
    assert_eq!(
        seen[0].line,
        "PUT /realmmanagement/v1/acme/interfaces/org.example.Sensor/1"
    );

    let listed = ok(json!([document]));
    let (list, seen) = json_of(vec![listed], &["interface", "list", "acme"]).await;
    assert_eq!(list, json!([document]));
    assert_eq!(
        seen[0].line,
        "GET /realmmanagement/v1/acme/interfaces?detailed=true"
    );

    let newest = vec![ok(json!([0, 1])), ok(document.clone())];
    let words = ["interface", "show", "acme", "org.example.Sensor"];
    let (shown, seen) = json_of(newest, &words).await;
    assert_eq!(shown, document);
    assert_eq!(
        seen[1].line,
        "GET /realmmanagement/v1/acme/interfaces/org.example.Sensor/1"
    );

    let words = [
        "interface",
        "delete",
        "acme",
        "org.example.Sensor",
        "0",
        "--yes",
    ];
    let (shown, seen) = json_of(vec![NO_CONTENT], &words).await;
    let expected =
        json!({"interface_name": "org.example.Sensor", "version_major": 0, "deleted": true});
    assert_eq!(shown, expected);
    assert_eq!(
        seen[0].line,
        "DELETE /realmmanagement/v1/acme/interfaces/org.example.Sensor/0"
    );
}

#[tokio::test]
async fn no_interface_is_installed_when_one_of_the_files_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let files = ["good.json", "bad.json"].map(|name| directory.path().join(name));
    let good = json!({"interface_name": "org.example.Sensor", "version_major": 0,
        "version_minor": 1, "type": "properties", "ownership": "device",
        "mappings": [{"endpoint": "/x", "type": "integer"}]});
    std::fs::write(&files[0], good.to_string()).unwrap();
    std::fs::write(&files[1], "{}").unwrap();
    let [good, bad] = files.each_ref().map(|file| file.to_str().unwrap());

    let ran = run(
        vec![(201, Value::Null)],
        &["interface", "install", "acme", good, bad],
    )
    .await;
    assert_eq!((ran.exit, ran.seen.len()), (Exit::Failed, 0));
    assert!(ran.err.contains("bad.json"), "{}", ran.err);

    let ran = run(vec![], &["interface", "check", good, bad, "--json"]).await;
    assert_eq!((ran.exit, ran.seen.len()), (Exit::FoundProblems, 0));
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report[0]["ok"], true);
    assert_eq!(report[1]["ok"], false);
    assert!(
        report[1]["problem"]
            .as_str()
            .unwrap()
            .contains("interface_name"),
        "{report}"
    );
    assert_eq!(
        run(vec![], &["interface", "check", good]).await.exit,
        Exit::Done
    );
}

#[tokio::test]
async fn a_backup_is_whole_or_not_there_and_never_overwrites() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.tar");
    let words = ["backup", file.to_str().unwrap()];

    let refused = run(vec![refused(409, "a backup is under way")], &words).await;
    assert_eq!(refused.exit, Exit::Failed);
    assert!(!file.exists());

    let (shown, seen) = json_of(vec![(200, json!("bytes of a tar"))], &words).await;
    assert_eq!(shown, json!({"file": file, "bytes": 14}));
    assert_eq!(seen[0].line, "POST /tanit/v1/backup");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "bytes of a tar");
    assert_eq!(mode(&file), 0o600);

    let again = run(vec![(200, json!("other"))], &words).await;
    assert_eq!((again.exit, again.seen.len()), (Exit::Failed, 0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "bytes of a tar");

    let words = ["restore", file.to_str().unwrap(), "--yes"];
    let (shown, seen) = json_of(vec![(202, json!({"data": {"restarting": true}}))], &words).await;
    assert_eq!(shown, json!({"restarting": true}));
    assert_eq!(seen[0].line, "POST /tanit/v1/restore");
    assert_eq!(seen[0].body, b"bytes of a tar");
}

#[tokio::test]
async fn a_token_is_asked_of_the_node() {
    let words = [
        "token",
        "acme",
        "--api",
        "appengine,realm-management",
        "--api",
        "channels",
        "--expiry",
        "90s",
    ];
    let (shown, seen) = json_of(vec![(201, json!({"data": {"token": "a.b.c"}}))], &words).await;
    assert_eq!(shown, json!({"token": "a.b.c"}));
    assert_eq!(seen[0].line, "POST /tanit/v1/realms/acme/tokens");
    let expected =
        json!({"apis": ["appengine", "realm-management", "channels"], "expiry_seconds": 90});
    assert_eq!(seen[0].data(), expected);
    let words = ["token", "acme", "--api", "pairing", "--expiry", "never"];
    let ran = run(vec![ok(json!({"token": "a.b.c"}))], &words).await;
    assert_eq!(ran.out, "a.b.c\n");
    assert_eq!(ran.seen[0].data()["expiry_seconds"], 0);
}
