//! One struct a section: its keys, their meaning, unit and default.

use std::{
    fmt,
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::{InhibitedDevices, span};

/// The window and the inflight limit.
const HUNDRED: NonZeroU16 = NonZeroU16::MIN.saturating_add(99);

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
