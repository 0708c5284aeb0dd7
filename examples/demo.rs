//! The whole of Tanit in a minute, with a real device: `make demo`.
//!
//! Starts the `tanit` binary on free ports in a temporary directory, makes a realm, installs
//! interfaces, pairs a device over HTTP and connects it over mutual TLS with a stock client
//! (rumqttc). Sends data, kills the broker with SIGKILL in between, reads everything back, and sends
//! values to the device while it is there and while it is not. Exits non-zero, saying what was
//! expected and what was seen, if any step differs.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Outgoing, Packet, QoS, Transport};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

const REALM: &str = "demo";
const READINGS: &str = "org.example.demo.Readings";
const STATE: &str = "org.example.demo.State";
const COMMANDS: &str = "org.example.demo.Commands";
const STEP: Duration = Duration::from_mins(1);

#[tokio::main]
async fn main() -> Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let directory = tempfile::tempdir().context("cannot make a temporary directory")?;
    let mut report = Report::default();

    let mut broker = Broker::start(directory.path(), "127.0.0.1:0".parse()?).await?;
    report.line(
        "broker is ready",
        format!("MQTT {}, HTTP {}", broker.mqtt, broker.http),
    );

    set_up(&broker, directory.path()).await?;
    report.line("realm and interfaces", format!("{REALM}, 3 interfaces"));

    let device = pair(&broker).await?;
    report.line("device paired over HTTP", device.id.clone());

    let mut connection = Connection::open(&device, &broker).await?;
    ensure!(
        !connection.session_present,
        "a new device was told that it has a session"
    );
    connection.hand_shake().await?;
    report.line(
        "connected over mutual TLS",
        "introspection accepted".to_owned(),
    );

    let mut latencies = connection
        .publish_values(0..500, "guaranteed", QoS::AtLeastOnce)
        .await?;
    let mut exact = connection
        .publish_values(0..50, "unique", QoS::ExactlyOnce)
        .await?;

    broker.kill().await?;
    broker = Broker::start(directory.path(), broker.mqtt).await?;
    connection.await_reconnection().await?;
    ensure!(
        connection.session_present,
        "after kill -9 the session was expected, and was gone"
    );
    report.line("kill -9 and restart", "session present = 1".to_owned());

    latencies.extend(
        connection
            .publish_values(500..1000, "guaranteed", QoS::AtLeastOnce)
            .await?,
    );
    exact.extend(
        connection
            .publish_values(50..100, "unique", QoS::ExactlyOnce)
            .await?,
    );
    report.line("1,000 values at QoS 1", percentiles(&mut latencies));
    report.line("100 values at QoS 2", percentiles(&mut exact));
    connection
        .publish(STATE, "/firmware/version", &bson::doc! { "v": "1.2.3" })
        .await?;

    read_back(&broker, &device).await?;
    report.line(
        "read back",
        "1,000 and 100 values, each once; 1 property".to_owned(),
    );

    broker.send_to_device(&device, "blink").await?;
    let seen = connection.next_command().await?;
    ensure!(
        seen == "blink",
        "the device was sent \"blink\" and received {seen:?}"
    );
    report.line("server value while online", format!("{seen:?} arrived"));

    connection.close().await?;
    broker.send_to_device(&device, "sleep").await?;
    broker.kill().await?;
    broker = Broker::start(directory.path(), broker.mqtt).await?;
    let mut connection = Connection::open(&device, &broker).await?;
    ensure!(
        connection.session_present,
        "the session was expected after kill -9, and was gone"
    );
    let seen = connection.next_command().await?;
    ensure!(
        seen == "sleep",
        "\"sleep\" was queued, and the device received {seen:?}"
    );
    report.line(
        "server value while offline",
        format!("{seen:?} arrived after kill -9"),
    );
    connection.close().await?;

    broker.stop().await?;
    report.line("SIGTERM", "drained and closed, exit code 0".to_owned());
    report.print();
    Ok(())
}

/// The `tanit` binary, running.
struct Broker {
    child: Child,
    data_dir: PathBuf,
    mqtt: SocketAddr,
    http: SocketAddr,
}

impl Broker {
    async fn start(directory: &Path, mqtt: SocketAddr) -> Result<Self> {
        let data_dir = directory.join("data");
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(directory.join("tanit.log"))?;
        let child = Command::new(binary()?)
            .args([
                "serve",
                "--mqtt-listen",
                &mqtt.to_string(),
                "--http-listen",
                "127.0.0.1:0",
            ])
            .arg("--data-dir")
            .arg(&data_dir)
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start tanit serve")?;
        let mut broker = Self {
            child,
            data_dir,
            mqtt,
            http: mqtt,
        };
        let status = broker
            .tanit(&["status"])
            .await
            .with_context(|| log_tail(&directory.join("tanit.log")))?;
        broker.mqtt = address(&status, "mqtt")?;
        broker.http = address(&status, "http")?;
        Ok(broker)
    }

    /// Runs a verb of the command line with `--json` and returns what it printed.
    async fn tanit(&self, arguments: &[&str]) -> Result<Value> {
        let output = Command::new(binary()?)
            .args(["--json", "--data-dir"])
            .arg(&self.data_dir)
            .args(arguments)
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "tanit {} was expected to succeed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        if output.stdout.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("tanit {} printed no JSON", arguments.join(" ")))
    }

    async fn send_to_device(&self, device: &Device, command: &str) -> Result<()> {
        self.tanit(&[
            "publish",
            REALM,
            &device.id,
            COMMANDS,
            "/lamp/command",
            command,
        ])
        .await?;
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill the broker")
    }

    async fn stop(&mut self) -> Result<()> {
        let id = self.child.id().context("the broker has ended by itself")?;
        let pid = rustix::process::Pid::from_raw(i32::try_from(id)?).context("no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = timeout(STEP, self.child.wait())
            .await
            .context("SIGTERM had no effect")??;
        ensure!(
            status.success(),
            "exit code 0 was expected after SIGTERM, and {status} was seen"
        );
        Ok(())
    }
}

/// The binary beside this example's own directory.
fn binary() -> Result<PathBuf> {
    let example = std::env::current_exe()?;
    let target = example
        .ancestors()
        .nth(2)
        .context("the example is not in a target directory")?;
    let binary = target.join("tanit");
    ensure!(
        binary.exists(),
        "{} is missing: run make demo",
        binary.display()
    );
    Ok(binary)
}

fn address(status: &Value, name: &str) -> Result<SocketAddr> {
    status[name]
        .as_str()
        .with_context(|| format!("status shows no {name} address: {status}"))?
        .parse()
        .context("status shows an address that is none")
}

fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(10).collect();
    format!(
        "the broker did not get ready; its log ends:\n{}",
        lines.join("\n")
    )
}

async fn set_up(broker: &Broker, directory: &Path) -> Result<()> {
    broker.tanit(&["realm", "create", REALM]).await?;
    let documents = [
        json!({"interface_name": READINGS, "version_major": 1, "version_minor": 0,
            "type": "datastream", "ownership": "device", "mappings": [
                {"endpoint": "/%{sensor}/guaranteed", "type": "integer", "reliability": "guaranteed"},
                {"endpoint": "/%{sensor}/unique", "type": "integer", "reliability": "unique"}]}),
        json!({"interface_name": STATE, "version_major": 1, "version_minor": 0,
            "type": "properties", "ownership": "device", "mappings": [
                {"endpoint": "/firmware/version", "type": "string"}]}),
        json!({"interface_name": COMMANDS, "version_major": 1, "version_minor": 0,
            "type": "datastream", "ownership": "server", "mappings": [
                {"endpoint": "/%{unit}/command", "type": "string", "reliability": "guaranteed"}]}),
    ];
    let mut arguments = vec![
        "interface".to_owned(),
        "install".to_owned(),
        REALM.to_owned(),
    ];
    for document in documents {
        let name = document["interface_name"].as_str().context("a name")?;
        let file = directory.join(format!("{name}.json"));
        std::fs::write(&file, document.to_string())?;
        arguments.push(file.display().to_string());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    broker.tanit(&arguments).await?;
    Ok(())
}

/// A device with the certificate that Pairing gave it.
struct Device {
    id: String,
    tls: Arc<rustls::ClientConfig>,
}

async fn pair(broker: &Broker) -> Result<Device> {
    let registered = broker.tanit(&["device", "register", REALM]).await?;
    let id = registered["device_id"]
        .as_str()
        .context("no device_id")?
        .to_owned();
    let secret = registered["credentials_secret"]
        .as_str()
        .context("no credentials_secret")?;

    let key = rcgen::KeyPair::generate()?;
    let csr = rcgen::CertificateParams::default()
        .serialize_request(&key)?
        .pem()?;
    let url = format!(
        "http://{}/pairing/v1/{REALM}/devices/{id}/protocols/astarte_mqtt_v1/credentials",
        broker.http
    );
    let answer: Value = reqwest::Client::new()
        .post(url)
        .bearer_auth(secret)
        .json(&json!({"data": {"csr": csr}}))
        .send()
        .await?
        .error_for_status()?
        .json()
        .await?;
    let certificate = answer["data"]["client_crt"]
        .as_str()
        .context("no client_crt")?;
    let server_ca = std::fs::read(broker.data_dir.join("server-ca.crt"))
        .context("the generated CA of the broker is missing")?;
    Ok(Device {
        id,
        tls: tls_config(certificate, &key, &server_ca)?,
    })
}

fn tls_config(
    certificate: &str,
    key: &rcgen::KeyPair,
    server_ca: &[u8],
) -> Result<Arc<rustls::ClientConfig>> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server_ca)?)?;
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// The device's connection, with a stock MQTT client.
struct Connection {
    client: AsyncClient,
    events: EventLoop,
    base: String,
    session_present: bool,
}

impl Connection {
    async fn open(device: &Device, broker: &Broker) -> Result<Self> {
        let base = format!("{REALM}/{}", device.id);
        let mut options = MqttOptions::new(base.clone(), "localhost", broker.mqtt.port());
        options.set_clean_session(false);
        options.set_keep_alive(Duration::from_secs(30));
        options.set_inflight(50);
        options.set_transport(Transport::tls_with_config(
            rumqttc::TlsConfiguration::Rustls(device.tls.clone()),
        ));
        let (client, events) = AsyncClient::new(options, 2000);
        let mut connection = Self {
            client,
            events,
            base,
            session_present: false,
        };
        connection.await_reconnection().await?;
        Ok(connection)
    }

    /// Polls until the broker has let us in again.
    async fn await_reconnection(&mut self) -> Result<()> {
        let events = &mut self.events;
        let connected = timeout(STEP, async {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(ack))) => break ack.session_present,
                    Ok(_) => {}
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        self.session_present = connected
            .await
            .context("the broker did not let the device in")?;
        Ok(())
    }

    /// Subscribes, then declares the device's interfaces.
    async fn hand_shake(&mut self) -> Result<()> {
        for below in [
            "control/consumer/properties".to_owned(),
            format!("{COMMANDS}/#"),
        ] {
            self.client
                .subscribe(format!("{}/{below}", self.base), QoS::ExactlyOnce)
                .await?;
        }
        let introspection = format!("{READINGS}:1:0;{STATE}:1:0;{COMMANDS}:1:0");
        self.client
            .publish(self.base.clone(), QoS::ExactlyOnce, false, introspection)
            .await?;
        self.client
            .publish(
                format!("{}/control/emptyCache", self.base),
                QoS::ExactlyOnce,
                false,
                "1",
            )
            .await?;
        self.await_acknowledgements(2, 2).await?;
        Ok(())
    }

    async fn publish_values(
        &mut self,
        values: std::ops::Range<i32>,
        endpoint: &str,
        qos: QoS,
    ) -> Result<Vec<Duration>> {
        let count = values.len();
        for value in values {
            let topic = format!("{}/{READINGS}/probe/{endpoint}", self.base);
            self.client
                .publish(topic, qos, false, bson::doc! { "v": value }.to_vec()?)
                .await?;
        }
        self.await_acknowledgements(count, 0).await
    }

    async fn publish(&mut self, interface: &str, path: &str, value: &bson::Document) -> Result<()> {
        let topic = format!("{}/{interface}{path}", self.base);
        self.client
            .publish(topic, QoS::ExactlyOnce, false, value.to_vec()?)
            .await?;
        self.await_acknowledgements(1, 0).await?;
        Ok(())
    }

    /// Polls until so many publishes and subscriptions are acknowledged; returns how long each
    /// publish waited for its PUBACK or PUBREC.
    async fn await_acknowledgements(
        &mut self,
        publishes: usize,
        subscriptions: usize,
    ) -> Result<Vec<Duration>> {
        let mut sent = HashMap::new();
        let mut latencies = Vec::new();
        let (mut done, mut subscribed) = (0, 0);
        while done < publishes || subscribed < subscriptions {
            let event = timeout(STEP, self.events.poll()).await.with_context(|| {
                format!("{publishes} acknowledgements were expected, {done} were seen")
            })??;
            match event {
                Event::Outgoing(Outgoing::Publish(id)) => drop(sent.insert(id, now())),
                Event::Incoming(Packet::PubAck(ack)) => {
                    latencies.extend(sent.remove(&ack.pkid).map(|at| at.elapsed()));
                    done += 1;
                }
                Event::Incoming(Packet::PubRec(ack)) => {
                    latencies.extend(sent.remove(&ack.pkid).map(|at| at.elapsed()));
                }
                Event::Incoming(Packet::PubComp(_)) => done += 1,
                Event::Incoming(Packet::SubAck(ack)) => {
                    let granted = rumqttc::SubscribeReasonCode::Success(QoS::ExactlyOnce);
                    ensure!(
                        ack.return_codes == [granted],
                        "a filter was refused: {ack:?}"
                    );
                    subscribed += 1;
                }
                _ => {}
            }
        }
        Ok(latencies)
    }

    /// The next value on the commands interface.
    async fn next_command(&mut self) -> Result<String> {
        let topic = format!("{}/{COMMANDS}/lamp/command", self.base);
        loop {
            let event = timeout(STEP, self.events.poll())
                .await
                .context("a value for the device was expected, and none came")??;
            if let Event::Incoming(Packet::Publish(publish)) = event {
                ensure!(
                    publish.topic == topic,
                    "a value on {} was not expected",
                    publish.topic
                );
                let document = bson::Document::from_reader(publish.payload.as_ref())?;
                // one more turn of the loop sends the acknowledgement
                let _ = timeout(Duration::from_millis(100), self.events.poll()).await;
                return Ok(document.get_str("v")?.to_owned());
            }
        }
    }

    async fn close(mut self) -> Result<()> {
        self.client.disconnect().await?;
        loop {
            match timeout(STEP, self.events.poll()).await? {
                Ok(Event::Outgoing(Outgoing::Disconnect)) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }
}

/// Everything that was acknowledged is there; QoS 2 values exactly once.
async fn read_back(broker: &Broker, device: &Device) -> Result<()> {
    for (endpoint, expected) in [("guaranteed", 1000), ("unique", 100)] {
        let path = format!("/probe/{endpoint}");
        let rows = broker
            .tanit(&["data", REALM, &device.id, READINGS, &path])
            .await?;
        let rows = rows.as_array().context("data printed no list")?;
        let values: BTreeSet<i64> = rows
            .iter()
            .filter_map(|row| row["value"].as_i64())
            .collect();
        if rows.len() != expected || values != (0..i64::try_from(expected)?).collect() {
            bail!(
                "{endpoint}: each of {expected} values was expected once; {} rows with {} \
                 different values were seen",
                rows.len(),
                values.len()
            );
        }
    }
    let state = broker.tanit(&["data", REALM, &device.id, STATE]).await?;
    ensure!(
        state == json!({"firmware": {"version": "1.2.3"}}),
        "the property 1.2.3 was expected, and {state} was seen"
    );
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the demo is a client and measures real time"
)]
fn now() -> Instant {
    Instant::now()
}

fn percentiles(latencies: &mut [Duration]) -> String {
    latencies.sort_unstable();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    format!("acknowledged; p50 {:.1?}, p99 {:.1?}", at(50), at(99))
}

/// What happened, as a table.
#[derive(Default)]
struct Report(Vec<(&'static str, String)>);

impl Report {
    fn line(&mut self, step: &'static str, seen: String) {
        self.0.push((step, seen));
    }

    #[expect(clippy::print_stdout, reason = "this is what the demo is for")]
    fn print(&self) {
        for (step, seen) in &self.0 {
            println!("{step:<28} {seen}");
        }
    }
}
