//! Mosquitto's command line clients, with the files that `tanit device credentials` writes.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::harness::{
    device::bson,
    product::{ALL_INTERFACES, PATIENCE, Tanit, TestDevice},
    skipped,
};

const VERSIONS: [&str; 2] = ["mqttv311", "mqttv5"];

#[tokio::test]
async fn mosquitto_pub_declares_interfaces_and_its_values_are_read_back() {
    let Some(house) = House::set_up().await else {
        return;
    };
    for version in VERSIONS {
        let device = house.device(version).await;
        device.declare().await;
        house
            .tanit
            .until_device(&device.device, "known by its interfaces", |shown| {
                shown["introspection"]["t.Dev"]["major"] == 1
            })
            .await;
        for qos in 0..=2 {
            device
                .publish("t.Dev/int", qos, &bson(i32::from(qos)), &[])
                .await;
            house.until_values(&device, usize::from(qos) + 1).await;
        }
        let rows = house.tanit.data(&device.device, "t.Dev", "/int").await;
        let values: Vec<_> = rows.iter().map(|row| row["value"].clone()).collect();
        assert_eq!(values, [0, 1, 2], "{version}");
        assert!(house.tanit.errors(&device.device).await.is_empty());
    }
}

#[tokio::test]
async fn mosquitto_sub_with_a_session_receives_what_was_sent_while_it_was_away() {
    let Some(house) = House::set_up().await else {
        return;
    };
    for version in VERSIONS {
        let device = house.device(version).await;
        device.declare().await;
        device.subscribe_and_leave("t.SrvCmd/#").await;
        house.command(&device, "offline").await;
        let mut subscriber = device.subscriber("t.SrvCmd/#", &[]);
        let topic = format!("{}/t.SrvCmd/cmd", device.base());
        assert_eq!(
            subscriber.next().await,
            (topic.clone(), 1, false, bson("offline")),
            "{version}"
        );
        house.command(&device, "online").await;
        assert_eq!(
            subscriber.next().await,
            (topic, 1, false, bson("online")),
            "{version}"
        );
        subscriber.cut().await;
    }
}

#[tokio::test]
async fn nothing_that_mosquitto_pub_retains_comes_back() {
    let Some(house) = House::set_up().await else {
        return;
    };
    for version in VERSIONS {
        let device = house.device(version).await;
        device.declare().await;
        device.subscribe_and_leave("#").await;
        device
            .publish("t.Dev/int", 1, &bson(7), &["-r", "-c", "-i", "session"])
            .await;
        house.until_values(&device, 1).await;
        house.command(&device, "the first to come").await;
        let mut subscriber = device.subscriber("#", &[]);
        let (topic, _, retained, _) = subscriber.next().await;
        assert_eq!(
            topic,
            format!("{}/t.SrvCmd/cmd", device.base()),
            "{version}"
        );
        assert!(!retained, "{version}");
        subscriber.cut().await;
    }
}

#[tokio::test]
async fn the_will_of_mosquitto_sub_unsets_a_property_when_it_is_killed() {
    let Some(house) = House::set_up().await else {
        return;
    };
    for version in VERSIONS {
        let device = house.device(version).await;
        device.declare().await;
        device.publish("t.DevProp/a", 2, &bson("here"), &[]).await;
        assert_eq!(house.property(&device).await, "here");
        device.subscribe_and_leave("t.SrvCmd/#").await;
        house.command(&device, "are you there").await;
        let will_topic = format!("{}/t.DevProp/a", device.base());
        let will = ["--will-topic", &will_topic, "--will-qos", "2"];
        let mut subscriber = device.subscriber("t.SrvCmd/#", &will);
        subscriber.next().await;
        assert_eq!(house.property(&device).await, "here");
        subscriber.cut().await;
        let gone = timeout(PATIENCE, async {
            while house.property(&device).await != json!({}) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        gone.await.expect("the will is done");
    }
}

#[tokio::test]
async fn mosquitto_pub_is_refused_without_a_certificate_of_its_own() {
    let Some(house) = House::set_up().await else {
        return;
    };
    house.tanit.realm("globex").await;
    let stranger = house.device_of("globex", VERSIONS[0]).await;
    for version in VERSIONS {
        let device = house.device(version).await;
        let key = rcgen::KeyPair::generate().expect("a key");
        let forged = house.forged(&device, &key);
        let attempts: [(&str, Vec<PathBuf>); 3] = [
            ("no certificate", Vec::new()),
            ("a certificate that nobody signed", forged),
            (
                "a certificate of another device",
                vec![
                    stranger.files.join("device.crt"),
                    stranger.files.join("device.key"),
                ],
            ),
        ];
        for (what, files) in attempts {
            let mut command = device.bare("mosquitto_pub");
            if let [certificate, key] = &files[..] {
                command.arg("--cert").arg(certificate);
                command.arg("--key").arg(key);
            }
            command.args(["-q", "2", "-t", &device.base(), "-s"]);
            let output = run(command, ALL_INTERFACES.as_bytes()).await;
            assert!(!output.status.success(), "{version} with {what}");
        }
        assert!(house.tanit.history(&device.device).await.is_empty());
        assert!(house.tanit.errors(&device.device).await.is_empty());
        // with its own, the same is accepted
        device.declare().await;
    }
}

/// A broker with the realm `acme`.
struct House {
    tanit: Tanit,
    files: TempDir,
}

impl House {
    /// `None`, and said, when Mosquitto's clients are not installed.
    async fn set_up() -> Option<Self> {
        let found = Command::new("mosquitto_pub")
            .arg("--help")
            .stdout(Stdio::null())
            .status();
        if found.await.is_err() {
            skipped("mosquitto_pub is not installed (mosquitto-clients); run make deps as root");
            return None;
        }
        let tanit = Tanit::start().await;
        tanit.fixtures().await;
        let files = tempfile::tempdir().expect("a temporary directory");
        Some(Self { tanit, files })
    }

    async fn device(&self, version: &'static str) -> MosquittoDevice {
        self.device_of("acme", version).await
    }

    /// A device with its files.
    async fn device_of(&self, realm: &str, version: &'static str) -> MosquittoDevice {
        let device = self.tanit.device(realm).await;
        let files = self.files.path().join(&device.id);
        let out = files.display().to_string();
        let (id, secret) = (&device.id, &device.secret);
        let verb = ["device", "credentials", realm, id, "--secret", secret];
        self.tanit
            .cli(&[&verb[..], &["--out", &out]].concat())
            .await;
        MosquittoDevice {
            port: self.tanit.mqtt.port(),
            device,
            files,
            version,
        }
    }

    /// A certificate with the name of `device` that signs itself, and its key.
    fn forged(&self, device: &MosquittoDevice, key: &rcgen::KeyPair) -> Vec<PathBuf> {
        let mut parameters = rcgen::CertificateParams::default();
        let name = (rcgen::DnType::CommonName, device.base());
        parameters.distinguished_name.push(name.0, name.1);
        let certificate = parameters.self_signed(key).expect("a certificate");
        let at = |name: &str| self.files.path().join(name);
        std::fs::write(at("forged.crt"), certificate.pem()).expect("a file");
        std::fs::write(at("forged.key"), key.serialize_pem()).expect("a file");
        vec![at("forged.crt"), at("forged.key")]
    }

    async fn command(&self, device: &MosquittoDevice, text: &str) {
        let id = &device.device.id;
        self.tanit
            .cli(&["publish", "acme", id, "t.SrvCmd", "/cmd", text])
            .await;
    }

    async fn until_values(&self, device: &MosquittoDevice, count: usize) {
        let stored = timeout(PATIENCE, async {
            let values = || self.tanit.data(&device.device, "t.Dev", "/int");
            while values().await.len() < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        stored.await.expect("the values are stored");
    }

    /// The property `/a`; `{}` when it is not set.
    async fn property(&self, device: &MosquittoDevice) -> Value {
        let id = &device.device.id;
        self.tanit
            .cli(&["data", "acme", id, "t.DevProp", "/a"])
            .await
    }
}

/// A device whose files are on disk.
struct MosquittoDevice {
    device: TestDevice,
    files: PathBuf,
    port: u16,
    version: &'static str,
}

impl MosquittoDevice {
    fn base(&self) -> String {
        self.device.base()
    }

    /// A client that trusts the broker and has no certificate.
    fn bare(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command
            .args(["-h", "localhost", "-p", &self.port.to_string()])
            .args(["-V", self.version, "--cafile"])
            .arg(self.files.join("server-ca.crt"))
            .kill_on_drop(true);
        command
    }

    fn client(&self, tool: &str) -> Command {
        let mut command = self.bare(tool);
        command.arg("--cert").arg(self.files.join("device.crt"));
        command.arg("--key").arg(self.files.join("device.key"));
        command
    }

    /// Publishes the introspection.
    async fn declare(&self) {
        let mut command = self.client("mosquitto_pub");
        command.args(["-q", "2", "-t", &self.base(), "-m", ALL_INTERFACES]);
        let output = run(command, &[]).await;
        assert!(output.status.success(), "{output:?}");
    }

    async fn publish(&self, below: &str, qos: u8, payload: &[u8], more: &[&str]) {
        let mut command = self.client("mosquitto_pub");
        command
            .args(["-q", &qos.to_string(), "-s"])
            .args(["-t", &format!("{}/{below}", self.base())])
            .args(more);
        let output = run(command, payload).await;
        assert!(output.status.success(), "{output:?}");
    }

    fn session(&self, below: &str) -> Command {
        let mut command = self.client("mosquitto_sub");
        command
            .args(["-c", "-i", "session", "-q", "2", "-F", "%t %q %r %x"])
            .args(["-t", &format!("{}/{below}", self.base())]);
        if self.version == "mqttv5" {
            command.args(["-x", "3600"]);
        }
        command
    }

    /// Makes a session with a subscription, and disconnects.
    async fn subscribe_and_leave(&self, below: &str) {
        let mut command = self.session(below);
        command.arg("-E");
        let output = run(command, &[]).await;
        assert!(output.status.success(), "{output:?}");
    }

    /// Starts `mosquitto_sub` on that session.
    fn subscriber(&self, below: &str, more: &[&str]) -> Subscriber {
        let mut command = self.session(below);
        command.args(more).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let output = child.stdout.take().expect("it is piped");
        Subscriber {
            child,
            lines: BufReader::new(output).lines(),
        }
    }
}

/// A running `mosquitto_sub`.
struct Subscriber {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Subscriber {
    /// Topic, QoS, retain flag and payload of the next message.
    async fn next(&mut self) -> (String, u8, bool, Vec<u8>) {
        let line = timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.expect("a message in time").expect("it can be read");
        let line = line.expect("it did not end");
        let words: Vec<&str> = line.split(' ').collect();
        let [topic, qos, retained, payload] = words[..] else {
            panic!("four words were expected: {line}");
        };
        let payload = (0..payload.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&payload[at..at + 2], 16).expect("hexadecimal"))
            .collect();
        let qos = qos.parse().expect("a QoS");
        (topic.to_owned(), qos, retained == "1", payload)
    }

    /// Ends it without a DISCONNECT.
    async fn cut(mut self) {
        self.child.kill().await.expect("it can be killed");
    }
}

/// Runs a client with this on its standard input.
async fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut pipe = child.stdin.take().expect("it is piped");
    // one that is refused at once does not read
    let _ = pipe.write_all(input).await;
    drop(pipe);
    let ended = timeout(PATIENCE, child.wait_with_output()).await;
    ended.expect("it ends in time").expect("it can be awaited")
}
