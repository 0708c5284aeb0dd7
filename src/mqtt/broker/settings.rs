//! Every limit and time of the broker.

use std::{net::SocketAddr, num::NonZeroU16, time::Duration};

use crate::mqtt::sessions::QueueLimits;

/// Limits and times of the broker. The defaults are those of the documentation's table.
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    /// Where MQTT over TLS listens; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Where plaintext MQTT for development listens; the claimed client id is the identity there.
    pub insecure_dev_listen: Option<SocketAddr>,
    /// Lets the development listener bind an address that is not loopback.
    pub insecure_dev_anywhere: bool,
    /// Connections in all, handshakes included.
    pub connections_max: usize,
    /// Connections per peer address, handshakes included. (Devices behind one NAT share it.)
    pub connections_per_address_max: usize,
    /// TLS handshakes under way per peer address.
    pub handshakes_per_address_max: usize,
    /// TLS handshakes whose asymmetric work may be done at the same time; fewer than there are
    /// cores leaves some for the connections that are there (default: half of them).
    pub handshakes_at_work_max: usize,
    /// For the whole TLS handshake.
    pub handshake_timeout: Duration,
    /// From the end of the handshake to a complete CONNECT.
    pub connect_timeout: Duration,
    /// A device that does not take what is written to it for so long is dropped.
    pub write_timeout: Duration,
    /// Largest packet that is read, in bytes, header included.
    pub packet_bytes_max: usize,
    /// Largest CONNECT, in bytes, header included.
    pub first_packet_bytes_max: usize,
    /// Levels of a topic.
    pub topic_levels_max: usize,
    /// Publishes of QoS 1 and 2 that await our PUBACK or PUBREC, per connection.
    pub window_messages: NonZeroU16,
    /// Their bytes, per connection.
    pub window_bytes: usize,
    /// Inbound QoS 2 packet ids that await PUBREL, per connection.
    pub inbound_qos2_max: u16,
    /// Outbound QoS 1 and 2 messages in flight, per connection.
    pub outbound_inflight: NonZeroU16,
    /// Topic filters in one SUBSCRIBE or UNSUBSCRIBE.
    pub filters_per_packet_max: usize,
    /// Topic aliases that a 5.0 client may use.
    pub topic_alias_max: u16,
    /// Bounds of a session.
    pub queue: QueueLimits,
    /// Longest session expiry that is granted; `None`: endless ones too.
    pub session_expiry_max: Option<Duration>,
    /// Longest keep-alive that is granted; `None`: any, and none at all.
    pub keep_alive_max: Option<Duration>,
    /// How long a connection outlives its certificate.
    pub certificate_expiry_grace: Duration,
    /// Delayed wills that wait for their time, in all; beyond it they are published at once.
    pub delayed_wills_max: usize,
}

impl BrokerSettings {
    /// The defaults, but with the plaintext development listener alone.
    #[must_use]
    pub fn development(listen: SocketAddr) -> Self {
        Self {
            listen: None,
            insecure_dev_listen: Some(listen),
            ..Self::default()
        }
    }
}

impl Default for BrokerSettings {
    fn default() -> Self {
        const HUNDRED: NonZeroU16 = NonZeroU16::new(100).expect("is not zero");
        Self {
            listen: Some(SocketAddr::from(([0, 0, 0, 0], 8883))),
            insecure_dev_listen: None,
            insecure_dev_anywhere: false,
            connections_max: 100_000,
            connections_per_address_max: 20_000,
            handshakes_per_address_max: 1_000,
            handshakes_at_work_max: std::thread::available_parallelism()
                .map_or(1, |cores| cores.get().div_ceil(2)),
            handshake_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            packet_bytes_max: 300 << 10,
            first_packet_bytes_max: 80 << 10,
            topic_levels_max: 72,
            window_messages: HUNDRED,
            window_bytes: 256 << 10,
            inbound_qos2_max: 100,
            outbound_inflight: HUNDRED,
            filters_per_packet_max: 1_024,
            topic_alias_max: 16,
            queue: QueueLimits::default(),
            session_expiry_max: None,
            keep_alive_max: None,
            certificate_expiry_grace: Duration::ZERO,
            delayed_wills_max: 10_000,
        }
    }
}
