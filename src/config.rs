//! Settings: defaults, then the file, then `TANIT_*` environment variables, then flags.
//!
//! One [`Config`], read once and checked, then passed down by section; nothing below reads the
//! environment. Unknown keys are refused. `config/tanit.toml` shows every key with its default; a
//! test compares the two.

mod sections;
mod span;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml},
};
use serde::{Deserialize, Serialize};

pub use crate::engine::InhibitedDevices;
pub use sections::{CertificateFiles, Database, Engine, Http, Log, LogFormat, Mqtt, Pairing, Tls};

use crate::mqtt::sessions::QueueLimits;

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
    /// Where it was read from, to read it again at a reload.
    #[serde(skip)]
    pub source: Overlay,
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
            source: Overlay::default(),
        }
    }
}

/// What the command line overlays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    #[error("{}", without_profile(&.0.to_string()))]
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
        config.source = overlay.clone();
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

/// Figment says of every key which profile it is in; there is one, and nobody has heard of it.
fn without_profile(error: &str) -> String {
    error.replace("key \"default.", "key \"")
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
                source: Overlay::default(),
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
            text.contains("\"mqtt.litsen\"") && text.contains("tanit.toml"),
            "{text}"
        );
    }

    #[test]
    fn durations_are_shown_as_people_set_them() {
        for (seconds, words) in [
            (0, "0s"),
            (30, "30s"),
            (5400, "1h 30m"),
            (90 * 86_400, "90days"),
            (365 * 86_400 + 60, "365days 1m"),
        ] {
            let span = Duration::from_secs(seconds);
            assert_eq!(span::in_words(span), words);
            assert_eq!(humantime::parse_duration(words), Ok(span));
        }
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
