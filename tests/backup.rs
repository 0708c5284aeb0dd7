//! An archive made while the node works, and the node that is made of it.

use std::{
    collections::BTreeSet,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;
use tokio::time::timeout;

use crate::harness::{
    device::bson,
    product::{ALL_INTERFACES, PATIENCE, Tanit, TestDevice},
};

/// A node with one device, whose session holds a subscription and a queued value.
async fn furnished() -> (Tanit, TestDevice) {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare(ALL_INTERFACES).await;
    connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
    connection.publish("t.Dev/int", &bson(7)).await;
    connection
        .publish_exactly_once("t.DevProp/a", &bson("kept"))
        .await;
    connection.disconnect().await;
    publish(&tanit, &device, "queued").await;
    (tanit, device)
}

async fn publish(tanit: &Tanit, device: &TestDevice, text: &str) {
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", text])
        .await;
}

async fn back_up(tanit: &Tanit) -> PathBuf {
    let file = tanit.beside("archive.tar");
    let told = tanit.cli(&["backup", &file.display().to_string()]).await;
    let length = std::fs::metadata(&file).expect("a file").len();
    assert_eq!(told["bytes"], length);
    assert_eq!(told["file"], json!(file));
    file
}

async fn restore(tanit: &mut Tanit, archive: &Path) {
    let archive = archive.display().to_string();
    let told = tanit.cli(&["restore", &archive, "--yes"]).await;
    assert_eq!(told, json!({"restarting": true}));
    let in_place = async {
        while !tanit.log().contains("the restored backup is in place") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, in_place).await.expect("it restarts");
    tanit.look_up().await;
}

/// The device connects with what it has always had, and finds everything.
async fn assert_whole(tanit: &Tanit, device: &TestDevice) {
    let rows = tanit.data(device, "t.Dev", "/int").await;
    assert_eq!(rows.len(), 1, "values after the backup are gone: {rows:?}");
    assert_eq!(rows[0]["value"], 7);
    let properties = tanit.cli(&["data", "acme", &device.id, "t.DevProp"]).await;
    assert_eq!(properties, json!({"a": "kept"}));
    let (mut connection, present) = device.connect(tanit).await;
    assert!(present, "the session is back");
    assert_eq!(connection.receive().await.payload, bson("queued"));
    connection.expect_only_pong().await;
    publish(tanit, device, "subscribed").await;
    assert_eq!(connection.receive().await.payload, bson("subscribed"));
    connection.publish("t.Dev/long", &bson(8_i64)).await;
    connection.disconnect().await;
}

#[tokio::test]
async fn a_restore_brings_back_values_sessions_and_certificates_and_nothing_later() {
    let (mut tanit, device) = furnished().await;
    let archive = back_up(&tanit).await;
    // what comes later is gone afterwards
    let (mut connection, _) = device.connect(&tanit).await;
    connection.receive().await;
    connection.publish("t.Dev/int", &bson(8)).await;
    connection
        .publish_exactly_once("t.DevProp/a", &bson("later"))
        .await;
    connection.disconnect().await;
    tanit.realm("later").await;

    restore(&mut tanit, &archive).await;
    assert_whole(&tanit, &device).await;
    let realms = tanit.cli(&["realm", "list"]).await;
    assert_eq!(realms.as_array().map(Vec::len), Some(1), "{realms}");
    // and it is an ordinary node, over a kill too
    tanit.kill().await;
    tanit.launch().await;
    let rows = tanit.data(&device, "t.Dev", "/long").await;
    assert_eq!(rows.len(), 1);
}

#[tokio::test]
async fn an_archive_and_the_master_key_make_the_node_anew_elsewhere() {
    let (mut old, device) = furnished().await;
    let archive = back_up(&old).await;
    let mut new = Tanit::prepared("");
    std::fs::create_dir(new.data_dir()).expect("a directory");
    std::fs::copy(
        old.data_dir().join("master.key"),
        new.data_dir().join("master.key"),
    )
    .expect("the key");
    assert!(old.terminate().await.success());
    new.launch().await;
    restore(&mut new, &archive).await;
    // the same CA of the broker, the same CA of the realm, the same secret
    assert_whole(&new, &device).await;
    let mut device = device;
    device.renew(&new).await;
    let (mut connection, _) = device.connect(&new).await;
    connection.expect_only_pong().await;
    let ca = std::fs::read(new.data_dir().join("server-ca.crt")).expect("a CA");
    assert_eq!(ca, device.server_ca);
    new.cli(&["token", "acme", "--api", "appengine"]).await;
}

#[tokio::test]
async fn an_archive_is_private_and_holds_all_but_the_master_key() {
    use std::os::unix::fs::PermissionsExt as _;
    let (tanit, device) = furnished().await;
    let archive = back_up(&tanit).await;
    let mode = std::fs::metadata(&archive).expect("a file").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let key = std::fs::read(tanit.data_dir().join("master.key")).expect("a key");
    let key = key.trim_ascii();
    assert!(key.len() >= 32, "a key");
    let mut names = BTreeSet::new();
    let file = std::fs::File::open(&archive).expect("the archive");
    for entry in tar::Archive::new(file).entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a name").display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its bytes");
        for secret in [key, device.secret.as_bytes()] {
            let found = bytes.windows(secret.len()).any(|window| window == secret);
            assert!(!found, "{name} holds a secret");
        }
        names.insert(name);
    }
    let expected = [
        "manifest.json",
        "server-ca.crt",
        "server-ca.key",
        "server.crt",
        "server.key",
        "sessions.redb",
        "tanit.db",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
    // a file that exists is not overwritten
    let again = tanit
        .cli_refused(&["backup", &archive.display().to_string()])
        .await;
    assert_eq!(again.0, 1, "{}", again.1);
}

#[tokio::test]
async fn foreign_and_damaged_archives_are_refused_and_change_nothing() {
    let (tanit, device) = furnished().await;
    let (foreign, _) = furnished().await;
    let archive = back_up(&tanit).await;
    let foreign = back_up(&foreign).await;
    let whole = std::fs::read(&archive).expect("the archive");
    let damaged = |name: &str, bytes: &[u8]| {
        let file = tanit.beside(name);
        std::fs::write(&file, bytes).expect("a file");
        file
    };
    let mut changed = whole.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 0xff;
    let cases = [
        (foreign, "master key"),
        (damaged("cut.tar", &whole[..whole.len() / 2]), "refused"),
        (damaged("changed.tar", &changed), "refused"),
        (damaged("none.tar", b""), "refused"),
        (damaged("text.tar", b"no archive"), "refused"),
    ];
    for (file, word) in cases {
        let file = file.display().to_string();
        let (code, said) = tanit.cli_refused(&["restore", &file, "--yes"]).await;
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(word), "{file}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let (code, said) = tanit
        .cli_refused(&["restore", &archive.display().to_string()])
        .await;
    assert_eq!(code, 2, "it has to be meant: {said}");
    assert!(said.contains("--yes"), "{said}");
    assert!(!tanit.data_dir().join("restore").join("ready").exists());
    assert_whole(&tanit, &device).await;
}
