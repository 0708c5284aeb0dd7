//! A busy database, a full disk, bad messages among good ones: delays, and nothing lost.

use std::{io::Write as _, path::PathBuf, process::Command, time::Duration};

use serde_json::json;
use tokio::task::JoinSet;

use crate::harness::{
    api::AppEngine,
    device::{RawDevice, bson, publish, subscribe},
    product::{ALL_INTERFACES, Tanit, TestDevice},
};

/// Messages of one device on the way at one time.
const AHEAD: usize = 50;

/// Publishes `count` numbers at QoS 1 as fast as they are acknowledged.
async fn publish_numbers(mut connection: RawDevice, count: i32) -> RawDevice {
    let topic = connection.topic("t.Dev/int");
    let mut open = std::collections::VecDeque::new();
    for number in 0..count {
        let id = connection.fresh_id();
        connection
            .send(&publish(&topic, &bson(number), 1, id))
            .await;
        open.push_back(id);
        if open.len() >= AHEAD {
            assert_eq!(
                connection.expect(4).await.id(),
                open.pop_front().expect("one")
            );
        }
    }
    for id in open {
        assert_eq!(connection.expect(4).await.id(), id);
    }
    connection
}

async fn numbers(tanit: &Tanit, device: &TestDevice) -> Vec<i64> {
    let rows = tanit.data(device, "t.Dev", "/int").await;
    rows.iter()
        .map(|row| row["value"].as_i64().expect("a number"))
        .collect()
}

/// 20 devices with 300 values each; [`fc_036_a_busy_database_delays_and_never_fails_or_loses_a_publish_whole`]
/// has 200.
#[tokio::test]
async fn fc_036_a_busy_database_delays_and_never_fails_or_loses_a_publish() {
    busy_database(20, 300).await;
}

#[tokio::test]
#[ignore = "heavy: 200 devices at full speed"]
async fn fc_036_a_busy_database_delays_and_never_fails_or_loses_a_publish_whole() {
    busy_database(200, 1_000).await;
}

async fn busy_database(count: usize, values: i32) {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let mut devices = Vec::new();
    let mut publishing = JoinSet::new();
    let reader = tanit.device("acme").await;
    let (connection, _) = reader.connect(&tanit).await;
    let mut connection = publish_declared(connection, 2_000).await;
    for _ in 0..count {
        let device = tanit.device("acme").await;
        let (mut connection, _) = device.connect(&tanit).await;
        connection.declare("t.Dev:1:0").await;
        devices.push(device);
        publishing.spawn(publish_numbers(connection, values));
    }
    let mut round = 0;
    let mut connections = Vec::new();
    while !publishing.is_empty() || round == 0 {
        let archive = tanit.beside(&format!("{round}.tar"));
        let archive = archive.display().to_string();
        let config = tanit.beside("tanit.toml").display().to_string();
        let backup = ["backup", &archive];
        let check = ["config", "check", "--config", &config];
        let (_, rows, checked) = tokio::join!(
            tanit.cli(&backup),
            tanit.data(&reader, "t.Dev", "/int"),
            tanit.cli(&check)
        );
        assert_eq!(rows.len(), 2_000, "a long read");
        assert_eq!(checked["ok"], true, "{checked}");
        while let Some(done) = publishing.try_join_next() {
            connections.push(done.expect("no error reached it"));
        }
        round += 1;
    }
    for connection in &mut connections {
        connection.expect_only_pong().await;
    }
    connection.expect_only_pong().await;
    let expected: Vec<i64> = (0..i64::from(values)).collect();
    for device in &devices {
        assert_eq!(numbers(&tanit, device).await, expected, "{}", device.id);
    }
}

async fn publish_declared(mut connection: RawDevice, count: i32) -> RawDevice {
    connection.declare("t.Dev:1:0").await;
    publish_numbers(connection, count).await
}

/// A small file system of its own, mounted where a data directory will be.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// `None`, and the reason printed, where mounting is not allowed.
    #[expect(clippy::print_stdout, reason = "CI looks for the line")]
    fn mount(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs"])
            .arg(&path)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { path }),
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                println!("SKIPPED: no tmpfs can be mounted: {}", reason.trim());
                None
            }
            Err(error) => {
                println!("SKIPPED: no tmpfs can be mounted: {error}");
                None
            }
        }
    }

    /// Takes all that is free.
    fn fill(&self) {
        let mut file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.path.join("filler"))
            .expect("a file");
        for size in [1 << 16, 1 << 12, 1 << 8, 1] {
            let zeros = vec![0; size];
            while file.write_all(&zeros).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.path.join("filler")).expect("it goes");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

fn lines_with(tanit: &Tanit, word: &str) -> usize {
    tanit
        .log()
        .lines()
        .filter(|line| line.contains(word))
        .count()
}

#[tokio::test]
async fn fc_038_a_full_disk_is_survived_and_cleared_without_a_restart() {
    let mut tanit = Tanit::prepared("");
    let Some(disk) = SmallDisk::mount(tanit.data_dir()) else {
        return;
    };
    tanit.launch().await;
    tanit.fixtures().await;
    let pid = tanit.pid();
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Dev:1:0;t.SrvCmd:1:0").await;
    connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
    let api = AppEngine::of(&tanit, "acme").await;
    let mut acknowledged: Vec<i64> = Vec::new();
    let mut accepted: Vec<String> = Vec::new();
    let mut next = 0;
    for round in 0..2 {
        disk.fill();
        // values fill what the files had left of room inside, until one is not acknowledged
        let mut withheld = Vec::new();
        let text = "x".repeat(20_000);
        while withheld.is_empty() {
            let id = connection
                .send_publish("t.Dev/str", &bson(text.clone()), 1)
                .await;
            let number = connection.send_publish("t.Dev/int", &bson(next), 1).await;
            let answer = tokio::time::timeout(Duration::from_secs(2), connection.expect(4)).await;
            let Ok(first) = answer else {
                withheld = vec![id, number];
                break;
            };
            assert_eq!(first.id(), id);
            match tokio::time::timeout(Duration::from_secs(2), connection.expect(4)).await {
                Ok(second) => {
                    assert_eq!(second.id(), number);
                    acknowledged.push(i64::from(next));
                }
                Err(_) => withheld = vec![number],
            }
            next += 1;
        }
        let health = reqwest::get(format!("http://{}/health", tanit.http))
            .await
            .expect("an answer");
        assert_eq!(health.status(), 503, "it says that it is not well");
        let value = json!(format!("full {round}"));
        let (status, answer) = api.put(&tanit, &device, "t.SrvCmd/cmd", &value).await;
        assert!((500..=507).contains(&status), "{status}: {answer}");
        let filter = format!("{}/t.SrvCmd/sub/+", device.base());
        connection.send(&subscribe(40_000, &[(&filter, 1)])).await;
        // refused, granted from memory never
        if let Ok(answer) = tokio::time::timeout(Duration::from_secs(3), connection.expect(9)).await
        {
            assert_eq!(answer.body, [0x9c, 0x40, 0x80]);
        }
        assert_eq!(tanit.pid(), pid, "it lives");

        disk.free();
        for id in withheld {
            assert_eq!(
                connection.expect(4).await.id(),
                id,
                "after the space was freed"
            );
        }
        acknowledged.push(i64::from(next));
        next += 1;
        connection.publish("t.Dev/int", &bson(next)).await;
        acknowledged.push(i64::from(next));
        next += 1;
        let value = format!("room {round}");
        recovered(&tanit, &api, &device, &value).await;
        accepted.push(value);
        connection.subscribe(&[("t.SrvCmd/more", 1)]).await;
    }
    for expected in &accepted {
        let received = connection.receive().await;
        assert_eq!(received.payload, bson(expected.as_str()));
    }
    assert!(tanit.errors(&device).await.is_empty());
    assert!(lines_with(&tanit, " ERROR ") < 30, "{}", tanit.log());

    tanit.kill().await;
    tanit.launch().await;
    let stored = numbers(&tanit, &device).await;
    for number in acknowledged {
        assert!(
            stored.contains(&number),
            "{number} was acknowledged and lost"
        );
    }
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present, "the session store is whole");
    connection.publish("t.Dev/int", &bson(-1)).await;
}

/// Within seconds the API takes values again.
async fn recovered(tanit: &Tanit, api: &AppEngine, device: &TestDevice, value: &str) {
    let again = async {
        loop {
            let value = json!(value);
            let (status, answer) = api.put(tanit, device, "t.SrvCmd/cmd", &value).await;
            if status == 200 {
                return;
            }
            assert!((500..=507).contains(&status), "{status}: {answer}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), again)
        .await
        .expect("normal service within seconds");
}

#[tokio::test]
async fn fc_039_one_bad_message_stops_nobodys_stream() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let other = tanit.device("acme").await;
    let (mut connection, _) = other.connect(&tanit).await;
    connection.declare("t.Dev:1:0").await;
    let mut streaming = JoinSet::new();
    streaming.spawn(publish_numbers(connection, 2_000));

    let bad: [(&str, &[u8], &str); 6] = [
        ("t.Dev/int", b"junk", "undecodable_bson_payload"),
        ("t.Unknown/x", &bson(1), "interface_loading_failed"),
        ("t.Dev/int", &bson("one"), "unexpected_value_type"),
        ("", b"a.B:x:0", "invalid_introspection"),
        ("control/nonsense", b"1", "unexpected_control_message"),
        (
            "t.SrvCmd/cmd",
            &bson("mine"),
            "write_on_server_owned_interface",
        ),
    ];
    for qos in [1, 2] {
        for (below, payload, error) in bad {
            let device = tanit.device("acme").await;
            let (mut connection, _) = device.connect(&tanit).await;
            connection.declare(ALL_INTERFACES).await;
            let id = connection.send_publish(below, payload, qos).await;
            let seen = connection.expect_closed().await;
            let seen: Vec<_> = seen
                .iter()
                .map(|packet| (packet.kind(), packet.id()))
                .collect();
            assert_eq!(seen, [(3 + qos, id)], "{error}: acknowledged, then closed");
            // the session went with it; the stream goes on
            let (mut connection, present) = device.connect(&tanit).await;
            assert!(!present, "{error}: the session was cleared");
            connection.declare(ALL_INTERFACES).await;
            connection.publish("t.Dev/int", &bson(7)).await;
            assert_eq!(numbers(&tanit, &device).await, [7], "{error}");
            assert_eq!(tanit.errors(&device).await, [error]);
        }
    }
    let done = streaming.join_next().await.expect("a task");
    done.expect("no pause").expect_only_pong().await;
    let expected: Vec<i64> = (0..2_000).collect();
    assert_eq!(numbers(&tanit, &other).await, expected);
    assert!(tanit.errors(&other).await.is_empty());
}
