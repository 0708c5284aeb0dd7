//! Settings: defaults, then the file, then `TANIT_*` environment variables, then flags.
//!
//! One [`Config`], read once and checked, then passed down by section; nothing below reads the
//! environment. Unknown keys are refused. `config/tanit.toml` shows every key with its default; a
//! test compares the two.

use std::{
    fmt,
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
    time::Duration,
};

use bytesize::ByteSize;
use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml},
};
use serde::{Deserialize, Serialize};

pub use crate::engine::InhibitedDevices;
use crate::mqtt::sessions::QueueLimits;

/// The window and the inflight limit.
const HUNDRED: NonZeroU16 = NonZeroU16::MIN.saturating_add(99);

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Directory that holds everything; made with mode 0700 when missing.
    pub data_dir: PathBuf,
    /// File of the master key; by default `master.key` in the data directory.
    pub master_key_file: Option<PathBuf>,
    /// The broker.
    pub mqtt: Mqtt,
    /// The broker's own certificates.
    pub tls: Tls,
    /// The control API.
    pub http: Http,
    /// Certificates of devices.
    pub pairing: Pairing,
    /// The way from PUBLISH to commit.
    pub engine: Engine,
    /// Where data is kept.
    pub database: Database,
    /// What is logged.
    pub log: Log,
    /// The file that was read, to read it again at a reload.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("./tanit-data"),
            master_key_file: None,
            mqtt: Mqtt::default(),
            tls: Tls::default(),
            http: Http::default(),
            pairing: Pairing::default(),
            engine: Engine::default(),
            database: Database::default(),
            log: Log::default(),
            file: None,
        }
    }
}

/// `[mqtt]`: the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mqtt {
    /// Address of the TLS listener; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Address of a plaintext listener where the client id is believed; for development alone.
    pub insecure_dev_listen: Option<SocketAddr>,
    /// Lets the plaintext listener bind an address that is not loopback.
    pub insecure_dev_anywhere: bool,
    /// Longest life of a session without a connection; caps what 5.0 asks. Absent: never ends.
    #[serde(with = "span::optional")]
    pub session_expiry: Option<Duration>,
    /// Longest keep-alive; 5.0 clients are told. Absent: any, none too.
    #[serde(with = "span::optional")]
    pub keep_alive_max: Option<Duration>,
    /// Time from accept to the end of the TLS handshake, in all.
    #[serde(with = "span")]
    pub handshake_timeout: Duration,
    /// Time from there to a complete CONNECT, in all.
    #[serde(with = "span")]
    pub connect_timeout: Duration,
    /// Time that a device may take to read what it was sent.
    #[serde(with = "span")]
    pub write_timeout: Duration,
    /// Connections in all; 0 derives it from the limit of open files.
    pub connections_max: usize,
    /// Connections of one address.
    pub connections_per_address_max: usize,
    /// TLS handshakes computed at one time; 0 is half the cores.
    pub handshakes_max: usize,
    /// Largest packet.
    pub packet_bytes_max: ByteSize,
    /// Largest first packet.
    pub first_packet_bytes_max: ByteSize,
    /// Levels of a topic.
    pub topic_levels_max: usize,
    /// Publishes of one connection that await their acknowledgement, QoS 0 included.
    pub window_messages_max: NonZeroU16,
    /// Their bytes.
    pub window_bytes_max: ByteSize,
    /// QoS 2 packet ids of one connection that await PUBREL; announced as Receive Maximum.
    pub qos2_ids_max: u16,
    /// Messages under way to one device.
    pub inflight_max: NonZeroU16,
    /// Messages queued for one device.
    pub queue_messages_max: u32,
    /// Their bytes.
    pub queue_bytes_max: ByteSize,
    /// Subscriptions of one session, and filters of one packet.
    pub subscriptions_max: usize,
    /// What inhibited credentials mean for connections.
    pub inhibited_devices: InhibitedDevices,
    /// How long a connection outlives its certificate.
    #[serde(with = "span")]
    pub certificate_expiry_grace: Duration,
    /// Longest time that a stop waits for what was taken to be committed and acknowledged.
    #[serde(with = "span")]
    pub drain_timeout: Duration,
}

impl Default for Mqtt {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 8883)),
            insecure_dev_listen: None,
            insecure_dev_anywhere: false,
            session_expiry: None,
            keep_alive_max: None,
            handshake_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            connections_max: 0,
            connections_per_address_max: 20_000,
            handshakes_max: 0,
            packet_bytes_max: ByteSize::kib(300),
            first_packet_bytes_max: ByteSize::kib(80),
            topic_levels_max: 72,
            window_messages_max: HUNDRED,
            window_bytes_max: ByteSize::kib(256),
            qos2_ids_max: 100,
            inflight_max: HUNDRED,
            queue_messages_max: 1000,
            queue_bytes_max: ByteSize::mib(16),
            subscriptions_max: 1024,
            inhibited_devices: InhibitedDevices::Refuse,
            certificate_expiry_grace: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// `[tls]`: the broker's own certificates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// One or two, such as an ECDSA and an RSA one; the client's offer decides. None: one is made.
    pub certificates: Vec<CertificateFiles>,
}

/// A certificate chain and its key, both PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// Chain, leaf first.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// `[http]`: the control API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Serves it over TLS with the broker's certificate.
    pub tls: bool,
    /// Allows an address that is not loopback without TLS.
    pub insecure: bool,
    /// PEM file of the key that verifies Housekeeping tokens; without it Housekeeping is refused on
    /// TCP, and the Unix socket alone can manage realms.
    pub housekeeping_public_key: Option<PathBuf>,
    /// Time for one request.
    #[serde(with = "span")]
    pub request_timeout: Duration,
    /// Largest request body.
    pub body_bytes_max: ByteSize,
    /// Requests handled at one time.
    pub requests_max: usize,
    /// Connections in all.
    pub connections_max: usize,
    /// Wrong credentials secrets that a device, and an address, may present in a minute.
    pub failed_secrets_per_minute: NonZeroU32,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            tls: false,
            insecure: false,
            housekeeping_public_key: None,
            request_timeout: Duration::from_secs(30),
            body_bytes_max: ByteSize::mib(1),
            requests_max: 512,
            connections_max: 4096,
            failed_secrets_per_minute: NonZeroU32::MIN.saturating_add(9),
        }
    }
}

/// `[pairing]`: certificates of devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pairing {
    /// What devices are told to connect to; by default `mqtts://<host name>:<bound port>/`.
    pub broker_url: Option<String>,
    /// Validity of issued certificates.
    #[serde(with = "span")]
    pub certificate_lifetime: Duration,
    /// Accepts only the newest certificate of a device.
    pub enforce_latest_certificate: bool,
}

impl Default for Pairing {
    fn default() -> Self {
        Self {
            broker_url: None,
            certificate_lifetime: Duration::from_hours(90 * 24),
            enforce_latest_certificate: false,
        }
    }
}

/// `[engine]`: the way from PUBLISH to commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    /// Messages accepted and not yet committed, beyond each connection's own window.
    pub intake_messages_max: usize,
    /// Their bytes.
    pub intake_bytes_max: ByteSize,
    /// Messages of one transaction.
    pub batch_messages_max: NonZeroUsize,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            intake_messages_max: 65_536,
            intake_bytes_max: ByteSize::mib(64),
            batch_messages_max: NonZeroUsize::MIN.saturating_add(999),
        }
    }
}

/// `[database]`: where data is kept.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// `postgres://…`; absent, SQLite in the data directory.
    pub url: Option<String>,
}

impl fmt::Debug for Database {
    /// The URL holds a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("url", &self.url.as_ref().map(|_| "…"))
            .finish()
    }
}

/// `[log]`: what is logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as
    /// `info,tanit::mqtt=debug`.
    pub level: String,
    /// How.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Text,
        }
    }
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people; coloured on a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// What the command line overlays.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--mqtt-listen`.
    pub mqtt_listen: Option<SocketAddr>,
    /// `--http-listen`.
    pub http_listen: Option<SocketAddr>,
    /// `--log-format`.
    pub log_format: Option<LogFormat>,
    /// `--log-level`.
    pub log_level: Option<String>,
}

/// Why the settings cannot be used; each line says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there or cannot be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A key is unknown or a value is not of its form.
    #[error("{0}")]
    Invalid(Box<figment::Error>),
    /// Legal values that contradict each other; all of them.
    #[error("{}", .0.join("\n"))]
    Contradictory(Vec<String>),
}

impl Config {
    /// Reads and checks the settings.
    ///
    /// # Errors
    /// When a source cannot be read, a key is unknown, or a value cannot be used.
    pub fn load(overlay: &Overlay) -> Result<Self, ConfigError> {
        let config = Self::read(overlay)?;
        let problems = config.problems();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Contradictory(problems))
        }
    }

    /// Reads the settings, whatever [`Self::problems`] there are with them.
    ///
    /// # Errors
    /// When a source cannot be read, a key is unknown, or a value is not of its form.
    pub fn read(overlay: &Overlay) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(path) = &overlay.file {
            let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
                path: path.clone(),
                source,
            })?;
            figment = figment.merge(Named { path, text: &text });
        }
        let mut config: Self = figment
            .merge(Env::prefixed("TANIT_").split("__"))
            .extract()
            .map_err(|error| ConfigError::Invalid(Box::new(error)))?;
        config.overlay(overlay);
        config.file.clone_from(&overlay.file);
        Ok(config)
    }

    fn overlay(&mut self, overlay: &Overlay) {
        if let Some(data_dir) = &overlay.data_dir {
            self.data_dir.clone_from(data_dir);
        }
        if let Some(listen) = overlay.mqtt_listen {
            self.mqtt.listen = listen;
        }
        if let Some(listen) = overlay.http_listen {
            self.http.listen = listen;
        }
        if let Some(format) = overlay.log_format {
            self.log.format = format;
        }
        if let Some(level) = &overlay.log_level {
            self.log.level.clone_from(level);
        }
    }

    /// Everything that is wrong with the settings as a whole, a line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut require = |holds: bool, problem: &str| {
            if !holds {
                problems.push(problem.to_owned());
            }
        };
        let mqtt = &self.mqtt;
        require(
            mqtt.insecure_dev_anywhere
                || mqtt
                    .insecure_dev_listen
                    .is_none_or(|listen| listen.ip().is_loopback()),
            "mqtt.insecure_dev_listen is plaintext and not a loopback address: use 127.0.0.1, or \
             set mqtt.insecure_dev_anywhere = true",
        );
        require(
            self.http.tls || self.http.insecure || self.http.listen.ip().is_loopback(),
            "http.listen is not a loopback address and has no TLS: set http.tls = true, or \
             http.insecure = true behind a proxy that terminates TLS",
        );
        require(
            self.tls.certificates.len() <= 2,
            "tls.certificates holds more than two: give one, or an ECDSA and an RSA one",
        );
        require(
            self.pairing.certificate_lifetime >= Duration::from_secs(1),
            "pairing.certificate_lifetime is under a second",
        );
        require(
            self.pairing.broker_url.as_deref().is_none_or(is_broker_url),
            "pairing.broker_url has to be mqtts://host:port/ with an explicit port",
        );
        require(
            self.database.url.as_deref().is_none_or(|url| {
                url.starts_with("postgres://") || url.starts_with("postgresql://")
            }),
            "database.url has to begin with postgres://; leave it out for SQLite",
        );
        for (key, value) in [
            (
                "mqtt.connections_per_address_max",
                mqtt.connections_per_address_max,
            ),
            ("mqtt.qos2_ids_max", usize::from(mqtt.qos2_ids_max)),
            ("mqtt.subscriptions_max", mqtt.subscriptions_max),
            ("mqtt.topic_levels_max", mqtt.topic_levels_max),
            ("http.requests_max", self.http.requests_max),
            ("http.connections_max", self.http.connections_max),
        ] {
            require(value > 0, &format!("{key} is 0: give at least 1"));
        }
        require(
            (1..=QueueLimits::MESSAGES_MAX).contains(&mqtt.queue_messages_max),
            "mqtt.queue_messages_max has to be from 1 to 60000: each message holds a packet id",
        );
        require(
            mqtt.packet_bytes_max >= mqtt.first_packet_bytes_max,
            "mqtt.packet_bytes_max is smaller than mqtt.first_packet_bytes_max",
        );
        require(
            mqtt.packet_bytes_max.as_u64() <= 268_435_455,
            "mqtt.packet_bytes_max is over what MQTT can say, 268435455 bytes",
        );
        problems
    }

    /// Settings that are legal but odd, a line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.mqtt.insecure_dev_listen.is_some() {
            warnings.push(
                "mqtt.insecure_dev_listen is set: whoever can reach it is any device".to_owned(),
            );
        }
        if self.http.insecure && !self.http.listen.ip().is_loopback() {
            warnings.push("http.insecure is set: tokens and secrets travel in clear".to_owned());
        }
        warnings
    }

    /// The settings as they are in force, the database's password blotted out.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let mut config = self.clone();
        if let Some(url) = &mut config.database.url {
            *url = redact_url(url);
        }
        config
    }

    /// Where the master key is.
    #[must_use]
    pub fn master_key_path(&self) -> PathBuf {
        self.master_key_file
            .clone()
            .unwrap_or_else(|| self.data_dir.join("master.key"))
    }

    /// Where the control socket is.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.data_dir.join("control.sock")
    }
}

/// `mqtts://host:port` with an optional slash: SDKs fail without an explicit port.
fn is_broker_url(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("mqtts://") else {
        return false;
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    authority
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

/// `url` without its password.
fn redact_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let Some((credentials, host)) = rest.rsplit_once('@') else {
        return url.to_owned();
    };
    let user = credentials.split(':').next().unwrap_or_default();
    format!("{scheme}://{user}:…@{host}")
}

/// A TOML text that errors name by its path.
struct Named<'a> {
    path: &'a Path,
    text: &'a str,
}

impl figment::Provider for Named<'_> {
    fn metadata(&self) -> figment::Metadata {
        figment::Metadata::named(format!("configuration file {}", self.path.display()))
    }

    fn data(
        &self,
    ) -> Result<figment::value::Map<figment::Profile, figment::value::Dict>, figment::Error> {
        Toml::string(self.text)
            .data()
            .map_err(|error| figment::Error::from(without_drawing(&error.to_string())))
    }
}

/// A message of the TOML parser as one line: it draws the place below the line that names it.
fn without_drawing(message: &str) -> String {
    let is_drawn = |line: &str| {
        line.trim_start_matches(|c: char| c.is_ascii_digit())
            .starts_with(" |")
            || line.trim_start().starts_with('|')
    };
    let lines: Vec<_> = message.lines().filter(|line| !is_drawn(line)).collect();
    lines.join(": ")
}

/// Durations as `30s` or `90days`.
mod span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*span))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text).map_err(|error| {
            serde::de::Error::custom(format!("{text:?} is no duration such as \"30s\": {error}"))
        })
    }

    /// The same, where absent means none.
    pub(super) mod optional {
        use std::time::Duration;

        use serde::{Deserialize, Deserializer, Serializer};

        #[expect(clippy::ref_option, reason = "serde calls it so")]
        pub(crate) fn serialize<S: Serializer>(
            span: &Option<Duration>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match span {
                Some(span) => super::serialize(span, to),
                None => to.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<Duration>, D::Error> {
            let Some(text) = Option::<String>::deserialize(from)? else {
                return Ok(None);
            };
            humantime::parse_duration(&text).map(Some).map_err(|error| {
                serde::de::Error::custom(format!(
                    "{text:?} is no duration such as \"30s\": {error}"
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("tanit.toml");
        std::fs::write(&file, text).expect("a file");
        Config::load(&Overlay {
            file: Some(file),
            ..Overlay::default()
        })
    }

    #[test]
    fn the_shipped_file_holds_every_key_with_its_default() {
        let shipped = include_str!("../config/tanit.toml");
        let loaded = load(shipped).expect("it loads");
        assert_eq!(
            Config {
                file: None,
                ..loaded
            },
            Config::default()
        );
        // keys that have no default stand there commented out: with them uncommented it still loads
        let uncommented = shipped.replace("\n#: ", "\n");
        let with_all: toml_keys::Keys = toml_keys::of(&uncommented);
        let ours = toml_keys::of_config(&load(&uncommented).expect("it loads uncommented"));
        assert_eq!(with_all, ours);
    }

    #[test]
    fn unknown_keys_are_refused_with_their_place() {
        let error = load("[mqtt]\nlisten = \"0.0.0.0:1\"\nlitsen = 1\n").expect_err("unknown key");
        let text = error.to_string();
        assert!(
            text.contains("litsen") && text.contains("tanit.toml"),
            "{text}"
        );
    }

    #[test]
    fn values_of_the_wrong_form_are_refused() {
        for text in [
            "[mqtt]\nhandshake_timeout = \"soon\"",
            "[mqtt]\nlisten = \"everywhere\"",
            "[mqtt]\npacket_bytes_max = \"many\"",
            "[http]\nlisten = \"0.0.0.0:8080\"",
            "[pairing]\nbroker_url = \"mqtts://host/\"",
            "[mqtt]\ninsecure_dev_listen = \"0.0.0.0:1883\"",
            "[database]\nurl = \"mysql://x\"",
            "[mqtt]\nwindow_messages_max = 0",
        ] {
            assert!(load(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("tanit.toml");
        std::fs::write(
            &file,
            "data_dir = \"/from/file\"\n[log]\nlevel = \"debug\"\n",
        )
        .expect("a file");
        let config = Config::load(&Overlay {
            file: Some(file),
            data_dir: Some(PathBuf::from("/from/flag")),
            ..Overlay::default()
        })
        .expect("it loads");
        assert_eq!(config.data_dir, Path::new("/from/flag"));
        assert_eq!(config.log.level, "debug");
    }

    #[test]
    fn the_password_of_the_database_is_not_shown() {
        let config = load("[database]\nurl = \"postgres://tanit:hush@db/tanit\"").expect("loads");
        assert_eq!(
            config.redacted().database.url.as_deref(),
            Some("postgres://tanit:…@db/tanit")
        );
        assert!(!format!("{config:?}").contains("hush"));
    }

    /// The keys of a TOML text, by section.
    mod toml_keys {
        use std::collections::BTreeSet;

        pub(super) type Keys = BTreeSet<String>;

        pub(super) fn of(text: &str) -> Keys {
            let mut section = String::new();
            let mut keys = Keys::new();
            for line in text
                .lines()
                .map(str::trim)
                .filter(|line| !line.starts_with('#'))
            {
                if let Some(name) = line.strip_prefix('[') {
                    section = format!("{}.", name.trim_end_matches(']'));
                } else if let Some((key, _)) = line.split_once(" = ") {
                    keys.insert(format!("{section}{key}"));
                }
            }
            keys
        }

        pub(super) fn of_config(config: &super::Config) -> Keys {
            let json = serde_json::to_value(config).expect("settings are JSON");
            let mut keys = Keys::new();
            for (name, value) in json.as_object().expect("an object") {
                match value.as_object() {
                    Some(section) => keys.extend(section.keys().map(|key| format!("{name}.{key}"))),
                    None => {
                        keys.insert(name.clone());
                    }
                }
            }
            keys
        }
    }
}
