//! The product as an operator has it: the `tanit` binary, its command line and its data directory.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::{ExitStatus, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::device::RawDevice;

/// Longest time that anything in a test may take before it counts as never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A `tanit serve` of its own, on free ports, in a temporary directory that goes with it.
pub(crate) struct Tanit {
    child: Option<Child>,
    directory: TempDir,
    config: String,
    wrapper: Vec<String>,
    pub(crate) mqtt: SocketAddr,
    pub(crate) http: SocketAddr,
}

impl Tanit {
    /// Starts with the defaults.
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts with a configuration file of this text.
    pub(crate) async fn start_with(config: &str) -> Self {
        Self::start_under(config, &[]).await
    }

    /// Starts under another program, such as `strace -f …`.
    pub(crate) async fn start_under(config: &str, wrapper: &[&str]) -> Self {
        let mut tanit = Self::prepared(config);
        tanit.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        tanit.launch().await;
        tanit
    }

    /// A directory and a configuration, for a start later.
    pub(crate) fn prepared(config: &str) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            child: None,
            directory: tempfile::tempdir().expect("a temporary directory"),
            config: config.to_owned(),
            wrapper: Vec::new(),
            mqtt: any,
            http: any,
        }
    }

    /// A file beside the data directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts again after a kill or a stop: same directory, same MQTT port.
    pub(crate) async fn launch(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        self.spawn();
        self.look_up().await;
    }

    /// Asks for the addresses, once it is ready.
    pub(crate) async fn look_up(&mut self) {
        let status = self.cli(&["status"]).await;
        let address = |name: &str| -> SocketAddr {
            status[name]
                .as_str()
                .expect("an address")
                .parse()
                .expect("host and port")
        };
        self.mqtt = address("mqtt");
        self.http = address("http");
    }

    /// Starts the process and does not wait until it is ready.
    pub(crate) fn spawn(&mut self) {
        let file = self.directory.path().join("tanit.toml");
        std::fs::write(&file, &self.config).expect("a configuration file");
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.log_path())
            .expect("a log file");
        let program = env!("CARGO_BIN_EXE_tanit").to_owned();
        let mut words = self.wrapper.clone();
        words.push(program);
        let child = Command::new(&words[0])
            .args(&words[1..])
            .arg("serve")
            .args([
                "--mqtt-listen",
                &self.mqtt.to_string(),
                "--http-listen",
                "127.0.0.1:0",
            ])
            .arg("--config")
            .arg(&file)
            .arg("--data-dir")
            .arg(self.data_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        self.child = Some(child);
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("tanit.log")
    }

    /// Everything that was logged so far, over restarts.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The process id of the broker itself, also where another program was started around it.
    pub(crate) fn pid(&self) -> i32 {
        let lock = std::fs::read_to_string(self.data_dir().join("lock")).expect("a lock");
        lock.trim().parse().expect("a process id")
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.ended().await;
    }

    /// SIGTERM, and waits for the end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.ended().await
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("it can be signalled");
    }

    /// Waits until the process ends by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        timeout(PATIENCE, child.wait())
            .await
            .expect("it ends in time")
            .expect("it can be awaited")
    }

    /// Runs a verb with `--json`; it has to succeed.
    pub(crate) async fn cli(&self, arguments: &[&str]) -> Value {
        let output = self.cli_output(arguments).await;
        assert!(
            output.status.success(),
            "tanit {} failed: {}\nlog:\n{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        if output.stdout.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
            panic!("no JSON: {}", String::from_utf8_lossy(&output.stdout));
        })
    }

    /// Runs a verb that has to fail; returns its exit code and what it said.
    pub(crate) async fn cli_refused(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.cli_output(arguments).await;
        assert!(
            !output.status.success(),
            "tanit {} succeeded",
            arguments.join(" ")
        );
        let code = output.status.code().expect("an exit code");
        (code, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) async fn cli_output(&self, arguments: &[&str]) -> Output {
        let run = Command::new(env!("CARGO_BIN_EXE_tanit"))
            .args(["--json", "--data-dir"])
            .arg(self.data_dir())
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        timeout(PATIENCE * 2, run)
            .await
            .expect("the verb ends in time")
            .expect("it runs")
    }

    /// Makes a realm.
    pub(crate) async fn realm(&self, realm: &str) {
        self.cli(&["realm", "create", realm]).await;
    }

    /// Installs an interface.
    pub(crate) async fn install(&self, realm: &str, document: &Value) {
        let name = document["interface_name"].as_str().expect("a name");
        let file = self.directory.path().join(format!("{name}.json"));
        std::fs::write(&file, document.to_string()).expect("a file");
        let file = file.display().to_string();
        self.cli(&["interface", "install", realm, &file]).await;
    }

    /// Makes the realm `acme` with the interfaces of the field cases.
    pub(crate) async fn fixtures(&self) {
        self.realm("acme").await;
        for document in fixture_interfaces() {
            self.install("acme", &document).await;
        }
    }

    /// Registers a device and pairs it over HTTP.
    pub(crate) async fn device(&self, realm: &str) -> TestDevice {
        let registered = self.cli(&["device", "register", realm]).await;
        let id = registered["device_id"].as_str().expect("an id").to_owned();
        let secret = registered["credentials_secret"]
            .as_str()
            .expect("a secret")
            .to_owned();
        let mut device = TestDevice {
            realm: realm.to_owned(),
            id,
            secret,
            certificate: String::new(),
            key: Arc::new(rcgen::KeyPair::generate().expect("a key")),
            // configured certificates have none here; the test says then what is to be trusted
            server_ca: std::fs::read(self.data_dir().join("server-ca.crt")).unwrap_or_default(),
        };
        device.renew(self).await;
        device
    }

    /// The values of a path, as AppEngine answers.
    pub(crate) async fn data(
        &self,
        device: &TestDevice,
        interface: &str,
        path: &str,
    ) -> Vec<Value> {
        let output = self
            .cli_output(&["data", &device.realm, &device.id, interface, path])
            .await;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("not found"), "reading failed: {said}");
            return Vec::new();
        }
        let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        rows.as_array().expect("a list").clone()
    }

    /// The device's presence events, oldest first: `(sequence, event, reason)`.
    pub(crate) async fn history(&self, device: &TestDevice) -> Vec<(u64, String, Option<String>)> {
        let rows = self
            .cli(&["device", "history", &device.realm, &device.id])
            .await;
        let mut rows: Vec<_> = rows
            .as_array()
            .expect("a list")
            .iter()
            .map(|row| {
                (
                    row["sequence"].as_u64().expect("a number"),
                    row["event"].as_str().expect("an event").to_owned(),
                    row["reason"].as_str().map(str::to_owned),
                )
            })
            .collect();
        rows.sort();
        rows
    }

    /// Names of the device's errors, oldest first.
    pub(crate) async fn errors(&self, device: &TestDevice) -> Vec<String> {
        let rows = self
            .cli(&["device", "errors", &device.realm, &device.id])
            .await;
        let rows = rows.as_array().expect("a list").iter().rev();
        rows.map(|row| row["error_name"].as_str().expect("a name").to_owned())
            .collect()
    }

    /// A number of `/metrics`, named as it stands there, labels included; 0 if it is not there.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        super::install_crypto();
        let text = reqwest::get(format!("http://{}/metrics", self.http))
            .await
            .expect("an answer")
            .text()
            .await
            .expect("a text");
        let line = text.lines().find_map(|line| {
            let (found, number) = line.rsplit_once(' ')?;
            (found == name).then(|| number.to_owned())
        });
        line.map_or(0, |number| number.parse().expect("a number"))
    }

    /// Waits until `device show` satisfies `condition`.
    pub(crate) async fn until_device(
        &self,
        device: &TestDevice,
        what: &str,
        condition: impl Fn(&Value) -> bool,
    ) {
        let waited = timeout(PATIENCE, async {
            while !condition(
                &self
                    .cli(&["device", "show", &device.realm, &device.id])
                    .await,
            ) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(waited.await.is_ok(), "the device never was {what}");
    }
}

impl Drop for Tanit {
    /// What runs under another program would outlive it.
    fn drop(&mut self) {
        if self.child.is_some() && !self.wrapper.is_empty() {
            self.signal(rustix::process::Signal::KILL);
        }
    }
}

/// A device with its secret and certificate.
#[derive(Clone)]
pub(crate) struct TestDevice {
    pub(crate) realm: String,
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) certificate: String,
    pub(crate) key: Arc<rcgen::KeyPair>,
    pub(crate) server_ca: Vec<u8>,
}

impl TestDevice {
    /// `<realm>/<device id>`.
    pub(crate) fn base(&self) -> String {
        format!("{}/{}", self.realm, self.id)
    }

    /// Asks Pairing for a new certificate.
    pub(crate) async fn renew(&mut self, tanit: &Tanit) {
        let csr = rcgen::CertificateParams::default()
            .serialize_request(&*self.key)
            .and_then(|request| request.pem())
            .expect("a CSR");
        let answer = self
            .pairing(tanit, "/protocols/astarte_mqtt_v1/credentials", &csr)
            .await;
        let status = answer.status();
        let body: Value = answer.json().await.expect("JSON");
        assert_eq!(status, 201, "{body}");
        body["data"]["client_crt"]
            .as_str()
            .expect("a PEM")
            .clone_into(&mut self.certificate);
    }

    /// Calls a Pairing route of this device with a CSR.
    pub(crate) async fn pairing(&self, tanit: &Tanit, route: &str, csr: &str) -> reqwest::Response {
        super::install_crypto();
        let url = format!(
            "http://{}/pairing/v1/{}/devices/{}{route}",
            tanit.http, self.realm, self.id
        );
        reqwest::Client::new()
            .post(url)
            .bearer_auth(&self.secret)
            .json(&json!({"data": {"csr": csr}}))
            .send()
            .await
            .expect("Pairing answers")
    }

    /// The TLS settings of this device.
    pub(crate) fn tls(&self) -> Arc<rustls::ClientConfig> {
        client_tls(&self.server_ca, &self.certificate, &self.key)
    }

    /// Opens TLS without a word of MQTT.
    pub(crate) async fn open(&self, tanit: &Tanit) -> RawDevice {
        RawDevice::open(tanit.mqtt, self.tls(), self.base())
            .await
            .expect("TLS is accepted")
    }

    /// Connects with clean session 0 and returns whether the session was present.
    pub(crate) async fn connect(&self, tanit: &Tanit) -> (RawDevice, bool) {
        let mut device = self.open(tanit).await;
        let present = device.connect(&self.base(), false, 60).await;
        (device, present)
    }

    /// Connects with a clean session and declares `introspection`.
    pub(crate) async fn connect_clean(&self, tanit: &Tanit, introspection: &str) -> RawDevice {
        let mut device = self.open(tanit).await;
        assert!(
            !device.connect(&self.base(), true, 60).await,
            "clean, yet present"
        );
        device.declare(introspection).await;
        device
    }
}

/// Client settings that trust `server_ca` and present `certificate`.
pub(crate) fn client_tls(
    server_ca: &[u8],
    certificate: &str,
    key: &rcgen::KeyPair,
) -> Arc<rustls::ClientConfig> {
    client_tls_of(rustls::DEFAULT_VERSIONS, server_ca, certificate, key)
}

/// The same for these versions of TLS.
pub(crate) fn client_tls_of(
    versions: &[&'static rustls::SupportedProtocolVersion],
    server_ca: &[u8],
    certificate: &str,
    key: &rcgen::KeyPair,
) -> Arc<rustls::ClientConfig> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(server_ca).expect("a PEM"))
        .expect("a CA");
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
        .map(|certificate| certificate.expect("a PEM"))
        .collect();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("a client certificate");
    Arc::new(config)
}

/// The interfaces that the field cases speak of.
pub(crate) fn fixture_interfaces() -> Vec<Value> {
    let types = [
        ("int", "integer"),
        ("long", "longinteger"),
        ("dbl", "double"),
        ("bool", "boolean"),
        ("str", "string"),
        ("blob", "binaryblob"),
        ("when", "datetime"),
    ];
    let stream = |endpoint: String, value_type: String| {
        json!({"endpoint": endpoint, "type": value_type, "reliability": "guaranteed",
            "explicit_timestamp": true})
    };
    let mut device: Vec<Value> = Vec::new();
    for (path, value_type) in types {
        device.push(stream(format!("/{path}"), value_type.to_owned()));
        device.push(stream(format!("/{path}s"), format!("{value_type}array")));
    }
    device.push(json!({"endpoint": "/grp/%{id}/v", "type": "integer",
        "reliability": "guaranteed", "explicit_timestamp": true}));
    let server: Vec<Value> = types
        .iter()
        .flat_map(|(path, value_type)| {
            [
                json!({"endpoint": format!("/{path}"), "type": value_type, "allow_unset": true}),
                json!({"endpoint": format!("/{path}s"), "type": format!("{value_type}array"),
                    "allow_unset": true}),
            ]
        })
        .collect();
    vec![
        interface("t.Dev", "datastream", "device", &Value::Array(device)),
        json!({"interface_name": "t.DevObj", "version_major": 1, "version_minor": 0,
            "type": "datastream", "ownership": "device", "aggregation": "object", "mappings": [
                {"endpoint": "/temp", "type": "double"}, {"endpoint": "/hum", "type": "double"}]}),
        interface(
            "t.DevProp",
            "properties",
            "device",
            &json!([{"endpoint": "/a", "type": "string", "allow_unset": true},
                {"endpoint": "/b", "type": "integer"}]),
        ),
        interface("t.SrvProp", "properties", "server", &Value::Array(server)),
        interface(
            "t.SrvCmd",
            "datastream",
            "server",
            &json!([{"endpoint": "/cmd", "type": "string", "reliability": "guaranteed",
                "retention": "stored", "expiry": 3600}]),
        ),
    ]
}

fn interface(name: &str, kind: &str, ownership: &str, mappings: &Value) -> Value {
    json!({"interface_name": name, "version_major": 1, "version_minor": 0, "type": kind,
        "ownership": ownership, "mappings": mappings})
}

/// Introspection of a device that speaks all of them.
pub(crate) const ALL_INTERFACES: &str =
    "t.Dev:1:0;t.DevObj:1:0;t.DevProp:1:0;t.SrvProp:1:0;t.SrvCmd:1:0";
