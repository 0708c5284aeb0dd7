//! A device of literal packets over real TLS: what it sends and what it saw are bytes.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::product::PATIENCE;

/// A packet as it came in: first byte and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) first: u8,
    pub(crate) body: Vec<u8>,
}

impl Raw {
    /// The packet type, 1 to 15.
    pub(crate) fn kind(&self) -> u8 {
        self.first >> 4
    }

    /// Of a PUBLISH of 3.1.1.
    pub(crate) fn publish(&self) -> Received {
        assert_eq!(self.kind(), 3, "a PUBLISH was expected: {self:02x?}");
        let length = usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
        let topic = String::from_utf8(self.body[2..2 + length].to_vec()).expect("a topic");
        let qos = (self.first >> 1) & 3;
        let at = 2 + length;
        let (packet_id, payload) = if qos == 0 {
            (None, &self.body[at..])
        } else {
            let id = u16::from_be_bytes([self.body[at], self.body[at + 1]]);
            (Some(id), &self.body[at + 2..])
        };
        Received {
            dup: self.first & 8 != 0,
            retain: self.first & 1 != 0,
            qos,
            topic,
            packet_id,
            payload: payload.to_vec(),
        }
    }

    /// The packet id at the head of the body.
    pub(crate) fn id(&self) -> u16 {
        u16::from_be_bytes([self.body[0], self.body[1]])
    }
}

/// A PUBLISH that the device received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) dup: bool,
    pub(crate) retain: bool,
    pub(crate) qos: u8,
    pub(crate) topic: String,
    pub(crate) packet_id: Option<u16>,
    pub(crate) payload: Vec<u8>,
}

/// One connection of a device.
pub(crate) struct RawDevice {
    stream: TlsStream<TcpStream>,
    base: String,
    next_id: u16,
    /// Packets that came while another kind was awaited.
    pub(crate) aside: Vec<Raw>,
}

impl RawDevice {
    /// TCP and TLS, no MQTT yet.
    pub(crate) async fn open(
        address: SocketAddr,
        tls: Arc<rustls::ClientConfig>,
        base: String,
    ) -> std::io::Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        Self::over(tcp, tls, base).await
    }

    /// TLS over what is connected, no MQTT yet.
    pub(crate) async fn over(
        tcp: TcpStream,
        tls: Arc<rustls::ClientConfig>,
        base: String,
    ) -> std::io::Result<Self> {
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TlsConnector::from(tls).connect(name, tcp).await?;
        Ok(Self {
            stream,
            base,
            next_id: 0,
            aside: Vec::new(),
        })
    }

    /// What TLS knows of the connection.
    pub(crate) fn tls(&self) -> &rustls::ClientConnection {
        self.stream.get_ref().1
    }

    /// Sends these bytes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream
            .write_all(bytes)
            .await
            .expect("it can be written");
        self.stream.flush().await.expect("it can be flushed");
    }

    /// Sends these bytes, and does not mind when the peer has closed.
    pub(crate) async fn send_anyway(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    /// The next packet; `None` when the connection ended.
    pub(crate) async fn next(&mut self) -> Option<Raw> {
        if !self.aside.is_empty() {
            return Some(self.aside.remove(0));
        }
        timeout(PATIENCE, self.read())
            .await
            .expect("a packet, or the end, in time")
    }

    async fn read(&mut self) -> Option<Raw> {
        let first = self.stream.read_u8().await.ok()?;
        let mut length = 0_usize;
        for shift in [0, 7, 14, 21] {
            let byte = self.stream.read_u8().await.ok()?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Raw { first, body })
    }

    /// The next packet of this kind; others wait aside.
    pub(crate) async fn expect(&mut self, kind: u8) -> Raw {
        if let Some(at) = self.aside.iter().position(|packet| packet.kind() == kind) {
            return self.aside.remove(at);
        }
        loop {
            let packet = timeout(PATIENCE, self.read())
                .await
                .expect("a packet in time");
            let packet = packet.unwrap_or_else(|| panic!("closed; packet {kind} was expected"));
            if packet.kind() == kind {
                return packet;
            }
            self.aside.push(packet);
        }
    }

    /// Nothing comes for as long as a PINGREQ takes to be answered: everything that was owed before
    /// would have come first.
    pub(crate) async fn expect_only_pong(&mut self) {
        self.send(&[0xc0, 0]).await;
        let packet = self.next().await.expect("a PINGRESP");
        assert_eq!(
            packet,
            Raw {
                first: 0xd0,
                body: Vec::new()
            },
            "nothing else was expected"
        );
    }

    /// The connection ends; returns what came before.
    pub(crate) async fn expect_closed(&mut self) -> Vec<Raw> {
        let mut before = std::mem::take(&mut self.aside);
        while let Some(packet) = timeout(PATIENCE, self.read())
            .await
            .expect("the end in time")
        {
            before.push(packet);
        }
        before
    }

    /// Whether nothing at all arrives within `span`. Only for what must not come.
    pub(crate) async fn silent_for(&mut self, span: Duration) -> bool {
        self.aside.is_empty() && timeout(span, self.read()).await.is_err()
    }

    /// CONNECT (3.1.1), which has to be accepted; returns session present.
    pub(crate) async fn connect(&mut self, client_id: &str, clean: bool, keep_alive: u16) -> bool {
        self.send(&connect(client_id, clean, keep_alive)).await;
        let answer = self.next().await.expect("a CONNACK");
        assert_eq!(
            (answer.first, answer.body[1]),
            (0x20, 0),
            "accepted: {answer:02x?}"
        );
        answer.body[0] == 1
    }

    /// CONNECT of these bytes, which has to be refused; returns the code.
    pub(crate) async fn connect_refused(&mut self, packet: &[u8]) -> u8 {
        self.send_anyway(packet).await;
        let answer = self.next().await.expect("a CONNACK");
        assert_eq!(answer.kind(), 2, "a CONNACK: {answer:02x?}");
        assert!(self.next().await.is_none(), "closed after the refusal");
        answer.body[1]
    }

    /// A fresh packet id.
    pub(crate) fn fresh_id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    /// Subscribes to filters below the base topic, all granted.
    pub(crate) async fn subscribe(&mut self, below: &[(&str, u8)]) {
        let id = self.fresh_id();
        let filters: Vec<(String, u8)> = below
            .iter()
            .map(|(filter, qos)| (format!("{}/{filter}", self.base), *qos))
            .collect();
        let filters: Vec<(&str, u8)> = filters
            .iter()
            .map(|(filter, qos)| (filter.as_str(), *qos))
            .collect();
        self.send(&subscribe(id, &filters)).await;
        let answer = self.expect(9).await;
        let granted: Vec<u8> = below.iter().map(|(_, qos)| *qos).collect();
        assert_eq!(
            (answer.id(), &answer.body[2..]),
            (id, &granted[..]),
            "granted"
        );
    }

    /// Publishes the introspection at QoS 2 and completes the flow.
    pub(crate) async fn declare(&mut self, introspection: &str) {
        self.publish_exactly_once("", introspection.as_bytes())
            .await;
    }

    /// Publishes at QoS 1 below the base topic and awaits the PUBACK.
    pub(crate) async fn publish(&mut self, below: &str, payload: &[u8]) {
        let id = self.send_publish(below, payload, 1).await;
        assert_eq!(self.expect(4).await.id(), id, "its PUBACK");
    }

    /// Publishes at QoS 2 below the base topic and completes the flow.
    pub(crate) async fn publish_exactly_once(&mut self, below: &str, payload: &[u8]) {
        let id = self.send_publish(below, payload, 2).await;
        assert_eq!(self.expect(5).await.id(), id, "its PUBREC");
        self.send(&pubrel(id)).await;
        assert_eq!(self.expect(7).await.id(), id, "its PUBCOMP");
    }

    /// Publishes below the base topic and waits for nothing; returns the packet id (0 at QoS 0).
    pub(crate) async fn send_publish(&mut self, below: &str, payload: &[u8], qos: u8) -> u16 {
        let id = if qos == 0 { 0 } else { self.fresh_id() };
        let topic = self.topic(below);
        self.send(&publish(&topic, payload, qos, id)).await;
        id
    }

    /// A topic of this device; `below` may be empty.
    pub(crate) fn topic(&self, below: &str) -> String {
        if below.is_empty() {
            self.base.clone()
        } else {
            format!("{}/{below}", self.base)
        }
    }

    /// The next PUBLISH, acknowledged at QoS 1.
    pub(crate) async fn receive(&mut self) -> Received {
        let received = self.expect(3).await.publish();
        if let (1, Some(id)) = (received.qos, received.packet_id) {
            self.send(&puback(id)).await;
        }
        received
    }

    /// DISCONNECT, then the end of the connection.
    pub(crate) async fn disconnect(mut self) {
        self.send_anyway(&[0xe0, 0]).await;
        let _ = self.expect_closed().await;
    }

    /// Cuts the connection without a word.
    pub(crate) fn cut(self) {
        drop(self);
    }
}

/// A text with its length.
pub(crate) fn text(text: &str, to: &mut Vec<u8>) {
    to.extend(
        u16::try_from(text.len())
            .expect("a short text")
            .to_be_bytes(),
    );
    to.extend(text.as_bytes());
}

/// A frame with this first byte.
pub(crate) fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    let mut length = body.len();
    loop {
        let byte = u8::try_from(length & 0x7f).expect("seven bits");
        length >>= 7;
        packet.push(if length > 0 { byte | 0x80 } else { byte });
        if length == 0 {
            break;
        }
    }
    packet.extend(body);
    packet
}

/// CONNECT of 3.1.1.
pub(crate) fn connect(client_id: &str, clean: bool, keep_alive: u16) -> Vec<u8> {
    connect_with_will(client_id, clean, keep_alive, None)
}

/// CONNECT of 3.1.1 with a will `(topic, payload, QoS, retain)`.
pub(crate) fn connect_with_will(
    client_id: &str,
    clean: bool,
    keep_alive: u16,
    will: Option<(&str, &[u8], u8, bool)>,
) -> Vec<u8> {
    let mut body = Vec::new();
    text("MQTT", &mut body);
    body.push(4);
    let mut flags = if clean { 2 } else { 0 };
    if let Some((_, _, qos, retain)) = will {
        flags |= 4 | (qos << 3) | (u8::from(retain) << 5);
    }
    body.push(flags);
    body.extend(keep_alive.to_be_bytes());
    text(client_id, &mut body);
    if let Some((topic, payload, ..)) = will {
        text(topic, &mut body);
        body.extend(
            u16::try_from(payload.len())
                .expect("a short will")
                .to_be_bytes(),
        );
        body.extend(payload);
    }
    frame(0x10, &body)
}

/// CONNECT of 5.0 with these properties (already encoded, without their length).
pub(crate) fn connect_v5(
    client_id: &str,
    clean: bool,
    keep_alive: u16,
    properties: &[u8],
) -> Vec<u8> {
    let mut body = Vec::new();
    text("MQTT", &mut body);
    body.push(5);
    body.push(if clean { 2 } else { 0 });
    body.extend(keep_alive.to_be_bytes());
    body.push(u8::try_from(properties.len()).expect("few properties"));
    body.extend(properties);
    text(client_id, &mut body);
    frame(0x10, &body)
}

/// PUBLISH of 3.1.1.
pub(crate) fn publish(topic: &str, payload: &[u8], qos: u8, id: u16) -> Vec<u8> {
    let mut body = Vec::new();
    text(topic, &mut body);
    if qos > 0 {
        body.extend(id.to_be_bytes());
    }
    body.extend(payload);
    frame(0x30 | (qos << 1), &body)
}

/// PUBLISH of 5.0 with these properties (already encoded, without their length).
pub(crate) fn publish_v5(
    topic: &str,
    properties: &[u8],
    payload: &[u8],
    qos: u8,
    id: u16,
) -> Vec<u8> {
    let mut body = Vec::new();
    text(topic, &mut body);
    if qos > 0 {
        body.extend(id.to_be_bytes());
    }
    body.push(u8::try_from(properties.len()).expect("few properties"));
    body.extend(properties);
    body.extend(payload);
    frame(0x30 | (qos << 1), &body)
}

/// The properties of a 5.0 packet.
#[derive(Debug)]
pub(crate) struct Properties {
    all: Vec<(u8, Vec<u8>)>,
    /// Bytes that they took, their length included.
    pub(crate) bytes: usize,
}

impl Properties {
    /// Reads the properties that `bytes` begins with.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let length = usize::from(bytes[0]);
        assert!(length < 128, "more than this reads: {bytes:02x?}");
        let mut rest = &bytes[1..=length];
        let mut all = Vec::new();
        while let [id, after @ ..] = rest {
            let size = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => 1,
                0x13 | 0x21 | 0x22 | 0x23 => 2,
                0x02 | 0x11 | 0x18 | 0x27 => 4,
                0x12 | 0x1a | 0x1c | 0x1f => {
                    2 + usize::from(u16::from_be_bytes([after[0], after[1]]))
                }
                _ => panic!("property {id:#04x} was not expected"),
            };
            all.push((*id, after[..size].to_vec()));
            rest = &after[size..];
        }
        Self {
            all,
            bytes: 1 + length,
        }
    }

    fn find(&self, id: u8) -> Option<&[u8]> {
        let found = self.all.iter().find(|(name, _)| *name == id);
        found.map(|(_, value)| value.as_slice())
    }

    /// A property of one, two or four bytes.
    pub(crate) fn number(&self, id: u8) -> Option<u32> {
        let bytes = self.find(id)?;
        Some(
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
        )
    }

    /// A property that is a text.
    pub(crate) fn text(&self, id: u8) -> Option<String> {
        let bytes = self.find(id)?;
        Some(String::from_utf8(bytes[2..].to_vec()).expect("a text"))
    }
}

/// The same with the DUP flag.
pub(crate) fn publish_again(topic: &str, payload: &[u8], qos: u8, id: u16) -> Vec<u8> {
    let mut packet = publish(topic, payload, qos, id);
    packet[0] |= 8;
    packet
}

/// SUBSCRIBE of 3.1.1.
pub(crate) fn subscribe(id: u16, filters: &[(&str, u8)]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    for (filter, qos) in filters {
        text(filter, &mut body);
        body.push(*qos);
    }
    frame(0x82, &body)
}

/// PUBACK.
pub(crate) fn puback(id: u16) -> Vec<u8> {
    frame(0x40, &id.to_be_bytes())
}

/// PUBREC.
pub(crate) fn pubrec(id: u16) -> Vec<u8> {
    frame(0x50, &id.to_be_bytes())
}

/// PUBREL.
pub(crate) fn pubrel(id: u16) -> Vec<u8> {
    frame(0x62, &id.to_be_bytes())
}

/// PUBCOMP.
pub(crate) fn pubcomp(id: u16) -> Vec<u8> {
    frame(0x70, &id.to_be_bytes())
}

/// BSON `{v: …}`.
pub(crate) fn bson(value: impl Into<bson::Bson>) -> Vec<u8> {
    let mut document = bson::Document::new();
    document.insert("v", value);
    document.to_vec().expect("BSON")
}
