//! What an operator sees: command line, errors after the fact, metrics, and settings that cannot be
//! used.

use std::{path::Path, process::Output};

use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::harness::{
    device::bson,
    product::{ALL_INTERFACES, PATIENCE, Tanit, TestDevice},
};

fn keys(object: &Value) -> Vec<&str> {
    let fields = object.as_object().expect("an object");
    fields.keys().map(String::as_str).collect()
}

fn objects(list: &Value) -> &[Value] {
    let rows = list.as_array().expect("an array");
    assert!(rows.iter().all(Value::is_object), "of objects: {list}");
    rows
}

#[tokio::test]
async fn every_list_is_an_array_of_objects_and_a_registration_has_two_keys() {
    let tanit = Tanit::start().await;
    assert_eq!(tanit.cli(&["realm", "list"]).await, json!([]));
    tanit.fixtures().await;
    let registered = tanit.cli(&["device", "register", "acme"]).await;
    assert_eq!(keys(&registered), ["credentials_secret", "device_id"]);
    let id = registered["device_id"].as_str().expect("an id");
    assert_eq!(id.len(), 22);
    let named = tanit
        .cli(&["device", "register", "acme", "Zm9vYmFyYmF6cXV4MTIzNA"])
        .await;
    assert_eq!(named["device_id"], "Zm9vYmFyYmF6cXV4MTIzNA");
    let derived = ["--namespace", "f79ad91f-c638-4889-ae74-9d001a3b4cf8"];
    let derived = [derived[0], derived[1], "--hardware-id", "0004a3"];
    let words: Vec<&str> = ["device", "register", "acme"]
        .into_iter()
        .chain(derived)
        .collect();
    let derived = tanit.cli(&words).await;
    assert_eq!(keys(&derived), ["credentials_secret", "device_id"]);

    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    connection.publish("t.Dev/int", b"").await;
    connection.publish("t.Dev/int", &bson(1)).await;
    let lists: [(&[&str], usize, &str); 8] = [
        (&["realm", "list"], 1, "realm_name"),
        (&["device", "list", "acme"], 4, "id"),
        (&["device", "list", "acme", "--connected"], 1, "id"),
        (&["interface", "list", "acme"], 5, "interface_name"),
        (&["device", "errors", "acme", &device.id], 1, "error_name"),
        (&["device", "history", "acme", &device.id], 1, "event"),
        (&["realm", "errors", "acme"], 1, "device_id"),
        (&["realm", "reconnects", "acme"], 1, "device_id"),
    ];
    for (words, count, field) in lists {
        let list = tanit.cli(words).await;
        let rows = objects(&list);
        assert_eq!(rows.len(), count, "{words:?}: {list}");
        assert!(rows.iter().all(|row| row[field].is_string()), "{list}");
    }
    let cas = tanit.cli(&["realm", "ca", "list", "acme"]).await;
    assert_eq!(objects(&cas).len(), 1);
    let audit = tanit.cli(&["audit"]).await;
    let actions: Vec<&str> = objects(&audit)
        .iter()
        .map(|row| row["action"].as_str().expect("an action"))
        .collect();
    for action in ["realm.create", "device.register"] {
        assert!(actions.contains(&action), "{actions:?}");
    }
    let rows = tanit.data(&device, "t.Dev", "/int").await;
    assert_eq!(keys(&rows[0]), ["timestamp", "value"]);
    let status = tanit.cli(&["status"]).await;
    for field in ["mqtt", "http"] {
        assert!(status[field].is_string(), "{status}");
    }
}

#[tokio::test]
async fn exit_codes_say_what_to_do_next() {
    let tanit = Tanit::start().await;
    tanit.realm("acme").await;
    let cases: [(&[&str], i32); 8] = [
        (&["no-such-verb"], 2),
        (&["device", "register"], 2),
        (&["device", "register", "Not A Realm"], 2),
        (&["device", "list", "globex"], 1),
        (&["realm", "create", "acme"], 1),
        (&["device", "show", "acme", "Zm9vYmFyYmF6cXV4MTIzNA"], 1),
        (&["config", "check", "--config", "/none/at/all.toml"], 1),
        (&["serve", "--config", "/none/at/all.toml"], 78),
    ];
    for (words, expected) in cases {
        let output = tanit.cli_output(words).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{words:?}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}: results alone");
        assert!(!said.trim().is_empty(), "{words:?}: it says why");
    }
    let nobody = Tanit::prepared("");
    let (code, said) = nobody.cli_refused(&["status", "--wait", "0s"]).await;
    assert_eq!(code, 75, "{said}");
    let (code, said) = nobody.cli_refused(&["realm", "list"]).await;
    assert_eq!(code, 75, "{said}");
}

#[tokio::test]
async fn what_cannot_be_undone_has_to_be_meant() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    let verbs: [&[&str]; 5] = [
        &["device", "revoke", "acme", &device.id],
        &["device", "unregister", "acme", &device.id],
        &["device", "delete", "acme", &device.id],
        &["interface", "delete", "acme", "t.DevObj", "1"],
        &["realm", "delete", "acme"],
    ];
    for words in verbs {
        let (code, said) = tanit.cli_refused(words).await;
        assert_eq!(code, 2, "{words:?}: {said}");
        assert!(said.contains("--yes"), "{words:?}: {said}");
    }
    connection.publish("t.Dev/int", &bson(1)).await;
    assert_eq!(tanit.data(&device, "t.Dev", "/int").await.len(), 1);

    let (code, said) = tanit
        .cli_refused(&["realm", "delete", "acme", "--yes"])
        .await;
    assert_eq!(code, 1, "a device is connected: {said}");
    assert!(said.contains("connected"), "{said}");
    tanit
        .cli(&["device", "delete", "acme", &device.id, "--yes"])
        .await;
    connection.expect_closed().await;
    let mut other = tanit
        .device("acme")
        .await
        .connect_clean(&tanit, ALL_INTERFACES)
        .await;
    tanit
        .cli(&["--yes", "realm", "delete", "acme", "--force"])
        .await;
    other.expect_closed().await;
    assert_eq!(tanit.cli(&["realm", "list"]).await, json!([]));
}

/// Causes an error of each of five kinds; the last four each end the session, and more of those in
/// a minute would hold the device off.
async fn five_errors(tanit: &Tanit, device: &TestDevice) -> [&'static str; 5] {
    let mut connection = device.connect_clean(tanit, ALL_INTERFACES).await;
    connection.publish("t.Dev/int", b"").await;
    connection.disconnect().await;
    let bad: [(&str, &[u8], &str); 4] = [
        ("t.Dev/int", b"junk", "undecodable_bson_payload"),
        ("t.Dev/long", &bson("one"), "unexpected_value_type"),
        ("t.Dev/none", &bson(1), "mapping_not_found"),
        (
            "t.SrvCmd/cmd",
            &bson("x"),
            "write_on_server_owned_interface",
        ),
    ];
    for (below, payload, _) in bad {
        let mut connection = device.connect_clean(tanit, ALL_INTERFACES).await;
        connection.send_publish(below, payload, 1).await;
        connection.expect_closed().await;
    }
    [
        "unset_on_datastream",
        bad[0].2,
        bad[1].2,
        bad[2].2,
        bad[3].2,
    ]
}

#[tokio::test]
async fn fc_128_an_operator_sees_why_a_device_misbehaved_after_the_fact() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let (device, quiet) = (tanit.device("acme").await, tanit.device("acme").await);
    quiet
        .connect_clean(&tanit, ALL_INTERFACES)
        .await
        .disconnect()
        .await;
    let expected = five_errors(&tanit, &device).await;
    let before = explained(&tanit, &device, &quiet, &expected).await;
    tanit.kill().await;
    tanit.launch().await;
    let after = explained(&tanit, &device, &quiet, &expected).await;
    assert_eq!(before, after, "the same after a restart");
}

/// All that is shown of the device's errors, checked.
async fn explained(
    tanit: &Tanit,
    device: &TestDevice,
    quiet: &TestDevice,
    expected: &[&str; 5],
) -> Vec<Value> {
    assert_eq!(tanit.errors(device).await, expected);
    let rows = tanit.cli(&["device", "errors", "acme", &device.id]).await;
    let row = rows
        .as_array()
        .and_then(|rows| {
            rows.iter()
                .find(|row| row["error_name"] == "unexpected_value_type")
        })
        .expect("the error")
        .clone();
    let fields: Vec<&Value> = ["interface", "path", "base64_payload"]
        .map(|field| &row[field])
        .into();
    assert_eq!(fields, ["t.Dev", "/long", "EAAAAAJ2AAQAAABvbmUAAA=="]);
    assert!(
        row["at"].as_str().is_some_and(|at| at.ends_with('Z')),
        "{row}"
    );

    let top = tanit.cli(&["realm", "errors", "acme"]).await;
    let mut names: Vec<&str> = objects(&top)
        .iter()
        .map(|row| {
            assert_eq!(
                (&row["device_id"], &row["count"]),
                (&json!(device.id), &json!(1))
            );
            row["error_name"].as_str().expect("a name")
        })
        .collect();
    names.sort_unstable();
    let mut sorted = expected.to_vec();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    let reconnects = tanit.cli(&["realm", "reconnects", "acme"]).await;
    assert_eq!(
        reconnects,
        json!([{"device_id": device.id, "count": 5}, {"device_id": quiet.id, "count": 1}])
    );
    vec![rows, top, reconnects]
}

#[tokio::test]
async fn fc_128_the_newest_hundred_errors_of_a_device_are_kept() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    connection.publish("t.Dev/long", b"").await;
    for _ in 0..110 {
        connection.publish("t.Dev/int", b"").await;
    }
    let rows = tanit.cli(&["device", "errors", "acme", &device.id]).await;
    let rows = objects(&rows);
    assert_eq!(rows.len(), 100);
    assert!(rows.iter().all(|row| row["path"] == "/int"), "the newest");
    let top = tanit.cli(&["realm", "errors", "acme"]).await;
    assert_eq!(top[0]["error_name"], "unset_on_datastream");
}

async fn metrics(tanit: &Tanit) -> String {
    let answer = reqwest::get(format!("http://{}/metrics", tanit.http))
        .await
        .expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.text().await.expect("a text")
}

fn series(metrics: &str) -> Vec<&str> {
    metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').expect("a value").0)
        .collect()
}

fn sample(metrics: &str, name: &str) -> u64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .unwrap_or_else(|| panic!("{name} is not in\n{metrics}"));
    line.parse().expect("a number")
}

/// 3 realms with 2, then 8 devices each, instead of 50 realms with 1,000.
#[tokio::test]
async fn fc_129_no_metric_has_a_device_label_and_a_deleted_realm_leaves_none() {
    const REALMS: [&str; 3] = ["acme", "globex", "initech"];
    let tanit = Tanit::start().await;
    let stream = json!({"interface_name": "t.S", "version_major": 1, "version_minor": 0,
        "type": "datastream", "ownership": "device",
        "mappings": [{"endpoint": "/v", "type": "integer"}]});
    for realm in REALMS {
        tanit.realm(realm).await;
        tanit.install(realm, &stream).await;
    }
    let mut devices = Vec::new();
    let mut connections = Vec::new();
    let mut counts = Vec::new();
    for count in [2, 6] {
        for realm in REALMS {
            for _ in 0..count {
                let device = tanit.device(realm).await;
                let mut connection = device.connect_clean(&tanit, "t.S:1:0").await;
                connection.publish("t.S/v", &bson(1)).await;
                connection.publish("t.S/v", b"").await;
                devices.push(device);
                connections.push(connection);
            }
        }
        let text = metrics(&tanit).await;
        assert!(text.len() < 2 << 20);
        counts.push(series(&text).len());
    }
    assert_eq!(
        counts[0], counts[1],
        "series come with realms and kinds alone"
    );
    let text = metrics(&tanit).await;
    for device in &devices {
        assert!(!text.contains(&device.id), "{}", device.id);
    }
    assert!(!text.contains("device="), "no such label");
    let connected = |realm: &str| format!("tanit_realm_connections{{realm=\"{realm}\"}}");
    for realm in REALMS {
        assert_eq!(sample(&text, &connected(realm)), 8);
    }
    assert_eq!(sample(&text, "tanit_connections"), 24);

    tanit
        .cli(&["realm", "delete", "globex", "--force", "--yes"])
        .await;
    let text = metrics(&tanit).await;
    assert!(!text.contains("globex"), "its series are gone:\n{text}");
    assert_eq!(sample(&text, &connected("acme")), 8);
    let stored = sample(&text, "tanit_messages_total{outcome=\"stored\"}");
    for connection in connections {
        connection.cut();
    }
    let down = async {
        loop {
            let text = metrics(&tanit).await;
            if sample(&text, "tanit_connections") == 0 {
                return text;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let text = timeout(PATIENCE, down).await.expect("gauges return to 0");
    for name in [
        "tanit_intake_messages",
        "tanit_intake_bytes",
        "tanit_intake_waiting",
        &connected("acme"),
        &connected("initech"),
    ] {
        assert_eq!(sample(&text, name), 0, "{name}");
    }
    let still = sample(&text, "tanit_messages_total{outcome=\"stored\"}");
    assert!(still >= stored, "a counter never falls");
}

/// Runs `tanit serve` on a data directory; it has to end by itself.
async fn serve(data_dir: &Path, config: &str, more: &[&str]) -> Output {
    let file = data_dir.with_extension("toml");
    std::fs::write(&file, config).expect("a file");
    let run = Command::new(env!("CARGO_BIN_EXE_tanit"))
        .arg("serve")
        .args([
            "--mqtt-listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
        ])
        .args(more)
        .arg("--config")
        .arg(&file)
        .arg("--data-dir")
        .arg(data_dir)
        .kill_on_drop(true)
        .output();
    timeout(PATIENCE, run)
        .await
        .expect("it gives up")
        .expect("it runs")
}

/// The one line that says why it did not start.
fn reason(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("tanit: "))
        .collect();
    assert_eq!(lines.len(), 1, "one clear line:\n{said}");
    assert_eq!(said.lines().last(), Some(lines[0]), "the last:\n{said}");
    assert!(!said.contains("panicked"), "{said}");
    lines[0].to_owned()
}

/// A certificate for localhost and its key, in files of this directory.
fn server_certificate(directory: &Path, name: &str, expired: bool) -> (String, String) {
    let mut parameters =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    if expired {
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
    }
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = parameters.self_signed(&key).expect("a certificate");
    let write = |suffix: &str, text: String| {
        let file = directory.join(format!("{name}.{suffix}"));
        std::fs::write(&file, text).expect("a file");
        file.display().to_string()
    };
    (
        write("crt", certificate.pem()),
        write("key", key.serialize_pem()),
    )
}

fn tls(certificate: &str, key: &str) -> String {
    format!("[tls]\ncertificates = [{{ certificate = \"{certificate}\", key = \"{key}\" }}]\n")
}

#[tokio::test]
async fn fc_131_settings_that_cannot_be_used_get_one_clear_line() {
    let folder = tempfile::tempdir().expect("a directory");
    let (certificate, _) = server_certificate(folder.path(), "one", false);
    let (_, other_key) = server_certificate(folder.path(), "two", false);
    let (old, old_key) = server_certificate(folder.path(), "old", true);
    let missing = folder.path().join("missing.key").display().to_string();
    let junk = folder.path().join("junk.pem");
    std::fs::write(&junk, "junk").expect("a file");
    let junk = junk.display().to_string();
    let housekeeping = format!("[http]\nhousekeeping_public_key = \"{junk}\"\n");
    let cases = [
        ("[mqtt]\nno_such_key = 1\n".to_owned(), "no_such_key"),
        (
            "[mqtt]\nconnect_timeout = \"soon\"\n".to_owned(),
            "connect_timeout",
        ),
        ("[mqtt\n".to_owned(), "line 1"),
        (
            "[mqtt]\nqueue_messages_max = 0\n".to_owned(),
            "queue_messages_max",
        ),
        (
            "[http]\nlisten = \"0.0.0.0:0\"\n[log]\nlevel = \"no=such=level\"\n".to_owned(),
            "level",
        ),
        (tls(&certificate, &missing), "missing.key"),
        (tls(&certificate, &junk), "junk.pem"),
        (tls(&certificate, &other_key), "does not belong"),
        (tls(&old, &old_key), "expired"),
        (housekeeping, "housekeeping_public_key"),
        (
            "[database]\nurl = \"mysql://localhost/x\"\n".to_owned(),
            "database.url",
        ),
    ];
    for (number, (config, word)) in cases.iter().enumerate() {
        let data_dir = folder.path().join(format!("data{number}"));
        let output = serve(&data_dir, config, &[]).await;
        let said = reason(&output);
        assert_eq!(output.status.code(), Some(78), "{config}: {said}");
        assert!(said.contains(word), "{config}: {said}");
    }
}

#[tokio::test]
async fn fc_131_data_that_cannot_be_used_gets_one_clear_line() {
    let folder = tempfile::tempdir().expect("a directory");
    // a file where the directory should be
    let taken = folder.path().join("taken");
    std::fs::write(&taken, "").expect("a file");
    let output = serve(&taken, "", &[]).await;
    let said = reason(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(
        said.contains("taken") && said.contains("--data-dir"),
        "{said}"
    );

    // a session store of a newer program
    let newer = folder.path().join("newer");
    std::fs::create_dir(&newer).expect("a directory");
    let store = redb::Database::create(newer.join("sessions.redb")).expect("a store");
    let writing = store.begin_write().expect("a transaction");
    let table: redb::TableDefinition<'_, u64, u64> = redb::TableDefinition::new("sessions.v99");
    writing.open_table(table).expect("a table");
    writing.commit().expect("committed");
    drop(store);
    let output = serve(&newer, "", &[]).await;
    let said = reason(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(
        said.contains("sessions.redb") && said.contains("newer"),
        "{said}"
    );

    // a session store that is none
    let damaged = folder.path().join("damaged");
    std::fs::create_dir(&damaged).expect("a directory");
    std::fs::write(damaged.join("sessions.redb"), vec![7; 10_000]).expect("a file");
    let output = serve(&damaged, "", &[]).await;
    let said = reason(&output);
    assert_ne!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("sessions.redb"), "{said}");
}

#[tokio::test]
async fn fc_131_a_database_of_a_newer_program_and_a_lost_master_key_are_refused() {
    use sqlx::Connection as _;
    let mut tanit = Tanit::start().await;
    tanit.realm("acme").await;
    assert!(tanit.terminate().await.success());
    let key = tanit.data_dir().join("master.key");
    let aside = tanit.beside("master.key");
    std::fs::rename(&key, &aside).expect("moved");
    let output = serve(&tanit.data_dir(), "", &[]).await;
    let said = reason(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("master.key"), "{said}");
    assert!(!key.exists(), "no new one in its place");
    let other = Tanit::start().await;
    std::fs::copy(other.data_dir().join("master.key"), &key).expect("another key");
    let output = serve(&tanit.data_dir(), "", &[]).await;
    let said = reason(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("another master key"), "{said}");
    std::fs::rename(&aside, &key).expect("moved");

    let file = tanit.data_dir().join("tanit.db").display().to_string();
    let mut database = sqlx::SqliteConnection::connect(&file)
        .await
        .expect("it opens");
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'from the future', TRUE, x'', 0)",
    )
    .execute(&mut database)
    .await
    .expect("a row");
    database.close().await.expect("closed");
    let output = serve(&tanit.data_dir(), "", &[]).await;
    let said = reason(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("9999") && said.contains("newer"), "{said}");
}

#[tokio::test]
async fn fc_131_a_port_in_use_is_named() {
    let folder = tempfile::tempdir().expect("a directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for (flag, key) in [("--mqtt-listen", "mqtt"), ("--http-listen", "http")] {
        let config = format!("[{key}]\nlisten = \"{address}\"\n");
        let data_dir = folder.path().join(key);
        let file = data_dir.with_extension("toml");
        std::fs::write(&file, config).expect("a file");
        let other = if key == "mqtt" {
            "--http-listen"
        } else {
            "--mqtt-listen"
        };
        let run = Command::new(env!("CARGO_BIN_EXE_tanit"))
            .arg("serve")
            .args([other, "127.0.0.1:0"])
            .arg("--config")
            .arg(&file)
            .arg("--data-dir")
            .arg(&data_dir)
            .kill_on_drop(true)
            .output();
        let output = timeout(PATIENCE, run)
            .await
            .expect("it gives up")
            .expect("it runs");
        let said = reason(&output);
        assert_eq!(output.status.code(), Some(1), "{flag}: {said}");
        assert!(said.contains(&address), "{flag}: {said}");
        assert!(said.contains("in use"), "{flag}: {said}");
    }
}

#[tokio::test]
async fn fc_131_a_second_serve_on_a_data_directory_is_refused() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let output = serve(&tanit.data_dir(), "", &[]).await;
    let said = reason(&output);
    assert_ne!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("in use"), "{said}");
    assert!(said.contains(&tanit.pid().to_string()), "{said}");
    // the first one has not noticed
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    connection.publish("t.Dev/int", &bson(1)).await;
}

#[tokio::test]
async fn fc_131_config_check_lists_all_problems_at_once() {
    let tanit = Tanit::prepared("");
    let (certificate, _) =
        server_certificate(tanit.beside("x").parent().expect("a folder"), "one", false);
    let missing = tanit.beside("missing.key").display().to_string();
    let config = format!(
        "[mqtt]\nqueue_messages_max = 0\nqos2_ids_max = 0\n\
         [http]\nlisten = \"0.0.0.0:8080\"\nhousekeeping_public_key = \"{missing}\"\n\
         [pairing]\nbroker_url = \"http://x\"\n\
         [log]\nlevel = \"no=such=level\"\n{}",
        tls(&certificate, &missing)
    );
    std::fs::write(tanit.data_dir(), "").expect("a file in its place");
    let file = tanit.beside("bad.toml");
    std::fs::write(&file, config).expect("a file");
    let file = file.display().to_string();
    let output = tanit
        .cli_output(&["config", "check", "--config", &file])
        .await;
    assert_eq!(output.status.code(), Some(3));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    let problems = report["problems"].to_string();
    for word in [
        "queue_messages_max",
        "qos2_ids_max",
        "http.listen",
        "broker_url",
        "housekeeping_public_key",
        "tls.certificates",
        "data_dir",
        "no=such=level",
    ] {
        assert!(problems.contains(word), "{word}: {problems}");
    }
    std::fs::remove_file(tanit.data_dir()).expect("gone");
    let good = tanit.beside("good.toml");
    std::fs::write(&good, "[mqtt]\nqueue_messages_max = 5\n").expect("a file");
    let report = tanit
        .cli(&["config", "check", &good.display().to_string()])
        .await;
    assert_eq!(report, json!({"ok": true, "problems": [], "warnings": []}));
}
