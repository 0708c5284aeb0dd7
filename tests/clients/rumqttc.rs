//! rumqttc, with its client for each version.

use std::sync::Arc;

use rumqttc::{TlsConfiguration, Transport, mqttbytes::v4, v5, v5::mqttbytes::v5 as packets};
use tokio::time::timeout;

use crate::harness::{
    device::bson,
    product::{ALL_INTERFACES, PATIENCE, Tanit, TestDevice},
};

#[tokio::test]
async fn rumqttc_of_3_1_1_is_served_over_kill_9() {
    a_day_with(Client::v4).await;
}

#[tokio::test]
async fn rumqttc_of_5_0_is_served_over_kill_9() {
    a_day_with(Client::v5).await;
}

/// Handshake, values at each QoS, a value from the server while the device is there and one while
/// it is not, with a kill -9 before it is back.
async fn a_day_with(client: impl Fn(&Settings) -> Client) {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let settings = Settings::of(&device, &tanit);

    let mut connection = client(&settings);
    assert!(!connection.connected().await, "a new device has no session");
    connection.subscribe(&device.base(), "t.SrvCmd/#").await;
    connection
        .complete(&device.base(), 2, ALL_INTERFACES.as_bytes())
        .await;
    let integers = format!("{}/t.Dev/int", device.base());
    connection.publish(&integers, 0, &bson(0)).await;
    connection.complete(&integers, 1, &bson(1)).await;
    connection.complete(&integers, 2, &bson(2)).await;
    let values: Vec<_> = tanit.data(&device, "t.Dev", "/int").await;
    let values: Vec<_> = values.iter().map(|row| row["value"].clone()).collect();
    assert_eq!(values, [0, 1, 2], "each once, in order");

    let command = ["publish", "acme", &device.id, "t.SrvCmd", "/cmd"];
    tanit.cli(&[&command[..], &["online"]].concat()).await;
    let topic = format!("{}/t.SrvCmd/cmd", device.base());
    assert_eq!(
        connection.received().await,
        (topic.clone(), 1, bson("online"))
    );
    connection.close().await;
    tanit
        .until_device(&device, "disconnected", |device| {
            device["connected"] == false
        })
        .await;
    tanit.cli(&[&command[..], &["offline"]].concat()).await;
    tanit.kill().await;
    tanit.launch().await;

    let mut connection = client(&settings);
    assert!(connection.connected().await, "the session outlives kill -9");
    assert_eq!(connection.received().await, (topic, 1, bson("offline")));
    connection.complete(&integers, 2, &bson(3)).await;
    assert_eq!(tanit.data(&device, "t.Dev", "/int").await.len(), 4);
    assert!(tanit.errors(&device).await.is_empty());
}

/// 3.1.1 has no place for it: there a refused value looks like any other.
#[tokio::test]
async fn rumqttc_of_5_0_is_told_why_a_value_is_refused() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = Client::v5(&Settings::of(&device, &tanit));
    connection.connected().await;
    connection
        .complete(&device.base(), 2, ALL_INTERFACES.as_bytes())
        .await;
    let integers = format!("{}/t.Dev/int", device.base());
    connection.publish(&integers, 1, &bson("a text")).await;
    let seen = connection
        .until(|seen| matches!(seen, Seen::Refused(_)).then_some(seen))
        .await;
    assert_eq!(seen, Seen::Refused("PayloadFormatInvalid".to_owned()));
    assert_eq!(tanit.errors(&device).await, ["unexpected_value_type"]);
    assert!(tanit.data(&device, "t.Dev", "/int").await.is_empty());
}

/// Where a client connects to, and as whom.
struct Settings {
    id: String,
    port: u16,
    tls: Arc<rustls::ClientConfig>,
}

impl Settings {
    fn of(device: &TestDevice, tanit: &Tanit) -> Self {
        Self {
            id: device.base(),
            port: tanit.mqtt.port(),
            tls: device.tls(),
        }
    }

    fn transport(&self) -> Transport {
        Transport::tls_with_config(TlsConfiguration::Rustls(self.tls.clone()))
    }
}

/// What a client saw.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Connected { session_present: bool },
    Granted,
    Completed,
    Refused(String),
    Received(String, u8, Vec<u8>),
    Left,
    Other,
}

/// One of the two clients of rumqttc.
enum Client {
    V4(rumqttc::AsyncClient, Box<rumqttc::EventLoop>),
    V5(v5::AsyncClient, Box<v5::EventLoop>),
}

/// Requests that a client holds.
const REQUESTS: usize = 16;

impl Client {
    fn v4(settings: &Settings) -> Self {
        let mut options = rumqttc::MqttOptions::new(&settings.id, "localhost", settings.port);
        options.set_clean_session(false);
        options.set_transport(settings.transport());
        let (client, events) = rumqttc::AsyncClient::new(options, REQUESTS);
        Self::V4(client, Box::new(events))
    }

    fn v5(settings: &Settings) -> Self {
        let mut options = v5::MqttOptions::new(&settings.id, "localhost", settings.port);
        options.set_clean_start(false);
        options.set_session_expiry_interval(Some(3600));
        options.set_transport(settings.transport());
        let (client, events) = v5::AsyncClient::new(options, REQUESTS);
        Self::V5(client, Box::new(events))
    }

    /// Polls until `wanted` finds what it wants.
    async fn until<T>(&mut self, wanted: impl Fn(Seen) -> Option<T>) -> T {
        let polled = timeout(PATIENCE, async {
            loop {
                if let Some(found) = wanted(self.poll().await) {
                    break found;
                }
            }
        });
        polled.await.expect("it comes in time")
    }

    async fn poll(&mut self) -> Seen {
        match self {
            Self::V4(_, events) => of_v4(events.poll().await.expect("no error")),
            Self::V5(_, events) => match events.poll().await {
                Ok(event) => of_v5(event),
                // where it follows a PUBACK at once, this is all that rumqttc lets us see
                Err(v5::ConnectionError::MqttState(v5::StateError::ServerDisconnect {
                    reason_code,
                    ..
                })) => Seen::Refused(format!("{reason_code:?}")),
                Err(error) => panic!("{error}"),
            },
        }
    }

    /// Connects; returns session present.
    async fn connected(&mut self) -> bool {
        self.until(|seen| match seen {
            Seen::Connected { session_present } => Some(session_present),
            _ => None,
        })
        .await
    }

    async fn subscribe(&mut self, base: &str, below: &str) {
        let filter = format!("{base}/{below}");
        let asked = match self {
            Self::V4(client, _) => {
                let qos = rumqttc::QoS::ExactlyOnce;
                client.subscribe(filter, qos).await.is_ok()
            }
            Self::V5(client, _) => {
                let qos = v5::mqttbytes::QoS::ExactlyOnce;
                client.subscribe(filter, qos).await.is_ok()
            }
        };
        assert!(asked, "the event loop is there");
        self.until(|seen| (seen == Seen::Granted).then_some(()))
            .await;
    }

    async fn publish(&mut self, topic: &str, qos: u8, payload: &[u8]) {
        let payload = payload.to_vec();
        match self {
            Self::V4(client, _) => {
                let qos = rumqttc::qos(qos).expect("a QoS");
                let asked = client.publish(topic, qos, false, payload).await;
                asked.expect("the event loop is there");
            }
            Self::V5(client, _) => {
                let qos = v5::mqttbytes::qos(qos).expect("a QoS");
                let asked = client.publish(topic, qos, false, payload).await;
                asked.expect("the event loop is there");
            }
        }
    }

    /// Publishes, and awaits the end of the flow.
    async fn complete(&mut self, topic: &str, qos: u8, payload: &[u8]) {
        self.publish(topic, qos, payload).await;
        self.until(|seen| {
            assert!(!matches!(seen, Seen::Refused(_)), "{seen:?}");
            (seen == Seen::Completed).then_some(())
        })
        .await;
    }

    /// DISCONNECT.
    async fn close(mut self) {
        let asked = match &self {
            Self::V4(client, _) => client.disconnect().await.is_ok(),
            Self::V5(client, _) => client.disconnect().await.is_ok(),
        };
        assert!(asked, "the event loop is there");
        self.until(|seen| (seen == Seen::Left).then_some(())).await;
    }

    /// The next message.
    async fn received(&mut self) -> (String, u8, Vec<u8>) {
        self.until(|seen| match seen {
            Seen::Received(topic, qos, payload) => Some((topic, qos, payload)),
            _ => None,
        })
        .await
    }
}

fn of_v4(event: rumqttc::Event) -> Seen {
    let packet = match event {
        rumqttc::Event::Incoming(packet) => packet,
        rumqttc::Event::Outgoing(rumqttc::Outgoing::Disconnect) => return Seen::Left,
        rumqttc::Event::Outgoing(_) => return Seen::Other,
    };
    match packet {
        v4::Packet::ConnAck(ack) => Seen::Connected {
            session_present: ack.session_present,
        },
        v4::Packet::SubAck(ack) => {
            let granted = v4::SubscribeReasonCode::Success(rumqttc::QoS::ExactlyOnce);
            assert_eq!(ack.return_codes, [granted]);
            Seen::Granted
        }
        v4::Packet::PubAck(_) | v4::Packet::PubComp(_) => Seen::Completed,
        v4::Packet::Publish(message) => {
            Seen::Received(message.topic, message.qos as u8, message.payload.to_vec())
        }
        _ => Seen::Other,
    }
}

fn of_v5(event: v5::Event) -> Seen {
    let packet = match event {
        v5::Event::Incoming(packet) => packet,
        v5::Event::Outgoing(rumqttc::Outgoing::Disconnect) => return Seen::Left,
        v5::Event::Outgoing(_) => return Seen::Other,
    };
    match packet {
        packets::Packet::ConnAck(ack) => Seen::Connected {
            session_present: ack.session_present,
        },
        packets::Packet::SubAck(ack) => {
            let granted = packets::SubscribeReasonCode::Success(v5::mqttbytes::QoS::ExactlyOnce);
            assert_eq!(ack.return_codes, [granted]);
            Seen::Granted
        }
        packets::Packet::PubAck(ack) if ack.reason != packets::PubAckReason::Success => {
            Seen::Refused(format!("{:?}", ack.reason))
        }
        packets::Packet::PubRec(ack) if ack.reason != packets::PubRecReason::Success => {
            Seen::Refused(format!("{:?}", ack.reason))
        }
        packets::Packet::PubAck(_) | packets::Packet::PubComp(_) => Seen::Completed,
        packets::Packet::Publish(message) => {
            let topic = String::from_utf8(message.topic.to_vec()).expect("UTF-8");
            Seen::Received(topic, message.qos as u8, message.payload.to_vec())
        }
        _ => Seen::Other,
    }
}
